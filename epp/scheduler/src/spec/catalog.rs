//! Every scheduling plugin name of the llm-d dialect, and ours, with parameters and defaults.

/// What a plugin does in a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginKind {
    /// Removes candidates.
    Filter,
    /// Scores candidates from 0 to 1.
    Scorer,
    /// Chooses by total.
    Picker,
    /// Says which profiles run.
    ProfileHandler,
}

/// Where a name comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// llm-d's dialect.
    LlmD,
    /// Ours.
    Ours,
}

/// One parameter of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamInfo {
    /// Path from the plugin's `parameters`; `[]` stands for each item of a list.
    pub name: &'static str,
    /// Its form, in words.
    pub kind: &'static str,
    /// Its default as JSON; empty when it has none.
    pub default: &'static str,
}

/// One plugin type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PluginInfo {
    /// The name in configuration files.
    pub type_name: &'static str,
    /// What it does.
    pub kind: PluginKind,
    /// Its parameters; empty for types not supported here.
    pub parameters: &'static [ParamInfo],
    /// Whose name it is.
    pub origin: Origin,
    /// False for names that llm-d has and we do not have yet.
    pub supported: bool,
}

const fn ours(
    type_name: &'static str,
    kind: PluginKind,
    parameters: &'static [ParamInfo],
) -> PluginInfo {
    PluginInfo {
        type_name,
        kind,
        parameters,
        origin: Origin::Ours,
        supported: true,
    }
}

const fn known(
    type_name: &'static str,
    kind: PluginKind,
    parameters: &'static [ParamInfo],
) -> PluginInfo {
    PluginInfo {
        type_name,
        kind,
        parameters,
        origin: Origin::LlmD,
        supported: true,
    }
}

const fn later(type_name: &'static str, kind: PluginKind) -> PluginInfo {
    PluginInfo {
        type_name,
        kind,
        parameters: &[],
        origin: Origin::LlmD,
        supported: false,
    }
}

const fn param(name: &'static str, kind: &'static str, default: &'static str) -> ParamInfo {
    ParamInfo {
        name,
        kind,
        default,
    }
}

const PICKER: &[ParamInfo] = &[param("maxNumOfEndpoints", "integer, at least 1", "1")];

const SELECTOR: &[ParamInfo] = &[
    param("matchLabels", "mapping of label to value", "{}"),
    param("matchExpressions", "list", "[]"),
    param("matchExpressions[].key", "label", ""),
    param(
        "matchExpressions[].operator",
        "In, NotIn, Exists or DoesNotExist",
        "",
    ),
    param("matchExpressions[].values", "list of values", "[]"),
];

const SESSION: &[ParamInfo] = &[
    param(
        "strategy",
        "encoded_endpoint_header or session_id",
        "\"encoded_endpoint_header\"",
    ),
    param(
        "encodedEndpointHeaderConfig.header",
        "header name",
        "\"x-session-token\"",
    ),
    param(
        "sessionIdConfig.sources",
        "list of {header}",
        "[{\"header\":\"x-session-id\"}]",
    ),
    param("sessionIdConfig.sources[].header", "header name", ""),
    param(
        "sessionIdConfig.evictionTtlSeconds",
        "seconds, at least 1",
        "300",
    ),
    param(
        "sessionIdConfig.evictionSweepSeconds",
        "seconds; accepted, of no effect",
        "10",
    ),
    param(
        "sessionIdConfig.maxSessions",
        "integer, at least 1; ours",
        "65536",
    ),
    param("profileName", "profile name", ""),
];

use PluginKind::{Filter, Picker, ProfileHandler, Scorer};

