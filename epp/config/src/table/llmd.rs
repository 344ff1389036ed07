//! llm-d's own sections (`EndpointPickerConfig`, `llm-d.ai/v1alpha1`).

use super::{Field, Shape, Status, field, refused};

const fn theirs(
    key: &'static str,
    shape: Shape,
    default: &'static str,
    doc: &'static str,
) -> Field {
    refused(Status::LlmD, field(key, shape, default, doc))
}

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

pub(super) const PLUGIN_SHAPE: Shape = Shape::Map(PLUGIN);

const PLUGIN_REF: &[Field] = &[
    field("pluginRef", Shape::Text, "required", "Name of a plugin."),
    field(
        "weight",
        Shape::Number(0.0, f64::INFINITY),
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

pub(super) const PROFILE_SHAPE: Shape = Shape::Map(PROFILE);

pub(super) const REF: &[Field] = &[field(
    "pluginRef",
    Shape::Text,
    "required",
    "Name of a plugin.",
)];

const REF_SHAPE: Shape = Shape::Map(REF);

const SOURCE: &[Field] = &[
    field("pluginRef", Shape::Text, "required", "Name of a plugin."),
    field(
        "extractors",
        Shape::List(&REF_SHAPE),
        "none",
        "Plugins that read the source.",
    ),
];

const SOURCE_SHAPE: Shape = Shape::Map(SOURCE);

pub(super) const DATA_LAYER: &[Field] = &[
    field(
        "injectDefaults",
        Shape::Bool,
        "true",
        "The built-in scraper runs; `false` is not supported.",
    ),
    field(
        "sources",
        Shape::List(&SOURCE_SHAPE),
        "none",
        "Only the built-in metrics source.",
    ),
    theirs(
        "discovery",
        Shape::Map(REF),
        "none",
        "Where endpoints come from.",
    ),
    theirs("peerDiscovery", Shape::Map(REF), "none", "Other replicas."),
    theirs(
        "crossReplicaSyncerPluginRef",
        Shape::Text,
        "none",
        "What replicas tell each other.",
    ),
    theirs(
        "crossReplicaSyncInterval",
        Shape::Duration,
        "200ms",
        "How often they do.",
    ),
];

const BAND_LIMITS: &[Field] = &[
    field(
        "priority",
        PRIORITY,
        "none",
        "Of no meaning in a band that stands for others.",
    ),
    MAX_BYTES,
    MAX_REQUESTS,
    FAIRNESS,
    ORDERING,
];

const BAND: &[Field] = &[
    field(
        "priority",
        PRIORITY,
        "required",
        "The band's priority; higher goes first.",
    ),
    MAX_BYTES,
    MAX_REQUESTS,
    FAIRNESS,
    ORDERING,
];

const PRIORITY: Shape = Shape::Integer(-2_147_483_648, 2_147_483_647);
const MAX_BYTES: Field = field(
    "maxBytes",
    Shape::Size,
    "1G",
    "Bytes of waiting requests; 0 counts as absent.",
);
const MAX_REQUESTS: Field = field(
    "maxRequests",
    Shape::Size,
    "5000",
    "Waiting requests; 0 counts as absent.",
);
const FAIRNESS: Field = field(
    "fairnessPolicyRef",
    Shape::Text,
    "`global-strict-fairness-policy`",
    "Which flow goes next.",
);
const ORDERING: Field = field(
    "orderingPolicyRef",
    Shape::Text,
    "`fcfs-ordering-policy`",
    "Which request of a flow goes next.",
);

const BAND_SHAPE: Shape = Shape::Map(BAND);

pub(super) const FLOW_CONTROL: &[Field] = &[
    field(
        "maxBytes",
        Shape::Size,
        "no limit",
        "Bytes of all waiting requests; 0 counts as absent.",
    ),
    field(
        "maxRequests",
        Shape::Size,
        "no limit",
        "All waiting requests; 0 counts as absent.",
    ),
    field(
        "defaultRequestTTL",
        Shape::Duration,
        "60s",
        "Longest wait; `0s` is no limit, unlike an absent key.",
    ),
    field(
        "noEndpointRequestTTL",
        Shape::Duration,
        "`defaultRequestTTL`",
        "Longest wait while the pool has no endpoint.",
    ),
    field(
        "defaultPriorityBand",
        Shape::Map(BAND_LIMITS),
        "as below",
        "Bands that are not listed.",
    ),
    field(
        "defaultNegativePriorityBand",
        Shape::Map(BAND_LIMITS),
        "as below",
        "Those of them below 0.",
    ),
    field(
        "priorityBands",
        Shape::List(&BAND_SHAPE),
        "none",
        "Bands by priority.",
    ),
    field(
        "usageLimitPolicyPluginRef",
        Shape::Text,
        "`static-usage-limit-policy`",
        "How much of the pool each band may fill.",
    ),
    field(
        "saturationDetector",
        Shape::Map(REF),
        "`utilization-detector`",
        "When the pool counts as full.",
    ),
    field(
        "enableEviction",
        Shape::Bool,
        "false",
        "Running requests may be ended for more urgent ones.",
    ),
];

pub(super) const REQUEST_HANDLER: &[Field] = &[field(
    "parsers",
    Shape::List(&REF_SHAPE),
    "built in",
    "Only the built-in parsers.",
)];
