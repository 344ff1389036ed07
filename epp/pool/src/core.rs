//! [`Pool::step`]: the three answers of a pool from one value with one owner at a time.

use std::{collections::HashMap, sync::Arc};

use serde::{Deserialize, Serialize};
use wicketgate_admission::{
    Admission, ClassId, ConfigError, Cost, Ended as Left, Item, MAX_COST, Outcome, fleet::Fleet,
    gate::UsageLimitState,
};
use wicketgate_scheduler::{
    Availability, Decision, Endpoint, Incarnation, Nanos, NoEndpoint, PrefixView, Scheduler,
    SchedulerPolicy, SchedulerSpec, Snapshot, SpecError, State, Subset,
};

use crate::{
    flow::{Classes, FlowControl},
    input::{Ended, Input, Output, Outputs, Request, RequestId, Usage},
    table::{Held, Table},
    turn::Scratch,
};

/// Everything a pool decides by. Plain data, so that a recorded run carries it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolConfig {
    /// The pool's name, a metric label.
    pub name: Arc<str>,
    /// Profiles, plugins and weights.
    pub scheduler: SchedulerSpec,
    /// Staleness, slow start, ejection and exploration.
    pub policy: SchedulerPolicy,
    /// Whether and how requests wait.
    pub flow: FlowControl,
    /// Write a decision record for each dispatch.
    pub record_decisions: bool,
}

/// Why a pool cannot decide by a configuration.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigFault {
    /// The scheduler's plugins do not fit together.
    #[error(transparent)]
    Scheduler(#[from] SpecError),
    /// Admission or its gate has a value that makes no sense.
    #[error(transparent)]
    Flow(#[from] ConfigError),
}

/// A request that waits.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    pub(crate) request: Arc<Request>,
    pub(crate) class: ClassId,
    /// What it is charged for.
    charged: Cost,
}

/// A dispatched request and what it holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    held: Held,
    /// What it was charged for.
    expected: Cost,
    priority: i32,
    /// Its last try was seen to fail.
    failed: bool,
    /// It is the probe of an endpoint that comes back from the ejection that lasted until then.
    probe: Option<Nanos>,
}

impl Running {
    pub(crate) fn at(&self) -> Incarnation {
        self.held.at
    }
}

/// Counts over a pool's life, for metrics and tests.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Requests that asked for a place.
    pub arrived: u64,
    /// Requests that got one.
    pub dispatched: u64,
    /// Requests that were told no.
    pub refused: u64,
    /// Requests whose caller went away while they waited.
    pub cancelled: u64,
    /// Dispatched requests that ended.
    pub ended: u64,
    /// Inputs that named a request or an endpoint nobody knows.
    pub unknown: u64,
}

/// Admission, scheduler and endpoint table of one pool.
pub struct Pool {
    pub(crate) config: Arc<PoolConfig>,
    scheduler: Scheduler,
    state: State,
    pub(crate) table: Table,
    pub(crate) admission: Admission,
    pub(crate) classes: Classes,
    pub(crate) waiting: HashMap<RequestId, Waiter>,
    pub(crate) running: HashMap<RequestId, Running>,
    pub(crate) limits: UsageLimitState,
    pub(crate) fleet: Option<Fleet>,
    pub(crate) scratch: Scratch,
    /// The instant last asked for, while it lies ahead.
    pub(crate) announced: Option<Nanos>,
    totals: Totals,
}

impl Pool {
    /// A pool without endpoints.
    ///
    /// `seed` starts the pool's randomness: the same seed and inputs give the same outputs.
    ///
    /// # Errors
    /// When the scheduler's plugins do not fit together, or a value of admission makes no sense.
    pub fn new(config: Arc<PoolConfig>, seed: u64) -> Result<Pool, ConfigFault> {
        let mut state = State::new(seed);
        state.recording(config.record_decisions);
        config.flow.gate.check()?;
        Ok(Pool {
            scheduler: Scheduler::new(&config.scheduler)?,
            state,
            table: Table::default(),
            admission: Admission::new(config.flow.admission.clone())?,
            classes: Classes::default(),
            waiting: HashMap::new(),
            running: HashMap::new(),
            limits: UsageLimitState::default(),
            fleet: None,
            scratch: Scratch::default(),
            announced: None,
            totals: Totals::default(),
            config,
        })
    }

