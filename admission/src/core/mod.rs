//! The queues of one pool: state, and what holds between its parts.
//!
//! ```text
//! band (priority) ── lane (class) ── heap of queues by fairness key ── queue (flow, class) ── heap of items by order
//!      │                 └ list of items, oldest first (aging)
//!      └ heaps of lanes by their oldest item (ends of waits) and by their newest (displacement); flows by fairness id
//! timers: heap of items that end by their own words; a band's budget ends its oldest item first
//! ```
//! Each item knows its place in all of them, so that leaving costs O(log n) however deep the queues are.

mod age;
mod arrive;
mod audit;
mod beside;
mod classes;
mod leave;
mod places;
mod regime;
mod reload;
mod requests;
mod settle;
mod state;
mod stats;
mod turn;

use std::collections::HashMap;

use stats::Pace;
pub use stats::{BandStats, FlowStats, Totals};
pub use turn::{Dispatch, Turn};

pub(crate) use beside::Beside;
pub(crate) use requests::{IdHash, Requests, Running, Terms, Waiting};
pub(crate) use state::{Band, Class, Flow, Lane, Queue, Usage};

use crate::{
    AdmissionConfig, ClassId, ConfigError, Nanos, Outcome,
    evict::Evictor,
    starvation::Credits,
    store::{Heap, Line, List, Slots},
};
use beside::{Telling, ToldFlows};
use regime::Regime;

/// What ended without its own call: the request's number and how its wait ended.
pub type Ended = (u64, Outcome);

/// The queues of one pool. One owner at a time; time is an argument and never goes back.
pub struct Admission {
    config: AdmissionConfig,
    requests: Requests,
    bands: Slots<Band>,
    /// Bands, highest priority first.
    order: Vec<u32>,
    /// Their priorities, in the same order.
    priorities: Vec<i32>,
    flows: Slots<Flow>,
    queues: Slots<Queue>,
    /// Empty queues' lines, kept for their room: sorted ones and plain ones.
    spare: [Vec<Line>; 2],
    lanes: Slots<Lane>,
    classes: HashMap<ClassId, Class, IdHash>,
    /// Classes that were refused since capacity last changed.
    refused: Vec<ClassId>,
    /// The gate said that nothing starts at this ceiling or below.
    closed_at: Option<i32>,
    timers: Heap<(Nanos, u64)>,
    /// Of the flows, how many are overflow flows.
    shared_flows: usize,
    /// Flows with nothing waiting or running, least recently used first.
    idle: List<0>,
    used: Usage,
    /// Entries into the queue so far: the order of arrival.
    seq: u64,
    /// Dispatches so far.
    dispatches: u64,
    regime: Regime,
    credits: Credits,
    evictor: Evictor,
    /// What expired outside [`Admission::expire`], not yet told.
    late: Vec<Ended>,
    pace: Pace,
    /// Newcomers are refused.
    closing: bool,
    totals: Totals,
    telling: Telling,
    /// Flows that were served, by their last change.
    told: ToldFlows,
    beside: Beside,
}

impl Admission {
    /// Empty queues over a pool without endpoints: tell it of them with [`Admission::pool_state`].
    ///
    /// # Errors
    /// When the configuration makes no sense.
    pub fn new(config: AdmissionConfig) -> Result<Admission, ConfigError> {
        config.check()?;
        let mut admission = Admission {
            credits: Credits::new(&config.starvation),
            evictor: Evictor::new(config.eviction),
            config,
            requests: Requests::default(),
            bands: Slots::default(),
            order: Vec::new(),
            priorities: Vec::new(),
            flows: Slots::default(),
            queues: Slots::default(),
            spare: Default::default(),
            lanes: Slots::default(),
            classes: HashMap::default(),
            refused: Vec::new(),
            closed_at: None,
            timers: Heap::default(),
            shared_flows: 0,
            idle: List::default(),
            used: Usage::default(),
            seq: 0,
            dispatches: 0,
            regime: Regime::default(),
            late: Vec::new(),
            pace: Pace::default(),
            closing: false,
            totals: Totals::default(),
            telling: Telling::default(),
            told: ToldFlows::default(),
            beside: Beside::default(),
        };
        admission.listed_bands();
        Ok(admission)
    }

    /// The configuration in force.
    pub fn config(&self) -> &AdmissionConfig {
        &self.config
    }

    /// Waiting requests.
    pub fn waiting(&self) -> usize {
        self.requests.waits()
    }

    /// Dispatched requests that have not been completed.
    pub fn running(&self) -> usize {
        self.requests.runs()
    }

    /// All bands' priorities, highest first. Listed bands are always there, others until their place is needed.
    pub fn priorities(&self) -> &[i32] {
        &self.priorities
    }

    /// The priorities of the bands that are listed or in use, highest first: what a band's rank counts among, so that one
    /// stray priority does not change everybody's ceiling for good.
    pub fn ranks(&self) -> impl Iterator<Item = i32> {
        let bands = self.order.iter().map(|band| &self.bands[*band]);
        let counts = |band: &&Band| band.listed || band.used.requests > 0 || band.running > 0;
        bands.filter(counts).map(|band| band.priority)
    }

    /// True once [`Admission::close`] was called.
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// The highest band in which something waits that the gate refused: what eviction may make room for.
    pub fn blocked_priority(&self) -> Option<i32> {
        let blocked = |&&band: &&u32| {
            let band = &self.bands[band];
            let closed = self.closed_at.is_some_and(|at| band.priority <= at);
            band.used.requests > 0 && (closed || band.open.len() < band.busy_lanes as usize)
        };
        let band = self.order.iter().find(blocked)?;
        Some(self.bands[*band].priority)
    }
}
