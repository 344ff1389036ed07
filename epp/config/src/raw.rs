//! The file's content with defaults filled in. Shapes were checked against the table before.
//!
//! Every key has a default here, the required ones too: a file with faults still gets its other checks.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::units::{Size, Span};

const fn ms(ms: u64) -> Span {
    Span(Duration::from_millis(ms))
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Raw {
    pub(crate) api_version: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) server: Server,
    pub(crate) pools: Vec<Pool>,
    pub(crate) upstream: Upstream,
    pub(crate) telemetry: Telemetry,
    pub(crate) scheduler: Scheduler,
    pub(crate) observability: Observability,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) feature_gates: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) plugins: Option<Vec<Plugin>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scheduling_profiles: Option<Vec<Profile>>,
    #[serde(skip_serializing)]
    pub(crate) data_layer: Option<DataLayer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admission: Option<Admission>,
    #[serde(skip_serializing)]
    pub(crate) flow_control: Option<Admission>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fleet: Option<Fleet>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kv_index: Option<crate::kvindex::Section>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trusted_proxy: Option<TrustedProxy>,
    #[serde(skip_serializing)]
    pub(crate) request_handler: Option<RequestHandler>,
    #[serde(skip_serializing)]
    pub(crate) parser: Option<Ref>,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Server {
    pub(crate) bind: String,
    pub(crate) http_port: u16,
    pub(crate) ext_proc_port: u16,
    pub(crate) health_port: u16,
    pub(crate) metrics_port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls: Option<Tls>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ext_proc_tls: Option<Tls>,
    pub(crate) max_body_bytes: Size,
    pub(crate) max_header_bytes: Size,
    pub(crate) max_connections: usize,
    pub(crate) max_streams: u32,
    pub(crate) header_timeout: Span,
    pub(crate) body_timeout: Span,
    pub(crate) decision_timeout: Span,
    pub(crate) drain_timeout: Span,
    pub(crate) workers: usize,
    pub(crate) management_port: u16,
    pub(crate) management_bind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) management_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) management_token_file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) management_tls: Option<Tls>,
    pub(crate) expose_served_by: bool,
}

impl Default for Server {
    fn default() -> Self {
        Server {
            bind: "0.0.0.0".to_owned(),
            http_port: 8080,
            ext_proc_port: 9002,
            health_port: 9003,
            metrics_port: 9090,
            tls: None,
            ext_proc_tls: None,
            max_body_bytes: Size(16 << 20),
            max_header_bytes: Size(64 << 10),
            max_connections: 65_536,
            max_streams: 1000,
            header_timeout: ms(30_000),
            body_timeout: ms(60_000),
            decision_timeout: ms(120_000),
            drain_timeout: ms(30_000),
            workers: 0,
            management_port: 9091,
            management_bind: "127.0.0.1".to_owned(),
            management_token: None,
            management_token_file: None,
            management_tls: None,
            expose_served_by: false,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Tls {
    pub(crate) cert_file: String,
    pub(crate) key_file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) client_ca_file: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Pool {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) default: Option<bool>,
    pub(crate) models: Vec<String>,
    pub(crate) endpoints: Vec<Endpoint>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) endpoints_file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) upstream: Option<PoolUpstream>,
    pub(crate) breaker: Breaker,
    pub(crate) slow_start: SlowStart,
    pub(crate) explore: f64,
}

