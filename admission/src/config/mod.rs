//! What admission decides by: plain data, checked once, with its defaults in one table ([`DEFAULTS`]).

mod check;
mod defaults;
mod policy;

use serde::{Deserialize, Serialize};

pub use check::ConfigError;
pub use defaults::{DEFAULTS, DefaultRow, defaults_table};
pub use policy::{Fairness, Ordering, Starvation, UnknownPolicy};

use crate::Nanos;

/// Bounds on what may wait. `None` is no bound; `Some(0)` lets nothing wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Waiting requests.
    pub max_requests: Option<u64>,
    /// Body bytes of waiting requests.
    pub max_bytes: Option<u64>,
    /// Tokens of waiting requests, input and expected output.
    pub max_tokens: Option<u64>,
}

/// Longest wait, where an absent value and an explicit zero differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wait {
    /// What stands one level up.
    #[default]
    Inherit,
    /// No limit of its own.
    Unlimited,
    /// At most this long.
    AtMost(Nanos),
}

impl Wait {
    /// The limit in force, where `above` is the one of the level above.
    pub fn or(self, above: Option<Nanos>) -> Option<Nanos> {
        match self {
            Wait::Inherit => above,
            Wait::Unlimited => None,
            Wait::AtMost(limit) => Some(limit),
        }
    }
}

/// One band, or the template of bands that are not listed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BandConfig {
    /// Bounds on what waits in this band.
    pub limits: Limits,
    /// Longest wait in this band.
    pub ttl: Wait,
    /// Which flow goes next.
    pub fairness: Fairness,
    /// Which request of a flow goes next.
    pub ordering: Ordering,
    /// Share of dispatched tokens under [`Starvation::Floor`]; `None` is that policy's own.
    pub floor: Option<f64>,
}

/// What waits while the pool has no endpoint, and how it is let go when one comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NoEndpoints {
    /// Requests wait for an endpoint; otherwise they are refused at once.
    pub hold: bool,
    /// Bounds on the waiting room, in place of the global ones.
    pub limits: Limits,
    /// Longest wait for an endpoint, in place of the band's.
    pub ttl: Wait,
    /// After an endpoint came: one dispatch per endpoint in this time, until nothing waits or
    /// [`NoEndpoints::release_window`] is over. 0 turns pacing off.
    pub release_interval: Nanos,
    /// Pacing ends this long after the first endpoint came.
    pub release_window: Nanos,
}

/// Ending running requests of low bands for blocked higher ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvictionConfig {
    /// Off by default.
    pub enabled: bool,
    /// Victims of one decision, at most.
    pub max_per_decision: u32,
    /// After the last victim's stream ended, the next decision waits this long for telemetry to show it.
    pub grace: Nanos,
    /// A victim whose stream has not ended by then is no longer waited for.
    pub timeout: Nanos,
}

/// Everything admission decides by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdmissionConfig {
    /// Bounds over all bands.
    pub limits: Limits,
    /// Longest wait of bands that set none; `None` is no limit.
    pub default_ttl: Option<Nanos>,
    /// While the pool is empty.
    pub no_endpoints: NoEndpoints,
    /// Bands of priority 0 and above that are not listed.
    pub default_band: BandConfig,
    /// Bands of negative priority that are not listed.
    pub default_negative_band: BandConfig,
    /// Listed bands: they exist, and are counted, from the start.
    pub bands: Vec<(i32, BandConfig)>,
    /// What keeps low bands alive.
    pub starvation: Starvation,
    /// Weight of an output token against an input token in every cost.
    pub output_weight: f64,
    /// When the global bounds are reached, a newcomer takes the place of waiters of lower bands: at most so many.
    /// 0 turns displacement off.
    pub max_displaced: u32,
    /// Bands at most, listed ones included. Requests of further priorities join the next lower band.
    pub max_bands: u32,
    /// Flows at most. Further fairness ids share one overflow flow per band.
    pub max_flows: u32,
    /// Ending running requests.
    pub eviction: EvictionConfig,
}

impl AdmissionConfig {
    /// The configuration of the band with this priority.
    pub fn band(&self, priority: i32) -> &BandConfig {
        let listed = self.bands.iter().find(|(p, _)| *p == priority);
        match listed {
            Some((_, band)) => band,
            None if priority < 0 => &self.default_negative_band,
            None => &self.default_band,
        }
    }
}
