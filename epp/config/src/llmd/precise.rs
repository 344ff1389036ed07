//! llm-d's exact prefix set-up, taken over by `kvIndex`: `precise-prefix-cache-producer` and its older wrapper
//! `precise-prefix-cache-scorer`, `token-producer` and its older name `tokenizer`.
//!
//! What a parameter means there it means here, where it can; what cannot apply is said, and what would be missed is
//! refused. Where the file's `kvIndex` has a key itself, that one holds.

use serde_json::{Map, Value};

use crate::{
    decode::{Decoded, not_yet},
    kvindex::{Section, service},
    raw::Telemetry,
    scalar::shown,
    units::{Size, Span},
};

/// The wrapper that scores as the other one does and brings its own producer.
pub(super) const SCORER: &str = "precise-prefix-cache-scorer";
pub(super) const SCORES_AS: &str = "prefix-cache-scorer";

/// Where parameters go.
pub(super) struct Into<'a> {
    pub(super) section: &'a mut Section,
    pub(super) telemetry: &'a mut Telemetry,
    pub(super) out: &'a mut Decoded,
}

type Taken = Result<(), String>;

/// What each key of a map comes to.
fn each(
    into: &mut Into<'_>,
    value: &Value,
    path: &str,
    mut take: impl FnMut(&mut Into<'_>, &str, &Value, &str) -> Taken,
) -> Taken {
    let none = Map::new();
    let map = match value {
        Value::Null => &none,
        Value::Object(map) => map,
        _ => return Err("expected a map of keys".to_owned()),
    };
    for (key, value) in map.iter().filter(|(_, value)| !value.is_null()) {
        let path = format!("{path}.{key}");
        if let Err(what) = take(into, key, value, &path) {
            into.out.fault(&path, what);
        }
    }
    Ok(())
}

fn unknown(key: &str) -> Taken {
    Err(format!("unknown parameter {}", shown(key)))
}

fn flag(value: &Value) -> Result<bool, String> {
    let flag = value.as_bool();
    flag.ok_or_else(|| "expected true or false".to_owned())
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| "expected a text".to_owned())
}

fn span(value: &Value) -> Result<Span, String> {
    let span = value.as_str().map(str::to_owned).map(Span::try_from);
    match span {
        Some(Ok(span)) if !span.0.is_zero() => Ok(span),
        _ => Err("expected a duration such as 2s".to_owned()),
    }
}

fn port(value: &Value) -> Result<u16, String> {
    let port = value.as_u64().and_then(|port| u16::try_from(port).ok());
    port.ok_or_else(|| "expected a port".to_owned())
}

impl Into<'_> {
    /// It means nothing here, for this reason.
    fn idle(&mut self, path: &str, why: &str) -> Taken {
        self.out.warn(path, format!("has no effect: {why}"));
        Ok(())
    }

    /// True if the file has the key itself: then that one holds, which is said.
    fn has(&mut self, path: &str, ours: &str) -> bool {
        let there = self.out.has(ours);
        if there {
            self.out
                .warn(path, format!("has no effect: `{ours}` is set"));
        }
        there
    }
}

/// Parameters of the producer. Listed alone it means what llm-d means: engines listen on port 5557.
pub(super) fn producer(into: &mut Into<'_>, parameters: &Value, path: &str) -> Taken {
    let none = Value::Null;
    let events = parameters.get("kvEventsConfig").unwrap_or(&none);
    let events_path = format!("{path}.kvEventsConfig");
    if let Err(what) = events_of(into, events, &events_path) {
        into.out.fault(&events_path, what);
    }
    each(into, parameters, path, |into, key, value, path| match key {
        "kvEventsConfig" => Ok(()),
        "tokenProcessorConfig" => each(into, value, path, processor),
        "indexerConfig" => each(into, value, path, indexer),
        "speculativeIndexing" => match flag(value)? {
            true => Ok(()),
            false => into.idle(path, "a pick counts at once where it was sent"),
        },
        "speculativeTTL" => {
            let ttl = span(value)?;
            if !into.has(path, "kvIndex.predictionTtl") {
                into.section.prediction_ttl = ttl;
            }
            Ok(())
        }
        "sessionManager" => Err(not_yet(key)),
        _ => unknown(key),
    })
}

fn processor(into: &mut Into<'_>, key: &str, value: &Value, path: &str) -> Taken {
    match key {
        "blockSize" | "blockSizeTokens" => {
            if into.has(path, "kvIndex.blockSize") {
                return Ok(());
            }
            into.section.set("blockSize", value)
        }
        "hashSeed" if value.is_string() || value.is_number() => {
            into.idle(path, "keys do not depend on how engines hash")
        }
        "hashSeed" => Err("expected a text".to_owned()),
        "hashAlgorithm" => {
            text(value)?;
            into.idle(path, "keys do not depend on how engines hash")
        }
        _ => unknown(key),
    }
}

