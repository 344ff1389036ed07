//! A request enters, or is refused: bands, flows, bounds and displacement.

use smallvec::SmallVec;

use super::{Admission, Ended, Queue, Terms, Usage, Waiting, requests::set};
use crate::{
    Fairness, Item, Nanos, Ordering, Outcome,
    fault::{Fault, broken},
    store::{Line, NIL},
};

/// Waiters that hold nothing of what there is too much of and are passed by, at most, for one newcomer.
pub(crate) const LOOK_AT: usize = 256;
/// Empty queues whose room is kept.
const KEPT_QUEUES: usize = 1024;

impl Admission {
    /// A request asks to wait. Those that had to give it their place are added to `displaced`.
    ///
    /// O(log n) in waiting requests; under VTC a flow's first one is linear in the classes that wait.
    ///
    /// # Errors
    /// Why it may not wait. Nothing of it is kept then, and nobody was displaced.
    pub fn enqueue(
        &mut self,
        now: Nanos,
        item: Item,
        displaced: &mut Vec<Ended>,
    ) -> Result<(), Outcome> {
        self.totals.arrived += 1;
        let entered = self.try_enqueue(now, item, displaced);
        if let Err(outcome) = entered {
            self.totals.count(outcome);
        }
        entered
    }

    fn try_enqueue(
        &mut self,
        now: Nanos,
        item: Item,
        displaced: &mut Vec<Ended>,
    ) -> Result<(), Outcome> {
        if self.closing {
            return Err(Outcome::RejectedShuttingDown);
        }
        if self.requests.knows(item.id) {
            return Err(Outcome::Internal);
        }
        if self.regime.is_empty() && !self.config.no_endpoints.hold {
            return Err(Outcome::RejectedNoEndpoints);
        }
        let own_end = own_end(now, &item);
        if own_end <= now {
            return Err(self.expiry_outcome());
        }
        let usage = usage(&item);
        let full = match self.regime.is_empty() {
            true => Outcome::RejectedNoEndpoints,
            false => Outcome::RejectedSaturated,
        };
        let band = self.band(item.priority);
        let band_ref = &self.bands[band];
        let mut in_band = band_ref.used;
        in_band.add(usage);
        if !in_band.within(&band_ref.config.limits) && !broken(Fault::BandLimitIgnored) {
            return Err(full);
        }
        if !self.make_room(self.bands[band].priority, usage, displaced) {
            return Err(full);
        }
        self.seq += 1;
        let stamp = Stamp {
            seq: self.seq,
            entered: now,
            own_end,
        };
        self.admit(band, item, stamp);
        Ok(())
    }

    /// True if the request fits the bounds over all bands, after waiters of lower bands gave way.
    fn make_room(&mut self, priority: i32, usage: Usage, displaced: &mut Vec<Ended>) -> bool {
        let limits = match self.regime.is_empty() {
            true => self.config.no_endpoints.limits,
            false => self.config.limits,
        };
        let mut total = self.used;
        total.add(usage);
        if self.beside.all(total).within(&limits) || broken(Fault::GlobalLimitIgnored) {
            return true;
        }
        let victims = self.victims(priority, total, &limits);
        let outcome = match self.regime.is_empty() {
            true => Outcome::EvictedNoEndpoints,
            false => Outcome::EvictedPriority,
        };
        for slot in &victims {
            displaced.push((self.requests.waiting(*slot).id, outcome));
            self.remove(*slot, outcome);
        }
        !victims.is_empty()
    }

