//! What one engine calls its blocks: hash -> home and number of copies. Sixteen bytes an entry, and a few for its place.
//!
//! Entries are written one after the other, as blocks are stored along a chain and evicted along it; a small table of
//! positions finds them by hash. So storing and removing touch one line at random each, and the rest in order; growth
//! moves the small table alone.

mod table;

use crate::events::EngineHash;
use table::Table;

/// Copies are counted up to here; more are forgotten, which can only make the index forget a block too early.
const MOST_COPIES: u64 = (1 << COPY_BITS) - 1;
const COPY_BITS: u32 = 20;
const AT_BITS: u32 = 12;
/// Names that are worth fetching together: as many lines as stay in the first cache.
pub(crate) const FETCH: usize = 64;

/// Position in a lane's list of holdings, and in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    pub(crate) holding: u32,
    pub(crate) at: u16,
}

impl Home {
    #[inline]
    fn pack(self, copies: u64) -> u64 {
        u64::from(self.holding) << (AT_BITS + COPY_BITS) | u64::from(self.at) << COPY_BITS | copies
    }

    #[inline]
    fn unpack(value: u64) -> Home {
        Home {
            holding: (value >> (AT_BITS + COPY_BITS)) as u32,
            at: (value >> COPY_BITS) as u16 & ((1 << AT_BITS) - 1),
        }
    }
}

/// What adding a copy did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// The first copy.
    New,
    /// One more of a known block.
    Again,
    /// The hash named another block before; that one is forgotten, all its copies too.
    Instead(Home),
}

/// What removing a copy did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    Unknown,
    /// Copies are left.
    Fewer,
    /// That was the last copy.
    Gone(Home),
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    hash: u64,
    /// 0 when the entry is not in use; then `hash` is the position of the next such one.
    value: u64,
}

/// Entries that are allocated together: a page.
const CHUNK: usize = 256;

#[derive(Clone, Debug)]
struct Chunk {
    entries: Vec<Entry>,
    /// Entries in use.
    used: u32,
}
const NONE: u32 = u32::MAX;

/// One engine's blocks on one tier.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    seed: u64,
    table: Table,
    chunks: Vec<Chunk>,
    /// Positions that were ever in use.
    reached: u32,
    /// First position of the list of those that are not in use any more.
    idle: u32,
}

impl Blocks {
    pub(crate) fn new(seed: u64) -> Blocks {
        Blocks {
            seed,
            table: Table::new(),
            chunks: Vec::new(),
            reached: 0,
            idle: NONE,
        }
    }

