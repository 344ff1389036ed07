//! Every key of the file, once: its type, its default, its meaning.
//!
//! The decoder, the JSON Schema and the reference page are made from it, so they cannot differ.

mod admission;
mod kvindex;
mod llmd;
mod ours;

use admission::{ADMISSION, FLOW_CONTROL};
use kvindex::KV_INDEX;
use llmd::{DATA_LAYER, PLUGIN_SHAPE, PROFILE_SHAPE, REF, REQUEST_HANDLER};
pub use ours::ENDPOINTS_FILE;
use ours::{
    FLEET, OBSERVABILITY, POOL_SHAPE, SCHEDULER, SERVER, TELEMETRY, TRUSTED_PROXY, UPSTREAM,
};

/// What a key's value looks like.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// A map with these keys.
    Map(&'static [Field]),
    /// A list of values of one shape.
    List(&'static Shape),
    /// A text.
    Text,
    /// The name of an HTTP header.
    Header,
    /// A secret: `${env:NAME}`.
    EnvRef,
    /// One of these words.
    Word(&'static [&'static str]),
    /// `true` or `false`.
    Bool,
    /// A whole number from the first to the second.
    Integer(i64, u64),
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

/// Whether this version does what a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It does.
    Works,
    /// Planned: checked and refused.
    Planned,
    /// llm-d does it: checked and refused.
    LlmD,
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
    /// Whether this version does it.
    pub status: Status,
}

impl Field {
    /// True if the map cannot do without it.
    pub fn is_required(&self) -> bool {
        self.default == "required"
    }
}

const fn field(key: &'static str, shape: Shape, default: &'static str, doc: &'static str) -> Field {
    Field {
        key,
        shape,
        default,
        doc,
        status: Status::Works,
    }
}

const fn refused(status: Status, field: Field) -> Field {
    Field { status, ..field }
}

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
        "trustedProxy",
        Shape::Map(TRUSTED_PROXY),
        "none",
        "With this section (it may be empty) the headers below are believed, from whoever connects: declare it only \
         where a proxy sets or removes them. Without it every caller is one flow of priority 0.",
    ),
    field(
        "fleet",
        Shape::Map(FLEET),
        "none",
        "Other replicas of this process in front of the same pools: shares and limits hold over all of them.",
    ),
    field(
        "kvIndex",
        Shape::Map(KV_INDEX),
        "as below",
        "Which endpoint holds how much of a prompt: `prefix-cache-scorer` and the counts of tokens go by what engines have \
         cached.",
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
        "admission",
        Shape::Map(ADMISSION),
        "as below",
        "Who waits, for how long, who goes next, and when an endpoint can start a request. A superset of `flowControl`.",
    ),
    field(
        "flowControl",
        Shape::Map(FLOW_CONTROL),
        "none",
        "llm-d's flow control, another name of `admission`. In an `EndpointPickerConfig` it needs the feature gate \
         `flowControl`, as in llm-d.",
    ),
    field(
        "requestHandler",
        Shape::Map(REQUEST_HANDLER),
        "built in",
        "llm-d's parsers; the built-in ones are always on here.",
    ),
    refused(
        Status::LlmD,
        field(
            "saturationDetector",
            Shape::Map(REF),
            "none",
            "Deprecated there.",
        ),
    ),
    field(
        "parser",
        Shape::Map(REF),
        "none",
        "Deprecated in llm-d: use `requestHandler.parsers`.",
    ),
];
