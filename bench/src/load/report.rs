//! What came of a run: ok, shed, failed and cancelled apart, quantiles of what was ok.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::measure::{Quantiles, Times};

/// How requests ended. `offered = ok + shed + failed + cancelled` once all have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Requests {
    /// Planned until now.
    pub offered: u64,
    /// Answered whole.
    pub ok: u64,
    /// Refused on purpose: 429 or 503 that says why or when to come back.
    pub shed: u64,
    /// Any other error, or a broken or late answer.
    pub failed: u64,
    /// Given up by their own caller, as planned.
    pub cancelled: u64,
}

impl Requests {
    /// Those that have ended.
    pub fn ended(&self) -> u64 {
        self.ok + self.shed + self.failed + self.cancelled
    }
}

/// Requests per second, side by side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// As planned.
    pub offered_rps: f64,
    /// As they really left the generator.
    pub sent_rps: f64,
    /// Whole answers, over the run and its tail.
    pub completed_rps: f64,
}

/// The requests that were shed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Shed {
    /// Share of the offered ones.
    pub share: f64,
    /// Count by status and the reason that the server gave.
    pub by_reason: BTreeMap<String, u64>,
    /// Planned time to the refusal.
    pub latency_ms: Quantiles,
}

/// The requests that failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Failed {
    /// Share of the offered ones.
    pub share: f64,
    /// Count by cause: `status_500`, `connect`, `broken`, `error_in_stream`, `cut`, `timeout`.
    pub by_cause: BTreeMap<String, u64>,
}

/// How late requests left the generator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Lag {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// The latest.
    pub max: f64,
    /// What a valid run keeps its 99th percentile below.
    pub allowed: f64,
    /// Requests later than that.
    pub late: u64,
}

/// Token counts that engines reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tokens {
    /// Prompt tokens.
    pub prompt: u64,
    /// Answers that say how many.
    pub prompt_answers: u64,
    /// Prompt tokens of answers that say how many came from the cache.
    pub prompt_with_cache: u64,
    /// Of those, the ones that came from the cache.
    pub cached: u64,
    /// Generated tokens.
    pub completion: u64,
}

/// Prefix cache hits as engines report them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Prefix {
    /// `cached / prompt` over the answers that say; absent when none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit_ratio: Option<f64>,
}

/// What came of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LoadReport {
    /// How the load was made: `open loop` or `closed loop`.
    pub mode: &'static str,
    /// How requests ended.
    pub requests: Requests,
    /// Planned time to the first text, of streams that were ok, in milliseconds.
    pub ttft_ms: Quantiles,
    /// Time per further token, of streams that were ok, in milliseconds.
    pub tpot_ms: Quantiles,
    /// The times of which `tpot_ms` tells three.
    #[serde(skip)]
    pub(crate) tpot: Times,
    /// Planned time to the end, of all that were ok, in milliseconds.
    pub e2e_ms: Quantiles,
    /// Hits in the engines' prefix caches.
    pub prefix: Prefix,
    /// What engines counted.
    pub tokens: Tokens,
    /// Offered, sent and completed.
    #[serde(flatten)]
    pub rates: Rates,
    /// The refused ones.
    pub shed: Shed,
    /// The failed ones.
    pub failed: Failed,
    /// How late requests were sent, in milliseconds.
    pub lag_ms: Lag,
    /// From the first planned time to the last answer, in seconds.
    pub duration_s: f64,
    /// The load was offered as planned.
    pub valid: bool,
}

impl LoadReport {
    /// Time per further token over the answers of several runs together, in milliseconds.
    pub fn tpot_ms_of<'a>(reports: impl IntoIterator<Item = &'a LoadReport>) -> Quantiles {
        let mut all = Times::default();
        for report in reports {
            all.merge(&report.tpot);
        }
        all.ms()
    }
}
