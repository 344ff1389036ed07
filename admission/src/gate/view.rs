//! An endpoint as the gate sees it.

use serde::{Deserialize, Serialize};

use crate::Nanos;

/// What an endpoint does in a disaggregated pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Prefill only.
    Prefill,
    /// Decode; also endpoints that carry no role label.
    #[default]
    Decode,
    /// Both stages.
    Interleaved,
}

impl Role {
    /// Takes part in the prefill stage.
    pub const fn prefills(self) -> bool {
        matches!(self, Role::Prefill | Role::Interleaved)
    }

    /// Takes part in the decode stage.
    pub const fn decodes(self) -> bool {
        matches!(self, Role::Decode | Role::Interleaved)
    }
}

/// What an endpoint last said of itself. A missing, negative or non-finite value is no observation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// When.
    pub at: Nanos,
    /// Requests in its own queue.
    pub waiting: Option<f64>,
    /// Requests in its batch.
    pub running: Option<f64>,
    /// Used share of its KV cache, 0 to 1.
    pub kv_usage: Option<f64>,
}

/// An endpoint as the gate sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EndpointView {
    /// Its stage.
    pub role: Role,
    /// Its last reading, if it ever gave one.
    pub reading: Option<Reading>,
    /// It is going away: nothing new starts there, and how full it is says nothing of the pool.
    #[serde(default)]
    pub draining: bool,
    /// When it joined the pool.
    pub joined: Nanos,
    /// Its last scrape failed.
    pub scrape_failed: bool,
    /// Requests of ours in flight there.
    pub own_requests: u32,
    /// Their uncached input tokens not yet prefilled.
    pub own_tokens: u64,
    /// Requests dispatched there since the reading, less those that ended since.
    pub unseen_requests: u32,
    /// Tokens those will hold in its KV cache.
    pub unseen_tokens: u64,
    /// Requests that fit in its batch, if it says so.
    pub batch_slots: Option<u32>,
    /// Tokens that fit in its KV cache, if it says so.
    pub kv_tokens: Option<u64>,
}

/// A usable number: finite and not negative.
pub(super) fn observed(value: Option<f64>) -> Option<f64> {
    value.filter(|v| v.is_finite() && *v >= 0.0)
}

impl Reading {
    pub(super) fn waiting(&self) -> Option<f64> {
        observed(self.waiting)
    }

    pub(super) fn running(&self) -> Option<f64> {
        observed(self.running)
    }

    pub(super) fn kv_usage(&self) -> Option<f64> {
        observed(self.kv_usage).filter(|v| *v <= 1.0)
    }
}
