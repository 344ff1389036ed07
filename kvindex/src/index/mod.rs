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
mod content;
mod holdings;
mod lane;
mod matches;
mod members;
mod mixer;
mod orphans;
mod parts;
mod predictions;
mod shape;
mod store;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::{
    Nanos,
    events::{Batch, EngineHash, Event, GroupKind, Removed, Stored, Tier},
    keys::{Key, KeySpace},
};
use blocks::Blocks;
use lane::{Ground, Lane, tweak};
use matches::strided;
use members::Members;
use predictions::Predictions;
use store::Store;

pub use lane::Applied;
pub use matches::{Match, Matches, TierWeights};

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

/// The names of one lane fit into [`Blocks`] even when one more event has come.
const MOST_BLOCKS: usize = Blocks::MOST / 4 * 3;
const MOST_IN_EVENT: usize = Blocks::MOST / 4;

/// An endpoint.
struct Member {
    id: EndpointId,
    slot: u32,
    /// What requests that use no adapter name.
    model: Box<str>,
    told: Mutex<Told>,
    promised: Mutex<Promised>,
    /// Engine block in blocks of ours, once it is known.
    stride: AtomicU32,
    told_bytes: AtomicU64,
    promised_bytes: AtomicU64,
    placements: AtomicU64,
    predicted: AtomicU64,
    orphans: AtomicU64,
    /// When the next prediction ends.
    due: AtomicU64,
}

impl Member {
    fn bytes(&self) -> u64 {
        self.told_bytes.load(Ordering::Relaxed) + self.promised_bytes.load(Ordering::Relaxed)
    }
}

/// Stored blocks whose keys are known: see [`Index::store_keyed`].
#[derive(Clone, Copy, Debug)]
pub struct Keyed<'a> {
    /// Block before the first one; `None` at the start of a prompt.
    pub parent: Option<EngineHash>,
    /// Names that the engine gives to the blocks.
    pub hashes: &'a [EngineHash],
    /// Their keys, as many.
    pub keys: &'a [Key],
    /// Where they are.
    pub tier: Tier,
}

#[derive(Default)]
struct Told {
    dead: bool,
    lanes: Vec<(u32, Lane)>,
    totals: Applied,
}

#[derive(Default)]
struct Promised {
    dead: bool,
    predictions: Option<Predictions>,
    room: Option<usize>,
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

    /// Begins to listen to an endpoint that serves `model`; false if it is known already.
    pub fn register(&self, id: EndpointId, model: &str) -> bool {
        self.members.add(id, |slot| Member {
            id,
            slot,
            model: model.into(),
            told: Mutex::default(),
            promised: Mutex::default(),
            stride: AtomicU32::new(1),
            told_bytes: AtomicU64::new(0),
            promised_bytes: AtomicU64::new(0),
            placements: AtomicU64::new(0),
            predicted: AtomicU64::new(0),
            orphans: AtomicU64::new(0),
            due: AtomicU64::new(Nanos::MAX),
        })
    }

    /// Whether an endpoint is known.
    pub fn contains(&self, id: EndpointId) -> bool {
        self.members.get(id).is_some()
    }

    /// Forgets an endpoint; what comes for it later is ignored. False if it is not known.
    pub fn remove(&self, id: EndpointId) -> bool {
        let Some(member) = self.members.take(id) else {
            return false;
        };
        {
            let mut told = member.told.lock();
            told.dead = true;
            for (_, mut lane) in told.lanes.drain(..) {
                lane.clear(&self.store);
                self.members.free_lane(lane.holdings.lane());
            }
        }
        let mut promised = member.promised.lock();
        promised.dead = true;
        if let Some(mut predictions) = promised.predictions.take() {
            predictions.clear(&self.store);
            self.members.free_lane(predictions.lane());
        }
        self.weigh(&member.told_bytes, 0);
        self.weigh(&member.promised_bytes, 0);
        self.members.free_seat(member.slot);
        true
    }

