//! Bodies: the limit, none at all, odd shapes, paths that nobody claims, model names.

use bytes::Bytes;
use wicketgate_bench::envoy::OVERRIDE_HOST;
use wicketgate_epp::extproc::proto::body_mode::{
    BUFFERED, BUFFERED_PARTIAL, FULL_DUPLEX_STREAMED, NONE, STREAMED,
};
use wicketgate_testkit::{
    client::{Caller, Version, call, chat, full, pieces, request},
    cluster::{Command, Front, Gateway, addresses, endpoint_lines, engines},
    envoy_binary,
};

use super::{picker, placed};
use crate::{
    extproc_phases::{
        BACK, answer, assert_nothing_left, body, get, ok, post, request as headers, response,
    },
    wicketgate,
};

const MIB: usize = 1 << 20;

/// `{"model":"m","prompt":"aaa..."}` of this length.
fn prompt(length: usize) -> Bytes {
    let frame = r#"{"model":"m","prompt":""}"#.len();
    format!(
        r#"{{"model":"m","prompt":"{}"}}"#,
        "a".repeat(length - frame)
    )
    .into()
}

/// C01: at the limit a body passes; over it the answer is 413 with the limit in it: at the headers where they announce
/// it, else at the piece that crosses, whatever may still come.
#[tokio::test(flavor = "multi_thread")]
async fn the_limit_is_an_outcome_of_its_own() {
    let (_engines, picker, proxy) = crate::extproc_phases::picker(1, "  maxBodyBytes: 1Mi\n").await;
    let completions = |more: &[(&str, &str)]| headers("POST", "/v1/completions", more, false);
    let too_large = "immediate: 413 wicketgate_request_too_large";
    for (announced, fits) in [("1048576", true), ("1048577", false)] {
        let mut exchange = proxy.open((FULL_DUPLEX_STREAMED, NONE)).await;
        exchange
            .send(completions(&[("content-length", announced)]))
            .await;
        if fits {
            exchange.send(body(prompt(MIB), true)).await;
            placed(&mut exchange).await;
        } else {
            assert_eq!(exchange.said().await.to_string(), too_large);
        }
    }
    for (length, fits) in [(MIB, true), (MIB + 1, false)] {
        let mut exchange = proxy.open((FULL_DUPLEX_STREAMED, NONE)).await;
        exchange.send(completions(&[])).await;
        let whole = prompt(length);
        // The last byte but for the end comes alone; the end of the body is never sent when it is too long.
        let (most, last) = whole.split_at(MIB);
        for piece in most.chunks(1 << 16) {
            exchange.send(body(piece.to_vec(), false)).await;
        }
        if fits {
            exchange.send(body("", true)).await;
            placed(&mut exchange).await;
            let mut back = Vec::new();
            while back.len() < length {
                let (piece, _) = exchange.said().await.changes().piece.unwrap();
                back.extend_from_slice(&piece);
            }
            assert_eq!(back, whole);
        } else {
            exchange.send(body(last.to_vec(), false)).await;
            // The first thing that is said: nothing of the body went on.
            let said = exchange.said().await;
            assert_eq!(said.to_string(), too_large);
            let wicketgate_testkit::said::Said::Immediate { body, .. } = said else {
                unreachable!("it reads like one")
            };
            assert!(
                String::from_utf8_lossy(&body).contains("1048576"),
                "{body:?}"
            );
        }
    }
    assert_nothing_left(&picker).await;
    let refused = picker
        .metric(&["requests_total", "request_too_large"])
        .await;
    assert_eq!(refused, 2.0);
    assert_eq!(
        picker.metric(&["requests_total", "invalid_body"]).await,
        0.0
    );
}

/// C01 on real Envoy, both protocols, with a length and without one.
#[tokio::test(flavor = "multi_thread")]
async fn the_limit_holds_behind_envoy() {
    let Some(envoy) = envoy_binary() else { return };
    let engines = engines(1).await;
    let endpoints = addresses(&engines);
    let pool = endpoint_lines(&endpoints);
    let server = "  maxBodyBytes: 1Mi\n";
    let picker = Front::start_with(wicketgate(), Command::Epp, &pool, server, "", &[]).await;
    let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &endpoints, |config| config).await;
    let echo = [("x-emulator-echo", "1")];
    for version in [Version::H1, Version::H2] {
        for (length, fits) in [(MIB, true), (MIB + 1, false)] {
            let chunks = prompt(length)
                .chunks(70_000)
                .map(Bytes::copy_from_slice)
                .collect();
            for body in [full(prompt(length)), pieces(chunks, None)] {
                let mut caller = Caller::connect(gateway.address, version).await;
                let sent = request("POST", "/v1/completions", &echo, body);
                let answer = caller.call(sent).await;
                if fits {
                    assert_eq!(answer.json()["body_len"], length, "{version:?}");
                } else {
                    answer.assert_error(413, "request_too_large");
                    assert!(String::from_utf8_lossy(&answer.body).contains("1048576"));
                }
            }
        }
    }
    picker.assert_guards_at_zero().await;
    let refused = picker
        .metric(&["requests_total", "request_too_large"])
        .await;
    assert_eq!(refused, 4.0);
}

