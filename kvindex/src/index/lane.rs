//! What one group of layers of one engine rank caches: its blocks by its own names, and where they are in the runs.

use std::collections::HashMap;

use super::{
    blocks::{Added, Blocks, Dropped, FETCH, Home},
    content,
    holdings::{Holding, Holdings},
    orphans::{Orphan, Orphans},
    parts::{NewPart, Parts},
    store::{Spot, Store},
};
use crate::{
    events::{EngineHash, Stored, Tier},
    keys::{Key, KeySpace},
};

/// What a lane works with and does not own.
#[derive(Clone, Copy)]
pub(crate) struct Ground<'a> {
    pub(crate) store: &'a Store,
    pub(crate) space: &'a KeySpace,
    /// The model that requests name when they use no adapter.
    pub(crate) model: &'a str,
    /// Bytes that waiting blocks of one lane may take.
    pub(crate) orphan_bytes: usize,
}

/// Keys of engine blocks of `stride` of ours live in a space of their own.
#[inline]
pub(crate) fn tweak(stride: u32) -> u64 {
    u64::from(stride - 1).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// Counts of what events did, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Blocks stored, copies included.
    pub stored: u64,
    /// Blocks removed, copies included.
    pub removed: u64,
    /// Blocks that wait for their predecessor.
    pub orphaned: u64,
    /// Waiting blocks whose predecessor came.
    pub joined: u64,
    /// Removed blocks, or stored ones without tokens, that are not known.
    pub unknown: u64,
    /// Hashes that named another block before.
    pub mismatched: u64,
    /// Blocks that cannot be indexed: not of full attention, or of a size that does not fit ours.
    pub unsupported: u64,
    /// Times that everything was cleared.
    pub cleared: u64,
    /// Blocks given up for room.
    pub evicted: u64,
}

#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) holdings: Holdings,
    /// Tokens of an engine block.
    pub(crate) block_size: u32,
    /// Blocks of ours in one of the engine's.
    stride: u32,
    tiers: [Blocks; 4],
    /// Instead of `tiers`, when an engine block is less than one of ours.
    parts: Option<Parts>,
    orphans: Orphans,
    /// Blocks stored so far: the clock by which the least recent are found.
    clock: u64,
    keys: Vec<u64>,
    moved: Vec<Home>,
}

impl Lane {
    /// `None` when the engine's blocks and ours do not fit into each other.
    pub(crate) fn new(lane: u16, block_size: u32, space: &KeySpace) -> Option<Lane> {
        let (stride, parts) = fit(block_size, space.block())?;
        Some(Lane {
            holdings: Holdings::new(lane),
            block_size,
            stride,
            tiers: [(); 4].map(|()| Blocks::new(space.seed())),
            parts: (parts > 1).then(|| Parts::new(parts as usize)),
            orphans: Orphans::default(),
            clock: 0,
            keys: Vec::new(),
            moved: Vec::new(),
        })
    }

    pub(crate) fn stride(&self) -> u32 {
        self.stride
    }

    /// Engine blocks held, each tier counted.
    pub(crate) fn len(&self) -> usize {
        let parts = self.parts.as_ref().map_or(0, Parts::len);
        self.tiers.iter().map(Blocks::len).sum::<usize>() + parts
    }

    pub(crate) fn orphans(&self) -> usize {
        self.orphans.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        let blocks: usize = self.tiers.iter().map(Blocks::bytes).sum();
        let parts = self.parts.as_ref().map_or(0, Parts::bytes);
        size_of::<Lane>() + blocks + parts + self.holdings.bytes() + self.orphans.bytes()
    }

    fn home(&self, hash: EngineHash) -> Option<Home> {
        self.tiers.iter().find_map(|blocks| blocks.get(hash))
    }

    fn spot(&self, home: Home) -> Option<Spot> {
        Some(Spot {
            run: self.holdings.get(home.holding)?.run,
            at: home.at,
        })
    }

    /// Where a known block is, and its key.
    fn known(&self, ground: Ground<'_>, hash: EngineHash) -> Option<(Spot, Key)> {
        let spot = self.spot(self.home(hash)?)?;
        let key = ground.store.key(spot)?;
        Some((spot, Key(key ^ tweak(self.stride))))
    }

