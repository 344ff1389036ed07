//! The prefix index as an operator sees it.

use std::fmt::Write as _;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use wicketgate_wire::{Api, scan_request};

use super::{counter, gauge, label};
use crate::{
    pipeline::Pipeline,
    prefix::{Prefixes, SnapshotCounts},
};

/// What a query of the lookup must be.
const QUERY: &str =
    "expected ?model=NAME&prompt=TEXT, percent-encoded; POST a body for anything else";

/// Sizes, counts and sources of the index; `null` when there is none.
pub(super) fn summary(pipeline: &Pipeline) -> Value {
    let Some(prefixes) = pipeline.prefixes() else {
        return Value::Null;
    };
    let (stats, intake) = (prefixes.stats(), prefixes.intake());
    let (exact, approximate) = prefixes.lives();
    let (tokens, hits) = prefixes.counts().tokens();
    let prompts: serde_json::Map<String, Value> = prefixes
        .counts()
        .prompts()
        .map(|(how, count)| (how.label().to_owned(), count.into()))
        .collect();
    let checks = prefixes.checks();
    let checks: serde_json::Map<String, Value> = checks
        .map(|(checked, count)| (checked.label().to_owned(), count.into()))
        .collect();
    let trust = prefixes.trust();
    let trusted: serde_json::Map<String, Value> = trust
        .map(|(model, trusted)| (model.to_string(), trusted.into()))
        .collect();
    let sources: Vec<Value> = prefixes
        .sources()
        .iter()
        .map(|source| {
            let (stats, counts) = (&source.stats, &source.stats.counts);
            json!({
                "pool": source.pool,
                "endpoint": source.endpoint,
                "rank": stats.id.rank,
                "connected": stats.connected,
                "catching_up": stats.catching_up,
                "waiting": stats.waiting,
                "last": stats.last,
                "lag_s": stats.lag,
                "frames": counts.frames,
                "gaps": counts.cursor.gaps,
                "replays": counts.cursor.replays,
                "restarts": counts.cursor.restarts,
                "resets": counts.cursor.resets,
                "skipped": counts.skipped(),
                "mismatched": counts.applied.mismatched,
                "hashes": {
                    "same": counts.hashes.same,
                    "different": counts.hashes.different,
                    "untold": counts.hashes.untold,
                },
            })
        })
        .collect();
    json!({
        "block_size": prefixes.block_size(),
        "endpoints": {"exact": exact, "approximate": approximate},
        "blocks": stats.blocks,
        "placements": stats.placements,
        "predicted": stats.predicted,
        "orphans": stats.orphans,
        "bytes": stats.bytes,
        "prompts": prompts,
        "token_checks": checks,
        "trusted": trusted,
        "prompt_tokens": tokens,
        "hit_tokens": hits,
        "waiting": intake.waiting,
        "strays": intake.strays,
        "sources": sources,
    })
}

fn refused(status: StatusCode, what: &str) -> (StatusCode, Value) {
    (status, json!({"error": what}))
}

/// [`lookup`] of a text: `model=NAME&prompt=TEXT`, percent-encoded.
pub(super) async fn lookup_text(pipeline: &Pipeline, query: &str) -> (StatusCode, Value) {
    let (mut model, mut prompt) = (None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = value.replace('+', " ");
        let Ok(value) = percent_decode_str(&value).decode_utf8() else {
            return refused(StatusCode::BAD_REQUEST, "the query is not UTF-8");
        };
        match name {
            "model" => model = Some(value.into_owned()),
            "prompt" => prompt = Some(value.into_owned()),
            _ => return refused(StatusCode::BAD_REQUEST, QUERY),
        }
    }
    match (model, prompt) {
        (Some(model), Some(prompt)) => {
            let body = json!({"model": model, "prompt": prompt}).to_string();
            look(pipeline, body.into()).await
        }
        _ => refused(StatusCode::BAD_REQUEST, QUERY),
    }
}

/// Who holds how much of the prompt of a request: its body is what a caller would send. Nothing is forwarded or changed.
pub(super) async fn lookup(pipeline: &Pipeline, body: Incoming) -> (StatusCode, Value) {
    match read(body, pipeline.settings().max_body).await {
        Some(body) => look(pipeline, body).await,
        None => refused(StatusCode::PAYLOAD_TOO_LARGE, "the body is too long"),
    }
}

