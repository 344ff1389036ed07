//! A request leaves the queue: cancelled, expired, displaced or dispatched. One way out for all.

use std::collections::hash_map;

use super::{
    Admission, Ended, Entry, Lane,
    state::{place, set},
};
use crate::{
    Nanos, Outcome,
    fault::{Fault, broken},
    store::NIL,
};

impl Admission {
    /// The client of a waiting request went away. False if it does not wait: then it is running or over.
    pub fn cancel(&mut self, id: u64) -> bool {
        let hash_map::Entry::Occupied(entry) = self.entries.entry(id) else {
            return false;
        };
        let Entry::Waiting(slot) = *entry.get() else {
            return false;
        };
        if broken(Fault::CancelIsForgotten) {
            return true;
        }
        entry.remove();
        if broken(Fault::CancelLeaksBytes) {
            self.used.bytes += self.items[slot].bytes;
        }
        self.totals.count(Outcome::EvictedCancelled);
        self.take_out(slot, None);
        true
    }

    /// Ends every wait whose time is over, earliest first.
    pub fn expire(&mut self, now: Nanos, out: &mut Vec<Ended>) {
        self.collect_expired(now);
        out.append(&mut self.late);
    }

    /// Refuses newcomers from now on. With `drain` those that wait still get their turn; otherwise they are refused,
    /// in the order in which they entered.
    pub fn close(&mut self, drain: bool, out: &mut Vec<Ended>) {
        self.closing = true;
        if drain {
            return;
        }
        let mut waiting: Vec<_> = self
            .items
            .iter()
            .map(|(slot, item)| (item.seq, slot))
            .collect();
        waiting.sort_unstable();
        for (_, slot) in waiting {
            out.push((self.items[slot].id, Outcome::EvictedShuttingDown));
            self.remove(slot, Outcome::EvictedShuttingDown);
        }
    }

    pub(super) fn collect_expired(&mut self, now: Nanos) {
        let margin = if broken(Fault::ExpiresLate) {
            crate::MILLISECOND
        } else {
            0
        };
        while let Some(((end, _), slot)) = self.first_end() {
            if end.saturating_add(margin) > now {
                return;
            }
            let outcome = self.expiry_outcome();
            self.late.push((self.items[slot].id, outcome));
            self.remove(slot, outcome);
        }
    }

    /// How a wait that is over ends now.
    pub(super) fn expiry_outcome(&self) -> Outcome {
        match self.regime.is_empty() && !broken(Fault::EmptyPoolSaysBusy) {
            true => Outcome::EvictedNoEndpoints,
            false => Outcome::EvictedTtl,
        }
    }

    /// Out of the queue for good.
    pub(super) fn remove(&mut self, slot: u32, outcome: Outcome) {
        let id = self.items[slot].id;
        self.totals.count(outcome);
        self.entries.remove(&id);
        self.take_out(slot, None);
    }

    /// Out of every structure that knows it; charged to its flow when it was served.
    pub(super) fn take_out(&mut self, slot: u32, charge: Option<u64>) {
        let item = &self.items[slot];
        let (queue, usage, refused) = (item.queue, item.usage(), item.refused);
        let key = (item.order, item.seq);
        let timed = item.own_end != Nanos::MAX;
        let served = charge.is_some();
        let (flow, lane) = (self.queues[queue].flow, self.queues[queue].lane);
        let Lane { band, class, .. } = self.lanes[lane];
        self.lanes[lane].items.remove(&mut self.items, slot);
        let band_ref = &mut self.bands[band];
        band_ref.items.remove(&mut self.items, slot);
        band_ref.used.sub(usage);
        self.used.sub(usage);
        self.flows[flow].used.sub(usage);
        let Admission {
            places,
            timers,
            queues,
            ..
        } = self;
        if timed {
            let pos = place(&places.timer, slot);
            timers.remove(pos, |slot, pos| set(&mut places.timer, slot, pos));
        }
        let line = &mut queues[queue].items;
        let pos = match line.is_fifo() {
            true => NIL,
            false => place(&places.queue, slot),
        };
        let note = |slot, pos| set(&mut places.queue, slot, pos);
        let was_first = line.remove(key, pos, note);
        self.items.remove(slot);
        if let Some(charge) = charge {
            let state = &mut self.flows[flow];
            let weight = state.weight;
            self.bands[band]
                .share
                .serve(&mut state.share, weight, charge);
        }
        self.settle_queue(queue, flow, lane, was_first, served);
        if refused && !served {
            // What the gate refused is gone; the next of its class may fit.
            self.reopen(class);
        }
    }

    /// The queue after one of its items left: gone when empty, else under a new key.
    fn settle_queue(&mut self, queue: u32, flow: u32, lane: u32, was_first: bool, served: bool) {
        let emptied = self.queues[queue].items.is_empty();
        if emptied {
            self.flows[flow].queues.retain(|other| *other != queue);
            let pos = self.queues[queue].lane_pos;
            let Admission { lanes, queues, .. } = self;
            let heap = &mut lanes[lane].queues;
            heap.remove(pos, |queue, pos| queues[queue].lane_pos = pos);
            let lane_emptied = heap.is_empty();
            self.drop_queue(queue);
            if lane_emptied {
                self.lane_emptied(lane);
            }
        } else if was_first && !served {
            self.head_changed(queue);
        }
        if self.flows[flow].queues.is_empty() {
            self.deactivate(flow);
        } else if served {
            self.rekey_flow(flow);
        }
    }

    fn deactivate(&mut self, flow: u32) {
        let state = &self.flows[flow];
        self.bands[state.band].share.deactivate(&state.share);
        if state.running == 0 {
            self.make_idle(flow);
        }
    }

    pub(super) fn make_idle(&mut self, flow: u32) {
        let state = &mut self.flows[flow];
        if !state.shared && !std::mem::replace(&mut state.is_idle, true) {
            self.idle.push_back(&mut self.flows, flow);
        }
    }

    /// The flow's keys after its fairness state changed.
    pub(super) fn rekey_flow(&mut self, flow: u32) {
        for queue in self.flows[flow].queues.clone() {
            self.rekey(queue);
        }
    }
}
