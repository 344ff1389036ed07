//! Bands and flows: found, made, shared when there are too many, forgotten when idle.

use std::collections::{BTreeMap, HashMap};

use smallvec::SmallVec;

use super::{Admission, Band, Flow, Usage, state::FloorWindow};
use crate::{
    ClassId, FairnessId,
    fairness::{BandShare, FlowShare},
    fault::{Fault, broken},
    starvation::FloorAccount,
    store::{Heap, Link, NIL},
    types::Weight,
};

impl Admission {
    /// The bands that the configuration lists.
    pub(super) fn listed_bands(&mut self) {
        let listed: Vec<i32> = self.config.bands.iter().map(|(p, _)| *p).collect();
        for priority in listed {
            let band = self.add_band(priority);
            self.bands[band].listed = true;
        }
    }

    fn place_in_order(&self, priority: i32) -> Result<usize, usize> {
        self.priorities.binary_search_by(|p| priority.cmp(p))
    }

    /// The band of a priority, if it exists.
    pub(super) fn find_band(&self, priority: i32) -> Option<u32> {
        let at = self.place_in_order(priority).ok()?;
        self.order.get(at).copied()
    }

    /// The band of a priority, made if need be. When there are too many, the next lower one: never a higher, and the
    /// lowest of all exists in addition to the bound.
    pub(super) fn band(&mut self, priority: i32) -> u32 {
        if let Some(band) = self.find_band(priority) {
            return band;
        }
        let lowest = self.priorities.last() == Some(&i32::MIN);
        let counted = self.order.len() - usize::from(lowest);
        if counted >= self.config.max_bands as usize && !self.reclaim_band() {
            self.totals.bands_shared += 1;
            let below = self.place_in_order(priority).unwrap_or_else(|at| at);
            return match self.order.get(below) {
                Some(band) => *band,
                None => self.add_band(i32::MIN),
            };
        }
        self.add_band(priority)
    }

    fn add_band(&mut self, priority: i32) -> u32 {
        let config = self.config.band(priority).clone();
        let band = self.bands.insert(Band {
            priority,
            share: BandShare::new(config.fairness),
            config,
            listed: false,
            used: Usage::default(),
            flows: HashMap::new(),
            overflow: NIL,
            lanes: BTreeMap::<ClassId, u32>::new(),
            busy_lanes: 0,
            open: Vec::new(),
            oldest: Heap::default(),
            newest: Heap::default(),
            running: 0,
            floor: FloorAccount::default(),
            window: FloorWindow::default(),
            longest_wait: 0,
            dispatched: 0,
            out_of_turn: 0,
        });
        let at = self.place_in_order(priority).unwrap_or_else(|at| at);
        self.order.insert(at, band);
        self.priorities.insert(at, priority);
        band
    }

    /// Forgets one band that is not listed and holds nothing, never the lowest of all. True if there was one.
    fn reclaim_band(&mut self) -> bool {
        let free = |&band: &u32| {
            let band = &self.bands[band];
            let free = !band.listed && band.used.requests == 0 && band.running == 0;
            free && band.priority != i32::MIN
        };
        let Some(at) = self.order.iter().position(free) else {
            return false;
        };
        let band = self.order.remove(at);
        self.priorities.remove(at);
        for lane in self.bands[band].lanes.clone().into_values() {
            self.drop_lane(lane);
        }
        let Some(state) = self.bands.remove(band) else {
            return false;
        };
        // In the order of their slots: a map's order is not the same in every run.
        let mut flows: Vec<u32> = state.flows.into_values().collect();
        flows.sort_unstable();
        for flow in flows {
            self.idle.remove(&mut self.flows, flow);
            self.untell(flow);
            self.flows.remove(flow);
        }
        if state.overflow != NIL {
            self.flows.remove(state.overflow);
            self.shared_flows -= 1;
        }
        true
    }

    /// The flow of a fairness id, made if need be; the band's overflow flow when there are too many.
    pub(super) fn flow(&mut self, band: u32, id: FairnessId, weight: f64) -> u32 {
        if let Some(flow) = self.bands[band].flows.get(id.as_str()) {
            let (flow, weight) = (*flow, Weight::new(weight));
            if std::mem::replace(&mut self.flows[flow].weight, weight) != weight {
                self.rekey_flow(flow);
            }
            return flow;
        }
        let own = self.flows.len() - self.shared_flows;
        let full = own >= self.config.max_flows as usize;
        if full && !broken(Fault::FlowsUnbounded) && !self.forget_idle_flow() {
            self.totals.flows_shared += 1;
            if self.bands[band].overflow == NIL {
                let flow = self.add_flow(band, FairnessId::new("overflow"), Weight::ONE, true);
                self.bands[band].overflow = flow;
                self.shared_flows += 1;
            }
            return self.bands[band].overflow;
        }
        let flow = self.add_flow(band, id.clone(), Weight::new(weight), false);
        self.bands[band].flows.insert(id, flow);
        flow
    }

    pub(super) fn add_flow(
        &mut self,
        band: u32,
        id: FairnessId,
        weight: Weight,
        shared: bool,
    ) -> u32 {
        let flow = self.flows.insert(Flow {
            id,
            band,
            weight,
            share: FlowShare::default(),
            used: Usage::default(),
            running: 0,
            queues: SmallVec::new(),
            idle: Link::NONE,
            is_idle: false,
            shared,
            life: 0,
            service: 0,
            changed: 0,
            told: Link::NONE,
        });
        self.make_idle(flow);
        flow
    }

    /// Forgets the flow that has been idle longest. True if there was one.
    fn forget_idle_flow(&mut self) -> bool {
        let Some(flow) = self.idle.head() else {
            return false;
        };
        self.idle.remove(&mut self.flows, flow);
        self.untell(flow);
        if let Some(state) = self.flows.remove(flow) {
            self.bands[state.band].flows.remove(&state.id);
        }
        true
    }
}
