//! Requests that wait or run, by slot and by number.
//!
//! A dispatch from a deep queue finds almost nothing of what it touches in the core's own caches, so it touches little:
//! what every turn reads of a request is one cache line; a request keeps its slot when it starts to run, so that the
//! map of numbers is left alone; links and what only few turns read lie apart.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use super::{Usage, turn::Turn};
use crate::{
    Cost, Nanos,
    store::{Links, NIL, Slots},
};

/// Hashes numbers that this process gave out: one multiplication, no defence needed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        // The multiplier is 2^64 / golden ratio; the fold brings high bits, where tables look, and low ones together.
        let wide = u128::from(self.0 ^ n) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (wide as u64) ^ ((wide >> 64) as u64);
    }
}

pub(crate) type IdHash = BuildHasherDefault<NumberHasher>;

/// A waiting request: what a turn reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) id: u64,
    pub(crate) seq: u64,
    pub(crate) entered: Nanos,
    pub(crate) cost: Cost,
    pub(crate) bytes: u64,
    pub(crate) queue: u32,
    /// The priority it asked for, which a shared band may be below.
    pub(crate) priority: i32,
}

/// What changes while a request waits. Apart from [`Waiting`], so that both fit in a line with their tag.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    refused: bool,
    timed: bool,
}

impl Waiting {
    pub(crate) fn usage(&self) -> Usage {
        Usage {
            requests: 1,
            bytes: self.bytes,
            tokens: self.cost.tokens(),
        }
    }
}

/// A waiting request: the rest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// The end of its wait by its own header and its client's deadline.
    pub(crate) own_end: Nanos,
    /// Key of the ordering policy.
    pub(crate) order: u64,
    /// When its first token is wanted; `Nanos::MAX` is no aim.
    pub(crate) aim: Nanos,
}

/// A dispatched request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    pub(crate) id: u64,
    pub(crate) flow: u32,
    /// What the flow was charged.
    pub(crate) charge: u64,
    /// The priority it asked for, which a shared band may be below.
    pub(crate) priority: i32,
    /// Which dispatch it was.
    pub(crate) dispatch: u64,
    /// By which rule.
    pub(crate) turn: Turn,
}

/// One request: a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
enum Request {
    Waiting(Waiting, Marks),
    Running(Running),
}

const _: () = assert!(size_of::<Option<Request>>() == 64);

/// Each waiting request's place in the heaps that hold it, by slot. Kept apart from the requests: a heap that moves many
/// of them touches only this.
#[derive(Debug, Default)]
pub(crate) struct Places {
    pub(crate) queue: Vec<u32>,
    pub(crate) timer: Vec<u32>,
}

impl Places {
    /// Room for this slot.
    fn start(&mut self, slot: u32) {
        for places in [&mut self.queue, &mut self.timer] {
            if places.len() <= slot as usize {
                places.resize(slot as usize + 1, NIL);
            }
        }
    }
}

/// Notes a place.
pub(crate) fn set(places: &mut [u32], slot: u32, pos: u32) {
    if let Some(place) = places.get_mut(slot as usize) {
        *place = pos;
    }
}

/// A noted place.
pub(crate) fn place(places: &[u32], slot: u32) -> u32 {
    places.get(slot as usize).copied().unwrap_or(NIL)
}

/// All requests.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    by_id: HashMap<u64, u32, IdHash>,
    slots: Slots<Request>,
    running: usize,
    /// The waiting ones' links in the lists of their lanes.
    pub(crate) links: Links,
    pub(crate) places: Places,
    terms: Vec<Terms>,
}

#[expect(
    clippy::indexing_slicing,
    clippy::panic,
    reason = "slots come from `enter` through queues and lists that only know what waits; no outside number gets here"
)]
impl Requests {
    /// What waits at this slot, which something waits at.
    pub(crate) fn waiting(&self, slot: u32) -> &Waiting {
        match &self.slots[slot] {
            Request::Waiting(waiting, _) => waiting,
            Request::Running(_) => panic!("a waiting request runs"),
        }
    }

    fn marks(&self, slot: u32) -> Marks {
        match self.slots[slot] {
            Request::Waiting(_, marks) => marks,
            Request::Running(_) => panic!("a waiting request runs"),
        }
    }

    fn marks_mut(&mut self, slot: u32) -> &mut Marks {
        match &mut self.slots[slot] {
            Request::Waiting(_, marks) => marks,
            Request::Running(_) => panic!("a waiting request runs"),
        }
    }

    /// What waits at this slot, to change it.
    pub(crate) fn waiting_mut(&mut self, slot: u32) -> &mut Waiting {
        match &mut self.slots[slot] {
            Request::Waiting(waiting, _) => waiting,
            Request::Running(_) => panic!("a waiting request runs"),
        }
    }