    /// Forgets what an endpoint holds, predictions included, and goes on listening to it.
    pub fn clear(&self, id: EndpointId) -> bool {
        let Some(member) = self.members.get(id) else {
            return false;
        };
        let mut told = member.told.lock();
        self.clear_told(&mut told);
        self.count_told(&member, &told);
        self.clear_promised(&member);
        true
    }

    fn clear_told(&self, told: &mut Told) {
        for (_, lane) in &mut told.lanes {
            lane.clear(&self.store);
        }
        told.totals.cleared += 1;
    }

    fn clear_promised(&self, member: &Member) {
        let mut promised = member.promised.lock();
        if let Some(predictions) = &mut promised.predictions {
            predictions.clear(&self.store);
            self.count_promised(member, &promised);
        }
    }

    fn ground<'a>(&'a self, member: &'a Member) -> Ground<'a> {
        Ground {
            store: &self.store,
            space: &self.config.keys,
            model: &member.model,
            orphan_bytes: self.config.max_orphan_bytes,
        }
    }

    /// Applies what an engine says; `None` if the endpoint is not known, or not any more.
    ///
    /// Which batches to apply is the matter of a [`crate::cursor::Cursor`].
    pub fn apply(&self, id: EndpointId, batch: &Batch) -> Option<Applied> {
        let member = self.members.get(id)?;
        let mut applied = Applied::default();
        {
            let mut told = member.told.lock();
            if told.dead {
                return None;
            }
            for event in &batch.events {
                match event {
                    Event::Stored(stored) => self.stored(&member, &mut told, stored, &mut applied),
                    Event::Removed(removed) => {
                        self.removed(&member, &mut told, removed, &mut applied)
                    }
                    Event::Cleared => {
                        self.clear_told(&mut told);
                        self.clear_promised(&member);
                        applied.cleared += 1;
                    }
                }
            }
            self.settle(&member, &mut told, &mut applied);
        }
        self.make_room();
        Some(applied)
    }

    /// After a change by events: bounds and gauges.
    fn settle(&self, member: &Member, told: &mut Told, applied: &mut Applied) {
        told.totals.add(applied);
        self.count_told(member, told);
    }

    fn stored(&self, member: &Member, told: &mut Told, stored: &Stored, applied: &mut Applied) {
        let full = stored.kind == GroupKind::Full && stored.hashes.len() <= MOST_IN_EVENT;
        let Some(lane) = full.then(|| self.lane(member, told, stored)).flatten() else {
            applied.unsupported += stored.hashes.len() as u64;
            return;
        };
        lane.store(self.ground(member), stored, applied);
        applied.evicted += lane.evict(self.ground(member), self.config.max_blocks) as u64;
    }

