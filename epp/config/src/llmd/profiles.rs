//! Scheduling profiles: references, weights, pickers.

use std::collections::HashMap;

use wicketgate_scheduler::{
    PLUGIN_TYPES,
    spec::{PluginInstance, PluginKind, ProfilePlugin, ProfileSpec, nearest},
};

use super::{builtin, name_of};
use crate::{
    decode::Decoded,
    flow,
    raw::{Profile, Raw},
    scalar::shown,
};

/// The profiles of the file, or one that uses everything when it has none.
pub(super) fn build(
    raw: &Raw,
    instances: &[PluginInstance],
    out: &mut Decoded,
) -> Vec<ProfileSpec> {
    let profiles = raw.scheduling_profiles.as_deref().unwrap_or_default();
    if profiles.is_empty() {
        return vec![implied(instances, out)];
    }
    let mut names: HashMap<&str, usize> = HashMap::new();
    let mut built = Vec::new();
    for (index, profile) in profiles.iter().enumerate() {
        let path = format!("schedulingProfiles[{index}]");
        if let Some(first) = names.insert(&profile.name, index) {
            let name = shown(&profile.name);
            let what =
                format!("{name} is the name of schedulingProfiles[{first}] too; names must differ");
            out.fault(&path, what);
        }
        built.push(one(raw, profile, &path, instances, out));
    }
    if profiles.len() > 1 {
        let what = "single-profile-handler takes exactly one profile; remove this one";
        out.fault("schedulingProfiles[1]", what);
    }
    unused(raw, &built, instances, out);
    built
}

fn implied(instances: &[PluginInstance], out: &mut Decoded) -> ProfileSpec {
    let used = instances
        .iter()
        .filter(|instance| instance.plugin.kind() != PluginKind::ProfileHandler);
    let mut pickers = used
        .clone()
        .filter(|instance| instance.plugin.kind() == PluginKind::Picker);
    if let (Some(first), Some(second)) = (pickers.next(), pickers.next()) {
        let what = format!(
            "two pickers, `{}` and `{}`: without `schedulingProfiles` all plugins are used; keep one picker",
            first.name, second.name
        );
        out.fault("plugins", what);
    }
    ProfileSpec {
        name: "default".into(),
        plugins: used
            .map(|instance| ProfilePlugin {
                plugin: instance.name.clone(),
                weight: None,
            })
            .collect(),
    }
}

fn one(
    raw: &Raw,
    profile: &Profile,
    path: &str,
    instances: &[PluginInstance],
    out: &mut Decoded,
) -> ProfileSpec {
    let mut picker: Option<&str> = None;
    let mut first: HashMap<&str, usize> = HashMap::new();
    let mut plugins = Vec::new();
    for (index, reference) in profile.plugins.iter().enumerate() {
        let here = format!("{path}.plugins[{index}]");
        let name = reference.plugin_ref.as_str();
        if let Some(first) = first.insert(name, index) {
            let what = format!(
                "{} is used by plugins[{first}] of this profile already",
                shown(name)
            );
            out.fault(&here, what);
            continue;
        }
        let Some(instance) = instances.iter().find(|known| *known.name == *name) else {
            unknown(raw, name, &here, instances, out);
            continue;
        };
        match instance.plugin.kind() {
            PluginKind::ProfileHandler => {
                let what = format!("{} is no filter, scorer or picker", shown(name));
                out.fault(&format!("{here}.pluginRef"), what);
            }
            PluginKind::Picker => {
                if let Some(first) = picker.replace(name) {
                    let what = format!(
                        "`{name}` is a second picker besides `{first}`; a profile takes one"
                    );
                    out.fault(&here, what);
                }
            }
            PluginKind::Filter | PluginKind::Scorer => {}
        }
        plugins.push(ProfilePlugin {
            plugin: name.into(),
            weight: reference.weight,
        });
    }
    if picker.is_none() {
        plugins.extend(declared_picker(&profile.name, path, instances, out));
    }
    ProfileSpec {
        name: profile.name.as_str().into(),
        plugins,
    }
}

/// The one picker that the file declares, for a profile that names none. A profile without any gets the
/// scheduler's `max-score-picker`.
fn declared_picker(
    profile: &str,
    path: &str,
    instances: &[PluginInstance],
    out: &mut Decoded,
) -> Option<ProfilePlugin> {
    let mut pickers = instances
        .iter()
        .filter(|instance| instance.plugin.kind() == PluginKind::Picker);
    let first = pickers.next()?;
    match pickers.next() {
        None => {
            let what = format!("names no picker and gets `{}`", first.name);
            out.warn(path, what);
        }
        Some(second) => {
            let what = format!(
                "profile {} names no picker and there are several, `{}` and `{}`; name one",
                shown(profile),
                first.name,
                second.name
            );
            out.fault(path, what);
        }
    }
    Some(ProfilePlugin {
        plugin: first.name.clone(),
        weight: None,
    })
}

fn unknown(raw: &Raw, name: &str, path: &str, instances: &[PluginInstance], out: &mut Decoded) {
    let path = format!("{path}.pluginRef");
    let declared = raw.plugins.iter().flatten().enumerate();
    for (index, plugin) in declared {
        // A plugin whose type or name was refused: one fault is enough for it.
        let refused = out.is_spoiled(&format!("plugins[{index}].type"))
            || out.is_spoiled(&format!("plugins[{index}].name"));
        let other =
            builtin::role(&plugin.type_name).is_some() || flow::is_policy(&plugin.type_name);
        if other && name_of(plugin) == name {
            let what = format!("{} is no filter, scorer or picker", shown(name));
            out.fault(&path, what);
            return;
        }
        if refused || name_of(plugin) == name {
            return;
        }
    }
    let near = nearest(name, instances.iter().map(|known| &*known.name));
    let known_type = PLUGIN_TYPES.iter().any(|info| info.type_name == name);
    let hint = match near {
        Some(near) => format!("; did you mean `{near}`?"),
        None if known_type => format!("; add `- type: {name}` to `plugins`"),
        None => String::new(),
    };
    out.fault(&path, format!("no plugin is named {}{hint}", shown(name)));
}

/// Warns of plugins that do nothing.
fn unused(raw: &Raw, profiles: &[ProfileSpec], instances: &[PluginInstance], out: &mut Decoded) {
    for (index, plugin) in raw.plugins.iter().flatten().enumerate() {
        let name = name_of(plugin);
        let runs = instances.iter().any(|instance| {
            *instance.name == *name && instance.plugin.kind() != PluginKind::ProfileHandler
        });
        let used = profiles
            .iter()
            .flat_map(|profile| &profile.plugins)
            .any(|used| *used.plugin == *name);
        if runs && !used {
            let what = format!("{} is used by no profile", shown(name));
            out.warn(&format!("plugins[{index}]"), what);
        }
    }
}
