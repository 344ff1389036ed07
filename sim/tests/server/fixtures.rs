//! Captures of a real vLLM, where they are at hand.

use std::path::PathBuf;

use serde_json::Value;

/// Text of a capture; says on stderr when the captures are not there.
pub(crate) fn read(path: &str) -> Option<String> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures/vllm");
    if !root.is_dir() {
        eprintln!("skipped: {path}: {} absent", root.display());
        return None;
    }
    let bytes = std::fs::read(root.join(path)).unwrap_or_else(|wrong| panic!("{path}: {wrong}"));
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Status and body of a captured answer; the events' data if it is a stream.
pub(crate) fn answer(name: &str) -> Option<(u16, Vec<Value>)> {
    let text = read(&format!("openai_samples/{name}.http"))?;
    let (_, response) = text
        .split_once(">>> response (wire bytes)\n")
        .expect("a response");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head");
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .expect("a status");
    let parse = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
    let events: Vec<Value> = body
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(parse)
        .collect();
    let values = if events.is_empty() {
        vec![parse(body)]
    } else {
        events
    };
    Some((status, values))
}
