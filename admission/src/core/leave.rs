//! A request leaves the queue: cancelled, expired, displaced or dispatched. One way out for all.

use super::{
    Admission, Ended, Lane, Queue, Waiting,
    requests::{place, set},
};
use crate::{
    Nanos, Outcome,
    fault::{Fault, broken},
    store::NIL,
};

impl Admission {
    /// The client of a waiting request went away. False if it does not wait: then it is running or over.
    pub fn cancel(&mut self, id: u64) -> bool {
        let Some(slot) = self.requests.find_waiting(id) else {
            return false;
        };
        if broken(Fault::CancelIsForgotten) {
            return true;
        }
        if broken(Fault::CancelLeaksBytes) {
            self.used.bytes += self.requests.waiting(slot).bytes;
        }
        self.remove(slot, Outcome::EvictedCancelled);
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
        let waiting = self.requests.iter_waiting();
        let mut waiting: Vec<_> = waiting.map(|(slot, item)| (item.seq, slot)).collect();
        waiting.sort_unstable();
        for (_, slot) in waiting {
            out.push((self.requests.waiting(slot).id, Outcome::EvictedShuttingDown));
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
            self.late.push((self.requests.waiting(slot).id, outcome));
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
        self.totals.count(outcome);
        self.take_out(slot, None);
        self.requests.leave(slot);
    }

    /// Out of every structure in which it waits; charged to its flow when it was served. It keeps its slot.
    pub(super) fn take_out(&mut self, slot: u32, charge: Option<u64>) {
        let item = *self.requests.waiting(slot);
        let (queue, usage) = (item.queue, item.usage());
        let refused = self.requests.is_refused(slot);
        let served = charge.is_some();
        let Queue { flow, lane, .. } = self.queues[queue];
        let Lane { band, class, .. } = self.lanes[lane];
        self.unlist(band, lane, slot);
        self.bands[band].used.sub(usage);
        self.used.sub(usage);
        self.flows[flow].used.sub(usage);
        if self.requests.is_timed(slot) {
            let places = &mut self.requests.places.timer;
            let pos = place(places, slot);
            self.timers.remove(pos, |slot, pos| set(places, slot, pos));
        }
        let was_first = self.leave_line(slot, &item);
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

    /// Out of its queue's line. True if it was next there.
    fn leave_line(&mut self, slot: u32, item: &Waiting) -> bool {
        let line = &mut self.queues[item.queue].items;
        let (order, pos) = match line.is_fifo() {
            true => (0, NIL),
            false => {
                let order = self.requests.terms(slot).order;
                (order, place(&self.requests.places.queue, slot))
            }
        };
        let places = &mut self.requests.places.queue;
        line.remove((order, item.seq), pos, |slot, pos| set(places, slot, pos))
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
