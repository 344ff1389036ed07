//! A row of the pool's endpoint table: who it is, what it runs for us, what is known of it and how old that is.

mod health;
mod telemetry;

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use serde::{Deserialize, Serialize};

pub use health::{Availability, Health, HealthPolicy};
pub use telemetry::{Adapters, Missing, Reading, Sample, Telemetry};

use crate::{Nanos, SlowStart};

/// One life of one endpoint; never used again. What belonged to an old life never passes to a new one.
#[derive(
    Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Incarnation(pub u64);

/// What discovery says about an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointSpec {
    /// `namespace/name` or another name that is unique in the pool at one time.
    pub name: Arc<str>,
    /// `ip:port` or `[v6]:port`; a host name is allowed but is in no subset.
    pub address: Arc<str>,
    /// Labels that filters select by.
    #[serde(default)]
    pub labels: Arc<BTreeMap<String, String>>,
    /// Share of the work against other endpoints; 0 is a stand-by. Default 1.
    #[serde(default = "one")]
    pub weight: u32,
    /// Gets no new work; what runs there goes on.
    #[serde(default)]
    pub draining: bool,
}

fn one() -> u32 {
    1
}

impl EndpointSpec {
    /// A plain endpoint: weight 1, no labels.
    pub fn new(name: impl Into<Arc<str>>, address: impl Into<Arc<str>>) -> EndpointSpec {
        EndpointSpec {
            name: name.into(),
            address: address.into(),
            labels: Arc::default(),
            weight: 1,
            draining: false,
        }
    }
}

/// What we run on an endpoint, counted by ourselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Requests dispatched and not ended.
    pub requests: u32,
    /// Tokens of theirs that still have to be computed, as given at dispatch.
    pub tokens: u64,
}

/// A row of the pool's endpoint table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Endpoint {
    /// Which life.
    pub id: Incarnation,
    /// Its name in discovery.
    pub name: Arc<str>,
    /// `ip:port`.
    pub address: Arc<str>,
    /// Its labels.
    pub labels: Arc<BTreeMap<String, String>>,
    /// Share of the work; 0 is a stand-by.
    pub weight: u32,
    /// Gets no new work.
    pub draining: bool,
    /// When this life joined.
    pub joined: Nanos,
    /// What we run there. Raised at dispatch and lowered at the end by the table's owner only.
    pub load: Load,
    /// Requests dispatched since the last scrape, ended ones included.
    pub dispatched_since_scrape: u32,
    /// What its scrapes said.
    pub telemetry: Telemetry,
    /// Whether it may be used.
    pub health: Health,
    /// Requests of ours among those that the last scrape counted.
    seen: u32,
    /// The address once parsed; none for a host name.
    #[serde(skip)]
    socket: Option<SocketAddr>,
}

impl Endpoint {
    /// A new life: nothing observed, nothing running, healthy.
    pub fn new(id: Incarnation, spec: &EndpointSpec, now: Nanos) -> Endpoint {
        Endpoint {
            id,
            name: spec.name.clone(),
            address: spec.address.clone(),
            labels: spec.labels.clone(),
            weight: spec.weight,
            draining: spec.draining,
            joined: now,
            load: Load::default(),
            dispatched_since_scrape: 0,
            telemetry: Telemetry::default(),
            health: Health::default(),
            seen: 0,
            socket: spec.address.parse().ok(),
        }
    }

    /// The same life described anew: load, telemetry and health stay.
    pub fn update(&mut self, spec: &EndpointSpec) {
        self.name = spec.name.clone();
        self.address = spec.address.clone();
        self.labels = spec.labels.clone();
        self.weight = spec.weight;
        self.draining = spec.draining;
        self.socket = spec.address.parse().ok();
    }

    /// A request of ours goes there; `tokens` is what it has to compute.
    pub fn on_dispatch(&mut self, now: Nanos, tokens: u64) {
        self.load.requests = self.load.requests.saturating_add(1);
        self.load.tokens = self.load.tokens.saturating_add(tokens);
        self.dispatched_since_scrape = self.dispatched_since_scrape.saturating_add(1);
        self.health.on_dispatch(now);
    }

    /// A request of ours is over there; `tokens` is what its dispatch raised and nobody released yet.
    ///
    /// Counts stop at zero, so an end that no dispatch belongs to cannot make an endpoint look free.
    pub fn on_end(&mut self, _now: Nanos, tokens: u64) {
        self.load.requests = self.load.requests.saturating_sub(1);
        self.load.tokens = self.load.tokens.saturating_sub(tokens);
    }

    /// A scrape came back.
    pub fn on_sample(&mut self, now: Nanos, sample: &Sample) {
        self.telemetry.apply(now, sample);
        self.dispatched_since_scrape = 0;
        let read_now = |reading: Option<Reading>| reading.filter(|r| r.at == now);
        let waiting = read_now(self.telemetry.waiting);
        let running = read_now(self.telemetry.running);
        self.seen = match (waiting, running) {
            // An engine that counts fewer requests than we have there has not met the rest yet.
            (Some(waiting), Some(running)) => {
                let counted = (waiting.value + running.value) as u32;
                self.load.requests.min(counted)
            }
            (None, None) => self.seen,
            _ => self.load.requests,
        };
    }

    /// A scrape failed. Old readings stay and grow old.
    pub fn on_scrape_failed(&mut self, now: Nanos) {
        self.telemetry.scrape_failed(now);
    }

    /// Waiting requests: the engine's count carried on by [`Endpoint::unseen`]; `None` without a reading younger than
    /// `stale_after`.
    pub fn waiting(&self, now: Nanos, stale_after: Nanos) -> Option<f64> {
        self.carried_on(self.telemetry.waiting, now, stale_after)
    }

    /// Running requests, carried on in the same way.
    pub fn running(&self, now: Nanos, stale_after: Nanos) -> Option<f64> {
        self.carried_on(self.telemetry.running, now, stale_after)
    }

    fn carried_on(&self, reading: Option<Reading>, now: Nanos, stale_after: Nanos) -> Option<f64> {
        let value = Reading::fresh(reading, now, stale_after)?;
        Some((value + self.unseen() as f64).max(0.0))
    }

    /// Share of KV blocks in use, 0 to 1.
    pub fn kv_usage(&self, now: Nanos, stale_after: Nanos) -> Option<f64> {
        Reading::fresh(self.telemetry.kv_usage, now, stale_after)
    }

    /// What the last scrape could not know: requests of ours that came since then less those that went, and those
    /// still on their way when it was taken.
    ///
    /// A burst between two scrapes would otherwise see the same idle endpoint all along.
    pub fn unseen(&self) -> i64 {
        i64::from(self.load.requests) - i64::from(self.seen)
    }

    /// The slow start's factor now: its age counts from joining, or from its recovery after an ejection.
    pub fn ramp(&self, now: Nanos, slow_start: &SlowStart) -> f64 {
        let since = self.joined.max(self.health.recovered().unwrap_or(0));
        slow_start.ramp(now.saturating_sub(since))
    }

    /// The address parsed; none for a host name.
    pub fn socket(&self) -> Option<SocketAddr> {
        self.socket
    }
}