/// Every scheduling plugin type that a configuration may name.
pub const PLUGIN_TYPES: &[PluginInfo] = &[
    known("single-profile-handler", ProfileHandler, &[]),
    later("disagg-profile-handler", ProfileHandler),
    later("pd-profile-handler", ProfileHandler),
    later("disagg-headers-handler", ProfileHandler),
    later("prefill-header-handler", ProfileHandler),
    later("data-parallel-profile-handler", ProfileHandler),
    later("header-profile-handler", ProfileHandler),
    known("max-score-picker", Picker, PICKER),
    known("weighted-random-picker", Picker, PICKER),
    known("random-picker", Picker, PICKER),
    known("queue-scorer", Scorer, &[]),
    known("running-requests-size-scorer", Scorer, &[]),
    known("kv-cache-utilization-scorer", Scorer, &[]),
    known(
        "load-aware-scorer",
        Scorer,
        &[param("threshold", "number above 0", "128")],
    ),
    known(
        "active-request-scorer",
        Scorer,
        &[
            param("idleThreshold", "integer", "0"),
            param("maxBusyScore", "number from 0 to 1", "1"),
            param(
                "inFlightLoadProducerName",
                "plugin name; accepted, as the count is our own",
                "",
            ),
        ],
    ),
    known(
        "token-load-scorer",
        Scorer,
        &[
            param("queueThresholdTokens", "number above 0", "4194304"),
            param(
                "inFlightLoadProducerName",
                "plugin name; accepted, as the count is our own",
                "",
            ),
        ],
    ),
    known(
        "prefix-cache-scorer",
        Scorer,
        &[
            param(
                "prefixMatchInfoProducerName",
                "plugin name; accepted, as the index is our own",
                "",
            ),
            param("matchLengthWeight", "number from 0 to 1", "0"),
            param("matchLengthScaleTokens", "number above 0", "8192"),
        ],
    ),
    known(
        "no-hit-lru-scorer",
        Scorer,
        &[
            param(
                "prefixPluginType",
                "plugin type; accepted, as the index is our own",
                "",
            ),
            param(
                "prefixPluginName",
                "plugin name; accepted, as the index is our own",
                "",
            ),
            param(
                "prefixMatchInfoProducerName",
                "plugin name; accepted, as the index is our own",
                "",
            ),
            param("lruSize", "integer, at least 1", "1024"),
        ],
    ),
    known("lora-affinity-scorer", Scorer, &[]),
    known("session-affinity-scorer", Scorer, SESSION),
    later("context-length-aware", Scorer),
    later("latency-scorer", Scorer),
    later("topology-affinity-scorer", Scorer),
    later("header-label-affinity-scorer", Scorer),
    later("endpoint-attribute-scorer", Scorer),
    later("mm-embeddings-cache-scorer", Scorer),
    later("multicluster-queue-scorer", Scorer),
    later("multicluster-kv-cache-utilization-scorer", Scorer),
    later("multicluster-prefix-cache-scorer", Scorer),
    known("label-selector-filter", Filter, SELECTOR),
    known("by-label-selector", Filter, SELECTOR),
    known(
        "by-label",
        Filter,
        &[
            param("label", "label; required", ""),
            param("validValues", "list of values", "[]"),
            param("allowsNoLabel", "true or false", "false"),
        ],
    ),
    known("decode-filter", Filter, &[]),
    known("prefill-filter", Filter, &[]),
    known("encode-filter", Filter, &[]),
    known(
        "utilization-filter",
        Filter,
        &[
            param("conditions", "list of {metric, maxValue}", "[]"),
            param(
                "conditions[].metric",
                "active-requests, running-requests, waiting-queue or kv-cache-utilization",
                "",
            ),
            param("conditions[].maxValue", "number, at least 0", ""),
            param("fallbackOnEmpty", "true or false", "false"),
        ],
    ),
    known(
        "prefix-cache-affinity-filter",
        Filter,
        &[
            param(
                "prefixMatchInfoProducerName",
                "plugin name; accepted, as the index is our own",
                "",
            ),
            param(
                "inFlightLoadProducerName",
                "plugin name; accepted, as the count is our own",
                "",
            ),
            param("affinityThreshold", "number from 0 to 1", "0.8"),
            param(
                "explorationProbability",
                "0, as in llm-d's default; nothing else is supported",
                "",
            ),
            param("maxTTFTPenaltyMs", "number, at least 0", "18000"),
            param("ttftSource", "prefillThroughput", ""),
            param("peakPrefillThroughput", "number above 0", "15928"),
        ],
    ),
    later("slo-headroom-tier-filter", Filter),
    later("endpoint-attribute-filter", Filter),
    later("topology-affinity-filter", Filter),
    later("session-affinity-filter", Filter),
    later("header-based-testing-filter", Filter),
    ours(
        "bounded-load-filter",
        Filter,
        &[
            param("factor", "number, at least 1", "2"),
            param("minRequests", "integer", "4"),
        ],
    ),
];

/// The entry of a type.
pub(super) fn info(type_name: &str) -> Option<&'static PluginInfo> {
    PLUGIN_TYPES.iter().find(|info| info.type_name == type_name)
}