    /// The lane of a group, made by its first blocks; a new block size begins it anew.
    fn lane<'t>(
        &self,
        member: &Member,
        told: &'t mut Told,
        stored: &Stored,
    ) -> Option<&'t mut Lane> {
        let known = told
            .lanes
            .iter()
            .position(|(group, _)| *group == stored.group);
        let number = match known.and_then(|known| told.lanes.get_mut(known)) {
            Some((_, lane)) if lane.block_size == stored.block_size || stored.tokens.is_empty() => {
                return told.lanes.get_mut(known?).map(|(_, lane)| lane);
            }
            Some((_, lane)) => {
                lane.clear(&self.store);
                lane.holdings.lane()
            }
            None => {
                // Not before it is clear that the size fits.
                Lane::new(0, stored.block_size, &self.config.keys)?;
                self.members.lane(member.slot, false)?
            }
        };
        let lane = Lane::new(number, stored.block_size, &self.config.keys)?;
        let stride = lane.stride();
        member.stride.store(stride, Ordering::Relaxed);
        self.strides.fetch_or(1 << (stride - 1), Ordering::Release);
        let place = known.unwrap_or(told.lanes.len());
        match told.lanes.get_mut(place) {
            Some((_, known)) => *known = lane,
            None => told.lanes.push((stored.group, lane)),
        }
        told.lanes.get_mut(place).map(|(_, lane)| lane)
    }

    /// Applies stored blocks whose keys the caller knows, of our block size and of the first group of layers: what a
    /// simulator has instead of events. Blocks after a parent that is not known are left out.
    pub fn store_keyed(&self, id: EndpointId, stored: &Keyed<'_>) -> Option<Applied> {
        let member = self.members.get(id)?;
        let mut applied = Applied::default();
        if stored.hashes.len() > MOST_IN_EVENT || stored.hashes.len() != stored.keys.len() {
            return None;
        }
        {
            let mut told = member.told.lock();
            if told.dead {
                return None;
            }
            let like = Stored {
                block_size: self.config.keys.block(),
                ..Stored::default()
            };
            let lane = self.lane(&member, &mut told, &like)?;
            let blocks = (stored.hashes, stored.keys);
            let ground = self.ground(&member);
            lane.store_keyed(ground, stored.parent, blocks, stored.tier, &mut applied);
            applied.evicted += lane.evict(ground, self.config.max_blocks) as u64;
            self.settle(&member, &mut told, &mut applied);
        }
        self.make_room();
        Some(applied)
    }

    /// Applies removed blocks of the first group of layers, without an event around them.
    pub fn remove_keyed(
        &self,
        id: EndpointId,
        hashes: &[EngineHash],
        tier: Tier,
    ) -> Option<Applied> {
        let member = self.members.get(id)?;
        let mut applied = Applied::default();
        let mut told = member.told.lock();
        if let Some((_, lane)) = told.lanes.iter_mut().find(|(group, _)| *group == 0) {
            lane.remove(self.ground(&member), hashes, tier, &mut applied);
        }
        self.settle(&member, &mut told, &mut applied);
        Some(applied)
    }

    fn removed(&self, member: &Member, told: &mut Told, removed: &Removed, applied: &mut Applied) {
        let lane = told
            .lanes
            .iter_mut()
            .find(|(group, _)| *group == removed.group);
        match lane {
            Some((_, lane)) => {
                lane.remove(self.ground(member), &removed.hashes, removed.tier, applied);
            }
            None => applied.unknown += removed.hashes.len() as u64,
        }
    }

    /// A pick promises that an endpoint will hold a prompt, until `expires`; false if it is not known.
    pub fn predict(&self, id: EndpointId, keys: &[Key], expires: Nanos) -> bool {
        let Some(member) = self.members.get(id) else {
            return false;
        };
        let stride = member.stride.load(Ordering::Relaxed).max(1);
        let key = strided(keys, stride, tweak(stride));
        let keys: Vec<u64> = (0..keys.len() / stride as usize).filter_map(key).collect();
        {
            let mut promised = member.promised.lock();
            let Some(predictions) = self.predictions(&member, &mut promised) else {
                return false;
            };
            self.strides.fetch_or(1 << (stride - 1), Ordering::Release);
            predictions.add(&self.store, &keys, expires);
            self.count_promised(&member, &promised);
        }
        self.make_room();
        true
    }

    fn predictions<'p>(
        &self,
        member: &Member,
        promised: &'p mut Promised,
    ) -> Option<&'p mut Predictions> {
        if promised.dead {
            return None;
        }
        if promised.predictions.is_none() {
            let lane = self.members.lane(member.slot, true)?;
            let mut predictions = Predictions::new(lane);
            predictions.bound(&self.store, promised.room);
            promised.predictions = Some(predictions);
        }
        promised.predictions.as_mut()
    }

    /// Bounds what predictions of an endpoint hold, in blocks of ours: the cache size that its engine reports. What ends
    /// first goes first. `None` takes the bound away.
    pub fn bound_predictions(&self, id: EndpointId, blocks: Option<usize>) -> bool {
        let Some(member) = self.members.get(id) else {
            return false;
        };
        let mut promised = member.promised.lock();
        promised.room = blocks;
        if let Some(predictions) = &mut promised.predictions {
            predictions.bound(&self.store, blocks);
        }
        self.count_promised(&member, &promised);
        true
    }

    /// Ends predictions that expire at `now` or before. Until this is called they still count.
    ///
    /// Returns when the next one ends.
    pub fn expire(&self, now: Nanos) -> Option<Nanos> {
        let mut next = Nanos::MAX;
        for member in self.members.all() {
            if member.due.load(Ordering::Relaxed) <= now {
                let mut promised = member.promised.lock();
                if let Some(predictions) = &mut promised.predictions {
                    predictions.expire(&self.store, now);
                }
                self.count_promised(&member, &promised);
            }
            next = next.min(member.due.load(Ordering::Relaxed));
        }
        (next != Nanos::MAX).then_some(next)
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
        out.finish(&self.members);
    }

    /// Brings the gauges of what events told up to date.
    fn count_told(&self, member: &Member, told: &Told) {
        let (mut bytes, mut placements, mut orphans) = (0, 0, 0);
        for (_, lane) in &told.lanes {
            bytes += lane.bytes();
            placements += lane.len();
            orphans += lane.orphans();
        }
        member
            .placements
            .store(placements as u64, Ordering::Relaxed);
        member.orphans.store(orphans as u64, Ordering::Relaxed);
        self.weigh(&member.told_bytes, bytes);
    }

    /// Brings the gauges of what picks promised up to date.
    fn count_promised(&self, member: &Member, promised: &Promised) {
        let predictions = promised.predictions.as_ref();
        let blocks = predictions.map_or(0, Predictions::len);
        let due = predictions
            .and_then(Predictions::next)
            .unwrap_or(Nanos::MAX);
        member.predicted.store(blocks as u64, Ordering::Relaxed);
        member.due.store(due, Ordering::Relaxed);
        self.weigh(
            &member.promised_bytes,
            predictions.map_or(0, Predictions::bytes),
        );
    }

    fn weigh(&self, gauge: &AtomicU64, bytes: usize) {
        let bytes = bytes as u64;
        let before = gauge.swap(bytes, Ordering::Relaxed);
        if before != bytes {
            self.bytes
                .fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    /// Bytes on the heap, about.
    pub fn bytes(&self) -> u64 {
        let tables = size_of::<Index>() + self.members.bytes();
        self.store.size().bytes + self.bytes.load(Ordering::Relaxed) + tables as u64
    }

    /// Gives up blocks of the largest endpoints while the whole is too large.
    fn make_room(&self) {
        if self.bytes() <= self.config.max_bytes {
            return;
        }
        // A little more than needed, so that not every event comes here.
        let enough = self.config.max_bytes - self.config.max_bytes / 16;
        for _ in 0..64 {
            let members = self.members.all();
            let largest = members.iter().max_by_key(|member| member.bytes());
            let Some(member) = largest.filter(|_| self.bytes() > enough) else {
                return;
            };
            if !self.shrink(member) {
                return;
            }
        }
    }

    /// Gives up a quarter of what an endpoint holds; false if it held nothing.
    fn shrink(&self, member: &Member) -> bool {
        let mut given_up = 0;
        {
            let mut told = member.told.lock();
            let mut evicted = 0;
            for (_, lane) in &mut told.lanes {
                evicted += lane.evict(self.ground(member), lane.len() * 3 / 4);
            }
            told.totals.evicted += evicted as u64;
            given_up += evicted;
            self.count_told(member, &told);
        }
        let mut promised = member.promised.lock();
        if let Some(predictions) = &mut promised.predictions {
            let before = predictions.len();
            predictions.shrink(&self.store, before * 3 / 4);
            given_up += before - predictions.len();
        }
        self.count_promised(member, &promised);
        given_up > 0
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

    /// What events of an endpoint did so far.
    pub fn totals(&self, id: EndpointId) -> Option<Applied> {
        Some(self.members.get(id)?.told.lock().totals)
    }
}

impl Applied {
    /// Adds other counts.
    pub fn add(&mut self, other: &Applied) {
        self.stored += other.stored;
        self.removed += other.removed;
        self.orphaned += other.orphaned;
        self.joined += other.joined;
        self.unknown += other.unknown;
        self.mismatched += other.mismatched;
        self.unsupported += other.unsupported;
        self.cleared += other.cleared;
        self.evicted += other.evicted;
    }
}
