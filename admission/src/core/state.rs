//! The parts of the queues.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};

use smallvec::SmallVec;

use crate::{
    ClassId, FairnessId, Nanos,
    config::{BandConfig, Limits},
    fairness::{BandShare, FairKey, FlowShare},
    starvation::FloorAccount,
    store::{Heap, Line, Link, Linked, List, NIL},
    types::Weight,
};

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

    /// True if `leaver` holds something of what is over the limits.
    pub(crate) fn eased(self, leaver: Usage, limits: &Limits) -> bool {
        let over = |used: u64, limit: Option<u64>| limit.is_some_and(|limit| used > limit);
        over(self.requests, limits.max_requests) && leaver.requests > 0
            || over(self.bytes, limits.max_bytes) && leaver.bytes > 0
            || over(self.tokens, limits.max_tokens) && leaver.tokens > 0
    }

    /// True if it keeps within the limits.
    pub(crate) fn within(self, limits: &Limits) -> bool {
        let within = |used: u64, limit: Option<u64>| limit.is_none_or(|limit| used <= limit);
        within(self.requests, limits.max_requests)
            && within(self.bytes, limits.max_bytes)
            && within(self.tokens, limits.max_tokens)
    }
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
    /// Lanes with something in them, by the number of their oldest item in the order of entry.
    pub(crate) oldest: Heap<u64>,
    /// The same by their newest item, largest number first.
    pub(crate) newest: Heap<Reverse<u64>>,
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
    pub(crate) items: List<0>,
    /// The highest ceiling at which its class was refused.
    pub(crate) refused_at: Option<i32>,
    /// It was refused out of turn, at the top band's ceiling.
    pub(crate) refused_at_top: bool,
    /// Its place in the band's open lanes.
    pub(crate) open_pos: u32,
    /// Its places among the band's lanes by their oldest and by their newest item.
    pub(crate) oldest_pos: u32,
    pub(crate) newest_pos: u32,
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
            oldest_pos: NIL,
            newest_pos: NIL,
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
