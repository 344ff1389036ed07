//! Pickers: draw one candidate; the caller draws again for each fallback.
//!
//! Random draws are in proportion to a weight, without putting back. That is the distribution of A-Res (keys
//! `U^(1/weight)`, the largest first: Efraimidis, Spirakis 2006) with one random number per place instead of one
//! per candidate, and without transcendental functions, whose last bit differs between machines.

use std::fmt::Debug;

use crate::{
    choose::Candidate,
    spec::{PickerParameters, PluginSpec},
    state::Rng,
};

/// Chooses by total.
pub(crate) trait Picker: Debug + Send + Sync {
    /// How many targets a decision has at most.
    fn places(&self) -> usize;

    /// The place of the next target among `candidates`; none if nobody is open.
    fn draw(&self, rng: &mut Rng, candidates: &[Candidate<'_>], open: Open) -> Option<usize>;
}

/// Who may be drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    /// Half-open endpoints too.
    pub(crate) probes: bool,
    /// Only observed ones, or only those that are not.
    pub(crate) known: bool,
}

impl Open {
    fn allows(self, candidate: &Candidate<'_>) -> bool {
        !candidate.taken && candidate.known == self.known && (self.probes || !candidate.probe)
    }
}

/// The picker of a profile that names none.
pub(crate) fn max_score(parameters: PickerParameters) -> Box<dyn Picker> {
    Box::new(MaxScore(parameters.max_num_of_endpoints))
}

/// The picker of a spec; none for plugins of other kinds.
pub(crate) fn build(spec: &PluginSpec) -> Option<Box<dyn Picker>> {
    Some(match spec {
        PluginSpec::MaxScorePicker(p) => max_score(p.clone()),
        PluginSpec::WeightedRandomPicker(p) => Box::new(WeightedRandom(p.max_num_of_endpoints)),
        PluginSpec::RandomPicker(p) => Box::new(Random(p.max_num_of_endpoints)),
        PluginSpec::SingleProfileHandler
        | PluginSpec::QueueScorer
        | PluginSpec::RunningRequestsSizeScorer
        | PluginSpec::KvCacheUtilizationScorer
        | PluginSpec::LoadAwareScorer(_)
        | PluginSpec::ActiveRequestScorer(_)
        | PluginSpec::TokenLoadScorer(_)
        | PluginSpec::PrefixCacheScorer(_)
        | PluginSpec::NoHitLruScorer(_)
        | PluginSpec::PrefixCacheAffinityFilter(_)
        | PluginSpec::LoraAffinityScorer
        | PluginSpec::SessionAffinityScorer(_)
        | PluginSpec::LabelSelectorFilter(_)
        | PluginSpec::ByLabelSelector(_)
        | PluginSpec::ByLabel(_)
        | PluginSpec::DecodeFilter
        | PluginSpec::PrefillFilter
        | PluginSpec::EncodeFilter
        | PluginSpec::UtilizationFilter(_)
        | PluginSpec::BoundedLoadFilter(_) => return None,
    })
}

/// The best total. Equals are drawn in proportion to weight and slow start.
#[derive(Debug)]
struct MaxScore(u32);

impl Picker for MaxScore {
    fn places(&self) -> usize {
        self.0 as usize
    }

    fn draw(&self, rng: &mut Rng, candidates: &[Candidate<'_>], open: Open) -> Option<usize> {
        let totals = candidates
            .iter()
            .filter(|c| open.allows(c))
            .map(|c| c.total);
        let best = totals.fold(f64::NEG_INFINITY, f64::max);
        let equal = |c: &Candidate<'_>| open.allows(c) && c.total >= best;
        proportional(rng, candidates, equal, Candidate::odds)
    }
}

/// In proportion to total and weight; by weight alone if every total is 0.
#[derive(Debug)]
struct WeightedRandom(u32);

impl Picker for WeightedRandom {
    fn places(&self) -> usize {
        self.0 as usize
    }

    fn draw(&self, rng: &mut Rng, candidates: &[Candidate<'_>], open: Open) -> Option<usize> {
        let mut totals = candidates.iter().filter(|c| open.allows(c));
        let scored = totals.any(|c| c.total > 0.0);
        let allowed = |c: &Candidate<'_>| open.allows(c);
        proportional(rng, candidates, allowed, |c| {
            if scored { c.total * c.share } else { c.odds() }
        })
    }
}

/// In proportion to weight and slow start.
#[derive(Debug)]
struct Random(u32);

impl Picker for Random {
    fn places(&self) -> usize {
        self.0 as usize
    }

    fn draw(&self, rng: &mut Rng, candidates: &[Candidate<'_>], open: Open) -> Option<usize> {
        let allowed = |c: &Candidate<'_>| open.allows(c);
        proportional(rng, candidates, allowed, Candidate::odds)
    }
}

/// One of those allowed, in proportion to its weight; evenly if all weights are 0.
fn proportional<'a>(
    rng: &mut Rng,
    candidates: &[Candidate<'a>],
    allowed: impl Fn(&Candidate<'a>) -> bool,
    weight: impl Fn(&Candidate<'a>) -> f64,
) -> Option<usize> {
    let open = || candidates.iter().enumerate().filter(|(_, c)| allowed(c));
    let (mut sum, mut count) = (0.0, 0_u32);
    let mut last = None;
    for (place, candidate) in open() {
        sum += weight(candidate);
        count += 1;
        last = Some(place);
    }
    if count < 2 {
        return last;
    }
    let even = sum <= 0.0;
    let mut left = rng.unit() * if even { f64::from(count) } else { sum };
    for (place, candidate) in open() {
        let weight = if even { 1.0 } else { weight(candidate) };
        if left < weight {
            return Some(place);
        }
        left -= weight;
        // Rounding may use the sum up before the end; the last one with a weight is meant then.
        if weight > 0.0 {
            last = Some(place);
        }
    }
    last
}

#[cfg(test)]
mod tests;
