//! Why a decision fell as it did: who was considered, what removed whom, each score, what was known and how old.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Incarnation, Nanos, choose::Candidate, choose::Context};

/// One decision explained. Built only while the state records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecisionRecord {
    /// The request's number.
    pub request: u64,
    /// When it was decided.
    pub at: Nanos,
    /// The profile that decided.
    pub profile: Arc<str>,
    /// The random stream's state before the first draw.
    pub rng: u64,
    /// The target was drawn from the endpoints nobody has scraped, by the explore share.
    pub explored: bool,
    /// The targets in order.
    pub chosen: Vec<Incarnation>,
    /// Everybody who was scored.
    pub candidates: Vec<CandidateRecord>,
    /// Everybody who was not, and why.
    pub removed: Vec<Removed>,
}

/// A scored candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CandidateRecord {
    /// Which life.
    pub id: Incarnation,
    /// Its name.
    pub name: Arc<str>,
    /// `ip:port`.
    pub address: Arc<str>,
    /// Half-open: could be the target only, as its probe.
    pub probe: bool,
    /// Could not start the request at that instant: a fallback at most.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub full: bool,
    /// False if it was never scraped and the profile reads telemetry.
    pub known: bool,
    /// Age of the youngest reading; `None` without any.
    pub telemetry_age: Option<Nanos>,
    /// Waiting requests with the correction, if there is a fresh reading.
    pub waiting: Option<f64>,
    /// Running requests, in the same way.
    pub running: Option<f64>,
    /// Share of KV blocks in use, if there is a fresh reading.
    pub kv_usage: Option<f64>,
    /// Own requests in flight.
    pub requests: u32,
    /// Own tokens in flight.
    pub tokens: u64,
    /// Tokens of the prompt cached there.
    pub cached_tokens: u64,
    /// One entry per scorer, in the profile's order.
    pub scores: Vec<ScoreRecord>,
    /// The slow start's factor.
    pub ramp: f64,
    /// `ramp x sum of weighted`.
    pub total: f64,
}

/// What one scorer gave one candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScoreRecord {
    /// The scorer's name.
    pub scorer: Arc<str>,
    /// Its score before clamping; `None` if it abstained.
    pub raw: Option<f64>,
    /// What it added to the total: weight x clamped score, or the neutral value.
    pub weighted: f64,
}

/// An endpoint that was not scored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// Which life.
    pub id: Incarnation,
    /// Its name.
    pub name: Arc<str>,
    /// Why.
    pub why: Removal,
}

/// Why an endpoint was not scored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Removal {
    /// It is draining.
    Draining,
    /// It is outside the request's subset.
    Subset,
    /// It is ejected, or its probe is under way.
    Ejected {
        /// When asking again can help.
        until: Nanos,
    },
    /// A filter removed it.
    Filter(Arc<str>),
    /// It cannot start the request now, and endpoints that can filled the list.
    Full,
    /// It is a stand-by, and endpoints with a weight filled the list.
    StandBy,
}

impl CandidateRecord {
    pub(crate) fn new(
        candidate: &Candidate<'_>,
        context: &Context<'_>,
        scores: Vec<ScoreRecord>,
    ) -> CandidateRecord {
        let endpoint = candidate.endpoint;
        CandidateRecord {
            id: endpoint.id,
            name: Arc::clone(&endpoint.name),
            address: Arc::clone(&endpoint.address),
            probe: candidate.probe,
            full: candidate.full,
            known: candidate.known,
            telemetry_age: endpoint.telemetry.age(context.now),
            waiting: context.waiting(endpoint),
            running: context.running(endpoint),
            kv_usage: context.kv_usage(endpoint),
            requests: endpoint.load.requests,
            tokens: endpoint.load.tokens,
            cached_tokens: candidate.cached,
            scores,
            ramp: candidate.ramp,
            total: candidate.total,
        }
    }
}
