//! Completions, embeddings, tokens.

use serde_json::{Value, json};

use crate::{
    client::full,
    client::{post, read, request, send},
    instant,
};

#[tokio::test]
async fn prompts_come_in_four_forms() {
    let engine = instant().await;
    let ask = async |prompt: Value| {
        let body = json!({"model": "m", "prompt": prompt, "max_tokens": 3});
        post(engine.address(), "/v1/completions", &body)
            .await
            .json()
    };
    let ids = post(
        engine.address(),
        "/tokenize",
        &json!({"prompt": "one two three"}),
    )
    .await
    .json()["tokens"]
        .clone();
    let text = ask(json!("one two three")).await;
    let tokens = ask(ids.clone()).await;
    assert_eq!(text["choices"], tokens["choices"]);
    assert_eq!(
        text["usage"]["prompt_tokens"],
        ids.as_array().unwrap().len()
    );
    let both = ask(json!(["one two three", "four"])).await;
    assert_eq!(both["choices"][0]["text"], text["choices"][0]["text"]);
    assert_eq!(both["choices"][1]["index"], 1);
    assert_eq!(both["usage"]["completion_tokens"], 6);
    let lists = ask(json!([ids, [1, 2]])).await;
    assert_eq!(lists["choices"][0]["text"], text["choices"][0]["text"]);
    assert_eq!(
        lists["usage"]["prompt_tokens"],
        ids.as_array().unwrap().len() + 2
    );
    // Without a limit a completion has 16 tokens.
    let body = json!({"prompt": "one"});
    let answer = post(engine.address(), "/v1/completions", &body)
        .await
        .json();
    assert_eq!(answer["usage"]["completion_tokens"], 16);
}

#[tokio::test]
async fn a_repeated_prompt_is_cached_until_the_reset() {
    let engine = instant().await;
    let prompt: Vec<u32> = (0..64).collect();
    let cached = async || {
        let body = json!({"prompt": prompt, "max_tokens": 1});
        let answer = post(engine.address(), "/v1/completions", &body)
            .await
            .json();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
    };
    assert_eq!(cached().await, 0);
    assert_eq!(cached().await, 48);
    let reset = post(engine.address(), "/reset_prefix_cache", &json!({}))
        .await
        .json();
    assert_eq!(reset, json!({"success": true}));
    assert_eq!(cached().await, 0);
}

#[tokio::test]
async fn generated_text_reads_back_as_its_tokens() {
    let engine = instant().await;
    let body = json!({"prompt": "hello", "max_tokens": 20, "return_token_ids": true});
    let choice = post(engine.address(), "/v1/completions", &body)
        .await
        .json()["choices"][0]
        .clone();
    let read = post(
        engine.address(),
        "/tokenize",
        &json!({"prompt": choice["text"]}),
    )
    .await
    .json();
    assert_eq!(read["tokens"], choice["token_ids"]);
    let back = post(
        engine.address(),
        "/detokenize",
        &json!({"tokens": read["tokens"]}),
    )
    .await
    .json();
    assert_eq!(back["prompt"], choice["text"]);
}

#[tokio::test]
async fn embeddings_are_unit_vectors_of_their_input() {
    let engine = instant().await;
    let ask = async |more: Value| {
        let mut body = json!({"model": "m"});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        post(engine.address(), "/v1/embeddings", &body).await
    };
    let both = ask(json!({"input": ["one two", "three"], "dimensions": 8}))
        .await
        .json();
    assert_eq!(both["object"], "list");
    assert_eq!(both["data"][1]["index"], 1);
    let vector: Vec<f64> = both["data"][0]["embedding"]
        .as_array()
        .unwrap()
        .iter()
        .map(|value| value.as_f64().unwrap())
        .collect();
    assert_eq!(vector.len(), 8);
    assert!((vector.iter().map(|value| value * value).sum::<f64>() - 1.0).abs() < 1e-5);
    assert_eq!(
        both["usage"]["total_tokens"],
        both["usage"]["prompt_tokens"]
    );
    let one = ask(json!({"input": "one two", "dimensions": 8}))
        .await
        .json();
    assert_eq!(one["data"][0]["embedding"], both["data"][0]["embedding"]);
    // 256 floats of 4 bytes in base64.
    let coded = ask(json!({"input": "one two", "encoding_format": "base64"}))
        .await
        .json();
    assert_eq!(coded["data"][0]["embedding"].as_str().unwrap().len(), 1368);
    assert_eq!(ask(json!({"input": []})).await.status, 400);
    assert_eq!(ask(json!({})).await.status, 400);
    let unknown = json!({"input": "one", "model": "nope"});
    assert_eq!(ask(unknown).await.status, 404);
}

#[tokio::test]
async fn a_head_request_has_no_body() {
    let engine = instant().await;
    let reply = read(
        send(
            engine.address(),
            request("HEAD", "/v1/models", &[], full("")),
        )
        .await,
    )
    .await;
    assert_eq!((reply.status, reply.body.as_str()), (200, ""));
}
