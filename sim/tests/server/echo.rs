//! Echo and trailers, over both protocols.

use http::{HeaderMap, HeaderValue};
use http_body_util::{BodyExt, channel::Channel};
use hyper::body::Bytes;
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    client::{Body, Reply, full, read, request, send, send_h2},
    instant,
};

/// Two chunks, then a trailer.
fn with_trailer() -> Body {
    let (mut sender, body) = Channel::<Bytes>::new(4);
    tokio::spawn(async move {
        sender
            .send_data(Bytes::from_static(b"hello "))
            .await
            .unwrap();
        sender
            .send_data(Bytes::from_static(b"world"))
            .await
            .unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", HeaderValue::from_static("11"));
        let _ = sender.send_trailers(trailers).await;
    });
    body.boxed()
}

const HEADERS: [(&str, &str); 4] = [
    ("x-emulator-echo", "1"),
    ("x-twice", "a"),
    ("x-twice", "b"),
    ("trailer", "x-sum"),
];

fn check(reply: &Reply, version: &str) {
    let echo = reply.json();
    assert_eq!(echo["method"], "PUT");
    assert_eq!(echo["path"], "/any/where?x=1");
    assert_eq!(echo["version"], version);
    assert_eq!(echo["body_len"], 11);
    assert_eq!(
        echo["body_xxh3_hex"],
        format!("{:016x}", xxh3_64(b"hello world"))
    );
    assert_eq!(echo["trailers"], json!([["x-sum", "11"]]));
    let twice: Vec<&Value> = echo["headers"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|pair| pair[0] == "x-twice")
        .map(|pair| &pair[1])
        .collect();
    assert_eq!(twice, ["a", "b"]);
}

#[tokio::test]
async fn what_arrived_comes_back() {
    let engine = instant().await;
    let call = || request("PUT", "/any/where?x=1", &HEADERS, with_trailer());
    check(
        &read(send(engine.address(), call()).await).await,
        "HTTP/1.1",
    );
    check(
        &read(send_h2(engine.address(), call()).await).await,
        "HTTP/2.0",
    );
}

#[tokio::test]
async fn answers_end_with_trailers_when_asked() {
    let engine = instant().await;
    let body = json!({"prompt": "hi", "max_tokens": 3, "stream": true}).to_string();
    let headers = [
        ("content-type", "application/json"),
        ("te", "trailers"),
        ("x-emulator-trailers", "1"),
    ];
    let call = || request("POST", "/v1/completions", &headers, full(body.clone()));
    let h1 = read(send(engine.address(), call()).await).await;
    let h2 = read(send_h2(engine.address(), call()).await).await;
    let echo = [
        ("te", "trailers"),
        ("x-emulator-trailers", "1"),
        ("x-emulator-echo", "1"),
    ];
    let echo = read(send(engine.address(), request("POST", "/", &echo, full("x"))).await).await;
    for reply in [h1, h2, echo] {
        assert_eq!(
            reply.headers["trailer"],
            "x-emulator-body-len, x-emulator-body-xxh3"
        );
        assert_eq!(
            reply.trailers["x-emulator-body-len"],
            reply.body.len().to_string()
        );
        let hash = format!("{:016x}", xxh3_64(reply.body.as_bytes()));
        assert_eq!(reply.trailers["x-emulator-body-xxh3"], hash);
    }
}

#[tokio::test]
async fn a_long_body_is_hashed_whole() {
    let engine = instant().await;
    let body: Vec<u8> = (0..3_000_000_u32).map(|at| at.to_le_bytes()[0]).collect();
    let call = request("POST", "/", &[("x-emulator-echo", "1")], full(body.clone()));
    let echo = read(send(engine.address(), call).await).await.json();
    assert_eq!(echo["body_len"], body.len());
    assert_eq!(echo["body_xxh3_hex"], format!("{:016x}", xxh3_64(&body)));
}