    /// The waiters whose leaving brings `total` within the limits: lowest band first, newest first, without those who hold
    /// nothing of what there is too much of. Empty when they would be too many or not enough.
    fn victims(
        &self,
        priority: i32,
        mut total: Usage,
        limits: &crate::Limits,
    ) -> SmallVec<[u32; 8]> {
        let mut victims = SmallVec::new();
        let mut looked = 0;
        for band in self.order.iter().rev() {
            let band = &self.bands[*band];
            if band.priority > priority
                || (band.priority == priority && !broken(Fault::DisplacesEquals))
            {
                break;
            }
            let oldest = broken(Fault::DisplacesOldest).then(|| self.oldest(band));
            let newest_first = self.newest_first(band);
            for slot in oldest.flatten().into_iter().chain(newest_first) {
                let usage = self.requests.waiting(slot).usage();
                if !self.beside.all(total).eased(usage, limits) && !broken(Fault::DisplacesInVain) {
                    looked += 1;
                    if looked > LOOK_AT {
                        return SmallVec::new();
                    }
                    continue;
                }
                if victims.len() >= self.config.max_displaced as usize {
                    return SmallVec::new();
                }
                total.sub(usage);
                victims.push(slot);
                if self.beside.all(total).within(limits) {
                    return victims;
                }
            }
        }
        SmallVec::new()
    }

    /// Into the queues, whatever the bounds.
    pub(super) fn admit(&mut self, band: u32, item: Item, stamp: Stamp) {
        let Stamp {
            seq,
            entered,
            own_end,
        } = stamp;
        let usage = usage(&item);
        let end = own_end.min(self.wait_end(entered, &self.bands[band].config));
        let charge = item.cost.weighted(self.config.output_weight);
        let order = order(self.bands[band].config.ordering, &item, end, charge, seq);
        let aim = aim(&item).unwrap_or(Nanos::MAX);
        let flow = self.flow(band, item.fairness, item.weight);
        let lane = self.lane(band, item.class);
        let waiting = Waiting {
            id: item.id,
            seq,
            entered,
            cost: item.cost,
            bytes: usage.bytes,
            queue: NIL,
            priority: item.priority,
        };
        let terms = Terms {
            own_end,
            order,
            aim,
        };
        let slot = self.requests.enter(waiting, terms);
        self.used.add(usage);
        self.list(band, lane, slot);
        self.bands[band].used.add(usage);
        self.flows[flow].used.add(usage);
        self.start_timer(slot, own_end);
        self.put(flow, lane, slot, (order, seq));
    }

    /// Into the flow's queue of that lane.
    fn put(&mut self, flow: u32, lane: u32, slot: u32, order: (u64, u64)) {
        let active = !self.flows[flow].queues.is_empty();
        if !active {
            self.activate(flow);
        }
        let in_lane = |&&queue: &&u32| self.queues[queue].lane == lane;
        let found = self.flows[flow].queues.iter().find(in_lane).copied();
        let queue = found.unwrap_or_else(|| {
            let items = self.spare_line(flow);
            let queue = self.queues.insert(Queue {
                flow,
                lane,
                items,
                lane_pos: NIL,
            });
            self.flows[flow].queues.push(queue);
            queue
        });
        self.requests.waiting_mut(slot).queue = queue;
        let places = &mut self.requests.places.queue;
        let line = &mut self.queues[queue].items;
        line.push(order, slot, |slot, pos| set(places, slot, pos));
        let first = line.peek().map(|(key, _)| key);
        if found.is_none() {
            self.join_lane(queue, order);
        } else if first == Some(order) {
            self.head_changed(queue);
        }
    }

    fn activate(&mut self, flow: u32) {
        let band = self.flows[flow].band;
        let least = self.least_counter(band);
        let state = &mut self.flows[flow];
        if std::mem::take(&mut state.is_idle) {
            self.idle.remove(&mut self.flows, flow);
        }
        let state = &mut self.flows[flow];
        let weight = state.weight;
        self.bands[band]
            .share
            .activate(&mut state.share, weight, least);
    }

    /// The least virtual counter among the band's waiting flows.
    fn least_counter(&self, band: u32) -> Option<i128> {
        if !matches!(self.bands[band].share.policy, Fairness::Vtc { .. }) {
            return None;
        }
        let lanes = self.bands[band].lanes.values();
        lanes
            .filter_map(|lane| self.lanes[*lane].queues.peek())
            .map(|((counter, _), _)| counter)
            .min()
    }

