//! What the gate decides by. Parameters that llm-d has carry its names.

use serde::{Deserialize, Serialize};

use super::UsageLimit;
use crate::{Nanos, SECOND};

/// What is compared with a ceiling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// The mean over the pool, whatever the request's class: llm-d's way.
    Pool,
    /// The best endpoint of the request's class.
    #[default]
    Endpoint,
}

/// What a reading that is too old means, or one that never came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Staleness {
    /// The endpoint is full.
    Saturated,
    /// The endpoint is left out; if all are, the gate is open.
    Ignore,
    /// The endpoint is as full as our own requests in flight make it.
    #[default]
    OwnCount,
}

/// llm-d's `utilization-detector`: fullness = max(waiting / threshold, KV usage / threshold).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Utilization {
    /// Waiting requests at which an endpoint is full.
    pub queue_depth_threshold: f64,
    /// KV usage, 0 to 1, at which it is full.
    pub kv_cache_util_threshold: f64,
    /// Slack of the detector in its role as a filter; the gate does not use it.
    pub headroom: f64,
    /// Pool mean or best endpoint.
    pub scope: Scope,
    /// Count what was dispatched since the reading as if it were in it.
    pub own_correction: bool,
}

impl Default for Utilization {
    fn default() -> Self {
        Utilization {
            queue_depth_threshold: 5.0,
            kv_cache_util_threshold: 0.8,
            headroom: 0.0,
            scope: Scope::Endpoint,
            own_correction: true,
        }
    }
}

/// What the concurrency detector counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConcurrencyMode {
    /// Our requests in flight.
    #[default]
    Requests,
    /// Their tokens.
    Tokens,
    /// The larger of both shares.
    Hybrid,
}

/// llm-d's `concurrency-detector`: our own work in flight against a fixed capacity per endpoint. Needs no telemetry.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Concurrency {
    /// What is counted.
    pub concurrency_mode: ConcurrencyMode,
    /// Requests per endpoint.
    pub max_concurrency: u64,
    /// Tokens per endpoint.
    pub max_token_concurrency: u64,
    /// Slack of the detector in its role as a filter; the gate does not use it.
    pub headroom: f64,
    /// Pool mean or best endpoint.
    pub scope: Scope,
}

impl Default for Concurrency {
    fn default() -> Self {
        Concurrency {
            concurrency_mode: ConcurrencyMode::Requests,
            max_concurrency: 100,
            max_token_concurrency: 1_000_000,
            headroom: 0.0,
            scope: Scope::Endpoint,
        }
    }
}

/// Ours: an endpoint can start this request now. It has a batch slot, a short queue, and KV room for the request's own
/// uncached tokens; what was dispatched since the reading is counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Headroom {
    /// KV usage, 0 to 1, that is not passed by a start.
    pub kv_cache_util_threshold: f64,
    /// Waiting requests at which an endpoint starts nothing new.
    pub queue_depth_threshold: f64,
}

impl Default for Headroom {
    fn default() -> Self {
        Headroom {
            kv_cache_util_threshold: 0.95,
            queue_depth_threshold: 1.0,
        }
    }
}

/// How full an endpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Detector {
    /// `utilization-detector`.
    Utilization(Utilization),
    /// `concurrency-detector`.
    Concurrency(Concurrency),
    /// `headroom-detector`.
    Headroom(Headroom),
}

impl Detector {
    /// By our or llm-d's name, with default parameters; `None` when no detector is called so.
    pub fn from_name(name: &str) -> Option<Detector> {
        match name {
            "utilization" | "utilization-detector" => {
                Some(Detector::Utilization(Utilization::default()))
            }
            "concurrency" | "concurrency-detector" => {
                Some(Detector::Concurrency(Concurrency::default()))
            }
            "headroom" | "headroom-detector" => Some(Detector::Headroom(Headroom::default())),
            _ => None,
        }
    }

    pub(super) fn scope(&self) -> Scope {
        match self {
            Detector::Utilization(u) => u.scope,
            Detector::Concurrency(c) => c.scope,
            Detector::Headroom(_) => Scope::Endpoint,
        }
    }
}

/// Everything the gate decides by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct GateConfig {
    /// How full an endpoint is.
    pub detector: Detector,
    /// What an old reading means.
    pub staleness: Staleness,
    /// When a reading is old (llm-d: `metricsStalenessThreshold`).
    pub stale_after: Nanos,
    /// An endpoint without any reading starts nothing for this long after it joined, unless a scrape of it failed:
    /// its first reading is on its way.
    pub first_scrape_grace: Nanos,
    /// Requests at once on an endpoint that does not say how large its batch is.
    pub own_limit: u32,
    /// How full each band may make the pool.
    pub usage_limit: UsageLimit,
}

impl Default for GateConfig {
    fn default() -> Self {
        GateConfig {
            detector: Detector::Headroom(Headroom::default()),
            staleness: Staleness::OwnCount,
            stale_after: 2 * SECOND,
            first_scrape_grace: 5 * SECOND,
            own_limit: 50,
            usage_limit: UsageLimit::default(),
        }
    }
}

impl GateConfig {
    /// What a file of llm-d's kind gets.
    pub fn llm_d() -> GateConfig {
        GateConfig {
            detector: Detector::Utilization(Utilization {
                scope: Scope::Pool,
                own_correction: false,
                ..Utilization::default()
            }),
            staleness: Staleness::Saturated,
            stale_after: SECOND / 5,
            first_scrape_grace: 0,
            ..GateConfig::default()
        }
    }

    /// Checks that every value makes sense.
    ///
    /// # Errors
    /// All faults, as `key: what is wrong`.
    pub fn check(&self) -> Result<(), crate::ConfigError> {
        let mut faults = Vec::new();
        let mut positive = |key: &str, value: f64| {
            if !(value.is_finite() && value > 0.0) {
                faults.push(format!("detector.{key}: must be a number above 0"));
            }
        };
        match self.detector {
            Detector::Utilization(u) => {
                positive("queueDepthThreshold", u.queue_depth_threshold);
                positive("kvCacheUtilThreshold", u.kv_cache_util_threshold);
            }
            Detector::Concurrency(c) => {
                positive("maxConcurrency", c.max_concurrency as f64);
                positive("maxTokenConcurrency", c.max_token_concurrency as f64);
            }
            Detector::Headroom(h) => {
                positive("queueDepthThreshold", h.queue_depth_threshold);
                positive("kvCacheUtilThreshold", h.kv_cache_util_threshold);
            }
        }
        if self.own_limit == 0 {
            faults.push("ownLimit: must be at least 1".to_owned());
        }
        self.usage_limit.faults(&mut faults);
        if faults.is_empty() {
            Ok(())
        } else {
            Err(crate::ConfigError { faults })
        }
    }
}
