//! Every key of the file, once: its type, its default, its meaning.

/// What a key's value looks like.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// A map with these keys.
    Map(&'static [Field]),
    /// A list of values of one shape.
    List(&'static Shape),
    /// A text.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// `true` or `false`.
    Bool,
    /// A whole number from the first to the second.
    Integer(u64, u64),
    /// A number from the first to the second.
    Number(f64, f64),
    /// A duration such as `500ms`.
    Duration,
    /// A size such as `10Mi`.
    Size,
    /// A map of texts with free keys.
    Texts,
    /// Anything: judged elsewhere.
    Any,
}

/// A key.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name.
    pub key: &'static str,
    /// What its value looks like.
    pub shape: Shape,
    /// What holds without it, in words for the reference.
    pub default: &'static str,
    /// What it means.
    pub doc: &'static str,
}

const fn field(key: &'static str, shape: Shape, default: &'static str, doc: &'static str) -> Field {
    Field {
        key,
        shape,
        default,
        doc,
    }
}

const PORT: Shape = Shape::Integer(0, 65535);
const MANY: Shape = Shape::Integer(1, 1_000_000_000);

const TLS: &[Field] = &[
    field(
        "certFile",
        Shape::Text,
        "required",
        "Certificate chain, PEM; read again when it changes.",
    ),
    field("keyFile", Shape::Text, "required", "Private key, PEM."),
    field(
        "clientCaFile",
        Shape::Text,
        "none",
        "Callers must present a certificate of this CA (mTLS).",
    ),
];

const SERVER: &[Field] = &[
    field(
        "bind",
        Shape::Text,
        "0.0.0.0",
        "Address of the data, health and metrics ports.",
    ),
    field("httpPort", PORT, "8080", "HTTP front of `serve`."),
    field(
        "extProcPort",
        PORT,
        "9002",
        "ext_proc front of `epp`, gRPC.",
    ),
    field("healthPort", PORT, "9003", "gRPC health, never encrypted."),
    field("metricsPort", PORT, "9090", "Metrics and read-only views."),
    field("tls", Shape::Map(TLS), "none", "TLS of the HTTP front."),
    field(
        "extProcTls",
        Shape::Map(TLS),
        "none",
        "TLS of the ext_proc front.",
    ),
    field(
        "maxBodyBytes",
        Shape::Size,
        "16Mi",
        "Longest request body that is held; a longer one is refused with 413.",
    ),
    field(
        "maxHeaderBytes",
        Shape::Size,
        "64Ki",
        "Longest header block of a request.",
    ),
    field(
        "maxConnections",
        MANY,
        "65536",
        "Connections of the HTTP front at once; further ones wait.",
    ),
    field(
        "maxStreams",
        MANY,
        "1000",
        "Requests at once on one HTTP/2 connection.",
    ),
    field(
        "headerTimeout",
        Shape::Duration,
        "30s",
        "Longest time for a header block to come in.",
    ),
    field(
        "decisionTimeout",
        Shape::Duration,
        "60s",
        "Longest wait for a decision; then 503.",
    ),
    field(
        "drainTimeout",
        Shape::Duration,
        "30s",
        "Longest time for open requests at shutdown.",
    ),
    field(
        "workers",
        Shape::Integer(0, 1024),
        "0 (one per core)",
        "Worker threads.",
    ),
    field(
        "exposeServedBy",
        Shape::Bool,
        "false",
        "Tell callers which endpoint served, in `x-wicketgate-served-by`.",
    ),
];

const ENDPOINT: &[Field] = &[
    field(
        "address",
        Shape::Text,
        "required",
        "`ip:port`, `[v6]:port`, `host:port` or `http://...` of its OpenAI-compatible API and its metrics page.",
    ),
    field(
        "name",
        Shape::Text,
        "the address",
        "What tells it from the others.",
    ),
    field(
        "weight",
        Shape::Integer(0, 1_000_000),
        "1",
        "Share of the traffic relative to the others; 0 is a stand-by.",
    ),
    field(
        "labels",
        Shape::Texts,
        "none",
        "Labels that filters look at.",
    ),
    field(
        "engine",
        Shape::Word(&["vllm", "sglang"]),
        "`telemetry.engine`",
        "Whose metric names it uses.",
    ),
];

