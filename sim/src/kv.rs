//! KV blocks and the prefix cache, as vLLM keeps them.
//!
//! A block is free or held by requests. A full block has the hash of everything up to its end; a free block keeps
//! its hash until it is taken again, so a later prompt can find it. Free blocks are taken from the least recently
//! freed on, and a request frees its tail first, so heads of prompts live longest.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Index of a block.
pub type Block = u32;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Slot {
    holders: u32,
    hash: Option<u64>,
    previous: u32,
    next: u32,
}

/// What happened to cached blocks, for whoever mirrors the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// A block was filled.
    Stored {
        /// Its hash.
        hash: u64,
        /// Hash of the block before it, unless it is the first.
        parent: Option<u64>,
        /// Its tokens.
        tokens: Vec<u32>,
    },
    /// A cached block was taken for something else.
    Removed {
        /// Its hash.
        hash: u64,
    },
    /// Everything was dropped.
    Cleared,
}

/// All blocks of an engine.
#[derive(Debug)]
pub struct KvCache {
    slots: Vec<Slot>,
    cached: HashMap<u64, Block>,
    head: u32,
    tail: u32,
    free: u32,
    block_size: usize,
}

/// Hash of a block behind `parent`.
pub fn block_hash(parent: u64, tokens: &[u32]) -> u64 {
    let mut bytes = Vec::with_capacity(tokens.len() * 4);
    tokens.iter().for_each(|token| bytes.extend_from_slice(&token.to_le_bytes()));
    xxh3_64_with_seed(&bytes, parent)
}

/// Where a chain of hashes starts, by cache domain.
pub fn root_hash(salt: &str) -> u64 {
    xxh3_64_with_seed(salt.as_bytes(), 0x5749_434b_4554)
}

impl KvCache {
    /// `blocks` free blocks of `block_size` tokens.
    pub fn new(blocks: u32, block_size: usize) -> KvCache {
        let mut cache = KvCache {
            slots: Vec::new(),
            cached: HashMap::new(),
            head: NONE,
            tail: NONE,
            free: 0,
            block_size: block_size.max(1),
        };
        let empty = Slot {
            holders: 0,
            hash: None,
            previous: NONE,
            next: NONE,
        };
        cache.slots = vec![empty; blocks as usize];
        (0..blocks).for_each(|block| cache.push(block));
        cache
    }

    /// Tokens per block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// All blocks.
    pub fn total(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    /// Blocks that nobody holds; some of them are cached.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Blocks with a hash.
    pub fn cached(&self) -> usize {
        self.cached.len()
    }

    fn slot(&mut self, block: Block) -> Option<&mut Slot> {
        self.slots.get_mut(block as usize)
    }

    /// Puts a block at the recently used end of the free list.
    fn push(&mut self, block: Block) {
        let tail = self.tail;
        if let Some(slot) = self.slot(block) {
            (slot.previous, slot.next) = (tail, NONE);
        }
        match self.slot(tail) {
            Some(last) => last.next = block,
            None => self.head = block,
        }
        self.tail = block;
        self.free += 1;
    }

    /// Takes a block out of the free list.
    fn unlink(&mut self, block: Block) {
        let Some(&mut Slot { previous, next, .. }) = self.slot(block) else {
            return;
        };
        match self.slot(previous) {
            Some(before) => before.next = next,
            None => self.head = next,
        }
        match self.slot(next) {
            Some(after) => after.previous = previous,
            None => self.tail = previous,
        }
        self.free -= 1;
    }

    /// The longest run of cached blocks from the start of `hashes`.
    pub fn lookup(&self, hashes: &[u64]) -> usize {
        hashes.iter().take_while(|hash| self.cached.contains_key(hash)).count()
    }

    /// Blocks among the first `count` of `hashes` that are cached and held by nobody: taking them uses up free
    /// blocks.
    pub fn idle_among(&self, hashes: &[u64], count: usize) -> u32 {
        let held = |hash: &u64| self.cached.get(hash).and_then(|block| self.slots.get(*block as usize));
        let idle = hashes.iter().take(count).filter_map(held).filter(|slot| slot.holders == 0).count();
        u32::try_from(idle).unwrap_or(u32::MAX)
    }

    /// Holds a cached block; `None` if it is not cached.
    pub fn share(&mut self, hash: u64) -> Option<Block> {
        let block = *self.cached.get(&hash)?;
        let holders = self.slot(block)?.holders;
        if holders == 0 {
            self.unlink(block);
        }
        self.slot(block)?.holders = holders + 1;
        Some(block)
    }

    /// Takes the least recently used free block; `None` if there is none.
    pub fn take(&mut self, events: &mut Vec<KvEvent>) -> Option<Block> {
        let block = self.head;
        let hash = self.slot(block)?.hash.take();
        if let Some(hash) = hash
            && self.cached.get(&hash) == Some(&block)
        {
            self.cached.remove(&hash);
            events.push(KvEvent::Removed { hash });
        }
        self.unlink(block);
        self.slot(block)?.holders = 1;
        Some(block)
    }

    /// A held block is full: later prompts can find it. Of two blocks with one hash the first stays the found one.
    pub fn fill(
        &mut self,
        block: Block,
        hash: u64,
        parent: Option<u64>,
        tokens: &[u32],
        events: &mut Vec<KvEvent>,
    ) {
        let known = self.cached.contains_key(&hash);
        let Some(slot) = self.slot(block) else {
            return;
        };
        slot.hash = Some(hash);
        if !known {
            self.cached.insert(hash, block);
            events.push(KvEvent::Stored {
                hash,
                parent,
                tokens: tokens.to_vec(),
            });
        }
    }

    /// Lets go of a held block.
    pub fn release(&mut self, block: Block) {
        let Some(slot) = self.slot(block) else {
            return;
        };
        slot.holders = slot.holders.saturating_sub(1);
        if slot.holders == 0 {
            self.push(block);
        }
    }

    /// Forgets every cached block; false, and nothing happens, while any is held.
    pub fn clear(&mut self, events: &mut Vec<KvEvent>) -> bool {
        if self.free != self.total() {
            return false;
        }
        self.cached.clear();
        self.slots.iter_mut().for_each(|slot| slot.hash = None);
        events.push(KvEvent::Cleared);
        true
    }

    /// Conservation: held and free blocks are all blocks, the free list has exactly the free ones, and each cached
    /// hash names a block that has it.
    ///
    /// # Errors
    /// Says what does not add up.
    pub fn check(&self) -> Result<(), String> {
        let held = self.slots.iter().filter(|slot| slot.holders > 0).count();
        if held + self.free as usize != self.slots.len() {
            return Err(format!("{held} held and {} free of {}", self.free, self.slots.len()));
        }
        let (mut at, mut listed) = (self.head, 0_u32);
        while let Some(slot) = self.slots.get(at as usize) {
            if slot.holders > 0 || listed > self.free {
                return Err(format!("block {at} is in the free list and held, or the list has a loop"));
            }
            listed += 1;
            at = slot.next;
        }
        if listed != self.free {
            return Err(format!("{listed} blocks in the free list, {} free", self.free));
        }
        let right = |(hash, block): (&u64, &Block)| self.slots.get(*block as usize).is_some_and(|slot| slot.hash == Some(*hash));
        if !self.cached.iter().all(right) {
            return Err("a cached hash names a block without it".to_owned());
        }
        Ok(())
    }
}
