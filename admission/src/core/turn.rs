//! Whose turn it is, and the dispatch.

use smallvec::SmallVec;

use super::{Admission, Running};
use crate::{
    Nanos, Starvation,
    fault::{Fault, broken},
    gate::{Answer, Ask, Gate},
    starvation::fixed,
    store::NIL,
};

/// By which rule a request got its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Turn {
    /// Its band was the highest that could go.
    InOrder,
    /// Its band had waited too long ([`Starvation::Aging`]).
    Aged,
    /// Its band was owed its share ([`Starvation::Floor`]).
    Floor,
}

/// A request that may start now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// Its number.
    pub id: u64,
    /// Its band.
    pub priority: i32,
    /// How long it waited.
    pub waited: Nanos,
    /// By which rule it goes.
    pub turn: Turn,
}

/// Which band may go, under which ceiling.
#[derive(Clone, Copy, Debug)]
struct Chance {
    band: u32,
    ceiling_of: i32,
    turn: Turn,
}

impl Admission {
    /// The next request that may start, or `None` when nothing may: call it until then. The caller dispatches it and
    /// says [`Admission::complete`] when it is over.
    ///
    /// O(log n) in waiting requests; linear in bands and in classes that wait.
    pub fn next(&mut self, now: Nanos, gate: &mut dyn Gate) -> Option<Dispatch> {
        if !broken(Fault::DispatchesExpired) {
            self.collect_expired(now);
        }
        if self.regime.is_empty() && !broken(Fault::EmptyPoolDispatches)
            || self.requests.waits() == 0
            || self.held_back(now)
        {
            return None;
        }
        loop {
            let chance = self.chance(now)?;
            let Some(slot) = self.pick(now, &chance) else {
                debug_assert!(false, "a chance without a request");
                return None;
            };
            let item = self.requests.waiting(slot);
            let lane = self.queues[item.queue].lane;
            let class = self.lanes[lane].class;
            let priority = self.bands[chance.band].priority;
            let ask = Ask {
                id: item.id,
                class,
                priority,
                ceiling_of: chance.ceiling_of,
                cost: item.cost,
                since: item.entered,
            };
            match gate.can_start(&ask) {
                Answer::Start => return Some(self.dispatch(now, slot, &chance)),
                Answer::NotNow => {
                    self.requests.set_refused(slot);
                    if chance.turn != Turn::InOrder {
                        self.lanes[lane].refused_at_top = true;
                    }
                    // Refused out of turn, it is refused at its own band's lower ceiling all the more; the bands
                    // above are not held up by it.
                    self.refuse(class, priority);
                    if broken(Fault::AsksAgain) {
                        return None;
                    }
                }
                Answer::Closed => {
                    let at = chance.ceiling_of;
                    self.closed_at = Some(self.closed_at.map_or(at, |closed| closed.max(at)));
                }
            }
        }
    }

    fn is_closed(&self, ceiling_of: i32) -> bool {
        self.closed_at.is_some_and(|at| ceiling_of <= at)
    }

    fn chance(&self, now: Nanos) -> Option<Chance> {
        let open = |&&band: &&u32| {
            let band = &self.bands[band];
            !band.open.is_empty() && !self.is_closed(band.priority)
        };
        let in_order = match broken(Fault::LowBandFirst) {
            true => self.order.iter().rev().find(open).copied(),
            false => self.order.iter().find(open).copied(),
        };
        let out_of_turn = match self.config.starvation {
            Starvation::Strict => None,
            Starvation::Aging { after, .. } => {
                self.oldest_band(now, after).map(|b| (b, Turn::Aged))
            }
            Starvation::Floor { .. } => self.most_owed_band().map(|b| (b, Turn::Floor)),
        };
        match (in_order, out_of_turn) {
            (_, Some((band, turn))) if in_order != Some(band) => Some(Chance {
                band,
                ceiling_of: self.top()?,
                turn,
            }),
            (Some(band), _) => Some(Chance {
                band,
                ceiling_of: self.bands[band].priority,
                turn: Turn::InOrder,
            }),
            (None, _) => None,
        }
    }

    /// The highest band's priority: its ceiling counts for whoever goes out of turn.
    fn top(&self) -> Option<i32> {
        self.priorities.first().copied()
    }

    /// Lanes of a band that could go out of turn.
    pub(super) fn lanes_at_top(&self, band: u32) -> impl Iterator<Item = u32> {
        let top = self.top().unwrap_or(i32::MAX);
        let lanes = self.bands[band].lanes.values().copied();
        lanes.filter(move |lane| {
            let lane = &self.lanes[*lane];
            !lane.queues.is_empty() && !lane.refused_at_top && lane.open_at(top)
        })
    }

    pub(super) fn entered(&self, lane: u32) -> Option<(Nanos, u64)> {
        let item = self.requests.waiting(self.lanes[lane].items.head()?);
        Some((item.entered, item.seq))
    }

    /// The band below the top whose oldest request has waited longest, if that is long enough and credit is left.
    fn oldest_band(&self, now: Nanos, after: Nanos) -> Option<u32> {
        if !self.credits.aged_may_go() || self.is_closed(self.top()?) {
            return None;
        }
        let lower = self.order.iter().skip(1);
        let waits = |&&band: &&u32| self.bands[band].used.requests > 0;
        let oldest = lower.filter(waits).filter_map(|band| {
            let entered = self
                .lanes_at_top(*band)
                .filter_map(|lane| self.entered(lane));
            Some((entered.min()?, *band))
        });
        let ((entered, _), band) = oldest.min()?;
        (now.saturating_sub(entered) >= after).then_some(band)
    }