    /// Applies one event.
    pub(crate) fn store(&mut self, ground: Ground<'_>, stored: &Stored, applied: &mut Applied) {
        applied.stored += stored.hashes.len() as u64;
        if stored.tokens.is_empty() {
            return self.retier(ground, &stored.hashes, stored.tier, applied);
        }
        if self.parts.is_some() {
            return self.store_parts(ground, stored, applied);
        }
        let mut first = 0;
        let mut before = match stored.parent {
            None => Some((None, content::root(ground.space, ground.model, stored))),
            Some(parent) => self
                .known(ground, parent)
                .map(|(spot, key)| (Some(spot), key)),
        };
        while before.is_none()
            && let Some(hash) = stored.hashes.get(first)
        {
            // A block that is known needs no predecessor, and is one for the next.
            before = self
                .known(ground, *hash)
                .map(|(spot, key)| (Some(spot), key));
            if let Some(home) = self.home(*hash) {
                self.copy(ground, *hash, home, stored.tier);
            } else {
                self.orphan(ground, stored, first);
                applied.orphaned += 1;
            }
            first += 1;
        }
        let Some((spot, key)) = before else { return };
        self.chain_keys(ground, stored, first, key);
        let hashes = stored.hashes.get(first..).unwrap_or_default();
        self.place(ground, spot, hashes, stored.tier, applied);
        if !self.orphans.is_empty() {
            self.join(ground, &stored.hashes, applied);
        }
    }

    fn store_parts(&mut self, ground: Ground<'_>, stored: &Stored, applied: &mut Applied) {
        let size = stored.block_size.max(1) as usize;
        let mut parent = match stored.parent {
            Some(parent) => Ok(parent),
            None => Err(content::root(ground.space, ground.model, stored)),
        };
        let blocks = stored.hashes.iter().zip(stored.tokens.chunks_exact(size));
        for (block, (hash, tokens)) in blocks.enumerate() {
            let items = content::items(stored, block);
            let new = NewPart {
                hash: *hash,
                parent,
                tokens,
                items: &items,
            };
            if !self.store_part(ground, &new, stored.tier)
                && let Ok(parent) = parent
            {
                let ids = (*hash, parent);
                self.orphans
                    .add(ids, tokens, &items, stored.tier, ground.orphan_bytes);
                applied.orphaned += 1;
            }
            parent = Ok(*hash);
        }
        if !self.orphans.is_empty() {
            self.join(ground, &stored.hashes, applied);
        }
    }

    fn store_part(&mut self, ground: Ground<'_>, new: &NewPart<'_>, tier: Tier) -> bool {
        let Some(parts) = &mut self.parts else {
            return false;
        };
        if parts.knows(new.hash) {
            parts.again(ground, &mut self.holdings, new.hash, tier);
            return true;
        }
        parts.store(ground, &mut self.holdings, new, tier)
    }

    /// Applies stored blocks whose keys are known already.
    pub(crate) fn store_keyed(
        &mut self,
        ground: Ground<'_>,
        parent: Option<EngineHash>,
        (hashes, keys): (&[EngineHash], &[Key]),
        tier: Tier,
        applied: &mut Applied,
    ) {
        applied.stored += hashes.len() as u64;
        let spot = match parent.map(|parent| self.home(parent)) {
            None => None,
            Some(Some(home)) => self.spot(home),
            Some(None) => {
                applied.unknown += hashes.len() as u64;
                return;
            }
        };
        let tweak = tweak(self.stride);
        self.keys.clear();
        self.keys.extend(keys.iter().map(|key| key.0 ^ tweak));
        self.place(ground, spot, hashes, tier, applied);
    }

    /// Keys of the blocks from `first` on, into `self.keys`.
    fn chain_keys(&mut self, ground: Ground<'_>, stored: &Stored, first: usize, mut key: Key) {
        self.keys.clear();
        let size = stored.block_size.max(1) as usize;
        let tweak = tweak(self.stride);
        for (block, tokens) in stored.tokens.chunks_exact(size).enumerate().skip(first) {
            key = if stored.extras.is_empty() {
                content::after(ground.space, key, tokens, &[])
            } else {
                content::after(ground.space, key, tokens, &content::items(stored, block))
            };
            self.keys.push(key.0 ^ tweak);
        }
    }

