//! llm-d's own sections: what exists here runs, what does not is a clear error.

use std::collections::HashMap;

use wicketgate_scheduler::{
    PluginErrorKind, SchedulerSpec, plugin_from_parameters,
    spec::{PluginInstance, ProfilePlugin, ProfileSpec, nearest},
};

use crate::{decode::Decoded, raw::Raw};

/// Plugins that llm-d lists and that are always on here: the scraper, its reader, the parsers and the in-flight
/// counts. Listing them changes nothing.
const BUILT_IN: [&str; 5] = [
    "metrics-data-source",
    "core-metrics-extractor",
    "openai-parser",
    "passthrough-parser",
    "inflight-load-producer",
];

/// Feature gates: name, and whether turning it on is possible.
const GATES: [(&str, bool); 4] = [
    ("flowControl", false),
    ("haPopulateNonLeaderDatastore", true),
    ("dataLayer", true),
    ("enableLegacyMetrics", false),
];

/// The scheduler that the file asks for.
pub(crate) fn scheduler(raw: &Raw, of_llmd: bool, out: &mut Decoded) -> SchedulerSpec {
    gates(raw, out);
    let built_in = references(raw, out);
    let (Some(plugins), profiles) = (&raw.plugins, &raw.scheduling_profiles) else {
        if raw.scheduling_profiles.is_some() {
            out.fault("schedulingProfiles", "profiles need `plugins` to refer to");
        }
        return if of_llmd {
            SchedulerSpec::llmd_default()
        } else {
            SchedulerSpec::default_ours()
        };
    };
    let mut instances: Vec<PluginInstance> = Vec::new();
    for (index, plugin) in plugins.iter().enumerate() {
        let path = format!("plugins[{index}]");
        let name = plugin.name.as_deref().unwrap_or(&plugin.type_name);
        if instances.iter().any(|known| known.name.as_ref() == name) {
            out.fault(
                &path,
                format!("a second plugin named `{name}`; names must differ"),
            );
            continue;
        }
        if BUILT_IN.contains(&plugin.type_name.as_str()) {
            continue;
        }
        match plugin_from_parameters(&plugin.type_name, name, &plugin.parameters) {
            Ok(plugin) => instances.push(PluginInstance {
                name: name.into(),
                plugin,
            }),
            Err(error) => {
                let at = match error.kind {
                    PluginErrorKind::UnknownType | PluginErrorKind::Unsupported => {
                        format!("{path}.type")
                    }
                    PluginErrorKind::UnknownParameter | PluginErrorKind::BadValue => {
                        format!("{path}.parameters.{}", error.field)
                    }
                };
                out.fault(&at, error.to_string());
            }
        }
    }
    let profiles = profiles.as_deref().unwrap_or_default();
    let profiles = profiles.iter().enumerate().map(|(index, profile)| {
        let path = format!("schedulingProfiles[{index}]");
        let plugins = profile
            .plugins
            .iter()
            .enumerate()
            .filter(|(_, plugin)| !built_in.contains_key(plugin.plugin_ref.as_str()));
        let plugins = plugins.map(|(place, plugin)| {
            let here = format!("{path}.plugins[{place}]");
            if let Some(weight) = plugin
                .weight
                .filter(|weight| !(weight.is_finite() && *weight >= 0.0))
            {
                out.fault(
                    &format!("{here}.weight"),
                    format!("a weight must be a number from 0 on, not {weight}"),
                );
            }
            if !instances
                .iter()
                .any(|known| *known.name == *plugin.plugin_ref)
            {
                unknown(
                    &here,
                    &plugin.plugin_ref,
                    &instances,
                    plugins_failed(raw, &plugin.plugin_ref),
                    out,
                );
            }
            ProfilePlugin {
                plugin: plugin.plugin_ref.as_str().into(),
                weight: plugin.weight,
            }
        });
        ProfileSpec {
            name: profile.name.as_str().into(),
            plugins: plugins.collect(),
        }
    });
    let profiles = profiles.collect();
    SchedulerSpec {
        plugins: instances,
        profiles,
    }
}