const ENDPOINT_SHAPE: Shape = Shape::Map(ENDPOINT);

/// Keys of an endpoints file.
pub const ENDPOINTS_FILE: &[Field] = &[field(
    "endpoints",
    Shape::List(&ENDPOINT_SHAPE),
    "none",
    "The endpoints.",
)];

const UPSTREAM_TLS: &[Field] = &[field(
    "caFile",
    Shape::Text,
    "required",
    "CA of the endpoints' certificates, PEM.",
)];

const UPSTREAM: &[Field] = &[
    field(
        "connectTimeout",
        Shape::Duration,
        "3s",
        "Longest time to a connection.",
    ),
    field(
        "firstByteTimeout",
        Shape::Duration,
        "60s",
        "Longest time to the answer's headers.",
    ),
    field(
        "totalTimeout",
        Shape::Duration,
        "180s",
        "Longest time of a whole request.",
    ),
    field(
        "retryBackoff",
        Shape::List(&Shape::Duration),
        "[200ms, 600ms]",
        "Pauses before further rounds when no endpoint could be reached; their number bounds the rounds.",
    ),
    field(
        "tls",
        Shape::Map(UPSTREAM_TLS),
        "none",
        "Talk TLS to endpoints.",
    ),
    field(
        "bearerTokenFile",
        Shape::Text,
        "none",
        "File with a token that goes to endpoints as `authorization: Bearer`, instead of the caller's.",
    ),
];

const BREAKER: &[Field] = &[
    field(
        "failures",
        Shape::Integer(0, 1_000_000),
        "5",
        "Failures within the window that eject an endpoint; 0 never ejects.",
    ),
    field("window", Shape::Duration, "60s", "The window."),
    field(
        "cooldown",
        Shape::Duration,
        "5s",
        "First time out; doubled each time.",
    ),
    field("cooldownCap", Shape::Duration, "120s", "Longest time out."),
];

const SLOW_START: &[Field] = &[field(
    "window",
    Shape::Duration,
    "10s",
    "Time in which a new endpoint's score rises to its full value.",
)];

const POOL: &[Field] = &[
    field(
        "name",
        Shape::Text,
        "main",
        "The pool's name, a metric label.",
    ),
    field(
        "default",
        Shape::Bool,
        "true for a single pool",
        "Serves every model that no pool names.",
    ),
    field(
        "models",
        Shape::List(&Shape::Text),
        "none",
        "Models and adapters that it serves.",
    ),
    field(
        "endpoints",
        Shape::List(&ENDPOINT_SHAPE),
        "none",
        "Its endpoints.",
    ),
    field(
        "endpointsFile",
        Shape::Text,
        "none",
        "A watched file with (more) endpoints.",
    ),
    field(
        "breaker",
        Shape::Map(BREAKER),
        "as below",
        "Ejection of failing endpoints.",
    ),
    field(
        "slowStart",
        Shape::Map(SLOW_START),
        "as below",
        "Gentle start of new endpoints.",
    ),
    field(
        "explore",
        Shape::Number(0.0, 1.0),
        "0",
        "Share of picks given to endpoints that were never scraped.",
    ),
];

const POOL_SHAPE: Shape = Shape::Map(POOL);

const TELEMETRY: &[Field] = &[
    field(
        "interval",
        Shape::Duration,
        "50ms",
        "Time from one scrape to the next.",
    ),
    field(
        "timeout",
        Shape::Duration,
        "1s",
        "Longest time of one scrape.",
    ),
    field(
        "jitter",
        Shape::Number(0.0, 1.0),
        "0.1",
        "Share of the interval by which each scrape is moved at random.",
    ),
    field(
        "staleness",
        Shape::Duration,
        "2s",
        "Age from which a value counts as no observation.",
    ),
    field("maxPageBytes", Shape::Size, "10Mi", "Longest metrics page."),
    field("path", Shape::Text, "/metrics", "Path of the metrics page."),
    field(
        "engine",
        Shape::Word(&["vllm", "sglang"]),
        "vllm",
        "Whose metric names endpoints use.",
    ),
];

