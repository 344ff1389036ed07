//! A run: consecutive blocks of one chain, and who holds how much of it from its start.
//!
//! Each holder is one word, so a reader never sees half of a change:
//!
//! ```text
//! 63      48 47     36 35     24 23     12 11      0
//! [  lane  ] [ tiers ][ tiers  ][ tiers  ][ device ]   blocks held without a hole, from the start of the run,
//!             0..=3     0..=2     0..=1      0         on the device alone, on device or host, ...
//! ```
//!
//! Keys are only ever appended. A run that must lose keys or needs room is replaced by a copy, so what a reader has in
//! its hands stays true to one moment.

use super::sync::{AtomicU32, AtomicU64, Ordering};

/// Most blocks of a run: lengths have twelve bits.
pub(crate) const MAX_RUN: usize = 4095;
const LENGTH_BITS: u32 = 12;

/// Blocks held from the start of a run, by the farthest tier that may be used.
pub(crate) type Lengths = [u16; 4];

/// The word of a holder. Lanes count from 1, so that no word is 0.
#[inline]
pub(crate) fn word(lane: u16, lengths: Lengths) -> u64 {
    let fold = |word: u64, length: &u16| word << LENGTH_BITS | u64::from(*length);
    lengths.iter().rev().fold(u64::from(lane), fold)
}

#[inline]
pub(crate) fn lane_of(word: u64) -> u16 {
    (word >> 48) as u16
}

#[inline]
pub(crate) fn lengths_of(word: u64) -> Lengths {
    let length = |tier: u32| (word >> (LENGTH_BITS * tier)) as u16 & MAX_RUN as u16;
    [length(0), length(1), length(2), length(3)]
}

pub(crate) struct Run {
    /// Number of the cell that owns it.
    pub(crate) id: u32,
    /// Holder words come first, then keys.
    words: Box<[AtomicU64]>,
    holder_room: u32,
    /// Keys that may be read.
    length: AtomicU32,
    /// Holder words that may be read.
    holders: AtomicU32,
}

impl Run {
    /// A run of `keys`, with room for more keys and holders.
    pub(crate) fn new(
        id: u32,
        keys: impl ExactSizeIterator<Item = u64>,
        key_room: usize,
        holders: impl Iterator<Item = u64>,
        holder_room: usize,
    ) -> Run {
        let length = keys.len();
        let key_room = key_room.clamp(length, MAX_RUN.max(length));
        let mut words = Vec::with_capacity(holder_room + key_room);
        words.extend(holders.take(holder_room).map(AtomicU64::new));
        let taken = words.len();
        words.resize_with(holder_room, AtomicU64::default);
        words.extend(keys.map(AtomicU64::new));
        words.resize_with(holder_room + key_room, AtomicU64::default);
        Run {
            id,
            words: words.into(),
            holder_room: holder_room as u32,
            length: AtomicU32::new(length as u32),
            holders: AtomicU32::new(taken as u32),
        }
    }

    /// Blocks of the run.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.length.load(Ordering::Acquire) as usize
    }

    pub(crate) fn key_room(&self) -> usize {
        self.words.len() - self.holder_room as usize
    }

    pub(crate) fn holder_room(&self) -> usize {
        self.holder_room as usize
    }

    /// Bytes on the heap, the counts of its `Arc` included.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Run>() + 16 + 8 * self.words.len()
    }

    fn key_words(&self) -> &[AtomicU64] {
        self.words
            .get(self.holder_room as usize..)
            .unwrap_or_default()
    }

    #[inline]
    pub(crate) fn key(&self, at: usize) -> Option<u64> {
        self.key_words()
            .get(at)
            .map(|key| key.load(Ordering::Relaxed))
    }

    /// The keys before `length`.
    pub(crate) fn keys(&self, length: usize) -> impl ExactSizeIterator<Item = u64> {
        let keys = self.key_words();
        let keys = keys.get(..length).unwrap_or(keys);
        keys.iter().map(|key| key.load(Ordering::Relaxed))
    }

    /// Blocks of the run from `at` on that are `keys`.
    pub(crate) fn same(&self, at: usize, keys: &[u64]) -> usize {
        let here = self.key_words().get(at..self.length()).unwrap_or_default();
        let same = |(here, key): &(&AtomicU64, &u64)| here.load(Ordering::Relaxed) == **key;
        here.iter().zip(keys).take_while(same).count()
    }

    /// The holder words that were taken at least once; 0 is a vacant one.
    #[inline]
    pub(crate) fn holders(&self) -> impl Iterator<Item = u64> {
        let taken = self.holders.load(Ordering::Acquire) as usize;
        let words = self.words.get(..taken).unwrap_or_default();
        words.iter().map(|word| word.load(Ordering::Acquire))
    }

    /// Appends keys; the caller has the cell's lock, and there is room.
    pub(crate) fn append(&self, keys: &[u64]) {
        let length = self.length.load(Ordering::Relaxed) as usize;
        let room = self.key_words().get(length..).unwrap_or_default();
        for (room, key) in room.iter().zip(keys) {
            room.store(*key, Ordering::Relaxed);
        }
        self.length.store(
            (length + keys.len().min(room.len())) as u32,
            Ordering::Release,
        );
    }

    /// Sets a holder's word; the caller has the cell's lock.
    #[inline]
    pub(crate) fn set_holder(&self, slot: u16, word: u64) {
        if let Some(holder) = self.words.get(usize::from(slot)) {
            holder.store(word, Ordering::Release);
        }
    }

    /// A slot for one more holder, already set; `None` without room. The caller has the cell's lock.
    pub(crate) fn add_holder(&self, word: u64) -> Option<u16> {
        let taken = self.holders.load(Ordering::Relaxed);
        if taken >= self.holder_room {
            return None;
        }
        let slot = u16::try_from(taken).ok()?;
        self.set_holder(slot, word);
        self.holders.store(taken + 1, Ordering::Release);
        Some(slot)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn words_keep_lanes_and_lengths() {
        for lane in [1, 2, 1025, u16::MAX] {
            for lengths in [[0, 0, 0, 0], [1, 2, 3, 4095], [4095; 4], [0, 0, 7, 4094]] {
                let word = word(lane, lengths);
                assert_ne!(word, 0);
                assert_eq!((lane_of(word), lengths_of(word)), (lane, lengths));
            }
        }
    }

    #[test]
    fn a_run_grows_within_its_room() {
        let run = Run::new(3, [10, 11].into_iter(), 4, std::iter::empty(), 2);
        assert_eq!((run.length(), run.key_room(), run.holder_room()), (2, 4, 2));
        run.append(&[12, 13]);
        assert_eq!(run.keys(run.length()).collect::<Vec<_>>(), [10, 11, 12, 13]);
        assert_eq!(
            (
                run.same(1, &[11, 12, 99]),
                run.same(0, &[9]),
                run.same(4, &[1])
            ),
            (2, 0, 0)
        );
        assert_eq!(
            (run.add_holder(5), run.add_holder(6), run.add_holder(7)),
            (Some(0), Some(1), None)
        );
        run.set_holder(0, 0);
        assert_eq!(run.holders().collect::<Vec<_>>(), [0, 6]);
    }
}