    /// One input in, its outputs appended to `out`. `now` never goes back.
    pub fn step(&mut self, now: Nanos, input: Input, prefix: &dyn PrefixView, out: &mut Outputs) {
        match input {
            Input::Arrive(request) => self.arrive(now, &request, prefix, out),
            Input::Cancel(id) => self.cancel(id),
            Input::Timer => {
                self.announced = None;
                // Time alone may have opened the gate: a reading grew old, a cool-down ended.
                self.admission.capacity_changed(None);
            }
            Input::Served { id, by } => self.served(now, id, by),
            Input::Failed { id, at, certain } => self.failed(now, id, at, certain),
            Input::FirstToken(id) => self.first_token(id),
            Input::End { id, how, usage } => self.end(now, id, how, usage),
            Input::Telemetry { of, sample } => {
                if self.table.scraped(now, of, sample.as_ref()) {
                    self.seen_by_peers(of, sample.is_some());
                    self.admission.capacity_changed(None);
                } else {
                    self.totals.unknown += 1;
                }
            }
            Input::Endpoints(delta) => {
                self.table.apply(now, &delta);
                self.admission.pool_state(now, self.table.serving());
                self.admission.capacity_changed(None);
            }
            Input::Config(config) => self.reconfigure(config, out),
            Input::Fleet { me, config } => self.join_fleet(me, config, out),
            Input::Peer(said) => self.hear(now, &said),
            Input::Members(members) => self.set_members(members),
            Input::Tell => self.tell_peers(now, out),
            Input::Close { drain } => {
                let mut left = Vec::new();
                self.admission.close(drain, &mut left);
                self.tell(left, out);
            }
        }
        self.turn(now, prefix, out);
        debug_assert_eq!(self.check(), Ok(()));
    }

    fn arrive(
        &mut self,
        now: Nanos,
        request: &Arc<Request>,
        prefix: &dyn PrefixView,
        out: &mut Outputs,
    ) {
        self.totals.arrived += 1;
        let id = request.id;
        let refused = match self.config.flow.enabled {
            false => self.at_once(now, request, prefix, out),
            true => self.enqueue(now, request, prefix, out),
        };
        if let Err(why) = refused {
            self.refuse(id, request.priority, why, out);
        }
    }

    /// llm-d's way without flow control: nothing waits, and only negative priorities are refused by load.
    fn at_once(
        &mut self,
        now: Nanos,
        request: &Arc<Request>,
        prefix: &dyn PrefixView,
        out: &mut Outputs,
    ) -> Result<(), Outcome> {
        if request.deadline.is_some_and(|deadline| deadline <= now) {
            return Err(Outcome::EvictedTtl);
        }
        if self.admission.is_closing() {
            return Err(Outcome::RejectedShuttingDown);
        }
        if request.priority < 0 {
            let saturation = self.saturation(now).effective();
            wicketgate_admission::gate::without_queues(request.priority, saturation)?;
        }
        let decision = self.place(now, request, cost(request), prefix, &[])?;
        self.dispatched(request.id, decision, 0, out);
        Ok(())
    }

    /// True if the request's own restriction leaves nobody of those that are there: waiting would not help it.
    fn is_outside(&self, subset: &Subset) -> bool {
        let mut serving = self.table.rows().iter().filter(|row| !row.draining);
        let mut any = false;
        let inside = serving.any(|row| {
            any = true;
            subset.allows(row.socket())
        });
        // The hint may name whoever is to come to an empty pool; an empty hint names nobody.
        !inside && (any || subset.is_empty())
    }

    fn enqueue(
        &mut self,
        now: Nanos,
        request: &Arc<Request>,
        prefix: &dyn PrefixView,
        out: &mut Outputs,
    ) -> Result<(), Outcome> {
        if self.waiting.contains_key(&request.id) || self.running.contains_key(&request.id) {
            return Err(Outcome::Internal);
        }
        let subset = request.subset.as_deref().map(Subset::new);
        if subset
            .as_ref()
            .is_some_and(|subset| self.is_outside(subset))
        {
            return Err(Outcome::RejectedSubsetEmpty);
        }
        let class = self.classes.enter(subset);
        let charged = self.charge(request, class, prefix);
        let item = Item {
            id: request.id.0,
            priority: request.priority,
            fairness: request.fairness.clone(),
            weight: request.weight.unwrap_or(1.0),
            class,
            bytes: request.bytes,
            cost: charged,
            arrived: request.arrived,
            ttl: request.ttl,
            deadline: request.deadline,
            slo_ttft: request.slo_ttft,
        };
        let mut displaced = Vec::new();
        let entered = self.admission.enqueue(now, item, &mut displaced);
        match entered {
            Ok(()) => {
                let request = Arc::clone(request);
                let waiter = Waiter {
                    request,
                    class,
                    charged,
                };
                self.waiting.insert(waiter.request.id, waiter);
            }
            Err(_) => self.classes.leave(class),
        }
        self.tell(displaced, out);
        entered
    }

