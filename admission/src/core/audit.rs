//! The invariants that hold between any two calls, checked from scratch. For tests and debugging: O(n log n).

use std::collections::BTreeMap;

use super::{Admission, Usage, requests::place};

type Check = Result<(), String>;

fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: T, expected: T) -> Check {
    match got == expected {
        true => Ok(()),
        false => Err(format!("{what}: {got:?}, expected {expected:?}")),
    }
}

impl Admission {
    /// Checks INV-Q1 (conservation), INV-Q3 (bounds) and the agreement of all structures.
    ///
    /// # Errors
    /// Says what does not agree.
    pub fn audit(&self) -> Result<(), String> {
        self.audit_counts()?;
        self.requests.audit()?;
        self.audit_items()?;
        self.audit_lanes()?;
        self.audit_telling()?;
        self.audit_flows()
    }

    /// INV-Q1: queued = sum of bands = sum of flows = arrived - ended; running = dispatched - completed.
    fn audit_counts(&self) -> Check {
        let mut total = Usage::default();
        let mut running = 0;
        for band in self.order.iter().map(|band| &self.bands[*band]) {
            total.add(band.used);
            running += u64::from(band.running);
        }
        same("INV-Q1 sum of bands", total, self.used)?;
        let mut flows = Usage::default();
        for (_, flow) in self.flows.iter() {
            flows.add(flow.used);
        }
        same("INV-Q1 sum of flows", flows, self.used)?;
        let waiting = self.requests.waits() as u64;
        same("INV-Q1 queued", self.used.requests, waiting)?;
        let totals = &self.totals;
        let ended: u64 = totals.ended.iter().sum();
        same("INV-Q1 arrived", totals.arrived, ended + waiting)?;
        same("INV-Q1 running", running, self.running() as u64)?;
        let dispatched = totals.of(crate::Outcome::Dispatched);
        same("INV-Q1 dispatched", dispatched, running + totals.completed)?;
        let bands = self.order.len() <= self.config.max_bands as usize + 1;
        let flows = self.flows.len() <= self.config.max_flows as usize + self.shared_flows
            && self.shared_flows <= self.order.len();
        same("INV-Q3 bands and flows", (bands, flows), (true, true))
    }

    fn audit_items(&self) -> Check {
        let mut by_band: BTreeMap<u32, Usage> = BTreeMap::new();
        let mut timers = 0;
        for (slot, item) in self.requests.iter_waiting() {
            let found = self.requests.find_waiting(item.id);
            same("an item's entry", found, Some(slot))?;
            let queue = &self.queues[item.queue];
            let (terms, places) = (self.requests.terms(slot), &self.requests.places);
            let pos = place(&places.queue, slot);
            let held = queue.items.holds((terms.order, item.seq), slot, pos);
            same("place in queue", held, true)?;
            let timed = terms.own_end != crate::Nanos::MAX;
            same("an end of its own", self.requests.is_timed(slot), timed)?;
            if timed {
                timers += 1;
                let seq = self.timers.key_at(place(&places.timer, slot));
                let seq = seq.map(|(_, seq)| seq);
                same("place in timers", seq, Some(item.seq))?;
            }
            let band = self.lanes[queue.lane].band;
            by_band.entry(band).or_default().add(item.usage());
        }
        same("timers", self.timers.len(), timers)?;
        for band in &self.order {
            let expected = by_band.get(band).copied().unwrap_or_default();
            same("INV-Q1 band", self.bands[*band].used, expected)?;
            let list = self.newest_first(&self.bands[*band]);
            let seqs: Vec<u64> = list.map(|slot| self.requests.waiting(slot).seq).collect();
            same("list of a band", seqs.len() as u64, expected.requests)?;
            let falls = seqs.is_sorted_by(|newer, older| newer > older);
            same("order of a band's list", falls, true)?;
            let oldest = self.oldest(&self.bands[*band]);
            let oldest = oldest.map(|slot| self.requests.waiting(slot).seq);
            same("oldest of a band", oldest, seqs.last().copied())?;
        }
        Ok(())
    }

    fn audit_lanes(&self) -> Check {
        for band in &self.order {
            let state = &self.bands[*band];
            let (mut busy, mut in_lanes) = (0, 0);
            for (class, lane) in &state.lanes {
                let (at, lane) = (*lane, &self.lanes[*lane]);
                same("a lane's class", lane.class, *class)?;
                let refused = self.classes.get(class).and_then(|class| class.refused_at);
                same("a lane's refusal", lane.refused_at, refused)?;
                let open = !lane.queues.is_empty() && lane.open_at(state.priority);
                let listed = state.open.get(lane.open_pos as usize) == Some(&at);
                same("an open lane", listed, open)?;
                busy += u32::from(!lane.queues.is_empty());
                let list = lane.items.newest_first(&self.requests.links);
                let seqs: Vec<u64> = list.map(|slot| self.requests.waiting(slot).seq).collect();
                let falls = seqs.is_sorted_by(|newer, older| newer > older);
                same("order of a lane's list", falls, true)?;
                in_lanes += seqs.len() as u64;
            }
            same("busy lanes", state.busy_lanes, busy)?;
            same("lists of a band's lanes", in_lanes, state.used.requests)?;
        }
        Ok(())
    }

    fn audit_flows(&self) -> Check {
        for (at, flow) in self.flows.iter() {
            let state = &self.bands[flow.band];
            let known =
                flow.shared && state.overflow == at || state.flows.get(&flow.id) == Some(&at);
            same("a flow's entry", known, true)?;
            let idle = flow.queues.is_empty() && flow.running == 0 && !flow.shared;
            same("an idle flow", flow.is_idle, idle)?;
            let mut requests = 0;
            for queue in &flow.queues {
                let queue = &self.queues[*queue];
                same("a queue's flow", queue.flow, at)?;
                requests += queue.items.len() as u64;
                let (key, _) = queue.items.peek().ok_or("an empty queue in a flow")?;
                let expected = state.share.key(&flow.share, flow.weight, key);
                let got = self.lanes[queue.lane].queues.key_at(queue.lane_pos);
                same("a queue's key", got, Some(expected))?;
            }
            same("a flow's requests", flow.used.requests, requests)?;
        }
        Ok(())
    }
}
