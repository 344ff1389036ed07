//! What the phases show, from the callers' clocks and the pool's own recorded steps.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::{BufRead as _, BufReader},
    path::Path,
};

use serde::Serialize;
use serde_json::{Value, json};
use wicketgate_bench::load::{LoadReport, Requests};
use wicketgate_pool::{
    Input, Output,
    replay::{Entry, replay},
};

use super::{FLOOR, LOW, MIDDLE, Phase, TENANTS, TOP, Tenant, stage::Trouble};

/// Waits in the queue of requests that got their turn, by priority, in milliseconds; read from a recorded run.
#[derive(Default)]
pub(super) struct Waits {
    by_band: BTreeMap<i32, Vec<f64>>,
    /// The log was played again to the same outputs.
    pub(super) steps_replayed: u64,
}

impl Waits {
    /// Reads a log, and plays it again: it must give the same outputs.
    pub(super) fn read(log: &Path) -> Result<Waits, Trouble> {
        let report = replay(BufReader::new(File::open(log)?), |_| ())?;
        let mut waits = Waits {
            steps_replayed: report.steps,
            ..Waits::default()
        };
        let mut priorities = HashMap::new();
        for line in BufReader::new(File::open(log)?).lines().skip(1) {
            let entry: Entry = serde_json::from_str(&line?)?;
            if let Input::Arrive(request) = &entry.input {
                priorities.insert(request.id, request.priority);
            }
            for output in &entry.outputs {
                if let Output::Dispatch { id, waited, .. } = output
                    && let Some(priority) = priorities.get(id)
                {
                    let ms = std::time::Duration::from_nanos(*waited).as_secs_f64() * 1e3;
                    waits.by_band.entry(*priority).or_default().push(ms);
                }
            }
        }
        for band in waits.by_band.values_mut() {
            band.sort_unstable_by(f64::total_cmp);
        }
        Ok(waits)
    }

    fn p90(&self, band: i32) -> f64 {
        let waits = self.by_band.get(&band).map_or(&[][..], Vec::as_slice);
        let place = (waits.len() * 9).div_ceil(10).saturating_sub(1);
        waits.get(place).copied().unwrap_or(0.0)
    }
}

/// One band.
#[derive(Serialize)]
pub(super) struct Band {
    pub(super) priority: i32,
    pub(super) offered: u64,
    pub(super) ok: u64,
    pub(super) shed: u64,
    pub(super) cancelled: u64,
    pub(super) queue_p90_ms: f64,
    pub(super) ttft_p90_ms: f64,
    /// Against the band with nobody waiting; of the top band alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ttft_ratio: Option<f64>,
    pub(super) tpot_p90_ms: f64,
    /// Share of the weighted tokens that were served while the load stood.
    pub(super) share: f64,
    /// Share that it is promised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) floor: Option<f64>,
}

/// One tenant of the middle band.
#[derive(Serialize)]
pub(super) struct Sharer {
    pub(super) tenant: &'static str,
    pub(super) ok: u64,
    /// Prompt tokens per answer.
    pub(super) prompt: f64,
    pub(super) hit_ratio: f64,
    /// Uncached input + 2 x output, served while the load stood.
    pub(super) tokens: f64,
}

/// Everything that the scenario shows.
pub(super) struct Findings {
    pub(super) mode: &'static str,
    pub(super) capacity: f64,
    pub(super) requests: Requests,
    pub(super) bands: Vec<Band>,
    pub(super) sharers: Vec<Sharer>,
    pub(super) jain: f64,
    pub(super) tpot_ratio: f64,
    pub(super) step_ms: f64,
    pub(super) steps_replayed: u64,
    /// Requests that failed, in all phases.
    pub(super) failed: u64,
    /// Guards that were left, over all phases.
    pub(super) left: u64,
    pub(super) valid: bool,
}

