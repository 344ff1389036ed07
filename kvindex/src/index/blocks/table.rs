//! Positions by hash: linear probing over four bytes a slot.
//!
//! ```text
//! 31    28 27                    0
//! [ from ] [ hash  ][  position  ]     from: slots from where the hash wants to be, 15 for 15 or more
//!                    bits of the table
//! ```
//!
//! A slot's place and what it keeps of the hash are the first 28 bits of that hash together, whatever the size of the
//! table: a larger table needs longer positions and has more places. So the table grows from what is in it alone, in
//! one pass over the old slots that fills the new ones in order. What is kept of the hash also spares most looks at
//! what is not meant.
//!
//! The distance lets a removal close the gap behind it without looking at anything else, so there are no tombstones.

/// Positions are below this.
pub(super) const MOST: usize = (1 << 22) - 1;
/// Bits of a hash that a slot and its place tell.
const TOLD: u32 = 28;
const REST: u32 = (1 << TOLD) - 1;
const FAR: u32 = 15;
const EMPTY: u32 = u32::MAX;
const SMALLEST: u32 = 3;
/// Slots that are moved together.
const CHUNK: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct Table {
    slots: Vec<u32>,
    bits: u32,
    used: usize,
}

/// The first bits of a hash.
#[inline]
fn told(spread: u64) -> u32 {
    (spread >> (u64::BITS - TOLD)) as u32
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

    /// With `more`, more than half in use: then a hash is mostly where it wants to be, or next to that.
    #[inline]
    pub(super) fn full_with(&self, more: usize) -> bool {
        (self.used + more) * 2 > self.slots.len()
    }

    #[inline]
    fn start(&self, told: u32) -> usize {
        (told >> (TOLD - self.bits)) as usize
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.slots.len() - 1)
    }

    /// What a slot keeps of a hash, where it keeps it.
    #[inline]
    fn kept(&self, told: u32) -> u32 {
        told << self.bits & REST
    }

    #[inline]
    fn position(&self, slot: u32) -> u32 {
        slot & ((1 << self.bits) - 1)
    }

    /// Whether a slot may be that of a hash.
    #[inline]
    fn may_be(&self, slot: u32, kept: u32) -> bool {
        ((slot ^ kept) & REST) >> self.bits == 0
    }

    /// Where a hash wants to be.
    #[inline]
    pub(super) fn start_of(&self, spread: u64) -> u32 {
        self.start(told(spread)) as u32
    }

    /// Reads all these slots.
    #[inline]
    pub(super) fn touch(&self, starts: &[u32]) -> u32 {
        let slots = starts.iter().filter_map(|at| self.slots.get(*at as usize));
        slots.fold(0, |sum, slot| sum ^ slot)
    }

    /// Slot and position for which `is` holds.
    #[inline]
    pub(super) fn find(&self, spread: u64, is: impl Fn(u32) -> bool) -> Option<(usize, u32)> {
        let told = told(spread);
        let (mut at, kept) = (self.start(told), self.kept(told));
        // Half of the slots are empty, so there is an end.
        loop {
            let slot = *self.slots.get(at)?;
            if slot == EMPTY {
                return None;
            }
            if self.may_be(slot, kept) && is(self.position(slot)) {
                return Some((at, self.position(slot)));
            }
            at = self.after(at);
        }
    }

    /// Adds a position, or gives the one that is there already. The table is not full, and has more slots than the
    /// position says.
    #[inline]
    pub(super) fn insert(
        &mut self,
        spread: u64,
        position: u32,
        is: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let told = told(spread);
        let (mut at, kept) = (self.start(told), self.kept(told));
        let mut from = 0;
        loop {
            let slot = self.slots.get(at).copied()?;
            if slot == EMPTY {
                break;
            }
            if self.may_be(slot, kept) && is(self.position(slot)) {
                return Some(self.position(slot));
            }
            at = self.after(at);
            from += 1;
        }
        debug_assert!((position as usize) < self.slots.len());
        self.used += 1;
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = from.min(FAR) << TOLD | kept | position;
        }
        None
    }

    /// Adds a position that is not there yet. The table is not full.
    #[inline]
    pub(super) fn add(&mut self, spread: u64, position: u32) {
        self.used += 1;
        self.fill(told(spread), position);
    }

    /// Takes a slot out, and moves back those after it that it kept from where they want to be.
    #[inline]
    pub(super) fn delete(&mut self, at: usize, spread: impl Fn(u32) -> u64) {
        self.used -= 1;
        let mask = self.slots.len() - 1;
        let (mut hole, mut next) = (at, self.after(at));
        while let Some(here) = self.slots.get(next).copied().filter(|here| *here != EMPTY) {
            let from = match here >> TOLD {
                FAR => next.wrapping_sub(self.start(told(spread(self.position(here))))) & mask,
                from => from as usize,
            };
            let back = next.wrapping_sub(hole) & mask;
            if from >= back {
                let moved = (from - back) as u32;
                if let Some(slot) = self.slots.get_mut(hole) {
                    *slot = moved.min(FAR) << TOLD | here & REST;
                }
                hole = next;
            }
            next = self.after(next);
        }
        if let Some(slot) = self.slots.get_mut(hole) {
            *slot = EMPTY;
        }
    }

    /// Room for more, at least twice the slots. `spread` tells the hash of a position.
    #[cold]
    pub(super) fn grow(&mut self, more: usize, spread: impl Fn(u32) -> u64) {
        let wanted = ((self.used + more) * 2).next_power_of_two();
        let bits = wanted.ilog2().max(self.bits + 1).max(SMALLEST);
        let mut grown = Table {
            slots: vec![EMPTY; 1 << bits],
            bits,
            used: self.used,
        };
        for (chunk, slots) in self.slots.chunks(CHUNK).enumerate() {
            // Which slots are in use is as good as random: so this has no branch for the processor to guess.
            let mut held = [(0, 0); CHUNK];
            let mut count = 0;
            for (at, slot) in slots.iter().enumerate() {
                if let Some(next) = held.get_mut(count) {
                    *next = (chunk * CHUNK + at, *slot);
                }
                count += usize::from(*slot != EMPTY);
            }
            for (at, slot) in held.into_iter().take(count) {
                let position = self.position(slot);
                let told = self
                    .told_by(at, slot)
                    .unwrap_or_else(|| told(spread(position)));
                grown.fill(told, position);
            }
        }
        *self = grown;
    }

    /// The first bits of the hash of a slot, unless that is far from where it wants to be.
    #[inline]
    fn told_by(&self, at: usize, slot: u32) -> Option<u32> {
        let from = slot >> TOLD;
        let home = at.wrapping_sub(from as usize) & (self.slots.len() - 1);
        (from != FAR).then_some((home as u32) << (TOLD - self.bits) | (slot & REST) >> self.bits)
    }

    /// Adds a position that is not there; it is counted already.
    #[inline]
    fn fill(&mut self, told: u32, position: u32) {
        let (mut at, kept) = (self.start(told), self.kept(told));
        let mut from = 0;
        while let Some(slot) = self.slots.get_mut(at) {
            if *slot == EMPTY {
                *slot = u32::min(from, FAR) << TOLD | kept | position;
                return;
            }
            at = self.after(at);
            from += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Positions that are in the table are found by their hashes, and no others.
    fn check(table: &Table, spreads: &[u64], held: &[bool]) {
        for (position, spread) in spreads.iter().enumerate() {
            let found = table.find(*spread, |at| at as usize == position);
            assert_eq!(found.is_some(), held[position], "{position}");
        }
        assert_eq!(table.len(), held.iter().filter(|held| **held).count());
    }

    #[test]
    fn hashes_that_want_the_same_slot_survive_growth_and_removal() {
        let mut random = fastrand::Rng::with_seed(5);
        // Crowds of 40, which is farther than a slot can tell, at the end of the table and elsewhere.
        let spreads: Vec<u64> = (0..600u64)
            .map(|position| match position % 4 {
                0 => u64::MAX << 30 | position,
                1 => 0x1234_5678 << 32 | position,
                _ => random.u64(..),
            })
            .collect();
        let mut table = Table::new();
        let mut held = vec![false; spreads.len()];
        for (position, spread) in spreads.iter().enumerate() {
            if table.full_with(1) {
                table.grow(1, |at| spreads[at as usize]);
            }
            let at = position as u32;
            assert_eq!(table.insert(*spread, at, |other| other == at), None);
            assert_eq!(table.insert(*spread, at, |other| other == at), Some(at));
            held[position] = true;
            if position % 37 == 0 {
                check(&table, &spreads, &held);
            }
        }
        let mut order: Vec<usize> = (0..spreads.len()).collect();
        random.shuffle(&mut order);
        for (count, position) in order.iter().enumerate() {
            let found = table.find(spreads[*position], |at| at as usize == *position);
            let (slot, _) = found.unwrap();
            table.delete(slot, |at| spreads[at as usize]);
            held[*position] = false;
            if count % 37 == 0 {
                table.grow(0, |at| spreads[at as usize]);
                check(&table, &spreads, &held);
            }
        }
        check(&table, &spreads, &held);
    }
}