    /// What a request costs where most of its prompt is cached now.
    fn charge(&self, request: &Request, class: ClassId, prefix: &dyn PrefixView) -> Cost {
        let mut charged = cost(request);
        let view = request.view();
        if prefix.look(&view) {
            let rows = self.table.rows().iter();
            let may = rows.filter(|row| !row.draining && self.classes.allows(class, row));
            let best = may.map(|row| prefix.cached_tokens(&view, row.id)).max();
            charged.uncached_input = charged.uncached_input.saturating_sub(best.unwrap_or(0));
        }
        charged
    }

    /// Tells those whose wait ended without a place.
    pub(crate) fn tell(&mut self, left: Vec<Left>, out: &mut Outputs) {
        for (id, why) in left {
            let id = RequestId(id);
            if let Some(waiter) = self.stop_waiting(id) {
                self.refuse(id, waiter.request.priority, why, out);
            }
        }
    }

    fn refuse(&mut self, id: RequestId, priority: i32, why: Outcome, out: &mut Outputs) {
        self.totals.refused += 1;
        let wait = self.admission.wait_estimate(priority);
        out.push(Output::Refuse { id, why, wait });
    }

    pub(crate) fn stop_waiting(&mut self, id: RequestId) -> Option<Waiter> {
        let waiter = self.waiting.remove(&id)?;
        self.classes.leave(waiter.class);
        Some(waiter)
    }

    /// A request that is dispatched already is ended by its guard, not here.
    fn cancel(&mut self, id: RequestId) {
        if self.admission.cancel(id.0) && self.stop_waiting(id).is_some() {
            self.totals.cancelled += 1;
        }
    }

    /// Dispatches a request whose turn it is. `full` are the endpoints that cannot start it, in the order of the rows.
    pub(crate) fn start(
        &mut self,
        now: Nanos,
        id: RequestId,
        waited: Nanos,
        prefix: &dyn PrefixView,
        full: &[bool],
        out: &mut Outputs,
    ) -> Option<Incarnation> {
        let waiter = self.stop_waiting(id)?;
        match self.place(now, &waiter.request, waiter.charged, prefix, full) {
            Ok(decision) => {
                let first = decision.targets.first().map(|target| target.id);
                self.dispatched(id, decision, waited, out);
                first
            }
            Err(why) => {
                self.admission.complete(now, id.0, Cost::default());
                self.refuse(id, waiter.request.priority, why, out);
                None
            }
        }
    }

    fn dispatched(&mut self, id: RequestId, decision: Decision, waited: Nanos, out: &mut Outputs) {
        self.totals.dispatched += 1;
        out.push(Output::Dispatch {
            id,
            decision,
            waited,
        });
    }

    /// The scheduler's choice, counted where it goes.
    fn place(
        &mut self,
        now: Nanos,
        request: &Request,
        charged: Cost,
        prefix: &dyn PrefixView,
        full: &[bool],
    ) -> Result<Decision, Outcome> {
        let view = request.view();
        // The cache moved while the request waited.
        prefix.look(&view);
        let snapshot = Snapshot {
            now,
            endpoints: self.table.rows(),
            prefix,
            policy: &self.config.policy,
            full,
        };
        let decision = self
            .scheduler
            .choose(&view, &snapshot, &mut self.state)
            .map_err(refusal)?;
        let Some(first) = decision.targets.first().map(|target| target.id) else {
            return Err(Outcome::RejectedNoEndpoints);
        };
        self.scheduler
            .after_dispatch(&view, &decision, &mut self.state);
        let cached = prefix.cached_tokens(&view, first);
        prefix.picked(&view, first);
        let whole = cost(request);
        let tokens = whole.uncached_input.saturating_sub(cached);
        let probe = self.probes(now, first);
        let running = Running {
            held: self.table.raise(now, first, tokens, tokens + whole.output),
            expected: charged,
            priority: request.priority,
            failed: false,
            probe,
        };
        self.running.insert(request.id, running);
        Ok(decision)
    }

