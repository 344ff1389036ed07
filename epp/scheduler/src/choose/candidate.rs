//! An endpoint under consideration, and what every plugin may look at.

use crate::{Endpoint, Nanos, PrefixView, RequestView, SchedulerPolicy, state::Sessions};

/// An eligible endpoint on its way through filters, scorers and the picker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    pub(crate) endpoint: &'a Endpoint,
    /// Half-open: may be the target of this one request, never a fallback.
    pub(crate) probe: bool,
    /// Cannot start this request now: a fallback at most.
    pub(crate) full: bool,
    /// Ever observed; always true in a profile that reads no telemetry.
    pub(crate) known: bool,
    /// Tokens of the prompt that are cached there; 0 unless some plugin of the profile asks.
    pub(crate) cached: u64,
    /// The slow start's factor.
    pub(crate) ramp: f64,
    /// Its weight over the largest among the candidates; 1 among stand-bys.
    pub(crate) share: f64,
    /// `ramp x sum of weight x clamp01(score)`.
    pub(crate) total: f64,
    /// Already in the list of targets.
    pub(crate) taken: bool,
}

impl<'a> Candidate<'a> {
    pub(crate) fn new(endpoint: &'a Endpoint, probe: bool, context: &Context<'_>) -> Candidate<'a> {
        Candidate {
            endpoint,
            probe,
            full: false,
            known: true,
            cached: 0,
            ramp: endpoint.ramp(context.now, &context.policy.slow_start),
            share: 1.0,
            total: 0.0,
            taken: false,
        }
    }

    /// Requests in flight, as if every endpoint had the largest weight: half the weight counts twice.
    pub(crate) fn requests(&self) -> f64 {
        f64::from(self.endpoint.load.requests) / self.share
    }

    /// Tokens in flight plus `more`, scaled in the same way.
    pub(crate) fn tokens(&self, more: u64) -> f64 {
        let tokens = self.endpoint.load.tokens.saturating_add(more) as f64;
        tokens / self.share
    }

    /// Its part in a random draw before scores: weight and slow start.
    pub(crate) fn odds(&self) -> f64 {
        self.share * self.ramp
    }
}

/// What a plugin may look at.
pub(crate) struct Context<'a> {
    pub(crate) request: &'a RequestView<'a>,
    pub(crate) now: Nanos,
    pub(crate) policy: &'a SchedulerPolicy,
    pub(crate) prefix: &'a dyn PrefixView,
    pub(crate) sessions: &'a Sessions,
}

impl Context<'_> {
    pub(crate) fn waiting(&self, endpoint: &Endpoint) -> Option<f64> {
        endpoint.waiting(self.now, self.policy.stale_after)
    }

    pub(crate) fn running(&self, endpoint: &Endpoint) -> Option<f64> {
        endpoint.running(self.now, self.policy.stale_after)
    }

    pub(crate) fn kv_usage(&self, endpoint: &Endpoint) -> Option<f64> {
        endpoint.kv_usage(self.now, self.policy.stale_after)
    }
}

/// What a plugin reads besides own counts and labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reads {
    pub(crate) telemetry: bool,
    pub(crate) prefix: bool,
}

impl Reads {
    pub(crate) const NOTHING: Reads = Reads {
        telemetry: false,
        prefix: false,
    };
    pub(crate) const TELEMETRY: Reads = Reads {
        telemetry: true,
        prefix: false,
    };
    pub(crate) const PREFIX: Reads = Reads {
        telemetry: false,
        prefix: true,
    };

    pub(crate) fn and(self, other: Reads) -> Reads {
        Reads {
            telemetry: self.telemetry || other.telemetry,
            prefix: self.prefix || other.prefix,
        }
    }
}
