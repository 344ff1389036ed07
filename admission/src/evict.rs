//! Which running requests are ended for a blocked higher band: few at a time, and only after the last ones are gone.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use crate::{
    EvictionConfig, Nanos,
    fault::{Fault, broken},
};

/// Why something has to go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pressure {
    /// The band that is blocked.
    pub blocked: i32,
    /// How full the pool is.
    pub saturation: f64,
    /// How full that band may make it.
    pub ceiling: f64,
    /// Requests that run.
    pub running: u64,
}

impl Pressure {
    /// `max(1, ceil((saturation - ceiling) / (saturation / running)))`: so many average requests are over the ceiling.
    fn wanted(&self) -> u64 {
        let each = self.saturation / self.running.max(1) as f64;
        let over = ((self.saturation - self.ceiling) / each).ceil();
        // NaN and below give 0.
        (over as u64).max(1)
    }
}

/// Candidates that are looked at for one decision, at most.
const LOOK_AT: usize = 256;

/// Sheddable requests that run, and the victims whose end is awaited.
#[derive(Debug)]
pub(crate) struct Evictor {
    config: EvictionConfig,
    /// Lowest band first, newest dispatch first.
    sheddable: BTreeSet<(i32, Reverse<u64>, u64)>,
    /// Victims and when they are no longer waited for.
    pending: BTreeMap<u64, Nanos>,
    /// No decision before.
    quiet_until: Nanos,
}

impl Evictor {
    pub(crate) fn new(config: EvictionConfig) -> Evictor {
        Evictor {
            config,
            sheddable: BTreeSet::new(),
            pending: BTreeMap::new(),
            quiet_until: 0,
        }
    }

    /// Only requests that asked for a negative priority may be ended.
    pub(crate) fn started(&mut self, priority: i32, dispatch: u64, id: u64) {
        if self.config.enabled && priority < 0 {
            self.sheddable.insert((priority, Reverse(dispatch), id));
        }
    }

    pub(crate) fn ended(&mut self, now: Nanos, priority: i32, dispatch: u64, id: u64) {
        if !self.config.enabled {
            return;
        }
        self.sheddable.remove(&(priority, Reverse(dispatch), id));
        if self.pending.remove(&id).is_some() && self.pending.is_empty() {
            self.quiet_until = now.saturating_add(self.config.grace);
        }
    }

    pub(crate) fn decide(
        &mut self,
        now: Nanos,
        pressure: &Pressure,
        helps: &mut dyn FnMut(u64) -> bool,
    ) -> Vec<u64> {
        self.pending.retain(|_, until| now < *until);
        let awaits = !self.pending.is_empty() || now < self.quiet_until;
        if !self.config.enabled || awaits && !broken(Fault::EvictsWithoutConfirmation) {
            return Vec::new();
        }
        let wanted = pressure.wanted();
        let wanted = match broken(Fault::EvictsWithoutBound) {
            true => wanted.max(3),
            false => wanted.min(u64::from(self.config.max_per_decision)),
        };
        let equals = broken(Fault::EvictsEquals);
        let below = |p: i32| p < pressure.blocked || equals && p == pressure.blocked;
        let mut candidates: Vec<_> = self
            .sheddable
            .iter()
            .take_while(|(priority, _, _)| below(*priority))
            .take(LOOK_AT)
            .collect();
        if broken(Fault::EvictsOldest) {
            candidates.sort_by_key(|(priority, Reverse(dispatch), _)| (*priority, *dispatch));
        }
        let victims: Vec<_> = candidates
            .into_iter()
            .filter(|(_, _, id)| helps(*id))
            .take(usize::try_from(wanted).unwrap_or(usize::MAX))
            .copied()
            .collect();
        for victim in &victims {
            // Chosen once: it is not a candidate again, even if its end does not come.
            self.sheddable.remove(victim);
            self.pending
                .insert(victim.2, now.saturating_add(self.config.timeout));
        }
        victims.into_iter().map(|(_, _, id)| id).collect()
    }

    pub(crate) fn set_config(&mut self, config: EvictionConfig) {
        self.config = config;
        if !config.enabled {
            self.sheddable.clear();
            self.pending.clear();
        }
    }

    /// Victims whose end is awaited.
    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
    }
}
