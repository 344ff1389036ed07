//! Our sections, and the endpoints file.

use super::{Field, Shape, Status, field, refused};

const fn planned(
    key: &'static str,
    shape: Shape,
    default: &'static str,
    doc: &'static str,
) -> Field {
    refused(Status::Planned, field(key, shape, default, doc))
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

pub(super) const SERVER: &[Field] = &[
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
        "Longest header block of a request, at least 8Ki.",
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
        "bodyTimeout",
        Shape::Duration,
        "60s",
        "Longest pause in a request body that comes in through the HTTP front; then 408. In all it may take `upstream.totalTimeout`.",
    ),
    field(
        "decisionTimeout",
        Shape::Duration,
        "120s",
        "Longest time to a decision, whatever `admission` allows to wait; then 503.",
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
        "managementPort",
        PORT,
        "9091",
        "Port of everything that changes state, and of snapshots of the prefix index.",
    ),
    field(
        "managementBind",
        Shape::Text,
        "127.0.0.1",
        "Address of that port. Anything but a loopback address needs a token, or `managementTls` with `clientCaFile`.",
    ),
    field(
        "managementToken",
        Shape::EnvRef,
        "none",
        "What callers of that port, and this replica at its peers' ports, show as `Authorization: Bearer`: a reference \
         such as `${env:NAME}`.",
    ),
    field(
        "managementTokenFile",
        Shape::Text,
        "none",
        "File with that token, read at the start.",
    ),
    field(
        "managementTls",
        Shape::Map(TLS),
        "none",
        "TLS of that port, and this replica's certificate at `https://` peers, whose certificates are of the same CA.",
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
        "draining",
        Shape::Bool,
        "false",
        "It is going away: it gets no new requests, and what runs there goes on.",
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
    "CA of the endpoints' certificates, PEM; read again when it changes.",
)];

const UPSTREAM_KEYS: [Field; 7] = [
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
    field(
        "bearerToken",
        Shape::EnvRef,
        "none",
        "The same from the environment: `${env:NAME}`. The token itself never stands in the file.",
    ),
];

pub(super) const UPSTREAM: &[Field] = &UPSTREAM_KEYS;

const fn inherited(field: Field) -> Field {
    Field {
        default: "the root's",
        ..field
    }
}

const POOL_UPSTREAM: &[Field] = &[
    inherited(UPSTREAM_KEYS[0]),
    inherited(UPSTREAM_KEYS[1]),
    inherited(UPSTREAM_KEYS[2]),
    inherited(UPSTREAM_KEYS[3]),
    inherited(UPSTREAM_KEYS[4]),
    inherited(UPSTREAM_KEYS[5]),
    inherited(UPSTREAM_KEYS[6]),
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
        "upstream",
        Shape::Map(POOL_UPSTREAM),
        "the root's",
        "Keys that replace the root's `upstream`; so far all pools must agree.",
    ),
    planned(
        "maxRequestsPerEndpoint",
        MANY,
        "50",
        "Requests at once at an endpoint.",
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

pub(super) const POOL_SHAPE: Shape = Shape::Map(POOL);

pub(super) const TELEMETRY: &[Field] = &[
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

pub(super) const SCHEDULER: &[Field] = &[
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

const ALIAS: Shape = Shape::Word(&["llm-d", "gie"]);

pub(super) const OBSERVABILITY: &[Field] = &[
    field(
        "logLevel",
        Shape::Word(&["error", "warn", "info", "debug", "trace"]),
        "info",
        "Least urgent level that is logged.",
    ),
    planned(
        "aliases",
        Shape::List(&ALIAS),
        "none",
        "Other names under which metrics appear too.",
    ),
    field(
        "accessLog",
        Shape::Bool,
        "false",
        "Log a line for each request.",
    ),
];

pub(super) const FLEET: &[Field] = &[
    field(
        "listen",
        Shape::Text,
        "none",
        "`IP:PORT` on which the others reach this one. What they say is believed: a closed network, or `tls`.",
    ),
    field(
        "peers",
        Shape::List(&Shape::Text),
        "none",
        "`host:port` of the others; our own may be among them.",
    ),
    field(
        "interval",
        Shape::Duration,
        "100ms",
        "Time between two messages.",
    ),
    field(
        "staleAfter",
        Shape::Duration,
        "1s",
        "A replica that is silent for so long counts as gone; each keeps to its share of every limit then.",
    ),
    field(
        "tls",
        Shape::Map(TLS),
        "none",
        "Certificate, key and CA of the fleet, for both sides of each stream; `clientCaFile` is needed here.",
    ),
];

const OBJECTIVE: &[Field] = &[
    field("name", Shape::Text, "required", "The objective's name."),
    field(
        "priority",
        Shape::Integer(-2_147_483_648, 2_147_483_647),
        "required",
        "The priority of its requests.",
    ),
];
const OBJECTIVE_SHAPE: Shape = Shape::Map(OBJECTIVE);

pub(super) const TRUSTED_PROXY: &[Field] = &[
    field(
        "fairnessIdHeader",
        Shape::Header,
        "`x-llm-d-inference-fairness-id`, `x-gateway-inference-fairness-id`",
        "Header that names the caller that shares are counted for.",
    ),
    field(
        "priorityHeader",
        Shape::Header,
        "none",
        "Header with a request's priority as a number.",
    ),
    field(
        "objectiveHeader",
        Shape::Header,
        "`x-llm-d-inference-objective`, `x-gateway-inference-objective`",
        "Header with the name of one of `objectives`; `priorityHeader` goes before it.",
    ),
    field(
        "objectives",
        Shape::List(&OBJECTIVE_SHAPE),
        "none",
        "Priorities by objective.",
    ),
    field(
        "ttlHeader",
        Shape::Header,
        "`x-llm-d-inference-ttl`",
        "Header with the longest wait, such as `3s`. It only shortens the band's.",
    ),
    field(
        "sloTtftHeader",
        Shape::Header,
        "`x-llm-d-slo-ttft-ms`, `x-slo-ttft-ms`",
        "Header with the wanted time to first token in milliseconds, for `slo-deadline-ordering-policy`.",
    ),
];
