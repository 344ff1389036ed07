//! The policies by name: ours and llm-d's.

use serde::{Deserialize, Serialize};

use super::defaults;
use crate::Nanos;

/// A name that no policy of its kind has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {kind} policy is called `{name}`; there are {known}")]
pub struct UnknownPolicy {
    kind: &'static str,
    name: String,
    known: &'static str,
}

/// Which flow of a band goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Fairness {
    /// No sharing: the ordering policy alone decides, over all flows.
    GlobalStrict,
    /// One request per flow in turn. Weights do not count.
    RoundRobin,
    /// Deficit round robin in tokens: each round gives a flow `quantum x weight`; it goes while its deficit is
    /// above zero, and may end below (surplus round robin), so no cost need be known beforehand.
    Drr {
        /// Tokens per round of a flow of weight 1.
        quantum: u64,
    },
    /// Virtual token counter (OSDI'24): the flow with the least `tokens / weight` goes; a returning flow is lifted
    /// to the least counter that waits.
    Vtc {
        /// A flow that could not be served for lack of its endpoints catches up by so many tokens at most.
        max_lag: u64,
    },
}

impl Fairness {
    /// By our or llm-d's name, with default parameters.
    ///
    /// # Errors
    /// When no fairness policy is called so.
    pub fn from_name(name: &str) -> Result<Fairness, UnknownPolicy> {
        Ok(match name {
            "global-strict" | "global-strict-fairness-policy" => Fairness::GlobalStrict,
            "round-robin" | "round-robin-fairness-policy" => Fairness::RoundRobin,
            "drr" | "drr-fairness-policy" => Fairness::Drr {
                quantum: defaults::DRR_QUANTUM,
            },
            "vtc" | "vtc-fairness-policy" => Fairness::Vtc {
                max_lag: defaults::VTC_MAX_LAG,
            },
            _ => {
                return Err(UnknownPolicy {
                    kind: "fairness",
                    name: name.to_owned(),
                    known: "global-strict, round-robin, drr, vtc, each also with `-fairness-policy`",
                });
            }
        })
    }

    /// Plugin name.
    pub const fn name(self) -> &'static str {
        match self {
            Fairness::GlobalStrict => "global-strict-fairness-policy",
            Fairness::RoundRobin => "round-robin-fairness-policy",
            Fairness::Drr { .. } => "drr-fairness-policy",
            Fairness::Vtc { .. } => "vtc-fairness-policy",
        }
    }
}

/// Which request of a flow goes next. Ties go by the order of entering the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ordering {
    /// First come, first served.
    #[default]
    Fcfs,
    /// Earliest end of wait first: entry + longest wait, or the client's deadline.
    Edf,
    /// Earliest `arrived + wanted TTFT` first; without an aim, last.
    SloDeadline,
    /// Cheapest first.
    Sjf,
}

impl Ordering {
    /// By our or llm-d's name.
    ///
    /// # Errors
    /// When no ordering policy is called so.
    pub fn from_name(name: &str) -> Result<Ordering, UnknownPolicy> {
        Ok(match name {
            "fcfs" | "fcfs-ordering-policy" => Ordering::Fcfs,
            "edf" | "edf-ordering-policy" => Ordering::Edf,
            "slo-deadline" | "slo-deadline-ordering-policy" => Ordering::SloDeadline,
            "sjf" | "sjf-ordering-policy" => Ordering::Sjf,
            _ => {
                return Err(UnknownPolicy {
                    kind: "ordering",
                    name: name.to_owned(),
                    known: "fcfs, edf, slo-deadline, sjf, each also with `-ordering-policy`",
                });
            }
        })
    }

    /// Plugin name.
    pub const fn name(self) -> &'static str {
        match self {
            Ordering::Fcfs => "fcfs-ordering-policy",
            Ordering::Edf => "edf-ordering-policy",
            Ordering::SloDeadline => "slo-deadline-ordering-policy",
            Ordering::Sjf => "sjf-ordering-policy",
        }
    }
}

/// What keeps low bands alive under steady load of higher ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Starvation {
    /// Nothing: a low band may starve until its requests' waits end.
    Strict,
    /// A band whose oldest request has waited `after` competes with the top band, for at most `share` of the tokens.
    Aging {
        /// The wait that makes a request old.
        after: Nanos,
        /// Share of all dispatched tokens that old requests may take out of turn.
        share: f64,
    },
    /// Each band that waits keeps `share` of the dispatched tokens, whatever waits above.
    Floor {
        /// Share of each band below the top that sets none of its own.
        share: f64,
        /// The share is verified at run time over windows of this length.
        window: Nanos,
    },
}

impl Starvation {
    /// By name, with default parameters.
    ///
    /// # Errors
    /// When no starvation policy is called so.
    pub fn from_name(name: &str) -> Result<Starvation, UnknownPolicy> {
        Ok(match name {
            "strict" => Starvation::Strict,
            "aging" => Starvation::Aging {
                after: defaults::AGING_AFTER,
                share: defaults::AGING_SHARE,
            },
            "floor" => Starvation::Floor {
                share: defaults::FLOOR_SHARE,
                window: defaults::FLOOR_WINDOW,
            },
            _ => {
                return Err(UnknownPolicy {
                    kind: "starvation",
                    name: name.to_owned(),
                    known: "strict, aging, floor",
                });
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_names_of_each_policy() {
        for (short, long) in [
            ("global-strict", "global-strict-fairness-policy"),
            ("round-robin", "round-robin-fairness-policy"),
            ("drr", "drr-fairness-policy"),
            ("vtc", "vtc-fairness-policy"),
        ] {
            let policy = Fairness::from_name(short).unwrap();
            assert_eq!(Fairness::from_name(long), Ok(policy));
            assert_eq!(policy.name(), long);
        }
        for (short, long) in [
            ("fcfs", "fcfs-ordering-policy"),
            ("edf", "edf-ordering-policy"),
            ("slo-deadline", "slo-deadline-ordering-policy"),
            ("sjf", "sjf-ordering-policy"),
        ] {
            let policy = Ordering::from_name(short).unwrap();
            assert_eq!(Ordering::from_name(long), Ok(policy));
            assert_eq!(policy.name(), long);
        }
        assert_eq!(Starvation::from_name("strict"), Ok(Starvation::Strict));
        assert!(matches!(
            Starvation::from_name("aging"),
            Ok(Starvation::Aging { .. })
        ));
        assert!(matches!(
            Starvation::from_name("floor"),
            Ok(Starvation::Floor { .. })
        ));
    }

    #[test]
    fn unknown_names_say_what_there_is() {
        let error = Fairness::from_name("program-aware-fairness").unwrap_err();
        assert_eq!(
            error.to_string(),
            "no fairness policy is called `program-aware-fairness`; there are global-strict, round-robin, drr, vtc, \
             each also with `-fairness-policy`"
        );
        assert!(Ordering::from_name("lifo").is_err());
        assert!(Starvation::from_name("").is_err());
    }
}
