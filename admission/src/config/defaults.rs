//! One table of defaults: the code's and the documents' come from here, and a test compares them.

use std::fmt::Write as _;

use super::{
    AdmissionConfig, BandConfig, EvictionConfig, Fairness, Limits, NoEndpoints, Ordering,
    Starvation, Wait,
};
use crate::{MILLISECOND, Nanos, SECOND};

pub(super) const DRR_QUANTUM: u64 = 4096;
pub(super) const VTC_MAX_LAG: u64 = 1 << 18;
pub(super) const AGING_AFTER: Nanos = 10 * SECOND;
pub(super) const AGING_SHARE: f64 = 0.1;
pub(super) const FLOOR_SHARE: f64 = 0.05;
pub(super) const FLOOR_WINDOW: Nanos = 10 * SECOND;
const BAND_REQUESTS: u64 = 5000;
const BAND_BYTES: u64 = 1_000_000_000;
const TOTAL_REQUESTS: u64 = 20_000;
const TOTAL_BYTES: u64 = 2_000_000_000;
const TTL: Nanos = 60 * SECOND;
const OUTPUT_WEIGHT: f64 = 2.0;
const MAX_DISPLACED: u32 = 64;
const MAX_BANDS: u32 = 64;
const MAX_FLOWS: u32 = 16_384;
const RELEASE_INTERVAL: Nanos = 20 * MILLISECOND;
const RELEASE_WINDOW: Nanos = 5 * SECOND;
const VICTIMS: u32 = 2;
const EVICTION_GRACE: Nanos = 10 * MILLISECOND;
const EVICTION_TIMEOUT: Nanos = 10 * SECOND;

impl Default for BandConfig {
    fn default() -> Self {
        BandConfig {
            limits: Limits {
                max_requests: Some(BAND_REQUESTS),
                max_bytes: Some(BAND_BYTES),
                max_tokens: None,
            },
            ttl: Wait::Inherit,
            fairness: Fairness::Vtc {
                max_lag: VTC_MAX_LAG,
            },
            ordering: Ordering::Fcfs,
            floor: None,
        }
    }
}

impl Default for NoEndpoints {
    fn default() -> Self {
        NoEndpoints {
            hold: true,
            limits: Limits {
                max_requests: Some(BAND_REQUESTS),
                max_bytes: Some(BAND_BYTES),
                max_tokens: None,
            },
            ttl: Wait::AtMost(TTL),
            release_interval: RELEASE_INTERVAL,
            release_window: RELEASE_WINDOW,
        }
    }
}

impl Default for EvictionConfig {
    fn default() -> Self {
        EvictionConfig {
            enabled: false,
            max_per_decision: VICTIMS,
            grace: EVICTION_GRACE,
            timeout: EVICTION_TIMEOUT,
        }
    }
}

impl Default for AdmissionConfig {
    /// Ours: token fairness, aging, finite bounds on count, bytes and wait.
    fn default() -> Self {
        AdmissionConfig {
            limits: Limits {
                max_requests: Some(TOTAL_REQUESTS),
                max_bytes: Some(TOTAL_BYTES),
                max_tokens: None,
            },
            default_ttl: Some(TTL),
            no_endpoints: NoEndpoints::default(),
            default_band: BandConfig::default(),
            default_negative_band: BandConfig::default(),
            bands: Vec::new(),
            starvation: Starvation::Aging {
                after: AGING_AFTER,
                share: AGING_SHARE,
            },
            output_weight: OUTPUT_WEIGHT,
            max_displaced: MAX_DISPLACED,
            max_bands: MAX_BANDS,
            max_flows: MAX_FLOWS,
            eviction: EvictionConfig::default(),
        }
    }
}

impl AdmissionConfig {
    /// What a file of llm-d's kind gets: no fairness, first come first served, strict bands, no displacement.
    pub fn llm_d() -> AdmissionConfig {
        let band = BandConfig {
            fairness: Fairness::GlobalStrict,
            ..BandConfig::default()
        };
        AdmissionConfig {
            limits: Limits::default(),
            default_band: band.clone(),
            default_negative_band: band,
            starvation: Starvation::Strict,
            max_displaced: 0,
            no_endpoints: NoEndpoints {
                limits: Limits::default(),
                ttl: Wait::Inherit,
                release_interval: 0,
                ..NoEndpoints::default()
            },
            ..AdmissionConfig::default()
        }
    }
}

/// One default, as the documents show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultRow {
    /// Path of the key in the JSON form of [`AdmissionConfig`] or `GateConfig`.
    pub key: &'static str,
    /// Our default, as JSON; times are nanoseconds.
    pub ours: &'static str,
    /// What a file of llm-d's kind gets.
    pub llm_d: &'static str,
    /// What it bounds or chooses.
    pub what: &'static str,
}

const fn row(
    key: &'static str,
    ours: &'static str,
    llm_d: &'static str,
    what: &'static str,
) -> DefaultRow {
    DefaultRow {
        key,
        ours,
        llm_d,
        what,
    }
}

