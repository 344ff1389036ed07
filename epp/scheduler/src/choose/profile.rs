//! One profile: filters in order, scorers with weights, a picker.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Candidate, Context, Reads, eligible::eligible};
use crate::{
    Decision, Endpoint, Neutral, NoEndpoint, Target,
    filter::{self, Filter},
    picker::{self, Open, Picker},
    policy::clamp01,
    record::{CandidateRecord, DecisionRecord, Removal, ScoreRecord},
    scorer::{self, Scorer},
    spec::{PickerParameters, check::Resolved},
    state::{Rng, Scratch},
};

/// One choice under way.
pub(super) struct Cycle<'a> {
    pub(super) context: Context<'a>,
    pub(super) endpoints: &'a [Endpoint],
    pub(super) full: &'a [bool],
    pub(super) rng: &'a mut Rng,
    pub(super) scratch: &'a mut Scratch,
    /// Nobody holds a part of the prompt, as far as was asked.
    pub(super) cold: bool,
    pub(super) record: Option<Box<DecisionRecord>>,
}

type Targets = SmallVec<[Target; 4]>;

/// Filters, scorers and the picker of a profile, built.
#[derive(Debug)]
pub(super) struct Profile {
    pub(super) name: Arc<str>,
    filters: Vec<(Arc<str>, Box<dyn Filter>)>,
    scorers: Vec<Weighted>,
    picker: Box<dyn Picker>,
    reads: Reads,
}

#[derive(Debug)]
struct Weighted {
    name: Arc<str>,
    weight: f64,
    scorer: Box<dyn Scorer>,
}

impl Profile {
    /// `plugins` in the profile's order, each with its name and weight; a missing picker is `max-score-picker`.
    pub(super) fn new(name: &Arc<str>, plugins: &[Resolved<'_>]) -> Profile {
        let mut profile = Profile {
            name: Arc::clone(name),
            filters: Vec::new(),
            scorers: Vec::new(),
            picker: picker::max_score(PickerParameters::default()),
            reads: Reads::NOTHING,
        };
        for (name, spec, weight) in plugins {
            if let Some(filter) = filter::build(spec) {
                profile.reads = profile.reads.and(filter.reads());
                profile.filters.push((Arc::clone(name), filter));
            } else if let Some(scorer) = scorer::build(name, spec) {
                profile.reads = profile.reads.and(scorer.reads());
                profile.scorers.push(Weighted {
                    name: Arc::clone(name),
                    weight: *weight,
                    scorer,
                });
            } else if let Some(picker) = picker::build(spec) {
                profile.picker = picker;
            }
        }
        profile
    }

    pub(super) fn scorers(&self) -> impl Iterator<Item = &dyn Scorer> {
        self.scorers.iter().map(|weighted| &*weighted.scorer)
    }

    /// Filters, ranks and draws.
    pub(super) fn run(&self, cycle: &mut Cycle<'_>) -> Result<Decision, NoEndpoint> {
        let mut candidates = eligible(cycle)?;
        if self.reads.telemetry {
            for candidate in &mut candidates {
                candidate.known = candidate.endpoint.telemetry.observed();
            }
        }
        if self.reads.prefix {
            let (request, prefix) = (cycle.context.request, cycle.context.prefix);
            for candidate in &mut candidates {
                candidate.cached = prefix.cached_tokens(request, candidate.endpoint.id);
                cycle.cold &= candidate.cached == 0;
            }
        }
        self.filter(cycle, &mut candidates)?;
        let targets = self.pick(cycle, &mut candidates);
        let profile = Arc::clone(&self.name);
        let record = cycle.record.take().map(|mut record| {
            record.profile = Arc::clone(&self.name);
            record.chosen = targets.iter().map(|target| target.id).collect();
            record
        });
        Ok(Decision {
            profile,
            targets,
            record,
        })
    }

    fn filter(
        &self,
        cycle: &mut Cycle<'_>,
        candidates: &mut Vec<Candidate<'_>>,
    ) -> Result<(), NoEndpoint> {
        for (name, filter) in &self.filters {
            let mut keep = std::mem::take(&mut cycle.scratch.keep);
            keep.clear();
            filter.keep(&cycle.context, candidates, &mut keep);
            let someone = keep.contains(&true);
            if someone || !filter.fails_open() {
                if cycle.record.is_some() {
                    let dropped = candidates.iter().zip(&keep).filter(|(_, keep)| !**keep);
                    for (candidate, _) in dropped {
                        cycle.remove(candidate.endpoint, || Removal::Filter(Arc::clone(name)));
                    }
                }
                let mut verdicts = keep.iter();
                candidates.retain(|_| verdicts.next().is_some_and(|keep| *keep));
            }
            cycle.scratch.keep = keep;
            if candidates.is_empty() {
                let by = Arc::clone(name);
                return Err(NoEndpoint::Filtered { by });
            }
        }
        Ok(())
    }

    /// Targets from the endpoints with a weight that can start the request; what is full, and then stand-bys, only
    /// fill the places that those leave open.
    fn pick(&self, cycle: &mut Cycle<'_>, candidates: &mut [Candidate<'_>]) -> Targets {
        let stand_by = |c: &Candidate<'_>| c.endpoint.weight == 0;
        let tier = |c: &Candidate<'_>| (stand_by(c), c.full);
        if !candidates.iter().is_sorted_by_key(tier) {
            candidates.sort_by_key(tier);
        }
        let mut targets = Targets::new();
        for group in candidates.chunk_by_mut(|a, b| tier(a) == tier(b)) {
            if targets.len() < self.picker.places() {
                self.rank(cycle, group);
                self.draw(cycle, group, &mut targets);
            } else {
                for candidate in &*group {
                    let full = candidate.full && !stand_by(candidate);
                    let why = if full {
                        Removal::Full
                    } else {
                        Removal::StandBy
                    };
                    cycle.remove(candidate.endpoint, || why);
                }
            }
        }
        targets
    }

