//! Plugins that llm-d lists and that are always on here: the scraper, its reader, the parsers, the counts of
//! requests in flight. Listing them changes nothing; what their parameters say is taken over or refused.

use serde_json::{Map, Value};

use super::{name_of, precise};
use crate::{
    decode::{Decoded, not_yet},
    raw::{Raw, Ref},
    scalar::shown,
    units::Span,
};

/// What a built-in plugin is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Source,
    Extractor,
    Parser,
    Producer,
    Prefixes,
    /// llm-d's exact index.
    Precise,
    /// llm-d's tokens.
    Tokens,
    /// Tells of endpoints that come and go, which is always so here.
    Notices,
}

const BUILT_IN: [(&str, Role); 10] = [
    ("metrics-data-source", Role::Source),
    ("core-metrics-extractor", Role::Extractor),
    ("openai-parser", Role::Parser),
    ("passthrough-parser", Role::Parser),
    ("inflight-load-producer", Role::Producer),
    ("approx-prefix-cache-producer", Role::Prefixes),
    ("precise-prefix-cache-producer", Role::Precise),
    ("token-producer", Role::Tokens),
    ("tokenizer", Role::Tokens),
    ("endpoint-notification-source", Role::Notices),
];

/// The built-in types.
pub(super) fn types() -> impl Iterator<Item = &'static &'static str> {
    BUILT_IN.iter().map(|(name, _)| name)
}

/// What the type is for, if it is built in.
pub(super) fn role(type_name: &str) -> Option<Role> {
    let found = BUILT_IN.iter().find(|(name, _)| *name == type_name)?;
    Some(found.1)
}

/// Checks sections that refer to plugins of the data layer and to parsers.
pub(super) fn references(raw: &Raw, out: &mut Decoded) {
    if let Some(layer) = &raw.data_layer {
        if !layer.inject_defaults {
            let what = "the built-in scraper always runs; remove this key";
            out.fault("dataLayer.injectDefaults", what);
        }
        for (index, source) in layer.sources.iter().enumerate() {
            let path = format!("dataLayer.sources[{index}]");
            refer(raw, &path, &source.plugin_ref, Role::Source, out);
            for (index, extractor) in source.extractors.iter().enumerate() {
                let path = format!("{path}.extractors[{index}]");
                refer(raw, &path, &extractor.plugin_ref, Role::Extractor, out);
            }
        }
    }
    if let Some(handler) = &raw.request_handler {
        for (index, parser) in handler.parsers.iter().enumerate() {
            let path = format!("requestHandler.parsers[{index}]");
            refer(raw, &path, &parser.plugin_ref, Role::Parser, out);
        }
    }
    if let Some(Ref { plugin_ref }) = &raw.parser {
        refer(raw, "parser", plugin_ref, Role::Parser, out);
        out.warn("parser", "is deprecated; use `requestHandler.parsers`");
    }
}

fn refer(raw: &Raw, path: &str, name: &str, wanted: Role, out: &mut Decoded) {
    let path = format!("{path}.pluginRef");
    let declared = raw.plugins.iter().flatten();
    let type_name = declared
        .clone()
        .find(|plugin| name_of(plugin) == name)
        .map_or(name, |plugin| &plugin.type_name);
    let found = match type_name {
        // The wrapper brings a producer.
        precise::SCORER => Some(Role::Precise),
        _ => role(type_name),
    };
    match found {
        Some(role) if role == wanted => {}
        Some(Role::Notices) if wanted == Role::Source => {}
        Some(Role::Precise) if wanted == Role::Extractor => {}
        Some(_) => {
            let wanted = match wanted {
                Role::Source => "data source",
                Role::Extractor => "extractor",
                Role::Parser => "parser",
                Role::Producer | Role::Prefixes | Role::Precise | Role::Tokens | Role::Notices => {
                    "producer"
                }
            };
            out.fault(&path, format!("{} is no {wanted}", shown(name)));
        }
        None if super::names::KNOWN.contains(&type_name) => out.fault(&path, not_yet(name)),
        None => out.fault(&path, format!("no such plugin is named {}", shown(name))),
    }
}

/// Takes over what the parameters of built-in plugins say.
pub(super) fn parameters(raw: &mut Raw, out: &mut Decoded) {
    let none = Map::new();
    let mut plugins = raw.plugins.iter().flatten();
    let produced = plugins.any(|plugin| role(&plugin.type_name) == Some(Role::Precise));
    for (index, plugin) in raw.plugins.iter().flatten().enumerate() {
        let path = format!("plugins[{index}].parameters");
        let wraps = plugin.type_name == precise::SCORER;
        if wraps && produced {
            if !plugin.parameters.is_null() {
                let what = "has no effect: there is a `precise-prefix-cache-producer`";
                out.warn(&path, what);
            }
            continue;
        }
        let role = match wraps {
            true => Some(Role::Precise),
            false => role(&plugin.type_name),
        };
        let Some(role) = role else {
            continue;
        };
        if matches!(role, Role::Precise | Role::Tokens) {
            let mut into = precise::Into {
                section: raw.kv_index.get_or_insert_default(),
                telemetry: &mut raw.telemetry,
                out: &mut *out,
            };
            let taken = match role {
                Role::Precise => precise::producer(&mut into, &plugin.parameters, &path),
                _ => precise::token_producer(&mut into, &plugin.parameters, &path),
            };
            if let Err(what) = taken {
                out.fault(&path, what);
            }
            continue;
        }
        if role == Role::Prefixes {
            // To list it is to ask for what it knows.
            raw.kv_index.get_or_insert_default();
        }
        let parameters = match &plugin.parameters {
            Value::Null => &none,
            Value::Object(map) => map,
            other => {
                out.fault(&path, format!("expected a map of keys, not {other}"));
                continue;
            }
        };
        for (key, value) in parameters.iter().filter(|(_, value)| !value.is_null()) {
            let path = format!("{path}.{key}");
            let taken = match role {
                Role::Source => source(&mut raw.telemetry, key, value, &path, out),
                Role::Extractor => extractor(&mut raw.telemetry, key, value, &path, out),
                Role::Producer => producer(key, value),
                Role::Prefixes => {
                    let section = raw.kv_index.get_or_insert_default();
                    prefixes(section, key, value, &path, out)
                }
                Role::Parser | Role::Notices | Role::Precise | Role::Tokens => Err(unknown(key)),
            };
            if let Err(what) = taken {
                out.fault(&path, what);
            }
        }
    }
}