fn indexer(into: &mut Into<'_>, key: &str, value: &Value, path: &str) -> Taken {
    match key {
        "tokenProcessorConfig" => each(into, value, path, processor),
        "kvBlockIndexConfig" => each(into, value, path, blocks),
        "tokenizersPoolConfig" => pool(into, value, path),
        "kvCacheBackendConfigs" | "backendConfigs" if value.is_array() => {
            into.idle(path, "what each tier weighs is fixed here")
        }
        "kvCacheBackendConfigs" | "backendConfigs" => Err("expected a list".to_owned()),
        "kvBlockScorerConfig" | "scorerConfig" if value.is_object() => {
            into.idle(path, "the longest prefix counts, by tiers")
        }
        "prefixStoreConfig" if value.is_object() => into.idle(
            path,
            "tokenisers remember as `kvIndex.tokenizerMemory` says",
        ),
        "kvBlockScorerConfig" | "scorerConfig" | "prefixStoreConfig" => {
            Err("expected a map of keys".to_owned())
        }
        _ => unknown(key),
    }
}

fn blocks(into: &mut Into<'_>, key: &str, value: &Value, path: &str) -> Taken {
    match key {
        "enableMetrics" => match flag(value)? {
            true => Ok(()),
            false => into.idle(path, "metrics are always on"),
        },
        "metricsLoggingInterval" => {
            text(value)?;
            into.idle(path, "metrics are not logged")
        }
        "maxPrefixBlocksToMatch" => into.idle(path, "prompts are matched as a whole"),
        "inMemoryConfig" => each(into, value, path, |into, key, value, path| match key {
            "size" | "podCacheSize" if value.is_u64() => into.idle(
                path,
                "the index is bounded by `kvIndex.maxBytes`, not by counts",
            ),
            "size" | "podCacheSize" => Err("expected a whole number".to_owned()),
            _ => unknown(key),
        }),
        "costAwareMemoryConfig" => each(into, value, path, |into, key, value, path| match key {
            "size" => {
                let size = size(text(value)?);
                let size = size.ok_or_else(|| "expected a size such as 2GiB".to_owned())?;
                if !into.has(path, "kvIndex.maxBytes") {
                    into.section.max_bytes = size;
                }
                Ok(())
            }
            _ => unknown(key),
        }),
        "redisConfig" | "valkeyConfig" => {
            Err("an index outside of this process is not supported; \
             remove it, each replica listens to all engines"
                .to_owned())
        }
        _ => unknown(key),
    }
}

/// A size as llm-d's libraries write it, `2GiB`, or as Kubernetes does.
fn size(text: &str) -> Option<Size> {
    let bare = text.trim();
    let bare = bare.strip_suffix('B').unwrap_or(bare);
    Size::try_from(bare.to_owned()).ok()
}

/// The tokenisers of the older wrapper. Their sidecar is not needed: engines know the tokens too.
fn pool(into: &mut Into<'_>, value: &Value, path: &str) -> Taken {
    let idle = "prompts are tokenised in this process, or by their engines";
    each(into, value, path, |into, key, value, path| match key {
        "modelName" => {
            let model = text(value)?;
            tokens(into, model, None, path);
            Ok(())
        }
        "workersCount" if value.is_u64() => into.idle(path, idle),
        "uds" | "hf" | "local" if value.is_object() => into.idle(path, idle),
        "workersCount" => Err("expected a whole number".to_owned()),
        "uds" | "hf" | "local" => Err("expected a map of keys".to_owned()),
        _ => unknown(key),
    })
}

fn events_of(into: &mut Into<'_>, value: &Value, path: &str) -> Taken {
    let taken = !into.out.has("kvIndex.events");
    if !taken && !value.is_null() {
        into.out
            .warn(path, "has no effect: `kvIndex.events` is set");
    }
    let (mut discover, mut listen) = (None, None);
    let mut events = into.section.events.clone();
    "connect".clone_into(&mut events.mode);
    each(into, value, path, |into, key, value, path| match key {
        "topicFilter" => {
            text(value)?.clone_into(&mut events.topic);
            Ok(())
        }
        "concurrency" if value.is_u64() => into.idle(path, "each source is taken in on its own"),
        "concurrency" => Err("expected a whole number".to_owned()),
        "engineType" => match text(value)? {
            engine @ ("vllm" | "sglang") => {
                if !into.has(path, "telemetry.engine") {
                    engine.clone_into(&mut into.telemetry.engine);
                }
                Ok(())
            }
            _ => Err("expected vllm or sglang".to_owned()),
        },
        "zmqEndpoint" => {
            listen = Some(here(text(value)?)?);
            Ok(())
        }
        "discoverPods" => {
            discover = Some(flag(value)?);
            Ok(())
        }
        "tracing" => match flag(value)? {
            true => into.idle(path, "there are no traces yet"),
            false => Ok(()),
        },
        "podDiscoveryConfig" => each(into, value, path, |into, key, value, path| match key {
            "socketPort" => {
                events.port = port(value)?;
                Ok(())
            }
            "replaySocketPort" => {
                events.replay_port = Some(port(value)?).filter(|port| *port > 0);
                Ok(())
            }
            "podLabelSelector" | "podNamespace" => {
                text(value)?;
                into.idle(path, "endpoints come from `pools`")
            }
            _ => unknown(key),
        }),
        _ => unknown(key),
    })?;
    match (discover, listen.is_some()) {
        (Some(true), true) => {
            let what = "has no effect: `zmqEndpoint` is set, and engines connect to it";
            into.out.warn(&format!("{path}.discoverPods"), what);
        }
        (Some(false), false) => "off".clone_into(&mut events.mode),
        (_, false) | (None | Some(false), true) => {}
    }
    if let Some(at) = listen {
        "listen".clone_into(&mut events.mode);
        events.listen = Some(at);
    }
    if taken {
        into.section.events = events;
    }
    Ok(())
}

