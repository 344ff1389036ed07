//! Other replicas of this process: what the queues tell them of the service they gave, and what they take in.

use std::collections::BTreeMap;

use super::{Admission, Usage, state::IN_TELLING};
use crate::{
    FairnessId, Nanos,
    fault::{Fault, broken},
    fleet::FlowService,
    types::Weight,
};

/// How the bounds over all bands are shared with other replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Beside {
    /// What waits at the others.
    pub(crate) elsewhere: Usage,
    /// What waits here counts so many times.
    pub(crate) times: u64,
}

impl Default for Beside {
    fn default() -> Self {
        Beside {
            elsewhere: Usage::default(),
            times: 1,
        }
    }
}

impl Beside {
    /// What is compared with a bound over all replicas, when so much waits here.
    pub(super) fn all(self, here: Usage) -> Usage {
        let all = |here: u64, elsewhere: u64| {
            here.saturating_mul(self.times)
                .max(here.saturating_add(elsewhere))
        };
        Usage {
            requests: all(here.requests, self.elsewhere.requests),
            bytes: all(here.bytes, self.elsewhere.bytes),
            tokens: all(here.tokens, self.elsewhere.tokens),
        }
    }
}

/// What the queues remember for the others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Telling {
    /// Somebody listens.
    pub(super) on: bool,
    /// Lives of flows so far: the number of the last one.
    pub(super) lives: u64,
}

impl Admission {
    /// Remembers from now on what each flow is served, for [`Admission::service`].
    pub(crate) fn tell_service(&mut self) {
        self.telling.on = true;
    }

    /// The number of the last flow that was served for the first time.
    pub(crate) fn lives(&self) -> u64 {
        self.telling.lives
    }

    pub(crate) fn set_beside(&mut self, beside: Beside) {
        self.beside = beside;
    }

    /// Flows whose accounted service changed at or after `since`, last changed first.
    pub(crate) fn service(&self, since: Nanos) -> impl Iterator<Item = FlowService> {
        let changed = self
            .told
            .newest_first(&self.flows)
            .map(|flow| &self.flows[flow]);
        changed
            .take_while(move |flow| flow.changed >= since)
            .map(|flow| FlowService {
                priority: self.bands[flow.band].priority,
                fairness: flow.id.clone(),
                weight: flow.weight.as_f64(),
                life: flow.life,
                service: flow.service,
            })
    }

    /// A flow was charged, or a charge of it was corrected.
    pub(super) fn account(&mut self, now: Nanos, flow: u32, tokens: i64) {
        if !self.telling.on || self.flows[flow].shared {
            return;
        }
        if self.flows[flow].life == 0 {
            self.telling.lives += 1;
            self.flows[flow].life = self.telling.lives;
        } else {
            self.told.remove(&mut self.flows, flow);
        }
        self.told.push_back(&mut self.flows, flow);
        let state = &mut self.flows[flow];
        state.service = state.service.saturating_add(tokens);
        state.changed = now;
    }

    /// The flow is forgotten.
    pub(super) fn untell(&mut self, flow: u32) {
        if self.flows[flow].life != 0 {
            self.told.remove(&mut self.flows, flow);
        }
    }

    /// Service that another replica gave, in tokens, counts for its flows as if it had been given here (INV-Q13). How
    /// many flows there was no room for, or nothing of whose band was ever seen here.
    pub(crate) fn served_elsewhere<'a>(
        &mut self,
        rows: impl Iterator<Item = (&'a FlowService, i64)>,
        max_debt: u64,
    ) -> u64 {
        if broken(Fault::PeersServiceIgnored) {
            return 0;
        }
        let mut unplaced = 0;
        let mut least: BTreeMap<u32, i128> = BTreeMap::new();
        for (row, tokens) in rows {
            let band = self.find_band(row.priority);
            let flow = band.and_then(|band| self.flow_elsewhere(band, &row.fairness, row.weight));
            let (Some(band), Some(flow)) = (band, flow) else {
                unplaced += 1;
                continue;
            };
            let state = &mut self.flows[flow];
            let (weight, waits) = (state.weight, !state.queues.is_empty());
            let share = &mut self.bands[band].share;
            let counter = share.elsewhere(&mut state.share, weight, tokens, waits, max_debt);
            if let Some(counter) = counter {
                let least = least.entry(band).or_insert(counter);
                *least = counter.min(*least);
            }
            if waits {
                self.rekey_flow(flow);
            } else if self.flows[flow].is_idle {
                // In use, if not here: others are forgotten first.
                self.idle.remove(&mut self.flows, flow);
                self.idle.push_back(&mut self.flows, flow);
            }
        }
        for (band, least) in least {
            self.bands[band].share.level(least);
        }
        unplaced
    }

    /// The flow of a fairness id, made if there is room. Nobody is forgotten for it.
    fn flow_elsewhere(&mut self, band: u32, id: &FairnessId, weight: f64) -> Option<u32> {
        if let Some(flow) = self.bands[band].flows.get(id.as_str()) {
            return Some(*flow);
        }
        let own = self.flows.len() - self.shared_flows;
        if own >= self.config.max_flows as usize {
            return None;
        }
        let flow = self.add_flow(band, id.clone(), Weight::new(weight), false);
        self.bands[band].flows.insert(id.clone(), flow);
        Some(flow)
    }

    /// Checks that the list of flows to tell is whole.
    pub(super) fn audit_telling(&self) -> Result<(), String> {
        let listed = self.told.newest_first(&self.flows).count();
        let lives = self.flows.iter().filter(|(_, flow)| flow.life != 0).count();
        match listed == lives {
            true => Ok(()),
            false => Err(format!("{listed} flows to tell, {lives} served")),
        }
    }
}

/// The list of flows by their last change.
pub(super) type ToldFlows = crate::store::List<IN_TELLING>;