    /// Holds `self.keys`, which the engine calls `hashes` and which follow `parent`.
    pub(crate) fn place(
        &mut self,
        ground: Ground<'_>,
        parent: Option<Spot>,
        hashes: &[EngineHash],
        tier: Tier,
        applied: &mut Applied,
    ) {
        self.clock += hashes.len() as u64;
        let stamp = self.stamp();
        let Some(blocks) = self.tiers.get_mut(tier.index()) else {
            return;
        };
        let (holdings, moved) = (&mut self.holdings, &mut self.moved);
        ground.store.place(parent, &self.keys, |run, span| {
            let Some(holding) = holdings.enter(run) else {
                return;
            };
            let hashes = hashes
                .get(span.from..span.from + span.count)
                .unwrap_or_default();
            let mut at = span.at as u16;
            for hashes in hashes.chunks(FETCH) {
                blocks.fetch(hashes);
                for hash in hashes {
                    if let Added::Instead(old) = blocks.add(*hash, Home { holding, at }) {
                        moved.push(old);
                    }
                    at += 1;
                }
            }
            holdings.hold(holding, run, span.at, usize::from(at), tier);
            touch(holdings, holding, stamp);
        });
        applied.mismatched += self.moved.len() as u64;
        while let Some(old) = self.moved.pop() {
            self.release(
                ground,
                old.holding,
                usize::from(old.at),
                usize::from(old.at) + 1,
                tier,
            );
        }
    }

    /// Coarse, so that a touch seldom has to go up a chain.
    fn stamp(&self) -> u32 {
        (self.clock / STAMP_BLOCKS) as u32
    }

    fn copy(&mut self, ground: Ground<'_>, hash: EngineHash, home: Home, tier: Tier) {
        let Some(blocks) = self.tiers.get_mut(tier.index()) else {
            return;
        };
        blocks.add(hash, home);
        let run = self
            .holdings
            .get(home.holding)
            .map_or(super::store::NONE, |holding| holding.run);
        if let Some(mut run) = ground.store.lock(run) {
            let at = usize::from(home.at);
            self.holdings.hold(home.holding, &mut run, at, at + 1, tier);
        }
    }

    /// Blocks without tokens: known ones are on one more tier now.
    fn retier(
        &mut self,
        ground: Ground<'_>,
        hashes: &[EngineHash],
        tier: Tier,
        applied: &mut Applied,
    ) {
        for hash in hashes {
            if let Some(parts) = &mut self.parts
                && parts.holds(*hash)
            {
                parts.again(ground, &mut self.holdings, *hash, tier);
                continue;
            }
            match self.home(*hash) {
                Some(home) => self.copy(ground, *hash, home, tier),
                None if self.orphans.again(*hash, tier) => {}
                None => applied.unknown += 1,
            }
        }
    }

    fn orphan(&mut self, ground: Ground<'_>, stored: &Stored, block: usize) {
        let size = stored.block_size as usize;
        let hash = stored.hashes.get(block);
        let parent = match block.checked_sub(1) {
            Some(before) => stored.hashes.get(before),
            None => stored.parent.as_ref(),
        };
        let tokens = stored.tokens.get(block * size..(block + 1) * size);
        if let (Some(hash), Some(parent), Some(tokens)) = (hash, parent, tokens) {
            let items = content::items(stored, block);
            let room = ground.orphan_bytes;
            self.orphans
                .add((*hash, *parent), tokens, &items, stored.tier, room);
        }
    }

    /// Places the blocks that waited for any of `hashes`, and those that waited for them.
    fn join(&mut self, ground: Ground<'_>, hashes: &[EngineHash], applied: &mut Applied) {
        let mut parents = hashes.to_vec();
        while let Some(parent) = parents.pop() {
            let known = match &self.parts {
                Some(parts) => parts.knows(parent),
                None => self.home(parent).is_some(),
            };
            if !known {
                continue;
            }
            let children = self.orphans.children(parent);
            for child in children {
                self.adopt(ground, parent, &child, applied);
                applied.joined += 1;
                parents.push(child.hash);
            }
        }
    }

