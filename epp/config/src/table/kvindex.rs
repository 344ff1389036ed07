//! The prefix index, and where it gets prompts' tokens and engines' events from.

use super::{Field, Shape, field};

const NAMES: Shape = Shape::List(&Shape::Text);

const TOKENIZER: &[Field] = &[
    field(
        "model",
        Shape::Text,
        "required",
        "The model that requests name when they use no adapter.",
    ),
    field(
        "path",
        Shape::Text,
        "required",
        "Folder with its `tokenizer.json`, and `tokenizer_config.json` and `chat_template.jinja` where it has them.",
    ),
    field("aliases", NAMES, "none", "Further names of the same model."),
    field(
        "adapters",
        NAMES,
        "none",
        "Adapters of the model: their prompts share no cache with others.",
    ),
];

const TOKENIZER_SHAPE: Shape = Shape::Map(TOKENIZER);

const EVENTS: &[Field] = &[
    field(
        "mode",
        Shape::Word(&["off", "connect", "discover", "listen"]),
        "off",
        "`connect`: engines publish KV events on `port`. `discover`: they say where, at `/kv_event_sources` (vLLM 0.32 \
         and later). `listen`: they connect to us at `listen`.",
    ),
    field(
        "port",
        Shape::Integer(1, 65535),
        "5557",
        "Port of an engine's events, of rank 0; an endpoint's label `kv-events-port` goes before it.",
    ),
    field(
        "replayPort",
        Shape::Integer(1, 65535),
        "none",
        "Port on which an engine repeats events; an endpoint's label `kv-replay-port` goes before it. Without it a gap \
         makes everything that the engine said forgotten.",
    ),
    field(
        "ranks",
        Shape::Integer(1, 1024),
        "1",
        "Data-parallel ranks of an engine; rank r publishes on its port plus r. An endpoint's label `kv-events-ranks` \
         goes before it.",
    ),
    field(
        "topic",
        Shape::Text,
        "every topic",
        "What topics begin with that are subscribed to.",
    ),
    field(
        "listen",
        Shape::Text,
        "none",
        "`IP:PORT` for engines that connect to us. An engine is known by its topic, `kv@NAME@model` or the topic as a \
         whole; NAME is an endpoint's label `kv-events-topic`, or its address. What they say is believed.",
    ),
];

const WARM_FROM: &[Field] = &[
    field(
        "peers",
        Shape::List(&Shape::Text),
        "required",
        "Management ports of other replicas, `http://host:port` or `https://host:port`; asked in turn until one answers. \
         Our own may be among them.",
    ),
    field(
        "timeout",
        Shape::Duration,
        "10s",
        "Longest time for all of it. Until it is over or done, the replica is not ready, and events wait.",
    ),
];

pub(super) const KV_INDEX: &[Field] = &[
    field(
        "blockSize",
        Shape::Integer(1, 4096),
        "16",
        "Tokens per block of the index. Engines' blocks should be of as many, or of a multiple.",
    ),
    field(
        "maxBytes",
        Shape::Size,
        "2Gi",
        "Most memory of the index; the tails of the least recent prompts go first.",
    ),
    field(
        "predictionTtl",
        Shape::Duration,
        "5s",
        "A request's prompt counts as cached where it was sent at once, and for so long without a word of the engine.",
    ),
    field(
        "approximate",
        Shape::Bool,
        "true",
        "An endpoint that sends no events is credited with the prompts that it was sent, as many as its cache holds. \
         Then prompts of a model without a tokeniser count too, by their text.",
    ),
    field(
        "approximateTtl",
        Shape::Duration,
        "30m",
        "For how long such an endpoint is credited at most.",
    ),
    field(
        "approximateBlocks",
        Shape::Integer(1, 3_000_000),
        "31250",
        "Blocks that such an endpoint is credited with at most when its metrics do not say how many it has.",
    ),
    field(
        "tokenizers",
        Shape::List(&TOKENIZER_SHAPE),
        "none",
        "Tokenisers by model. Prompts of token ids need none.",
    ),
    field(
        "tokenizerMemory",
        Shape::Size,
        "64Mi",
        "Memory of each tokeniser for texts that it has seen: the next turn of a chat costs only what is new in it.",
    ),
    field(
        "longBody",
        Shape::Size,
        "8Ki",
        "A longer body is tokenised on a thread of its own, so that it holds up nobody else.",
    ),
    field(
        "events",
        Shape::Map(EVENTS),
        "as below",
        "KV events of engines.",
    ),
    field(
        "warmFrom",
        Shape::Map(WARM_FROM),
        "none",
        "At the start, take over what another replica knows, as far as it is still true. Needs `seed` and `events`.",
    ),
    field(
        "seed",
        Shape::EnvRef,
        "random",
        "What keys are made from: at least 16 characters, secret, the same for replicas that share snapshots. A reference \
         such as `${env:NAME}`.",
    ),
    field(
        "seedFile",
        Shape::Text,
        "none",
        "File with the seed, read at the start.",
    ),
    field(
        "maxSnapshotBytes",
        Shape::Size,
        "256Mi",
        "Longest snapshot that is taken in; it is held in memory meanwhile, for a moment twice. A block takes about 25 \
         bytes.",
    ),
];
