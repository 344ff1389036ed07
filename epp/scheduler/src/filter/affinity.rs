//! Stay with a cached prefix, unless that would make the caller wait too long.

use super::Filter;
use crate::{
    choose::{Candidate, Context, Reads},
    spec::PrefixAffinity,
};

/// Only endpoints with a share `cached / prompt` of at least `affinity_threshold` stay, if there are any, and if the
/// fastest of them is at most `max_ttft_penalty_ms` behind the fastest of all:
/// `ttft = (own tokens in flight + prompt - cached) / peak_prefill_throughput`.
#[derive(Debug)]
pub(super) struct Affinity(pub(super) PrefixAffinity);

impl Affinity {
    fn ttft_ms(&self, prompt: u64, candidate: &Candidate<'_>) -> f64 {
        let uncached = prompt.saturating_sub(candidate.cached);
        let ahead = candidate.endpoint.load.tokens.saturating_add(uncached);
        ahead as f64 / self.0.peak_prefill_throughput * 1e3
    }
}

impl Filter for Affinity {
    fn keep(&self, context: &Context<'_>, candidates: &[Candidate<'_>], keep: &mut Vec<bool>) {
        let prompt = context.request.prompt_tokens;
        let sticks = |c: &Candidate<'_>| {
            prompt > 0 && c.cached as f64 / prompt as f64 >= self.0.affinity_threshold
        };
        let (mut all, mut sticky) = (f64::INFINITY, f64::INFINITY);
        for candidate in candidates {
            let ttft = self.ttft_ms(prompt, candidate);
            all = all.min(ttft);
            if sticks(candidate) {
                sticky = sticky.min(ttft);
            }
        }
        let stay = sticky.is_finite() && sticky - all <= self.0.max_ttft_penalty_ms;
        keep.extend(candidates.iter().map(|c| !stay || sticks(c)));
    }

    fn reads(&self) -> Reads {
        Reads::PREFIX
    }
}
