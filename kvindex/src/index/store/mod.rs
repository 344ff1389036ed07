//! The concurrent core: all runs, found by their first key.
//!
//! Every block has one home: a position in a run. It is found from its predecessor's home (the next position, if the
//! key there is the same) or by its key as the head of a run. Keys commit to all before them, so a reader that has
//! found a head knows that everything before it matched. Nothing moves when chains branch: a branch is a run of its own.
//!
//! A run whose predecessor's home is given up while it lives is *detached*: its chain may come back under other hands, and
//! must then find it. While none is, the keys after an unknown one are unknown without asking.
//!
//! Readers pin the table of heads and read atomics; they take no lock, retry nothing and write nothing. Writers change a
//! run under its cell's lock, and hold at most one such lock.

mod chunked;
mod run;
mod sync;

use std::sync::Arc;

pub(crate) use chunked::Chunked;
pub(crate) use run::{Lengths, MAX_RUN, Run, lane_of, lengths_of, word};
pub(crate) use sync::Pin;
use sync::{AtomicU32, AtomicU64, Heads, Mutex, MutexGuard, Ordering, locked};

/// No run.
pub(crate) const NONE: u32 = u32::MAX;
/// Runs shorter than this are not worth a copy to get rid of keys that nobody holds.
const SHRINK_FROM: usize = 32;

/// Home of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) run: u32,
    pub(crate) at: u16,
}

/// Consecutive blocks in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Position in the run.
    pub(crate) at: usize,
    /// Position in the keys that were placed.
    pub(crate) from: usize,
    pub(crate) count: usize,
}

/// What a writer knows of a run.
struct Cell {
    run: Option<Arc<Run>>,
    /// The run that this one continued when it was last entered.
    parent: Link,
    /// Keys that runs which continue this one stand on.
    rooted: u16,
    /// Blocks before it in its chain.
    depth: u32,
    /// Lanes that hold some of it.
    lanes: u32,
    /// Lanes whose words do not tell all that they hold: nothing may be cut off.
    uneven: u32,
    /// Vacant holder words.
    vacant: u32,
    /// When a holder falls below this length, look for keys that nobody holds.
    watermark: u16,
}

#[expect(
    clippy::derivable_impls,
    reason = "spelled out: an empty cell is a state of its own"
)]
impl Default for Cell {
    fn default() -> Cell {
        Cell {
            run: None,
            parent: Link::default(),
            rooted: 0,
            depth: 0,
            lanes: 0,
            uneven: 0,
            vacant: 0,
            watermark: 0,
        }
    }
}

/// A run at the time when others continued it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link {
    run: u32,
    /// Changes when keys that others stand on are given up.
    era: u32,
}

impl Default for Link {
    fn default() -> Link {
        Link { run: NONE, era: 0 }
    }
}

#[derive(Default)]
struct Place {
    cell: Mutex<Cell>,
    /// Era, and in the low half the number of runs that continue this one in it.
    branches: AtomicU64,
}

pub(crate) struct Store {
    heads: Heads,
    places: Chunked<Place>,
    /// Runs whose link is of a past era.
    detached: AtomicU64,
    /// Cells that were used and are not.
    idle: Mutex<Vec<u32>>,
    /// Cells that were never used begin here.
    fresh: AtomicU32,
    bytes: AtomicU64,
    blocks: AtomicU64,
    runs: AtomicU64,
}

/// Sizes, for metrics and bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreSize {
    pub(crate) bytes: u64,
    /// Distinct blocks, those included that nobody holds but whose room is not yet given back.
    pub(crate) blocks: u64,
    pub(crate) runs: u64,
}

/// About what the table of heads takes for one run: a boxed pair, its pointer and its tag at the usual load.
const HEAD_BYTES: u64 = 32;

impl Store {
    pub(crate) fn new() -> Store {
        Store {
            heads: Heads::new(),
            places: Chunked::new(),
            detached: AtomicU64::new(0),
            idle: Mutex::new(Vec::new()),
            fresh: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            blocks: AtomicU64::new(0),
            runs: AtomicU64::new(0),
        }
    }

    pub(crate) fn size(&self) -> StoreSize {
        let runs = self.runs.load(Ordering::Relaxed);
        let places = u64::from(self.fresh.load(Ordering::Relaxed)) * size_of::<Place>() as u64;
        StoreSize {
            bytes: self.bytes.load(Ordering::Relaxed) + places + runs * HEAD_BYTES,
            blocks: self.blocks.load(Ordering::Relaxed),
            runs,
        }
    }

