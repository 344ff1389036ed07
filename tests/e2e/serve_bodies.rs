//! The HTTP front: bodies, headers, versions, TLS.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use wicketgate_testkit::{
    certs::Authority,
    client::{Begun, Caller, Version, call, chat, chat_call, full, pieces, raw, request},
    cluster::{Command, Front, addresses, endpoint_lines, engines},
    raw::Raw,
};

use crate::wicketgate;

/// Bodies that go through unchanged, and their paths (C04, C06).
pub(crate) const ACCEPTED: &[(&str, &str)] = &[
    (
        "/v1/chat/completions",
        r#"{"model":"m","tools":null,"messages":[{"role":"user","content":[{"type":"text","text":"hi"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}]},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":[]}]}"#,
    ),
    ("/v1/chat/completions", r#"{"model":"m","messages":[]}"#),
    ("/v1/chat/completions", r#"{"model":"m","messages":"text"}"#),
    (
        "/v1/chat/completions",
        r#"{"model":"m","messages":[{"role":"user","content":7}]}"#,
    ),
    (
        "/v1/chat/completions",
        r#"{"model":"a","model":"b","messages":[]}"#,
    ),
    (
        "/v1/chat/completions",
        "{\"model\":\"m\",\"x\":\"\\ud800\",\"seed\":9007199254740993,\"y\":1.0}",
    ),
    ("/v1/chat/completions", r#" { "prompt" : "hi" } "#),
    ("/v1/completions", r#"{"model":"m","prompt":[1,2,3]}"#),
    ("/v1/completions", r#"{"model":"m","prompt":["a","b"]}"#),
    ("/v1/embeddings", r#"{"model":"m","input":["a",[1,2]]}"#),
    (
        "/v1/rerank",
        r#"{"model":"m","query":"q","documents":["a","b"]}"#,
    ),
    (
        "/v1/chat/completions/render",
        r#"{"model":"m","messages":[]}"#,
    ),
    (
        "/v1/messages?beta=true",
        r#"{"model":"m","system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":"u"}]}"#,
    ),
    (
        "/v1/responses",
        r#"{"model":"m","input":[{"role":"user","content":"u"}]}"#,
    ),
    ("/anything", "not json"),
];

/// Bodies that no chat completion may have: 400.
pub(crate) const REFUSED: &[&[u8]] = &[
    b"[]",
    b"null",
    b"{\"model\":\"\xff\"}",
    b"{",
    b"{}x",
    b"\xef\xbb\xbf{}",
];

fn hash(body: &[u8]) -> String {
    format!("{:016x}", xxhash_rust::xxh3::xxh3_64(body))
}

async fn front(count: usize, server: &str) -> (Vec<wicketgate_sim::engine::EngineHandle>, Front) {
    let engines = engines(count).await;
    let pool = endpoint_lines(&addresses(&engines));
    let front = Front::start_with(wicketgate(), Command::Serve, &pool, server, "", &[]).await;
    front.wait_scraped(count).await;
    (engines, front)
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_pass_unchanged_and_bad_json_does_not() {
    let (_engines, front) = front(2, "").await;
    for (path, body) in ACCEPTED {
        let echoed = call(front.data, "POST", path, &[("x-emulator-echo", "1")], *body)
            .await
            .json();
        assert_eq!(
            echoed["body_xxh3_hex"],
            hash(body.as_bytes()),
            "{path} {body}"
        );
        assert_eq!(echoed["path"], *path);
    }
    for body in REFUSED {
        let answer = call(
            front.data,
            "POST",
            "/v1/chat/completions",
            &[],
            Bytes::from_static(body),
        )
        .await;
        answer.assert_error(400, "invalid_body");
    }
    front.assert_guards_at_zero().await;
    // A refused chat is counted as what it is, where it would have gone.
    let labels = [
        "requests_total",
        "\"chat_completions\"",
        "pool=\"main\"",
        "invalid_body",
    ];
    assert_eq!(front.metric(&labels).await, REFUSED.len() as f64);
}

/// C01: exactly at the limit passes; one more is 413, by length or at the crossing chunk; nothing goes upstream.
#[tokio::test(flavor = "multi_thread")]
async fn the_body_limit_is_exact() {
    let (engines, front) = front(1, "  maxBodyBytes: 1Mi\n").await;
    let body = |total: usize| {
        let frame = r#"{"model":"m","prompt":""}"#.len();
        Bytes::from(format!(
            "{{\"model\":\"m\",\"prompt\":\"{}\"}}",
            "a".repeat(total - frame)
        ))
    };
    let echo = [("x-emulator-echo", "1")];
    let answer = call(front.data, "POST", "/v1/completions", &echo, body(1 << 20)).await;
    assert_eq!(answer.json()["body_len"], 1 << 20);
    let answer = call(
        front.data,
        "POST",
        "/v1/completions",
        &echo,
        body((1 << 20) + 1),
    )
    .await;
    answer.assert_error(413, "request_too_large");
    assert!(
        answer.json()["error"]["message"]
            .as_str()
            .unwrap()
            .contains("1048576")
    );
    for version in [Version::H1, Version::H2] {
        let chunks = |total| {
            body(total)
                .chunks(70_000)
                .map(Bytes::copy_from_slice)
                .collect()
        };
        let mut caller = Caller::connect(front.data, version).await;
        let answer = caller
            .call(request(
                "POST",
                "/v1/completions",
                &echo,
                pieces(chunks(1 << 20), None),
            ))
            .await;
        assert_eq!(answer.json()["body_len"], 1 << 20);
        let mut caller = Caller::connect(front.data, version).await;
        let answer = caller
            .call(request(
                "POST",
                "/v1/completions",
                &echo,
                pieces(chunks((1 << 20) + 1), None),
            ))
            .await;
        answer.assert_error(413, "request_too_large");
    }
    // However the sending and our answer cross, the caller reads the answer and not a broken pipe.
    for _ in 0..40 {
        let answer = call(front.data, "POST", "/v1/completions", &echo, body(3 << 20)).await;
        answer.assert_error(413, "request_too_large");
    }
    // Told by its length: the answer comes before any of the body was sent.
    let head = "POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 1048577\r\n\r\n";
    let early = raw(front.data, head.as_bytes(), Duration::from_millis(500)).await;
    assert!(early.starts_with("HTTP/1.1 413"), "{early}");
    front.assert_guards_at_zero().await;
    assert_eq!(
        front.metric(&["requests_total", "request_too_large"]).await,
        44.0
    );
    assert_eq!(engines[0].stats().requests, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_of_one_hop_stay_there() {
    let (_engines, front) = front(1, "  exposeServedBy: true\n").await;
    let headers = [
        ("connection", "x-trusted-user, keep-alive"),
        ("x-trusted-user", "root"),
        ("keep-alive", "timeout=5"),
        ("te", "gzip"),
        ("proxy-authorization", "Basic x"),
        ("authorization", "Bearer k"),
        ("x-gateway-destination-endpoint", "10.0.0.9:1"),
        ("x-prefiller-host-port", "10.0.0.9:1"),
        ("accept", "a"),
        ("accept", "b"),
        ("x-request-id", "mine"),
        ("x-emulator-echo", "1"),
    ];
    let answer = call(front.data, "POST", "/v1/x", &headers, "{}").await;
    let echoed = answer.json();
    let got: Vec<(String, String)> = serde_json::from_value(echoed["headers"].clone()).unwrap();
    let names: Vec<&str> = got.iter().map(|(name, _)| name.as_str()).collect();
    for gone in [
        "connection",
        "x-trusted-user",
        "keep-alive",
        "te",
        "proxy-authorization",
        "x-gateway-destination-endpoint",
        "x-prefiller-host-port",
    ] {
        assert!(!names.contains(&gone), "{gone} in {names:?}");
    }
    assert_eq!(names.iter().filter(|name| **name == "accept").count(), 2);
    let value = |name: &str| {
        got.iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    };
    assert_eq!(value("authorization"), Some("Bearer k"));
    assert_eq!(value("x-request-id"), Some("mine"));
    assert_eq!(value("content-length"), Some("2"));
    assert_eq!(answer.header("x-request-id"), "mine");
    assert_eq!(value("host"), Some(answer.header("x-wicketgate-served-by")));
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_pass_as_they_come_in_both_versions() {
    let (engines, front) = front(1, "").await;
    for version in [Version::H1, Version::H2] {
        let mut caller = Caller::connect(front.data, version).await;
        let answer = caller
            .call(request(
                "POST",
                "/v1/chat/completions",
                &[],
                full(chat(5, 20, true)),
            ))
            .await;
        assert_eq!(
            answer.header("content-type"),
            "text/event-stream; charset=utf-8"
        );
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        assert_eq!(
            text.matches("data: ").count(),
            23,
            "role, 20 tokens, usage, end"
        );
        assert!(text.ends_with("data: [DONE]\n\n"));
    }
    let begun = Begun::start(front.data, &[("x-emulator-failure", "stall=4")], 4).await;
    assert_eq!(
        (front.running().await, engines[0].stats().running <= 1),
        (1, true)
    );
    drop(begun);
    front.assert_guards_at_zero().await;
    assert_eq!(front.metric(&["tokens_total", "completion"]).await, 40.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_of_requests_pass() {
    let (_engines, front) = front(1, "").await;
    for version in [Version::H1, Version::H2] {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-checksum", HeaderValue::from_static("abc"));
        // None of these may come in through the back door.
        for name in [
            "x-gateway-destination-endpoint",
            "x-prefiller-host-port",
            "authorization",
            "cookie",
            "content-type",
        ] {
            trailers.insert(name, HeaderValue::from_static("evil"));
        }
        let headers = [
            ("x-emulator-echo", "1"),
            ("x-emulator-trailers", "1"),
            ("te", "trailers"),
            (
                "trailer",
                "x-checksum, authorization, cookie, content-type, x-prefiller-host-port, x-gateway-destination-endpoint",
            ),
        ];
        let sent = request(
            "POST",
            "/v1/x",
            &headers,
            pieces(vec![Bytes::from_static(b"{}")], Some(trailers)),
        );
        let mut caller = Caller::connect(front.data, version).await;
        let answer = caller.call(sent).await;
        let echoed = answer.json();
        assert_eq!(
            (&echoed["body_len"], &echoed["trailers"]),
            (&2.into(), &serde_json::json!([["x-checksum", "abc"]])),
            "{version:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_body_and_odd_methods() {
    let (_engines, front) = front(1, "").await;
    let cases = [
        ("GET", "/v1/models", 200),
        ("HEAD", "/v1/models", 200),
        ("OPTIONS", "/v1/chat/completions", 405),
        ("POST", "/v1/chat/completions", 400),
        ("GET", "/health", 200),
    ];
    for (method, path, status) in cases {
        let answer = call(front.data, method, path, &[("content-length", "0")], "").await;
        assert_eq!(answer.status, status, "{method} {path} {answer:?}");
    }
    call(front.data, "TRACE", "/", &[], "")
        .await
        .assert_error(405, "method_not_allowed");
    let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
    call(front.data, "GET", "/v1/realtime", &upgrade, "")
        .await
        .assert_error(400, "bad_request");
    let bad_chunk = "POST /v1/x HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n";
    for (nonsense, code) in [
        ("\x16\x03\x01 tls", "bad_request"),
        ("GET\r\n\r\n", "bad_request"),
        (bad_chunk, "incomplete_body"),
    ] {
        let mut caller = Raw::open(front.data).await;
        caller.send(nonsense).await;
        let answer = caller.rest().await;
        assert!(
            answer.starts_with("HTTP/1.1 400 "),
            "{nonsense:?}: {answer:?}"
        );
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["error"]["code"], code, "{nonsense:?}");
    }
    assert_eq!(chat_call(front.data, &[]).await.status, 200);
    front.assert_guards_at_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_with_callers_certificates() {
    let authority = Authority::new("test CA");
    let pair = authority.issue(&["localhost", "127.0.0.1"]);
    let files = wicketgate_testkit::TempDir::new();
    let write = |name: &str, text: &str| files.write(name, text).display().to_string();
    let (ca, cert, key) = (
        write("ca.pem", &authority.certificate),
        write("s.pem", &pair.certificate),
        write("s.key", &pair.key),
    );
    let mine = authority.issue(&["caller"]);
    let (my_cert, my_key) = (write("c.pem", &mine.certificate), write("c.key", &mine.key));
    let (_engines, front) = front(
        1,
        &format!("  tls: {{certFile: {cert}, keyFile: {key}, clientCaFile: {ca}}}\n"),
    )
    .await;
    let url = format!("https://localhost:{}/v1/models", front.data.port());
    let curl = |extra: Vec<String>| {
        let mut command = tokio::process::Command::new("curl");
        command.args([
            "-s",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code} %{http_version}",
            "--cacert",
            &ca,
            &url,
        ]);
        command.args(extra);
        command
    };
    let with = curl(vec!["--cert".into(), my_cert, "--key".into(), my_key])
        .output()
        .await
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&with.stdout), "200 2");
    let without = curl(Vec::new()).output().await.unwrap();
    assert!(String::from_utf8_lossy(&without.stdout).starts_with("000"));
}

/// The configuration is taken over when its file changes; a faulty one changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_reloads() {
    let (_engines, front) = front(1, "  maxBodyBytes: 1Ki\n").await;
    let body = "x".repeat(2000);
    let status = || async {
        call(
            front.data,
            "POST",
            "/v1/x",
            &[("x-emulator-echo", "1")],
            body.clone(),
        )
        .await
        .status
        .as_u16()
    };
    assert_eq!(status().await, 413);
    let text = std::fs::read_to_string(&front.config).unwrap();
    std::fs::write(
        &front.config,
        text.replace("maxBodyBytes: 1Ki", "maxBodyBytess: 4Ki"),
    )
    .unwrap();
    wicketgate_testkit::eventually("the refusal", || async {
        (front.metric(&["config_reload_failed"]).await == 1.0).then_some(())
    })
    .await;
    assert_eq!(status().await, 413);
    assert!(
        front
            .process
            .words()
            .iter()
            .any(|line| line.contains("did you mean `maxBodyBytes`"))
    );
    std::fs::write(
        &front.config,
        text.replace("maxBodyBytes: 1Ki", "maxBodyBytes: 4Ki"),
    )
    .unwrap();
    wicketgate_testkit::eventually("the new limit", || async {
        (status().await == 200).then_some(())
    })
    .await;
    assert_eq!(front.metric(&["config_reload_failed"]).await, 0.0);
}
