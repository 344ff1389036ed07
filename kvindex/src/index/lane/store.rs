//! What a lane does with stored blocks.

use super::{Ground, Lane, STAMP_BLOCKS, tweak};
use crate::{
    events::{EngineHash, Stored, Tier},
    index::{
        blocks::{Added, Blocks, FETCH, Home},
        content,
        holdings::Holdings,
        lane::Applied,
        orphans::Orphan,
        parts::NewPart,
        store::{MAX_RUN, NONE, Spot},
    },
    keys::Key,
};

impl Lane {
    /// Applies one event.
    pub(crate) fn store(&mut self, ground: Ground<'_>, stored: &Stored, applied: &mut Applied) {
        applied.stored += stored.hashes.len() as u64;
        if stored.tokens.is_empty() {
            return self.retier(ground, &stored.hashes, stored.tier, applied);
        }
        if self.parts.is_some() {
            return self.store_parts(ground, stored, applied);
        }
        self.fetch(&stored.hashes, stored.tier);
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

    /// Has the memory that the first of `hashes` need on its way while their parent is looked for and their keys are
    /// made.
    fn fetch(&self, hashes: &[EngineHash], tier: Tier) {
        Blocks::fetch_lines(hashes);
        if let Some(blocks) = self.tiers.get(tier.index()) {
            blocks.fetch(hashes.get(..FETCH).unwrap_or(hashes));
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
        self.fetch(hashes, tier);
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
            for (chunk, hashes) in hashes.chunks(FETCH).enumerate() {
                blocks.reserve(hashes.len());
                // The first ones are on their way already.
                if span.from + chunk * FETCH > 0 {
                    blocks.fetch(hashes);
                }
                for hash in hashes {
                    if let Added::Instead(old) = blocks.add(*hash, Home { holding, at }) {
                        moved.push((old, tier));
                    }
                    at += 1;
                }
            }
            holdings.hold(holding, run, span.at, usize::from(at), tier);
            touch(holdings, holding, u32::from(at), stamp);
        });
        applied.mismatched += self.moved.len() as u64;
        while let Some((old, tier)) = self.moved.pop() {
            let at = usize::from(old.at);
            self.release(ground, old.holding, at, at + 1, tier);
        }
    }

    /// Coarse, so that a touch seldom has to go up a chain.
    pub(super) fn stamp(&self) -> u32 {
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
            .map_or(NONE, |holding| holding.run);
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
}

/// Marks the first `length` blocks of a part of a chain, and what they stand on, as of use now.
fn touch(holdings: &mut Holdings, mut index: u32, mut length: u32, stamp: u32) {
    while let Some(holding) = holdings.get_mut(index) {
        let fresh = holding.root_stamp == stamp && u32::from(holding.rooted) >= length;
        if fresh || holding.stamp == stamp {
            return;
        }
        if length as usize >= holding.end() {
            holding.stamp = stamp;
        } else {
            holding.root_stamp = stamp;
            holding.rooted = holding.rooted.max(length.min(MAX_RUN as u32) as u16);
        }
        let (depth, before) = (holding.depth, holding.parent);
        let Some(parent) = holdings.of_run(before) else {
            return;
        };
        index = parent;
        length = depth
            - holdings
                .get(parent)
                .map_or(0, |parent| parent.depth.min(depth));
    }
}
