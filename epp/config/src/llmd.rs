//! llm-d's own sections: what exists here runs, what does not is a clear error.

mod builtin;
mod names;
mod precise;
mod profiles;

use wicketgate_scheduler::{
    PluginError, PluginErrorKind, PluginSpec, SchedulerSpec, plugin_from_parameters,
    spec::{PluginInstance, PluginKind, nearest},
};

use crate::{
    decode::{Decoded, not_yet},
    flow,
    raw::{Plugin, Raw},
    scalar::{header, shown},
};

/// Feature gates: name, and whether turning it on is possible.
const GATES: [(&str, bool); 4] = [
    ("flowControl", true),
    ("haPopulateNonLeaderDatastore", true),
    ("dataLayer", true),
    ("enableLegacyMetrics", false),
];

/// The name profiles use for a plugin.
pub(crate) fn name_of(plugin: &Plugin) -> &str {
    plugin.name.as_deref().unwrap_or(&plugin.type_name)
}

/// The scheduler that the file asks for. What built-in plugins set goes into `raw.telemetry`.
pub(crate) fn scheduler(raw: &mut Raw, of_llmd: bool, out: &mut Decoded) -> SchedulerSpec {
    gates(raw, out);
    builtin::references(raw, out);
    builtin::parameters(raw, out);
    let instances = instances(raw, out);
    let profiles = raw.scheduling_profiles.as_deref().unwrap_or_default();
    let orphans = raw.plugins.is_none() && !profiles.is_empty();
    if orphans {
        out.fault("schedulingProfiles", "profiles need `plugins` to refer to");
    }
    if orphans || instances.is_empty() && profiles.is_empty() {
        return match of_llmd {
            true => SchedulerSpec::llmd_default(),
            false => SchedulerSpec::default_ours(),
        };
    }
    let profiles = profiles::build(raw, &instances, out);
    SchedulerSpec {
        plugins: instances,
        profiles,
    }
}

/// The plugins of the scheduler.
fn instances(raw: &Raw, out: &mut Decoded) -> Vec<PluginInstance> {
    let mut names: Vec<&str> = Vec::new();
    let mut instances: Vec<PluginInstance> = Vec::new();
    let mut handler = None;
    for (index, plugin) in raw.plugins.iter().flatten().enumerate() {
        let path = format!("plugins[{index}]");
        let name = name_of(plugin);
        if names.contains(&name) {
            let what = format!("a second plugin named {}; names must differ", shown(name));
            out.fault(&path, what);
            continue;
        }
        names.push(name);
        if builtin::role(&plugin.type_name).is_some() || flow::is_policy(&plugin.type_name) {
            continue;
        }
        let Some(spec) = plugin_spec(plugin, &path, out) else {
            continue;
        };
        if spec.kind() == PluginKind::ProfileHandler
            && let Some(first) = handler.replace(index)
        {
            let what = format!("a second profile handler besides plugins[{first}]; keep one");
            out.fault(&path, what);
        }
        instances.push(PluginInstance {
            name: name.into(),
            plugin: spec,
        });
    }
    instances
}

fn plugin_spec(plugin: &Plugin, path: &str, out: &mut Decoded) -> Option<PluginSpec> {
    if names::KNOWN.contains(&plugin.type_name.as_str()) {
        out.fault(&format!("{path}.type"), not_yet(&plugin.type_name));
        return None;
    }
    let (type_name, parameters) = match plugin.type_name == precise::SCORER {
        // What the wrapper says of its index is taken over elsewhere.
        true => (precise::SCORES_AS, &serde_json::Value::Null),
        false => (plugin.type_name.as_str(), &plugin.parameters),
    };
    match plugin_from_parameters(type_name, name_of(plugin), parameters) {
        Ok(spec) => {
            header_names(&spec, path, out);
            Some(spec)
        }
        Err(error) => {
            refused(plugin, path, &error, out);
            None
        }
    }
}

fn refused(plugin: &Plugin, path: &str, error: &PluginError, out: &mut Decoded) {
    let type_path = format!("{path}.type");
    let near = error.nearest.or_else(|| {
        let types = names::KNOWN
            .iter()
            .chain(builtin::types())
            .chain([&precise::SCORER])
            .chain(flow::policy_types());
        nearest(&plugin.type_name, types.copied())
            .filter(|_| error.kind == PluginErrorKind::UnknownType)
    });
    let hint = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
    match error.kind {
        PluginErrorKind::UnknownType => {
            let what = format!("no plugin has the type {}{hint}", shown(&plugin.type_name));
            out.fault(&type_path, what);
        }
        PluginErrorKind::Unsupported => out.fault(&type_path, not_yet(&plugin.type_name)),
        PluginErrorKind::UnknownParameter | PluginErrorKind::BadValue => {
            let below = match error.field.as_str() {
                "" => format!("{path}.parameters"),
                field => format!("{path}.parameters.{field}"),
            };
            out.fault(&below, format!("{}{hint}", error.what));
        }
    }
}

/// Refuses header names that no request can carry: every request would miss them.
fn header_names(spec: &PluginSpec, path: &str, out: &mut Decoded) {
    let PluginSpec::SessionAffinityScorer(session) = spec else {
        return;
    };
    let path = format!("{path}.parameters");
    if let Err(what) = header(&session.encoded_endpoint_header_config.header) {
        out.fault(&format!("{path}.encodedEndpointHeaderConfig.header"), what);
    }
    for (index, source) in session.session_id_config.sources.iter().enumerate() {
        if let Err(what) = header(&source.header) {
            let path = format!("{path}.sessionIdConfig.sources[{index}].header");
            out.fault(&path, what);
        }
    }
}

/// What the file says of a feature gate; the last word counts.
pub(crate) fn gate(raw: &Raw, wanted: &str) -> Option<bool> {
    let said = raw.feature_gates.iter().rev();
    said.filter_map(|gate| match gate.split_once('=') {
        None => (gate == wanted).then_some(true),
        Some((name, value)) => (name == wanted).then_some(value == "true"),
    })
    .next()
}

fn gates(raw: &Raw, out: &mut Decoded) {
    for (index, gate) in raw.feature_gates.iter().enumerate() {
        let path = format!("featureGates[{index}]");
        let (name, on) = match gate.split_once('=') {
            None => (gate.as_str(), true),
            Some((name, "true")) => (name, true),
            Some((name, "false")) => (name, false),
            Some(_) => {
                let what = format!(
                    "{} is no gate; expected NAME, NAME=true or NAME=false",
                    shown(gate)
                );
                out.fault(&path, what);
                continue;
            }
        };
        match GATES.iter().find(|(known, _)| *known == name) {
            None => {
                let known = nearest(name, GATES.iter().map(|(name, _)| *name));
                let hint =
                    known.map_or_else(String::new, |known| format!("; did you mean `{known}`?"));
                let what = format!("no feature gate is named {}{hint}", shown(name));
                out.fault(&path, what);
            }
            Some((_, false)) if on => out.fault(&path, not_yet(name)),
            Some(_) => {}
        }
    }
}
