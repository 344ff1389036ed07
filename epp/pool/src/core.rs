//! [`Pool::step`]: the three answers of a pool from one value with one owner at a time.

use std::{collections::HashMap, sync::Arc};

use serde::{Deserialize, Serialize};
use wicketgate_scheduler::{
    Decision, Endpoint, Incarnation, Nanos, NoEndpoint, PrefixView, Scheduler, SchedulerPolicy,
    SchedulerSpec, Snapshot, SpecError, State,
};

use crate::{
    Refusal,
    input::{Ended, Input, Output, Outputs, Request, RequestId},
    table::Table,
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
    /// Write a decision record for each dispatch.
    pub record_decisions: bool,
}

/// A dispatched request and what it holds.
#[derive(Clone, Copy, Debug)]
struct Running {
    at: Incarnation,
    /// Prefill tokens still counted; zero once the first token came.
    tokens: u64,
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
    /// Dispatched requests that ended.
    pub ended: u64,
    /// Inputs that named a request or an endpoint nobody knows.
    pub unknown: u64,
}

/// Admission, scheduler and endpoint table of one pool.
pub struct Pool {
    config: Arc<PoolConfig>,
    scheduler: Scheduler,
    state: State,
    table: Table,
    running: HashMap<RequestId, Running>,
    totals: Totals,
}

impl Pool {
    /// A pool without endpoints.
    ///
    /// `seed` starts the pool's randomness: the same seed and inputs give the same outputs.
    ///
    /// # Errors
    /// When the scheduler's plugins do not fit together.
    pub fn new(config: Arc<PoolConfig>, seed: u64) -> Result<Pool, SpecError> {
        let mut state = State::new(seed);
        state.recording(config.record_decisions);
        Ok(Pool {
            scheduler: Scheduler::new(&config.scheduler)?,
            state,
            table: Table::default(),
            running: HashMap::new(),
            totals: Totals::default(),
            config,
        })
    }

    /// One input in, its outputs appended to `out`. `now` never goes back.
    pub fn step(&mut self, now: Nanos, input: Input, prefix: &dyn PrefixView, out: &mut Outputs) {
        match input {
            Input::Arrive(request) => self.arrive(now, &request, prefix, out),
            // Nothing waits yet: whatever is cancelled has been answered already.
            Input::Cancel(_) | Input::Timer => {}
            Input::Served { id, by } => self.served(now, id, by),
            Input::Failed { id, at, certain } => self.failed(now, id, at, certain),
            Input::FirstToken(id) => self.first_token(id),
            Input::End { id, how, .. } => self.end(now, id, how),
            Input::Telemetry { of, sample } => match (self.table.get_mut(of), sample) {
                (Some(row), Some(sample)) => row.on_sample(now, &sample),
                (Some(row), None) => row.on_scrape_failed(now),
                (None, _) => self.totals.unknown += 1,
            },
            Input::Endpoints(delta) => self.table.apply(now, &delta),
            Input::Config(config) => self.reconfigure(config, out),
        }
        debug_assert_eq!(self.check(), Ok(()));
    }

    fn arrive(
        &mut self,
        now: Nanos,
        request: &Request,
        prefix: &dyn PrefixView,
        out: &mut Outputs,
    ) {
        self.totals.arrived += 1;
        match self.place(now, request, prefix) {
            Ok(decision) => {
                self.totals.dispatched += 1;
                out.push(Output::Dispatch {
                    id: request.id,
                    decision,
                });
            }
            Err(why) => {
                self.totals.refused += 1;
                out.push(Output::Refuse {
                    id: request.id,
                    why,
                });
            }
        }
    }

    fn place(
        &mut self,
        now: Nanos,
        request: &Request,
        prefix: &dyn PrefixView,
    ) -> Result<Decision, Refusal> {
        if request.deadline.is_some_and(|deadline| deadline <= now) {
            return Err(Refusal::DeadlinePassed);
        }
        let view = request.view();
        let snapshot = Snapshot {
            now,
            endpoints: self.table.rows(),
            prefix,
            policy: &self.config.policy,
        };
        let decision = self
            .scheduler
            .choose(&view, &snapshot, &mut self.state)
            .map_err(refusal)?;
        let Some(first) = decision.targets.first().map(|target| target.id) else {
            return Err(Refusal::NoEndpoints);
        };
        self.scheduler
            .after_dispatch(&view, &decision, &mut self.state);
        let tokens = request
            .prompt_tokens
            .saturating_sub(prefix.cached_tokens(&view, first));
        self.table.raise(now, first, tokens);
        self.running
            .insert(request.id, Running { at: first, tokens });
        Ok(decision)
    }

