//! Each supported plugin with its parameters. Field names on the wire are llm-d's.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::catalog::PluginKind;

/// A plugin's type and parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "parameters", rename_all = "kebab-case")]
pub enum PluginSpec {
    /// Runs the one profile there is.
    SingleProfileHandler,
    /// `(max - q) / (max - min)` over waiting requests; all equal gives 1.
    QueueScorer,
    /// The same over running requests.
    RunningRequestsSizeScorer,
    /// `1 - usage` of KV blocks.
    KvCacheUtilizationScorer,
    /// 0.5 without a queue, falling to 0 at the threshold.
    LoadAwareScorer(LoadAware),
    /// Own requests in flight, against the busiest.
    ActiveRequestScorer(ActiveRequest),
    /// Own tokens in flight plus this request's uncached ones, against a threshold.
    TokenLoadScorer(TokenLoad),
    /// Share of the prompt that is cached there.
    PrefixCacheScorer(PrefixCache),
    /// New prompts where new prompts went least recently.
    NoHitLruScorer(NoHitLru),
    /// Whether the adapter is loaded, or a slot is free for it.
    LoraAffinityScorer,
    /// 1 for the endpoint that a session is bound to.
    SessionAffinityScorer(SessionAffinity),
    /// The best total; ties are drawn.
    MaxScorePicker(PickerParameters),
    /// Drawn in proportion to the totals.
    WeightedRandomPicker(PickerParameters),
    /// Drawn without regard to scores.
    RandomPicker(PickerParameters),
    /// Labels must match a selector.
    LabelSelectorFilter(Selector),
    /// The same under an older name.
    ByLabelSelector(Selector),
    /// One label must have one of some values.
    ByLabel(ByLabel),
    /// Role label allows decoding, or is missing.
    DecodeFilter,
    /// Role label allows prefill.
    PrefillFilter,
    /// Role label allows encoding.
    EncodeFilter,
    /// Every metric at or below its limit.
    UtilizationFilter(Utilization),
    /// Where most of the prompt is cached, unless that is much slower.
    PrefixCacheAffinityFilter(PrefixAffinity),
    /// Ours: own requests in flight at most a factor over the mean.
    BoundedLoadFilter(BoundedLoad),
}

impl PluginSpec {
    /// The name in configuration files.
    pub fn type_name(&self) -> &'static str {
        match self {
            PluginSpec::SingleProfileHandler => "single-profile-handler",
            PluginSpec::QueueScorer => "queue-scorer",
            PluginSpec::RunningRequestsSizeScorer => "running-requests-size-scorer",
            PluginSpec::KvCacheUtilizationScorer => "kv-cache-utilization-scorer",
            PluginSpec::LoadAwareScorer(_) => "load-aware-scorer",
            PluginSpec::ActiveRequestScorer(_) => "active-request-scorer",
            PluginSpec::TokenLoadScorer(_) => "token-load-scorer",
            PluginSpec::PrefixCacheScorer(_) => "prefix-cache-scorer",
            PluginSpec::NoHitLruScorer(_) => "no-hit-lru-scorer",
            PluginSpec::LoraAffinityScorer => "lora-affinity-scorer",
            PluginSpec::SessionAffinityScorer(_) => "session-affinity-scorer",
            PluginSpec::MaxScorePicker(_) => "max-score-picker",
            PluginSpec::WeightedRandomPicker(_) => "weighted-random-picker",
            PluginSpec::RandomPicker(_) => "random-picker",
            PluginSpec::LabelSelectorFilter(_) => "label-selector-filter",
            PluginSpec::ByLabelSelector(_) => "by-label-selector",
            PluginSpec::ByLabel(_) => "by-label",
            PluginSpec::DecodeFilter => "decode-filter",
            PluginSpec::PrefillFilter => "prefill-filter",
            PluginSpec::EncodeFilter => "encode-filter",
            PluginSpec::UtilizationFilter(_) => "utilization-filter",
            PluginSpec::PrefixCacheAffinityFilter(_) => "prefix-cache-affinity-filter",
            PluginSpec::BoundedLoadFilter(_) => "bounded-load-filter",
        }
    }

    /// What it does in a cycle.
    pub fn kind(&self) -> PluginKind {
        match self {
            PluginSpec::SingleProfileHandler => PluginKind::ProfileHandler,
            PluginSpec::QueueScorer
            | PluginSpec::RunningRequestsSizeScorer
            | PluginSpec::KvCacheUtilizationScorer
            | PluginSpec::LoadAwareScorer(_)
            | PluginSpec::ActiveRequestScorer(_)
            | PluginSpec::TokenLoadScorer(_)
            | PluginSpec::PrefixCacheScorer(_)
            | PluginSpec::NoHitLruScorer(_)
            | PluginSpec::LoraAffinityScorer
            | PluginSpec::SessionAffinityScorer(_) => PluginKind::Scorer,
            PluginSpec::MaxScorePicker(_)
            | PluginSpec::WeightedRandomPicker(_)
            | PluginSpec::RandomPicker(_) => PluginKind::Picker,
            PluginSpec::LabelSelectorFilter(_)
            | PluginSpec::ByLabelSelector(_)
            | PluginSpec::ByLabel(_)
            | PluginSpec::DecodeFilter
            | PluginSpec::PrefillFilter
            | PluginSpec::EncodeFilter
            | PluginSpec::UtilizationFilter(_)
            | PluginSpec::PrefixCacheAffinityFilter(_)
            | PluginSpec::BoundedLoadFilter(_) => PluginKind::Filter,
        }
    }
}

