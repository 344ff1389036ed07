//! A run under its lock.

use std::sync::Arc;

use super::{
    Cell, SHRINK_FROM, Store,
    run::{Lengths, MAX_RUN, Run, lengths_of, word},
    sync::{MutexGuard, Ordering, Pin, locked},
};

/// A run that nobody else changes.
pub(crate) struct Locked<'a> {
    pub(super) store: &'a Store,
    pub(crate) id: u32,
    pub(super) cell: MutexGuard<'a, Cell>,
}

impl Locked<'_> {
    pub(super) fn run(&self) -> Option<&Run> {
        self.cell.run.as_deref()
    }

    /// The run before it in its chain; a hint, as that one may be gone.
    pub(crate) fn parent(&self) -> u32 {
        self.cell.parent.run
    }

    pub(crate) fn depth(&self) -> u32 {
        self.cell.depth
    }

    pub(crate) fn length(&self) -> usize {
        self.run().map_or(0, Run::length)
    }

    pub(super) fn same(&self, at: usize, keys: &[u64]) -> usize {
        self.run().map_or(0, |run| run.same(at, keys))
    }

    /// The first keys of the run.
    pub(crate) fn keys(&self, length: usize) -> Vec<u64> {
        self.run()
            .map_or_else(Vec::new, |run| run.keys(run.length().min(length)).collect())
    }

    /// Replaces the run by a copy of other dimensions.
    pub(super) fn copy(&mut self, pin: &Pin<'_>, keys: usize, key_room: usize, holder_room: usize) {
        let Some(old) = self.cell.run.take() else {
            return;
        };
        let (kept, holders) = (old.keys(keys), old.holders());
        let lost = old.length() - kept.len();
        let new = Arc::new(Run::new(self.id, kept, key_room, holders, holder_room));
        self.store.grown(new.bytes(), 0);
        self.store.shrunk(old.bytes(), lost);
        if let Some(head) = new.key(0) {
            pin.replace(head, Arc::clone(&new));
        }
        self.cell.run = Some(new);
    }

    pub(super) fn extend(&mut self, pin: &Pin<'_>, keys: &[u64]) {
        let Some(run) = self.run().filter(|_| !keys.is_empty()) else {
            return;
        };
        let (length, room) = (run.length(), run.key_room());
        let needed = length + keys.len();
        if needed > room {
            // Twice the room while that is little, so that few copies are made.
            let more = if length < 1024 { length } else { length / 2 };
            let room = needed.max(length + more).clamp(4, MAX_RUN);
            let holders = run.holder_room();
            self.copy(pin, length, room, holders);
        }
        if let Some(run) = self.run() {
            run.append(keys);
            self.store.grown(0, keys.len());
        }
    }

    /// A slot in which a lane's word can be set.
    pub(crate) fn join(&mut self, lane: u16) -> Option<u16> {
        let word = word(lane, [0; 4]);
        let slot = if self.cell.vacant > 0 {
            let slot = self.run()?.holders().position(|word| word == 0)?;
            let slot = u16::try_from(slot).ok()?;
            self.run()?.set_holder(slot, word);
            self.cell.vacant -= 1;
            slot
        } else if let Some(slot) = self.run()?.add_holder(word) {
            slot
        } else {
            let (length, keys, holders) = {
                let run = self.run()?;
                (run.length(), run.key_room(), run.holder_room())
            };
            let pin = self.store.pin();
            self.copy(&pin, length, keys, holders * 2);
            self.run()?.add_holder(word)?
        };
        self.cell.lanes += 1;
        Some(slot)
    }

    /// Says how much a lane holds: the answer of lookups from now on.
    #[inline]
    pub(crate) fn hold(&mut self, lane: u16, slot: u16, lengths: Lengths, before: usize) {
        if let Some(run) = self.run() {
            run.set_holder(slot, word(lane, lengths));
        }
        let now = usize::from(lengths.into_iter().max().unwrap_or(0));
        let watermark = usize::from(self.cell.watermark);
        if now < before && now < watermark && before >= watermark {
            self.trim();
        } else if now > before && self.cell.uneven == 0 {
            let mark = self.length() / 2;
            if mark > watermark {
                self.cell.watermark = mark as u16;
            }
        }
    }

    /// A lane's word tells less than it holds from now on, or all of it again.
    pub(crate) fn uneven(&mut self, uneven: bool) {
        if uneven {
            self.cell.uneven += 1;
        } else {
            self.cell.uneven = self.cell.uneven.saturating_sub(1);
        }
    }

    /// Gives back the keys that nobody holds, when they are many.
    pub(super) fn trim(&mut self) {
        let Some(run) = self.run() else { return };
        let length = run.length();
        if self.cell.uneven > 0 || length < SHRINK_FROM {
            return;
        }
        let longest = |word: u64| lengths_of(word).into_iter().max().unwrap_or(0);
        let held = usize::from(run.holders().map(longest).max().unwrap_or(0));
        let holders = run.holder_room();
        self.cell.watermark = (held / 2) as u16;
        if held > 0 && held <= length / 2 {
            if held < usize::from(self.cell.rooted) {
                self.store.end_era(self.id);
                self.cell.rooted = 0;
            }
            let pin = self.store.pin();
            self.copy(&pin, held, held, holders);
        }
    }

    /// The lane holds nothing here any more. The last one to leave gives the run back.
    pub(crate) fn leave(mut self, slot: u16) {
        if let Some(run) = self.run() {
            run.set_holder(slot, 0);
        }
        self.cell.vacant += 1;
        self.cell.lanes = self.cell.lanes.saturating_sub(1);
        if self.cell.lanes > 0 {
            return;
        }
        if let Some(run) = self.cell.run.clone() {
            self.store.end_era(self.id);
            self.unlink();
            if let Some(head) = run.key(0) {
                self.store.pin().remove(head);
            }
            self.store.shrunk(run.bytes(), run.length());
            self.store.runs.fetch_sub(1, Ordering::Relaxed);
        }
        self.give_back();
    }

    pub(super) fn give_back(mut self) {
        *self.cell = Cell::default();
        drop(self.cell);
        locked(&self.store.idle).push(self.id);
    }
}
