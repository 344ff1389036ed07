//! Usage limits: how full each band may make the pool. Ranks count from 0, the top band.

use serde::{Deserialize, Serialize};

use crate::ConfigError;

/// How the ceiling falls from the top band to the lowest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// In equal steps.
    #[default]
    Linear,
}

/// What the steps are measured in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CeilingDomain {
    /// The band's rank among the bands.
    #[default]
    Rank,
    /// The value of its priority between the highest and the lowest.
    Value,
}

/// How full each band may make the pool.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum UsageLimit {
    /// `static-usage-limit-policy`: the same ceiling for all.
    Static {
        /// The ceiling.
        threshold: f64,
    },
    /// `priority-holdback-policy`: `c_i = max - i (max - min) / (N - 1)`.
    #[serde(rename_all = "camelCase")]
    PriorityHoldback {
        /// How the ceiling falls.
        #[serde(default)]
        shape: Shape,
        /// Measured in ranks or priorities.
        #[serde(default)]
        domain: CeilingDomain,
        /// The lowest band's ceiling.
        min_ceiling: f64,
        /// The top band's ceiling.
        #[serde(default = "one")]
        max_ceiling: f64,
    },
    /// `soft-reflective-ceiling-policy`: `c_i = 1 - i s / (N - 1)` at saturation `s`; past it one of `round(s / (1 - s))`
    /// calls passes.
    SoftReflective,
}

fn one() -> f64 {
    1.0
}

impl Default for UsageLimit {
    fn default() -> Self {
        UsageLimit::Static { threshold: 1.0 }
    }
}

impl UsageLimit {
    /// By our or llm-d's name, with default parameters.
    ///
    /// # Errors
    /// When no such policy is known, or it has a parameter without a default (`minCeiling` of priority holdback).
    pub fn from_name(name: &str) -> Result<UsageLimit, ConfigError> {
        match name {
            "static" | "static-usage-limit-policy" => Ok(UsageLimit::default()),
            "soft-reflective-ceiling" | "soft-reflective-ceiling-policy" => {
                Ok(UsageLimit::SoftReflective)
            }
            "priority-holdback" | "priority-holdback-policy" => Err(ConfigError {
                faults: vec!["usageLimit.minCeiling: is required".to_owned()],
            }),
            _ => Err(ConfigError {
                faults: vec![format!(
                    "usageLimit: no usage limit policy is called `{name}`"
                )],
            }),
        }
    }

    pub(super) fn faults(&self, faults: &mut Vec<String>) {
        let ceiling = |value: f64| value.is_finite() && value > 0.0;
        match *self {
            UsageLimit::Static { threshold } if !ceiling(threshold) => {
                faults.push("usageLimit.threshold: must be above 0".to_owned());
            }
            UsageLimit::PriorityHoldback {
                min_ceiling,
                max_ceiling,
                ..
            } if !ceiling(min_ceiling) || !ceiling(max_ceiling) || min_ceiling > max_ceiling => {
                faults.push("usageLimit: needs 0 < minCeiling <= maxCeiling".to_owned());
            }
            UsageLimit::Static { .. }
            | UsageLimit::PriorityHoldback { .. }
            | UsageLimit::SoftReflective => {}
        }
    }
}

/// Calls past the ceiling, by rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageLimitState {
    past: Vec<u64>,
}

impl UsageLimitState {
    /// The ceiling of the band of `rank` among `priorities` (highest first) at this saturation of the pool.
    ///
    /// For [`UsageLimit::SoftReflective`] each answer counts as a call.
    pub fn ceiling(
        &mut self,
        limit: &UsageLimit,
        saturation: f64,
        rank: usize,
        priorities: &[i32],
    ) -> f64 {
        let steps = priorities.len().saturating_sub(1).max(1) as f64;
        match *limit {
            UsageLimit::Static { threshold } => threshold,
            UsageLimit::PriorityHoldback {
                shape: Shape::Linear,
                domain,
                min_ceiling,
                max_ceiling,
            } => {
                let down = match domain {
                    CeilingDomain::Rank => rank as f64 / steps,
                    CeilingDomain::Value => by_value(rank, priorities),
                };
                max_ceiling - down * (max_ceiling - min_ceiling)
            }
            UsageLimit::SoftReflective => {
                let ceiling = 1.0 - rank as f64 * saturation / steps;
                if saturation < ceiling || saturation >= 1.0 || !self.passes(saturation, rank) {
                    ceiling
                } else {
                    1.0
                }
            }
        }
    }

    /// One of `round(s / (1 - s))` calls past the ceiling.
    fn passes(&mut self, saturation: f64, rank: usize) -> bool {
        let every = (saturation / (1.0 - saturation)).round().max(1.0) as u64;
        if self.past.len() <= rank {
            self.past.resize(rank + 1, 0);
        }
        let Some(calls) = self.past.get_mut(rank) else {
            return false;
        };
        *calls += 1;
        if *calls >= every {
            *calls = 0;
            return true;
        }
        false
    }
}

/// Where the priority lies between the highest (0) and the lowest (1).
fn by_value(rank: usize, priorities: &[i32]) -> f64 {
    let value = |p: Option<&i32>| p.copied().map_or(0.0, f64::from);
    let (top, low) = (value(priorities.first()), value(priorities.last()));
    if top <= low {
        return 0.0;
    }
    (top - value(priorities.get(rank))) / (top - low)
}

/// llm-d's rule without flow control: only negative priorities are refused, when the pool is full.
///
/// # Errors
/// [`Outcome::RejectedSaturated`](crate::Outcome::RejectedSaturated); an empty pool is the scheduler's business.
pub fn without_queues(priority: i32, saturation: Option<f64>) -> Result<(), crate::Outcome> {
    match saturation {
        Some(full) if priority < 0 && full >= 1.0 => Err(crate::Outcome::RejectedSaturated),
        _ => Ok(()),
    }
}
