//! CPU time and memory of this process, and quantiles of what took how long.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// CPU time that all threads of this process have used, user and system together.
pub(crate) fn cpu_time() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let seconds = u64::try_from(spent.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(spent.tv_nsec).unwrap_or(0))
}

/// Most memory that this process has held, in MiB (`VmHWM`); `None` where the system does not say.
pub(crate) fn peak_rss_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    kib(&status, "VmHWM:").map(|kib| kib / 1024.0)
}

fn kib(status: &str, key: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Asks for as many open files as this user may have: a thousand endpoints take two thousand.
pub(crate) fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // A refusal shows later, as an endpoint that cannot be opened.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Durations from a nanosecond to an hour, to three digits.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Times(Option<Histogram<u64>>);

/// Half, a tenth and a hundredth are slower than this, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// Half and a hundredth are slower than this, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Micros {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl Times {
    pub(crate) fn new() -> Times {
        Times(Histogram::new_with_bounds(1, 3_600_000_000_000, 3).ok())
    }

    pub(crate) fn add(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if let Some(histogram) = &mut self.0 {
            histogram.saturating_record(ns.max(1));
        }
    }

    /// Adds another's.
    pub(crate) fn merge(&mut self, other: &Times) {
        match (&mut self.0, &other.0) {
            // Both have the same bounds, so all of the other's fit.
            (Some(all), Some(more)) => all.add(more).unwrap_or_default(),
            (all @ None, Some(more)) => *all = Some(more.clone()),
            (_, None) => {}
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.as_ref().map_or(0, Histogram::len)
    }

    /// The duration that a share `quantile` of all does not exceed; zero when there is none.
    pub(crate) fn at(&self, quantile: f64) -> Duration {
        let times = self.0.as_ref().filter(|times| !times.is_empty());
        Duration::from_nanos(times.map_or(0, |times| times.value_at_quantile(quantile)))
    }

    pub(crate) fn max(&self) -> Duration {
        let times = self.0.as_ref().filter(|times| !times.is_empty());
        Duration::from_nanos(times.map_or(0, Histogram::max))
    }

    pub(crate) fn ms(&self) -> Quantiles {
        let at = |quantile| round(self.at(quantile).as_secs_f64() * 1e3, 3);
        Quantiles {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
        }
    }

    pub(crate) fn us(&self) -> Micros {
        let at = |quantile| round(self.at(quantile).as_secs_f64() * 1e6, 2);
        Micros {
            p50: at(0.5),
            p99: at(0.99),
        }
    }
}

/// The middle of what several rounds gave; of an even number the mean of the two in the middle. Zero of none.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.retain(|value| value.is_finite());
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    let at = |index: usize| values.get(index).copied().unwrap_or(0.0);
    if values.len() % 2 == 1 {
        at(middle)
    } else {
        (at(middle.wrapping_sub(1)) + at(middle)) / 2.0
    }
}

/// To `digits` decimals: a report is read by people too.
pub(crate) fn round(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    let rounded = (value * scale).round() / scale;
    if rounded.is_finite() { rounded } else { value }
}

/// A count as a number to calculate with; exact below 2^53.
#[expect(
    clippy::cast_precision_loss,
    reason = "counts of a run are far below 2^53"
)]
pub(crate) fn number(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_a_known_table() {
        let mut times = Times::new();
        for ms in 1..=1000 {
            times.add(Duration::from_millis(ms));
        }
        let got = times.ms();
        for (value, expected) in [(got.p50, 500.0), (got.p90, 900.0), (got.p99, 990.0)] {
            assert!(
                (value / expected - 1.0).abs() < 0.002,
                "{value} for {expected}"
            );
        }
        assert_eq!(times.len(), 1000);
        assert!((times.max().as_secs_f64() - 1.0).abs() < 0.002);
    }

    #[test]
    fn nothing_measured_is_zero_and_extremes_are_held() {
        let mut times = Times::new();
        assert_eq!(
            (times.ms(), times.max()),
            (Quantiles::default(), Duration::ZERO)
        );
        times.add(Duration::ZERO);
        times.add(Duration::from_secs(1 << 30));
        assert_eq!(times.len(), 2);
        assert!(times.max() >= Duration::from_secs(3500));
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0]), 3.0);
        assert_eq!(median(vec![9.0, 1.0, 5.0]), 5.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 100.0]), 3.0);
        assert_eq!(median(vec![1.0, f64::NAN, 3.0]), 2.0);
    }

    #[test]
    fn status_lines_are_read() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 12 kB\n";
        assert_eq!(kib(status, "VmHWM:"), Some(2048.0));
        assert_eq!(kib(status, "VmSwap:"), None);
    }

    #[test]
    fn work_costs_cpu_time() {
        let before = cpu_time();
        let mut sum = 0u64;
        while cpu_time() == before {
            sum = sum.wrapping_mul(31).wrapping_add(1);
        }
        assert!(cpu_time() > before, "{sum}");
    }
}
