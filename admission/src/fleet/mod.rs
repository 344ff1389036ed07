//! Several replicas in front of one pool: what each tells the others, and what it makes of what it hears.
//!
//! ```text
//!   Fleet::tell ──Counters──> the other replicas' Fleet::hear
//!      │                          ├ their requests in flight ──> Fleet::view ──> the gate's views     INV-Q12
//!      │                          ├ their service by flow ─────> counters and deficits of the queues  INV-Q13
//!      │                          └ what waits there ──────────> bounds over all bands                INV-Q14
//!   Fleet::pass: who fell silent counts no more; while anybody is missing each keeps to its share
//! ```
//! [`Counters`] are sums since the replica's start and gauges of now: a message that is lost, doubled or overtaken does
//! no harm, and each replaces the one before. A replica is known by the random number of this start of it
//! ([`ReplicaId`]): one that started anew is another one.
//!
//! Pure like the rest: time is an argument, and who carries the messages is somebody else's business.

mod peers;
mod tell;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use crate::{
    ConfigError, FairnessId, Nanos, SECOND,
    fault::{Fault, broken},
    gate::EndpointView,
};
use peers::Peer;

/// One start of one replica: a number drawn at random when it starts.
#[derive(
    Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize,
)]
pub struct ReplicaId(pub u64);

/// Bounds and times of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct FleetConfig {
    /// What a peer said counts for so long.
    pub stale_after: Nanos,
    /// Replicas, this one included: 1 is alone.
    pub members: u32,
    /// Peers that are listened to; further ones are refused.
    pub max_peers: u32,
    /// Flows in a message.
    pub max_flows: u32,
    /// Endpoints in a message.
    pub max_endpoints: u32,
    /// Tokens that a flow can come to owe here under DRR for what it got elsewhere. VTC has its own `max_lag`.
    pub max_debt: u64,
}

impl Default for FleetConfig {
    fn default() -> Self {
        FleetConfig {
            stale_after: SECOND,
            members: 1,
            max_peers: 64,
            max_flows: 4096,
            max_endpoints: 4096,
            max_debt: 1 << 18,
        }
    }
}

impl FleetConfig {
    /// Checks that every value makes sense.
    ///
    /// # Errors
    /// All faults, as `key: what is wrong`.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut faults = Vec::new();
        let mut positive = |key: &str, value: u64| {
            if value == 0 {
                faults.push(format!("{key}: must be at least 1"));
            }
        };
        positive("staleAfter", self.stale_after);
        positive("members", u64::from(self.members));
        positive("maxFlows", u64::from(self.max_flows));
        positive("maxEndpoints", u64::from(self.max_endpoints));
        if self.max_peers < self.members.saturating_sub(1) {
            faults.push("maxPeers: fewer than the other members".to_owned());
        }
        if faults.is_empty() {
            Ok(())
        } else {
            Err(ConfigError { faults })
        }
    }
}

/// A replica's requests in flight at one endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointLoad {
    /// The endpoint by a name that means the same life of it at every replica.
    pub endpoint: Arc<str>,
    /// Requests in flight.
    pub requests: u32,
    /// Their uncached input tokens not yet prefilled.
    pub tokens: u64,
}

/// What a replica served one flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowService {
    /// The flow's band.
    pub priority: i32,
    /// The flow in it.
    pub fairness: FairnessId,
    /// Its weight, for who has not seen it yet.
    pub weight: f64,
    /// Which life of the flow: one that was forgotten and came back starts a new sum under a higher number.
    pub life: u64,
    /// Accounted service of this life in tokens: charges, and what they were corrected by.
    pub service: i64,
}

/// What waits at a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queued {
    /// Requests.
    pub requests: u64,
    /// Their body bytes.
    pub bytes: u64,
    /// Their tokens.
    pub tokens: u64,
}

/// What one replica tells the others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Who says so.
    pub replica: ReplicaId,
    /// Which of its messages: each later one has a higher number.
    pub number: u64,
    /// Whom it hears, itself not included.
    pub hears: Vec<ReplicaId>,
    /// It hears every member, and every member hears it.
    pub linked: bool,
    /// What waits there.
    pub waiting: Queued,
    /// Its dispatched requests that are not over.
    pub running: u64,
    /// Endpoints with requests of its own in flight. Others have none.
    pub endpoints: Vec<EndpointLoad>,
    /// Lives of flows so far: the number of the last one.
    pub lives: u64,
    /// Flows whose service changed lately, last changed first.
    pub flows: Vec<FlowService>,
}

/// How a replica stands to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FleetState {
    /// It is the only one.
    Alone,
    /// All members hear each other: limits are common.
    Whole,
    /// Somebody is missing, or cannot hear somebody: this replica keeps to its share of each limit.
    Share,
}

