//! Ejection with half-open probes.
//!
//! ```text
//!              `failures` of them within `window`
//!              and at least `share` of the outcomes
//!   closed ────────────────────────────────────────> ejected until now + cool-down
//!     ^ ^                                                │ the cool-down is over
//!     │ └───────────── the probe succeeds ────── half-open: one probe at a time
//!     │                                                  │ the probe fails
//!     └ (recovered; slow start begins)                   └─> ejected, cool-down doubled, up to a cap
//! ```
//! The next ejection starts from the first cool-down again once the endpoint stayed closed for a `window`.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::{Nanos, SECOND};

/// When an endpoint is ejected and how it comes back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HealthPolicy {
    /// Failures that eject; 0 never ejects. Default 5.
    pub failures: u32,
    /// The length of time they must fall into. Default 60 s.
    pub window: Nanos,
    /// The least share of outcomes that these failures make up, counted from the first of them on; keeps an
    /// endpoint with much work and few errors. Default 0.1.
    pub share: f64,
    /// The first cool-down. Default 5 s.
    pub cool_down: Nanos,
    /// The longest cool-down. Default 120 s.
    pub cool_down_cap: Nanos,
}

impl Default for HealthPolicy {
    fn default() -> Self {
        HealthPolicy {
            failures: 5,
            window: 60 * SECOND,
            share: 0.1,
            cool_down: 5 * SECOND,
            cool_down_cap: 120 * SECOND,
        }
    }
}

/// Whether an endpoint may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Availability {
    /// Yes.
    Yes,
    /// For one request, which tells whether it is back.
    Probe,
    /// No.
    No {
        /// When asking again can help. While a probe is under way nobody can say; then it is one cool-down ahead.
        until: Nanos,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
enum Phase {
    #[default]
    Closed,
    Ejected {
        until: Nanos,
        probing: bool,
    },
}

/// One failure: when, and the how manieth outcome it was.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Failure {
    at: Nanos,
    outcome: u64,
}

/// An endpoint's record of outcomes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Health {
    phase: Phase,
    /// The last failures, at most as many as eject.
    recent: VecDeque<Failure>,
    outcomes: u64,
    /// Ejections in a row: each doubles the cool-down.
    strikes: u32,
    recovered: Option<Nanos>,
}

impl Health {
    /// An outcome of a request there. Only outcomes that tell something about the endpoint belong here.
    ///
    /// While half-open every outcome counts as the probe's, also that of an older request: both tell the same.
    pub fn record(&mut self, now: Nanos, ok: bool, policy: &HealthPolicy) {
        match self.phase {
            Phase::Closed => {
                self.outcomes = self.outcomes.saturating_add(1);
                if !ok && self.trips(now, policy) {
                    self.eject(now, policy);
                }
            }
            // What ends during the cool-down began before it and tells nothing new.
            Phase::Ejected { until, .. } if now < until => {}
            Phase::Ejected { .. } if ok => {
                self.phase = Phase::Closed;
                self.recovered = Some(now);
            }
            Phase::Ejected { .. } => self.eject(now, policy),
        }
    }

    /// A request ended without telling anything about the endpoint: the probe's slot is free again.
    pub fn abandon(&mut self) {
        if let Phase::Ejected { probing, .. } = &mut self.phase {
            *probing = false;
        }
    }

    /// A request goes there; after the cool-down it takes the probe's slot.
    pub fn on_dispatch(&mut self, now: Nanos) {
        if let Phase::Ejected { until, probing } = &mut self.phase {
            *probing |= now >= *until;
        }
    }

    /// Whether a request may go there now.
    pub fn available(&self, now: Nanos, policy: &HealthPolicy) -> Availability {
        match self.phase {
            Phase::Closed => Availability::Yes,
            Phase::Ejected { until, .. } if now < until => Availability::No { until },
            Phase::Ejected { probing: false, .. } => Availability::Probe,
            Phase::Ejected { probing: true, .. } => Availability::No {
                until: now.saturating_add(cool_down(policy, 0)),
            },
        }
    }

    /// The end of the cool-down it is in, or came out of half-open.
    pub fn ejected_until(&self) -> Option<Nanos> {
        match self.phase {
            Phase::Ejected { until, .. } => Some(until),
            Phase::Closed => None,
        }
    }

    /// True while the one request that may find out whether it is back is under way.
    pub fn is_probing(&self) -> bool {
        matches!(self.phase, Phase::Ejected { probing: true, .. })
    }

    /// When it last came back from an ejection.
    pub fn recovered(&self) -> Option<Nanos> {
        self.recovered
    }

    /// Notes a failure; true if it is the one that ejects.
    fn trips(&mut self, now: Nanos, policy: &HealthPolicy) -> bool {
        if policy.failures == 0 {
            return false;
        }
        let outcome = self.outcomes;
        self.recent.push_back(Failure { at: now, outcome });
        let needed = policy.failures as usize;
        while self.recent.len() > needed
            || self
                .recent
                .front()
                .is_some_and(|f| now.saturating_sub(f.at) > policy.window)
        {
            self.recent.pop_front();
        }
        let Some(first) = self.recent.front() else {
            return false;
        };
        let span = outcome.saturating_sub(first.outcome).saturating_add(1);
        let enough = needed as f64 >= policy.share * span as f64;
        self.recent.len() == needed && enough
    }

    fn eject(&mut self, now: Nanos, policy: &HealthPolicy) {
        let stable = self.phase == Phase::Closed
            && self
                .recovered
                .is_none_or(|at| now.saturating_sub(at) > policy.window);
        self.strikes = if stable {
            0
        } else {
            self.strikes.saturating_add(1)
        };
        self.phase = Phase::Ejected {
            until: now.saturating_add(cool_down(policy, self.strikes)),
            probing: false,
        };
        self.recent.clear();
    }
}

/// `min(cap, cool_down x 2^strikes)`.
fn cool_down(policy: &HealthPolicy, strikes: u32) -> Nanos {
    let factor = 1_u64.checked_shl(strikes).unwrap_or(u64::MAX);
    let length = policy.cool_down.saturating_mul(factor);
    length.min(policy.cool_down_cap)
}

#[cfg(test)]
mod tests;
