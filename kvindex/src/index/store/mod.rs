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

mod branch;
mod chunked;
mod locked;
mod run;
mod sync;

#[cfg(all(test, feature = "loom"))]
mod model;

use std::sync::Arc;

use branch::Link;
pub(crate) use chunked::Chunked;
pub(crate) use locked::Locked;
pub(crate) use run::{Lengths, MAX_RUN, Run, lane_of, lengths_of};
pub(crate) use sync::Pin;
use sync::{AtomicU32, AtomicU64, Heads, Mutex, Ordering, locked};

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
#[derive(Default)]
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
        let run = Some(Arc::new(Run::new(
            id,
            keys.iter().copied(),
            keys.len(),
            std::iter::empty(),
            1,
        )));
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
