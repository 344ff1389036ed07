//! A second, naive statement of the rules: one list of requests, linear scans, no heaps, no cached keys. Slow and
//! plain, so that its agreement with the real thing means something. It never looks at deliberate faults.

mod flows;
mod turns;

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    AdmissionConfig, ClassId, Cost, Dispatch, Ended, Item, Limits, Nanos, Ordering, Outcome, Turn,
};
pub(super) use flows::{MBand, MFlow};

/// A waiting request.
#[derive(Clone, Debug)]
pub(super) struct MItem {
    pub(super) item: Item,
    pub(super) seq: u64,
    pub(super) entered: Nanos,
    /// The band it is in, which may be lower than it asked.
    pub(super) band: i32,
    /// Its place in `Model::flows`.
    pub(super) flow: usize,
    pub(super) order: u64,
    pub(super) own_end: Nanos,
    pub(super) refused: bool,
}

/// A dispatched request.
#[derive(Clone, Debug)]
pub(super) struct MRun {
    pub(super) id: u64,
    pub(super) flow: usize,
    pub(super) band: i32,
    /// What it asked for.
    pub(super) priority: i32,
    pub(super) charge: u64,
    pub(super) turn: Turn,
}

#[derive(Debug)]
pub(super) struct Model {
    pub(super) config: AdmissionConfig,
    pub(super) items: Vec<MItem>,
    pub(super) runs: Vec<MRun>,
    pub(super) bands: BTreeMap<i32, MBand>,
    /// Flows are never taken out of the list, only marked as gone, so that places stay.
    pub(super) flows: Vec<MFlow>,
    /// Lanes that exist: a class that was seen in a band.
    pub(super) lanes: BTreeSet<(i32, ClassId)>,
    pub(super) refused: BTreeMap<ClassId, i32>,
    pub(super) refused_at_top: BTreeSet<(i32, ClassId)>,
    pub(super) closed_at: Option<i32>,
    pub(super) seq: u64,
    pub(super) stamps: u64,
    pub(super) endpoints: u64,
    pub(super) since: Nanos,
    pub(super) paced_until: Nanos,
    pub(super) next_at: Nanos,
    pub(super) held: bool,
    pub(super) asked_at: Nanos,
    /// Aging's balance and the dearest charge.
    pub(super) balance: i128,
    pub(super) dearest: u64,
    pub(super) ended: BTreeMap<Outcome, u64>,
    pub(super) late: Vec<Ended>,
    /// Victims whose end is awaited, and when that is given up.
    pub(super) pending: BTreeMap<u64, Nanos>,
    pub(super) spared: BTreeSet<u64>,
    pub(super) quiet_until: Nanos,
}

pub(super) fn charge(config: &AdmissionConfig, cost: Cost) -> u64 {
    let output = (config.output_weight * cost.output as f64).round() as u64;
    (cost.uncached_input + output).clamp(1, crate::MAX_COST)
}

impl Model {
    pub(super) fn new(config: AdmissionConfig) -> Model {
        let listed: Vec<i32> = config.bands.iter().map(|(p, _)| *p).collect();
        let mut model = Model {
            config,
            items: Vec::new(),
            runs: Vec::new(),
            bands: BTreeMap::new(),
            flows: Vec::new(),
            lanes: BTreeSet::new(),
            refused: BTreeMap::new(),
            refused_at_top: BTreeSet::new(),
            closed_at: None,
            seq: 0,
            stamps: 0,
            endpoints: 0,
            since: 0,
            paced_until: 0,
            next_at: 0,
            held: false,
            asked_at: 0,
            balance: 0,
            dearest: 0,
            ended: BTreeMap::new(),
            late: Vec::new(),
            pending: BTreeMap::new(),
            spared: BTreeSet::new(),
            quiet_until: 0,
        };
        for priority in listed {
            model.bands.insert(priority, MBand::new(true));
        }
        model
    }

    fn count(&mut self, outcome: Outcome) {
        *self.ended.entry(outcome).or_default() += 1;
    }

    pub(super) fn is_empty_pool(&self) -> bool {
        self.endpoints == 0
    }

    pub(super) fn enqueue(
        &mut self,
        now: Nanos,
        item: Item,
        displaced: &mut Vec<Ended>,
    ) -> Result<(), Outcome> {
        let result = self.try_enqueue(now, item, displaced);
        if let Err(outcome) = result {
            self.count(outcome);
        }
        result
    }

