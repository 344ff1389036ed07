//! Bands, flows and fairness of the model: DRR is the plain ring, round after round.

use super::{MRun, Model};
use crate::{Fairness, Item, Starvation, Turn};

#[derive(Clone, Debug)]
pub(crate) struct MBand {
    pub(crate) listed: bool,
    turns: u64,
    round: u64,
    clock: i128,
    departed: i128,
    /// What floors owe it, x 65536.
    pub(crate) owed: i128,
}

impl MBand {
    pub(crate) fn new(listed: bool) -> MBand {
        MBand {
            listed,
            turns: 0,
            round: 1,
            clock: 0,
            departed: 0,
            owed: 0,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct MFlow {
    pub(crate) band: i32,
    /// `None` is the overflow flow.
    pub(crate) id: Option<String>,
    pub(crate) gone: bool,
    /// When it became idle, in the order of such moments.
    pub(crate) stamp: u64,
    /// Weight x 65536.
    weight: u64,
    turn: u64,
    deficit: i128,
    round: u64,
    counter: i128,
}

fn fixed_weight(weight: f64) -> u64 {
    match weight.is_nan() {
        true => 65_536,
        false => (weight.clamp(1.0 / 1024.0, 1024.0) * 65_536.0).round() as u64,
    }
}

impl MFlow {
    fn quantum(&self, quantum: u64) -> i128 {
        ((i128::from(quantum) * i128::from(self.weight)) >> 16).max(1)
    }

    fn normal(&self, tokens: i128) -> i128 {
        (tokens << 32) / i128::from(self.weight)
    }
}

impl Model {
    pub(super) fn band(&mut self, priority: i32) -> i32 {
        if self.bands.contains_key(&priority) {
            return priority;
        }
        let counted = self.bands.keys().filter(|p| **p != i32::MIN).count();
        if counted >= self.config.max_bands as usize && !self.reclaim() {
            let below = self.bands.range(..priority).next_back();
            if let Some((below, _)) = below {
                return *below;
            }
            self.bands.insert(i32::MIN, MBand::new(false));
            return i32::MIN;
        }
        self.bands.insert(priority, MBand::new(false));
        priority
    }

    fn reclaim(&mut self) -> bool {
        let free = self.bands.iter().rev().find(|(priority, band)| {
            !band.listed
                && **priority != i32::MIN
                && !self.items.iter().any(|i| i.band == **priority)
                && !self.runs.iter().any(|r| r.band == **priority)
        });
        let Some((priority, _)) = free.map(|(p, b)| (*p, b.clone())) else {
            return false;
        };
        self.bands.remove(&priority);
        for flow in self.flows.iter_mut().filter(|f| f.band == priority) {
            flow.gone = true;
        }
        let classes: Vec<_> = self
            .lanes
            .iter()
            .filter(|(p, _)| *p == priority)
            .copied()
            .collect();
        for lane in classes {
            self.lanes.remove(&lane);
            self.refused_at_top.remove(&lane);
            if !self.lanes.iter().any(|(_, class)| *class == lane.1) {
                self.refused.remove(&lane.1);
            }
        }
        true
    }

    pub(super) fn flow(&mut self, band: i32, item: &Item) -> usize {
        let id = Some(item.fairness.as_str().to_owned());
        let live = |f: &MFlow| !f.gone && f.band == band;
        if let Some(at) = self.flows.iter().position(|f| live(f) && f.id == id) {
            self.flows[at].weight = fixed_weight(item.weight);
            return at;
        }
        let flows = self
            .flows
            .iter()
            .filter(|f| !f.gone && f.id.is_some())
            .count();
        if flows >= self.config.max_flows as usize && !self.forget() {
            let overflow = self.flows.iter().position(|f| live(f) && f.id.is_none());
            return overflow.unwrap_or_else(|| self.add_flow(band, None, 1.0));
        }
        self.add_flow(band, id, item.weight)
    }

    fn add_flow(&mut self, band: i32, id: Option<String>, weight: f64) -> usize {
        self.flows.push(MFlow {
            band,
            id,
            gone: false,
            stamp: 0,
            weight: fixed_weight(weight),
            turn: 0,
            deficit: 0,
            round: 0,
            counter: 0,
        });
        let at = self.flows.len() - 1;
        self.stamp(at);
        at
    }

    pub(super) fn stamp(&mut self, flow: usize) {
        self.stamps += 1;
        self.flows[flow].stamp = self.stamps;
    }

    pub(super) fn is_idle(&self, flow: usize) -> bool {
        !self.items.iter().any(|i| i.flow == flow) && !self.runs.iter().any(|r| r.flow == flow)
    }

    /// Forgets the flow that has been idle longest.
    fn forget(&mut self) -> bool {
        let own = |at: &usize| !self.flows[*at].gone && self.flows[*at].id.is_some();
        let live = (0..self.flows.len()).filter(|at| own(at) && self.is_idle(*at));
        let Some(oldest) = live.min_by_key(|at| self.flows[*at].stamp) else {
            return false;
        };
        self.flows[oldest].gone = true;
        true
    }

    fn policy(&self, band: i32) -> Fairness {
        self.config.band(band).fairness
    }

    pub(super) fn activate(&mut self, flow: usize) {
        let priority = self.flows[flow].band;
        let waiting = self.items.iter().filter(|i| i.band == priority);
        let least = waiting.map(|i| self.flows[i.flow].counter).min();
        let policy = self.policy(priority);
        let band = self.bands.get_mut(&priority).unwrap();
        let f = &mut self.flows[flow];
        band.turns += 1;
        f.turn = band.turns;
        match policy {
            Fairness::GlobalStrict | Fairness::RoundRobin => {}
            Fairness::Drr { quantum } => {
                // One quantum per round missed, as far as it pays a debt; then it joins before the current round.
                for _ in f.round..band.round - 1 {
                    if f.deficit >= 0 {
                        break;
                    }
                    f.deficit += f.quantum(quantum);
                }
                f.deficit = f.deficit.min(0);
                f.round = f.round.max(band.round - 1);
            }
            Fairness::Vtc { max_lag } => {
                let lag = i128::from(max_lag) << 16;
                let floor = least.map_or(band.departed, |least| least.max(band.clock - lag));
                f.counter = f.counter.max(floor);
            }
        }
    }

    pub(super) fn serve(&mut self, flow: usize, charge: u64) {
        let priority = self.flows[flow].band;
        let policy = self.policy(priority);
        let band = self.bands.get_mut(&priority).unwrap();
        let f = &mut self.flows[flow];
        match policy {
            Fairness::GlobalStrict => {}
            Fairness::RoundRobin => {
                band.turns += 1;
                f.turn = band.turns;
            }
            Fairness::Drr { quantum } => {
                while f.deficit <= 0 {
                    f.deficit += f.quantum(quantum);
                    f.round += 1;
                }
                band.round = band.round.max(f.round);
                f.round = band.round;
                f.deficit -= i128::from(charge);
            }
            Fairness::Vtc { max_lag } => {
                f.counter = f.counter.max(band.clock - (i128::from(max_lag) << 16));
                band.clock = band.clock.max(f.counter);
                f.counter += f.normal(i128::from(charge));
            }
        }
    }

    pub(super) fn deactivate(&mut self, flow: usize) {
        let (band, counter) = (self.flows[flow].band, self.flows[flow].counter);
        self.bands.get_mut(&band).unwrap().departed = counter;
        if self.is_idle(flow) {
            self.stamp(flow);
        }
    }

    pub(super) fn correct(&mut self, flow: usize, charged: u64, used: u64) {
        let policy = self.policy(self.flows[flow].band);
        let more = i128::from(used) - i128::from(charged);
        let round = self.bands[&self.flows[flow].band].round;
        let f = &mut self.flows[flow];
        match policy {
            Fairness::GlobalStrict | Fairness::RoundRobin => {}
            Fairness::Drr { quantum } => {
                while f.deficit <= 0 && f.round < round {
                    f.deficit += f.quantum(quantum);
                    f.round += 1;
                }
                f.deficit -= more;
            }
            Fairness::Vtc { .. } => f.counter += f.normal(more),
        }
    }

    /// Which of these waiting requests goes first, by the band's fairness and ordering.
    pub(super) fn first_of(&self, priority: i32, candidates: &[u64]) -> Option<u64> {
        let items = || self.items.iter().filter(|i| candidates.contains(&i.seq));
        let policy = self.policy(priority);
        if policy == Fairness::GlobalStrict {
            return items().map(|i| (i.order, i.seq)).min().map(|(_, seq)| seq);
        }
        let mut flows: Vec<usize> = items().map(|i| i.flow).collect();
        flows.sort_unstable();
        flows.dedup();
        let flow = match policy {
            Fairness::GlobalStrict | Fairness::RoundRobin => {
                flows.into_iter().min_by_key(|f| self.flows[*f].turn)
            }
            Fairness::Drr { quantum } => self.ring(flows, quantum),
            Fairness::Vtc { .. } => flows
                .into_iter()
                .min_by_key(|f| (self.flows[*f].counter, self.flows[*f].turn)),
        }?;
        let of_flow = items().filter(|i| i.flow == flow);
        of_flow.map(|i| (i.order, i.seq)).min().map(|(_, seq)| seq)
    }

    /// Round after round, in the order of the line: the first whose deficit is above zero.
    fn ring(&self, mut flows: Vec<usize>, quantum: u64) -> Option<usize> {
        flows.sort_by_key(|f| self.flows[*f].turn);
        let start = flows.iter().map(|f| self.flows[*f].round).min()?;
        (start..).find_map(|round| {
            flows.iter().copied().find(|flow| {
                let f = &self.flows[*flow];
                let rounds = i128::from(round.saturating_sub(f.round));
                f.round <= round && f.deficit + f.quantum(quantum) * rounds > 0
            })
        })
    }

    fn aging_share(&self) -> i128 {
        match self.config.starvation {
            Starvation::Aging { share, .. } => (share * 65_536.0).round() as i128,
            Starvation::Strict | Starvation::Floor { .. } => 0,
        }
    }

    /// Aging's balance and the bands' floors after a dispatch.
    pub(super) fn account(&mut self, band: i32, charge: u64, turn: Turn) {
        let tokens = i128::from(charge);
        if let Starvation::Floor { share, .. } = self.config.starvation {
            let share_of = |p: &i32| {
                let share = self.config.band(*p).floor.unwrap_or(share);
                (share * 65_536.0).round() as i128
            };
            let top = *self.bands.keys().next_back().unwrap();
            let lower: Vec<(i32, bool, i128)> = self
                .bands
                .keys()
                .filter(|p| **p != top)
                .map(|p| (*p, !self.could_go_at_top(*p).is_empty(), share_of(p)))
                .collect();
            let all: i128 = lower.iter().filter(|l| l.1).map(|l| l.2).sum();
            for (priority, waits, share) in lower {
                let share = if all > 61_440 {
                    share * 61_440 / all
                } else {
                    share
                };
                let state = self.bands.get_mut(&priority).unwrap();
                state.owed += tokens * share;
                if !waits {
                    state.owed = state.owed.min(0);
                }
                if priority == band {
                    let after = state.owed - (tokens << 16);
                    state.owed = match turn {
                        Turn::InOrder => after.max(state.owed.min(0)),
                        Turn::Aged | Turn::Floor => after,
                    };
                }
            }
        }
        self.dearest = self.dearest.max(charge);
        let cap = i128::from(self.dearest) * self.aging_share();
        self.balance = (self.balance + tokens * self.aging_share()).min(cap);
        if turn == Turn::Aged {
            self.balance -= tokens << 16;
        }
    }

    pub(super) fn give_back(&mut self, run: &MRun, unused: u64) {
        let unused = i128::from(unused) << 16;
        match run.turn {
            Turn::InOrder => {}
            Turn::Aged => {
                let cap = i128::from(self.dearest) * self.aging_share();
                self.balance = (self.balance + unused).min(cap.max(self.balance));
            }
            Turn::Floor => {
                let band = self.bands.get_mut(&run.band).unwrap();
                band.owed = (band.owed + unused).min(band.owed.max(0));
            }
        }
    }
}
