//! Whose turn it is, in the model.

use super::Model;
use crate::{
    Dispatch, Nanos, Starvation, Turn,
    gate::{Answer, Ask},
};

impl Model {
    /// Next dispatch, with every question that was asked on the way.
    pub(crate) fn next(
        &mut self,
        now: Nanos,
        gate: &dyn Fn(&Ask) -> Answer,
        asks: &mut Vec<Ask>,
    ) -> Option<Dispatch> {
        self.collect_expired(now);
        if self.is_empty_pool() || self.items.is_empty() {
            return None;
        }
        self.asked_at = now;
        self.held = now < self.paced_until && now < self.next_at;
        if self.held {
            return None;
        }
        loop {
            let (band, ceiling_of, turn) = self.chance(now)?;
            let candidates = match turn {
                Turn::InOrder => self.open(band),
                Turn::Floor => self.could_go_at_top(band),
                Turn::Aged => self.aged_at_top(band, now),
            };
            let seq = self.first_of(band, &candidates).unwrap();
            let at = self.items.iter().position(|i| i.seq == seq).unwrap();
            let item = &self.items[at];
            let class = item.item.class;
            let ask = Ask {
                id: item.item.id,
                class,
                priority: band,
                ceiling_of,
                cost: item.item.cost,
                since: item.entered,
            };
            asks.push(ask);
            match gate(&ask) {
                Answer::Start => return Some(self.served(now, seq, band, turn)),
                Answer::NotNow => {
                    self.items[at].refused = true;
                    let refused = self.refused.entry(class).or_insert(band);
                    *refused = band.max(*refused);
                    if turn != Turn::InOrder {
                        self.refused_at_top.insert((band, class));
                    }
                }
                Answer::Closed => {
                    let closed = self.closed_at.get_or_insert(ceiling_of);
                    *closed = ceiling_of.max(*closed);
                }
            }
        }
    }

    fn top(&self) -> Option<i32> {
        self.bands.keys().next_back().copied()
    }

    fn is_closed(&self, ceiling_of: i32) -> bool {
        self.closed_at.is_some_and(|at| ceiling_of <= at)
    }

    /// Requests of a band that may be tried in its own turn.
    pub(crate) fn open(&self, band: i32) -> Vec<u64> {
        let items = self.items.iter().filter(|i| i.band == band);
        let open = items.filter(|i| self.refused.get(&i.item.class).is_none_or(|at| *at < band));
        open.map(|i| i.seq).collect()
    }

    /// Requests of a band that may be tried at the top band's ceiling.
    pub(crate) fn could_go_at_top(&self, band: i32) -> Vec<u64> {
        let top = self.top().unwrap();
        let items = self.items.iter().filter(|i| i.band == band);
        let open = items.filter(|i| {
            let class = i.item.class;
            self.refused.get(&class).is_none_or(|at| *at < top)
                && !self.refused_at_top.contains(&(band, class))
        });
        open.map(|i| i.seq).collect()
    }

    /// Of those, all that share a class with one that has waited too long.
    fn aged_at_top(&self, band: i32, now: Nanos) -> Vec<u64> {
        let Starvation::Aging { after, .. } = self.config.starvation else {
            return Vec::new();
        };
        let could = self.could_go_at_top(band);
        let get = |seq: &u64| self.items.iter().find(|i| i.seq == *seq).unwrap();
        let old = |class| {
            let mut of_class = could.iter().map(get).filter(|i| i.item.class == class);
            of_class.any(|i| now - i.entered >= after)
        };
        could
            .iter()
            .filter(|seq| old(get(seq).item.class))
            .copied()
            .collect()
    }

    fn chance(&self, now: Nanos) -> Option<(i32, i32, Turn)> {
        let bands = || self.bands.keys().rev().copied();
        let in_order = bands().find(|b| !self.is_closed(*b) && !self.open(*b).is_empty());
        let top = self.top()?;
        let lower = || bands().filter(|b| *b != top);
        let out_of_turn = match self.config.starvation {
            _ if self.is_closed(top) => None,
            Starvation::Strict => None,
            Starvation::Aging { .. } => {
                let oldest = |band: i32| {
                    let could = self.could_go_at_top(band);
                    let items = self.items.iter().filter(|i| could.contains(&i.seq));
                    items.map(|i| (i.entered, i.seq)).min()
                };
                let band = lower()
                    .filter_map(|b| Some((oldest(b)?, b)))
                    .min()
                    .map(|(_, band)| band);
                band.filter(|b| self.balance >= 0 && !self.aged_at_top(*b, now).is_empty())
                    .map(|band| (band, Turn::Aged))
            }
            Starvation::Floor { .. } => {
                let mut most: Option<(i128, i32)> = None;
                for band in lower().filter(|b| !self.could_go_at_top(*b).is_empty()) {
                    let owed = self.bands[&band].owed;
                    if owed > most.map_or(0, |(owed, _)| owed) {
                        most = Some((owed, band));
                    }
                }
                most.map(|(_, band)| (band, Turn::Floor))
            }
        };
        match (in_order, out_of_turn) {
            (_, Some((band, turn))) if in_order != Some(band) => Some((band, top, turn)),
            (Some(band), _) => Some((band, band, Turn::InOrder)),
            (None, _) => None,
        }
    }

    pub(crate) fn wake_at(&self) -> Option<Nanos> {
        if !self.late.is_empty() {
            return Some(0);
        }
        let ends = self.items.iter().map(|i| self.end(i));
        let expiry = ends.filter(|end| *end != Nanos::MAX).min();
        let waits = !self.is_empty_pool() && !self.items.is_empty();
        let release = (waits && self.held).then_some(self.next_at);
        let aging = match self.config.starvation {
            Starvation::Aging { after, .. } if waits && self.balance >= 0 => {
                let top = self.top()?;
                let lower = self.bands.keys().filter(|b| **b != top);
                let oldest = lower.filter_map(|band| {
                    let could = self.could_go_at_top(*band);
                    let items = self.items.iter().filter(|i| could.contains(&i.seq));
                    items.map(|i| i.entered).min()
                });
                let ages = oldest.map(|entered| entered + after);
                ages.filter(|at| *at > self.asked_at).min()
            }
            _ => None,
        };
        [expiry, release, aging].into_iter().flatten().min()
    }
}