/// The address of a socket that we bind, as ZMQ writes it.
fn here(endpoint: &str) -> Result<String, String> {
    let wrong = || format!("{} is not like tcp://*:5557", shown(endpoint));
    let at = endpoint.strip_prefix("tcp://").ok_or_else(wrong)?;
    let at = match at.strip_prefix("*:") {
        Some(port) => format!("0.0.0.0:{port}"),
        None => at.to_owned(),
    };
    let bound: Result<std::net::SocketAddr, _> = at.parse();
    bound.map(|_| at).map_err(|_| wrong())
}

/// Parameters of the token producer: a model and who renders its prompts.
pub(super) fn token_producer(into: &mut Into<'_>, parameters: &Value, path: &str) -> Taken {
    let mut model = None;
    let (mut service, mut timeout) = (None, None);
    let mut engines = false;
    let mut rendered = false;
    each(into, parameters, path, |into, key, value, path| match key {
        "modelName" => {
            model = Some(text(value)?.to_owned());
            Ok(())
        }
        "vllm" => {
            rendered = true;
            each(into, value, path, |into, key, value, path| match key {
                "endpointDiscovery" if value.is_object() => {
                    engines = true;
                    into.idle(path, "all engines of the model are asked, at `/tokenize`")
                }
                _ => renderer(into, key, value, path, &mut service, &mut timeout),
            })
        }
        "udsTokenizerConfig" if value.is_object() => {
            rendered = true;
            engines = true;
            into.idle(path, "the model's engines are asked, at `/tokenize`")
        }
        // Prompts without a tokeniser go by their text here, which is an estimate too.
        "estimate" if value.is_object() => Ok(()),
        "udsTokenizerConfig" | "estimate" => Err("expected a map of keys".to_owned()),
        _ => unknown(key),
    })?;
    match model {
        Some(model) => {
            let service = (!engines).then(|| service.unwrap_or_else(|| LOCAL.to_owned()));
            tokens(into, &model, service, path);
            if !into.out.has("kvIndex.engineTokens.timeout") {
                into.section.engine_tokens.timeout = timeout.unwrap_or(RENDER_TIMEOUT);
            }
            Ok(())
        }
        None if rendered => Err("`modelName` is missing: the model that is rendered".to_owned()),
        None => Ok(()),
    }
}

/// llm-d's defaults.
const LOCAL: &str = "http://localhost:8000";
const RENDER_TIMEOUT: Span = Span(std::time::Duration::from_secs(5));

fn renderer(
    into: &mut Into<'_>,
    key: &str,
    value: &Value,
    path: &str,
    url: &mut Option<String>,
    timeout: &mut Option<Span>,
) -> Taken {
    match key {
        "url" | "http" => {
            let given = text(value)?;
            if given.starts_with("https://") {
                return Err("rendering by https is not supported yet".to_owned());
            }
            if service(given).is_none() {
                return Err(format!("{} is not like http://HOST:PORT", shown(given)));
            }
            *url = Some(given.to_owned());
            Ok(())
        }
        "timeout" => {
            *timeout = Some(span(value)?);
            into.has(path, "kvIndex.engineTokens.timeout");
            Ok(())
        }
        "mmTimeout" => {
            span(value)?;
            into.idle(path, "`kvIndex.engineTokens.timeout` is for all prompts")
        }
        "messagesRenderMode" => {
            text(value)?;
            into.idle(path, "requests of that API go by load")
        }
        "prefillOnly" | "insecureSkipVerify" => match flag(value)? {
            true => into.idle(path, "the request is rendered as it came"),
            false => Ok(()),
        },
        "caCertPath" | "clientCertPath" | "clientKeyPath" => Err(not_yet(key)),
        _ => unknown(key),
    }
}

/// A model whose tokens an engine or a service makes, unless the file says otherwise.
fn tokens(into: &mut Into<'_>, model: &str, service: Option<String>, path: &str) {
    if model.is_empty() {
        into.out.fault(path, "an empty text is no model");
        return;
    }
    let known = into.section.has_model(model);
    if known && into.out.has("kvIndex.tokenizers") {
        let what = format!("has no effect: `kvIndex.tokenizers` has {}", shown(model));
        into.out.warn(path, what);
    }
    if !known {
        into.section.add_model(model, service);
    }
}
