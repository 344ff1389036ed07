//! The messages of `wicketgate.fleet.v1`, written by hand as prost messages. Fields are only ever added: an older replica
//! skips what it does not know, and takes what is missing for zero.

use std::sync::Arc;

use prost::Message;
use wicketgate_admission::{
    FairnessId,
    fleet::{Counters, EndpointLoad, FlowService, Queued, ReplicaId},
};

/// Full path of the one method: a stream of [`Told`] both ways.
pub(super) const EXCHANGE: &str = "/wicketgate.fleet.v1.Fleet/Exchange";

/// What one replica says of one of its pools. The first message of a stream names no pool: it only says who speaks.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Told {
    /// Number of this start of the replica.
    #[prost(fixed64, tag = "1")]
    pub(super) replica: u64,
    /// The pool's name.
    #[prost(string, tag = "2")]
    pub(super) pool: String,
    /// Which of the replica's messages of this pool.
    #[prost(uint64, tag = "3")]
    pub(super) number: u64,
    /// Replicas that it hears.
    #[prost(fixed64, repeated, tag = "4")]
    pub(super) hears: Vec<u64>,
    /// It hears all members, and all hear it.
    #[prost(bool, tag = "5")]
    pub(super) linked: bool,
    /// Waiting requests.
    #[prost(uint64, tag = "6")]
    pub(super) waiting_requests: u64,
    /// Their body bytes.
    #[prost(uint64, tag = "7")]
    pub(super) waiting_bytes: u64,
    /// Their tokens.
    #[prost(uint64, tag = "8")]
    pub(super) waiting_tokens: u64,
    /// Dispatched requests that are not over.
    #[prost(uint64, tag = "9")]
    pub(super) running: u64,
    /// Its requests in flight.
    #[prost(message, repeated, tag = "10")]
    pub(super) endpoints: Vec<Endpoint>,
    /// Lives of flows so far.
    #[prost(uint64, tag = "11")]
    pub(super) lives: u64,
    /// What it served.
    #[prost(message, repeated, tag = "12")]
    pub(super) flows: Vec<Flow>,
}

/// Requests in flight at one endpoint.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Endpoint {
    /// A name that means the same life of it at every replica.
    #[prost(string, tag = "1")]
    pub(super) name: String,
    /// Requests.
    #[prost(uint32, tag = "2")]
    pub(super) requests: u32,
    /// Tokens not yet prefilled.
    #[prost(uint64, tag = "3")]
    pub(super) tokens: u64,
}

/// Service of one flow.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Flow {
    /// Its band.
    #[prost(sint32, tag = "1")]
    pub(super) priority: i32,
    /// Its fairness id.
    #[prost(string, tag = "2")]
    pub(super) fairness: String,
    /// Its weight.
    #[prost(double, tag = "3")]
    pub(super) weight: f64,
    /// Which life of it.
    #[prost(uint64, tag = "4")]
    pub(super) life: u64,
    /// Accounted service of this life in tokens.
    #[prost(sint64, tag = "5")]
    pub(super) service: i64,
}

impl Told {
    /// Who speaks.
    pub(super) fn hello(me: ReplicaId) -> Told {
        Told {
            replica: me.0,
            ..Told::default()
        }
    }

    pub(super) fn new(pool: &str, said: &Counters) -> Told {
        Told {
            replica: said.replica.0,
            pool: pool.to_owned(),
            number: said.number,
            hears: said.hears.iter().map(|replica| replica.0).collect(),
            linked: said.linked,
            waiting_requests: said.waiting.requests,
            waiting_bytes: said.waiting.bytes,
            waiting_tokens: said.waiting.tokens,
            running: said.running,
            endpoints: said.endpoints.iter().map(Endpoint::new).collect(),
            lives: said.lives,
            flows: said.flows.iter().map(Flow::new).collect(),
        }
    }

    /// Bounds on rows and names are the counters' business, who hear them.
    pub(super) fn counters(self) -> Counters {
        Counters {
            replica: ReplicaId(self.replica),
            number: self.number,
            hears: self.hears.into_iter().map(ReplicaId).collect(),
            linked: self.linked,
            waiting: Queued {
                requests: self.waiting_requests,
                bytes: self.waiting_bytes,
                tokens: self.waiting_tokens,
            },
            running: self.running,
            endpoints: self.endpoints.into_iter().map(Endpoint::load).collect(),
            lives: self.lives,
            flows: self.flows.into_iter().map(Flow::service).collect(),
        }
    }
}

impl Endpoint {
    fn new(load: &EndpointLoad) -> Endpoint {
        Endpoint {
            name: load.endpoint.as_ref().to_owned(),
            requests: load.requests,
            tokens: load.tokens,
        }
    }

    fn load(self) -> EndpointLoad {
        EndpointLoad {
            endpoint: Arc::from(self.name),
            requests: self.requests,
            tokens: self.tokens,
        }
    }
}

impl Flow {
    fn new(row: &FlowService) -> Flow {
        Flow {
            priority: row.priority,
            fairness: row.fairness.as_str().to_owned(),
            weight: row.weight,
            life: row.life,
            service: row.service,
        }
    }

    fn service(self) -> FlowService {
        FlowService {
            priority: self.priority,
            fairness: FairnessId::new(self.fairness),
            weight: self.weight,
            life: self.life,
            service: self.service,
        }
    }
}
