//! Positions by hash: linear probing over four bytes a slot.
//!
//! ```text
//! 31    28 27          22 21              0
//! [ from ] [ fingerprint ] [  position    ]     from: slots from where the hash wants to be, 15 for 15 or more
//! ```
//!
//! The fingerprint spares most looks at what is not meant. The distance lets a removal close the gap behind it without
//! looking at anything else, so there are no tombstones.

/// Positions are below this.
pub(super) const MOST: usize = POSITION as usize;
const POSITION: u32 = (1 << 22) - 1;
const FINGERPRINT: u32 = 63;
const FAR: u32 = 15;
const EMPTY: u32 = u32::MAX;
const SMALLEST: u32 = 3;

#[derive(Clone, Debug)]
pub(super) struct Table {
    slots: Vec<u32>,
    bits: u32,
    used: usize,
}

#[inline]
fn slot(from: usize, spread: u64, position: u32) -> u32 {
    (from as u32).min(FAR) << 28 | fingerprint(spread) << 22 | position
}

/// The low bits; the high ones choose the slot.
#[inline]
fn fingerprint(spread: u64) -> u32 {
    (spread >> 8) as u32 & FINGERPRINT
}

impl Table {
    pub(super) fn new() -> Table {
        Table {
            slots: Vec::new(),
            bits: 0,
            used: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.used
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u32>()
    }

    /// With `more`, more than three quarters in use.
    #[inline]
    pub(super) fn full_with(&self, more: usize) -> bool {
        (self.used + more) * 4 > self.slots.len() * 3
    }

    #[inline]
    fn start(&self, spread: u64) -> usize {
        // Two shifts, as one by all 64 bits is not allowed.
        (spread >> 1 >> (63 - self.bits)) as usize
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.slots.len() - 1)
    }

    /// The slot at which a hash begins.
    #[inline]
    pub(super) fn touch(&self, spread: u64) -> u32 {
        self.slots.get(self.start(spread)).copied().unwrap_or(0)
    }

    /// Slot and position for which `is` holds.
    #[inline]
    pub(super) fn find(&self, spread: u64, is: impl Fn(u32) -> bool) -> Option<(usize, u32)> {
        let mut at = self.start(spread);
        let wanted = fingerprint(spread);
        // A quarter of the slots is empty, so there is an end.
        loop {
            let slot = *self.slots.get(at)?;
            if slot >> 22 & FINGERPRINT == wanted && slot != EMPTY && is(slot & POSITION) {
                return Some((at, slot & POSITION));
            }
            if slot == EMPTY {
                return None;
            }
            at = self.after(at);
        }
    }

    /// Adds a position, or gives the one that is there already. The table is not full.
    #[inline]
    pub(super) fn insert(
        &mut self,
        spread: u64,
        position: u32,
        is: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let mut at = self.start(spread);
        let wanted = fingerprint(spread);
        let mut from = 0;
        loop {
            let here = self.slots.get(at).copied()?;
            if here == EMPTY {
                break;
            }
            if here >> 22 & FINGERPRINT == wanted && is(here & POSITION) {
                return Some(here & POSITION);
            }
            at = self.after(at);
            from += 1;
        }
        self.used += 1;
        if let Some(here) = self.slots.get_mut(at) {
            *here = slot(from, spread, position);
        }
        None
    }

    /// Takes a slot out, and moves back those after it that it kept from where they want to be.
    #[inline]
    pub(super) fn delete(&mut self, at: usize, spread: impl Fn(u32) -> u64) {
        self.used -= 1;
        let mask = self.slots.len() - 1;
        let (mut hole, mut next) = (at, self.after(at));
        while let Some(here) = self.slots.get(next).copied().filter(|here| *here != EMPTY) {
            let from = match here >> 28 {
                FAR => next.wrapping_sub(self.start(spread(here & POSITION))) & mask,
                from => from as usize,
            };
            let back = next.wrapping_sub(hole) & mask;
            if from >= back {
                let moved = (from - back) as u32;
                if let Some(slot) = self.slots.get_mut(hole) {
                    *slot = moved.min(FAR) << 28 | here & (u32::MAX >> 4);
                }
                hole = next;
            }
            next = self.after(next);
        }
        if let Some(slot) = self.slots.get_mut(hole) {
            *slot = EMPTY;
        }
    }

    /// Twice the slots, for the positions in use.
    pub(super) fn grow(&mut self, used: impl Iterator<Item = u32>, spread: impl Fn(u32) -> u64) {
        self.bits = (self.bits + 1).max(SMALLEST);
        self.slots = vec![EMPTY; 1 << self.bits];
        self.used = 0;
        for position in used {
            self.insert(spread(position), position, |_| false);
        }
    }
}