/// Parameters of `load-aware-scorer`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct LoadAware {
    /// Waiting requests at which the score is 0.
    pub threshold: f64,
}

impl Default for LoadAware {
    fn default() -> Self {
        LoadAware { threshold: 128.0 }
    }
}

/// Parameters of `active-request-scorer`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ActiveRequest {
    /// Requests up to which an endpoint counts as idle.
    pub idle_threshold: u32,
    /// The most a busy endpoint scores.
    pub max_busy_score: f64,
}

impl Default for ActiveRequest {
    fn default() -> Self {
        ActiveRequest {
            idle_threshold: 0,
            max_busy_score: 1.0,
        }
    }
}

/// Parameters of `token-load-scorer`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct TokenLoad {
    /// Tokens at which the score is 0.
    pub queue_threshold_tokens: f64,
}

impl Default for TokenLoad {
    fn default() -> Self {
        TokenLoad {
            queue_threshold_tokens: 4_194_304.0,
        }
    }
}

/// Parameters of `prefix-cache-scorer`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct PrefixCache {
    /// Weight of the match's length against its share, 0 to 1.
    pub match_length_weight: f64,
    /// Matched tokens at which the length part is 1.
    pub match_length_scale_tokens: f64,
}

impl Default for PrefixCache {
    fn default() -> Self {
        PrefixCache {
            match_length_weight: 0.0,
            match_length_scale_tokens: 8192.0,
        }
    }
}

/// Parameters of `no-hit-lru-scorer`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct NoHitLru {
    /// Endpoints that are remembered.
    pub lru_size: u32,
}

impl Default for NoHitLru {
    fn default() -> Self {
        NoHitLru { lru_size: 1024 }
    }
}

/// Parameters of `prefix-cache-affinity-filter`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct PrefixAffinity {
    /// Share of the prompt from which on an endpoint counts as holding it, 0 to 1.
    pub affinity_threshold: f64,
    /// How much longer a caller may wait for such an endpoint than for the fastest, in milliseconds.
    #[serde(rename = "maxTTFTPenaltyMs")]
    pub max_ttft_penalty_ms: f64,
    /// Prompt tokens that an engine computes in a second.
    pub peak_prefill_throughput: f64,
}

impl Default for PrefixAffinity {
    fn default() -> Self {
        PrefixAffinity {
            affinity_threshold: 0.8,
            max_ttft_penalty_ms: 18_000.0,
            peak_prefill_throughput: 15_928.0,
        }
    }
}

