//! What a pool decides about age, newcomers, failures and the unknown, whatever its plugins are.

use serde::{Deserialize, Serialize};

use crate::{HealthPolicy, Nanos, SECOND};

/// Staleness, slow start, ejection and exploration of one pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchedulerPolicy {
    /// A reading older than this is no observation any more. Default 2 s.
    pub stale_after: Nanos,
    /// How a new or recovered endpoint comes up to its full share.
    pub slow_start: SlowStart,
    /// When an endpoint is ejected and how it comes back.
    pub health: HealthPolicy,
    /// Share of picks, 0 to 1, that go to an endpoint nobody has scraped yet while scraped ones exist.
    /// Default 0.
    pub explore: f64,
    /// What a scorer that abstains on an endpoint contributes for it.
    pub neutral: Neutral,
}

impl Default for SchedulerPolicy {
    fn default() -> Self {
        SchedulerPolicy {
            stale_after: 2 * SECOND,
            slow_start: SlowStart::default(),
            health: HealthPolicy::default(),
            explore: 0.0,
            neutral: Neutral::Lowest,
        }
    }
}

/// What an abstaining scorer contributes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Neutral {
    /// The lowest score among the observed candidates: the unknown never beats the known.
    Lowest,
    /// This score, from 0 to 1.
    Fixed(f64),
}

/// The ramp of a newcomer: its total is multiplied by [`SlowStart::ramp`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SlowStart {
    /// Length of the ramp; 0 turns it off. Default 10 s.
    pub window: Nanos,
    /// Where it starts, from 0 to 1. Default 0.1.
    pub floor: f64,
}

impl Default for SlowStart {
    fn default() -> Self {
        SlowStart {
            window: 10 * SECOND,
            floor: 0.1,
        }
    }
}

impl SlowStart {
    /// `floor + (1 - floor) x min(1, age / window)`: linear from the floor to 1.
    pub fn ramp(&self, age: Nanos) -> f64 {
        if age >= self.window {
            return 1.0;
        }
        let floor = clamp01(self.floor);
        let done = age as f64 / self.window as f64;
        floor + (1.0 - floor) * done
    }
}

/// Into 0 to 1; what is not a number gives 0.
pub(crate) fn clamp01(value: f64) -> f64 {
    if value > 0.0 { value.min(1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ramp_is_linear_from_the_floor() {
        let ramp = |age| {
            let slow = SlowStart {
                window: 10 * SECOND,
                floor: 0.2,
            };
            slow.ramp(age)
        };
        assert_eq!(ramp(0), 0.2);
        assert!((ramp(5 * SECOND) - 0.6).abs() < 1e-12);
        assert_eq!(ramp(10 * SECOND), 1.0);
        assert_eq!(ramp(Nanos::MAX), 1.0);
    }

    #[test]
    fn no_window_means_no_ramp() {
        let off = SlowStart {
            window: 0,
            floor: 0.0,
        };
        assert_eq!(off.ramp(0), 1.0);
    }

    #[test]
    fn odd_numbers_are_clamped() {
        let values = [f64::NAN, f64::NEG_INFINITY, -1.0, 0.5, 7.0, f64::INFINITY];
        assert_eq!(values.map(clamp01), [0.0, 0.0, 0.0, 0.5, 1.0, 1.0]);
    }
}
