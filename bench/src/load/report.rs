//! What came of a run: ok, shed, failed and cancelled apart, quantiles of what was ok.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// How requests ended. `offered = ok + shed + failed + cancelled`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Requests {
    /// Planned.
    pub offered: u64,
    /// Answered whole.
    pub ok: u64,
    /// Refused with 429 or 503.
    pub shed: u64,
    /// Any other error, or a broken answer.
    pub failed: u64,
    /// Given up by their own caller, as planned.
    pub cancelled: u64,
}

/// Quantiles in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadReport {
    /// How requests ended.
    pub requests: Requests,
    /// Planned rate per second.
    pub offered_rps: f64,
    /// Whole answers per second, over the run and its tail.
    pub achieved_rps: f64,
    /// Planned time to first token, of whole answers.
    pub ttft_ms: Latency,
    /// Time per further token, of whole answers.
    pub tpot_ms: Latency,
    /// Prompt tokens that engines found in their prefix caches, as a share, where they say.
    pub engine_cached_share: Option<f64>,
    /// How late requests went out, 99th percentile, in milliseconds.
    pub late_p99_ms: f64,
    /// The load was offered as planned.
    pub valid: bool,
}

/// Latencies in microseconds, up to an hour, to three digits.
pub(super) struct Times(Option<Histogram<u64>>);

impl Times {
    pub(super) fn new() -> Times {
        Times(Histogram::new_with_bounds(1, 3_600_000_000, 3).ok())
    }

    pub(super) fn add(&mut self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        if let Some(histogram) = &mut self.0 {
            histogram.saturating_record(us.max(1));
        }
    }

    /// A quantile in milliseconds; 0 when nothing was measured.
    pub(super) fn ms(&self, quantile: f64) -> f64 {
        let us = self
            .0
            .as_ref()
            .filter(|times| !times.is_empty())
            .map_or(0, |times| times.value_at_quantile(quantile));
        Duration::from_micros(us).as_secs_f64() * 1e3
    }

    pub(super) fn latency(&self) -> Latency {
        Latency {
            p50: self.ms(0.5),
            p90: self.ms(0.9),
            p99: self.ms(0.99),
        }
    }
}
