//! What runs, as plain data: plugins by name with their parameters, and profiles that use them.
//!
//! Names, parameters and defaults are llm-d's (`EndpointPickerConfig`); ours are marked in [`PLUGIN_TYPES`].

mod catalog;
pub(crate) mod check;
mod nearest;
mod parameters;
mod plugin;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use catalog::{Origin, PLUGIN_TYPES, ParamInfo, PluginInfo, PluginKind};
pub use check::SpecError;
pub use nearest::nearest;
pub use parameters::{PluginError, PluginErrorKind, plugin_from_parameters};
pub use plugin::{
    ActiveRequest, BoundedLoad, ByLabel, Condition, ConditionMetric, EncodedEndpointHeader,
    Expression, LoadAware, NoHitLru, Operator, PickerParameters, PluginSpec, PrefixAffinity,
    PrefixCache, Selector, SessionAffinity, SessionIdConfig, SessionSource, SessionStrategy,
    TokenLoad, Utilization,
};

/// Plugins and profiles of a scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SchedulerSpec {
    /// Plugin instances; names are unique. Those that no profile uses do nothing.
    pub plugins: Vec<PluginInstance>,
    /// Profiles. None means one named `default` that uses every filter, scorer and picker in order.
    #[serde(default)]
    pub profiles: Vec<ProfileSpec>,
}

/// A plugin with its parameters, under a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PluginInstance {
    /// The name profiles refer to.
    pub name: Arc<str>,
    /// Type and parameters.
    pub plugin: PluginSpec,
}

/// A profile: filters in order, scorers with weights, at most one picker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileSpec {
    /// Its name.
    pub name: Arc<str>,
    /// Its plugins. Without a picker it has a `max-score-picker`.
    pub plugins: Vec<ProfilePlugin>,
}

/// A plugin's place in a profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfilePlugin {
    /// The name of a plugin instance.
    pub plugin: Arc<str>,
    /// Weight of a scorer; 1 when missing. Of no meaning for other kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
}

impl SchedulerSpec {
    /// The scheduler of an empty configuration of ours.
    ///
    /// Load as scraped (queue 2, KV usage 2), load as counted by ourselves (requests 2, tokens 1), which alone
    /// tells replicas apart between two scrapes, and cached prefixes (3), kept within twice the mean load by
    /// `bounded-load-filter`. Two fallbacks behind the choice.
    pub fn default_ours() -> SchedulerSpec {
        let picker = PickerParameters {
            max_num_of_endpoints: 3,
        };
        SchedulerSpec::one_profile(vec![
            (PluginSpec::BoundedLoadFilter(BoundedLoad::default()), None),
            (PluginSpec::QueueScorer, Some(2.0)),
            (PluginSpec::KvCacheUtilizationScorer, Some(2.0)),
            (
                PluginSpec::ActiveRequestScorer(ActiveRequest::default()),
                Some(2.0),
            ),
            (PluginSpec::TokenLoadScorer(TokenLoad::default()), Some(1.0)),
            (
                PluginSpec::PrefixCacheScorer(PrefixCache::default()),
                Some(3.0),
            ),
            (PluginSpec::MaxScorePicker(picker), None),
        ])
    }

    /// What llm-d runs with an empty configuration: queue 2, KV usage 2, prefix cache 3, the best score wins.
    pub fn llmd_default() -> SchedulerSpec {
        SchedulerSpec::one_profile(vec![
            (PluginSpec::QueueScorer, Some(2.0)),
            (PluginSpec::KvCacheUtilizationScorer, Some(2.0)),
            (
                PluginSpec::PrefixCacheScorer(PrefixCache::default()),
                Some(3.0),
            ),
            (
                PluginSpec::MaxScorePicker(PickerParameters::default()),
                None,
            ),
        ])
    }

    /// The profile of a spec that has none: every filter, scorer and picker in order, each with weight 1.
    pub(crate) fn implied_profile(&self) -> ProfileSpec {
        let used = self.plugins.iter();
        let used = used.filter(|instance| instance.plugin.kind() != PluginKind::ProfileHandler);
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

    /// One profile named `default` of these plugins, each named after its type; a type that comes twice needs
    /// names of one's own.
    pub fn one_profile(plugins: Vec<(PluginSpec, Option<f64>)>) -> SchedulerSpec {
        let profile = ProfileSpec {
            name: "default".into(),
            plugins: plugins
                .iter()
                .map(|(plugin, weight)| ProfilePlugin {
                    plugin: plugin.type_name().into(),
                    weight: *weight,
                })
                .collect(),
        };
        let handler = PluginInstance {
            name: PluginSpec::SingleProfileHandler.type_name().into(),
            plugin: PluginSpec::SingleProfileHandler,
        };
        let named = plugins.into_iter().map(|(plugin, _)| PluginInstance {
            name: plugin.type_name().into(),
            plugin,
        });
        SchedulerSpec {
            plugins: std::iter::once(handler).chain(named).collect(),
            profiles: vec![profile],
        }
    }
}