    fn served(&mut self, now: Nanos, id: RequestId, by: Incarnation) {
        let Some(run) = self.running.get_mut(&id) else {
            self.totals.unknown += 1;
            return;
        };
        run.failed = false;
        if run.held.at == by {
            return;
        }
        let (held, expected) = (run.held, run.expected);
        let left = run.probe.take();
        let probe = self.probes(now, by);
        self.table.lower(now, held);
        self.abandon(held.at, left);
        let kv = expected.uncached_input + expected.output;
        let held = self.table.raise(now, by, held.tokens, kv);
        if let Some(run) = self.running.get_mut(&id) {
            (run.held, run.probe) = (held, probe);
        }
        self.admission.capacity_changed(None);
    }

    /// The ejection that a request which goes there now would probe, if it is the one that does.
    fn probes(&self, now: Nanos, at: Incarnation) -> Option<Nanos> {
        let health = &self.table.get(at)?.health;
        let probes = health.available(now, &self.config.policy.health) == Availability::Probe;
        health.ejected_until().filter(|_| probes)
    }

    /// A probe that tells nothing, or went elsewhere, must not hold the only probe slot for ever.
    fn abandon(&mut self, at: Incarnation, probe: Option<Nanos>) {
        if let Some(row) = self.table.get_mut(at)
            && probe.is_some()
            && row.health.ejected_until() == probe
        {
            row.health.abandon();
        }
    }

    fn failed(&mut self, now: Nanos, id: RequestId, at: Incarnation, certain: bool) {
        match self.running.get_mut(&id) {
            Some(run) => run.failed |= certain,
            None => self.totals.unknown += 1,
        }
        if certain || self.is_silent(at) {
            self.health(now, at, false);
        }
        self.admission.capacity_changed(None);
    }

    /// True if an endpoint's scrapes fail.
    fn is_silent(&self, at: Incarnation) -> bool {
        let row = self.table.get(at);
        row.is_some_and(|row| row.telemetry.failures > 0)
    }

    fn health(&mut self, now: Nanos, at: Incarnation, ok: bool) {
        let policy = &self.config.policy.health;
        if let Some(row) = self.table.get_mut(at) {
            row.health.record(now, ok, policy);
        }
    }

    fn first_token(&mut self, id: RequestId) {
        if let Some(run) = self.running.get_mut(&id) {
            let tokens = std::mem::take(&mut run.held.tokens);
            self.table.release_tokens(run.held.at, tokens);
            self.admission.capacity_changed(None);
        } else {
            self.totals.unknown += 1;
        }
    }

    fn end(&mut self, now: Nanos, id: RequestId, how: Ended, usage: Option<Usage>) {
        let Some(run) = self.running.remove(&id) else {
            self.totals.unknown += 1;
            return;
        };
        self.totals.ended += 1;
        let at = run.held.at;
        self.table.lower(now, run.held);
        let silent = self.is_silent(at);
        if let Some(ok) = verdict(how, silent) {
            self.health(now, at, ok);
        }
        self.abandon(at, run.probe);
        self.admission
            .complete(now, id.0, actual(&run, how, usage.as_ref()));
        self.admission.capacity_changed(None);
    }

    fn reconfigure(&mut self, config: Arc<PoolConfig>, out: &mut Outputs) {
        let scheduler = match Scheduler::new(&config.scheduler) {
            Ok(scheduler) => scheduler,
            Err(error) => return out.push(Output::ConfigRefused(error.to_string())),
        };
        if let Err(error) = config.flow.check() {
            return out.push(Output::ConfigRefused(error.to_string()));
        }
        if config.flow.admission != self.config.flow.admission {
            let mut left = Vec::new();
            let new = config.flow.admission.clone();
            if let Err(error) = self.admission.reconfigure(new, &mut left) {
                return out.push(Output::ConfigRefused(error.to_string()));
            }
            self.tell(left, out);
            self.attach_fleet();
        }
        self.scheduler = scheduler;
        self.state.recording(config.record_decisions);
        self.config = config;
        self.admission.capacity_changed(None);
    }

    /// The endpoint table, in the order of joining.
    pub fn endpoints(&self) -> &[Endpoint] {
        self.table.rows()
    }

    /// The configuration in force.
    pub fn config(&self) -> &Arc<PoolConfig> {
        &self.config
    }

    /// Requests dispatched and not ended.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Requests that wait for their turn.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Where a running request counts, and its priority.
    pub fn running_at(&self, id: RequestId) -> Option<(Incarnation, i32)> {
        let run = self.running.get(&id)?;
        Some((run.held.at, run.priority))
    }

    /// Requests still running on endpoints that have left.
    pub fn orphaned(&self) -> u64 {
        let orphans = self.table.orphans().values();
        orphans.map(|orphan| u64::from(orphan.requests)).sum()
    }

