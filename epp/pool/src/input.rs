//! What goes into a step and what comes out of it. Plain data: a run can be written down and replayed.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wicketgate_admission::{
    FairnessId, Outcome,
    fleet::{Counters, FleetConfig, ReplicaId},
};
use wicketgate_scheduler::{
    Decision, EndpointSpec, Incarnation, Nanos, RequestView, Sample, SubsetEntry,
};

use crate::core::PoolConfig;

/// One request's number, unique in a process.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Default, Serialize, Deserialize,
)]
pub struct RequestId(pub u64);

/// A request as the pool sees it: trusted context, sizes and eligibility; never body bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Its number.
    pub id: RequestId,
    /// When its first byte was seen.
    pub arrived: Nanos,
    /// The instant after which nobody wants the answer any more.
    pub deadline: Option<Nanos>,
    /// The model or adapter it asks for; empty when the body names none.
    pub model: Arc<str>,
    /// Prompt length in tokens: exact where the tokens are known, else an estimate.
    pub prompt_tokens: u64,
    /// Output length that is expected, in tokens.
    pub output_tokens: u64,
    /// Body length in bytes.
    pub bytes: u64,
    /// Session token that the caller presented.
    pub session: Option<Arc<str>>,
    /// Implicit session: hash of the system text, the tools and the first user text.
    pub session_hash: Option<u64>,
    /// Only these endpoints may serve it; `Some` and empty means none may.
    pub subset: Option<Vec<SubsetEntry>>,
    /// Higher is more urgent; negative may be shed.
    pub priority: i32,
    /// Who shares with whom inside a band of one priority.
    pub fairness: FairnessId,
    /// The share of its fairness ID against others; `None` is 1.
    pub weight: Option<f64>,
    /// Longest wait that its caller asked for. Only shortens the band's.
    pub ttl: Option<Nanos>,
    /// Wanted time to first token, from [`Request::arrived`].
    pub slo_ttft: Option<Nanos>,
    /// Headers that a plugin of the configuration reads, lower-case names.
    pub headers: Vec<(String, String)>,
    /// Names of the prompt's blocks, for the prefix index. Not written down: a log has the index's answers.
    #[serde(skip)]
    pub keys: Arc<[u64]>,
}

impl Request {
    /// The scheduler's view of it.
    pub(crate) fn view(&self) -> RequestView<'_> {
        RequestView {
            id: self.id.0,
            model: &self.model,
            prompt_tokens: self.prompt_tokens,
            output_tokens: self.output_tokens,
            session: self.session.as_deref(),
            session_hash: self.session_hash,
            subset: self.subset.as_deref(),
            priority: self.priority,
            headers: &self.headers,
            keys: &self.keys,
        }
    }
}

/// Token counts that an engine reported. Missing is not zero.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt_tokens: Option<u64>,
    /// Generated tokens.
    pub completion_tokens: Option<u64>,
    /// Prompt tokens that came from the engine's prefix cache.
    pub cached_tokens: Option<u64>,
}

/// How a dispatched request ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum Ended {
    /// The whole answer went through, with this HTTP status.
    Complete(u16),
    /// The caller went away first.
    ClientGone,
    /// The endpoint could not be reached or broke off.
    UpstreamFailed,
    /// It took longer than a limit allows.
    TimedOut,
    /// The answer's end cannot be seen in this mode, so the count ends with its headers.
    Unobserved,
    /// We ended it for a more urgent request.
    Evicted,
    /// Its guard was dropped without a word: a bug or a panic; counted as such.
    Dropped,
}

/// A change of the endpoint set. Incarnations are given out by the shell and never used again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Delta {
    /// New lives.
    pub join: Vec<(Incarnation, EndpointSpec)>,
    /// The same life with another weight, other labels or a draining mark.
    pub change: Vec<(Incarnation, EndpointSpec)>,
    /// Ended lives. What they still run stays accounted until it ends.
    pub leave: Vec<Incarnation>,
}

impl Delta {
    /// True if it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.join.is_empty() && self.change.is_empty() && self.leave.is_empty()
    }
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Input {
    /// A request asks for a place.
    Arrive(Arc<Request>),
    /// A waiting request was given up by its caller.
    Cancel(RequestId),
    /// The endpoint that really got the request, when it is not the first one chosen.
    Served {
        /// Which request.
        id: RequestId,
        /// Who got it.
        by: Incarnation,
    },
    /// One try at an endpoint failed; the request goes on elsewhere.
    Failed {
        /// Which request.
        id: RequestId,
        /// Where it failed.
        at: Incarnation,
        /// The failure was seen. Otherwise the proxy went elsewhere and does not say why: a full queue is no
        /// fault, so it counts only against an endpoint whose scrapes fail too.
        certain: bool,
    },
    /// The answer's first token was seen: the prefill is over.
    FirstToken(RequestId),
    /// A dispatched request is over. Only its guard says this.
    End {
        /// Which request.
        id: RequestId,
        /// How.
        how: Ended,
        /// What the engine said it cost.
        usage: Option<Usage>,
    },
    /// A scrape of an endpoint came back.
    Telemetry {
        /// Whose.
        of: Incarnation,
        /// What it said; `None` when the scrape failed.
        sample: Option<Sample>,
    },
    /// The endpoint set changed.
    Endpoints(Delta),
    /// The configuration changed.
    Config(Arc<PoolConfig>),
    /// This pool has other replicas from now on.
    Fleet {
        /// Who this one is.
        me: ReplicaId,
        /// Bounds and times of the exchange.
        config: FleetConfig,
    },
    /// What another replica said last.
    Peer(Arc<Counters>),
    /// How many replicas there are, this one included.
    Members(u32),
    /// The others want to know: answered by [`Output::Tell`].
    Tell,
    /// The instant last asked for by [`Output::WakeAt`] has come.
    Timer,
    /// Newcomers are refused from now on. With `drain` those that wait still get their turn.
    Close {
        /// Those that wait may go on waiting.
        drain: bool,
    },
}

/// One thing the shell must carry out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Output {
    /// Send the request there.
    Dispatch {
        /// Which request.
        id: RequestId,
        /// Where, with the ordered fallback list and, when recording, why.
        decision: Decision,
        /// How long it waited.
        waited: Nanos,
    },
    /// Tell the caller no.
    Refuse {
        /// Which request.
        id: RequestId,
        /// Why.
        why: Outcome,
        /// How long a newcomer of its priority would wait now, if that is known.
        wait: Option<Nanos>,
    },
    /// End a running request for the sake of a more urgent one.
    Evict {
        /// Which request.
        id: RequestId,
    },
    /// What this replica tells the others.
    Tell(Box<Counters>),
    /// A configuration could not be taken over; the old one stays.
    ConfigRefused(String),
    /// Call again with [`Input::Timer`] at this instant.
    WakeAt(Nanos),
}

/// The outputs of a step, in order. Reused between steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outputs {
    /// In the order in which they must be carried out.
    pub list: Vec<Output>,
}

impl Outputs {
    pub(crate) fn push(&mut self, output: Output) {
        self.list.push(output);
    }
}
