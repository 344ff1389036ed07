//! Adapters: loaded, loadable, or on their way.

use super::{ABSTAIN, Scorer};
use crate::{
    Adapters,
    choose::{Candidate, Context, Reads},
};

/// Active gives 1; else a free slot 0.8; else waiting 0.6; else 0.
///
/// Running and waiting lists name the same adapters more than once, so slots in use are those of the union.
/// An engine that says nothing of adapters is not observed; neither is one whose slots cannot be read, unless
/// it has the adapter.
#[derive(Debug)]
pub(super) struct Lora;

impl Scorer for Lora {
    fn score(&self, context: &Context<'_>, candidates: &[Candidate<'_>], scores: &mut Vec<f64>) {
        let model = context.request.model;
        scores.extend(candidates.iter().map(|candidate| {
            let telemetry = &candidate.endpoint.telemetry;
            let adapters = telemetry.adapters(context.now, context.policy.stale_after);
            adapters.map_or(ABSTAIN, |adapters| affinity(adapters, model))
        }));
    }

    fn reads(&self) -> Reads {
        Reads::TELEMETRY
    }
}

fn affinity(adapters: &Adapters, model: &str) -> f64 {
    let has = |list: &[std::sync::Arc<str>]| list.iter().any(|name| &**name == model);
    if has(&adapters.running) {
        return 1.0;
    }
    let waiting = has(&adapters.waiting);
    match adapters.max {
        Some(max) if in_use(adapters) < max as usize => 0.8,
        _ if waiting => 0.6,
        Some(_) => 0.0,
        None => ABSTAIN,
    }
}

/// Different adapters that run or wait.
fn in_use(adapters: &Adapters) -> usize {
    let all = || adapters.running.iter().chain(&adapters.waiting);
    let first_of_its_name = |(i, name): &(usize, _)| !all().take(*i).any(|other| other == *name);
    all().enumerate().filter(first_of_its_name).count()
}