    /// A view for lookups: what is found stays readable while it lives.
    #[inline]
    pub(crate) fn pin(&self) -> Pin<'_> {
        self.heads.pin()
    }

    /// Locks a run that the caller's lane holds some of; `None` for a number that was never given.
    pub(crate) fn lock(&self, id: u32) -> Option<Locked<'_>> {
        let cell = locked(&self.places.get(id)?.cell);
        cell.run.is_some().then_some(Locked {
            store: self,
            id,
            cell,
        })
    }

    /// The key at a spot that the caller's lane holds.
    pub(crate) fn key(&self, spot: Spot) -> Option<u64> {
        self.lock(spot.run)?.run()?.key(usize::from(spot.at))
    }

    /// Finds or makes the homes of `keys`, which follow the block at `parent` or start a chain.
    ///
    /// `visit` is called for each span in order with its run locked; it must make some lane hold each span, because a
    /// run that no lane holds is given back.
    pub(crate) fn place(
        &self,
        parent: Option<Spot>,
        keys: &[u64],
        mut visit: impl FnMut(&mut Locked<'_>, Span),
    ) {
        let pin = self.pin();
        let mut here = parent.and_then(|spot| self.lock(spot.run));
        let mut at = parent.map_or(0, |spot| usize::from(spot.at) + 1);
        let (mut before, mut depth) = (Link::default(), 0);
        let mut placed = 0;
        while let Some(rest) = keys.get(placed..).filter(|rest| !rest.is_empty()) {
            let mut run = match here.take() {
                Some(run) => run,
                None => {
                    at = 0;
                    match self.enter(&pin, rest, before, depth) {
                        Some(run) => run,
                        None => return,
                    }
                }
            };
            let mut take = |run: &mut Locked<'_>, at: &mut usize, count: usize| {
                if count > 0 {
                    visit(
                        run,
                        Span {
                            at: *at,
                            from: placed,
                            count,
                        },
                    );
                    placed += count;
                    *at += count;
                }
            };
            let known = run.same(at, rest);
            take(&mut run, &mut at, known);
            let rest = rest.get(known..).unwrap_or_default();
            if at == run.length() && at < MAX_RUN {
                let fresh = self.headless(&pin, rest, MAX_RUN - at);
                run.extend(&pin, rest.get(..fresh).unwrap_or_default());
                take(&mut run, &mut at, fresh);
            }
            if placed < keys.len() {
                before = run.branch_at(at);
                depth = run.cell.depth.saturating_add(at as u32);
            }
        }
    }

    /// Locks the run that begins with the first of `keys`, made if there is none; `None` when no more can be made.
    fn enter(&self, pin: &Pin<'_>, keys: &[u64], before: Link, depth: u32) -> Option<Locked<'_>> {
        let (head, tail) = keys.split_first()?;
        loop {
            if let Some(run) = pin.get(*head) {
                let cell = locked(&self.places.get(run.id)?.cell);
                let mut found = Locked {
                    store: self,
                    id: run.id,
                    cell,
                };
                // The run may have been given back, and its place used again, before the lock was ours.
                if found.run().and_then(|run| run.key(0)) == Some(*head) {
                    found.link(before);
                    return Some(found);
                }
                continue;
            }
            let count = 1 + self.headless_after(pin, tail, MAX_RUN - 1);
            let mut made = self.make(keys.get(..count).unwrap_or_default(), depth)?;
            let run = made.cell.run.clone()?;
            if pin.add(*head, Arc::clone(&run)) {
                self.grown(run.bytes(), count);
                self.runs.fetch_add(1, Ordering::Relaxed);
                made.link(before);
                return Some(made);
            }
            made.give_back();
        }
    }

    /// Keys at the start of `keys` that begin no run, up to `most`: only those may be appended, or a block whose chain
    /// was interrupted would get a second home.
    fn headless(&self, pin: &Pin<'_>, keys: &[u64], most: usize) -> usize {
        match keys.split_first() {
            Some((first, tail)) if pin.get(*first).is_none() => {
                1 + self.headless_after(pin, tail, most - 1)
            }
            _ => 0,
        }
    }

    /// The same for keys that follow one that has no home.
    fn headless_after(&self, pin: &Pin<'_>, keys: &[u64], most: usize) -> usize {
        let keys = keys.get(..most).unwrap_or(keys);
        if self.detached.load(Ordering::SeqCst) == 0 {
            return keys.len();
        }
        keys.iter()
            .take_while(|key| pin.get(**key).is_none())
            .count()
    }

    /// Ends an era of a run: whatever continues it is detached. Called before the keys are gone.
    fn end_era(&self, run: u32) {
        let Some(place) = self.places.get(run) else {
            return;
        };
        let mut branches = place.branches.load(Ordering::SeqCst);
        while branches as u32 > 0 {
            // Counted first: who sees the keys gone must see this.
            self.detached
                .fetch_add(branches & u64::from(u32::MAX), Ordering::SeqCst);
            let next = ((branches >> 32) + 1) << 32;
            match place.branches.compare_exchange(
                branches,
                next,
                Ordering::SeqCst,
                Ordering::SeqCst,
            ) {
                Ok(_) => return,
                Err(changed) => {
                    self.detached
                        .fetch_sub(branches & u64::from(u32::MAX), Ordering::SeqCst);
                    branches = changed;
                }
            }
        }
    }

    /// Counts one run more or less that continues another; false if the era of the link is over.
    fn count_branch(&self, link: Link, more: bool) -> bool {
        let Some(place) = self.places.get(link.run) else {
            return false;
        };
        let mut branches = place.branches.load(Ordering::SeqCst);
        while (branches >> 32) as u32 == link.era {
            let next = if more { branches + 1 } else { branches - 1 };
            match place.branches.compare_exchange(
                branches,
                next,
                Ordering::SeqCst,
                Ordering::SeqCst,
            ) {
                Ok(_) => return true,
                Err(changed) => branches = changed,
            }
        }
        false
    }

    fn make(&self, keys: &[u64], depth: u32) -> Option<Locked<'_>> {
        let idle = locked(&self.idle).pop();
        let id = match idle {
            Some(id) => id,
            None => {
                // Wrapping would need four billion runs alive at once.
                let id = self.fresh.fetch_add(1, Ordering::Relaxed);
                (id != NONE).then_some(id)?
            }
        };
        let mut cell = locked(&self.places.reach(id)?.cell);
        let run = Some(Arc::new(Run::new(id, keys, keys.len(), &[], 1)));
        *cell = Cell {
            run,
            depth,
            ..Cell::default()
        };
        Some(Locked {
            store: self,
            id,
            cell,
        })
    }

    fn grown(&self, bytes: usize, blocks: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.blocks.fetch_add(blocks as u64, Ordering::Relaxed);
    }

    fn shrunk(&self, bytes: usize, blocks: usize) {
        self.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        self.blocks.fetch_sub(blocks as u64, Ordering::Relaxed);
    }
}