fn of<'a>(
    phase: &'a Phase,
    wanted: impl Fn(&Tenant) -> bool + 'a,
) -> impl Iterator<Item = &'a LoadReport> {
    let both = TENANTS.iter().zip(&phase.reports);
    both.filter(move |(tenant, _)| wanted(tenant))
        .filter_map(|(_, report)| report.as_ref())
}

fn number(count: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
    let number = count as f64;
    number
}

/// Uncached input + 2 x output, as the engines count them.
fn served(report: &LoadReport) -> f64 {
    let tokens = report.tokens;
    number(tokens.prompt.saturating_sub(tokens.cached)) + 2.0 * number(tokens.completion)
}

/// The 90th percentile over several reports: the largest of theirs, weighted towards nobody.
fn worst(reports: impl Iterator<Item = f64>) -> f64 {
    reports.fold(0.0, f64::max)
}

/// Jain's index: 1 for equal shares, 1/n when one has all.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    match shares.len() {
        0 => 1.0,
        n => sum * sum / (number(n as u64) * squares).max(f64::MIN_POSITIVE),
    }
}

fn band(priority: i32, alone: &Phase, overload: &Phase, all: f64) -> Band {
    let reports: Vec<_> = of(overload, |tenant| tenant.band == priority).collect();
    let sum = |of: fn(&Requests) -> u64| reports.iter().map(|report| of(&report.requests)).sum();
    let ttft = worst(reports.iter().map(|report| report.ttft_ms.p90));
    let before =
        worst(of(alone, |tenant| tenant.band == priority).map(|report| report.ttft_ms.p90));
    let tokens: f64 = reports.iter().map(|report| served(report)).sum();
    Band {
        priority,
        offered: sum(|requests| requests.offered),
        ok: sum(|requests| requests.ok),
        shed: sum(|requests| requests.shed),
        cancelled: sum(|requests| requests.cancelled),
        queue_p90_ms: overload.waits.p90(priority),
        ttft_p90_ms: ttft,
        ttft_ratio: (priority == TOP).then(|| ttft / before.max(f64::MIN_POSITIVE)),
        tpot_p90_ms: worst(reports.iter().map(|report| report.tpot_ms.p90)),
        share: tokens / all.max(1.0),
        floor: (priority == LOW).then_some(FLOOR),
    }
}

fn sharer(tenant: &Tenant, report: &LoadReport) -> Sharer {
    let tokens = report.tokens;
    Sharer {
        tenant: tenant.name,
        ok: report.requests.ok,
        prompt: number(tokens.prompt) / number(tokens.prompt_answers.max(1)),
        hit_ratio: number(tokens.cached) / number(tokens.prompt.max(1)),
        tokens: served(report),
    }
}

pub(super) fn findings(
    mode: &'static str,
    capacity: f64,
    first: &Phase,
    relaxed: &Phase,
    alone: &Phase,
    overload: &Phase,
) -> Findings {
    let everybody: Vec<_> = of(overload, |_| true).collect();
    let all: f64 = everybody.iter().map(|report| served(report)).sum();
    let mut requests = Requests::default();
    for report in &everybody {
        requests.offered += report.requests.offered;
        requests.ok += report.requests.ok;
        requests.shed += report.requests.shed;
        requests.failed += report.requests.failed;
        requests.cancelled += report.requests.cancelled;
    }
    let bands = [TOP, MIDDLE, LOW].map(|priority| band(priority, alone, overload, all));
    let sharers: Vec<Sharer> = TENANTS
        .iter()
        .zip(&overload.reports)
        .filter(|(tenant, _)| tenant.band == MIDDLE)
        .filter_map(|(tenant, report)| Some(sharer(tenant, report.as_ref()?)))
        .collect();
    let shares: Vec<f64> = sharers.iter().map(|sharer| sharer.tokens).collect();
    let tpot = |phase| LoadReport::tpot_ms_of(of(phase, |_| true)).p90;
    let phases = [first, relaxed, alone, overload];
    let failed = phases.iter().flat_map(|phase| of(phase, |_| true));
    let failed = failed.map(|report| report.requests.failed).sum();
    let open = of(relaxed, |_| true).chain(of(overload, |_| true));
    Findings {
        mode,
        capacity,
        requests,
        jain: jain(&shares),
        tpot_ratio: tpot(overload) / tpot(relaxed).max(f64::MIN_POSITIVE),
        step_ms: overload.step_ms,
        steps_replayed: overload.waits.steps_replayed,
        failed,
        left: phases.iter().map(|phase| phase.left).sum(),
        valid: open.into_iter().all(|report| report.valid),
        bands: bands.into(),
        sharers,
    }
}

