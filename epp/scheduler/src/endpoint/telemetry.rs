//! What scrapes said, each value with its instant. Missing, not a number and out of range are not zero.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Nanos;

/// A value and the instant it was read.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// The value, always finite.
    pub value: f64,
    /// When the scrape that carried it came back.
    pub at: Nanos,
}

impl Reading {
    /// The value while it is not older than `stale_after`.
    pub fn fresh(reading: Option<Reading>, now: Nanos, stale_after: Nanos) -> Option<f64> {
        reading
            .filter(|r| now.saturating_sub(r.at) <= stale_after)
            .map(|r| r.value)
    }
}

/// Adapters of an engine, as it lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adapters {
    /// Adapters with running requests.
    pub running: Vec<Arc<str>>,
    /// Adapters with waiting requests; may name running ones again.
    pub waiting: Vec<Arc<str>>,
    /// Slots; `None` when the engine's value cannot be read.
    pub max: Option<u32>,
}

/// One scrape's content, all optional: missing is not zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sample {
    /// Requests waiting in the engine.
    pub waiting: Option<f64>,
    /// Requests running in the engine.
    pub running: Option<f64>,
    /// Share of KV blocks held by requests, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Tokens per KV block.
    pub block_size: Option<u64>,
    /// KV blocks of the engine.
    pub num_blocks: Option<u64>,
    /// Most requests the engine runs at once.
    pub max_num_seqs: Option<u64>,
    /// Adapters, when the engine says anything about them.
    pub adapters: Option<Adapters>,
}

/// Scrapes in a row that came back without a usable value, by signal. A name that an engine no longer writes shows
/// here while everything else looks well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Requests waiting.
    pub waiting: u32,
    /// Requests running.
    pub running: u32,
    /// Share of KV blocks in use.
    pub kv_usage: u32,
}

/// What is known of an endpoint from its scrapes.
///
/// Each signal keeps its last good reading, which then grows old: one scrape without a signal is not its loss.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Telemetry {
    /// Requests waiting.
    pub waiting: Option<Reading>,
    /// Requests running.
    pub running: Option<Reading>,
    /// Share of KV blocks in use, 0 to 1.
    pub kv_usage: Option<Reading>,
    /// Adapters and when they were read.
    pub adapters: Option<(Adapters, Nanos)>,
    /// Tokens per KV block.
    pub block_size: Option<u64>,
    /// KV blocks.
    pub num_blocks: Option<u64>,
    /// Most requests at once.
    pub max_num_seqs: Option<u64>,
    /// When the last scrape came back, whatever it held.
    pub scraped: Option<Nanos>,
    /// Failed scrapes since the last good one.
    pub failures: u32,
    /// Signals that good scrapes did not bring.
    pub missing: Missing,
}

impl Telemetry {
    /// Takes a scrape over. Values that cannot be (not a number, infinite, negative, a share above 1) count as
    /// missing.
    pub fn apply(&mut self, now: Nanos, sample: &Sample) {
        self.scraped = Some(now);
        self.failures = 0;
        let waiting = read(sample.waiting, f64::MAX, now);
        let running = read(sample.running, f64::MAX, now);
        let kv_usage = read(sample.kv_usage, 1.0, now);
        count(&mut self.missing.waiting, waiting);
        count(&mut self.missing.running, running);
        count(&mut self.missing.kv_usage, kv_usage);
        self.waiting = waiting.or(self.waiting);
        self.running = running.or(self.running);
        self.kv_usage = kv_usage.or(self.kv_usage);
        self.block_size = sample.block_size.filter(|n| *n > 0).or(self.block_size);
        self.num_blocks = sample.num_blocks.filter(|n| *n > 0).or(self.num_blocks);
        self.max_num_seqs = sample.max_num_seqs.filter(|n| *n > 0).or(self.max_num_seqs);
        if let Some(adapters) = &sample.adapters {
            self.adapters = Some((adapters.clone(), now));
        }
    }

    /// Counts a scrape that failed.
    pub fn scrape_failed(&mut self, _now: Nanos) {
        self.failures = self.failures.saturating_add(1);
    }

    /// Whether any load signal has ever been read in this life.
    pub fn observed(&self) -> bool {
        self.waiting.is_some() || self.running.is_some() || self.kv_usage.is_some()
    }

    /// The age of the youngest load reading; `None` if there is none.
    pub fn age(&self, now: Nanos) -> Option<Nanos> {
        let readings = [self.waiting, self.running, self.kv_usage];
        let youngest = readings.into_iter().flatten().map(|r| r.at).max()?;
        Some(now.saturating_sub(youngest))
    }

    /// The adapters while their reading is not older than `stale_after`.
    pub fn adapters(&self, now: Nanos, stale_after: Nanos) -> Option<&Adapters> {
        let (adapters, at) = self.adapters.as_ref()?;
        (now.saturating_sub(*at) <= stale_after).then_some(adapters)
    }
}

fn count(missing: &mut u32, read: Option<Reading>) {
    *missing = match read {
        Some(_) => 0,
        None => missing.saturating_add(1),
    };
}

fn read(value: Option<f64>, most: f64, at: Nanos) -> Option<Reading> {
    let value = value.filter(|v| (0.0..=most).contains(v))?;
    // Minus zero would differ from zero in a recorded log.
    Some(Reading {
        value: value + 0.0,
        at,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kv(value: f64) -> Sample {
        Sample {
            kv_usage: Some(value),
            ..Sample::default()
        }
    }

    #[test]
    fn impossible_values_are_no_observation() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 1.5] {
            let mut telemetry = Telemetry::default();
            telemetry.apply(1, &kv(value));
            assert_eq!(telemetry.kv_usage, None, "{value}");
            assert!(!telemetry.observed());
            assert_eq!(
                (telemetry.scraped, telemetry.missing.kv_usage),
                (Some(1), 1)
            );
        }
    }

    #[test]
    fn a_scrape_without_a_signal_keeps_the_old_reading_which_grows_old() {
        let mut telemetry = Telemetry::default();
        telemetry.apply(10, &kv(0.4));
        telemetry.apply(20, &kv(f64::NAN));
        telemetry.apply(30, &Sample::default());
        assert_eq!(telemetry.kv_usage, Some(Reading { value: 0.4, at: 10 }));
        let missing = Missing {
            waiting: 3,
            running: 3,
            kv_usage: 2,
        };
        assert_eq!(telemetry.missing, missing);
        assert_eq!(Reading::fresh(telemetry.kv_usage, 15, 5), Some(0.4));
        assert_eq!(Reading::fresh(telemetry.kv_usage, 16, 5), None);
        assert_eq!(telemetry.age(30), Some(20));
    }

    #[test]
    fn failures_count_until_a_scrape_comes_back() {
        let mut telemetry = Telemetry::default();
        telemetry.scrape_failed(1);
        telemetry.scrape_failed(2);
        assert_eq!(telemetry.failures, 2);
        telemetry.apply(3, &kv(0.0));
        assert_eq!((telemetry.failures, telemetry.missing.kv_usage), (0, 0));
        assert_eq!(telemetry.kv_usage, Some(Reading { value: 0.0, at: 3 }));
    }

    #[test]
    fn a_sample_of_nan_and_one_of_nothing_are_the_same_after_a_log() {
        let sample: Sample =
            serde_json::from_str(&serde_json::to_string(&kv(f64::NAN)).unwrap()).unwrap();
        let (mut live, mut replayed) = (Telemetry::default(), Telemetry::default());
        live.apply(1, &kv(f64::NAN));
        replayed.apply(1, &sample);
        assert_eq!(live, replayed);
    }
}
