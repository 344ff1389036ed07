//! Which runs continue which, and which have lost what they continued.

use super::{
    NONE, Store,
    locked::Locked,
    sync::{Ordering, Pin},
};

/// A run at the time when others continued it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) run: u32,
    /// Changes when keys that others stand on are given up.
    era: u32,
}

impl Default for Link {
    fn default() -> Link {
        Link { run: NONE, era: 0 }
    }
}

impl Store {
    /// Keys at the start of `keys` that begin no run, up to `most`: only those may be appended, or a block whose chain
    /// was interrupted would get a second home.
    pub(super) fn headless(&self, pin: &Pin<'_>, keys: &[u64], most: usize) -> usize {
        match keys.split_first() {
            Some((first, tail)) if pin.get(*first).is_none() => {
                1 + self.headless_after(pin, tail, most - 1)
            }
            _ => 0,
        }
    }

    /// The same for keys that follow one that has no home.
    pub(super) fn headless_after(&self, pin: &Pin<'_>, keys: &[u64], most: usize) -> usize {
        let keys = keys.get(..most).unwrap_or(keys);
        if self.detached.load(Ordering::SeqCst) == 0 {
            return keys.len();
        }
        keys.iter()
            .take_while(|key| pin.get(**key).is_none())
            .count()
    }

    /// Ends an era of a run: whatever continues it is detached. Called before the keys are gone.
    pub(super) fn end_era(&self, run: u32) {
        let Some(place) = self.places.get(run) else {
            return;
        };
        let mut branches = place.branches.load(Ordering::SeqCst);
        while branches as u32 > 0 {
            // Counted first: who sees the keys gone must see this.
            self.detached
                .fetch_add(branches & u64::from(u32::MAX), Ordering::SeqCst);
            let next = ((branches >> 32) + 1) << 32;
            match place.branches.compare_exchange(
                branches,
                next,
                Ordering::SeqCst,
                Ordering::SeqCst,
            ) {
                Ok(_) => return,
                Err(changed) => {
                    self.detached
                        .fetch_sub(branches & u64::from(u32::MAX), Ordering::SeqCst);
                    branches = changed;
                }
            }
        }
    }

    /// Counts one run more or less that continues another; false if the era of the link is over.
    pub(super) fn count_branch(&self, link: Link, more: bool) -> bool {
        let Some(place) = self.places.get(link.run) else {
            return false;
        };
        let mut branches = place.branches.load(Ordering::SeqCst);
        while (branches >> 32) as u32 == link.era {
            let next = if more { branches + 1 } else { branches - 1 };
            match place.branches.compare_exchange(
                branches,
                next,
                Ordering::SeqCst,
                Ordering::SeqCst,
            ) {
                Ok(_) => return true,
                Err(changed) => branches = changed,
            }
        }
        false
    }
}

impl Locked<'_> {
    /// A link for a run that continues this one after `at` keys.
    pub(super) fn branch_at(&mut self, at: usize) -> Link {
        self.cell.rooted = self.cell.rooted.max(at as u16);
        let place = self.store.places.get(self.id);
        let branches = place.map_or(0, |place| place.branches.load(Ordering::SeqCst));
        Link {
            run: self.id,
            era: (branches >> 32) as u32,
        }
    }

    /// The run that this one continues, if that still has the keys that it stands on.
    pub(crate) fn continued(&self) -> Option<u32> {
        let link = self.cell.parent;
        let branches = &self.store.places.get(link.run)?.branches;
        let era = (branches.load(Ordering::SeqCst) >> 32) as u32;
        (era == link.era).then_some(link.run)
    }

    /// Links the run to the one that it continues now.
    pub(super) fn link(&mut self, link: Link) {
        if link != self.cell.parent {
            self.unlink();
            self.cell.parent = link;
            if link.run != NONE && !self.store.count_branch(link, true) {
                self.store.detached.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    pub(super) fn unlink(&mut self) {
        let link = std::mem::take(&mut self.cell.parent);
        if link.run != NONE && !self.store.count_branch(link, false) {
            self.store.detached.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
