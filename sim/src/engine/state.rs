//! The engine core with the requests in it, behind one short lock.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicU64},
    task::Waker,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use super::{
    EmulatorStats, EngineConfig, FailureConfig,
    metrics::Metrics,
    stats::Counters,
    ticket::{InFlight, Ticket},
};
use crate::{
    Nanos,
    batch::{EngineCore, KvEvent, Refused, Request, StepOutcome},
};

/// Takes the changes of the prefix cache, step by step; called on the engine's own task, so it must not block.
pub trait KvEventSink: Send + Sync {
    /// `events` of one step, in order; never empty.
    fn publish(&self, events: &[KvEvent]);

    /// Where it publishes, as `/kv_event_sources` says it; nothing if it does not publish over ZMQ.
    fn source(&self) -> Option<Value> {
        None
    }
}

/// How deep an engine sleeps. Its steps stand still, and its KV cache is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SleepLevel {
    /// Its weights are in host memory.
    Offloaded,
    /// Its weights are gone too.
    Discarded,
}

/// A request in the core.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) ticket: Arc<Ticket>,
    pub(super) choice: usize,
    /// When its last token was there.
    pub(super) last_token: Nanos,
    /// Number of its adapter.
    pub(super) adapter: Option<usize>,
    /// It is in the batch.
    pub(super) running: bool,
    /// It ends by itself, before its token limit.
    pub(super) stops: bool,
}

/// What the lock holds.
pub(super) struct Inner {
    pub(super) core: EngineCore,
    pub(super) outcome: StepOutcome,
    pub(super) live: HashMap<u64, Live>,
    pub(super) metrics: Metrics,
    /// Events of a cache reset, sent with the next step as vLLM does.
    pub(super) held_back: Vec<KvEvent>,
    pub(super) wakers: Vec<Waker>,
    /// While it sleeps no step begins.
    pub(super) asleep: Option<SleepLevel>,
}

/// An emulated engine, shared by its connections and its driver.
pub(super) struct Engine {
    pub(super) config: EngineConfig,
    pub(super) model_len: u32,
    /// When it was started, in seconds of Unix time.
    pub(super) created: u64,
    started: Instant,
    pub(super) inner: Mutex<Inner>,
    /// The driver waits for it when there is nothing to compute.
    pub(super) work: Notify,
    pub(super) failure: Mutex<FailureConfig>,
    /// True while connections are refused.
    pub(super) refusing: watch::Sender<bool>,
    pub(super) counters: Counters,
    numbers: AtomicU64,
    pub(super) sink: Option<Arc<dyn KvEventSink>>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Engine")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// A request with what its answer needs to know of it.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) request: Request,
    pub(super) adapter: Option<usize>,
    pub(super) stops: bool,
    /// Choices of its prompt.
    pub(super) n: u32,
}

impl Engine {
    pub(super) fn new(
        config: EngineConfig,
        sink: Option<Arc<dyn KvEventSink>>,
    ) -> Result<Engine, String> {
        let core = EngineCore::new(config.core(sink.is_some())?);
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let metrics = Metrics::new(&config, since.as_secs_f64());
        Ok(Engine {
            model_len: config.model_len(),
            created: since.as_secs(),
            started: Instant::now(),
            inner: Mutex::new(Inner {
                core,
                outcome: StepOutcome::default(),
                live: HashMap::new(),
                metrics,
                held_back: Vec::new(),
                wakers: Vec::new(),
                asleep: None,
            }),
            work: Notify::new(),
            refusing: watch::Sender::new(config.failure.refuse),
            failure: Mutex::new(config.failure.clone()),
            counters: Counters::default(),
            numbers: AtomicU64::new(1),
            sink,
            config,
        })
    }

    /// Nanoseconds since the start.
    pub(super) fn now(&self) -> Nanos {
        Nanos::try_from(self.started.elapsed().as_nanos()).unwrap_or(Nanos::MAX)
    }

    /// A number that nothing else has.
    pub(super) fn number(&self) -> u64 {
        self.numbers
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }

