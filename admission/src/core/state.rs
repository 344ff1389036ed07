//! The parts of the queues.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasherDefault, Hasher},
};

use smallvec::SmallVec;

use super::turn::Turn;
use crate::{
    ClassId, Cost, FairnessId, Nanos,
    config::{BandConfig, Limits},
    fairness::{BandShare, FairKey, FlowShare},
    starvation::FloorAccount,
    store::{Heap, Line, Link, Linked, List, NIL},
    types::Weight,
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

/// Requests, bytes and tokens that wait somewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    pub(crate) tokens: u64,
}

impl Usage {
    /// No single body counts for more than a tebibyte, so sums cannot overflow.
    pub(crate) const MAX_BYTES: u64 = 1 << 40;

    pub(crate) fn add(&mut self, other: Usage) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.tokens += other.tokens;
    }

    pub(crate) fn sub(&mut self, other: Usage) {
        debug_assert!(self.requests >= other.requests && self.bytes >= other.bytes);
        self.requests = self.requests.saturating_sub(other.requests);
        self.bytes = self.bytes.saturating_sub(other.bytes);
        self.tokens = self.tokens.saturating_sub(other.tokens);
    }

    /// True if it keeps within the limits.
    pub(crate) fn within(self, limits: &Limits) -> bool {
        let within = |used: u64, limit: Option<u64>| limit.is_none_or(|limit| used <= limit);
        within(self.requests, limits.max_requests)
            && within(self.bytes, limits.max_bytes)
            && within(self.tokens, limits.max_tokens)
    }
}

/// A waiting request.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) id: u64,
    pub(crate) seq: u64,
    pub(crate) entered: Nanos,
    /// The end of its wait by its own header and its client's deadline.
    pub(crate) own_end: Nanos,
    pub(crate) cost: Cost,
    pub(crate) bytes: u64,
    /// Key of the ordering policy.
    pub(crate) order: u64,
    pub(crate) queue: u32,
    /// The priority it asked for, which a shared band may be below.
    pub(crate) priority: i32,
    /// The gate refused it since capacity last changed.
    pub(crate) refused: bool,
    pub(crate) lane_link: Link,
    pub(crate) band_link: Link,
    /// When its first token is wanted; `Nanos::MAX` is no aim.
    pub(crate) aim: Nanos,
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

/// Each waiting request's place in the heaps that hold it, by slot. Kept apart from the requests: a heap that
/// moves many of them touches only this.
#[derive(Debug, Default)]
pub(crate) struct Places {
    pub(crate) queue: Vec<u32>,
    pub(crate) timer: Vec<u32>,
}

impl Places {
    /// Room for this slot, nowhere yet.
    pub(crate) fn start(&mut self, slot: u32) {
        for places in [&mut self.queue, &mut self.timer] {
            if places.len() <= slot as usize {
                places.resize(slot as usize + 1, NIL);
            }
        }
        set(&mut self.timer, slot, NIL);
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

/// The list of a lane's items.
pub(crate) const IN_LANE: usize = 0;
/// The list of a band's items.
pub(crate) const IN_BAND: usize = 1;

impl Linked<IN_LANE> for Waiting {
    fn link(&mut self) -> &mut Link {
        &mut self.lane_link
    }

    fn peek(&self) -> Link {
        self.lane_link
    }
}

impl Linked<IN_BAND> for Waiting {
    fn link(&mut self) -> &mut Link {
        &mut self.band_link
    }

    fn peek(&self) -> Link {
        self.band_link
    }
}

/// Where a request is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry {
    /// In the queue, at this slot.
    Waiting(u32),
    /// Dispatched, at this slot.
    Running(u32),
}

/// A dispatched request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    pub(crate) id: u64,
    pub(crate) flow: u32,
    /// What the flow was charged.
    pub(crate) charge: u64,
    pub(crate) priority: i32,
    /// Which dispatch it was.
    pub(crate) dispatch: u64,
    /// By which rule.
    pub(crate) turn: Turn,
}