    /// The band below the top that is owed most.
    fn most_owed_band(&self) -> Option<u32> {
        if self.is_closed(self.top()?) {
            return None;
        }
        let mut most: Option<(i128, u32)> = None;
        for band in self.order.iter().skip(1) {
            let state = &self.bands[*band];
            let owed = state.floor.owed;
            if state.used.requests > 0
                && owed > most.map_or(0, |(owed, _)| owed)
                && self.lanes_at_top(*band).next().is_some()
            {
                most = Some((owed, *band));
            }
        }
        most.map(|(_, band)| band)
    }

    /// The request whose turn it is: the lane with the least fairness key, and of its flow's queues that may go the
    /// one whose first request is first.
    fn pick(&self, now: Nanos, chance: &Chance) -> Option<u32> {
        match (chance.turn, self.config.starvation) {
            (Turn::InOrder, _) => self
                .pick_from(self.bands[chance.band].open.iter().copied(), |lane| {
                    self.lanes[lane].open_pos != NIL
                }),
            (_, Starvation::Aging { after, .. }) => {
                let old = |lane: &u32| {
                    let entered = self.entered(*lane).map_or(now, |(entered, _)| entered);
                    now.saturating_sub(entered) >= after
                };
                let lanes: SmallVec<[u32; 8]> =
                    self.lanes_at_top(chance.band).filter(old).collect();
                self.pick_from(lanes.iter().copied(), |lane| lanes.contains(&lane))
            }
            (_, Starvation::Floor { .. } | Starvation::Strict) => {
                let lanes: SmallVec<[u32; 8]> = self.lanes_at_top(chance.band).collect();
                self.pick_from(lanes.iter().copied(), |lane| lanes.contains(&lane))
            }
        }
    }

    fn pick_from(
        &self,
        lanes: impl Iterator<Item = u32>,
        may_go: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let first = lanes
            .filter_map(|lane| self.lanes[lane].queues.peek())
            .min()?;
        let queue = first.1;
        let flow = &self.flows[self.queues[queue].flow];
        let head = |queue: u32| self.queues[queue].items.peek();
        if flow.queues.len() == 1 {
            return head(queue).map(|(_, slot)| slot);
        }
        let queues = flow.queues.iter().copied();
        let may_go = queues.filter(|queue| may_go(self.queues[*queue].lane));
        may_go.filter_map(head).min().map(|(_, slot)| slot)
    }

    fn dispatch(&mut self, now: Nanos, slot: u32, chance: &Chance) -> Dispatch {
        let out_of_turn = chance.turn != Turn::InOrder;
        let item = self.requests.waiting(slot);
        let (id, charge) = (item.id, item.cost.weighted(self.config.output_weight));
        let asked = item.priority;
        let waited = now.saturating_sub(item.entered);
        let flow = self.queues[item.queue].flow;
        self.earn_floors(now, chance.band, charge, out_of_turn);
        self.credits.dispatched(charge, chance.turn == Turn::Aged);
        self.flows[flow].running += 1;
        self.take_out(slot, Some(charge));
        self.account(now, flow, i64::try_from(charge).unwrap_or(i64::MAX));
        self.dispatches += 1;
        self.totals.count(crate::Outcome::Dispatched);
        self.pace.dispatched(now);
        let band = &mut self.bands[chance.band];
        band.running += 1;
        band.dispatched += 1;
        band.out_of_turn += u64::from(out_of_turn);
        band.longest_wait = band.longest_wait.max(waited);
        let priority = band.priority;
        let running = Running {
            id,
            flow,
            charge,
            priority: asked,
            dispatch: self.dispatches,
            turn: chance.turn,
        };
        self.requests.start(slot, running);
        self.regime.dispatched(now, self.requests.waits() == 0);
        self.evictor.started(asked, self.dispatches, id);
        Dispatch {
            id,
            priority,
            waited,
            turn: chance.turn,
        }
    }

    /// Every lower band that waits earns its floor from this dispatch; the one that is served pays.
    fn earn_floors(&mut self, now: Nanos, served: u32, charge: u64, out_of_turn: bool) {
        let Starvation::Floor { share, window } = self.config.starvation else {
            return;
        };
        let dearest = self.credits.dearest.max(charge);
        let lower: SmallVec<[(u32, bool, i64); 8]> = self
            .order
            .iter()
            .skip(1)
            .map(|band| {
                let share = self.bands[*band].config.floor.unwrap_or(share);
                (
                    *band,
                    self.lanes_at_top(*band).next().is_some(),
                    fixed(share),
                )
            })
            .collect();
        // Bands may appear that nobody listed: together they are owed 15/16 at most.
        let all: i64 = lower
            .iter()
            .filter(|(_, waits, _)| *waits)
            .map(|(_, _, share)| share)
            .sum();
        let most = 61_440;
        for (band, waits, share) in lower {
            let share = if all > most {
                share * most / all
            } else {
                share
            };
            let mine = band == served;
            let state = &mut self.bands[band];
            state.floor.earn(charge, share, waits);
            if mine {
                state.floor.pay(charge, out_of_turn);
            }
            // INV-Q9: nobody is owed more than one dearest request.
            debug_assert!(state.floor.owed <= i128::from(dearest) << 16 || broken(Fault::NoFloor));
            let kept = state.window.roll(now, window, share, dearest);
            if !kept {
                self.totals.floor_violations += 1;
            }
            let w = &mut self.bands[band].window;
            w.total += charge;
            w.mine += if mine { charge } else { 0 };
            w.waited &= waits;
        }
    }
}
