//! Scorers over what we count ourselves: always observed, never stale.
//!
//! With unequal weights a count is divided by the endpoint's share of the largest weight, so that equal scores
//! mean work in proportion to weight.

use super::Scorer;
use crate::{
    choose::{Candidate, Context, Reads},
    spec,
};

/// Requests in flight: `n <= idle` gives 1, else `(max - n) / max x max_busy_score`.
#[derive(Debug)]
pub(super) struct Requests(pub(super) spec::ActiveRequest);

impl Scorer for Requests {
    fn score(&self, _: &Context<'_>, candidates: &[Candidate<'_>], scores: &mut Vec<f64>) {
        let idle = f64::from(self.0.idle_threshold);
        let counts = candidates.iter().map(Candidate::requests);
        let max = counts.fold(0.0, f64::max);
        scores.extend(candidates.iter().map(|candidate| {
            let n = candidate.requests();
            if n <= idle {
                1.0
            } else {
                (max - n) / max * self.0.max_busy_score
            }
        }));
    }
}

/// `1 - min(t, T) / T` with `t` the tokens in flight plus this request's uncached ones, `T` the threshold.
#[derive(Debug)]
pub(super) struct Tokens(pub(super) spec::TokenLoad);

impl Scorer for Tokens {
    fn score(&self, context: &Context<'_>, candidates: &[Candidate<'_>], scores: &mut Vec<f64>) {
        let threshold = self.0.queue_threshold_tokens;
        let prompt = context.request.prompt_tokens;
        scores.extend(candidates.iter().map(|candidate| {
            let tokens = candidate.tokens(prompt.saturating_sub(candidate.cached));
            1.0 - tokens.min(threshold) / threshold
        }));
    }

    fn reads(&self) -> Reads {
        Reads::PREFIX
    }
}
