//! What a client can do wrong.

use serde_json::{Value, json};
use wicketgate_sim::engine::{EngineConfig, start};

use crate::{
    client::{full, get, post, read, request, send},
    instant, until_empty,
};

#[tokio::test]
async fn bad_requests_say_where() {
    let engine = instant().await;
    let chat = "/v1/chat/completions";
    for (path, body, param) in [
        (chat, json!({"messages": []}), "body.messages"),
        (chat, json!({"messages": "hi"}), "body.messages"),
        (
            chat,
            json!({"messages": [{"content": "hi"}]}),
            "body.messages.role",
        ),
        (
            chat,
            json!({"messages": [{"role": "user", "content": 7}]}),
            "body.messages.content",
        ),
        (
            chat,
            json!({"messages": [{"role": "user"}], "stream": "yes"}),
            "body.stream",
        ),
        (
            chat,
            json!({"messages": [{"role": "user"}], "max_tokens": 0}),
            "max_tokens",
        ),
        (chat, json!({"messages": [{"role": "user"}], "n": 0}), "n"),
        (
            chat,
            json!({"messages": [{"role": "user"}], "n": 100_000}),
            "n",
        ),
        (
            chat,
            json!({"messages": [{"role": "user"}], "max_tokens": -3}),
            "max_tokens",
        ),
        (chat, json!([1]), "body."),
        ("/v1/completions", json!({}), "body.prompt"),
        ("/v1/completions", json!({"prompt": []}), "body.prompt"),
        ("/v1/completions", json!({"prompt": ""}), "prompt"),
        (
            "/v1/completions",
            json!({"prompt": [1, "two"]}),
            "body.prompt",
        ),
        ("/v1/completions", json!({"prompt": [-1]}), "body.prompt"),
        ("/tokenize", json!({}), "body.prompt"),
        ("/detokenize", json!({"tokens": ["x"]}), "body.tokens"),
    ] {
        let reply = post(engine.address(), path, &body).await;
        assert_eq!(reply.status, 400, "{body}: {}", reply.body);
        let error = &reply.json()["error"];
        assert_eq!(
            (&error["param"], &error["code"]),
            (&json!(param), &json!(400)),
            "{body}"
        );
    }
    until_empty(&engine).await;
    let stats = engine.stats();
    assert_eq!((stats.ok, stats.refused, stats.requests), (0, 15, 15));
}

#[tokio::test]
async fn bodies_that_are_no_json_or_too_long() {
    let config = EngineConfig {
        max_body_bytes: 1000,
        ..EngineConfig::instant("m")
    };
    let engine = start(config).await.unwrap();
    let send = async |kind: &str, body: String| {
        let headers = [("content-type", kind)];
        let request = request("POST", "/v1/chat/completions", &headers, full(body));
        read(send(engine.address(), request).await).await
    };
    let broken = send("application/json", r#"{"model":"m", "messages": ["#.into()).await;
    assert_eq!(broken.status, 400);
    assert_eq!(broken.json()["error"]["type"], "Bad Request");
    assert_eq!(broken.json()["error"]["param"], "body.27");
    let text = send("text/plain", "{}".into()).await;
    assert_eq!(text.status, 400);
    assert!(
        text.json()["error"]["message"]
            .as_str()
            .unwrap()
            .contains("Unsupported Media Type")
    );
    let long = send("application/json", format!("\"{}\"", "x".repeat(1000))).await;
    assert_eq!(
        (long.status, &long.json()["error"]["code"]),
        (413, &json!(413))
    );
    let deep = send("application/json", "[".repeat(900)).await;
    assert_eq!(deep.status, 400);
}

#[tokio::test]
async fn wrong_methods_and_paths() {
    let engine = instant().await;
    let wrong = get(engine.address(), "/v1/completions").await;
    assert_eq!(
        (wrong.status, wrong.headers["allow"].to_str().unwrap()),
        (405, "POST")
    );
    let wrong = post(engine.address(), "/metrics", &Value::Null).await;
    assert_eq!(
        (wrong.status, wrong.headers["allow"].to_str().unwrap()),
        (405, "GET")
    );
    assert_eq!(
        post(engine.address(), "/v2/anything", &json!({}))
            .await
            .status,
        404
    );
}

#[tokio::test]
async fn settings_that_make_no_sense_do_not_start() {
    for (config, says) in [
        (
            EngineConfig {
                models: Vec::new(),
                ..EngineConfig::default()
            },
            "model name",
        ),
        (
            EngineConfig {
                profile: "a100".into(),
                ..EngineConfig::default()
            },
            "unknown profile",
        ),
        (
            EngineConfig {
                loras: vec!["x".into(); 65],
                ..EngineConfig::default()
            },
            "at most 64",
        ),
    ] {
        let wrong = start(config).await.unwrap_err().to_string();
        assert!(wrong.contains(says), "{wrong}");
    }
}
