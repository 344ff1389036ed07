//! Adds up how requests ended.

use std::{collections::BTreeMap, time::Duration};

use super::{
    report::{Failed, Lag, LoadReport, Prefix, Rates, Requests, Shed, Tokens},
    request::{End, Story},
    spec::{Arrivals, LoadSpec},
};
use crate::measure::{Times, number, round};

/// Reasons that are told apart; servers can make up any number of them.
const REASONS: usize = 32;

/// Sums of a run under way.
pub(super) struct Totals {
    pub(super) requests: Requests,
    ttft: Times,
    tpot: Times,
    e2e: Times,
    shed: Times,
    lag: Times,
    late: u64,
    allowed: Duration,
    window: Option<(Duration, Duration)>,
    /// When the last request left, from the start.
    last_sent: Duration,
    shed_by: BTreeMap<String, u64>,
    failed_by: BTreeMap<String, u64>,
    tokens: Tokens,
    cache_known: bool,
}

impl Totals {
    pub(super) fn new(spec: &LoadSpec) -> Totals {
        Totals {
            requests: Requests::default(),
            ttft: Times::new(),
            tpot: Times::new(),
            e2e: Times::new(),
            shed: Times::new(),
            lag: Times::new(),
            late: 0,
            allowed: spec.allowed_lag(),
            window: spec.window,
            last_sent: Duration::ZERO,
            shed_by: BTreeMap::new(),
            failed_by: BTreeMap::new(),
            tokens: Tokens::default(),
            cache_known: false,
        }
    }

    /// A request whose task ended without telling.
    pub(super) fn lost(&mut self) {
        self.fail("lost");
    }

    fn fail(&mut self, cause: &str) {
        self.requests.failed += 1;
        count(&mut self.failed_by, cause);
    }

    /// A request that has ended.
    pub(super) fn add(&mut self, story: Story) {
        self.lag.add(story.lag);
        self.late += u64::from(story.lag > self.allowed);
        self.last_sent = self.last_sent.max(story.sent);
        match story.end {
            End::Ok { stream, took } => {
                self.requests.ok += 1;
                self.e2e.add(took);
                if let Some(stream) = stream {
                    self.ttft.add(stream.first);
                    let rest = stream.last.saturating_sub(stream.first);
                    let further = story.usage.completion_tokens.unwrap_or(0).saturating_sub(1);
                    if let Ok(further @ 1..) = u32::try_from(further) {
                        self.tpot.add(rest / further);
                    }
                }
            }
            End::Shed { reason, took } => {
                self.requests.shed += 1;
                self.shed.add(took);
                count(&mut self.shed_by, &reason);
            }
            End::Failed { cause } => self.fail(&cause),
            End::Cancelled => self.requests.cancelled += 1,
        }
        let counts = |(from, to)| (from..to).contains(&story.ended);
        if !self.window.is_none_or(counts) {
            return;
        }
        let usage = story.usage;
        self.tokens.prompt += usage.prompt_tokens.unwrap_or(0);
        self.tokens.prompt_answers += u64::from(usage.prompt_tokens.is_some());
        self.tokens.completion += usage.completion_tokens.unwrap_or(0);
        if let Some(cached) = usage.cached_tokens {
            self.cache_known = true;
            self.tokens.prompt_with_cache += usage.prompt_tokens.unwrap_or(0);
            self.tokens.cached += cached;
        }
    }

    /// Median time to first text so far, in milliseconds.
    pub(super) fn ttft_p50_ms(&self) -> f64 {
        self.ttft.ms().p50
    }

    /// The report of a run that offered `requests.offered` and took `elapsed` in all.
    pub(super) fn report(self, spec: &LoadSpec, elapsed: Duration) -> LoadReport {
        let requests = self.requests;
        let offered = number(requests.offered.max(1));
        let seconds = spec.duration.as_secs_f64().max(1e-9);
        let ms = |time: Duration| round(time.as_secs_f64() * 1e3, 3);
        let lag = self.lag.at(0.99);
        let ratio = number(self.tokens.cached) / number(self.tokens.prompt_with_cache.max(1));
        LoadReport {
            mode: match spec.arrivals {
                Arrivals::Poisson | Arrivals::Even => "open loop",
                Arrivals::Closed => "closed loop",
            },
            requests,
            ttft_ms: self.ttft.ms(),
            tpot_ms: self.tpot.ms(),
            tpot: self.tpot,
            e2e_ms: self.e2e.ms(),
            prefix: Prefix {
                hit_ratio: self.cache_known.then(|| round(ratio, 4)),
            },
            tokens: self.tokens,
            rates: Rates {
                offered_rps: round(number(requests.offered) / seconds, 2),
                sent_rps: round(
                    number(requests.offered) / seconds.max(self.last_sent.as_secs_f64()),
                    2,
                ),
                completed_rps: round(number(requests.ok) / seconds.max(elapsed.as_secs_f64()), 2),
            },
            shed: Shed {
                share: round(number(requests.shed) / offered, 4),
                by_reason: self.shed_by,
                latency_ms: self.shed.ms(),
            },
            failed: Failed {
                share: round(number(requests.failed) / offered, 4),
                by_cause: self.failed_by,
            },
            lag_ms: Lag {
                p50: ms(self.lag.at(0.5)),
                p99: ms(lag),
                max: ms(self.lag.max()),
                allowed: ms(self.allowed),
                late: self.late,
            },
            duration_s: round(elapsed.as_secs_f64(), 3),
            valid: lag <= self.allowed,
        }
    }
}

/// Counts under a name; names beyond the bound share one.
fn count(by: &mut BTreeMap<String, u64>, name: &str) {
    let known = by.contains_key(name) || by.len() < REASONS;
    let name = if known { name } else { "other" };
    *by.entry(name.to_owned()).or_default() += 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_reasons_are_bounded() {
        let mut by = BTreeMap::new();
        for index in 0..1000 {
            count(&mut by, &format!("reason {index}"));
        }
        assert_eq!(by.len(), REASONS + 1);
        assert_eq!(by["other"], 1000 - REASONS as u64);
        count(&mut by, "reason 3");
        assert_eq!(by["reason 3"], 2);
    }
}