/// A run that nobody else changes.
pub(crate) struct Locked<'a> {
    store: &'a Store,
    pub(crate) id: u32,
    cell: MutexGuard<'a, Cell>,
}

impl Locked<'_> {
    fn run(&self) -> Option<&Run> {
        self.cell.run.as_deref()
    }

    /// The run before it in its chain; a hint, as that one may be gone.
    pub(crate) fn parent(&self) -> u32 {
        self.cell.parent.run
    }

    /// A link for a run that continues this one after `at` keys.
    fn branch_at(&mut self, at: usize) -> Link {
        self.cell.rooted = self.cell.rooted.max(at as u16);
        let place = self.store.places.get(self.id);
        let branches = place.map_or(0, |place| place.branches.load(Ordering::SeqCst));
        Link {
            run: self.id,
            era: (branches >> 32) as u32,
        }
    }

    /// Links the run to the one that it continues now.
    fn link(&mut self, link: Link) {
        if link != self.cell.parent {
            self.unlink();
            self.cell.parent = link;
            if link.run != NONE && !self.store.count_branch(link, true) {
                self.store.detached.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    fn unlink(&mut self) {
        let link = std::mem::take(&mut self.cell.parent);
        if link.run != NONE && !self.store.count_branch(link, false) {
            self.store.detached.fetch_sub(1, Ordering::SeqCst);
        }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.cell.depth
    }

    pub(crate) fn length(&self) -> usize {
        self.run().map_or(0, Run::length)
    }

    fn same(&self, at: usize, keys: &[u64]) -> usize {
        self.run().map_or(0, |run| run.same(at, keys))
    }

    /// The keys of the run, in order.
    pub(crate) fn keys(&self) -> Vec<u64> {
        self.run()
            .map_or_else(Vec::new, |run| run.keys(run.length()).collect())
    }

    /// Replaces the run by a copy of other dimensions.
    fn copy(&mut self, pin: &Pin<'_>, keys: usize, key_room: usize, holder_room: usize) {
        let Some(old) = self.cell.run.take() else {
            return;
        };
        let kept: Vec<u64> = old.keys(keys).collect();
        let holders: Vec<u64> = old.holders().collect();
        let new = Arc::new(Run::new(self.id, &kept, key_room, &holders, holder_room));
        self.store.grown(new.bytes(), 0);
        self.store.shrunk(old.bytes(), old.length() - kept.len());
        if let Some(head) = new.key(0) {
            pin.replace(head, Arc::clone(&new));
        }
        self.cell.run = Some(new);
    }

    fn extend(&mut self, pin: &Pin<'_>, keys: &[u64]) {
        let Some(run) = self.run().filter(|_| !keys.is_empty()) else {
            return;
        };
        let (length, room) = (run.length(), run.key_room());
        let needed = length + keys.len();
        if needed > room {
            let room = needed.max(length + length / 2).clamp(4, MAX_RUN);
            let holders = run.holder_room();
            self.copy(pin, length, room, holders);
        }
        if let Some(run) = self.run() {
            run.append(keys);
            self.store.grown(0, keys.len());
        }
    }

    /// A slot in which a lane's word can be set.
    pub(crate) fn join(&mut self, lane: u16) -> Option<u16> {
        let word = word(lane, [0; 4]);
        let slot = if self.cell.vacant > 0 {
            let slot = self.run()?.holders().position(|word| word == 0)?;
            let slot = u16::try_from(slot).ok()?;
            self.run()?.set_holder(slot, word);
            self.cell.vacant -= 1;
            slot
        } else if let Some(slot) = self.run()?.add_holder(word) {
            slot
        } else {
            let (length, keys, holders) = {
                let run = self.run()?;
                (run.length(), run.key_room(), run.holder_room())
            };
            let pin = self.store.pin();
            self.copy(&pin, length, keys, holders * 2);
            self.run()?.add_holder(word)?
        };
        self.cell.lanes += 1;
        Some(slot)
    }

    /// Says how much a lane holds: the answer of lookups from now on.
    #[inline]
    pub(crate) fn hold(&mut self, lane: u16, slot: u16, lengths: Lengths, before: usize) {
        if let Some(run) = self.run() {
            run.set_holder(slot, word(lane, lengths));
        }
        let now = usize::from(lengths.into_iter().max().unwrap_or(0));
        let watermark = usize::from(self.cell.watermark);
        if now < before && now < watermark && before >= watermark {
            self.trim();
        } else if now > before && self.cell.uneven == 0 {
            let mark = self.length() * 3 / 4;
            if mark > watermark {
                self.cell.watermark = mark as u16;
            }
        }
    }

    /// A lane's word tells less than it holds from now on, or all of it again.
    pub(crate) fn uneven(&mut self, uneven: bool) {
        if uneven {
            self.cell.uneven += 1;
        } else {
            self.cell.uneven = self.cell.uneven.saturating_sub(1);
        }
    }

    /// Gives back the keys that nobody holds, when they are many.
    fn trim(&mut self) {
        let Some(run) = self.run() else { return };
        let length = run.length();
        if self.cell.uneven > 0 || length < SHRINK_FROM {
            return;
        }
        let longest = |word: u64| lengths_of(word).into_iter().max().unwrap_or(0);
        let held = usize::from(run.holders().map(longest).max().unwrap_or(0));
        let holders = run.holder_room();
        self.cell.watermark = (held * 3 / 4) as u16;
        if held > 0 && held <= length * 3 / 4 {
            if held < usize::from(self.cell.rooted) {
                self.store.end_era(self.id);
                self.cell.rooted = 0;
            }
            let pin = self.store.pin();
            self.copy(&pin, held, held, holders);
        }
    }

    /// The lane holds nothing here any more. The last one to leave gives the run back.
    pub(crate) fn leave(mut self, slot: u16) {
        if let Some(run) = self.run() {
            run.set_holder(slot, 0);
        }
        self.cell.vacant += 1;
        self.cell.lanes = self.cell.lanes.saturating_sub(1);
        if self.cell.lanes > 0 {
            return;
        }
        if let Some(run) = self.cell.run.clone() {
            self.store.end_era(self.id);
            self.unlink();
            if let Some(head) = run.key(0) {
                self.store.pin().remove(head);
            }
            self.store.shrunk(run.bytes(), run.length());
            self.store.runs.fetch_sub(1, Ordering::Relaxed);
        }
        self.give_back();
    }

    fn give_back(mut self) {
        *self.cell = Cell::default();
        drop(self.cell);
        locked(&self.store.idle).push(self.id);
    }
}
