//! Our answers have the shapes of vLLM's, key by key.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    client::{Reply, get, post},
    fixtures, instant,
};

/// Paths to all values, with their types; `null` may stand where the other has a value.
fn shape(value: &Value) -> BTreeSet<String> {
    fn walk(value: &Value, path: &str, all: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                all.insert(format!("{path} object"));
                fields
                    .iter()
                    .for_each(|(name, value)| walk(value, &format!("{path}.{name}"), all));
            }
            Value::Array(items) => {
                all.insert(format!("{path} array"));
                items
                    .iter()
                    .for_each(|value| walk(value, &format!("{path}[]"), all));
            }
            Value::String(_) => drop(all.insert(format!("{path} string"))),
            Value::Number(_) => drop(all.insert(format!("{path} number"))),
            Value::Bool(_) => drop(all.insert(format!("{path} bool"))),
            Value::Null => drop(all.insert(format!("{path} null"))),
        }
    }
    let mut all = BTreeSet::new();
    walk(value, "", &mut all);
    all
}

fn same(name: &str, ours: &Reply, events: bool) {
    let Some((status, theirs)) = fixtures::answer(name) else {
        return;
    };
    assert_eq!(ours.status, status, "{name}");
    if !events {
        let theirs = &theirs[0];
        assert_eq!(shape(&ours.json()), shape(theirs), "{name}");
        return;
    }
    // Text comes in other pieces; first, middle and last events must be alike.
    let ours = ours.events();
    let ends = |events: &[Value]| -> Vec<BTreeSet<String>> {
        let last = events.len() - 3;
        [0, 1, last, last + 1, last + 2]
            .iter()
            .map(|at| shape(&events[*at]))
            .collect()
    };
    assert_eq!(ends(&ours), ends(&theirs), "{name}");
    assert_eq!(ours.last(), Some(&json!("[DONE]")));
}

/// The captured requests, as far as they differ from each other.
fn chat(more: &Value) -> Value {
    let text =
        "The gateway receives a request and must decide which replica should answer it. ".repeat(6);
    let messages = json!([
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": text},
    ]);
    let mut body = json!({"model": "m", "messages": messages, "max_tokens": 6, "temperature": 0});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[tokio::test]
async fn chats() {
    let engine = instant().await;
    let path = "/v1/chat/completions";
    for (name, more) in [
        ("chat", json!({})),
        ("chat_repeat_cached", json!({})),
        ("chat_n2", json!({"n": 2, "max_tokens": 3})),
        ("chat_return_token_ids", json!({"return_token_ids": true})),
    ] {
        same(
            name,
            &post(engine.address(), path, &chat(&more)).await,
            false,
        );
    }
    let usage = json!({"include_usage": true});
    let continuous = json!({"include_usage": true, "continuous_usage_stats": true});
    for (name, more) in [
        (
            "chat_stream_usage",
            json!({"stream": true, "stream_options": usage}),
        ),
        ("chat_stream_no_usage", json!({"stream": true})),
        (
            "chat_stream_continuous_usage",
            json!({"stream": true, "stream_options": continuous}),
        ),
        (
            "chat_stream_token_ids",
            json!({"stream": true, "return_token_ids": true}),
        ),
    ] {
        same(
            name,
            &post(engine.address(), path, &chat(&more)).await,
            true,
        );
    }
}

#[tokio::test]
async fn completions() {
    let engine = instant().await;
    let path = "/v1/completions";
    let ids: Vec<u32> = (300..340).collect();
    for (name, body) in [
        (
            "completions",
            json!({"prompt": "What is the capital of the country?", "max_tokens": 8}),
        ),
        (
            "completions_batch",
            json!({"prompt": ["one two three", "four five six"], "max_tokens": 3}),
        ),
        (
            "completions_token_prompt",
            json!({"prompt": ids, "max_tokens": 4, "return_token_ids": true}),
        ),
    ] {
        same(name, &post(engine.address(), path, &body).await, false);
    }
    let body = json!({"prompt": "What is the capital?", "max_tokens": 4, "stream": true,
        "stream_options": {"include_usage": true}});
    same(
        "completions_stream",
        &post(engine.address(), path, &body).await,
        true,
    );
}

#[tokio::test]
async fn everything_small() {
    let engine = instant().await;
    for (name, path) in [
        ("version", "/version"),
        ("load", "/load"),
        ("err_404", "/v1/nothing"),
        ("err_405", "/v1/chat/completions"),
    ] {
        same(name, &get(engine.address(), path).await, false);
    }
    let models = get(engine.address(), "/v1/models").await;
    assert_eq!(
        (models.status, models.json()["data"][0]["id"].clone()),
        (200, json!("m"))
    );
    for (name, path, body) in [
        (
            "tokenize",
            "/tokenize",
            json!({"prompt": "The gateway receives a request."}),
        ),
        (
            "tokenize_chat",
            "/tokenize",
            json!({"messages": [{"role": "user", "content": "hello"}],
            "return_token_strs": true}),
        ),
        (
            "detokenize",
            "/detokenize",
            json!({"tokens": [300, 301, 302]}),
        ),
        ("reset_prefix_cache", "/reset_prefix_cache", json!({})),
    ] {
        same(name, &post(engine.address(), path, &body).await, false);
    }
    for path in ["/health", "/ping"] {
        let reply = get(engine.address(), path).await;
        assert_eq!((reply.status, reply.body.as_str()), (200, ""));
    }
}

#[tokio::test]
async fn errors() {
    let engine = instant().await;
    let path = "/v1/chat/completions";
    for (name, body) in [
        ("err_unknown_model", chat(&json!({"model": "nope"}))),
        ("err_missing_messages", json!({"model": "m"})),
        ("err_bad_field_type", chat(&json!({"max_tokens": "many"}))),
        ("err_temperature", chat(&json!({"temperature": -1}))),
        (
            "err_missing_model",
            json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
        ),
        ("err_priority_fcfs", chat(&json!({"priority": 5}))),
    ] {
        same(name, &post(engine.address(), path, &body).await, false);
    }
    let body = json!({"prompt": vec![300; 40_000], "max_tokens": 4});
    same(
        "err_prompt_too_long",
        &post(engine.address(), "/v1/completions", &body).await,
        false,
    );
}
