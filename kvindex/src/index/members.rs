//! Who is who: endpoints, their slots and lanes, for writers by name and for readers by number.

use std::{
    collections::{HashMap, VecDeque},
    hash::BuildHasherDefault,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};

use super::{EndpointId, member::Member, mixer::Mixer, store::Chunked};

/// Whose lane it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) slot: u32,
    pub(crate) endpoint: EndpointId,
    /// Lanes of groups that the endpoint has.
    pub(crate) groups: u32,
    /// Whether this lane is that of predictions.
    pub(crate) predicted: bool,
    /// Whether this lane is all that the endpoint has.
    pub(crate) alone: bool,
}

/// What readers know of an endpoint.
#[derive(Default)]
struct Seat {
    incarnation: AtomicU64,
    rank: AtomicU32,
    /// Its lanes: those of groups in the low half, those of predictions in the high one.
    lanes: AtomicU32,
}

const PREDICTED: u32 = 1 << 31;
/// In a seat's count of lanes.
const ONE_OF_GROUP: u32 = 1;
const ONE_PREDICTED: u32 = 1 << 16;
const FREE: u32 = u32::MAX;

fn counted(predicted: bool) -> u32 {
    match predicted {
        true => ONE_PREDICTED,
        false => ONE_OF_GROUP,
    }
}

/// Numbers are given out in turn, so that one comes back as late as possible.
#[derive(Debug, Default)]
struct Numbers {
    idle: VecDeque<u32>,
    fresh: u32,
}

impl Numbers {
    /// A number and whether somebody had it before.
    fn take(&mut self, spare: usize, most: u32) -> Option<(u32, bool)> {
        if self.idle.len() <= spare && self.fresh < most {
            self.fresh += 1;
            return Some((self.fresh - 1, false));
        }
        self.idle.pop_front().map(|number| (number, true))
    }
}

/// Numbers that rest before one is used again, so that the tables of readers stay small.
const RESTING: usize = 64;

#[derive(Default)]
struct Desk {
    lanes: Numbers,
    seats: Numbers,
}

pub(crate) struct Members {
    by_id: RwLock<HashMap<EndpointId, Arc<Member>, BuildHasherDefault<Mixer>>>,
    desk: Mutex<Desk>,
    /// Lane to seat; `FREE` when nobody has it.
    owners: Chunked<AtomicU32>,
    seats: Chunked<Seat>,
    /// Counts numbers that got a new owner: a lookup that saw one change must look again.
    changes: AtomicU64,
}

impl Members {
    pub(crate) fn new() -> Members {
        Members {
            by_id: RwLock::new(HashMap::default()),
            desk: Mutex::new(Desk::default()),
            owners: Chunked::new(),
            seats: Chunked::new(),
            changes: AtomicU64::new(0),
        }
    }

    pub(crate) fn get(&self, id: EndpointId) -> Option<Arc<Member>> {
        self.by_id.read().get(&id).cloned()
    }

    /// Everybody, in the order of their names.
    pub(crate) fn all(&self) -> Vec<Arc<Member>> {
        let mut all: Vec<Arc<Member>> = self.by_id.read().values().cloned().collect();
        all.sort_unstable_by_key(|member| member.id);
        all
    }

    /// Adds an endpoint; false if it is there or no seat is left.
    pub(crate) fn add(&self, id: EndpointId, make: impl FnOnce(u32) -> Member) -> bool {
        let mut by_id = self.by_id.write();
        if by_id.contains_key(&id) {
            return false;
        }
        let Some((slot, _)) = self.desk.lock().seats.take(RESTING, FREE - 1) else {
            return false;
        };
        let Some(seat) = self.seats.reach(slot) else {
            return false;
        };
        self.changes.fetch_add(1, Ordering::SeqCst);
        seat.incarnation.store(id.incarnation, Ordering::SeqCst);
        seat.rank.store(id.rank, Ordering::SeqCst);
        seat.lanes.store(0, Ordering::SeqCst);
        by_id.insert(id, Arc::new(make(slot)));
        true
    }

    /// Takes an endpoint out of the table; its lanes and its seat are still to be given back.
    pub(crate) fn take(&self, id: EndpointId) -> Option<Arc<Member>> {
        self.by_id.write().remove(&id)
    }

    pub(crate) fn free_seat(&self, slot: u32) {
        self.desk.lock().seats.idle.push_back(slot);
    }

    /// A lane for an endpoint; lanes count from 1. `None` when all 65,535 are in use.
    pub(crate) fn lane(&self, slot: u32, predicted: bool) -> Option<u16> {
        let (number, _) = self.desk.lock().lanes.take(RESTING, u32::from(u16::MAX))?;
        let lane = u16::try_from(number + 1).ok()?;
        let owner = self.owners.reach(u32::from(lane))?;
        self.changes.fetch_add(1, Ordering::SeqCst);
        owner.store(
            slot | if predicted { PREDICTED } else { 0 },
            Ordering::SeqCst,
        );
        if let Some(seat) = self.seats.get(slot) {
            seat.lanes.fetch_add(counted(predicted), Ordering::SeqCst);
        }
        Some(lane)
    }

    /// Gives a lane back that holds nothing any more.
    pub(crate) fn free_lane(&self, lane: u16) {
        let Some(owner) = self.owners.get(u32::from(lane)) else {
            return;
        };
        let owned = owner.swap(FREE, Ordering::SeqCst);
        if owned != FREE
            && let Some(seat) = self.seats.get(owned & !PREDICTED)
        {
            let one = counted(owned & PREDICTED != 0);
            seat.lanes.fetch_sub(one, Ordering::SeqCst);
        }
        self.desk.lock().lanes.idle.push_back(u32::from(lane) - 1);
    }

    #[inline]
    pub(crate) fn owner(&self, lane: u16) -> Option<Owner> {
        let owned = self.owners.get(u32::from(lane))?.load(Ordering::Acquire);
        if owned == FREE {
            return None;
        }
        let slot = owned & !PREDICTED;
        let seat = self.seats.get(slot)?;
        let lanes = seat.lanes.load(Ordering::Acquire);
        Some(Owner {
            slot,
            endpoint: EndpointId {
                incarnation: seat.incarnation.load(Ordering::Acquire),
                rank: seat.rank.load(Ordering::Acquire),
            },
            groups: lanes & (ONE_PREDICTED - 1),
            predicted: owned & PREDICTED != 0,
            alone: lanes == ONE_OF_GROUP,
        })
    }

    /// Changes of owners so far.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    pub(crate) fn bytes(&self) -> usize {
        let changes = self.changes.load(Ordering::Relaxed) as usize;
        // Each change gave out a lane or a seat; numbers that rest are counted again, which is little.
        changes.min(usize::from(u16::MAX)) * (size_of::<Seat>() + size_of::<AtomicU32>())
    }
}