async fn look(pipeline: &Pipeline, body: Bytes) -> (StatusCode, Value) {
    let Some(prefixes) = pipeline.prefixes() else {
        return refused(StatusCode::NOT_FOUND, "there is no `kvIndex`");
    };
    let chat = scan_request(Api::ChatCompletions, &body);
    let api = match &chat {
        Ok(facts) if facts.messages > 0 => Api::ChatCompletions,
        Ok(_) => Api::Completions,
        Err(error) => return refused(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let Ok(facts) = scan_request(api, &body) else {
        return refused(StatusCode::BAD_REQUEST, "the body cannot be read");
    };
    let model = facts.model.as_ref();
    let model = model.map_or_else(String::new, |model| model.decode(&body).into_owned());
    let content = crate::exchange::content(&facts, body);
    let prefixes = std::sync::Arc::clone(prefixes);
    let told = match prefixes.asks(api, &model, &content) {
        true => Some(prefixes.read_by_engine(api, &model, &content).await),
        false => None,
    };
    let looked = tokio::task::spawn_blocking(move || {
        let read = || prefixes.read(api, &model, &content);
        let (how, prompted) = told.unwrap_or_else(read);
        let block = u64::from(prefixes.block_size());
        let holders: Vec<Value> = prefixes
            .holders(&prompted.keys)
            .iter()
            .map(|holder| {
                let [device, host, disk, all] = holder.blocks;
                json!({
                    "pool": holder.pool,
                    "endpoint": holder.endpoint,
                    "rank": holder.rank,
                    "blocks": {"device": device, "host": host, "disk": disk, "any": all},
                    "tokens": u64::from(all) * block,
                })
            })
            .collect();
        json!({
            "prompt": how.label(),
            "tokens": prompted.tokens,
            "blocks": prompted.keys.len(),
            "endpoints": holders,
        })
    });
    match looked.await {
        Ok(found) => (StatusCode::OK, found),
        Err(_) => refused(StatusCode::INTERNAL_SERVER_ERROR, "the lookup failed"),
    }
}

async fn read(mut body: Incoming, most: u64) -> Option<Bytes> {
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.ok()?.into_data() {
            if (all.len() + data.len()) as u64 > most {
                return None;
            }
            all.extend_from_slice(&data);
        }
    }
    Some(all.freeze())
}

/// What the metrics page says of the index.
pub(super) fn metrics(page: &mut String, prefixes: &Prefixes) -> std::fmt::Result {
    let (stats, intake) = (prefixes.stats(), prefixes.intake());
    let (exact, approximate) = prefixes.lives();
    let (tokens, hits) = prefixes.counts().tokens();
    gauge(
        page,
        "kvindex_endpoints",
        "Endpoints by how they are credited",
    )?;
    for (kind, count) in [("exact", exact), ("approximate", approximate)] {
        writeln!(
            page,
            "wicketgate_kvindex_endpoints{{kind=\"{kind}\"}} {count}"
        )?;
    }
    let gauges = [
        ("kvindex_blocks", "Distinct blocks", stats.blocks as f64),
        (
            "kvindex_placements",
            "Blocks that engines told of, each tier and endpoint counted",
            stats.placements as f64,
        ),
        (
            "kvindex_predicted_blocks",
            "Blocks that picks promise",
            stats.predicted as f64,
        ),
        (
            "kvindex_orphans",
            "Blocks that wait for their predecessor",
            stats.orphans as f64,
        ),
        ("kvindex_bytes", "Memory of the index", stats.bytes as f64),
        (
            "kvevents_connected",
            "Sources of KV events that are connected",
            intake.connected as f64,
        ),
        (
            "kvevents_sources",
            "Sources of KV events",
            intake.sources as f64,
        ),
        (
            "kvevents_waiting",
            "Messages that wait to be applied",
            intake.waiting as f64,
        ),
        (
            "kvevents_lag_seconds",
            "Largest time from an engine's publishing to our applying",
            intake.lag,
        ),
    ];
    for (name, help, value) in gauges {
        gauge(page, name, help)?;
        writeln!(page, "wicketgate_{name} {value}")?;
    }
    counter(
        page,
        "kvindex_prompts",
        "Requests by what became of their prompts",
    )?;
    for (how, count) in prefixes.counts().prompts() {
        let how = how.label();
        writeln!(
            page,
            "wicketgate_kvindex_prompts_total{{how=\"{how}\"}} {count}"
        )?;
    }
    counter(
        page,
        "kvindex_token_checks",
        "Comparisons of our tokens with an engine's, by what they came to",
    )?;
    for (checked, count) in prefixes.checks() {
        let checked = checked.label();
        writeln!(
            page,
            "wicketgate_kvindex_token_checks_total{{result=\"{checked}\"}} {count}"
        )?;
    }
    gauge(
        page,
        "kvindex_tokenizer_trusted",
        "Our tokens of a model were the engine's when they were compared last",
    )?;
    for (model, trusted) in prefixes.trust() {
        let (model, trusted) = (label(model), u8::from(trusted));
        writeln!(
            page,
            "wicketgate_kvindex_tokenizer_trusted{{model=\"{model}\"}} {trusted}"
        )?;
    }
    snapshots(page, prefixes.snapshots())?;
    let counts = &intake.counts;
    counter(
        page,
        "kvindex_hash_checks",
        "Stored blocks by whether their hash is that of their tokens",
    )?;
    let hashes = &counts.hashes;
    for (result, count) in [
        ("same", hashes.same),
        ("different", hashes.different),
        ("untold", hashes.untold),
    ] {
        writeln!(
            page,
            "wicketgate_kvindex_hash_checks_total{{result=\"{result}\"}} {count}"
        )?;
    }
    let counters = [
        (
            "kvindex_prompt_tokens",
            "Prompt tokens of dispatched requests",
            tokens,
        ),
        (
            "kvindex_hit_tokens",
            "Of those, tokens that were cached where the request went",
            hits,
        ),
        ("kvevents_frames", "Messages received", counts.frames),
        (
            "kvevents_skipped",
            "Messages and events that could not be read",
            counts.skipped(),
        ),
        (
            "kvevents_gaps",
            "Times that a message was missing",
            counts.cursor.gaps,
        ),
        (
            "kvevents_replays",
            "Replays asked for",
            counts.cursor.replays,
        ),
        (
            "kvevents_replay_failures",
            "Replays that failed",
            counts.replay_failures,
        ),
        (
            "kvevents_restarts",
            "New lives of publishers",
            counts.cursor.restarts,
        ),
        (
            "kvevents_resets",
            "Times that a source was forgotten because something was missed",
            counts.cursor.resets,
        ),
        (
            "kvevents_mismatched",
            "Blocks whose content differs from what was said before",
            counts.applied.mismatched,
        ),
        (
            "kvevents_strays",
            "Messages on a shared port whose topic nobody waits for",
            intake.strays,
        ),
    ];
    for (name, help, value) in counters {
        counter(page, name, help)?;
        writeln!(page, "wicketgate_{name}_total {value}")?;
    }
    Ok(())
}

/// Snapshots, and what became of the engines in those that came in.
fn snapshots(page: &mut String, counts: &SnapshotCounts) -> std::fmt::Result {
    counter(
        page,
        "kvindex_snapshots",
        "Snapshots of the index by direction and how they ended",
    )?;
    for (transfer, count) in counts.transfers() {
        let (direction, result) = transfer.labels();
        writeln!(
            page,
            "wicketgate_kvindex_snapshots_total{{direction=\"{direction}\",result=\"{result}\"}} {count}"
        )?;
    }
    counter(
        page,
        "kvindex_snapshot_engines",
        "Engines in snapshots that came in by what became of them",
    )?;
    for (fate, count) in counts.fates() {
        let result = fate.label();
        writeln!(
            page,
            "wicketgate_kvindex_snapshot_engines_total{{result=\"{result}\"}} {count}"
        )?;
    }
    counter(
        page,
        "kvindex_snapshot_blocks",
        "Blocks taken over from snapshots",
    )?;
    let blocks = counts.blocks();
    writeln!(page, "wicketgate_kvindex_snapshot_blocks_total {blocks}")
}