/// C03: a request of headers alone takes the whole path in every mode, whatever its method; the same stream, and the
/// next one, go on.
#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_body_take_the_whole_path() {
    let (engines, picker, proxy) = crate::extproc_phases::picker(1, "").await;
    let to = format!("request headers: to {}, reroute", engines[0].address());
    let mut sent = 0;
    for mode in [
        NONE,
        STREAMED,
        BUFFERED,
        BUFFERED_PARTIAL,
        FULL_DUPLEX_STREAMED,
    ] {
        for first in [
            get(),
            headers(
                "POST",
                "/v1/chat/completions",
                &[("content-length", "0")],
                true,
            ),
            headers("HEAD", "/", &[], true),
            headers("OPTIONS", "/v1/chat/completions", &[], true),
        ] {
            let mut exchange = proxy.open((mode, mode)).await;
            exchange.send(first).await;
            assert_eq!(exchange.said().await.to_string(), to, "mode {mode}");
            exchange
                .send(response("200", "application/json", false))
                .await;
            assert_eq!(exchange.said().await.to_string(), BACK, "mode {mode}");
            if mode != NONE {
                exchange.send(answer("{}", true)).await;
                let expected = match mode {
                    FULL_DUPLEX_STREAMED => "response body: 2 bytes, end",
                    _ => "response body: as it is",
                };
                assert_eq!(exchange.said().await.to_string(), expected, "mode {mode}");
            }
            exchange.finish().await;
            sent += 1;
        }
    }
    assert_nothing_left(&picker).await;
    let seen = picker.metric(&["requests_total", "api=\"unknown\""]).await;
    assert_eq!(seen, f64::from(sent));
}

/// C03: without an endpoint such a request is refused like any other: 503, not 500.
#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_body_are_refused_like_others() {
    let (front, proxy) = picker("  endpoints: []\n", "").await;
    for first in [get(), headers("HEAD", "/", &[], true)] {
        let mut exchange = proxy.open((FULL_DUPLEX_STREAMED, NONE)).await;
        exchange.send(first).await;
        let said = exchange.said().await.to_string();
        assert_eq!(said, "immediate: 503 wicketgate_no_endpoints");
        exchange.finish().await;
    }
    assert_nothing_left(&front).await;
}

/// Paths and bodies that are somebody's, though not ours to read, and the dialect each counts as.
const UNCLAIMED: &[(&str, &str, &str)] = &[
    (
        "/v1/rerank",
        r#"{"model":"m","query":"q","documents":["a","b"]}"#,
        "unknown",
    ),
    (
        "/v1/chat/completions/render",
        r#"{"model":"m","messages":[{"role":"user","content":"u"}]}"#,
        "unknown",
    ),
    (
        "/v1/messages",
        r#"{"model":"m","system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":"u"}]}"#,
        "unknown",
    ),
    (
        "/v1/responses",
        r#"{"model":"m","input":[{"role":"user","content":"u"}]}"#,
        "unknown",
    ),
    (
        "/v1/embeddings",
        r#"{"model":"m","input":["a",[1,2]]}"#,
        "embeddings",
    ),
    (
        "/v1/completions",
        r#"{"model":"m","prompt":[1,2,3]}"#,
        "completions",
    ),
    (
        "/v1/completions",
        r#"{"model":"m","prompt":["a","b"]}"#,
        "completions",
    ),
];

/// C06: whatever the path, a request goes to the endpoint with less load, and counts under its dialect.
#[tokio::test(flavor = "multi_thread")]
async fn unclaimed_paths_go_by_load() {
    let (engines, picker, proxy) = crate::extproc_phases::picker(2, "").await;
    picker.wait_scraped(2).await;
    let mut busy = proxy
        .open((FULL_DUPLEX_STREAMED, FULL_DUPLEX_STREAMED))
        .await;
    busy.send(post()).await;
    busy.send(body(chat(5, 3, false), true)).await;
    let loaded = placed(&mut busy).await;
    let idle = addresses(&engines)
        .iter()
        .map(ToString::to_string)
        .find(|address| *address != loaded);
    for (path, text, _) in UNCLAIMED {
        let mut exchange = proxy
            .open((FULL_DUPLEX_STREAMED, FULL_DUPLEX_STREAMED))
            .await;
        exchange.send(headers("POST", path, &[], false)).await;
        exchange.send(body(*text, true)).await;
        assert_eq!(Some(placed(&mut exchange).await), idle, "{path}");
        let piece = exchange.said().await.changes().piece;
        assert_eq!(piece, Some((Bytes::from_static(text.as_bytes()), true)));
        exchange.send(ok(false)).await;
        assert_eq!(exchange.said().await.to_string(), BACK);
        exchange.send(answer("{}", true)).await;
        exchange.said().await;
        exchange.finish().await;
    }
    drop(busy);
    assert_nothing_left(&picker).await;
    for api in ["unknown", "embeddings", "completions"] {
        let count = UNCLAIMED.iter().filter(|(_, _, of)| *of == api).count();
        let label = format!("api=\"{api}\"");
        let seen = picker
            .metric(&["requests_total", "outcome=\"ok\"", &label])
            .await;
        assert_eq!(seen, count as f64, "{api}");
    }
}

/// C07, as far as nothing is rewritten: a body with or without a model goes on byte by byte.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_keep_their_model_and_their_bytes() {
    let engines = engines(1).await;
    let front = Front::start(wicketgate(), Command::Serve, &addresses(&engines)).await;
    for text in [
        r#"{"model":"chat","seed":9007199254740993,"x":1.0}"#,
        r#"{"prompt":"hi"}"#,
        r#"{"model":""}"#,
        r#"{"model":"chat","messages":[{"role":"user","content":"say \"model\":\"chat\""}]}"#,
    ] {
        for path in ["/v1/chat/completions", "/v1/completions"] {
            let echo = [("x-emulator-echo", "1")];
            let echoed = call(front.data, "POST", path, &echo, text).await.json();
            let hash = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(text.as_bytes()));
            assert_eq!(echoed["body_xxh3_hex"], hash, "{path} {text}");
        }
    }
    front.assert_guards_at_zero().await;
}
