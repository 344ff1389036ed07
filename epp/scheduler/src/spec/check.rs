//! Whether the parts of a spec fit together.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    PluginKind, PluginSpec, ProfileSpec, SchedulerSpec, nearest,
    plugin::{Operator, Selector},
};

/// Why a [`SchedulerSpec`] makes no scheduler.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SpecError {
    /// Two plugins have one name.
    #[error("two plugins are named {name}")]
    DuplicatePlugin {
        /// The name.
        name: Arc<str>,
    },
    /// Two profiles have one name.
    #[error("two profiles are named {name}")]
    DuplicateProfile {
        /// The name.
        name: Arc<str>,
    },
    /// A profile names a plugin that is not there.
    #[error("profile {profile}: no plugin is named {plugin}{}", hint(nearest))]
    UnknownPlugin {
        /// The profile.
        profile: Arc<str>,
        /// The name it uses.
        plugin: Arc<str>,
        /// The name that was probably meant.
        nearest: Option<Arc<str>>,
    },
    /// A plugin that has no place in a profile.
    #[error("profile {profile}: {plugin} is no filter, scorer or picker")]
    NotForProfiles {
        /// The profile.
        profile: Arc<str>,
        /// The plugin.
        plugin: Arc<str>,
    },
    /// A profile with more than one picker.
    #[error("profile {profile}: more than one picker")]
    TwoPickers {
        /// The profile.
        profile: Arc<str>,
    },
    /// A weight below zero, infinite, or not a number.
    #[error("profile {profile}: the weight of {plugin} must be a number from 0 on, not {weight}")]
    Weight {
        /// The profile.
        profile: Arc<str>,
        /// The scorer.
        plugin: Arc<str>,
        /// The weight.
        weight: f64,
    },
    /// More than one profile handler.
    #[error("more than one profile handler: {first} and {second}")]
    TwoHandlers {
        /// One of them.
        first: Arc<str>,
        /// Another.
        second: Arc<str>,
    },
    /// The handler needs exactly one profile.
    #[error("single-profile-handler needs exactly one profile, not {count}")]
    Profiles {
        /// How many there are.
        count: usize,
    },
    /// A parameter out of range.
    #[error("plugin {plugin}: {field}: {what}")]
    Parameter {
        /// The plugin.
        plugin: Arc<str>,
        /// The parameter's path.
        field: &'static str,
        /// The fault in words.
        what: &'static str,
    },
}

fn hint(nearest: &Option<Arc<str>>) -> String {
    match nearest {
        Some(name) => format!(" (did you mean {name}?)"),
        None => String::new(),
    }
}

/// Checks everything but the profiles' references, which [`resolve`] checks.
pub(crate) fn plugins(spec: &SchedulerSpec) -> Result<BTreeMap<&str, &PluginSpec>, SpecError> {
    let mut by_name = BTreeMap::new();
    let mut handler: Option<&Arc<str>> = None;
    for instance in &spec.plugins {
        if by_name.insert(&*instance.name, &instance.plugin).is_some() {
            let name = instance.name.clone();
            return Err(SpecError::DuplicatePlugin { name });
        }
        if let Some((field, what)) = parameters(&instance.plugin) {
            let plugin = instance.name.clone();
            return Err(SpecError::Parameter {
                plugin,
                field,
                what,
            });
        }
        if instance.plugin.kind() == PluginKind::ProfileHandler
            && let Some(first) = handler.replace(&instance.name)
        {
            return Err(SpecError::TwoHandlers {
                first: first.clone(),
                second: instance.name.clone(),
            });
        }
    }
    let mut names: Vec<_> = spec.profiles.iter().map(|profile| &profile.name).collect();
    names.sort_unstable();
    for (a, b) in names.iter().zip(names.iter().skip(1)) {
        if a == b {
            let name = Arc::clone(a);
            return Err(SpecError::DuplicateProfile { name });
        }
    }
    Ok(by_name)
}

/// A plugin of a profile: its name, what it is, its weight.
pub(crate) type Resolved<'a> = (&'a Arc<str>, &'a PluginSpec, f64);

/// A profile's plugins in order, each with its name and weight.
pub(crate) fn resolve<'a>(
    profile: &'a ProfileSpec,
    by_name: &BTreeMap<&str, &'a PluginSpec>,
) -> Result<Vec<Resolved<'a>>, SpecError> {
    let mut resolved = Vec::with_capacity(profile.plugins.len());
    let mut pickers = 0;
    for reference in &profile.plugins {
        let name = &reference.plugin;
        let Some(plugin) = by_name.get(&**name) else {
            let near = nearest(name, by_name.keys().copied());
            return Err(SpecError::UnknownPlugin {
                profile: profile.name.clone(),
                plugin: name.clone(),
                nearest: near.map(Into::into),
            });
        };
        let weight = reference.weight.unwrap_or(1.0);
        match plugin.kind() {
            PluginKind::ProfileHandler => {
                return Err(SpecError::NotForProfiles {
                    profile: profile.name.clone(),
                    plugin: name.clone(),
                });
            }
            PluginKind::Picker => pickers += 1,
            PluginKind::Scorer if !(weight.is_finite() && weight >= 0.0) => {
                return Err(SpecError::Weight {
                    profile: profile.name.clone(),
                    plugin: name.clone(),
                    weight,
                });
            }
            PluginKind::Scorer | PluginKind::Filter => {}
        }
        resolved.push((name, *plugin, weight));
    }
    if pickers > 1 {
        let profile = profile.name.clone();
        return Err(SpecError::TwoPickers { profile });
    }
    Ok(resolved)
}

