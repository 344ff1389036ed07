//! Requests and answers that a real engine took and gave, read piece by piece.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, which is its job"
)]

use std::path::PathBuf;

use serde_json::Value;
use wicketgate_wire::{Api, Usage, UsageObserver, scan_request, scan_unknown};

struct Exchange {
    name: String,
    path: String,
    request: Vec<u8>,
    head: String,
    body: Vec<u8>,
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

/// Undoes chunked transfer coding; a cut last chunk counts as far as it goes.
fn whole(mut chunked: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = find(chunked, b"\r\n") {
        let size = std::str::from_utf8(&chunked[..end]).unwrap();
        let Ok(size) = usize::from_str_radix(size, 16) else {
            break;
        };
        let data = &chunked[end + 2..];
        body.extend_from_slice(&data[..size.min(data.len())]);
        chunked = data.get(size + 2..).unwrap_or_default();
    }
    body
}

/// Splits a capture; some hold the answer alone.
fn exchange(name: String, text: &[u8]) -> Option<Exchange> {
    let split = find(text, b">>> response").unwrap_or(0);
    let (request, response) = text.split_at(split);
    let response = &response[find(response, b"HTTP/1.1 ")?..];
    let target = request.split(|byte| *byte == b'\n').nth(1);
    let target = String::from_utf8_lossy(target.unwrap_or_default());
    let start = find(request, b"\n\n").unwrap_or(0);
    let head_end = find(response, b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&response[..head_end]).to_lowercase();
    let body = &response[head_end + 4..];
    Some(Exchange {
        name,
        path: target.split(' ').nth(1).unwrap_or_default().to_owned(),
        request: request[start..].trim_ascii().to_vec(),
        body: if head.contains("transfer-encoding: chunked") {
            whole(body)
        } else {
            body.to_vec()
        },
        head,
    })
}

fn exchanges() -> Vec<Exchange> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/fixtures/vllm/openai_samples");
    let Ok(entries) = std::fs::read_dir(root) else {
        eprintln!("skipped: captured exchanges absent");
        return Vec::new();
    };
    let mut all = Vec::new();
    for entry in entries {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "http") {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            all.extend(exchange(name, &std::fs::read(&path).unwrap()));
        }
    }
    assert!(all.len() > 60, "{}", all.len());
    all
}

fn usage(tree: &Value) -> Usage {
    let usage = &tree["usage"];
    let count = |a: &str, b: &str| usage[a].as_u64().or(usage[b].as_u64());
    let details = |key: &str| usage[key]["cached_tokens"].as_u64();
    Usage {
        prompt_tokens: count("prompt_tokens", "input_tokens"),
        completion_tokens: count("completion_tokens", "output_tokens"),
        cached_tokens: usage["cache_read_input_tokens"]
            .as_u64()
            .or(details("prompt_tokens_details"))
            .or(details("input_tokens_details")),
    }
}

#[test]
fn request_bodies() {
    let mut seen = 0;
    for exchange in exchanges() {
        let Ok(tree) = serde_json::from_slice::<Value>(&exchange.request) else {
            continue;
        };
        let facts = match Api::from_path(&exchange.path) {
            Api::Unknown => scan_unknown(&exchange.request).unwrap(),
            api => scan_request(api, &exchange.request).unwrap(),
        };
        let model = facts
            .model
            .as_ref()
            .map(|model| model.decode(&exchange.request));
        assert_eq!(
            model.as_deref(),
            tree["model"].as_str(),
            "{}",
            exchange.name
        );
        assert_eq!(facts.stream, tree["stream"] == true, "{}", exchange.name);
        assert_eq!(
            facts.max_tokens,
            tree["max_tokens"].as_u64(),
            "{}",
            exchange.name
        );
        seen += 1;
    }
    assert!(seen == 0 || seen > 40, "{seen}");
}

#[test]
fn json_answers() {
    let mut seen = 0;
    for exchange in exchanges() {
        let Ok(tree) = serde_json::from_slice::<Value>(&exchange.body) else {
            continue;
        };
        for size in [1, 7, 1 << 20] {
            let mut observer = UsageObserver::json();
            exchange
                .body
                .chunks(size)
                .for_each(|piece| observer.feed(piece));
            observer.finish();
            assert_eq!(observer.usage(), usage(&tree), "{}", exchange.name);
            assert_eq!(
                observer.error_seen(),
                !tree["error"].is_null(),
                "{}",
                exchange.name
            );
        }
        seen += usize::from(usage(&tree) != Usage::default());
    }
    assert!(seen == 0 || seen > 15, "{seen}");
}

/// The reference: events split at blank lines, each read as a tree, the last word on each count kept.
fn by_trees(body: &str) -> (Usage, u64, bool, bool) {
    let (mut total, mut events, mut error, mut done) = (Usage::default(), 0, false, false);
    for event in body.split("\n\n") {
        let Some(data) = event.strip_prefix("data: ") else {
            continue;
        };
        if data == "[DONE]" {
            done = true;
            continue;
        }
        let tree: Value = serde_json::from_str(data).unwrap_or_default();
        let found = usage(&tree);
        total.prompt_tokens = found.prompt_tokens.or(total.prompt_tokens);
        total.completion_tokens = found.completion_tokens.or(total.completion_tokens);
        total.cached_tokens = found.cached_tokens.or(total.cached_tokens);
        error |= !tree["error"].is_null();
        events += u64::from(tree["choices"].get(0).is_some());
    }
    (total, events, done, error)
}

#[test]
fn streams() {
    let (mut seen, mut counted, mut failed) = (0, 0, 0);
    for exchange in exchanges() {
        let other_dialect = exchange.path.ends_with("generate");
        if !exchange.head.contains("text/event-stream") || other_dialect {
            continue;
        }
        let expected = by_trees(std::str::from_utf8(&exchange.body).unwrap());
        for size in [1, 2, 7, 100, 1 << 20] {
            let mut observer = UsageObserver::sse();
            exchange
                .body
                .chunks(size)
                .for_each(|piece| observer.feed(piece));
            observer.finish();
            let found = (
                observer.usage(),
                observer.events(),
                observer.done(),
                observer.error_seen(),
            );
            assert_eq!(found, expected, "{} by {size}", exchange.name);
            assert!(
                observer.first_content() && !observer.gave_up(),
                "{}",
                exchange.name
            );
        }
        seen += 1;
        counted += usize::from(expected.0.completion_tokens.is_some());
        failed += usize::from(expected.3);
    }
    assert!(
        seen == 0 || (seen > 6 && counted > 3 && failed > 0),
        "{seen} {counted} {failed}"
    );
}