    /// The rest of what waits at this slot.
    pub(crate) fn terms(&self, slot: u32) -> &Terms {
        &self.terms[slot as usize]
    }
}

impl Requests {
    /// The gate refused what waits at this slot since capacity last changed.
    pub(crate) fn is_refused(&self, slot: u32) -> bool {
        self.marks(slot).refused
    }

    /// The gate refused it.
    pub(crate) fn set_refused(&mut self, slot: u32) {
        self.marks_mut(slot).refused = true;
    }

    /// What waits at this slot has an end of its own and is among the timers.
    pub(crate) fn is_timed(&self, slot: u32) -> bool {
        self.marks(slot).timed
    }

    /// It is among the timers from now on.
    pub(crate) fn set_timed(&mut self, slot: u32) {
        self.marks_mut(slot).timed = true;
    }

    /// Requests that wait.
    pub(crate) fn waits(&self) -> usize {
        self.slots.len() - self.running
    }

    /// Checks that the counts and the map of numbers agree with what is there.
    pub(crate) fn audit(&self) -> Result<(), String> {
        let (waits, runs) = (self.iter_waiting().count(), self.iter_running().count());
        if (waits, runs, waits + runs) != (self.waits(), self.running, self.by_id.len()) {
            let counted = (self.waits(), self.running, self.by_id.len());
            return Err(format!(
                "{waits} requests wait and {runs} run, counted {counted:?}"
            ));
        }
        let known = |id: u64, slot: u32| self.by_id.get(&id) == Some(&slot);
        let lost = self.slots.iter().find(|(slot, request)| match request {
            Request::Waiting(waiting, _) => !known(waiting.id, *slot),
            Request::Running(running) => !known(running.id, *slot),
        });
        match lost {
            None => Ok(()),
            Some((slot, request)) => Err(format!("slot {slot} is not known: {request:?}")),
        }
    }

    /// Requests that run.
    pub(crate) fn runs(&self) -> usize {
        self.running
    }

    /// True if a request of this number waits or runs.
    pub(crate) fn knows(&self, id: u64) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Where a request of this number waits.
    pub(crate) fn find_waiting(&self, id: u64) -> Option<u32> {
        let slot = *self.by_id.get(&id)?;
        matches!(self.slots[slot], Request::Waiting(..)).then_some(slot)
    }

    /// A request waits from now on.
    pub(crate) fn enter(&mut self, waiting: Waiting, terms: Terms) -> u32 {
        let slot = self
            .slots
            .insert(Request::Waiting(waiting, Marks::default()));
        self.by_id.insert(waiting.id, slot);
        self.links.start(slot);
        self.places.start(slot);
        match self.terms.get_mut(slot as usize) {
            Some(cell) => *cell = terms,
            // A new slot, or one that only a running request had.
            None => self.terms.resize(slot as usize + 1, terms),
        }
        slot
    }

    /// What waited at this slot runs from now on.
    pub(crate) fn start(&mut self, slot: u32, running: Running) {
        debug_assert!(matches!(self.slots[slot], Request::Waiting(w, _) if w.id == running.id));
        self.slots[slot] = Request::Running(running);
        self.running += 1;
    }

    /// A request runs that never waited here.
    pub(crate) fn adopt(&mut self, running: Running) {
        let slot = self.slots.insert(Request::Running(running));
        self.by_id.insert(running.id, slot);
        self.running += 1;
    }

    /// What waited at this slot is over.
    pub(crate) fn leave(&mut self, slot: u32) {
        let id = self.waiting(slot).id;
        self.by_id.remove(&id);
        self.slots.remove(slot);
    }

    /// What ran under this number is over.
    pub(crate) fn end(&mut self, id: u64) -> Option<Running> {
        let slot = *self.by_id.get(&id)?;
        let Request::Running(running) = self.slots[slot] else {
            return None;
        };
        self.by_id.remove(&id);
        self.slots.remove(slot);
        self.running -= 1;
        Some(running)
    }

    /// What waits, by slot.
    pub(crate) fn iter_waiting(&self) -> impl Iterator<Item = (u32, &Waiting)> {
        self.slots
            .iter()
            .filter_map(|(slot, request)| match request {
                Request::Waiting(waiting, _) => Some((slot, waiting)),
                Request::Running(_) => None,
            })
    }

    /// What runs.
    pub(crate) fn iter_running(&self) -> impl Iterator<Item = &Running> {
        self.slots.iter().filter_map(|(_, request)| match request {
            Request::Waiting(..) => None,
            Request::Running(running) => Some(running),
        })
    }
}
