//! What a lane holds of a run when that is not simply its first blocks on the device.

use super::store::{Lengths, MAX_RUN};
use crate::events::Tier;

const WORDS: usize = MAX_RUN.div_ceil(64);

/// One bit for each block and tier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    tiers: [Bits; 4],
    /// Blocks whose home must stay although they may not be held.
    pub(crate) pins: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Bits(Vec<u64>);

impl Bits {
    fn word(&self, index: usize) -> u64 {
        self.0.get(index).copied().unwrap_or(0)
    }

    fn write(&mut self, from: usize, to: usize, value: bool) {
        if value && self.0.len() < to.div_ceil(64) {
            self.0.resize(to.div_ceil(64), 0);
        }
        let mut at = from;
        while at < to {
            let end = ((at / 64 + 1) * 64).min(to);
            let mask = (u64::MAX >> (64 - (end - at))) << (at % 64);
            if let Some(word) = self.0.get_mut(at / 64) {
                if value {
                    *word |= mask;
                } else {
                    *word &= !mask;
                }
            }
            at = end;
        }
    }

    fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}

impl Shape {
    /// The first `length` blocks on the device.
    pub(crate) fn even(length: usize) -> Shape {
        let mut shape = Shape::default();
        shape.set(0, length, Tier::Device, true);
        shape
    }

    /// Marks the blocks `from..to` as held or not.
    pub(crate) fn set(&mut self, from: usize, to: usize, tier: Tier, held: bool) {
        if let Some(bits) = self.tiers.get_mut(tier.index()) {
            bits.write(from, to.min(MAX_RUN), held);
        }
    }

    /// Whether a block is held on a tier.
    pub(crate) fn has(&self, at: usize, tier: Tier) -> bool {
        self.tiers
            .get(tier.index())
            .is_some_and(|bits| bits.word(at / 64) >> (at % 64) & 1 == 1)
    }

    /// Blocks held, each tier counted.
    pub(crate) fn count(&self) -> usize {
        self.tiers.iter().map(Bits::count).sum()
    }

    /// Blocks from the start without a hole, with one more tier allowed each time.
    pub(crate) fn lengths(&self) -> Lengths {
        let mut lengths = [0; 4];
        let mut joined = [0u64; WORDS];
        for (length, bits) in lengths.iter_mut().zip(&self.tiers) {
            let mut run = 0;
            let mut open = true;
            for (index, word) in joined.iter_mut().enumerate() {
                *word |= bits.word(index);
                if open {
                    run += word.trailing_ones();
                    open = *word == u64::MAX;
                }
            }
            *length = run as u16;
        }
        lengths
    }

    /// The length, if this is just that many first blocks on the device.
    pub(crate) fn evened(&self) -> Option<usize> {
        let [device, others @ ..] = &self.tiers;
        let length = usize::from(self.lengths()[0]);
        (self.pins == 0 && others.iter().all(|bits| bits.count() == 0) && device.count() == length)
            .then_some(length)
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of::<Shape>()
            + self
                .tiers
                .iter()
                .map(|bits| bits.0.capacity() * 8)
                .sum::<usize>()
    }

    /// Highest block held, plus one.
    pub(crate) fn end(&self) -> usize {
        let end = |bits: &Bits| {
            let last = bits
                .0
                .iter()
                .enumerate()
                .rev()
                .find(|(_, word)| **word != 0);
            last.map_or(0, |(index, word)| {
                index * 64 + 64 - word.leading_zeros() as usize
            })
        };
        self.tiers.iter().map(end).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_stop_at_the_first_hole_and_tiers_fill_holes() {
        let mut shape = Shape::even(130);
        assert_eq!(
            (shape.lengths(), shape.count(), shape.evened()),
            ([130; 4], 130, Some(130))
        );
        shape.set(64, 65, Tier::Device, false);
        assert_eq!(
            (shape.lengths(), shape.evened(), shape.end()),
            ([64; 4], None, 130)
        );
        shape.set(60, 70, Tier::Disk, true);
        assert_eq!((shape.lengths(), shape.count()), ([64, 64, 130, 130], 139));
        shape.set(130, 200, Tier::Host, true);
        assert_eq!((shape.lengths(), shape.end()), ([64, 64, 200, 200], 200));
        shape.set(64, 65, Tier::Device, true);
        shape.set(0, MAX_RUN, Tier::Disk, false);
        assert_eq!(shape.lengths(), [130, 200, 200, 200]);
        shape.set(0, MAX_RUN, Tier::Host, false);
        assert_eq!(shape.evened(), Some(130));
        assert!(shape.has(129, Tier::Device) && !shape.has(130, Tier::Device));
        shape.set(0, MAX_RUN, Tier::External, true);
        assert_eq!(shape.lengths(), [130, 130, 130, MAX_RUN as u16]);
    }
}