    fn adopt(
        &mut self,
        ground: Ground<'_>,
        parent: EngineHash,
        child: &Orphan,
        applied: &mut Applied,
    ) {
        let copies = |tier: &Tier| child.copies.get(tier.index()).copied().unwrap_or(0);
        let tiers = Tier::ALL
            .iter()
            .flat_map(|tier| (0..copies(tier)).map(|_| *tier));
        if self.parts.is_some() {
            let (tokens, items) = (&child.tokens, &child.items);
            let new = NewPart {
                hash: child.hash,
                parent: Ok(parent),
                tokens,
                items,
            };
            for tier in tiers {
                self.store_part(ground, &new, tier);
            }
            return;
        }
        let Some((spot, key)) = self.known(ground, parent) else {
            return;
        };
        let key = content::after(ground.space, key, &child.tokens, &child.items);
        self.keys.clear();
        self.keys.push(key.0 ^ tweak(self.stride));
        for tier in tiers {
            self.place(ground, Some(spot), &[child.hash], tier, applied);
        }
    }

    /// Forgets one copy of each block.
    pub(crate) fn remove(
        &mut self,
        ground: Ground<'_>,
        hashes: &[EngineHash],
        tier: Tier,
        applied: &mut Applied,
    ) {
        applied.removed += hashes.len() as u64;
        if let Some(parts) = &mut self.parts {
            for hash in hashes {
                if !parts.remove(ground, &mut self.holdings, *hash, tier) {
                    let orphan = self.orphans.remove(*hash, tier);
                    applied.unknown += u64::from(orphan == Dropped::Unknown);
                }
            }
            return;
        }
        let mut pending = None;
        for hashes in hashes.chunks(FETCH) {
            if let Some(blocks) = self.tiers.get(tier.index()) {
                blocks.fetch(hashes);
            }
            for hash in hashes {
                let Some(home) = self.drop_copy(*hash, tier, applied) else {
                    continue;
                };
                pending = self.joined(ground, pending, home, tier);
            }
        }
        if let Some((holding, from, to)) = pending {
            self.release(ground, holding, from, to, tier);
        }
    }

    /// Forgets one copy; the home, if it was the last.
    #[inline]
    fn drop_copy(&mut self, hash: EngineHash, tier: Tier, applied: &mut Applied) -> Option<Home> {
        match self.tiers.get_mut(tier.index())?.remove(hash) {
            Dropped::Gone(home) => Some(home),
            Dropped::Fewer => None,
            Dropped::Unknown => {
                let orphan = self.orphans.remove(hash, tier);
                applied.unknown += u64::from(orphan == Dropped::Unknown);
                None
            }
        }
    }

    /// Engines evict from the tail, in one event or many: neighbours are released together.
    #[inline]
    fn joined(
        &mut self,
        ground: Ground<'_>,
        pending: Option<(u32, usize, usize)>,
        home: Home,
        tier: Tier,
    ) -> Option<(u32, usize, usize)> {
        let at = usize::from(home.at);
        match pending {
            Some((holding, from, to)) if holding == home.holding && at + 1 == from => {
                return Some((holding, at, to));
            }
            Some((holding, from, to)) if holding == home.holding && at == to => {
                return Some((holding, from, at + 1));
            }
            Some((holding, from, to)) => self.release(ground, holding, from, to, tier),
            None => {}
        }
        Some((home.holding, at, at + 1))
    }

