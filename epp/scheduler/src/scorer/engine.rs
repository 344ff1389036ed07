//! Scorers over what engines report. Where there is no fresh reading they abstain.

use super::{ABSTAIN, Scorer};
use crate::{
    Endpoint,
    choose::{Candidate, Context, Reads},
    spec,
};

/// `(max - q) / (max - min)` over the waiting requests of the observed candidates; all equal gives 1.
#[derive(Debug)]
pub(super) struct Queue;

impl Scorer for Queue {
    fn score(&self, context: &Context<'_>, candidates: &[Candidate<'_>], scores: &mut Vec<f64>) {
        least_is_best(candidates, scores, |endpoint| context.waiting(endpoint));
    }

    fn reads(&self) -> Reads {
        Reads::TELEMETRY
    }
}

/// The same over running requests.
#[derive(Debug)]
pub(super) struct Running;

impl Scorer for Running {
    fn score(&self, context: &Context<'_>, candidates: &[Candidate<'_>], scores: &mut Vec<f64>) {
        least_is_best(candidates, scores, |endpoint| context.running(endpoint));
    }

    fn reads(&self) -> Reads {
        Reads::TELEMETRY
    }
}

fn least_is_best(
    candidates: &[Candidate<'_>],
    scores: &mut Vec<f64>,
    value: impl Fn(&Endpoint) -> Option<f64>,
) {
    let start = scores.len();
    let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
    scores.extend(candidates.iter().map(|candidate| {
        let Some(value) = value(candidate.endpoint) else {
            return ABSTAIN;
        };
        min = min.min(value);
        max = max.max(value);
        value
    }));
    let span = max - min;
    for score in scores.iter_mut().skip(start) {
        if !score.is_nan() {
            *score = if span > 0.0 {
                (max - *score) / span
            } else {
                1.0
            };
        }
    }
}

/// `1 - usage` of KV blocks.
#[derive(Debug)]
pub(super) struct KvUsage;

impl Scorer for KvUsage {
    fn score(&self, context: &Context<'_>, candidates: &[Candidate<'_>], scores: &mut Vec<f64>) {
        scores.extend(candidates.iter().map(|candidate| {
            let usage = context.kv_usage(candidate.endpoint);
            usage.map_or(ABSTAIN, |usage| 1.0 - usage)
        }));
    }

    fn reads(&self) -> Reads {
        Reads::TELEMETRY
    }
}

/// No queue gives 0.5, else `0.5 x (1 - min(q, T) / T)` with the threshold `T`.
#[derive(Debug)]
pub(super) struct LoadAware(pub(super) spec::LoadAware);

impl Scorer for LoadAware {
    fn score(&self, context: &Context<'_>, candidates: &[Candidate<'_>], scores: &mut Vec<f64>) {
        let threshold = self.0.threshold;
        scores.extend(candidates.iter().map(|candidate| {
            let waiting = context.waiting(candidate.endpoint);
            waiting.map_or(ABSTAIN, |q| 0.5 * (1.0 - q.min(threshold) / threshold))
        }));
    }

    fn reads(&self) -> Reads {
        Reads::TELEMETRY
    }
}
