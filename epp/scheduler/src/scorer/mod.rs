//! Scorers: each gives a candidate a number from 0 to 1, or abstains.

mod cold;
mod engine;
mod lora;
mod own;
mod prefix;
pub(crate) mod session;

use std::{fmt::Debug, sync::Arc};

use crate::{
    Incarnation, Nanos, RequestView,
    choose::{Candidate, Context, Reads},
    spec::PluginSpec,
    state::Sessions,
};

/// The score of a scorer that lacks its signal for an endpoint.
pub(crate) const ABSTAIN: f64 = f64::NAN;

/// Ranks candidates by one aspect.
pub(crate) trait Scorer: Debug + Send + Sync {
    /// Appends one score per candidate, in their order: 0 to 1, or [`ABSTAIN`].
    fn score(&self, context: &Context<'_>, candidates: &[Candidate<'_>], scores: &mut Vec<f64>);

    /// What it reads.
    fn reads(&self) -> Reads {
        Reads::NOTHING
    }

    /// The request goes to `target`.
    fn dispatched(&self, _dispatch: &Dispatch<'_>, _sessions: &mut Sessions) {}

    /// Request headers that it reads, in lower case.
    fn headers(&self) -> Vec<Arc<str>> {
        Vec::new()
    }

    /// The response header that carries the session token, if it has one.
    fn token_header(&self) -> Option<Arc<str>> {
        None
    }
}

/// A dispatch that a scorer may learn from.
pub(crate) struct Dispatch<'a> {
    pub(crate) request: &'a RequestView<'a>,
    pub(crate) profile: &'a str,
    pub(crate) target: Incarnation,
    pub(crate) now: Nanos,
    /// Nobody held a part of the prompt, as far as was asked.
    pub(crate) cold: bool,
}

/// The scorer of a spec; none for plugins of other kinds.
pub(crate) fn build(name: &Arc<str>, spec: &PluginSpec) -> Option<Box<dyn Scorer>> {
    Some(match spec {
        PluginSpec::QueueScorer => Box::new(engine::Queue),
        PluginSpec::RunningRequestsSizeScorer => Box::new(engine::Running),
        PluginSpec::KvCacheUtilizationScorer => Box::new(engine::KvUsage),
        PluginSpec::LoadAwareScorer(p) => Box::new(engine::LoadAware(p.clone())),
        PluginSpec::ActiveRequestScorer(p) => Box::new(own::Requests(p.clone())),
        PluginSpec::TokenLoadScorer(p) => Box::new(own::Tokens(p.clone())),
        PluginSpec::PrefixCacheScorer(p) => Box::new(prefix::Prefix(p.clone())),
        PluginSpec::NoHitLruScorer(p) => Box::new(cold::Cold::new(name, p)),
        PluginSpec::LoraAffinityScorer => Box::new(lora::Lora),
        PluginSpec::SessionAffinityScorer(p) => session::build(name, p),
        PluginSpec::SingleProfileHandler
        | PluginSpec::MaxScorePicker(_)
        | PluginSpec::WeightedRandomPicker(_)
        | PluginSpec::RandomPicker(_)
        | PluginSpec::LabelSelectorFilter(_)
        | PluginSpec::ByLabelSelector(_)
        | PluginSpec::ByLabel(_)
        | PluginSpec::DecodeFilter
        | PluginSpec::PrefillFilter
        | PluginSpec::EncodeFilter
        | PluginSpec::UtilizationFilter(_)
        | PluginSpec::PrefixCacheAffinityFilter(_)
        | PluginSpec::BoundedLoadFilter(_) => return None,
    })
}

#[cfg(test)]
mod tests;