/// True if the name belongs to a plugin that was refused: one fault is enough for it.
fn plugins_failed(raw: &Raw, name: &str) -> bool {
    let plugins = raw.plugins.as_deref().unwrap_or_default();
    plugins
        .iter()
        .any(|plugin| plugin.name.as_deref().unwrap_or(&plugin.type_name) == name)
}

fn unknown(path: &str, name: &str, instances: &[PluginInstance], failed: bool, out: &mut Decoded) {
    if failed {
        return;
    }
    let known = nearest(name, instances.iter().map(|known| known.name.as_ref()));
    let hint = known.map_or_else(String::new, |known| format!("; did you mean `{known}`?"));
    out.fault(
        &format!("{path}.pluginRef"),
        format!("no plugin is named `{name}`{hint}"),
    );
}

fn gates(raw: &Raw, out: &mut Decoded) {
    for (index, gate) in raw.feature_gates.iter().enumerate() {
        let path = format!("featureGates[{index}]");
        let (name, on) = match gate.split_once('=') {
            None => (gate.as_str(), true),
            Some((name, "true")) => (name, true),
            Some((name, "false")) => (name, false),
            Some(_) => {
                out.fault(
                    &path,
                    format!("`{gate}` is no gate; expected NAME, NAME=true or NAME=false"),
                );
                continue;
            }
        };
        match GATES.iter().find(|(known, _)| *known == name) {
            None => {
                let known = nearest(name, GATES.iter().map(|(name, _)| *name));
                let hint =
                    known.map_or_else(String::new, |known| format!("; did you mean `{known}`?"));
                out.fault(&path, format!("no feature gate is named `{name}`{hint}"));
            }
            Some((_, false)) if on => {
                out.fault(
                    &path,
                    format!("`{name}` is known in llm-d but not supported yet; remove it"),
                );
            }
            Some(_) => {}
        }
    }
}

/// Names of plugins that are built in, and faults for sections that ask for more than is built in.
fn references<'a>(raw: &'a Raw, out: &mut Decoded) -> HashMap<&'a str, &'a str> {
    let mut built_in = HashMap::new();
    for plugin in raw.plugins.as_deref().unwrap_or_default() {
        let name = plugin.name.as_deref().unwrap_or(&plugin.type_name);
        if BUILT_IN.contains(&plugin.type_name.as_str()) {
            built_in.insert(name, plugin.type_name.as_str());
        }
    }
    let unsupported = "is known in llm-d but not supported yet; remove it";
    let refer = |path: String, name: &str, out: &mut Decoded| {
        if !built_in.contains_key(name) && !BUILT_IN.contains(&name) {
            out.fault(&path, format!("`{name}` {unsupported}"));
        }
    };
    if let Some(layer) = &raw.data_layer {
        for (index, source) in layer.sources.iter().enumerate() {
            refer(
                format!("dataLayer.sources[{index}].pluginRef"),
                &source.plugin_ref,
                out,
            );
            for (place, extractor) in source.extractors.iter().enumerate() {
                let path = format!("dataLayer.sources[{index}].extractors[{place}].pluginRef");
                refer(path, &extractor.plugin_ref, out);
            }
        }
        for (key, there) in [
            ("discovery", layer.discovery.is_some()),
            ("peerDiscovery", layer.peer_discovery.is_some()),
            (
                "crossReplicaSyncerPluginRef",
                layer.cross_replica_syncer_plugin_ref.is_some(),
            ),
        ] {
            if there {
                out.fault(
                    &format!("dataLayer.{key}"),
                    format!("`{key}` {unsupported}"),
                );
            }
        }
    }
    if let Some(handler) = &raw.request_handler {
        for (index, parser) in handler.parsers.iter().enumerate() {
            refer(
                format!("requestHandler.parsers[{index}].pluginRef"),
                &parser.plugin_ref,
                out,
            );
        }
    }
    if let Some(parser) = &raw.parser {
        refer("parser.pluginRef".to_owned(), &parser.plugin_ref, out);
    }
    if raw.saturation_detector.is_some() {
        out.fault(
            "saturationDetector",
            format!("`saturationDetector` {unsupported}"),
        );
    }
    if raw.flow_control.is_some() {
        out.fault("flowControl", format!("`flowControl` {unsupported}"));
    }
    built_in
}