/// Parameters of `session-affinity-scorer`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct SessionAffinity {
    /// How a session finds its endpoint.
    pub strategy: SessionStrategy,
    /// For [`SessionStrategy::EncodedEndpointHeader`].
    pub encoded_endpoint_header_config: EncodedEndpointHeader,
    /// For [`SessionStrategy::SessionId`].
    pub session_id_config: SessionIdConfig,
    /// The profile whose choice is bound; any when missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile_name: Option<Arc<str>>,
}

/// How a session finds its endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionStrategy {
    /// The caller sends back a token that names the endpoint.
    #[default]
    EncodedEndpointHeader,
    /// The caller sends an id; the binding is kept here.
    SessionId,
}

/// Where the token travels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct EncodedEndpointHeader {
    /// Header of request and response.
    pub header: Arc<str>,
}

impl Default for EncodedEndpointHeader {
    fn default() -> Self {
        EncodedEndpointHeader {
            header: "x-session-token".into(),
        }
    }
}

/// Where the id comes from and how long its binding lives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct SessionIdConfig {
    /// Tried in order; the first one present gives the id.
    pub sources: Vec<SessionSource>,
    /// A binding not used for so long is gone.
    pub eviction_ttl_seconds: u64,
    /// Accepted for llm-d's sake: bindings end exactly at their time here, so nothing is swept.
    pub eviction_sweep_seconds: u64,
    /// Ours: most bindings kept; the one unused for longest goes first.
    pub max_sessions: u32,
}

impl Default for SessionIdConfig {
    fn default() -> Self {
        SessionIdConfig {
            sources: vec![SessionSource {
                header: "x-session-id".into(),
            }],
            eviction_ttl_seconds: 300,
            eviction_sweep_seconds: 10,
            max_sessions: 65_536,
        }
    }
}

/// A place where a session id may be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SessionSource {
    /// A request header.
    pub header: Arc<str>,
}

/// Parameters of every picker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct PickerParameters {
    /// Length of the ordered list: the target and its fallbacks.
    pub max_num_of_endpoints: u32,
}

impl Default for PickerParameters {
    fn default() -> Self {
        PickerParameters {
            max_num_of_endpoints: 1,
        }
    }
}

/// A Kubernetes label selector: everything in it must hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Selector {
    /// Labels with these very values.
    pub match_labels: BTreeMap<String, String>,
    /// Further requirements.
    pub match_expressions: Vec<Expression>,
}

/// One requirement on one label.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Expression {
    /// The label.
    pub key: String,
    /// What must hold.
    pub operator: Operator,
    /// The values it speaks of.
    #[serde(default)]
    pub values: Vec<String>,
}

/// What must hold for a label. As in Kubernetes, `NotIn` holds where the label is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    /// Has one of the values.
    In,
    /// Has none of them, or is missing.
    NotIn,
    /// Is there.
    Exists,
    /// Is not there.
    DoesNotExist,
}

/// Parameters of `by-label`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ByLabel {
    /// The label.
    pub label: String,
    /// Values that pass.
    #[serde(default)]
    pub valid_values: Vec<String>,
    /// Whether an endpoint without the label passes.
    #[serde(default)]
    pub allows_no_label: bool,
}

/// Parameters of `utilization-filter`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Utilization {
    /// All must hold.
    pub conditions: Vec<Condition>,
    /// Whether everybody passes when nobody does.
    pub fallback_on_empty: bool,
}

/// One limit on one metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Condition {
    /// Which metric.
    pub metric: ConditionMetric,
    /// The largest value that passes.
    pub max_value: f64,
}

/// A metric of `utilization-filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConditionMetric {
    /// Own requests in flight.
    ActiveRequests,
    /// Running in the engine.
    RunningRequests,
    /// Waiting in the engine.
    WaitingQueue,
    /// Share of KV blocks in use.
    KvCacheUtilization,
}

/// Parameters of `bounded-load-filter`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct BoundedLoad {
    /// How far over its fair share an endpoint may get, at least 1.
    pub factor: f64,
    /// Requests that an endpoint may have in any case.
    pub min_requests: u32,
}

impl Default for BoundedLoad {
    fn default() -> Self {
        BoundedLoad {
            factor: 2.0,
            min_requests: 4,
        }
    }
}
