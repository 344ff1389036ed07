//! Counts and gauges.

use serde::Serialize;

use super::{Admission, Flow};
use crate::{FairnessId, Nanos, Outcome};

/// Counts over the life of the queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests that asked to wait.
    pub arrived: u64,
    /// How their waits ended, by [`Outcome::index`].
    pub ended: [u64; Outcome::ALL.len()],
    /// Dispatched requests that are over.
    pub completed: u64,
    /// Running requests chosen as victims.
    pub evicted: u64,
    /// Requests that joined an overflow flow because there were too many flows.
    pub flows_shared: u64,
    /// Requests that joined a lower band because there were too many bands.
    pub bands_shared: u64,
    /// Windows in which a band did not get its floor: always 0, or there is a bug.
    pub floor_violations: u64,
}

impl Totals {
    pub(super) fn count(&mut self, outcome: Outcome) {
        if let Some(count) = self.ended.get_mut(outcome.index()) {
            *count += 1;
        }
    }

    /// Waits that ended so.
    pub fn of(&self, outcome: Outcome) -> u64 {
        self.ended.get(outcome.index()).copied().unwrap_or(0)
    }
}

/// One band now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BandStats {
    /// Its priority.
    pub priority: i32,
    /// Waiting requests.
    pub requests: u64,
    /// Their body bytes.
    pub bytes: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Flows that wait or run, or were seen lately.
    pub flows: u64,
    /// Running requests.
    pub running: u64,
    /// Dispatches so far.
    pub dispatched: u64,
    /// Dispatches out of turn, against starvation.
    pub out_of_turn: u64,
    /// Longest wait that ended in a dispatch.
    pub longest_wait: Nanos,
    /// How long its oldest request has waited.
    pub oldest: Option<Nanos>,
}

/// One flow now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowStats<'a> {
    /// Its band.
    pub priority: i32,
    /// Its fairness id; `overflow` for the shared flow.
    pub fairness: &'a FairnessId,
    /// Waiting requests.
    pub requests: u64,
    /// Their body bytes.
    pub bytes: u64,
    /// Running requests.
    pub running: u64,
}

/// How fast requests go.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    last: Option<Nanos>,
    /// Mean time between dispatches, over about the last eight.
    mean: Nanos,
}

impl Pace {
    pub(super) fn dispatched(&mut self, now: Nanos) {
        if let Some(last) = self.last {
            let gap = now.saturating_sub(last);
            self.mean = self.mean - self.mean / 8 + gap / 8;
        }
        self.last = Some(now);
    }
}

impl Admission {
    /// Counts so far.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Every band, highest first. Listed bands are there with zeros, whether the pool has endpoints or not.
    pub fn bands(&self, now: Nanos) -> impl Iterator<Item = BandStats> {
        self.order.iter().map(move |band| {
            let band = &self.bands[*band];
            let oldest = self.oldest(band);
            let oldest = oldest.map(|slot| self.requests.waiting(slot).entered);
            BandStats {
                priority: band.priority,
                requests: band.used.requests,
                bytes: band.used.bytes,
                tokens: band.used.tokens,
                flows: band.flows.len() as u64,
                running: u64::from(band.running),
                dispatched: band.dispatched,
                out_of_turn: band.out_of_turn,
                longest_wait: band.longest_wait,
                oldest: oldest.map(|entered| now.saturating_sub(entered)),
            }
        })
    }

    /// Every flow that waits or runs.
    pub fn flows(&self) -> impl Iterator<Item = FlowStats<'_>> {
        let flows = self.flows.iter().map(|(_, flow)| flow);
        let busy = |flow: &&Flow| flow.used.requests > 0 || flow.running > 0;
        flows.filter(busy).map(|flow| FlowStats {
            priority: self.bands[flow.band].priority,
            fairness: &flow.id,
            requests: flow.used.requests,
            bytes: flow.used.bytes,
            running: u64::from(flow.running),
        })
    }

    /// Waiting requests, bytes and tokens over all bands.
    pub fn used(&self) -> (u64, u64, u64) {
        (self.used.requests, self.used.bytes, self.used.tokens)
    }

    /// Victims whose end is awaited.
    pub fn pending_evictions(&self) -> usize {
        self.evictor.pending()
    }

    /// How long a newcomer of this priority would wait at the present pace: what waits at or above it, one after
    /// another. `None` before two dispatches were seen.
    pub fn wait_estimate(&self, priority: i32) -> Option<Nanos> {
        if self.pace.mean == 0 {
            return None;
        }
        let ahead = self.order.iter().map(|band| &self.bands[*band]);
        let ahead = ahead.filter(|band| band.priority >= priority);
        let requests: u64 = ahead.map(|band| band.used.requests).sum();
        Some((requests + 1).saturating_mul(self.pace.mean))
    }
}
