//! Affinity within bounds: whoever is far over its fair share gets no more, however well it would score.

use super::Filter;
use crate::{
    choose::{Candidate, Context},
    spec::BoundedLoad,
};

/// An endpoint with `n` own requests in flight stays while
/// `n + 1 <= max(min_requests, ceil(factor x (total + 1) x weight / sum of weights))`
/// (consistent hashing with bounded loads: Mirrokni, Thorup, Zadimoghaddam 2018).
///
/// Sums go over the candidates that get regular work: observed ones with a weight, or the next best class if there
/// are none. The others always stay. With a factor of at least 1 somebody of that class always stays.
#[derive(Debug)]
pub(super) struct Bounded(pub(super) BoundedLoad);

impl Filter for Bounded {
    fn keep(&self, _: &Context<'_>, candidates: &[Candidate<'_>], keep: &mut Vec<bool>) {
        let class = |c: &Candidate<'_>| (c.endpoint.weight == 0, !c.known);
        let best = candidates.iter().map(class).min();
        let regular = |c: &Candidate<'_>| Some(class(c)) == best;
        let weight = |c: &Candidate<'_>| f64::from(c.endpoint.weight.max(1));
        let (mut total, mut weights) = (1.0, 0.0);
        for candidate in candidates.iter().filter(|c| regular(c)) {
            total += f64::from(candidate.endpoint.load.requests);
            weights += weight(candidate);
        }
        let always = f64::from(self.0.min_requests);
        keep.extend(candidates.iter().map(|candidate| {
            let fair = self.0.factor * total * weight(candidate) / weights;
            let after = f64::from(candidate.endpoint.load.requests) + 1.0;
            !regular(candidate) || after <= fair.ceil().max(always)
        }));
    }

    /// Rounding may leave nobody by a hair; then nobody is far over.
    fn fails_open(&self) -> bool {
        true
    }
}
