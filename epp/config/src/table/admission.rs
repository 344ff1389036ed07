//! Admission: llm-d's `flowControl`, and ours, which has more keys.

use super::{Field, Shape, field, llmd::REF};

const PRIORITY: Shape = Shape::Integer(-2_147_483_648, 2_147_483_647);
const COUNT: Shape = Shape::Integer(0, u32::MAX as u64);
const SHARE: Shape = Shape::Number(0.0, 1.0);

const MAX_BYTES: Field = field("maxBytes", Shape::Size, "1G", "Bytes of waiting requests.");
const MAX_REQUESTS: Field = field("maxRequests", Shape::Size, "5000", "Waiting requests.");
const FAIRNESS: Field = field(
    "fairnessPolicyRef",
    Shape::Text,
    "`vtc-fairness-policy`; llm-d: `global-strict-fairness-policy`",
    "Which flow goes next: `global-strict-`, `round-robin-`, `drr-` or `vtc-fairness-policy`.",
);
const ORDERING: Field = field(
    "orderingPolicyRef",
    Shape::Text,
    "`fcfs-ordering-policy`",
    "Which request of a flow goes next: `fcfs-`, `edf-`, `slo-deadline-` or `sjf-ordering-policy`.",
);
const REQUIRED_PRIORITY: Field = field(
    "priority",
    PRIORITY,
    "required",
    "The band's priority; higher goes first.",
);
const NO_PRIORITY: Field = field(
    "priority",
    PRIORITY,
    "none",
    "Of no meaning in a band that stands for others.",
);

const LLMD_BAND_LIMITS: &[Field] = &[NO_PRIORITY, MAX_BYTES, MAX_REQUESTS, FAIRNESS, ORDERING];
const LLMD_BAND: &[Field] = &[
    REQUIRED_PRIORITY,
    MAX_BYTES,
    MAX_REQUESTS,
    FAIRNESS,
    ORDERING,
];
const LLMD_BAND_SHAPE: Shape = Shape::Map(LLMD_BAND);

const MAX_TOKENS: Field = field(
    "maxTokens",
    Shape::Size,
    "no limit",
    "Tokens of waiting requests, input and expected output.",
);
const REQUEST_TTL: Field = field(
    "requestTTL",
    Shape::Duration,
    "`defaultRequestTTL`",
    "Longest wait in this band; `0s` is no limit.",
);
const FLOOR: Field = field(
    "floor",
    SHARE,
    "the starvation policy's share",
    "Share of the dispatched tokens that the band keeps under `starvation: {policy: floor}`.",
);

const BAND_LIMITS: &[Field] = &[
    NO_PRIORITY,
    MAX_BYTES,
    MAX_REQUESTS,
    MAX_TOKENS,
    REQUEST_TTL,
    FAIRNESS,
    ORDERING,
    FLOOR,
];
const BAND: &[Field] = &[
    REQUIRED_PRIORITY,
    MAX_BYTES,
    MAX_REQUESTS,
    MAX_TOKENS,
    REQUEST_TTL,
    FAIRNESS,
    ORDERING,
    FLOOR,
];
const BAND_SHAPE: Shape = Shape::Map(BAND);

const TOTAL_BYTES: Field = field(
    "maxBytes",
    Shape::Size,
    "2G; llm-d: no limit",
    "Bytes of all waiting requests; in `flowControl` 0 counts as absent.",
);
const TOTAL_REQUESTS: Field = field(
    "maxRequests",
    Shape::Size,
    "20000; llm-d: no limit",
    "All waiting requests; in `flowControl` 0 counts as absent.",
);
const DEFAULT_TTL: Field = field(
    "defaultRequestTTL",
    Shape::Duration,
    "60s",
    "Longest wait; `0s` is no limit, unlike an absent key.",
);
const NO_ENDPOINT_TTL: Field = field(
    "noEndpointRequestTTL",
    Shape::Duration,
    "60s; llm-d: `defaultRequestTTL`",
    "Longest wait while the pool has no endpoint.",
);
const USAGE_LIMIT: Field = field(
    "usageLimitPolicyPluginRef",
    Shape::Text,
    "`static-usage-limit-policy`",
    "How much of the pool each band may fill: `static-usage-limit-`, `priority-holdback-` or \
     `soft-reflective-ceiling-policy`.",
);
const DETECTOR: Field = field(
    "saturationDetector",
    Shape::Map(REF),
    "`headroom-detector`; llm-d: `utilization-detector`",
    "When an endpoint counts as full: `headroom-`, `utilization-` or `concurrency-detector`.",
);
const EVICT: Field = field(
    "enableEviction",
    Shape::Bool,
    "false",
    "Running requests of negative priority may be ended for more urgent ones.",
);

pub(super) const FLOW_CONTROL: &[Field] = &[
    TOTAL_BYTES,
    TOTAL_REQUESTS,
    DEFAULT_TTL,
    NO_ENDPOINT_TTL,
    field(
        "defaultPriorityBand",
        Shape::Map(LLMD_BAND_LIMITS),
        "as in `priorityBands`",
        "Bands that are not listed.",
    ),
    field(
        "defaultNegativePriorityBand",
        Shape::Map(LLMD_BAND_LIMITS),
        "as in `priorityBands`",
        "Those of them below 0.",
    ),
    field(
        "priorityBands",
        Shape::List(&LLMD_BAND_SHAPE),
        "none",
        "Bands by priority.",
    ),
    USAGE_LIMIT,
    DETECTOR,
    EVICT,
];

