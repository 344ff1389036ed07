//! Remembers the tokens of segments.

use std::{
    collections::HashMap,
    hash::BuildHasherDefault,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::index::Mixer;

const SHARDS: usize = 16;
/// Bytes of an entry besides its text and its tokens, about.
const ENTRY: usize = 96;

/// Tokens of segments, bounded in bytes. Two generations: what was used lately stays.
///
/// The text itself is compared, so no two segments are ever mistaken for each other.
pub struct Memo {
    shards: Vec<Mutex<Shard>>,
    seed: u64,
    /// Most bytes of a generation of one shard.
    most: usize,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// What a [`Memo`] did so far, and how large it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoStats {
    /// Segments that were remembered.
    pub hits: u64,
    /// Segments that were not.
    pub misses: u64,
    /// Segments held.
    pub entries: usize,
    /// Bytes held, about.
    pub bytes: usize,
}

#[derive(Default)]
struct Shard {
    young: Generation,
    old: Generation,
}

#[derive(Default)]
struct Generation {
    entries: HashMap<u64, Arc<Entry>, BuildHasherDefault<Mixer>>,
    bytes: usize,
}

pub(super) struct Entry {
    first: bool,
    text: Box<str>,
    pub(super) tokens: Box<[u32]>,
}

impl Entry {
    fn bytes(&self) -> usize {
        self.text.len() + self.tokens.len() * 4 + ENTRY
    }

    fn is(&self, first: bool, text: &str) -> bool {
        self.first == first && *self.text == *text
    }
}

impl Generation {
    fn insert(&mut self, key: u64, entry: Arc<Entry>) {
        self.bytes += entry.bytes();
        if let Some(before) = self.entries.insert(key, entry) {
            self.bytes -= before.bytes();
        }
    }
}

impl Memo {
    /// A memo of at most about `bytes` bytes. `seed` makes it unknown outside which texts share a place.
    pub fn new(bytes: usize, seed: u64) -> Memo {
        Memo {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            seed,
            most: bytes / SHARDS / 2,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// What it did so far.
    pub fn stats(&self) -> MemoStats {
        let mut stats = MemoStats {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            ..MemoStats::default()
        };
        for shard in &self.shards {
            let shard = shard.lock();
            for generation in [&shard.young, &shard.old] {
                stats.entries += generation.entries.len();
                stats.bytes += generation.bytes;
            }
        }
        stats
    }

    /// The entry of a segment; `first` says that it begins the whole text. Made by `make` if it is not there.
    pub(super) fn get<E>(
        &self,
        first: bool,
        text: &str,
        make: impl FnOnce() -> Result<Vec<u32>, E>,
    ) -> Result<Arc<Entry>, E> {
        let key = xxh3_64_with_seed(text.as_bytes(), self.seed ^ u64::from(first));
        let shard = self.shards.get(key as usize % SHARDS);
        if let Some(entry) = shard.and_then(|shard| self.find(&mut shard.lock(), key, first, text))
        {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(entry);
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        // Not under the lock: it takes long, and two who do it get the same.
        let entry = Arc::new(Entry {
            first,
            text: text.into(),
            tokens: make()?.into(),
        });
        if let Some(shard) = shard.filter(|_| entry.bytes() <= self.most) {
            self.insert(&mut shard.lock(), key, Arc::clone(&entry));
        }
        Ok(entry)
    }

    fn find(&self, shard: &mut Shard, key: u64, first: bool, text: &str) -> Option<Arc<Entry>> {
        if let Some(entry) = shard.young.entries.get(&key) {
            return entry.is(first, text).then(|| Arc::clone(entry));
        }
        let entry = Arc::clone(shard.old.entries.get(&key)?);
        if !entry.is(first, text) {
            return None;
        }
        self.insert(shard, key, Arc::clone(&entry));
        Some(entry)
    }

    fn insert(&self, shard: &mut Shard, key: u64, entry: Arc<Entry>) {
        if shard.young.bytes + entry.bytes() > self.most {
            shard.old = std::mem::take(&mut shard.young);
        }
        shard.young.insert(key, entry);
        // Held once, in the younger generation.
        if let Some(before) = shard.old.entries.remove(&key) {
            shard.old.bytes -= before.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(memo: &Memo, text: &str) -> bool {
        let mut made = false;
        let entry = memo.get(false, text, || {
            made = true;
            Ok::<_, ()>(vec![text.len() as u32])
        });
        assert_eq!(*entry.unwrap().tokens, [text.len() as u32]);
        made
    }

    #[test]
    fn what_is_used_stays_and_the_bound_holds() {
        let memo = Memo::new(1 << 20, 1);
        assert!(ask(&memo, "kept") && !ask(&memo, "kept"));
        for at in 0..100_000 {
            assert!(ask(&memo, &format!("once {at}")));
            if at % 64 == 0 {
                assert!(!ask(&memo, "kept"), "after {at}");
            }
        }
        let stats = memo.stats();
        assert!(stats.bytes <= 1 << 20 && stats.entries > 5000, "{stats:?}");
        assert_eq!(stats.misses, 100_001);
        // One that is too long for a generation is not kept.
        let long = "x".repeat(1 << 20);
        assert!(ask(&memo, &long) && ask(&memo, &long));
    }

    #[test]
    fn a_first_segment_is_another_one_and_errors_are_not_kept() {
        let memo = Memo::new(1 << 20, 1);
        assert_eq!(memo.get(true, "a", || Err(1)).err(), Some(1));
        let get = |first, tokens: Vec<u32>| memo.get(first, "a", || Ok::<_, ()>(tokens)).unwrap();
        assert_eq!(*get(true, vec![1]).tokens, [1]);
        assert_eq!(*get(false, vec![2]).tokens, [2]);
        assert_eq!(*get(true, vec![3]).tokens, [1]);
    }
}