    fn served(&mut self, now: Nanos, id: RequestId, by: Incarnation) {
        let Some(run) = self.running.get_mut(&id) else {
            self.totals.unknown += 1;
            return;
        };
        if run.at == by {
            return;
        }
        let (from, tokens) = (run.at, run.tokens);
        run.at = by;
        self.table.lower(now, from, tokens);
        self.table.raise(now, by, tokens);
    }

    fn failed(&mut self, now: Nanos, id: RequestId, at: Incarnation, certain: bool) {
        if !self.running.contains_key(&id) {
            self.totals.unknown += 1;
        }
        let silent = self
            .table
            .get(at)
            .is_some_and(|row| row.telemetry.failures > 0);
        if certain || silent {
            self.health(now, at, false);
        }
    }

    fn health(&mut self, now: Nanos, at: Incarnation, ok: bool) {
        let policy = &self.config.policy.health;
        if let Some(row) = self.table.get_mut(at) {
            row.health.record(now, ok, policy);
        }
    }

    fn first_token(&mut self, id: RequestId) {
        if let Some(run) = self.running.get_mut(&id) {
            let (at, tokens) = (run.at, std::mem::take(&mut run.tokens));
            self.table.release_tokens(at, tokens);
        } else {
            self.totals.unknown += 1;
        }
    }

    fn end(&mut self, now: Nanos, id: RequestId, how: Ended) {
        let Some(run) = self.running.remove(&id) else {
            self.totals.unknown += 1;
            return;
        };
        self.totals.ended += 1;
        self.table.lower(now, run.at, run.tokens);
        match verdict(how) {
            Some(ok) => self.health(now, run.at, ok),
            // A probe that tells nothing must not hold the only probe slot for ever.
            None => {
                if let Some(row) = self.table.get_mut(run.at) {
                    row.health.abandon(now);
                }
            }
        }
    }

    fn reconfigure(&mut self, config: Arc<PoolConfig>, out: &mut Outputs) {
        match Scheduler::new(&config.scheduler) {
            Ok(scheduler) => {
                self.scheduler = scheduler;
                self.state.recording(config.record_decisions);
                self.config = config;
            }
            Err(error) => out.push(Output::ConfigRefused(error.to_string())),
        }
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
    /// INV-P2: dispatched = running + ended; arrived = dispatched + refused.
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
        let held: u64 = self.running.values().map(|run| run.tokens).sum();
        let running = self.running.len() as u64;
        if requests != running || tokens != held {
            return Err(format!(
                "INV-P1: counted {requests} requests and {tokens} tokens, running {running} and {held}"
            ));
        }
        let totals = self.totals;
        if totals.dispatched != running + totals.ended
            || totals.arrived != totals.dispatched + totals.refused
        {
            return Err(format!("INV-P2: {totals:?} with {running} running"));
        }
        Ok(())
    }
}

/// What an end says about the endpoint: `None` when it says nothing.
///
/// 503 is an engine's "my queue is full", not a broken engine; 4xx is the caller's doing.
fn verdict(how: Ended) -> Option<bool> {
    match how {
        Ended::Complete(503) => None,
        Ended::Complete(status) => Some(status < 500),
        Ended::UpstreamFailed | Ended::TimedOut => Some(false),
        Ended::ClientGone | Ended::Unobserved | Ended::Dropped => None,
    }
}

fn refusal(error: NoEndpoint) -> Refusal {
    match error {
        NoEndpoint::Empty => Refusal::NoEndpoints,
        NoEndpoint::Subset => Refusal::SubsetEmpty,
        NoEndpoint::Ejected => Refusal::AllEjected,
        NoEndpoint::Filtered { .. } => Refusal::AllFiltered,
    }
}
