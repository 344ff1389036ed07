//! Filters: each says which candidates stay.

mod affinity;
mod bounded;
mod labels;
mod utilization;

use std::fmt::Debug;

use crate::{
    choose::{Candidate, Context, Reads},
    spec::PluginSpec,
};

/// Removes candidates by one aspect.
pub(crate) trait Filter: Debug + Send + Sync {
    /// Appends for each candidate, in their order, whether it stays.
    fn keep(&self, context: &Context<'_>, candidates: &[Candidate<'_>], keep: &mut Vec<bool>);

    /// Whether everybody stays when nobody would.
    fn fails_open(&self) -> bool {
        false
    }

    /// What it reads.
    fn reads(&self) -> Reads {
        Reads::NOTHING
    }
}

/// The filter of a spec; none for plugins of other kinds.
pub(crate) fn build(spec: &PluginSpec) -> Option<Box<dyn Filter>> {
    Some(match spec {
        PluginSpec::LabelSelectorFilter(p) | PluginSpec::ByLabelSelector(p) => {
            Box::new(labels::Selected(p.clone()))
        }
        PluginSpec::ByLabel(p) => Box::new(labels::OneOf(p.clone())),
        PluginSpec::DecodeFilter => Box::new(labels::decode()),
        PluginSpec::PrefillFilter => Box::new(labels::prefill()),
        PluginSpec::EncodeFilter => Box::new(labels::encode()),
        PluginSpec::UtilizationFilter(p) => Box::new(utilization::Limits(p.clone())),
        PluginSpec::PrefixCacheAffinityFilter(p) => Box::new(affinity::Affinity(p.clone())),
        PluginSpec::BoundedLoadFilter(p) => Box::new(bounded::Bounded(p.clone())),
        PluginSpec::SingleProfileHandler
        | PluginSpec::QueueScorer
        | PluginSpec::RunningRequestsSizeScorer
        | PluginSpec::KvCacheUtilizationScorer
        | PluginSpec::LoadAwareScorer(_)
        | PluginSpec::ActiveRequestScorer(_)
        | PluginSpec::TokenLoadScorer(_)
        | PluginSpec::PrefixCacheScorer(_)
        | PluginSpec::NoHitLruScorer(_)
        | PluginSpec::LoraAffinityScorer
        | PluginSpec::SessionAffinityScorer(_)
        | PluginSpec::MaxScorePicker(_)
        | PluginSpec::WeightedRandomPicker(_)
        | PluginSpec::RandomPicker(_) => return None,
    })
}

#[cfg(test)]
mod tests;
