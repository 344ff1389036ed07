//! A new configuration over waiting and running requests.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashSet},
};

use super::{Admission, Ended, Running, Usage, arrive::Stamp};
use crate::{AdmissionConfig, ConfigError, FairnessId, Item, Nanos, Outcome, evict::Evictor};

/// A request that waited when the configuration changed.
struct Waiter {
    item: Item,
    stamp: Stamp,
    usage: Usage,
}

/// A request that ran.
struct Runner {
    running: Running,
    fairness: FairnessId,
    weight: f64,
}

impl Admission {
    /// Takes a new configuration over. Who waits keeps its time of entry and its own limits; the fairness counters start
    /// anew. What no longer fits is ended with [`Outcome::EvictedQueuePressure`]: lowest bands first, newest first.
    ///
    /// # Errors
    /// When the configuration makes no sense; the old one stays in force.
    pub fn reconfigure(
        &mut self,
        config: AdmissionConfig,
        out: &mut Vec<Ended>,
    ) -> Result<(), ConfigError> {
        let mut new = Admission::new(config)?;
        new.regime = self.regime;
        new.seq = self.seq;
        new.dispatches = self.dispatches;
        new.totals = self.totals;
        new.pace = self.pace;
        new.closing = self.closing;
        new.telling = self.telling;
        new.beside = self.beside;
        new.late = std::mem::take(&mut self.late);
        new.evictor = std::mem::replace(&mut self.evictor, Evictor::new(self.config.eviction))
            .with(new.config.eviction);
        let late = !self.config.eviction.enabled;
        for runner in self.runners() {
            if late {
                // Nobody kept the candidates before.
                let running = runner.running;
                new.evictor
                    .started(running.priority, running.dispatch, running.id);
            }
            new.adopt(runner);
        }
        let waiters = self.waiters();
        let kept = new.fitting(&waiters);
        for waiter in waiters {
            match kept.get(&waiter.stamp.seq) {
                Some(band) => new.admit(*band, waiter.item, waiter.stamp),
                None => {
                    out.push((waiter.item.id, Outcome::EvictedQueuePressure));
                    new.totals.count(Outcome::EvictedQueuePressure);
                }
            }
        }
        *self = new;
        Ok(())
    }

    /// Running requests, oldest dispatch first.
    fn runners(&self) -> Vec<Runner> {
        let runs = self.requests.iter_running().copied();
        let mut runners: Vec<Runner> = runs
            .map(|running| {
                let flow = &self.flows[running.flow];
                Runner {
                    running,
                    fairness: flow.id.clone(),
                    weight: flow.weight.as_f64(),
                }
            })
            .collect();
        runners.sort_unstable_by_key(|runner| runner.running.dispatch);
        runners
    }

    /// Waiting requests, oldest first.
    fn waiters(&self) -> Vec<Waiter> {
        let items = self.requests.iter_waiting();
        let mut waiters: Vec<Waiter> = items
            .map(|(slot, item)| {
                let terms = self.requests.terms(slot);
                let queue = &self.queues[item.queue];
                let flow = &self.flows[queue.flow];
                Waiter {
                    item: Item {
                        id: item.id,
                        priority: item.priority,
                        fairness: flow.id.clone(),
                        weight: flow.weight.as_f64(),
                        class: self.lanes[queue.lane].class,
                        bytes: item.bytes,
                        cost: item.cost,
                        // Only the sum is known, and only the sum counts.
                        arrived: 0,
                        ttl: None,
                        deadline: None,
                        slo_ttft: (terms.aim != Nanos::MAX).then_some(terms.aim),
                    },
                    stamp: Stamp {
                        seq: item.seq,
                        entered: item.entered,
                        own_end: terms.own_end,
                    },
                    usage: item.usage(),
                }
            })
            .collect();
        waiters.sort_unstable_by_key(|waiter| waiter.stamp.seq);
        waiters
    }

    fn adopt(&mut self, runner: Runner) {
        let mut running = runner.running;
        let band = self.band(running.priority);
        running.flow = self.flow(band, runner.fairness, runner.weight);
        let flow = &mut self.flows[running.flow];
        flow.running += 1;
        if std::mem::take(&mut flow.is_idle) {
            self.idle.remove(&mut self.flows, running.flow);
        }
        self.bands[band].running += 1;
        self.requests.adopt(running);
    }

    /// Who still fits, with its band: highest bands first, oldest first.
    fn fitting(&mut self, waiters: &[Waiter]) -> BTreeMap<u64, u32> {
        let mut order: Vec<&Waiter> = waiters.iter().collect();
        order.sort_by_key(|waiter| (Reverse(waiter.item.priority), waiter.stamp.seq));
        let limits = match self.regime.is_empty() {
            true => self.config.no_endpoints.limits,
            false => self.config.limits,
        };
        let mut total = Usage::default();
        let mut by_band: BTreeMap<u32, Usage> = BTreeMap::new();
        let mut kept = BTreeMap::new();
        // A band that is made here is empty until all are placed: it must not be reclaimed for the next one.
        let mut held: HashSet<u32> = HashSet::new();
        for waiter in order {
            let band = self.band(waiter.item.priority);
            if held.insert(band) {
                self.bands[band].running += 1;
            }
            let used = by_band.entry(band).or_default();
            let (mut in_all, mut in_band) = (total, *used);
            in_all.add(waiter.usage);
            in_band.add(waiter.usage);
            if in_all.within(&limits) && in_band.within(&self.bands[band].config.limits) {
                (total, *used) = (in_all, in_band);
                kept.insert(waiter.stamp.seq, band);
            }
        }
        for band in held {
            self.bands[band].running -= 1;
        }
        kept
    }
}

impl Evictor {
    /// The same candidates and victims under another configuration.
    fn with(mut self, config: crate::EvictionConfig) -> Evictor {
        self.set_config(config);
        self
    }
}