/// All requests of one priority.
#[derive(Debug)]
pub(crate) struct Band {
    pub(crate) priority: i32,
    pub(crate) config: BandConfig,
    /// Named by the configuration: never reclaimed.
    pub(crate) listed: bool,
    pub(crate) used: Usage,
    pub(crate) share: BandShare,
    pub(crate) flows: HashMap<FairnessId, u32>,
    pub(crate) overflow: u32,
    pub(crate) lanes: BTreeMap<ClassId, u32>,
    /// Lanes with something in them.
    pub(crate) busy_lanes: u32,
    /// Of those, the ones whose class was not refused for this band.
    pub(crate) open: Vec<u32>,
    /// All its items, in the order of entering.
    pub(crate) items: List<IN_BAND>,
    /// Requests of this band that run.
    pub(crate) running: u32,
    /// What it is owed under floors.
    pub(crate) floor: FloorAccount,
    /// What it got in the current window under floors.
    pub(crate) window: FloorWindow,
    /// Longest wait that ended in a dispatch.
    pub(crate) longest_wait: Nanos,
    /// Dispatches.
    pub(crate) dispatched: u64,
    /// Dispatches out of turn.
    pub(crate) out_of_turn: u64,
}

/// One window of the floor check.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FloorWindow {
    pub(crate) start: Nanos,
    /// Tokens dispatched by all bands.
    pub(crate) total: u64,
    /// Tokens dispatched by this one.
    pub(crate) mine: u64,
    /// The band could have used its share all the time.
    pub(crate) waited: bool,
}

/// Requests of one class in one band.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) class: ClassId,
    pub(crate) band: u32,
    /// Queues by their flow's fairness key.
    pub(crate) queues: Heap<FairKey>,
    /// Its items, in the order of entering.
    pub(crate) items: List<IN_LANE>,
    /// The highest ceiling at which its class was refused.
    pub(crate) refused_at: Option<i32>,
    /// It was refused out of turn, at the top band's ceiling.
    pub(crate) refused_at_top: bool,
    /// Its place in the band's open lanes.
    pub(crate) open_pos: u32,
}

impl Lane {
    pub(crate) fn new(class: ClassId, band: u32, refused_at: Option<i32>) -> Lane {
        Lane {
            class,
            band,
            queues: Heap::default(),
            items: List::default(),
            refused_at,
            refused_at_top: false,
            open_pos: NIL,
        }
    }

    /// May it be asked about at this ceiling?
    pub(crate) fn open_at(&self, ceiling: i32) -> bool {
        self.refused_at.is_none_or(|at| at < ceiling)
    }
}

/// An eligibility class over all bands.
#[derive(Debug, Default)]
pub(crate) struct Class {
    pub(crate) lanes: SmallVec<[u32; 4]>,
    /// The highest ceiling at which it was refused since capacity changed.
    pub(crate) refused_at: Option<i32>,
    /// It is in the list of refused classes.
    pub(crate) listed: bool,
}

/// One fairness id in one band.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) id: FairnessId,
    pub(crate) band: u32,
    pub(crate) weight: Weight,
    pub(crate) share: FlowShare,
    pub(crate) used: Usage,
    pub(crate) running: u32,
    pub(crate) queues: SmallVec<[u32; 2]>,
    pub(crate) idle: Link,
    /// It is in the list of idle flows.
    pub(crate) is_idle: bool,
    /// A band's overflow flow: it lives as long as its band and is never in that list.
    pub(crate) shared: bool,
    /// Told to other replicas: which life of a flow this is (0 before it was served), its accounted service in tokens,
    /// and when that last changed.
    pub(crate) life: u64,
    pub(crate) service: i64,
    pub(crate) changed: Nanos,
    pub(crate) told: Link,
}

impl Linked<0> for Flow {
    fn link(&mut self) -> &mut Link {
        &mut self.idle
    }

    fn peek(&self) -> Link {
        self.idle
    }
}

/// The list of flows that other replicas are told of.
pub(crate) const IN_TELLING: usize = 1;

impl Linked<IN_TELLING> for Flow {
    fn link(&mut self) -> &mut Link {
        &mut self.told
    }

    fn peek(&self) -> Link {
        self.told
    }
}

/// Requests of one flow and one class.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) flow: u32,
    pub(crate) lane: u32,
    pub(crate) items: Line,
    pub(crate) lane_pos: u32,
}

impl FloorWindow {
    /// Starts a new window when this one is over. False if the band waited through the whole of it and got less than
    /// `share x total - 2 x dearest` (INV-Q9).
    pub(crate) fn roll(&mut self, now: Nanos, length: Nanos, share: i64, dearest: u64) -> bool {
        if now.saturating_sub(self.start) < length {
            return true;
        }
        let due = (u128::from(self.total) * u128::from(share.unsigned_abs())) >> 16;
        let got = u128::from(self.mine) + 2 * u128::from(dearest);
        let kept = !self.waited || got >= due;
        *self = FloorWindow {
            start: now,
            total: 0,
            mine: 0,
            waited: true,
        };
        kept
    }
}