/// The first parameter out of range: its path, and what it must be.
pub(super) fn parameters(spec: &PluginSpec) -> Option<(&'static str, &'static str)> {
    let positive = |value: f64| value.is_finite() && value > 0.0;
    let share = |value: f64| (0.0..=1.0).contains(&value);
    let needs = |ok: bool, field, what| (!ok).then_some((field, what));
    match spec {
        PluginSpec::LoadAwareScorer(p) => {
            needs(positive(p.threshold), "threshold", "must be above 0")
        }
        PluginSpec::ActiveRequestScorer(p) => needs(
            share(p.max_busy_score),
            "maxBusyScore",
            "must be from 0 to 1",
        ),
        PluginSpec::TokenLoadScorer(p) => needs(
            positive(p.queue_threshold_tokens),
            "queueThresholdTokens",
            "must be above 0",
        ),
        PluginSpec::PrefixCacheScorer(p) => needs(
            share(p.match_length_weight),
            "matchLengthWeight",
            "must be from 0 to 1",
        )
        .or_else(|| {
            needs(
                positive(p.match_length_scale_tokens),
                "matchLengthScaleTokens",
                "must be above 0",
            )
        }),
        PluginSpec::NoHitLruScorer(p) => needs(p.lru_size > 0, "lruSize", "must be at least 1"),
        PluginSpec::PrefixCacheAffinityFilter(p) => needs(
            share(p.affinity_threshold),
            "affinityThreshold",
            "must be from 0 to 1",
        )
        .or_else(|| {
            let ok = p.max_ttft_penalty_ms.is_finite() && p.max_ttft_penalty_ms >= 0.0;
            needs(ok, "maxTTFTPenaltyMs", "must be a number from 0 on")
        })
        .or_else(|| {
            let ok = positive(p.peak_prefill_throughput);
            needs(ok, "peakPrefillThroughput", "must be above 0")
        }),
        PluginSpec::SessionAffinityScorer(p) => {
            let config = &p.session_id_config;
            needs(
                config.eviction_ttl_seconds > 0,
                "sessionIdConfig.evictionTtlSeconds",
                "must be at least 1",
            )
            .or_else(|| {
                needs(
                    config.max_sessions > 0,
                    "sessionIdConfig.maxSessions",
                    "must be at least 1",
                )
            })
        }
        PluginSpec::MaxScorePicker(p)
        | PluginSpec::WeightedRandomPicker(p)
        | PluginSpec::RandomPicker(p) => needs(
            p.max_num_of_endpoints > 0,
            "maxNumOfEndpoints",
            "must be at least 1",
        ),
        PluginSpec::LabelSelectorFilter(p) | PluginSpec::ByLabelSelector(p) => selector(p),
        PluginSpec::UtilizationFilter(p) => {
            let fits = |value: f64| value.is_finite() && value >= 0.0;
            needs(
                p.conditions.iter().all(|c| fits(c.max_value)),
                "conditions[].maxValue",
                "must be a number from 0 on",
            )
        }
        PluginSpec::BoundedLoadFilter(p) => needs(
            p.factor.is_finite() && p.factor >= 1.0,
            "factor",
            "must be at least 1",
        ),
        PluginSpec::SingleProfileHandler
        | PluginSpec::QueueScorer
        | PluginSpec::RunningRequestsSizeScorer
        | PluginSpec::KvCacheUtilizationScorer
        | PluginSpec::LoraAffinityScorer
        | PluginSpec::ByLabel(_)
        | PluginSpec::DecodeFilter
        | PluginSpec::PrefillFilter
        | PluginSpec::EncodeFilter => None,
    }
}

/// As in Kubernetes: a set needs values, a test for presence takes none.
fn selector(selector: &Selector) -> Option<(&'static str, &'static str)> {
    selector.match_expressions.iter().find_map(|e| {
        let takes_values = matches!(e.operator, Operator::In | Operator::NotIn);
        match (takes_values, e.values.is_empty()) {
            (true, true) => Some((
                "matchExpressions[].values",
                "In and NotIn need at least one value",
            )),
            (false, false) => Some((
                "matchExpressions[].values",
                "Exists and DoesNotExist take no values",
            )),
            _ => None,
        }
    })
}