    /// Counts over the pool's life.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// INV-P1: requests counted on endpoints and orphans = requests running; the same for tokens.
    /// INV-P2: dispatched = running + ended; arrived = dispatched + refused + cancelled + waiting.
    /// INV-P4: an endpoint's probe slot is taken by exactly one running request, or free.
    /// INV-P3: who waits here waits in admission, each in a class of its own restriction.
    ///
    /// # Errors
    /// Says which invariant is broken and by how much.
    pub fn check(&self) -> Result<(), String> {
        let rows = self.table.rows().iter();
        let (mut requests, mut tokens) = rows.fold((0_u64, 0_u64), |(r, t), row| {
            (r + u64::from(row.load.requests), t + row.load.tokens)
        });
        for orphan in self.table.orphans().values() {
            requests += u64::from(orphan.requests);
            tokens += orphan.tokens;
        }
        let held: u64 = self.running.values().map(|run| run.held.tokens).sum();
        let running = self.running.len() as u64;
        if requests != running || tokens != held {
            return Err(format!(
                "INV-P1: counted {requests} requests and {tokens} tokens, running {running} and {held}"
            ));
        }
        for row in self
            .table
            .rows()
            .iter()
            .filter(|row| row.health.is_probing())
        {
            let until = row.health.ejected_until();
            let probes = self.running.values();
            let probes = probes.filter(|run| run.held.at == row.id && run.probe == until);
            if probes.count() != 1 {
                return Err(format!(
                    "INV-P4: {} waits for a probe that nobody runs",
                    row.name
                ));
            }
        }
        let (totals, waiting) = (self.totals, self.waiting.len() as u64);
        let answered = totals.dispatched + totals.refused + totals.cancelled;
        if totals.dispatched != running + totals.ended || totals.arrived != answered + waiting {
            return Err(format!(
                "INV-P2: {totals:?} with {running} running and {waiting} waiting"
            ));
        }
        let queued = self.admission.waiting() as u64;
        let classed = self.classes.waiting();
        if queued != waiting || classed != waiting || self.classes.len() as u64 > waiting {
            return Err(format!(
                "INV-P3: {waiting} wait, {queued} are queued, {classed} are in {} classes",
                self.classes.len()
            ));
        }
        Ok(())
    }
}

/// What a request is expected to cost. Lengths that a caller only claims are bounded like every cost.
fn cost(request: &Request) -> Cost {
    Cost {
        uncached_input: request.prompt_tokens.min(MAX_COST),
        output: request.output_tokens.min(MAX_COST),
    }
}

/// What a request really cost: by the engine's word, else nothing if it certainly came to nothing, else as expected.
fn actual(run: &Running, how: Ended, usage: Option<&Usage>) -> Cost {
    if let Some(usage) = usage
        && (usage.prompt_tokens.is_some() || usage.completion_tokens.is_some())
    {
        let prompt = usage.prompt_tokens.unwrap_or(run.expected.uncached_input);
        let cached = usage.cached_tokens.unwrap_or(0);
        return Cost {
            uncached_input: prompt.saturating_sub(cached),
            output: usage.completion_tokens.unwrap_or(0),
        };
    }
    let nothing = match how {
        Ended::Complete(status) => status >= 400,
        Ended::UpstreamFailed => run.held.tokens > 0,
        Ended::TimedOut
        | Ended::ClientGone
        | Ended::Unobserved
        | Ended::Evicted
        | Ended::Dropped => false,
    };
    match nothing || run.failed {
        true => Cost::default(),
        false => run.expected,
    }
}

/// What an end says about the endpoint: `None` when it says nothing. `silent` when its scrapes fail too.
///
/// 503 is an engine's "my queue is full", not a broken engine; 4xx is the caller's doing; a time-out is a long answer
/// as long as the endpoint still speaks otherwise.
fn verdict(how: Ended, silent: bool) -> Option<bool> {
    match how {
        Ended::Complete(503) => None,
        Ended::Complete(status) => Some(status < 500),
        Ended::UpstreamFailed => Some(false),
        Ended::TimedOut => silent.then_some(false),
        Ended::ClientGone | Ended::Unobserved | Ended::Evicted | Ended::Dropped => None,
    }
}

fn refusal(error: NoEndpoint) -> Outcome {
    match error {
        NoEndpoint::Empty => Outcome::RejectedNoEndpoints,
        NoEndpoint::Subset => Outcome::RejectedSubsetEmpty,
        NoEndpoint::Ejected => Outcome::RejectedAllEjected,
        NoEndpoint::Filtered { .. } => Outcome::RejectedAllFiltered,
    }
}
