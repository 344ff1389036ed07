//! KV blocks and the prefix cache, as vLLM keeps them.
//!
//! A block is *held* by one or more requests, or idle. An idle block is *cached* while it still has the hash of its
//! contents, so that a later prompt can find it, and *free* otherwise; `held + cached + free = total` always.
//! Idle blocks are taken from the least recently released on, and a request releases its last block first, so the
//! heads of prompts live longest.
//!
//! Two blocks may have the same hash: a prompt that is an exact multiple of the block size computes its last block
//! again. The first one stays the one that is found, until it is taken.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// Index of a block.
pub type Block = u32;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Slot {
    holders: u32,
    hash: Option<u64>,
    /// Neighbours in the list of idle blocks.
    previous: u32,
    next: u32,
    /// The next block with the same hash.
    twin: u32,
}

const EMPTY: Slot = Slot {
    holders: 0,
    hash: None,
    previous: NONE,
    next: NONE,
    twin: NONE,
};

/// Keys are hashes already.
#[derive(Clone, Copy, Debug, Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// How many blocks are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCounts {
    /// Held by requests.
    pub held: u32,
    /// Idle, with contents that a prompt can find.
    pub cached: u32,
    /// Idle and empty.
    pub free: u32,
}

impl BlockCounts {
    /// Blocks that can be taken: cached and free ones.
    pub fn idle(self) -> u32 {
        self.cached + self.free
    }
}

/// All blocks of an engine.
#[derive(Debug)]
pub struct BlockPool {
    slots: Vec<Slot>,
    /// First block of each hash.
    found: HashMap<u64, Block, BuildHasherDefault<Identity>>,
    head: u32,
    tail: u32,
    counts: BlockCounts,
}

impl BlockPool {
    /// A pool of `total` free blocks.
    pub fn new(total: u32) -> BlockPool {
        let mut pool = BlockPool {
            slots: vec![EMPTY; total as usize],
            found: HashMap::default(),
            head: NONE,
            tail: NONE,
            counts: BlockCounts::default(),
        };
        (0..total).for_each(|block| pool.append(block));
        pool
    }

