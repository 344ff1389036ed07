//! What one group of layers of one engine rank caches: its blocks by its own names, and where they are in the runs.

mod applied;
mod evict;
mod remove;
mod restore;
mod store;

use super::{
    blocks::{Blocks, Home},
    holdings::Holdings,
    orphans::Orphans,
    parts::Parts,
    store::{Spot, Store},
};
use crate::{
    events::{EngineHash, Tier},
    keys::{Key, KeySpace},
};

pub use applied::Applied;
pub(crate) use restore::{Piece, PieceBlock};

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
    moved: Vec<(Home, Tier)>,
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

    /// Whether an engine block is at least one of ours.
    pub(crate) fn whole(&self) -> bool {
        self.parts.is_none()
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

    /// Every block with its home's run and position, tier and copies.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (EngineHash, Spot, Tier, u32)> {
        let tiers = Tier::ALL.iter().zip(&self.tiers);
        tiers.flat_map(move |(tier, blocks)| {
            blocks.iter().filter_map(move |(hash, home, copies)| {
                Some((hash, self.spot(home)?, *tier, copies))
            })
        })
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