impl Findings {
    /// The keys that scripts rely on, and a few more.
    pub(super) fn json(&self) -> Value {
        json!({
            "engine": "emulated",
            "scenario": "overload",
            "mode": self.mode,
            "rate_mode": "open loop, Poisson, twice the capacity that a closed loop found",
            "capacity_rps": self.capacity,
            "requests": self.requests,
            "bands": self.bands,
            "admitted_tpot_ratio": self.tpot_ratio,
            "engine_step_ms": self.step_ms,
            "fairness": {"jain": self.jain, "tenants": self.sharers},
            "steps_replayed": self.steps_replayed,
            "guards": self.left,
            "valid": self.valid,
            "aims": self.aims().map(|(name, met)| json!({"aim": name, "met": met})),
        })
    }

    /// What the scenario is there to show, and whether it did in this run.
    pub(super) fn aims(&self) -> [(String, bool); 6] {
        let top = self.bands.first();
        let wait = top.map_or(f64::MAX, |band| band.queue_p90_ms);
        let ratio = top.and_then(|band| band.ttft_ratio).unwrap_or(f64::MAX);
        let share = self.bands.last().map_or(0.0, |band| band.share);
        let r = &self.requests;
        let step = self.step_ms;
        [
            (
                format!(
                    "top band waits one engine step at most (p90 {wait:.1} ms, a step {step:.1} ms)"
                ),
                wait <= step,
            ),
            (
                format!("top band's time to first token at most 1.3 times alone ({ratio:.2})"),
                ratio <= 1.3,
            ),
            (
                format!(
                    "time per token at most 1.25 times that at 0.9 of capacity ({:.2})",
                    self.tpot_ratio
                ),
                self.tpot_ratio <= 1.25,
            ),
            (
                format!(
                    "equal shares in tokens, Jain's index at least 0.98 ({:.4})",
                    self.jain
                ),
                self.jain >= 0.98,
            ),
            (
                format!("the lowest band keeps its floor of {FLOOR} ({share:.3})"),
                // INV-Q9 lets a window be short by two of the dearest requests.
                share >= FLOOR * 0.98,
            ),
            (
                "offered = ok + shed + failed + cancelled, and nothing is left over".to_owned(),
                r.offered == r.ended() && self.left == 0,
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index() {
        assert!((jain(&[1.0, 1.0]) - 1.0).abs() < 1e-12);
        assert!((jain(&[1.0, 0.0]) - 0.5).abs() < 1e-12);
        assert!((jain(&[3.0, 1.0]) - 0.8).abs() < 1e-12);
        assert!((jain(&[]) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn the_90th_percentile_is_a_wait_that_was_seen() {
        let waits = |list: Vec<f64>| Waits {
            by_band: BTreeMap::from([(0, list)]),
            steps_replayed: 0,
        };
        let ten: Vec<f64> = (1..=10).map(f64::from).collect();
        assert!((waits(ten).p90(0) - 9.0).abs() < 1e-12);
        assert!((waits(vec![4.0]).p90(0) - 4.0).abs() < 1e-12);
        assert!(waits(Vec::new()).p90(0).abs() < 1e-12);
    }
}