impl Default for Pool {
    fn default() -> Self {
        Pool {
            name: "main".to_owned(),
            default: None,
            models: Vec::new(),
            endpoints: Vec::new(),
            endpoints_file: None,
            upstream: None,
            breaker: Breaker::default(),
            slow_start: SlowStart::default(),
            explore: 0.0,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Endpoint {
    pub(crate) address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) weight: u32,
    pub(crate) draining: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) engine: Option<String>,
}

impl Default for Endpoint {
    fn default() -> Self {
        Endpoint {
            address: String::new(),
            name: None,
            weight: 1,
            draining: false,
            labels: BTreeMap::new(),
            engine: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Breaker {
    pub(crate) failures: u32,
    pub(crate) window: Span,
    pub(crate) cooldown: Span,
    pub(crate) cooldown_cap: Span,
}

impl Default for Breaker {
    fn default() -> Self {
        Breaker {
            failures: 5,
            window: ms(60_000),
            cooldown: ms(5_000),
            cooldown_cap: ms(120_000),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct SlowStart {
    pub(crate) window: Span,
}

impl Default for SlowStart {
    fn default() -> Self {
        SlowStart { window: ms(10_000) }
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Upstream {
    pub(crate) connect_timeout: Span,
    pub(crate) first_byte_timeout: Span,
    pub(crate) total_timeout: Span,
    pub(crate) retry_backoff: Vec<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls: Option<UpstreamTls>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bearer_token_file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bearer_token: Option<String>,
}

/// A pool's own `upstream`: what is there replaces the root's.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PoolUpstream {
    pub(crate) connect_timeout: Option<Span>,
    pub(crate) first_byte_timeout: Option<Span>,
    pub(crate) total_timeout: Option<Span>,
    pub(crate) retry_backoff: Option<Vec<Span>>,
    pub(crate) tls: Option<UpstreamTls>,
    pub(crate) bearer_token_file: Option<String>,
    pub(crate) bearer_token: Option<String>,
}

impl Upstream {
    /// The root's settings with a pool's own in their place.
    pub(crate) fn with(&self, own: &PoolUpstream) -> Upstream {
        let own_token = own.bearer_token.is_some() || own.bearer_token_file.is_some();
        let token = |own: &Option<String>, root: &Option<String>| match own_token {
            true => own.clone(),
            false => root.clone(),
        };
        let backoff = own.retry_backoff.as_ref().unwrap_or(&self.retry_backoff);
        Upstream {
            connect_timeout: own.connect_timeout.unwrap_or(self.connect_timeout),
            first_byte_timeout: own.first_byte_timeout.unwrap_or(self.first_byte_timeout),
            total_timeout: own.total_timeout.unwrap_or(self.total_timeout),
            retry_backoff: backoff.clone(),
            tls: own.tls.clone().or_else(|| self.tls.clone()),
            bearer_token_file: token(&own.bearer_token_file, &self.bearer_token_file),
            bearer_token: token(&own.bearer_token, &self.bearer_token),
        }
    }
}

impl Default for Upstream {
    fn default() -> Self {
        Upstream {
            connect_timeout: ms(3_000),
            first_byte_timeout: ms(60_000),
            total_timeout: ms(180_000),
            retry_backoff: vec![ms(200), ms(600)],
            tls: None,
            bearer_token_file: None,
            bearer_token: None,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct UpstreamTls {
    pub(crate) ca_file: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Telemetry {
    pub(crate) interval: Span,
    pub(crate) timeout: Span,
    pub(crate) jitter: f64,
    pub(crate) staleness: Span,
    pub(crate) max_page_bytes: Size,
    pub(crate) path: String,
    pub(crate) engine: String,
}

impl Default for Telemetry {
    fn default() -> Self {
        Telemetry {
            interval: ms(50),
            timeout: ms(1000),
            jitter: 0.1,
            staleness: ms(2000),
            max_page_bytes: Size(10 << 20),
            path: "/metrics".to_owned(),
            engine: "vllm".to_owned(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Scheduler {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seed: Option<u64>,
    pub(crate) record_decisions: usize,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Observability {
    pub(crate) log_level: String,
    pub(crate) access_log: bool,
}

impl Default for Observability {
    fn default() -> Self {
        Observability {
            log_level: "info".to_owned(),
            access_log: false,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Plugin {
    #[serde(rename = "type")]
    pub(crate) type_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub(crate) parameters: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Profile {
    pub(crate) name: String,
    pub(crate) plugins: Vec<PluginRef>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PluginRef {
    pub(crate) plugin_ref: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) weight: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Ref {
    pub(crate) plugin_ref: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct DataLayer {
    pub(crate) inject_defaults: bool,
    pub(crate) sources: Vec<Source>,
}

impl Default for DataLayer {
    fn default() -> Self {
        DataLayer {
            inject_defaults: true,
            sources: Vec::new(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Source {
    pub(crate) plugin_ref: String,
    pub(crate) extractors: Vec<Ref>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct RequestHandler {
    pub(crate) parsers: Vec<Ref>,
}

/// `admission`, and `flowControl` with fewer keys. What is absent depends on the file's kind.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Admission {
    pub(crate) enabled: Option<bool>,
    pub(crate) max_requests: Option<Size>,
    pub(crate) max_bytes: Option<Size>,
    pub(crate) max_tokens: Option<Size>,
    #[serde(rename = "defaultRequestTTL")]
    pub(crate) default_request_ttl: Option<Span>,
    #[serde(rename = "noEndpointRequestTTL")]
    pub(crate) no_endpoint_request_ttl: Option<Span>,
    pub(crate) default_priority_band: Option<Band>,
    pub(crate) default_negative_priority_band: Option<Band>,
    pub(crate) priority_bands: Vec<Band>,
    pub(crate) starvation: Option<Starvation>,
    pub(crate) no_endpoints: Option<NoEndpoints>,
    pub(crate) saturation_detector: Option<Ref>,
    pub(crate) usage_limit_policy_plugin_ref: Option<String>,
    pub(crate) staleness: Option<String>,
    pub(crate) stale_after: Option<Span>,
    pub(crate) first_scrape_grace: Option<Span>,
    pub(crate) own_limit: Option<u32>,
    pub(crate) output_weight: Option<f64>,
    pub(crate) max_displaced: Option<u32>,
    pub(crate) max_bands: Option<u32>,
    pub(crate) max_flows: Option<u32>,
    pub(crate) weights: Vec<Weight>,
    pub(crate) enable_eviction: Option<bool>,
    pub(crate) eviction: Option<Eviction>,
    pub(crate) shutdown: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Band {
    pub(crate) priority: Option<i32>,
    pub(crate) max_bytes: Option<Size>,
    pub(crate) max_requests: Option<Size>,
    pub(crate) max_tokens: Option<Size>,
    #[serde(rename = "requestTTL")]
    pub(crate) request_ttl: Option<Span>,
    pub(crate) fairness_policy_ref: Option<String>,
    pub(crate) ordering_policy_ref: Option<String>,
    pub(crate) floor: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Starvation {
    pub(crate) policy: Option<String>,
    pub(crate) after: Option<Span>,
    pub(crate) share: Option<f64>,
    pub(crate) window: Option<Span>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct NoEndpoints {
    pub(crate) hold: Option<bool>,
    pub(crate) max_requests: Option<Size>,
    pub(crate) max_bytes: Option<Size>,
    pub(crate) release_interval: Option<Span>,
    pub(crate) release_window: Option<Span>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Eviction {
    pub(crate) max_per_decision: Option<u32>,
    pub(crate) grace: Option<Span>,
    pub(crate) timeout: Option<Span>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Weight {
    pub(crate) fairness_id: String,
    pub(crate) weight: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct TrustedProxy {
    pub(crate) fairness_id_header: Option<String>,
    pub(crate) priority_header: Option<String>,
    pub(crate) objective_header: Option<String>,
    pub(crate) objectives: Vec<Objective>,
    pub(crate) ttl_header: Option<String>,
    pub(crate) slo_ttft_header: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Objective {
    pub(crate) name: String,
    pub(crate) priority: i32,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Fleet {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) listen: Option<String>,
    pub(crate) peers: Vec<String>,
    pub(crate) interval: Span,
    pub(crate) stale_after: Span,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls: Option<Tls>,
}

impl Default for Fleet {
    fn default() -> Self {
        Fleet {
            listen: None,
            peers: Vec::new(),
            interval: ms(100),
            stale_after: ms(1000),
            tls: None,
        }
    }
}