    fn release(&mut self, ground: Ground<'_>, holding: u32, from: usize, to: usize, tier: Tier) {
        let run = self
            .holdings
            .get(holding)
            .and_then(|holding| ground.store.lock(holding.run));
        if let Some(run) = run {
            self.holdings.release(holding, run, from, to, tier);
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self, store: &Store) {
        self.holdings.clear(store);
        if let Some(parts) = &mut self.parts {
            *parts = Parts::new(parts.whole());
        }
        self.tiers.iter_mut().for_each(Blocks::clear);
        self.orphans.clear();
        self.keys = Vec::new();
    }

    /// Gives up blocks until `most` are left, or a little fewer: tails of the least recent chains first.
    ///
    /// Returns how many were given up.
    pub(crate) fn evict(&mut self, ground: Ground<'_>, most: usize) -> usize {
        let before = self.len();
        if before <= most {
            return 0;
        }
        // One pass over all names is worth it for many blocks at once.
        let cuts = self.cuts(before - (most - most / 8));
        let stays = |home: Home| {
            cuts.get(&home.holding)
                .is_none_or(|cut| usize::from(home.at) < *cut)
        };
        if let Some(parts) = &mut self.parts {
            parts.retain(ground, &mut self.holdings, stays);
            if self.len() > most {
                // What is left is no whole block of ours.
                self.clear(ground.store);
            }
            return before - self.len();
        }
        for blocks in self.tiers.iter_mut().filter(|blocks| blocks.len() > 0) {
            blocks.retain(|_, home| stays(home));
        }
        let mut cuts: Vec<(u32, usize)> = cuts.into_iter().collect();
        cuts.sort_unstable();
        for (index, cut) in cuts {
            for tier in Tier::ALL {
                let end = self.holdings.get(index).map_or(0, Holding::end);
                if end > cut {
                    self.release(ground, index, cut, end, tier);
                }
            }
        }
        before - self.len()
    }

    /// Where to cut parts of chains so that at least `excess` blocks are cut off.
    fn cuts(&self, mut excess: usize) -> HashMap<u32, usize> {
        let now = self.stamp();
        let age = |(index, holding): (u32, &Holding)| {
            (now.wrapping_sub(holding.stamp), holding.depth, index)
        };
        let mut order: Vec<(u32, u32, u32)> = self.holdings.iter().map(age).collect();
        order.sort_unstable_by(|a, b| b.cmp(a));
        let each = self.parts.as_ref().map_or(1, Parts::whole);
        let mut cuts = HashMap::new();
        for (_, _, index) in order {
            let Some(holding) = self.holdings.get(index).filter(|_| excess > 0) else {
                break;
            };
            let mut cut = holding.end();
            while cut > 0 && excess > 0 {
                cut -= 1;
                let here = Tier::ALL
                    .iter()
                    .filter(|tier| holding.has(cut, **tier))
                    .count();
                excess = excess.saturating_sub(here * each);
            }
            cuts.insert(index, cut);
        }
        cuts
    }

    /// Every block with its home's run and position, tier and copies.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (EngineHash, Spot, Tier, u32)> {
        let tiers = Tier::ALL.iter().zip(&self.tiers);
        tiers.flat_map(move |(tier, blocks)| {
            blocks.iter().filter_map(move |(hash, home, copies)| {
                Some((hash, self.spot(home)?, *tier, copies))
            })
        })
    }

    /// Holds blocks as a snapshot tells them: `keys` follow each other from the start of a chain.
    pub(crate) fn restore(
        &mut self,
        ground: Ground<'_>,
        parent: Option<Spot>,
        keys: &[u64],
        hash: EngineHash,
        tier: Tier,
        copies: u32,
        applied: &mut Applied,
    ) {
        self.keys.clear();
        self.keys.extend_from_slice(keys);
        for _ in 0..copies.max(1) {
            self.place(ground, parent, &[hash], tier, applied);
        }
    }
}

/// Blocks of ours in an engine block, and engine blocks in one of ours; one of them is 1.
fn fit(engine: u32, ours: u32) -> Option<(u32, u32)> {
    let (stride, parts) = (engine / ours, ours.checked_div(engine)?);
    let fits = engine.is_multiple_of(ours) || ours.is_multiple_of(engine);
    (fits && stride <= MAX_STRIDE).then_some((stride.max(1), parts.max(1)))
}

/// An engine block is at most this many of ours.
pub(crate) const MAX_STRIDE: u32 = 64;

/// Blocks between two values of the stamp.
const STAMP_BLOCKS: u64 = 64;

/// Marks a part of a chain and everything before it as of use now.
fn touch(holdings: &mut Holdings, mut index: u32, stamp: u32) {
    while let Some(holding) = holdings
        .get_mut(index)
        .filter(|holding| holding.stamp != stamp)
    {
        holding.stamp = stamp;
        let Some(parent) = holdings
            .get(index)
            .and_then(|holding| holdings.of_run(holding.parent))
        else {
            return;
        };
        index = parent;
    }
}
