//! Which endpoint holds which prefix.
//!
//! ```text
//! events ---> Lane (one per endpoint, rank and group of layers): hash -> home and copies
//! picks ----> Predictions (one per endpoint and rank): lengths that expire
//!                  |  hold, release
//!                  v
//!             store: runs of consecutive blocks; each has one word for each lane that holds its first blocks
//!                  ^
//!                  |  first key -> run, then the next one
//! lookup ----------'  no lock, no retry, nothing written
//! ```
//!
//! A lookup touches one run for each branch on its way, not one entry for each block: a run's words already say how much
//! of it is held without a hole.
//!
//! Writers of different endpoints work side by side. Everything is bounded: see [`Config`].

mod blocks;
mod bounds;
mod content;
mod holdings;
mod lane;
mod listen;
mod matches;
mod member;
mod members;
mod mixer;
mod orphans;
mod parts;
mod predictions;
mod promise;
mod shape;
mod snapshot;
mod store;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::keys::{Key, KeySpace};
use blocks::Blocks;
use lane::tweak;
use matches::strided;
use members::Members;
use store::Store;

pub use lane::Applied;
pub use listen::Keyed;
pub use matches::{Match, Matches, TierWeights};
#[cfg(feature = "tokens")]
pub(crate) use mixer::Mixer;
pub use snapshot::{EndpointSnapshot, SNAPSHOT_VERSION, SnapshotError, check as check_snapshot};

/// One rank of one life of an endpoint. A number is never used for another life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId {
    /// Life of the endpoint.
    pub incarnation: u64,
    /// Data-parallel rank, 0 when there is one.
    pub rank: u32,
}

/// Bounds and sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How keys are made.
    pub keys: KeySpace,
    /// Bytes of the whole index; tails of the least recent chains of the largest endpoints go first.
    pub max_bytes: u64,
    /// Blocks of one group of layers of an endpoint, as the engine counts them, each tier counted; tails of its least
    /// recent chains go first. At most three million.
    pub max_blocks: usize,
    /// Bytes of one endpoint's blocks that wait for their predecessor; the oldest go first.
    pub max_orphan_bytes: usize,
}

/// The names of one lane fit into [`Blocks`] even when one more event has come.
const MOST_BLOCKS: usize = Blocks::MOST / 4 * 3;

impl Default for Config {
    fn default() -> Config {
        Config {
            keys: KeySpace::new(16, 0),
            max_bytes: 2 << 30,
            max_blocks: MOST_BLOCKS,
            max_orphan_bytes: 8 << 20,
        }
    }
}

/// Sizes, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Endpoints, each rank counted.
    pub endpoints: usize,
    /// Pairs of an engine's block and a tier that holds it.
    pub placements: u64,
    /// Distinct blocks.
    pub blocks: u64,
    /// Stretches of chains without a branch.
    pub runs: u64,
    /// Blocks that picks promise.
    pub predicted: u64,
    /// Blocks that wait for their predecessor.
    pub orphans: u64,
    /// Bytes on the heap, about.
    pub bytes: u64,
}

/// The index. See the [module](self).
pub struct Index {
    config: Config,
    store: Store,
    members: Members,
    /// Bit `n-1`: some lane has engine blocks of `n` of ours.
    strides: AtomicU64,
    /// Bytes of all members.
    bytes: AtomicU64,
}

impl Index {
    /// An empty index.
    pub fn new(config: Config) -> Index {
        let max_blocks = config.max_blocks.min(MOST_BLOCKS);
        Index {
            config: Config {
                max_blocks,
                ..config
            },
            store: Store::new(),
            members: Members::new(),
            strides: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// What it was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What every endpoint holds of a prompt, by its keys in order (see [`KeySpace::prompt`]).
    ///
    /// Takes no lock and waits for nobody. For each endpoint and each stretch of the chain the answer is true at some
    /// moment of the call.
    pub fn lookup(&self, keys: &[Key], out: &mut Matches) {
        /// Owners change when endpoints come and go; three such changes within a lookup are as good as unknown.
        const ATTEMPTS: usize = 3;
        out.clear();
        for _ in 0..ATTEMPTS {
            let changes = self.members.changes();
            self.look(keys, out);
            if out.is_empty() || self.members.changes() == changes {
                return;
            }
            out.clear();
        }
    }

    #[inline]
    fn look(&self, keys: &[Key], out: &mut Matches) {
        let pin = self.store.pin();
        let mut strides = self.strides.load(Ordering::Acquire);
        while strides != 0 {
            let stride = strides.trailing_zeros() + 1;
            strides &= strides - 1;
            let count = keys.len() / stride as usize;
            if stride == 1 {
                out.walk(&pin, count, |at| keys.get(at).map(|key| key.0));
            } else {
                out.walk(&pin, count, strided(keys, stride, tweak(stride)));
            }
            out.settle(&self.members, stride);
        }
        out.finish();
    }

    /// Sizes of the whole.
    pub fn stats(&self) -> Stats {
        let size = self.store.size();
        let mut stats = Stats {
            blocks: size.blocks,
            runs: size.runs,
            bytes: self.bytes(),
            ..Stats::default()
        };
        for member in self.members.all() {
            stats.endpoints += 1;
            stats.placements += member.placements.load(Ordering::Relaxed);
            stats.predicted += member.predicted.load(Ordering::Relaxed);
            stats.orphans += member.orphans.load(Ordering::Relaxed);
        }
        stats
    }
}