const SCHEDULER: &[Field] = &[
    field(
        "seed",
        Shape::Integer(0, u64::MAX),
        "random",
        "Start of the pools' randomness.",
    ),
    field(
        "recordDecisions",
        Shape::Integer(0, 1_000_000),
        "0",
        "Decision records kept per pool for `/debug/decisions`; 0 keeps none.",
    ),
];

const OBSERVABILITY: &[Field] = &[
    field(
        "logLevel",
        Shape::Word(&["error", "warn", "info", "debug", "trace"]),
        "info",
        "Least urgent level that is logged.",
    ),
    field(
        "accessLog",
        Shape::Bool,
        "false",
        "Log a line for each request.",
    ),
];

const PLUGIN: &[Field] = &[
    field("type", Shape::Text, "required", "Plugin type."),
    field(
        "name",
        Shape::Text,
        "the type",
        "Name that profiles refer to.",
    ),
    field("parameters", Shape::Any, "none", "Parameters of the type."),
];

const PLUGIN_SHAPE: Shape = Shape::Map(PLUGIN);

const PLUGIN_REF: &[Field] = &[
    field("pluginRef", Shape::Text, "required", "Name of a plugin."),
    field(
        "weight",
        Shape::Number(f64::NEG_INFINITY, f64::INFINITY),
        "1",
        "Weight of a scorer.",
    ),
];

const PLUGIN_REF_SHAPE: Shape = Shape::Map(PLUGIN_REF);

const PROFILE: &[Field] = &[
    field("name", Shape::Text, "required", "The profile's name."),
    field(
        "plugins",
        Shape::List(&PLUGIN_REF_SHAPE),
        "none",
        "Filters in order, scorers with weights, at most one picker.",
    ),
];

const PROFILE_SHAPE: Shape = Shape::Map(PROFILE);

const EXTRACTOR: &[Field] = &[field(
    "pluginRef",
    Shape::Text,
    "required",
    "Name of a plugin.",
)];
const EXTRACTOR_SHAPE: Shape = Shape::Map(EXTRACTOR);

const SOURCE: &[Field] = &[
    field("pluginRef", Shape::Text, "required", "Name of a plugin."),
    field(
        "extractors",
        Shape::List(&EXTRACTOR_SHAPE),
        "none",
        "Plugins that read the source.",
    ),
];

const SOURCE_SHAPE: Shape = Shape::Map(SOURCE);

const DATA_LAYER: &[Field] = &[
    field(
        "injectDefaults",
        Shape::Bool,
        "true",
        "No effect: the built-in scraper always runs.",
    ),
    field(
        "sources",
        Shape::List(&SOURCE_SHAPE),
        "none",
        "Only the built-in metrics source.",
    ),
    field("discovery", Shape::Any, "none", "Not supported yet."),
    field("peerDiscovery", Shape::Any, "none", "Not supported yet."),
    field(
        "crossReplicaSyncerPluginRef",
        Shape::Text,
        "none",
        "Not supported yet.",
    ),
    field(
        "crossReplicaSyncInterval",
        Shape::Duration,
        "none",
        "Not supported yet.",
    ),
];

const BAND: &[Field] = &[
    field("priority", Shape::Any, "required", "Not supported yet."),
    field("maxBytes", Shape::Size, "none", "Not supported yet."),
    field("maxRequests", Shape::Size, "none", "Not supported yet."),
    field(
        "fairnessPolicyRef",
        Shape::Text,
        "none",
        "Not supported yet.",
    ),
    field(
        "orderingPolicyRef",
        Shape::Text,
        "none",
        "Not supported yet.",
    ),
];