    /// Blocks that one of these can ever hold.
    pub(crate) const MOST: usize = table::MOST;

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        let chunks = self.chunks.len() * CHUNK * size_of::<Entry>();
        self.table.bytes() + chunks + self.chunks.capacity() * size_of::<Chunk>()
    }

    /// Spreads hashes over the table: engines' hashes are even, small numbers and chosen ones are not.
    #[inline]
    fn spread(seed: u64, hash: u64) -> u64 {
        let bits = hash ^ seed;
        (bits ^ (bits >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn spread_of(seed: u64, chunks: &[Chunk], position: u32) -> u64 {
        let entry = Blocks::entry(chunks, position);
        Blocks::spread(seed, entry.map_or(0, |entry| entry.hash))
    }

    #[inline]
    fn entry(chunks: &[Chunk], position: u32) -> Option<&Entry> {
        let chunk = chunks.get(position as usize / CHUNK)?;
        chunk.entries.get(position as usize % CHUNK)
    }

    #[inline]
    fn entry_mut(&mut self, position: u32) -> Option<&mut Entry> {
        let chunk = self.chunks.get_mut(position as usize / CHUNK)?;
        chunk.entries.get_mut(position as usize % CHUNK)
    }

    #[inline]
    fn position(&self, hash: EngineHash) -> Option<(usize, u32)> {
        let is = |position| Blocks::entry(&self.chunks, position).is_some_and(|e| e.hash == hash.0);
        self.table.find(Blocks::spread(self.seed, hash.0), is)
    }

    /// Makes room for more names in one step.
    #[inline]
    pub(crate) fn reserve(&mut self, more: usize) {
        if self.table.full_with(more) {
            let (seed, chunks) = (self.seed, &self.chunks);
            self.table
                .grow(more, |position| Blocks::spread_of(seed, chunks, position));
        }
    }

    /// Reads where the positions of at most [`FETCH`] hashes are, so that the memory is on its way for all of them at
    /// once: they are spread at random, and one after the other each would wait for its own.
    #[inline]
    pub(crate) fn fetch(&self, hashes: &[EngineHash]) {
        // Apart from the reading, of which a processor has the more under way the less there is between.
        let mut starts = [0; FETCH];
        for (start, hash) in starts.iter_mut().zip(hashes) {
            *start = self.table.start_of(Blocks::spread(self.seed, hash.0));
        }
        std::hint::black_box(
            self.table
                .touch(starts.get(..hashes.len()).unwrap_or(&starts)),
        );
    }

    /// Reads all lines that `hashes` take, so that the memory is on its way for all of them at once.
    #[inline]
    pub(crate) fn fetch_lines(hashes: &[EngineHash]) {
        let lines = hashes.iter().step_by(8);
        std::hint::black_box(lines.fold(0, |sum, hash| sum ^ hash.0));
    }

    #[inline]
    fn value(&self, hash: EngineHash) -> Option<u64> {
        let (_, position) = self.position(hash)?;
        Blocks::entry(&self.chunks, position).map(|entry| entry.value)
    }

    #[inline]
    pub(crate) fn get(&self, hash: EngineHash) -> Option<Home> {
        self.value(hash).map(Home::unpack)
    }

    /// Copies of a block.
    #[cfg(test)]
    fn copies(&self, hash: EngineHash) -> u32 {
        self.value(hash)
            .map_or(0, |value| (value & MOST_COPIES) as u32)
    }

    /// Counts one copy of a block at a home.
    #[inline]
    pub(crate) fn add(&mut self, hash: EngineHash, home: Home) -> Added {
        self.add_copies(hash, home, 1)
    }

    /// Counts some copies, at least one. The caller sees to it that there are never more than [`Blocks::MOST`] blocks.
    #[inline]
    pub(crate) fn add_copies(&mut self, hash: EngineHash, home: Home, copies: u32) -> Added {
        let copies = u64::from(copies.max(1)).min(MOST_COPIES);
        self.reserve(1);
        let spread = Blocks::spread(self.seed, hash.0);
        let fresh = if self.idle == NONE {
            self.reached
        } else {
            self.idle
        };
        let chunks = &self.chunks;
        let is = |position| Blocks::entry(chunks, position).is_some_and(|e| e.hash == hash.0);
        let Some(position) = self.table.insert(spread, fresh, is) else {
            self.write(
                fresh,
                Entry {
                    hash: hash.0,
                    value: home.pack(copies),
                },
            );
            return Added::New;
        };
        let Some(entry) = self.entry_mut(position) else {
            return Added::New;
        };
        let known = Home::unpack(entry.value);
        let (copies, added) = if known == home {
            ((entry.value & MOST_COPIES) + copies, Added::Again)
        } else {
            (copies, Added::Instead(known))
        };
        entry.value = home.pack(copies.min(MOST_COPIES));
        added
    }

    /// Fills the position that is next in turn.
    #[inline]
    fn write(&mut self, position: u32, new: Entry) {
        if position == self.reached {
            self.reached += 1;
            if (position as usize).is_multiple_of(CHUNK) {
                self.chunks.push(Chunk {
                    entries: Vec::with_capacity(CHUNK),
                    used: 0,
                });
            }
            if let Some(chunk) = self.chunks.last_mut() {
                chunk.entries.push(new);
                chunk.used += 1;
            }
        } else if let Some(chunk) = self.chunks.get_mut(position as usize / CHUNK)
            && let Some(entry) = chunk.entries.get_mut(position as usize % CHUNK)
        {
            let next = std::mem::replace(entry, new);
            chunk.used += 1;
            self.idle = next.hash as u32;
        }
    }

    /// Forgets one copy.
    #[inline]
    pub(crate) fn remove(&mut self, hash: EngineHash) -> Dropped {
        let Some((at, position)) = self.position(hash) else {
            return Dropped::Unknown;
        };
        let Some(entry) = self.entry_mut(position) else {
            return Dropped::Unknown;
        };
        if entry.value & MOST_COPIES > 1 {
            entry.value -= 1;
            return Dropped::Fewer;
        }
        let home = Home::unpack(entry.value);
        self.delete(at, position);
        if self.len() * 8 < self.reached as usize && self.reached as usize > CHUNK {
            self.compact();
        }
        Dropped::Gone(home)
    }

    fn delete(&mut self, at: usize, position: u32) {
        let (seed, chunks) = (self.seed, &self.chunks);
        self.table
            .delete(at, |position| Blocks::spread_of(seed, chunks, position));
        let next = u64::from(self.idle);
        if let Some(chunk) = self.chunks.get_mut(position as usize / CHUNK)
            && let Some(entry) = chunk.entries.get_mut(position as usize % CHUNK)
        {
            *entry = Entry {
                hash: next,
                value: 0,
            };
            chunk.used -= 1;
            self.idle = position;
        }
    }

    /// Writes the entries anew, without those that are not in use.
    fn compact(&mut self) {
        let old = std::mem::replace(self, Blocks::new(self.seed));
        let chunks = old.chunks.iter().filter(|chunk| chunk.used > 0);
        self.reserve(chunks.clone().map(|chunk| chunk.used as usize).sum());
        let entries = chunks.flat_map(|chunk| &chunk.entries);
        for entry in entries.filter(|entry| entry.value != 0) {
            self.table
                .add(Blocks::spread(self.seed, entry.hash), self.reached);
            self.write(self.reached, *entry);
        }
    }

    /// Forgets everything and gives the room back.
    pub(crate) fn clear(&mut self) {
        *self = Blocks::new(self.seed);
    }

    /// Every block with its number of copies, in an order that depends on nothing but what was done.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (EngineHash, Home, u32)> {
        let entries = self.chunks.iter().flat_map(|chunk| &chunk.entries);
        entries.filter(|entry| entry.value != 0).map(|entry| {
            (
                EngineHash(entry.hash),
                Home::unpack(entry.value),
                (entry.value & MOST_COPIES) as u32,
            )
        })
    }

    /// Forgets the blocks for which `keep` is false, and gives room back.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(EngineHash, Home) -> bool) {
        for chunk in &mut self.chunks {
            for entry in chunk.entries.iter_mut().filter(|entry| entry.value != 0) {
                if !keep(EngineHash(entry.hash), Home::unpack(entry.value)) {
                    entry.value = 0;
                    chunk.used -= 1;
                }
            }
        }
        // The table still points to what was forgotten.
        self.compact();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn home(value: u64) -> Home {
        Home {
            holding: value.wrapping_mul(7) as u32,
            at: (value % 4096) as u16,
        }
    }

    #[test]
    fn it_counts_as_a_map_does() {
        let mut random = fastrand::Rng::with_seed(3);
        for shift in [0, 40, 56] {
            let mut blocks = Blocks::new(random.u64(..));
            let mut map: HashMap<u64, u32> = HashMap::new();
            for step in 0..60_000 {
                let value = random.u64(..if step < 30_000 { 4000 } else { 200 });
                let hash = EngineHash(value << shift);
                let value = hash.0;
                if random.u8(..) < 140 {
                    let known = map.entry(value).or_insert(0);
                    *known += 1;
                    let added = if *known == 1 {
                        Added::New
                    } else {
                        Added::Again
                    };
                    assert_eq!(blocks.add(hash, home(value)), added);
                } else {
                    let dropped = match map.get_mut(&value) {
                        None => Dropped::Unknown,
                        Some(1) => {
                            map.remove(&value);
                            Dropped::Gone(home(value))
                        }
                        Some(copies) => {
                            *copies -= 1;
                            Dropped::Fewer
                        }
                    };
                    assert_eq!(blocks.remove(hash), dropped);
                }
                assert_eq!(blocks.get(hash), map.get(&value).map(|_| home(value)));
                assert_eq!(blocks.copies(hash), map.get(&value).copied().unwrap_or(0));
                assert_eq!(blocks.len(), map.len());
            }
            let mut all: Vec<(u64, u32)> = blocks.iter().map(|(hash, _, n)| (hash.0, n)).collect();
            let mut want: Vec<(u64, u32)> = map.iter().map(|(hash, n)| (*hash, *n)).collect();
            all.sort_unstable();
            want.sort_unstable();
            assert_eq!(all, want);
            blocks.retain(|hash, _| hash.0 % 3 == 0);
            map.retain(|hash, _| hash % 3 == 0);
            assert_eq!(blocks.len(), map.len());
            assert!(
                map.iter()
                    .all(|(hash, n)| blocks.copies(EngineHash(*hash)) == *n)
            );
        }
    }

    #[test]
    fn the_last_block_gives_the_room_back_and_a_hash_may_change_its_meaning() {
        let mut blocks = Blocks::new(1);
        assert_eq!(blocks.bytes(), 0);
        blocks.add(EngineHash(5), home(1));
        blocks.add(EngineHash(5), home(1));
        assert_eq!(blocks.add(EngineHash(5), home(2)), Added::Instead(home(1)));
        assert_eq!(blocks.copies(EngineHash(5)), 1);
        assert_eq!(blocks.remove(EngineHash(5)), Dropped::Gone(home(2)));
        assert_eq!(blocks.len(), 0);
        assert_eq!(
            blocks.add_copies(EngineHash(6), home(1), u32::MAX),
            Added::New
        );
        assert_eq!(u64::from(blocks.copies(EngineHash(6))), MOST_COPIES);
    }

    #[test]
    fn entries_take_little_more_than_their_bytes() {
        let mut blocks = Blocks::new(9);
        let mut random = fastrand::Rng::with_seed(1);
        for count in 1..100_000usize {
            blocks.add(EngineHash(random.u64(..)), home(0));
            if count > 2000 {
                assert!(blocks.bytes() <= count * 36, "{count}: {}", blocks.bytes());
            }
        }
    }
}
