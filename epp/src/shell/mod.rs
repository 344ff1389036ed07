//! A pool behind one short lock, and the guards that keep its counts true.
//!
//! The worker that has an input runs the step itself, then wakes whoever the outputs name after the lock is
//! free again. The order in which the lock is taken is the order of the recorded log.

mod guard;
mod record;

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

pub use guard::{InFlight, Waiting};
use parking_lot::{Mutex, RwLock};
pub use record::{RecordError, Recorder};
use tokio::sync::{Notify, oneshot};
use wicketgate_pool::{
    ConfigFault, Delta, Ended, Input, Output, Outputs, Pool, PoolConfig, QueueView, Request,
    RequestId, Totals,
    admission::{self, fleet::Counters},
    scheduler::{Decision, DecisionRecord, Endpoint, Incarnation, Nanos, PrefixView},
};

use crate::{clock::Clock, fleet::Member};

/// A pool's answer to a request.
#[expect(
    clippy::large_enum_variant,
    reason = "the large variant is the common one; a box would cost an allocation per request"
)]
pub enum Verdict {
    /// It has a place; the guard holds the counts.
    Dispatched(Decision, InFlight),
    /// It has none.
    Refused {
        /// Why.
        why: admission::Outcome,
        /// How long a newcomer would wait now, if that is known.
        wait: Option<Nanos>,
    },
}

/// When the answer comes.
pub enum Arrival {
    /// At once.
    Now(Verdict),
    /// When its turn comes.
    Later(Waiting),
}

/// What the lock protects.
struct Inner {
    pool: Pool,
    out: Outputs,
    waiters: HashMap<RequestId, oneshot::Sender<Verdict>>,
    /// Running requests that may be evicted.
    evictable: HashMap<RequestId, oneshot::Sender<()>>,
    recorder: Option<Recorder>,
}

/// One pool, shared by the workers.
pub struct PoolShell {
    clock: Clock,
    inner: Mutex<Inner>,
    prefix: Box<dyn PrefixView + Send + Sync>,
    /// `ip:port` to the present life there; written by discovery alone.
    addresses: RwLock<HashMap<Box<str>, Incarnation>>,
    /// The instant asked for by the pool, or `u64::MAX`.
    wake_at: AtomicU64,
    wake: Notify,
    /// The last decisions with their reasons, newest last.
    records: Mutex<VecDeque<Arc<DecisionRecord>>>,
    keep_records: usize,
}

impl PoolShell {
    /// A shell around a new pool.
    ///
    /// # Errors
    /// When the configuration's plugins do not fit together.
    pub fn new(
        clock: Clock,
        config: Arc<PoolConfig>,
        seed: u64,
        prefix: Box<dyn PrefixView + Send + Sync>,
        recorder: Option<Recorder>,
        keep_records: usize,
    ) -> Result<Arc<Self>, ConfigFault> {
        Ok(Arc::new(PoolShell {
            clock,
            inner: Mutex::new(Inner {
                pool: Pool::new(config, seed)?,
                out: Outputs::default(),
                waiters: HashMap::new(),
                evictable: HashMap::new(),
                recorder,
            }),
            prefix,
            addresses: RwLock::default(),
            wake_at: AtomicU64::new(u64::MAX),
            wake: Notify::new(),
            records: Mutex::default(),
            keep_records,
        }))
    }

    /// Puts a request to the pool.
    pub fn arrive(self: &Arc<Self>, request: Request) -> Arrival {
        let id = request.id;
        let mut own = None;
        // From here on the request may be counted: a panic in the step gives it back too.
        let unwound = Unwound { shell: self, id };
        let later = self.step(Input::Arrive(Arc::new(request)), |inner, outputs| {
            own = take_own(outputs, id);
            match &own {
                Some(Own::Dispatched(..)) => inner.evictable(id).map(Later::Evicted),
                Some(Own::Refused { .. }) => None,
                None => {
                    let (sender, receiver) = oneshot::channel();
                    inner.waiters.insert(id, sender);
                    Some(Later::Verdict(receiver))
                }
            }
        });
        std::mem::forget(unwound);
        match (own, later) {
            (Some(Own::Dispatched(mut decision, waited)), later) => {
                self.keep_record(&mut decision);
                let evicted = match later {
                    Some(Later::Evicted(evicted)) => Some(evicted),
                    Some(Later::Verdict(_)) | None => None,
                };
                let guard = InFlight::new(self, id, waited, evicted);
                Arrival::Now(Verdict::Dispatched(decision, guard))
            }
            (Some(Own::Refused { why, wait }), _) => Arrival::Now(Verdict::Refused { why, wait }),
            (None, Some(Later::Verdict(receiver))) => {
                Arrival::Later(Waiting::new(self, id, receiver))
            }
            (None, Some(Later::Evicted(_)) | None) => Arrival::Now(Verdict::Refused {
                why: admission::Outcome::Internal,
                wait: None,
            }),
        }
    }

