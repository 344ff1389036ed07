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

pub(super) const REQUEST_HANDLER: &[Field] = &[field(
    "parsers",
    Shape::List(&REF_SHAPE),
    "built in",
    "Only the built-in parsers.",
)];