    fn join_lane(&mut self, queue: u32, head: (u64, u64)) {
        let Queue { flow, lane, .. } = self.queues[queue];
        let flow = &self.flows[flow];
        let key = self.bands[flow.band]
            .share
            .key(&flow.share, flow.weight, head);
        let Admission { queues, lanes, .. } = self;
        let heap = &mut lanes[lane].queues;
        let filled = heap.is_empty();
        heap.push(key, queue, |queue, pos| queues[queue].lane_pos = pos);
        if filled {
            self.lane_filled(lane);
        }
    }

    /// A queue has another first item.
    pub(super) fn head_changed(&mut self, queue: u32) {
        let band = self.flows[self.queues[queue].flow].band;
        if self.bands[band].share.policy == Fairness::GlobalStrict {
            self.rekey(queue);
        }
    }

    /// The queue's key in its lane follows its flow and its first item.
    pub(super) fn rekey(&mut self, queue: u32) {
        let state = &self.queues[queue];
        let Some((head, _)) = state.items.peek() else {
            return;
        };
        let (pos, lane, flow) = (state.lane_pos, state.lane, &self.flows[state.flow]);
        let key = self.bands[flow.band]
            .share
            .key(&flow.share, flow.weight, head);
        let Admission { queues, lanes, .. } = self;
        let heap = &mut lanes[lane].queues;
        heap.update(pos, key, |queue, pos| queues[queue].lane_pos = pos);
    }

    /// Keeps an emptied queue's room.
    pub(super) fn drop_queue(&mut self, queue: u32) {
        let Some(state) = self.queues.remove(queue) else {
            return;
        };
        let [sorted, plain] = &mut self.spare;
        let spare = match state.items.is_fifo() {
            true => plain,
            false => sorted,
        };
        if spare.len() < KEPT_QUEUES {
            spare.push(state.items.cleared());
        }
    }

    /// An empty line for a queue of this flow.
    fn spare_line(&mut self, flow: u32) -> Line {
        let band = &self.bands[self.flows[flow].band];
        let fifo = band.config.ordering == Ordering::Fcfs && !broken(Fault::Lifo);
        let [sorted, plain] = &mut self.spare;
        let spare = match fifo {
            true => plain,
            false => sorted,
        };
        spare.pop().unwrap_or_else(|| Line::new(fifo))
    }
}

/// When and as what a request entered the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    pub(super) seq: u64,
    pub(super) entered: Nanos,
    /// The end of its wait by its own header and its client's deadline.
    pub(super) own_end: Nanos,
}

/// What a request adds to the bounds.
pub(super) fn usage(item: &Item) -> Usage {
    Usage {
        requests: 1,
        bytes: item.bytes.min(Usage::MAX_BYTES),
        tokens: item.cost.tokens(),
    }
}

/// The end of a wait by the request's own words: its header and its client's deadline.
fn own_end(now: Nanos, item: &Item) -> Nanos {
    let by_header = item.ttl.map_or(Nanos::MAX, |ttl| now.saturating_add(ttl));
    match item.deadline {
        Some(deadline) if !broken(Fault::DeadlineIgnored) => by_header.min(deadline),
        _ => by_header,
    }
}

/// When its first token is wanted.
fn aim(item: &Item) -> Option<Nanos> {
    let aim = item.slo_ttft?;
    Some(item.arrived.saturating_add(aim))
}

/// The ordering policy's key: least first, ties by entry.
fn order(ordering: Ordering, item: &Item, end: Nanos, charge: u64, seq: u64) -> u64 {
    match ordering {
        Ordering::Fcfs if broken(Fault::Lifo) => u64::MAX - seq,
        Ordering::Fcfs => 0,
        Ordering::Edf if broken(Fault::EdfIgnoresDeadlines) => 0,
        Ordering::Edf => end,
        Ordering::SloDeadline => match aim(item) {
            Some(aim) => aim,
            None if broken(Fault::NoAimGoesFirst) => 0,
            None => Nanos::MAX,
        },
        Ordering::Sjf if broken(Fault::LongestFirst) => u64::MAX - charge,
        Ordering::Sjf => charge,
    }
}