    /// Puts all requests of an answer into the core, or none.
    ///
    /// # Errors
    /// When the core refuses one of them.
    pub(super) fn enter(
        self: &Arc<Engine>,
        submissions: Vec<Submission>,
    ) -> Result<InFlight, Refused> {
        let ticket = Arc::new(Ticket::new(submissions.len()));
        let mut flight = InFlight::new(
            Arc::clone(self),
            Vec::with_capacity(submissions.len()),
            ticket.clone(),
        );
        let mut guard = self.inner.lock();
        // Read under the lock, as by the driver: so times never run backwards inside the core.
        let now = self.now();
        let inner = &mut *guard;
        if !inner.core.has_room_for(submissions.len()) {
            inner.metrics.refused();
            return Err(Refused::QueueFull);
        }
        for (choice, submission) in submissions.into_iter().enumerate() {
            let id = submission.request.id;
            inner.metrics.arrived(&submission);
            if let Err(refused) = inner.core.submit(now, submission.request) {
                inner.metrics.gone(submission.adapter, false);
                drop(guard);
                return Err(refused);
            }
            flight.push(id);
            let live = Live {
                ticket: Arc::clone(&ticket),
                choice,
                last_token: now,
                adapter: submission.adapter,
                running: false,
                stops: submission.stops,
            };
            inner.live.insert(id, live);
        }
        inner.metrics.note_adapters();
        drop(guard);
        self.work.notify_one();
        Ok(flight)
    }

    /// Aborts those of `ids` that are not complete.
    pub(super) fn leave(&self, ids: &[u64]) {
        let mut inner = self.inner.lock();
        for id in ids {
            if let Some(live) = inner.live.remove(id) {
                inner.core.abort(*id);
                inner.metrics.gone(live.adapter, live.running);
            }
        }
        inner.metrics.note_adapters();
    }

    /// Forgets the prefix cache, unless requests hold blocks.
    pub(super) fn reset_prefix_cache(&self) -> bool {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        inner.core.reset_prefix_cache(&mut inner.held_back)
    }

    /// Goes to sleep; requests wait until it wakes up. Nobody is told before the next step, as in vLLM.
    pub(super) fn sleep(&self, level: SleepLevel) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        inner.asleep = Some(level);
        inner.core.reset_prefix_cache(&mut inner.held_back);
    }

    /// Goes on.
    pub(super) fn wake_up(&self) {
        self.inner.lock().asleep = None;
        self.work.notify_one();
    }

    pub(super) fn is_sleeping(&self) -> bool {
        self.inner.lock().asleep.is_some()
    }

    /// The page of `/kv_event_sources`: one rank.
    pub(super) fn kv_event_sources(&self) -> String {
        let source = self.sink.as_ref().and_then(|sink| sink.source());
        let off = || json!({"enable_kv_cache_events": false, "publisher": "null", "endpoint": ""});
        json!({"0": source.unwrap_or_else(off)}).to_string()
    }

    /// Changes the failures from now on.
    pub(super) fn set_failure(&self, failure: FailureConfig) {
        self.refusing.send_replace(failure.refuse);
        *self.failure.lock() = failure;
    }

    pub(super) fn stats(&self) -> EmulatorStats {
        let core = self.inner.lock().core.stats();
        let mut stats = EmulatorStats {
            steps: core.steps,
            prompt_tokens: core.prompt_tokens,
            prefix_hits: core.prefix_hits,
            finished: core.finished,
            generated_tokens: core.generated_tokens,
            preemptions: core.preemptions,
            running: core.running,
            waiting: core.waiting,
            held_blocks: core.blocks.held,
            cached_blocks: core.blocks.cached,
            total_blocks: core.total_blocks,
            ..EmulatorStats::default()
        };
        self.counters.fill(&mut stats);
        stats
    }

    /// The page of `/metrics`.
    pub(super) fn page(&self) -> String {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        inner.metrics.page(&inner.core.stats(), inner.asleep)
    }
}
