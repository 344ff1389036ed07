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
        "none",
        "Folder with its `tokenizer.json`, and `tokenizer_config.json` and `chat_template.jinja` where it has them. One of \
         this and the next two.",
    ),
    field(
        "engine",
        Shape::Bool,
        "false",
        "There are no files: an engine is asked for the tokens of each prompt, at `/tokenize`, as `kvIndex.engineTokens` \
         says. Prompts with media go by load.",
    ),
    field(
        "renderUrl",
        Shape::Text,
        "none",
        "There are no files: this service is asked, as `http://HOST:PORT`, at `/v1/chat/completions/render` and \
         `/v1/completions/render`, which vLLM has and `vllm launch render` serves without a GPU. It knows media too.",
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

const HASH_CHECK: &[Field] = &[
    field(
        "scheme",
        Shape::Word(&["sha256", "sha256_cbor", "xxhash", "xxhash_cbor", "sglang"]),
        "required",
        "vLLM's `--prefix-caching-hash-algo`, or `sglang`.",
    ),
    field(
        "seed",
        Shape::Text,
        "none",
        "`PYTHONHASHSEED` of vLLM, where it is set. Without it hashes of `xxhash` and `xxhash_cbor`, and those of vLLM \
         before 0.29, are random and cannot be told.",
    ),
    field(
        "extras",
        Shape::Word(&["tagged", "plain"]),
        "tagged",
        "How vLLM writes salts and adapters into hashes: `tagged` since 0.31, `plain` before.",
    ),
];

const TOKEN_CHECK: &[Field] = &[
    field(
        "probe",
        Shape::Bool,
        "true",
        "When an endpoint joins, and when it comes back, its engine tokenises three short prompts of ours.",
    ),
    field(
        "sample",
        Shape::Number(0.0, 1.0),
        "0.01",
        "Share of live prompts that an engine tokenises once more, after they were sent on; one at a time, none with \
         media, none longer than 256Ki.",
    ),
    field(
        "onMismatch",
        Shape::Word(&["engine", "load", "ignore"]),
        "engine",
        "What becomes of a model's prompts from the first difference on, until a later check finds none. `engine`: engines \
         tokenise them. `load`: they go by load alone. `ignore`: nothing, the metric tells.",
    ),
];

const ENGINE_TOKENS: &[Field] = &[
    field(
        "timeout",
        Shape::Duration,
        "100ms",
        "Longest time that a request waits for them; then it goes by load. An engine that failed rests for a second.",
    ),
    field(
        "concurrency",
        Shape::Integer(1, 65536),
        "64",
        "Requests that wait for them at once; further ones go by load.",
    ),
];

const EVENTS: &[Field] = &[
    field(
        "mode",
        Shape::Word(&["auto", "off", "connect", "discover", "listen"]),
        "auto",
        "`connect`: engines publish KV events on `port`. `discover`: they say where, at `/kv_event_sources` (vLLM 0.32 \
         and later); a port of ours is opened for those that connect. `auto`: the same once there are `tokenizers`, \
         without opening ports, and quiet about engines that do not say. `listen`: they connect to us at `listen`. In an `EndpointPickerConfig` `auto` has \
         to be asked for: it is `off` by default.",
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
    field(
        "hashCheck",
        Shape::Map(HASH_CHECK),
        "none",
        "Hash the tokens of each stored block as the engine does and compare: a check of what events say, counted by \
         `wicketgate_kvindex_hash_checks_total`. The index needs none.",
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
        "enabled",
        Shape::Bool,
        "true",
        "`false`: no index. The choice goes by load and sessions alone.",
    ),
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
        "tokenCheck",
        Shape::Map(TOKEN_CHECK),
        "as below",
        "Whether our tokens are the engine's.",
    ),
    field(
        "engineTokens",
        Shape::Map(ENGINE_TOKENS),
        "as below",
        "Tokens that an engine makes for us.",
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