    fn try_enqueue(
        &mut self,
        now: Nanos,
        item: Item,
        displaced: &mut Vec<Ended>,
    ) -> Result<(), Outcome> {
        let (full, expired, displacing) = match self.is_empty_pool() {
            true => (
                Outcome::RejectedNoEndpoints,
                Outcome::EvictedNoEndpoints,
                Outcome::EvictedNoEndpoints,
            ),
            false => (
                Outcome::RejectedSaturated,
                Outcome::EvictedTtl,
                Outcome::EvictedPriority,
            ),
        };
        if self.is_empty_pool() && !self.config.no_endpoints.hold {
            return Err(full);
        }
        let by_ttl = item.ttl.map_or(Nanos::MAX, |ttl| now + ttl);
        let own_end = by_ttl.min(item.deadline.unwrap_or(Nanos::MAX));
        if own_end <= now {
            return Err(expired);
        }
        let band = self.band(item.priority);
        let limits = self.config.band(band).limits;
        if !fits(self.items.iter().filter(|i| i.band == band), &item, &limits) {
            return Err(full);
        }
        let global = match self.is_empty_pool() {
            true => self.config.no_endpoints.limits,
            false => self.config.limits,
        };
        let mut left: Vec<MItem> = self.items.clone();
        let mut victims = Vec::new();
        while !fits(left.iter(), &item, &global) {
            // Lowest band first, newest first.
            // Who holds nothing of what there is too much of stays.
            let helps = |i: &&MItem| {
                let over = |of: fn(&Item) -> u64, limit: Option<u64>| {
                    let used = left.iter().map(|i| of(&i.item)).sum::<u64>() + of(&item);
                    limit.is_some_and(|limit| used > limit) && of(&i.item) > 0
                };
                over(|_| 1, global.max_requests)
                    || over(|item| item.bytes, global.max_bytes)
                    || over(|item| item.cost.tokens(), global.max_tokens)
            };
            let lower = left.iter().filter(|i| i.band < band).filter(helps);
            let Some(victim) = lower.min_by_key(|i| (i.band, std::cmp::Reverse(i.seq))) else {
                return Err(full);
            };
            let seq = victim.seq;
            victims.push(seq);
            left.retain(|i| i.seq != seq);
            if victims.len() > self.config.max_displaced as usize {
                return Err(full);
            }
        }
        for seq in victims {
            let id = self.leave(seq, None);
            displaced.push((id, displacing));
            self.count(displacing);
        }
        self.admit(now, band, item, own_end);
        Ok(())
    }

    fn admit(&mut self, now: Nanos, band: i32, item: Item, own_end: Nanos) {
        self.seq += 1;
        let end = own_end.min(self.wait_end(band, now));
        let order = match self.config.band(band).ordering {
            Ordering::Fcfs => 0,
            Ordering::Edf => end,
            Ordering::SloDeadline => item.slo_ttft.map_or(Nanos::MAX, |aim| item.arrived + aim),
            Ordering::Sjf => charge(&self.config, item.cost),
        };
        let flow = self.flow(band, &item);
        self.lanes.insert((band, item.class));
        if !self.items.iter().any(|i| i.flow == flow) {
            self.activate(flow);
        }
        self.items.push(MItem {
            item,
            seq: self.seq,
            entered: now,
            band,
            flow,
            order,
            own_end,
            refused: false,
        });
    }

    fn wait_end(&self, band: i32, entered: Nanos) -> Nanos {
        let by_band = self.config.band(band).ttl.or(self.config.default_ttl);
        let limit = match self.is_empty_pool() {
            true => self.config.no_endpoints.ttl.or(by_band),
            false => by_band,
        };
        limit.map_or(Nanos::MAX, |limit| entered.max(self.since) + limit)
    }

    fn end(&self, item: &MItem) -> Nanos {
        item.own_end.min(self.wait_end(item.band, item.entered))
    }

    /// Out of the list; a served request charges its flow. Says its number.
    pub(super) fn leave(&mut self, seq: u64, served: Option<u64>) -> u64 {
        let at = self.items.iter().position(|i| i.seq == seq).unwrap();
        let gone = self.items.remove(at);
        if let Some(charge) = served {
            self.serve(gone.flow, charge);
        }
        if !self.items.iter().any(|i| i.flow == gone.flow) {
            self.deactivate(gone.flow);
        }
        if gone.refused && served.is_none() {
            self.reopen(gone.item.class);
        }
        gone.item.id
    }

    pub(super) fn reopen(&mut self, class: ClassId) {
        self.refused.remove(&class);
        self.refused_at_top.retain(|(_, c)| *c != class);
    }

    pub(super) fn capacity_changed(&mut self, class: Option<ClassId>) {
        self.closed_at = None;
        match class {
            Some(class) => self.reopen(class),
            None => {
                self.refused.clear();
                self.refused_at_top.clear();
            }
        }
    }

    pub(super) fn cancel(&mut self, id: u64) -> bool {
        let Some(item) = self.items.iter().find(|i| i.item.id == id) else {
            return false;
        };
        self.leave(item.seq, None);
        self.count(Outcome::EvictedCancelled);
        true
    }

    pub(super) fn expire(&mut self, now: Nanos, out: &mut Vec<Ended>) {
        self.collect_expired(now);
        out.append(&mut self.late);
    }

