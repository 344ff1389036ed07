//! Chats: text, usage, cached tokens, streams.

use serde_json::{Value, json};
use wicketgate_sim::engine::{EngineConfig, start};

use crate::{
    client::{full, get, post, post_with, read, request, send_h2},
    instant, until_empty,
};

const PATH: &str = "/v1/chat/completions";

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

#[tokio::test]
async fn the_second_turn_finds_the_first_one_in_the_cache() {
    let engine = instant().await;
    let system =
        json!({"role": "system", "content": "You answer in short sentences, politely. ".repeat(8)});
    let mut messages = vec![
        system,
        user("What is a river, and where does it come from?"),
    ];
    let first = post(
        engine.address(),
        PATH,
        &json!({"messages": messages, "max_tokens": 40}),
    )
    .await
    .json();
    let usage = &first["usage"];
    assert_eq!(usage["completion_tokens"], 40);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(first["choices"][0]["finish_reason"], "length");
    let before = usage["prompt_tokens"].as_u64().unwrap();

    messages.push(first["choices"][0]["message"].clone());
    messages.push(user("And where does it go?"));
    let body = json!({"messages": messages, "max_tokens": 4});
    let second = post(engine.address(), PATH, &body).await.json();
    // Prompt and answer but for its last token were computed; whole blocks of 16 count.
    let expected = (before + 39) / 16 * 16;
    assert_eq!(
        second["usage"]["prompt_tokens_details"]["cached_tokens"],
        expected
    );

    let salted = json!({"messages": messages, "max_tokens": 4, "cache_salt": "tenant"});
    let other = post(engine.address(), PATH, &salted).await.json();
    assert_eq!(other["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    until_empty(&engine).await;
    assert_eq!(engine.stats().ok, 3);
}

#[tokio::test]
async fn a_stream_says_what_the_whole_answer_says() {
    let engine = instant().await;
    let body = json!({"messages": [user("hello")], "max_tokens": 50});
    let whole = post(engine.address(), PATH, &body).await.json();
    let mut body = body;
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let headers = [("content-type", "application/json")];
    let h2 = request("POST", PATH, &headers, full(body.to_string()));
    for reply in [
        post(engine.address(), PATH, &body).await,
        read(send_h2(engine.address(), h2).await).await,
    ] {
        assert_eq!(
            reply.headers["content-type"],
            "text/event-stream; charset=utf-8"
        );
        let events = reply.events();
        // Role, 50 tokens, usage, end.
        assert_eq!(events.len(), 53);
        let text: String = events
            .iter()
            .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
            .collect();
        assert_eq!(whole["choices"][0]["message"]["content"], text);
        assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(events[50]["choices"][0]["finish_reason"], "length");
        assert_eq!(events[51]["choices"], json!([]));
        for key in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(events[51]["usage"][key], whole["usage"][key]);
        }
        assert_eq!(events[52], "[DONE]");
    }
}

#[tokio::test]
async fn text_depends_on_seed_and_prompt_alone() {
    let ask = async |seed, text: &str| {
        let engine = start(EngineConfig {
            seed,
            ..EngineConfig::instant("m")
        })
        .await
        .unwrap();
        let body = json!({"messages": [user(text)], "max_tokens": 8, "n": 2});
        let answer = post(engine.address(), PATH, &body).await.json();
        let content = |choice: usize| {
            answer["choices"][choice]["message"]["content"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        [content(0), content(1)]
    };
    let first = ask(1, "hello").await;
    assert_ne!(first[0], first[1]);
    assert_eq!(first, ask(1, "hello").await);
    assert_ne!(first, ask(2, "hello").await);
    assert_ne!(first, ask(1, "goodbye").await);
}

#[tokio::test]
async fn choices_share_a_prompt_that_counts_once() {
    let engine = instant().await;
    let body = json!({"messages": [user(&"word ".repeat(100))], "max_tokens": 5, "n": 3, "stream": true,
        "stream_options": {"include_usage": true}});
    let events = post(engine.address(), PATH, &body).await.events();
    let one = post(
        engine.address(),
        "/tokenize",
        &json!({"messages": [user(&"word ".repeat(100))]}),
    )
    .await
    .json();
    let usage = &events[events.len() - 2]["usage"];
    assert_eq!(usage["prompt_tokens"], one["count"]);
    assert_eq!(usage["completion_tokens"], 15);
    for choice in 0..3 {
        let mine = events
            .iter()
            .filter(|event| event["choices"][0]["index"] == choice);
        assert_eq!(mine.count(), 6);
    }
    assert_eq!(engine.stats().generated_tokens, 15);
}

#[tokio::test]
async fn without_a_limit_an_answer_stops_by_itself() {
    let engine = instant().await;
    let answer = post(
        engine.address(),
        PATH,
        &json!({"messages": [user("hello")]}),
    )
    .await
    .json();
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let tokens = answer["usage"]["completion_tokens"].as_u64().unwrap();
    assert!((32..288).contains(&tokens), "{tokens}");
    // The room that the context leaves is a limit too.
    let small = EngineConfig {
        max_model_len: Some(30),
        ..EngineConfig::instant("m")
    };
    let small = start(small).await.unwrap();
    let body = json!({"messages": [user("hello")], "max_tokens": 1000});
    let answer = post(small.address(), PATH, &body).await.json();
    assert_eq!(answer["usage"]["total_tokens"], 30);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn ids_models_and_load_reports() {
    let config = EngineConfig {
        models: vec!["m".into(), "alias".into()],
        loras: vec!["food".into()],
        ..EngineConfig::instant("m")
    };
    let engine = start(config).await.unwrap();
    let body = json!({"model": "alias", "messages": [user("hi")], "max_tokens": 2});
    let headers = [
        ("x-request-id", "abc-1"),
        ("endpoint-load-metrics-format", "TEXT"),
    ];
    let reply = post_with(engine.address(), PATH, &headers, &body).await;
    assert_eq!(reply.json()["id"], "chatcmpl-abc-1");
    assert_eq!(reply.json()["model"], "alias");
    let load = "TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.0";
    assert_eq!(reply.headers["endpoint-load-metrics"], load);
    let body =
        json!({"model": "food", "messages": [user("hi")], "max_tokens": 2, "request_id": "body-9"});
    let reply = post(engine.address(), PATH, &body).await.json();
    assert_eq!(
        (&reply["model"], &reply["id"]),
        (&json!("food"), &json!("chatcmpl-body-9"))
    );
    until_empty(&engine).await;
    assert_eq!(engine.stats().served, ["abc-1", "body-9"]);
    let models = get(engine.address(), "/v1/models").await.json();
    let ids: Vec<&Value> = models["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| &model["id"])
        .collect();
    assert_eq!(ids, ["m", "alias", "food"]);
    assert_eq!(models["data"][2]["parent"], "m");
}
