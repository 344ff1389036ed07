//! What a router asks of an engine beside its requests: tokens, where it publishes, whether it sleeps.

use std::{net::SocketAddr, sync::Arc};

use serde_json::{Value, json};
use tokio::net::TcpListener;
use wicketgate_sim::engine::{
    EngineConfig, EngineHandle, FailureConfig, KvEventsConfig, KvPublisher, spawn_with, start,
};

use crate::client::{get, post};

fn tokens(value: &Value) -> Vec<u64> {
    let tokens = value.as_array().unwrap();
    tokens.iter().map(|token| token.as_u64().unwrap()).collect()
}

fn fail(engine: &EngineHandle, change: impl FnOnce(&mut FailureConfig)) {
    let mut failure = FailureConfig::default();
    change(&mut failure);
    engine.set_failure(failure).unwrap();
}

async fn page(engine: &EngineHandle, path: &str) -> Value {
    let reply = get(engine.address(), path).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// All pages that tell of tokens tell the same, unless they are to lie; what is computed does not change with them.
#[tokio::test]
async fn pages_of_tokens_agree_and_lie_when_asked_to() {
    let engine = start(EngineConfig::instant("m")).await.unwrap();
    let to = engine.address();
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 1, "return_token_ids": true});
    let answer = post(to, "/v1/chat/completions", &chat).await.json();
    let used = tokens(&answer["prompt_token_ids"]);
    let prompt = json!({"model": "m", "prompt": "Hello there", "max_tokens": 1});
    for skew in [0_u32, 5] {
        fail(&engine, |failure| failure.tokenize_skew = skew);
        let expected: Vec<u64> = used.iter().map(|token| token + u64::from(skew)).collect();
        let told = post(to, "/tokenize", &chat).await.json();
        assert_eq!(tokens(&told["tokens"]), expected);
        let rendered = post(to, "/v1/chat/completions/render", &chat).await.json();
        assert_eq!(tokens(&rendered["token_ids"]), expected);
        let told = post(to, "/tokenize", &prompt).await.json();
        let rendered = post(to, "/v1/completions/render", &prompt).await.json();
        assert_eq!(rendered[0]["token_ids"], told["tokens"]);
        let answer = post(to, "/v1/chat/completions", &chat).await.json();
        assert_eq!(tokens(&answer["prompt_token_ids"]), used);
    }
    fail(&engine, |failure| failure.tokenize_status = Some(501));
    for path in ["/tokenize", "/v1/chat/completions/render"] {
        assert_eq!(post(to, path, &chat).await.status, 501, "{path}");
    }
    let unknown = json!({"model": "n", "messages": [{"role": "user", "content": "a"}]});
    fail(&engine, |_| {});
    let reply = post(to, "/v1/chat/completions/render", &unknown).await;
    assert_eq!(reply.status, 404);
    let odd = FailureConfig {
        tokenize_status: Some(200),
        ..FailureConfig::default()
    };
    assert!(engine.set_failure(odd).is_err());
}

#[tokio::test]
async fn it_says_where_it_publishes() {
    let engine = start(EngineConfig::instant("m")).await.unwrap();
    let sources = page(&engine, "/kv_event_sources").await;
    assert_eq!(sources["0"]["enable_kv_cache_events"], false);
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let publisher = KvPublisher::start(KvEventsConfig {
        replay: Some(any),
        ..KvEventsConfig::at(any, "kv@pod@m".to_owned())
    });
    let publisher = Arc::new(publisher.await.unwrap());
    let listener = TcpListener::bind(any).await.unwrap();
    let engine = spawn_with(
        listener,
        EngineConfig::instant("m"),
        Some(publisher.clone()),
    )
    .unwrap();
    let sources = page(&engine, "/kv_event_sources").await;
    let (events, replay) = (publisher.events(), publisher.replay().unwrap());
    let rank = &sources["0"];
    assert_eq!(
        (&rank["endpoint"], &rank["replay_endpoint"], &rank["topic"]),
        (
            &json!(format!("tcp://*:{}", events.port())),
            &json!(format!("tcp://{replay}")),
            &json!("kv@pod@m")
        )
    );
}

/// Asleep it computes nothing and has no cache, and its metrics say so.
#[tokio::test]
async fn it_sleeps_and_wakes_up() {
    let engine = start(EngineConfig::instant("m")).await.unwrap();
    let to = engine.address();
    let prompt: Vec<u32> = (0..65).collect();
    let body = json!({"model": "m", "prompt": prompt, "max_tokens": 1});
    let cached = |answer: Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    post(to, "/v1/completions", &body).await;
    let again = post(to, "/v1/completions", &body).await.json();
    assert_eq!(cached(again), Some(64));
    let state = |name: &str| {
        let page = engine.metrics();
        let wanted = format!("sleep_state=\"{name}\"");
        let line = page.lines().find(|line| line.contains(&wanted)).unwrap();
        line.ends_with(" 1") || line.ends_with(" 1.0")
    };
    for (path, name) in [
        ("/sleep", "weights_offloaded"),
        ("/sleep?level=2", "discard_all"),
    ] {
        assert!(state("awake"));
        assert_eq!(post(to, path, &json!({})).await.status, 200);
        assert!(state(name) && !state("awake"));
        assert_eq!(page(&engine, "/is_sleeping").await["is_sleeping"], true);
        let waiting = tokio::spawn({
            let body = body.clone();
            async move { post(to, "/v1/completions", &body).await.json() }
        });
        while engine.stats().waiting == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(post(to, "/wake_up", &json!({})).await.status, 200);
        assert_eq!(cached(waiting.await.unwrap()), Some(0));
    }
    assert_eq!(post(to, "/sleep?level=9", &json!({})).await.status, 400);
}