    fn keep_record(&self, decision: &mut Decision) {
        let Some(record) = decision.record.take() else {
            return;
        };
        let mut records = self.records.lock();
        while records.len() >= self.keep_records.max(1) {
            records.pop_front();
        }
        records.push_back(Arc::from(record));
    }

    /// The last decisions with their reasons, oldest first.
    pub fn records(&self) -> Vec<Arc<DecisionRecord>> {
        self.records.lock().iter().cloned().collect()
    }

    /// Posts an input that nobody waits for.
    pub(crate) fn post(self: &Arc<Self>, input: Input) {
        self.step(input, |_, _| ());
    }

    /// A change of the endpoint set, and the addresses that go with it.
    pub(crate) fn change_endpoints(self: &Arc<Self>, delta: Delta) {
        {
            let mut addresses = self.addresses.write();
            addresses.retain(|_, id| !delta.leave.contains(id));
            for (id, spec) in &delta.join {
                addresses.insert(spec.address.as_ref().into(), *id);
            }
        }
        self.post(Input::Endpoints(delta));
    }

    /// The present life at `ip:port`.
    pub fn at_address(&self, address: &str) -> Option<Incarnation> {
        self.addresses.read().get(address).copied()
    }

    /// The name of a life that is in the pool.
    pub fn name_of(&self, id: Incarnation) -> Option<Arc<str>> {
        self.view(|pool| {
            let mut rows = pool.endpoints().iter();
            rows.find(|row| row.id == id)
                .map(|row| Arc::clone(&row.name))
        })
    }

    /// Runs a step under the lock, lets `own` look at the outputs there, then carries out the rest.
    fn step<T>(
        self: &Arc<Self>,
        input: Input,
        own: impl FnOnce(&mut Inner, &mut Vec<Output>) -> T,
    ) -> T {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        // Read under the lock: the log's instants never go back.
        let now = self.clock.now();
        let mut out = std::mem::take(&mut inner.out);
        if let Input::End { id, .. } = &input {
            inner.evictable.remove(id);
        }
        match inner.recorder.as_mut() {
            None => inner.pool.step(now, input, self.prefix.as_ref(), &mut out),
            Some(recorder) => {
                recorder.step(&mut inner.pool, now, input, self.prefix.as_ref(), &mut out);
            }
        }
        let result = own(inner, &mut out.list);
        let mut wake = Vec::new();
        for output in out.list.drain(..) {
            self.carry_out(inner, output, &mut wake);
        }
        inner.out = out;
        drop(guard);
        for (sender, verdict) in wake {
            // A caller that is gone drops the verdict, and with it the guard: only now, as that takes the lock.
            if let Some(sender) = sender {
                let _ = sender.send(verdict);
            }
        }
        result
    }

    fn carry_out(
        self: &Arc<Self>,
        inner: &mut Inner,
        output: Output,
        wake: &mut Vec<(Option<oneshot::Sender<Verdict>>, Verdict)>,
    ) {
        match output {
            Output::Dispatch {
                id,
                mut decision,
                waited,
            } => {
                self.keep_record(&mut decision);
                let guard = InFlight::new(self, id, waited, inner.evictable(id));
                let verdict = Verdict::Dispatched(decision, guard);
                wake.push((inner.waiters.remove(&id), verdict));
            }
            Output::Refuse { id, why, wait } => {
                if let Some(sender) = inner.waiters.remove(&id) {
                    wake.push((Some(sender), Verdict::Refused { why, wait }));
                }
            }
            Output::Evict { id } => {
                // Its stream may have ended meanwhile; then there is nobody to tell.
                let told = inner.evictable.remove(&id).map(|sender| sender.send(()));
                tracing::debug!(id = id.0, told = ?told.is_some(), "evicting a running request");
            }
            // Taken out by whoever asked; said to nobody it is lost, as a message may be.
            Output::Tell(_) => {}
            Output::ConfigRefused(why) => tracing::error!(why, "configuration refused by the pool"),
            Output::WakeAt(at) => {
                self.wake_at.store(at, Ordering::Release);
                self.wake.notify_one();
            }
        }
    }

    /// Takes the waiter of a cancelled request away and tells the pool.
    pub(crate) fn cancel(self: &Arc<Self>, id: RequestId) {
        self.inner.lock().waiters.remove(&id);
        self.post(Input::Cancel(id));
    }