    pub(super) fn collect_expired(&mut self, now: Nanos) {
        loop {
            let ends = self.items.iter().map(|i| (self.end(i), i.seq));
            let Some((_, seq)) = ends.filter(|(end, _)| *end <= now).min() else {
                return;
            };
            let outcome = match self.is_empty_pool() {
                true => Outcome::EvictedNoEndpoints,
                false => Outcome::EvictedTtl,
            };
            let id = self.leave(seq, None);
            self.late.push((id, outcome));
            self.count(outcome);
        }
    }

    pub(super) fn pool_state(&mut self, now: Nanos, endpoints: u64) {
        let was_empty = self.is_empty_pool();
        self.endpoints = endpoints;
        if was_empty == (endpoints == 0) {
            return;
        }
        self.since = now;
        self.paced_until = 0;
        if was_empty {
            self.capacity_changed(None);
            let config = &self.config.no_endpoints;
            if !self.items.is_empty() && config.release_interval > 0 {
                self.next_at = now;
                self.paced_until = now + config.release_window;
            }
        }
    }

    pub(super) fn complete(&mut self, now: Nanos, id: u64, actual: Cost) -> bool {
        let Some(at) = self.runs.iter().position(|r| r.id == id) else {
            return false;
        };
        let run = self.runs.remove(at);
        let used = match (actual.uncached_input, actual.output) {
            (0, 0) => 0,
            _ => charge(&self.config, actual),
        };
        let unused = run.charge.saturating_sub(used);
        self.give_back(&run, unused);
        self.correct(run.flow, run.charge, used);
        if self.is_idle(run.flow) {
            self.stamp(run.flow);
        }
        if self.pending.remove(&id).is_some() && self.pending.is_empty() {
            self.quiet_until = now + self.config.eviction.grace;
        }
        self.spared.remove(&id);
        true
    }

    pub(super) fn waiting_in(&self, band: i32) -> u64 {
        self.items.iter().filter(|i| i.band == band).count() as u64
    }

    pub(super) fn evict(
        &mut self,
        now: Nanos,
        pressure: &crate::Pressure,
        helps: &mut dyn FnMut(u64) -> bool,
    ) -> Vec<u64> {
        self.pending.retain(|_, until| now < *until);
        let config = self.config.eviction;
        if !config.enabled || !self.pending.is_empty() || now < self.quiet_until {
            return Vec::new();
        }
        let each = pressure.saturation / pressure.running.max(1) as f64;
        let over = ((pressure.saturation - pressure.ceiling) / each).ceil() as u64;
        let wanted = over.clamp(1, u64::from(config.max_per_decision)) as usize;
        // Lowest band first, newest dispatch first; runs are in the order of dispatch.
        let mut candidates: Vec<(i32, usize, u64)> = Vec::new();
        for (at, run) in self.runs.iter().enumerate() {
            let sheddable = run.priority < 0 && run.priority < pressure.blocked;
            if sheddable && !self.spared.contains(&run.id) {
                candidates.push((run.priority, usize::MAX - at, run.id));
            }
        }
        candidates.sort_unstable();
        let helping = candidates.into_iter().filter(|(_, _, id)| helps(*id));
        let victims: Vec<u64> = helping.take(wanted).map(|(_, _, id)| id).collect();
        for id in &victims {
            self.spared.insert(*id);
            self.pending.insert(*id, now + config.timeout);
        }
        victims
    }

    pub(super) fn served(&mut self, now: Nanos, seq: u64, band: i32, turn: Turn) -> Dispatch {
        let item = self.items.iter().find(|i| i.seq == seq).unwrap().clone();
        let charge = charge(&self.config, item.item.cost);
        self.account(band, charge, turn);
        let flow = item.flow;
        self.runs.push(MRun {
            id: item.item.id,
            flow,
            band,
            priority: item.item.priority,
            charge,
            turn,
        });
        self.leave(seq, Some(charge));
        self.count(Outcome::Dispatched);
        if self.items.is_empty() {
            self.paced_until = 0;
        } else if now < self.paced_until {
            let share = self.config.no_endpoints.release_interval / self.endpoints;
            self.next_at = now + share;
        }
        Dispatch {
            id: item.item.id,
            priority: band,
            waited: now - item.entered,
            turn,
        }
    }
}

fn fits<'a>(waiting: impl Iterator<Item = &'a MItem>, item: &Item, limits: &Limits) -> bool {
    let (mut requests, mut bytes, mut tokens) = (1, item.bytes, item.cost.tokens());
    for other in waiting {
        requests += 1;
        bytes += other.item.bytes;
        tokens += other.item.cost.tokens();
    }
    let within = |used: u64, limit: Option<u64>| limit.is_none_or(|limit| used <= limit);
    within(requests, limits.max_requests)
        && within(bytes, limits.max_bytes)
        && within(tokens, limits.max_tokens)
}
