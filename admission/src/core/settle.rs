//! After the dispatch: actual costs, and eviction of what runs.

use super::{Admission, Turn};
use crate::{Cost, Nanos, evict::Pressure};

impl Admission {
    /// A dispatched request is over, whatever its end, and cost this much: the difference to what its flow was
    /// charged is settled. False if it is not running.
    pub fn complete(&mut self, now: Nanos, id: u64, actual: Cost) -> bool {
        let Some(running) = self.requests.end(id) else {
            return false;
        };
        self.totals.completed += 1;
        // Nothing used costs nothing; anything else costs at least one token.
        let actual = match actual {
            Cost {
                uncached_input: 0,
                output: 0,
            } => 0,
            used => used.weighted(self.config.output_weight),
        };
        let flow = &mut self.flows[running.flow];
        flow.running -= 1;
        let band = &mut self.bands[flow.band];
        band.running -= 1;
        let unused = running.charge.saturating_sub(actual);
        match running.turn {
            Turn::InOrder => {}
            Turn::Aged => self.credits.give_back(unused),
            Turn::Floor => band.floor.give_back(unused),
        }
        let weight = flow.weight;
        band.share
            .correct(&mut flow.share, weight, running.charge, actual);
        if flow.queues.is_empty() {
            if flow.running == 0 {
                self.make_idle(running.flow);
            }
        } else {
            self.rekey_flow(running.flow);
        }
        let signed = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
        self.account(now, running.flow, signed(actual) - signed(running.charge));
        self.evictor
            .ended(now, running.priority, running.dispatch, id);
        true
    }

    /// Running requests to end for the sake of the blocked band, lowest band first, newest dispatch first. Empty
    /// while earlier victims have not ended. Their ends come through [`Admission::complete`] like any other.
    ///
    /// `helps` says whether ending this request makes room for what is blocked.
    pub fn evict(
        &mut self,
        now: Nanos,
        pressure: &Pressure,
        helps: &mut dyn FnMut(u64) -> bool,
    ) -> Vec<u64> {
        let victims = self.evictor.decide(now, pressure, helps);
        self.totals.evicted += victims.len() as u64;
        victims
    }
}