    /// Calls the pool at the instants it asked for. Runs until its task is dropped.
    pub async fn run_timer(self: Arc<Self>) {
        loop {
            let at = self.wake_at.load(Ordering::Acquire);
            if at == u64::MAX {
                self.wake.notified().await;
                continue;
            }
            let left = Duration::from_nanos(at.saturating_sub(self.clock.now()));
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(left) => {
                    let due = self.wake_at.compare_exchange(
                        at, u64::MAX, Ordering::AcqRel, Ordering::Acquire);
                    if due.is_ok() {
                        self.post(Input::Timer);
                    }
                }
            }
        }
    }

    /// The clock that the pool's instants come from.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Looks at the pool under its lock. Keep it short.
    pub fn view<T>(&self, look: impl FnOnce(&Pool) -> T) -> T {
        look(&self.inner.lock().pool)
    }

    /// Looks at the endpoint table under the lock.
    pub fn endpoints<T>(&self, look: impl FnOnce(&[Endpoint], Nanos) -> T) -> T {
        let now = self.clock.now();
        self.view(|pool| look(pool.endpoints(), now))
    }

    /// The queue now.
    pub fn queue(&self) -> QueueView {
        let now = self.clock.now();
        self.view(|pool| pool.queue(now))
    }

    /// Newcomers are refused from now on; with `drain` those that wait still get their turn.
    pub fn close(self: &Arc<Self>, drain: bool) {
        self.post(Input::Close { drain });
    }

    /// Requests dispatched and not ended, requests on endpoints that left, and waiting callers.
    pub fn held(&self) -> Held {
        let inner = self.inner.lock();
        Held {
            running: inner.pool.running() as u64,
            orphaned: inner.pool.orphaned(),
            waiting: inner.waiters.len() as u64,
            totals: inner.pool.totals(),
        }
    }

    /// Ends the recorded log; later steps are not written.
    pub fn stop_recording(&self) {
        self.inner.lock().recorder = None;
    }
}

impl Member for Arc<PoolShell> {
    fn tell(&self) -> Counters {
        let said = self.step(Input::Tell, |_, outputs| {
            let at = outputs
                .iter()
                .position(|output| matches!(output, Output::Tell(_)))?;
            match outputs.remove(at) {
                Output::Tell(said) => Some(*said),
                _ => None,
            }
        });
        said.unwrap_or_default()
    }

    fn hear(&self, said: &Counters) {
        self.post(Input::Peer(Arc::new(said.clone())));
    }

    fn members(&self, members: u32) {
        self.post(Input::Members(members));
    }
}

/// What a pool holds at an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Held {
    /// Dispatched and not ended.
    pub running: u64,
    /// Of those, on endpoints that have left.
    pub orphaned: u64,
    /// Waiting for a place.
    pub waiting: u64,
    /// Counts over the pool's life.
    pub totals: Totals,
}

/// Gives a request back whose arrival panicked.
struct Unwound<'a> {
    shell: &'a Arc<PoolShell>,
    id: RequestId,
}

impl Drop for Unwound<'_> {
    fn drop(&mut self) {
        let (shell, id) = (self.shell, self.id);
        // A second panic while unwinding would end the process.
        let given = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            shell.cancel(id);
            shell.post(Input::End {
                id,
                how: Ended::Dropped,
                usage: None,
            });
        }));
        if given.is_err() {
            tracing::error!("a pool panics at every step; its counts can no longer be trusted");
        }
    }
}

/// The pool's answer to the request that was just put to it.
enum Own {
    Dispatched(Decision, Nanos),
    Refused {
        why: admission::Outcome,
        wait: Option<Nanos>,
    },
}

/// What a request may hear of later.
enum Later {
    Verdict(oneshot::Receiver<Verdict>),
    Evicted(oneshot::Receiver<()>),
}

impl Inner {
    /// A way to tell a dispatched request to end, if it is one that may be evicted.
    fn evictable(&mut self, id: RequestId) -> Option<oneshot::Receiver<()>> {
        let (_, priority) = self.pool.running_at(id)?;
        let enabled = self.pool.config().flow.admission.eviction.enabled;
        (enabled && priority < 0).then(|| {
            let (sender, receiver) = oneshot::channel();
            self.evictable.insert(id, sender);
            receiver
        })
    }
}

/// Takes the answer to `id` out of the outputs, if it is there.
fn take_own(outputs: &mut Vec<Output>, id: RequestId) -> Option<Own> {
    let index = outputs.iter().position(|output| match output {
        Output::Dispatch { id: of, .. } | Output::Refuse { id: of, .. } => *of == id,
        Output::Evict { .. } | Output::Tell(_) | Output::ConfigRefused(_) | Output::WakeAt(_) => {
            false
        }
    })?;
    match outputs.remove(index) {
        Output::Dispatch {
            decision, waited, ..
        } => Some(Own::Dispatched(decision, waited)),
        Output::Refuse { why, wait, .. } => Some(Own::Refused { why, wait }),
        Output::Evict { .. } | Output::Tell(_) | Output::ConfigRefused(_) | Output::WakeAt(_) => {
            None
        }
    }
}

#[cfg(test)]
mod tests;
