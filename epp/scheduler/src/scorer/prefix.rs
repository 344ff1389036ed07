//! Cached prefixes.

use super::Scorer;
use crate::{
    choose::{Candidate, Context, Reads},
    spec,
};

/// `(1 - w) x m/N + w x min(1, m x bs / S)^2`, with `m` of `N` blocks cached, block size `bs`, scale `S`.
///
/// The index answers in tokens, so `m/N` is cached tokens over prompt tokens and `m x bs` the cached tokens.
/// A prompt of unknown length scores 0.
#[derive(Debug)]
pub(super) struct Prefix(pub(super) spec::PrefixCache);

impl Scorer for Prefix {
    fn score(&self, context: &Context<'_>, candidates: &[Candidate<'_>], scores: &mut Vec<f64>) {
        let prompt = context.request.prompt_tokens;
        let weight = self.0.match_length_weight;
        scores.extend(candidates.iter().map(|candidate| {
            if prompt == 0 {
                return 0.0;
            }
            let cached = candidate.cached.min(prompt) as f64;
            let share = cached / prompt as f64;
            let length = (cached / self.0.match_length_scale_tokens).min(1.0);
            (1.0 - weight) * share + weight * length * length
        }));
    }

    fn reads(&self) -> Reads {
        Reads::PREFIX
    }
}
