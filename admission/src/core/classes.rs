//! Lanes and refusals: a class that does not fit is not asked about again before capacity changed for it.

use super::{Admission, Lane};
use crate::{
    ClassId,
    fault::{Fault, broken},
    store::NIL,
};

/// Beyond so many lanes an empty one is dropped; below, it stays for the next request of its class.
const KEPT_LANES: usize = 32;

impl Admission {
    /// Capacity may have changed for a class, or for all: what was refused may be asked about again.
    pub fn capacity_changed(&mut self, class: Option<ClassId>) {
        if broken(Fault::NeverAsksAgain) {
            return;
        }
        self.closed_at = None;
        match class {
            Some(class) => self.reopen(class),
            None => {
                for class in std::mem::take(&mut self.refused) {
                    self.reopen_listed(class);
                }
            }
        }
    }

    /// The class may be asked about again.
    pub(super) fn reopen(&mut self, class: ClassId) {
        if self.reopen_listed(class) {
            self.refused.retain(|refused| *refused != class);
        }
    }

    /// True if it was in the list of refused classes.
    fn reopen_listed(&mut self, class: ClassId) -> bool {
        let Some(state) = self.classes.get_mut(&class) else {
            return false;
        };
        let listed = std::mem::take(&mut state.listed);
        state.refused_at = None;
        for lane in state.lanes.clone() {
            let lane_ref = &mut self.lanes[lane];
            lane_ref.refused_at = None;
            lane_ref.refused_at_top = false;
            self.open_lane(lane);
        }
        listed
    }

    /// The class was refused at this ceiling: nothing of it starts in bands at or below.
    pub(super) fn refuse(&mut self, class: ClassId, ceiling: i32) {
        if broken(Fault::AsksAgain) {
            return;
        }
        let Some(state) = self.classes.get_mut(&class) else {
            return;
        };
        if !std::mem::replace(&mut state.listed, true) {
            self.refused.push(class);
        }
        let refused_at = state.refused_at.map_or(ceiling, |at| at.max(ceiling));
        state.refused_at = Some(refused_at);
        for lane in state.lanes.clone() {
            let priority = self.bands[self.lanes[lane].band].priority;
            if priority < refused_at && broken(Fault::LowerBypassesRefusal) {
                continue;
            }
            self.lanes[lane].refused_at = Some(refused_at);
            if priority <= refused_at {
                self.close_lane(lane);
            }
        }
        if broken(Fault::ClassBlocksBand) {
            self.closed_at = Some(ceiling);
        }
    }

    /// Puts a lane with something in it among its band's open ones, if its class is not refused there.
    pub(super) fn open_lane(&mut self, lane: u32) {
        let state = &mut self.lanes[lane];
        let band = &mut self.bands[state.band];
        if state.open_pos == NIL && !state.queues.is_empty() && state.open_at(band.priority) {
            state.open_pos = u32::try_from(band.open.len()).unwrap_or(NIL);
            band.open.push(lane);
        }
    }

    fn close_lane(&mut self, lane: u32) {
        let state = &mut self.lanes[lane];
        let pos = std::mem::replace(&mut state.open_pos, NIL);
        let open = &mut self.bands[state.band].open;
        if pos == NIL || pos as usize >= open.len() {
            return;
        }
        open.swap_remove(pos as usize);
        if let Some(moved) = open.get(pos as usize) {
            self.lanes[*moved].open_pos = pos;
        }
    }

    /// The lane of a class in a band.
    pub(super) fn lane(&mut self, band: u32, class: ClassId) -> u32 {
        if let Some(lane) = self.bands[band].lanes.get(&class) {
            return *lane;
        }
        let state = self.classes.entry(class).or_default();
        let lane = self.lanes.insert(Lane::new(class, band, state.refused_at));
        state.lanes.push(lane);
        self.bands[band].lanes.insert(class, lane);
        lane
    }

    /// A lane's first queue came.
    pub(super) fn lane_filled(&mut self, lane: u32) {
        self.bands[self.lanes[lane].band].busy_lanes += 1;
        self.open_lane(lane);
    }

    /// A lane's last queue left.
    pub(super) fn lane_emptied(&mut self, lane: u32) {
        self.close_lane(lane);
        self.bands[self.lanes[lane].band].busy_lanes -= 1;
        if self.lanes.len() > KEPT_LANES {
            self.drop_lane(lane);
        }
    }

    /// Forgets an empty lane, and its class with its last lane.
    pub(super) fn drop_lane(&mut self, lane: u32) {
        let Some(state) = self.lanes.remove(lane) else {
            return;
        };
        self.bands[state.band].lanes.remove(&state.class);
        let Some(class) = self.classes.get_mut(&state.class) else {
            return;
        };
        class.lanes.retain(|other| *other != lane);
        if class.lanes.is_empty() {
            if class.listed {
                self.refused.retain(|refused| *refused != state.class);
            }
            self.classes.remove(&state.class);
        }
    }
}
