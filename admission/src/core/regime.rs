//! Time: ends of waits, the two regimes (with endpoints and without), paced release, and when to wake.

use super::{Admission, requests::set};
use crate::{
    Nanos, Starvation,
    config::{BandConfig, NoEndpoints},
    fault::{Fault, broken},
};

/// Whether the pool has endpoints, since when, and the pace after it had none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Regime {
    endpoints: u64,
    /// When the pool became empty, or not empty. Waits of the regime start here for those who waited before.
    since: Nanos,
    /// Paced until then.
    paced_until: Nanos,
    /// The next dispatch under pacing.
    next_at: Nanos,
    interval: Nanos,
    /// Pacing held the last turn back.
    held: bool,
    /// The last turn.
    asked_at: Nanos,
}

impl Regime {
    pub(super) fn is_empty(&self) -> bool {
        self.endpoints == 0
    }

    fn is_paced(&self, now: Nanos) -> bool {
        now < self.paced_until && !broken(Fault::ReleaseIsNotPaced)
    }

    /// A dispatch happened: the next one under pacing comes an endpoint's share of the interval later.
    pub(super) fn dispatched(&mut self, now: Nanos, nothing_waits: bool) {
        if nothing_waits {
            self.paced_until = 0;
        } else if now < self.paced_until {
            self.next_at = now.saturating_add(self.interval / self.endpoints.max(1));
        }
    }

    fn release(&mut self, now: Nanos, config: &NoEndpoints) {
        self.interval = config.release_interval;
        self.next_at = now;
        self.paced_until = match config.release_interval {
            0 => 0,
            _ => now.saturating_add(config.release_window),
        };
    }
}

impl Admission {
    /// The pool has so many endpoints now. When the first comes or the last goes, every wait starts anew on the other
    /// budget; requests' own limits and client deadlines stand as they are.
    pub fn pool_state(&mut self, now: Nanos, endpoints: usize) {
        let was_empty = self.regime.is_empty();
        self.regime.endpoints = endpoints as u64;
        if was_empty == self.regime.is_empty() {
            return;
        }
        self.regime.since = now;
        self.regime.paced_until = 0;
        if was_empty && self.requests.waits() > 0 {
            self.regime.release(now, &self.config.no_endpoints);
        }
        if was_empty {
            self.capacity_changed(None);
        }
    }

    /// The end of a wait in a band by the current regime's budget. It runs from entering the queue, or from the change of
    /// regime when that came later.
    pub(super) fn wait_end(&self, entered: Nanos, band: &BandConfig) -> Nanos {
        let start = entered.max(self.regime.since);
        let by_band = band.ttl.or(self.config.default_ttl);
        let limit = match self.regime.is_empty() && !broken(Fault::EmptyPoolSharesBudget) {
            true => self.config.no_endpoints.ttl.or(by_band),
            false => by_band,
        };
        limit.map_or(Nanos::MAX, |limit| start.saturating_add(limit))
    }

    /// The wait that ends first: its end, its number in the order of entry, its slot. A band's budget ends in the order
    /// of entry, so its oldest request stands for all; only ends of their own are in the heap.
    pub(super) fn first_end(&self) -> Option<((Nanos, u64), u32)> {
        let oldest = self.order.iter().filter_map(|band| {
            let band = &self.bands[*band];
            let slot = self.oldest(band)?;
            let item = self.requests.waiting(slot);
            let end = match broken(Fault::RequestLengthensWait) && self.requests.is_timed(slot) {
                true => self.requests.terms(slot).own_end,
                false => self.wait_end(item.entered, &band.config),
            };
            (end != Nanos::MAX).then_some(((end, item.seq), slot))
        });
        oldest.chain(self.timers.peek()).min()
    }

    pub(super) fn start_timer(&mut self, slot: u32, end: Nanos) {
        if end != Nanos::MAX {
            self.requests.set_timed(slot);
            let key = (end, self.requests.waiting(slot).seq);
            let places = &mut self.requests.places.timer;
            self.timers
                .push(key, slot, |slot, pos| set(places, slot, pos));
        }
    }

    /// True if pacing lets nothing go at this instant.
    pub(super) fn held_back(&mut self, now: Nanos) -> bool {
        self.regime.asked_at = now;
        self.regime.held = self.regime.is_paced(now) && now < self.regime.next_at;
        self.regime.held
    }

    /// After [`Admission::next`] said `None`: the next instant at which it or [`Admission::expire`] has something to do
    /// without any other call before. Past instants mean now.
    pub fn wake_at(&self) -> Option<Nanos> {
        if !self.late.is_empty() {
            return Some(0);
        }
        let expiry = self.first_end().map(|((end, _), _)| end);
        let waits = !self.regime.is_empty() && self.requests.waits() > 0;
        let release = (waits && self.regime.held).then_some(self.regime.next_at);
        let aging = waits.then(|| self.ages_at(self.regime.asked_at)).flatten();
        [expiry, release, aging].into_iter().flatten().min()
    }

    /// When the next lane that its own ceiling holds back grows old enough to be tried at the top's.
    fn ages_at(&self, asked_at: Nanos) -> Option<Nanos> {
        let Starvation::Aging { after, .. } = self.config.starvation else {
            return None;
        };
        if !self.credits.aged_may_go() {
            return None;
        }
        let lower = self.order.iter().skip(1);
        let oldest = lower.filter_map(|band| {
            let entered = self
                .lanes_at_top(*band)
                .filter_map(|lane| self.entered(lane));
            entered.map(|(entered, _)| entered).min()
        });
        let ages = oldest.map(|entered| entered.saturating_add(after));
        ages.filter(|at| *at > asked_at).min()
    }
}