/// Every default that a user may want to know. A test compares each row with the code.
pub const DEFAULTS: &[DefaultRow] = &[
    row(
        "admission/limits/max_requests",
        "20000",
        "null",
        "waiting requests, all bands",
    ),
    row(
        "admission/limits/max_bytes",
        "2000000000",
        "null",
        "their body bytes",
    ),
    row(
        "admission/limits/max_tokens",
        "null",
        "null",
        "their tokens",
    ),
    row(
        "admission/default_band/limits/max_requests",
        "5000",
        "5000",
        "waiting requests of a band",
    ),
    row(
        "admission/default_band/limits/max_bytes",
        "1000000000",
        "1000000000",
        "their body bytes",
    ),
    row(
        "admission/default_band/limits/max_tokens",
        "null",
        "null",
        "their tokens",
    ),
    row(
        "admission/default_band/ttl",
        "\"Inherit\"",
        "\"Inherit\"",
        "longest wait of a band: default_ttl",
    ),
    row(
        "admission/default_band/fairness",
        "{\"vtc\":{\"max_lag\":262144}}",
        "\"global-strict\"",
        "which flow goes next",
    ),
    row(
        "admission/default_band/ordering",
        "\"fcfs\"",
        "\"fcfs\"",
        "which request of a flow goes next",
    ),
    row(
        "admission/default_ttl",
        "60000000000",
        "60000000000",
        "longest wait",
    ),
    row(
        "admission/no_endpoints/hold",
        "true",
        "true",
        "requests wait for the first endpoint",
    ),
    row(
        "admission/no_endpoints/limits/max_requests",
        "5000",
        "null",
        "requests that wait for it",
    ),
    row(
        "admission/no_endpoints/limits/max_bytes",
        "1000000000",
        "null",
        "their body bytes",
    ),
    row(
        "admission/no_endpoints/ttl",
        "{\"AtMost\":60000000000}",
        "\"Inherit\"",
        "longest wait for it",
    ),
    row(
        "admission/no_endpoints/release_interval",
        "20000000",
        "0",
        "pace of the release, per endpoint",
    ),
    row(
        "admission/no_endpoints/release_window",
        "5000000000",
        "5000000000",
        "longest pacing",
    ),
    row(
        "admission/starvation",
        "{\"aging\":{\"after\":10000000000,\"share\":0.1}}",
        "\"strict\"",
        "what keeps low bands alive",
    ),
    row(
        "admission/output_weight",
        "2.0",
        "2.0",
        "weight of an output token in a cost",
    ),
    row(
        "admission/max_displaced",
        "64",
        "0",
        "lower waiters that give way to one newcomer",
    ),
    row("admission/max_bands", "64", "64", "bands"),
    row("admission/max_flows", "16384", "16384", "flows"),
    row(
        "admission/eviction/enabled",
        "false",
        "false",
        "running requests may be ended for higher bands",
    ),
    row(
        "admission/eviction/max_per_decision",
        "2",
        "2",
        "victims at once",
    ),
    row(
        "admission/eviction/grace",
        "10000000",
        "10000000",
        "pause after the last victim ended",
    ),
    row(
        "admission/eviction/timeout",
        "10000000000",
        "10000000000",
        "longest wait for a victim's end",
    ),
    row(
        "gate/detector",
        OUR_DETECTOR,
        LLM_D_DETECTOR,
        "when an endpoint counts as full",
    ),
    row(
        "gate/staleness",
        "\"own-count\"",
        "\"saturated\"",
        "what an old reading means",
    ),
    row(
        "gate/staleAfter",
        "2000000000",
        "200000000",
        "when a reading is old",
    ),
    row(
        "gate/firstScrapeGrace",
        "5000000000",
        "0",
        "how long a new endpoint may stay unread",
    ),
    row(
        "gate/ownLimit",
        "50",
        "50",
        "requests of ours on an unread endpoint",
    ),
    row(
        "gate/usageLimit",
        "{\"static\":{\"threshold\":1.0}}",
        "{\"static\":{\"threshold\":1.0}}",
        "how full each band may make the pool",
    ),
];

const OUR_DETECTOR: &str =
    "{\"headroom\":{\"kvCacheUtilThreshold\":0.95,\"queueDepthThreshold\":1.0}}";
const LLM_D_DETECTOR: &str = "{\"utilization\":{\"queueDepthThreshold\":5.0,\"kvCacheUtilThreshold\":0.8,\"headroom\":0.0,\"scope\":\"pool\",\
     \"ownCorrection\":false}}";

/// [`DEFAULTS`] as a Markdown table.
pub fn defaults_table() -> String {
    let mut text = String::from("| Key | Ours | llm-d file | What |\n|---|---|---|---|\n");
    for row in DEFAULTS {
        let DefaultRow {
            key,
            ours,
            llm_d,
            what,
        } = row;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| `{key}` | `{ours}` | `{llm_d}` | {what} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::gate::GateConfig;

    #[test]
    fn code_and_documents_agree() {
        let both = |admission: &AdmissionConfig, gate: &GateConfig| serde_json::json!({ "admission": admission, "gate": gate });
        let ours = both(&AdmissionConfig::default(), &GateConfig::default());
        let llm_d = both(&AdmissionConfig::llm_d(), &GateConfig::llm_d());
        for row in DEFAULTS {
            let pointer = format!("/{}", row.key);
            for (config, text) in [(&ours, row.ours), (&llm_d, row.llm_d)] {
                let documented: Value = serde_json::from_str(text).unwrap();
                assert_eq!(config.pointer(&pointer), Some(&documented), "{}", row.key);
            }
        }
        let page = include_str!("../../DEFAULTS.md");
        assert!(
            page.contains(&defaults_table()),
            "DEFAULTS.md is out of date:\n{}",
            defaults_table()
        );
    }

    /// Field case C17: without any configuration, count, bytes and wait are bounded.
    #[test]
    fn an_empty_config_bounds_count_bytes_and_wait() {
        for config in [AdmissionConfig::default(), AdmissionConfig::llm_d()] {
            for priority in [-1, 0, 1] {
                let band = config.band(priority);
                assert!(band.limits.max_requests.is_some() && band.limits.max_bytes.is_some());
                assert!(band.ttl.or(config.default_ttl).is_some());
            }
        }
    }
}