const STARVATION: &[Field] = &[
    field(
        "policy",
        Shape::Word(&["strict", "aging", "floor"]),
        "aging; llm-d: strict",
        "What keeps low bands alive: nothing, a bound on their wait, or a share of the tokens.",
    ),
    field(
        "after",
        Shape::Duration,
        "10s",
        "`aging`: the wait after which a request competes with the top band.",
    ),
    field(
        "share",
        SHARE,
        "0.1 (aging), 0.05 (floor)",
        "`aging`: share of the tokens that old requests may take out of turn. `floor`: share that each lower band keeps.",
    ),
    field(
        "window",
        Shape::Duration,
        "10s",
        "`floor`: the share is verified over windows of this length.",
    ),
];

const NO_ENDPOINTS: &[Field] = &[
    field(
        "hold",
        Shape::Bool,
        "true",
        "Requests wait for the first endpoint; otherwise they are refused at once with 503.",
    ),
    field(
        "maxRequests",
        Shape::Size,
        "5000; llm-d: no limit",
        "Requests that wait for it, in place of the global bound.",
    ),
    field(
        "maxBytes",
        Shape::Size,
        "1G; llm-d: no limit",
        "Their bytes.",
    ),
    field(
        "releaseInterval",
        Shape::Duration,
        "20ms; llm-d: 0s",
        "Once endpoints come: one dispatch per endpoint in this time. `0s` lets all go at once.",
    ),
    field(
        "releaseWindow",
        Shape::Duration,
        "5s",
        "The pacing ends after this time.",
    ),
];

const EVICTION: &[Field] = &[
    field(
        "maxPerDecision",
        Shape::Integer(1, 1000),
        "2",
        "Requests ended at once.",
    ),
    field(
        "grace",
        Shape::Duration,
        "10ms",
        "Pause after the last of them is over.",
    ),
    field(
        "timeout",
        Shape::Duration,
        "10s",
        "Longest wait for one of them to be over.",
    ),
];

const WEIGHT: &[Field] = &[
    field("fairnessId", Shape::Text, "required", "Whose."),
    field(
        "weight",
        Shape::Number(0.001, 1000.0),
        "required",
        "Its share against the others, which have 1.",
    ),
];
const WEIGHT_SHAPE: Shape = Shape::Map(WEIGHT);

pub(super) const ADMISSION: &[Field] = &[
    field(
        "enabled",
        Shape::Bool,
        "true; llm-d: the feature gate `flowControl`",
        "Requests wait until an endpoint can start them. Without it each goes to an endpoint at once, and only negative \
         priorities are refused, while the pool is full.",
    ),
    TOTAL_BYTES,
    TOTAL_REQUESTS,
    MAX_TOKENS,
    DEFAULT_TTL,
    NO_ENDPOINT_TTL,
    field(
        "defaultPriorityBand",
        Shape::Map(BAND_LIMITS),
        "as in `priorityBands`",
        "Bands that are not listed.",
    ),
    field(
        "defaultNegativePriorityBand",
        Shape::Map(BAND_LIMITS),
        "as in `priorityBands`",
        "Those of them below 0.",
    ),
    field(
        "priorityBands",
        Shape::List(&BAND_SHAPE),
        "none",
        "Bands by priority.",
    ),
    field(
        "starvation",
        Shape::Map(STARVATION),
        "as below",
        "What keeps low bands alive under steady load of higher ones.",
    ),
    field(
        "noEndpoints",
        Shape::Map(NO_ENDPOINTS),
        "as below",
        "While the pool has no endpoint.",
    ),
    DETECTOR,
    USAGE_LIMIT,
    field(
        "staleness",
        Shape::Word(&["saturated", "ignore", "own-count"]),
        "own-count; llm-d: saturated",
        "What an endpoint's reading means that is too old: full, left out, or as full as our own requests make it.",
    ),
    field(
        "staleAfter",
        Shape::Duration,
        "`telemetry.staleness`; llm-d: 200ms",
        "When a reading is too old.",
    ),
    field(
        "firstScrapeGrace",
        Shape::Duration,
        "5s; llm-d: 0s",
        "So long a new endpoint starts nothing while its first scrape is on its way.",
    ),
    field(
        "ownLimit",
        Shape::Integer(1, u32::MAX as u64),
        "50",
        "Our requests at once on an endpoint that does not say how many it runs.",
    ),
    field(
        "outputWeight",
        Shape::Number(0.0, 1024.0),
        "2",
        "Weight of an output token against an input token in what a request costs its flow.",
    ),
    field(
        "maxDisplaced",
        COUNT,
        "64; llm-d: 0",
        "When the queue is full, so many waiting requests of lower bands give way to a newcomer.",
    ),
    field("maxBands", Shape::Integer(1, 1024), "64", "Bands at once."),
    field(
        "maxFlows",
        Shape::Integer(1, u32::MAX as u64),
        "16384",
        "Flows at once; further fairness IDs of a band share one flow.",
    ),
    field(
        "weights",
        Shape::List(&WEIGHT_SHAPE),
        "none",
        "Shares of fairness IDs.",
    ),
    EVICT,
    field(
        "eviction",
        Shape::Map(EVICTION),
        "as below",
        "How running requests are ended for more urgent ones.",
    ),
    field(
        "shutdown",
        Shape::Word(&["drain", "refuse"]),
        "drain",
        "At shutdown, whether those that wait still get their turn within `server.drainTimeout`.",
    ),
];