    /// All blocks.
    pub fn total(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    /// Blocks by state.
    pub fn counts(&self) -> BlockCounts {
        self.counts
    }

    /// Blocks that can be taken.
    pub fn idle(&self) -> u32 {
        self.counts.idle()
    }

    /// True if no block is lost and none counted twice.
    pub fn balanced(&self) -> bool {
        self.counts.held + self.counts.idle() == self.total()
    }

    /// Hashes at the head of `hashes` that are cached or held.
    pub fn lookup(&self, hashes: &[u64]) -> usize {
        let known = |hash: &&u64| self.found.contains_key(hash);
        hashes.iter().take_while(known).count()
    }

    /// Blocks of `hashes` that are idle: sharing them takes them away from the idle ones.
    pub fn idle_among(&self, hashes: &[u64]) -> u32 {
        let idle = |hash: &&u64| {
            let block = self.found.get(hash);
            let slot = block.and_then(|block| self.slots.get(*block as usize));
            slot.is_some_and(|slot| slot.holders == 0)
        };
        u32::try_from(hashes.iter().filter(idle).count()).unwrap_or(u32::MAX)
    }

    /// Holds the block with this hash, if there is one.
    pub fn share(&mut self, hash: u64) -> Option<Block> {
        let block = *self.found.get(&hash)?;
        if self.slot(block)?.holders == 0 {
            self.unlink(block);
            self.counts.cached -= 1;
            self.counts.held += 1;
        }
        self.slot(block)?.holders += 1;
        Some(block)
    }

    /// Holds the least recently released idle block; also says which contents were lost by that.
    pub fn take(&mut self) -> Option<(Block, Option<u64>)> {
        let block = self.head;
        let lost = self.slot(block)?.hash;
        self.unlink(block);
        match lost {
            Some(hash) => {
                self.counts.cached -= 1;
                self.forget(block, hash);
            }
            None => self.counts.free -= 1,
        }
        self.counts.held += 1;
        self.slot(block)?.holders = 1;
        Some((block, lost))
    }

    /// A held block is full: from now on it can be found by its hash.
    pub fn publish(&mut self, block: Block, hash: u64) {
        let Some(slot) = self.slot(block) else { return };
        if slot.holders == 0 || slot.hash.is_some() {
            return;
        }
        slot.hash = Some(hash);
        match self.found.get(&hash).copied() {
            None => {
                self.found.insert(hash, block);
            }
            Some(first) => {
                let last = self.last_twin(first);
                if let Some(last) = self.slot(last) {
                    last.twin = block;
                }
            }
        }
    }

    /// Lets go of a held block.
    pub fn release(&mut self, block: Block) {
        let Some(slot) = self.slot(block) else { return };
        match slot.holders {
            0 => {}
            1 => {
                slot.holders = 0;
                self.counts.held -= 1;
                self.append(block);
            }
            _ => slot.holders -= 1,
        }
    }

    /// Forgets all contents; false, and nothing happens, while any block is held.
    pub fn clear(&mut self) -> bool {
        if self.counts.held > 0 {
            return false;
        }
        self.found.clear();
        for slot in &mut self.slots {
            slot.hash = None;
            slot.twin = NONE;
        }
        self.counts.free += std::mem::take(&mut self.counts.cached);
        true
    }

    /// Recounts everything from the blocks themselves: slow, for tests.
    ///
    /// # Errors
    /// Says what does not add up.
    pub fn check(&self) -> Result<(), String> {
        let mut counted = BlockCounts::default();
        for slot in &self.slots {
            match (slot.holders, slot.hash) {
                (0, None) => counted.free += 1,
                (0, Some(_)) => counted.cached += 1,
                _ => counted.held += 1,
            }
        }
        if counted != self.counts || !self.balanced() {
            return Err(format!("{:?} kept, {counted:?} counted", self.counts));
        }
        let (mut at, mut listed) = (self.head, 0_u32);
        while let Some(slot) = self.slots.get(at as usize) {
            if slot.holders > 0 || listed > self.idle() {
                return Err(format!(
                    "block {at} is listed as idle and held, or the list loops"
                ));
            }
            listed += 1;
            at = slot.next;
        }
        if listed != self.idle() {
            return Err(format!(
                "{listed} blocks listed as idle, {} counted",
                self.idle()
            ));
        }
        let mut reachable = 0;
        for (hash, first) in &self.found {
            let mut at = *first;
            while let Some(slot) = self.slots.get(at as usize) {
                if slot.hash != Some(*hash) || reachable > self.slots.len() {
                    return Err(format!("block {at} is found by a hash that it has not"));
                }
                reachable += 1;
                at = slot.twin;
            }
        }
        let hashed = self.slots.iter().filter(|slot| slot.hash.is_some()).count();
        if reachable == hashed {
            Ok(())
        } else {
            Err(format!("{reachable} of {hashed} blocks can be found"))
        }
    }

    fn slot(&mut self, block: Block) -> Option<&mut Slot> {
        self.slots.get_mut(block as usize)
    }

    fn last_twin(&self, first: Block) -> Block {
        let mut last = first;
        while let Some(slot) = self.slots.get(last as usize) {
            if slot.twin == NONE {
                break;
            }
            last = slot.twin;
        }
        last
    }

    /// Takes `block` out of the chain of its hash.
    fn forget(&mut self, block: Block, hash: u64) {
        let Some(slot) = self.slot(block) else { return };
        slot.hash = None;
        let after = std::mem::replace(&mut slot.twin, NONE);
        let Some(first) = self.found.get(&hash).copied() else {
            return;
        };
        if first == block {
            if after == NONE {
                self.found.remove(&hash);
            } else {
                self.found.insert(hash, after);
            }
            return;
        }
        let mut at = first;
        while let Some(slot) = self.slot(at) {
            if slot.twin == block {
                slot.twin = after;
                return;
            }
            at = slot.twin;
        }
    }

    /// Puts an idle block behind all others.
    fn append(&mut self, block: Block) {
        let tail = self.tail;
        let Some(slot) = self.slot(block) else { return };
        slot.previous = tail;
        slot.next = NONE;
        let cached = slot.hash.is_some();
        match self.slot(tail) {
            Some(before) => before.next = block,
            None => self.head = block,
        }
        self.tail = block;
        if cached {
            self.counts.cached += 1;
        } else {
            self.counts.free += 1;
        }
    }

    fn unlink(&mut self, block: Block) {
        let Some(slot) = self.slot(block) else { return };
        let (previous, next) = (slot.previous, slot.next);
        slot.previous = NONE;
        slot.next = NONE;
        match self.slot(previous) {
            Some(before) => before.next = next,
            None => self.head = next,
        }
        match self.slot(next) {
            Some(after) => after.previous = previous,
            None => self.tail = previous,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_released_block_is_taken_first() {
        let mut pool = BlockPool::new(3);
        let blocks: Vec<Block> = (0..3).map(|_| pool.take().unwrap().0).collect();
        assert_eq!(pool.take(), None);
        for (block, hash) in blocks.iter().zip([10, 11, 12]) {
            pool.publish(*block, hash);
        }
        // A request releases its last block first.
        blocks.iter().rev().for_each(|block| pool.release(*block));
        assert_eq!(
            pool.counts(),
            BlockCounts {
                held: 0,
                cached: 3,
                free: 0
            }
        );
        assert_eq!(pool.take(), Some((blocks[2], Some(12))));
        assert_eq!(pool.lookup(&[10, 11, 12]), 2);
        assert_eq!(pool.idle_among(&[10, 11]), 2);
        assert_eq!(pool.share(10), Some(blocks[0]));
        assert_eq!(pool.idle_among(&[10, 11]), 1);
        assert_eq!(
            pool.counts(),
            BlockCounts {
                held: 2,
                cached: 1,
                free: 0
            }
        );
        assert!(!pool.clear());
        assert_eq!(pool.check(), Ok(()));
    }

    #[test]
    fn a_second_block_with_the_same_contents_is_found_once_the_first_is_gone() {
        let mut pool = BlockPool::new(2);
        let (first, _) = pool.take().unwrap();
        let (second, _) = pool.take().unwrap();
        pool.publish(first, 7);
        pool.publish(second, 7);
        assert_eq!(pool.check(), Ok(()));
        pool.release(first);
        assert_eq!(pool.take(), Some((first, Some(7))));
        assert_eq!(pool.share(7), Some(second));
        assert_eq!(pool.check(), Ok(()));
        [first, second, second]
            .into_iter()
            .for_each(|block| pool.release(block));
        assert!(pool.clear());
        assert_eq!(pool.lookup(&[7]), 0);
        assert_eq!(
            pool.counts(),
            BlockCounts {
                held: 0,
                cached: 0,
                free: 2
            }
        );
        assert_eq!(pool.check(), Ok(()));
    }
}