    /// Sets each candidate's total: `ramp x sum of weight x clamp01(score)`.
    fn rank(&self, cycle: &mut Cycle<'_>, group: &mut [Candidate<'_>]) {
        let heaviest = group.iter().map(|c| c.endpoint.weight).max().unwrap_or(0);
        for candidate in group.iter_mut() {
            if heaviest > 0 {
                candidate.share = f64::from(candidate.endpoint.weight) / f64::from(heaviest);
            }
        }
        let mut rows: Vec<Vec<ScoreRecord>> = Vec::new();
        if cycle.record.is_some() {
            rows.resize(group.len(), Vec::with_capacity(self.scorers.len()));
        }
        let mut scores = std::mem::take(&mut cycle.scratch.scores);
        for weighted in &self.scorers {
            scores.clear();
            weighted.scorer.score(&cycle.context, group, &mut scores);
            let neutral = neutral(&scores, cycle.context.policy.neutral);
            for (candidate, score) in group.iter_mut().zip(&scores) {
                candidate.total += weighted.weight * resolved(*score, neutral);
            }
            for (row, raw) in rows.iter_mut().zip(&scores) {
                row.push(ScoreRecord {
                    scorer: Arc::clone(&weighted.name),
                    raw: Some(*raw).filter(|raw| raw.is_finite()),
                    weighted: weighted.weight * resolved(*raw, neutral),
                });
            }
        }
        cycle.scratch.scores = scores;
        for candidate in group.iter_mut() {
            candidate.total *= candidate.ramp;
        }
        if let Some(record) = &mut cycle.record {
            let context = &cycle.context;
            let written = group.iter().zip(rows);
            let written = written.map(|(c, scores)| CandidateRecord::new(c, context, scores));
            record.candidates.extend(written);
        }
    }

    /// Draws from a ranked group until every place is taken or nobody is left.
    fn draw(&self, cycle: &mut Cycle<'_>, group: &mut [Candidate<'_>], targets: &mut Targets) {
        let mut prefer_known = true;
        if targets.is_empty() && self.explores(cycle, group) {
            prefer_known = false;
            if let Some(record) = &mut cycle.record {
                record.explored = true;
            }
        }
        while targets.len() < self.picker.places() {
            // Everybody else who needs this probe's answer would hit the same endpoint at once.
            let probes = targets.is_empty();
            let drawn = [prefer_known, !prefer_known].into_iter().find_map(|known| {
                let open = Open { probes, known };
                self.picker.draw(cycle.rng, group, open)
            });
            let Some(candidate) = drawn.and_then(|place| group.get_mut(place)) else {
                break;
            };
            prefer_known = true;
            candidate.taken = true;
            targets.push(Target {
                id: candidate.endpoint.id,
                address: Arc::clone(&candidate.endpoint.address),
            });
        }
    }

    /// Whether this pick goes to an endpoint nobody has scraped although scraped ones exist.
    fn explores(&self, cycle: &mut Cycle<'_>, group: &[Candidate<'_>]) -> bool {
        let share = clamp01(cycle.context.policy.explore);
        let known = |c: &Candidate<'_>| c.known;
        share > 0.0
            && group.iter().any(known)
            && !group.iter().all(known)
            && cycle.rng.unit() < share
    }
}

/// What an abstaining scorer contributes: 0 if it abstains for everybody.
fn neutral(scores: &[f64], policy: Neutral) -> f64 {
    let observed = scores.iter().filter(|score| !score.is_nan());
    let lowest = observed.fold(f64::INFINITY, |low, score| low.min(clamp01(*score)));
    match policy {
        _ if lowest.is_infinite() => 0.0,
        Neutral::Lowest => lowest,
        Neutral::Fixed(value) => clamp01(value),
    }
}

fn resolved(score: f64, neutral: f64) -> f64 {
    if score.is_nan() {
        neutral
    } else {
        clamp01(score)
    }
}