fn unknown(key: &str) -> String {
    format!("unknown parameter {}", shown(key))
}

/// Where `telemetry` has the key itself, that one holds.
fn twice(out: &mut Decoded, path: &str, key: &str) -> bool {
    let there = out.has(&format!("telemetry.{key}"));
    if there {
        out.warn(path, format!("has no effect: `telemetry.{key}` is set"));
    }
    there
}

fn source(
    telemetry: &mut crate::raw::Telemetry,
    key: &str,
    value: &Value,
    path: &str,
    out: &mut Decoded,
) -> Result<(), String> {
    match (key, value) {
        ("scheme", Value::String(scheme)) if scheme == "http" => Ok(()),
        ("scheme", Value::String(scheme)) if scheme == "https" => {
            Err("scraping by https is not supported yet; remove it".to_owned())
        }
        ("scheme", _) => Err("expected http or https".to_owned()),
        // Of no meaning without https, in llm-d too.
        ("insecureSkipVerify", Value::Bool(_)) => Ok(()),
        ("insecureSkipVerify", _) => Err("expected true or false".to_owned()),
        ("path", Value::String(text)) => {
            if !twice(out, path, key) {
                telemetry.path.clone_from(text);
            }
            Ok(())
        }
        ("path", _) => Err("expected a path such as /metrics".to_owned()),
        ("interval", value) => {
            let span = value.as_str().map(str::to_owned).map(Span::try_from);
            let Some(Ok(span)) = span else {
                return Err("expected a duration such as 50ms".to_owned());
            };
            if !twice(out, path, key) {
                telemetry.interval = span;
            }
            Ok(())
        }
        ("port" | "caCertPath" | "clientCertPath" | "clientKeyPath", _) => Err(not_yet(key)),
        _ => Err(unknown(key)),
    }
}

fn extractor(
    telemetry: &mut crate::raw::Telemetry,
    key: &str,
    value: &Value,
    path: &str,
    out: &mut Decoded,
) -> Result<(), String> {
    match (key, value) {
        ("defaultEngine", Value::String(engine)) if engine == "vllm" || engine == "sglang" => {
            if !twice(out, path, "engine") {
                telemetry.engine.clone_from(engine);
            }
            Ok(())
        }
        ("defaultEngine", _) => {
            Err("expected vllm or sglang; others are not supported yet".to_owned())
        }
        ("engineConfigs", _) => Err(not_yet(key)),
        _ => Err(unknown(key)),
    }
}

/// Where `kvIndex` has the key itself, that one holds.
fn prefixes(
    section: &mut crate::kvindex::Section,
    key: &str,
    value: &Value,
    path: &str,
    out: &mut Decoded,
) -> Result<(), String> {
    let ours = match key {
        "blockSizeTokens" => "blockSize",
        "lruCapacityPerServer" => "approximateBlocks",
        "autoTune" if value.is_boolean() => {
            if value == false {
                out.warn(path, "has no effect: what engines report goes first");
            }
            return Ok(());
        }
        "autoTune" => return Err("expected true or false".to_owned()),
        "maxPrefixTokensToMatch" | "maxPrefixBlocksToMatch" if value.is_u64() => {
            out.warn(path, "has no effect: prompts are matched as a whole");
            return Ok(());
        }
        "maxPrefixTokensToMatch" | "maxPrefixBlocksToMatch" => {
            return Err("expected a whole number".to_owned());
        }
        _ => return Err(unknown(key)),
    };
    if out.has(&format!("kvIndex.{ours}")) {
        out.warn(path, format!("has no effect: `kvIndex.{ours}` is set"));
        return Ok(());
    }
    section.set(ours, value)
}

/// Output tokens are not part of the counts here, which is llm-d's default too.
fn producer(key: &str, value: &Value) -> Result<(), String> {
    match (key, value) {
        ("addEstimatedOutputTokens", Value::Bool(false)) => Ok(()),
        ("addEstimatedOutputTokens", Value::Bool(true)) => {
            Err("counting estimated output tokens is not supported yet; remove it".to_owned())
        }
        ("addEstimatedOutputTokens", _) => Err("expected true or false".to_owned()),
        // The index is our own, whatever its name.
        ("prefixMatchInfoProducerName", Value::String(_)) => Ok(()),
        ("prefixMatchInfoProducerName", _) => Err("expected a text".to_owned()),
        ("outputRatio" | "maxEstimatedOutputTokens", Value::Number(_)) => Ok(()),
        ("outputRatio" | "maxEstimatedOutputTokens", _) => Err("expected a number".to_owned()),
        _ => Err(unknown(key)),
    }
}
