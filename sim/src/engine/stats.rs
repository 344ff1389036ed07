//! What the emulator counts about itself, beside vLLM's metrics.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::state::Engine;

/// Served request ids that are remembered.
const REMEMBERED: usize = 10_000;

/// Counts of an emulated engine: `GET /emulator/stats`.
///
/// `requests = ok + refused + injected + aborted + in_flight` while no request is between two of these states.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EmulatorStats {
    /// Inference requests received.
    pub requests: u64,
    /// Answered whole.
    pub ok: u64,
    /// Refused: bad request, unknown model, queue full.
    pub refused: u64,
    /// Answered with an injected error status.
    pub injected: u64,
    /// Given up: client gone, or an injected cut or stall.
    pub aborted: u64,
    /// Being worked on.
    pub in_flight: u64,
    /// Connections accepted.
    pub connections: u64,
    /// Steps computed.
    pub steps: u64,
    /// Prompt tokens of computed prompts.
    pub prompt_tokens: u64,
    /// Prompt tokens found in the cache.
    pub prefix_hits: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Sequences that the core completed; a request can have several.
    pub finished: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Requests in the batch now.
    pub running: u32,
    /// Requests in the queue now.
    pub waiting: u32,
    /// KV blocks held by requests now.
    pub held_blocks: u32,
    /// KV blocks that are idle and cached now.
    pub cached_blocks: u32,
    /// KV blocks that requests can use.
    pub total_blocks: u32,
    /// `x-request-id` (or own id) of requests answered whole, the oldest first; the last 10,000.
    pub served: Vec<String>,
}

/// Counts kept outside the engine's lock.
#[derive(Debug, Default)]
pub(super) struct Counters {
    seen: AtomicU64,
    ok: AtomicU64,
    refused: AtomicU64,
    injected: AtomicU64,
    aborted: AtomicU64,
    in_flight: AtomicU64,
    pub(super) connections: AtomicU64,
    served: Mutex<VecDeque<String>>,
}

impl Counters {
    /// Requests being worked on.
    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight.load(Relaxed)
    }

    pub(super) fn fill(&self, stats: &mut EmulatorStats) {
        stats.requests = self.seen.load(Relaxed);
        stats.ok = self.ok.load(Relaxed);
        stats.refused = self.refused.load(Relaxed);
        stats.injected = self.injected.load(Relaxed);
        stats.aborted = self.aborted.load(Relaxed);
        stats.in_flight = self.in_flight();
        stats.connections = self.connections.load(Relaxed);
        stats.served = self.served.lock().iter().cloned().collect();
    }
}

/// How an inference request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Ok,
    Refused,
    Injected,
}

/// An inference request in the counts. Dropped without an end it was aborted.
#[derive(Debug)]
pub(super) struct Account {
    engine: Arc<Engine>,
    id: String,
    ended: Option<Ended>,
}

impl Account {
    pub(super) fn open(engine: &Arc<Engine>, id: String) -> Account {
        engine.counters.seen.fetch_add(1, Relaxed);
        engine.counters.in_flight.fetch_add(1, Relaxed);
        Account {
            engine: Arc::clone(engine),
            id,
            ended: None,
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The request names itself in its body.
    pub(super) fn rename(&mut self, id: &str) {
        id.clone_into(&mut self.id);
    }

    pub(super) fn end(mut self, ended: Ended) {
        self.ended = Some(ended);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let counters = &self.engine.counters;
        let count = match self.ended {
            Some(Ended::Ok) => {
                let mut served = counters.served.lock();
                if served.len() >= REMEMBERED {
                    served.pop_front();
                }
                served.push_back(std::mem::take(&mut self.id));
                &counters.ok
            }
            Some(Ended::Refused) => &counters.refused,
            Some(Ended::Injected) => &counters.injected,
            None => &counters.aborted,
        };
        count.fetch_add(1, Relaxed);
        counters.in_flight.fetch_sub(1, Relaxed);
    }
}