const BAND_SHAPE: Shape = Shape::Map(BAND);
const REF: &[Field] = &[field(
    "pluginRef",
    Shape::Text,
    "required",
    "Name of a plugin.",
)];

const FLOW_CONTROL: &[Field] = &[
    field("maxBytes", Shape::Size, "none", "Not supported yet."),
    field("maxRequests", Shape::Size, "none", "Not supported yet."),
    field(
        "defaultRequestTTL",
        Shape::Duration,
        "none",
        "Not supported yet.",
    ),
    field(
        "noEndpointRequestTTL",
        Shape::Duration,
        "none",
        "Not supported yet.",
    ),
    field(
        "defaultPriorityBand",
        Shape::Map(BAND),
        "none",
        "Not supported yet.",
    ),
    field(
        "defaultNegativePriorityBand",
        Shape::Map(BAND),
        "none",
        "Not supported yet.",
    ),
    field(
        "priorityBands",
        Shape::List(&BAND_SHAPE),
        "none",
        "Not supported yet.",
    ),
    field(
        "usageLimitPolicyPluginRef",
        Shape::Text,
        "none",
        "Not supported yet.",
    ),
    field(
        "saturationDetector",
        Shape::Map(REF),
        "none",
        "Not supported yet.",
    ),
    field("enableEviction", Shape::Bool, "false", "Not supported yet."),
];

const REQUEST_HANDLER: &[Field] = &[field(
    "parsers",
    Shape::List(&EXTRACTOR_SHAPE),
    "built in",
    "Only the built-in parsers.",
)];

/// Keys of the file's root.
pub const ROOT: &[Field] = &[
    field(
        "apiVersion",
        Shape::Text,
        "wicketgate/v1",
        "`wicketgate/v1`, or llm-d's `llm-d.ai/v1alpha1` and its two older names.",
    ),
    field(
        "kind",
        Shape::Word(&["WicketgateConfig", "EndpointPickerConfig"]),
        "WicketgateConfig",
        "`EndpointPickerConfig` gets llm-d's defaults.",
    ),
    field(
        "server",
        Shape::Map(SERVER),
        "as below",
        "Ports and bounds.",
    ),
    field(
        "pools",
        Shape::List(&POOL_SHAPE),
        "none",
        "Pools of endpoints.",
    ),
    field(
        "upstream",
        Shape::Map(UPSTREAM),
        "as below",
        "How `serve` talks to endpoints.",
    ),
    field("telemetry", Shape::Map(TELEMETRY), "as below", "Scrapes."),
    field(
        "scheduler",
        Shape::Map(SCHEDULER),
        "as below",
        "Randomness and records.",
    ),
    field(
        "observability",
        Shape::Map(OBSERVABILITY),
        "as below",
        "Logs.",
    ),
    field(
        "featureGates",
        Shape::List(&Shape::Text),
        "none",
        "llm-d's feature gates.",
    ),
    field(
        "plugins",
        Shape::List(&PLUGIN_SHAPE),
        "the default profile",
        "Plugin instances.",
    ),
    field(
        "schedulingProfiles",
        Shape::List(&PROFILE_SHAPE),
        "one of all plugins",
        "Profiles.",
    ),
    field(
        "dataLayer",
        Shape::Map(DATA_LAYER),
        "built in",
        "llm-d's data layer; its built-in parts are always on here.",
    ),
    field(
        "flowControl",
        Shape::Map(FLOW_CONTROL),
        "none",
        "llm-d's flow control: known, not supported yet.",
    ),
    field(
        "requestHandler",
        Shape::Map(REQUEST_HANDLER),
        "built in",
        "llm-d's parsers; the built-in ones are always on here.",
    ),
    field(
        "saturationDetector",
        Shape::Map(REF),
        "none",
        "Deprecated in llm-d; not supported.",
    ),
    field(
        "parser",
        Shape::Map(REF),
        "none",
        "Deprecated in llm-d: use `requestHandler.parsers`.",
    ),
];