impl FleetState {
    /// Metric label.
    pub const fn label(self) -> &'static str {
        match self {
            FleetState::Alone => "alone",
            FleetState::Whole => "whole",
            FleetState::Share => "share",
        }
    }
}

/// What came of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It counts. Room may have changed: ask for dispatches again.
    New,
    /// A later one was heard before, or it is our own.
    Old,
    /// There are too many peers.
    Refused,
}

/// Counts over the life of a fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetTotals {
    /// Messages that counted.
    pub heard: u64,
    /// Messages that were overtaken, doubled, or our own.
    pub old: u64,
    /// Messages of peers beyond the bound.
    pub refused: u64,
    /// Peers that fell silent.
    pub silenced: u64,
    /// Times that this replica had to keep to its share after it had been part of a whole.
    pub fallbacks: u64,
    /// Rows of messages that were dropped: beyond a bound, or with names that are too long.
    pub rows_dropped: u64,
    /// Rows of flows for which the queues had no room.
    pub flows_unplaced: u64,
}

/// Requests of other replicas at one endpoint.
#[derive(Clone, Copy, Debug, Default)]
struct PeerLoad {
    requests: u64,
    tokens: u64,
    /// The same, when the last reading of the endpoint came.
    at_reading: (u64, u64),
}

/// One replica's view of the others. One owner at a time; time never goes back.
#[derive(Debug)]
pub struct Fleet {
    config: FleetConfig,
    me: ReplicaId,
    /// Messages told so far.
    number: u64,
    peers: BTreeMap<ReplicaId, Peer>,
    loads: HashMap<Arc<str>, PeerLoad>,
    state: FleetState,
    totals: FleetTotals,
}

impl Fleet {
    /// A replica that has heard nobody yet: with several members it keeps to its share.
    ///
    /// # Errors
    /// When the configuration makes no sense.
    pub fn new(config: FleetConfig, me: ReplicaId) -> Result<Fleet, ConfigError> {
        config.check()?;
        Ok(Fleet {
            state: match config.members {
                1 => FleetState::Alone,
                _ => FleetState::Share,
            },
            config,
            me,
            number: 0,
            peers: BTreeMap::new(),
            loads: HashMap::new(),
            totals: FleetTotals::default(),
        })
    }

    /// Who this replica is.
    pub fn me(&self) -> ReplicaId {
        self.me
    }

    /// How it stands to the others.
    pub fn state(&self) -> FleetState {
        self.state
    }

    /// Replicas, this one included.
    pub fn members(&self) -> u32 {
        self.config.members
    }

    /// Peers that are not stale.
    pub fn hearing(&self) -> u32 {
        let fresh = self.peers.values().filter(|peer| peer.fresh).count();
        u32::try_from(fresh).unwrap_or(u32::MAX)
    }

    /// Counts so far.
    pub fn totals(&self) -> &FleetTotals {
        &self.totals
    }

    /// A reading of the endpoint came: it shows what the others had sent there until now.
    pub fn read(&mut self, endpoint: &str) {
        if let Some(load) = self.loads.get_mut(endpoint) {
            load.at_reading = (load.requests, load.tokens);
        }
    }

    /// The endpoint as the gate must see it (INV-Q12): with the other replicas' requests, or, while somebody is missing,
    /// with every request of ours counted once for each member, which leaves this replica `1/n` of the room. The larger
    /// of both then: who is heard is never counted as gone.
    pub fn view(&self, endpoint: &str, view: EndpointView) -> EndpointView {
        let load = self.loads.get(endpoint).copied().unwrap_or_default();
        let load = match broken(Fault::PeersInFlightIgnored) {
            true => PeerLoad::default(),
            false => load,
        };
        let times = self.times();
        let count = |own: u32, peers: u64| {
            let all = u64::from(own).saturating_mul(times);
            let all = all.max(u64::from(own).saturating_add(peers));
            u32::try_from(all).unwrap_or(u32::MAX)
        };
        let tokens =
            |own: u64, peers: u64| own.saturating_mul(times).max(own.saturating_add(peers));
        let unseen = |now: u64, then: u64| now.saturating_sub(then);
        EndpointView {
            own_requests: count(view.own_requests, load.requests),
            own_tokens: tokens(view.own_tokens, load.tokens),
            unseen_requests: count(
                view.unseen_requests,
                unseen(load.requests, load.at_reading.0),
            ),
            unseen_tokens: tokens(view.unseen_tokens, unseen(load.tokens, load.at_reading.1)),
            ..view
        }
    }

    /// How often a request of ours counts against a common limit.
    fn times(&self) -> u64 {
        match self.state {
            FleetState::Alone | FleetState::Whole => 1,
            FleetState::Share if broken(Fault::NoShareWhenCutOff) => 1,
            FleetState::Share => u64::from(self.config.members),
        }
    }
}
