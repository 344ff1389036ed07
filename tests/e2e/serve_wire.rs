//! The HTTP front byte by byte: what breaks the rules of HTTP is refused, and answers are not held back.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use wicketgate_sim::engine::EngineHandle;
use wicketgate_testkit::{
    client::{Caller, Version, chat, pieces, request},
    cluster::{Command, Front, addresses, endpoint_lines, engines},
    eventually,
    raw::Raw,
};

use crate::wicketgate;

async fn front(server: &str) -> (Vec<EngineHandle>, Front) {
    let engines = engines(1).await;
    let pool = endpoint_lines(&addresses(&engines));
    let front = Front::start_with(wicketgate(), Command::Serve, &pool, server, "", &[]).await;
    (engines, front)
}

/// A chat as bytes, with one more header.
fn chat_bytes(header: &str, stream: bool) -> String {
    let body = String::from_utf8(chat(5, 8, stream).to_vec()).unwrap();
    let length = body.len();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n{header}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_break_the_rules_are_refused() {
    let (engines, front) = front("").await;
    let long = format!(
        "GET /v1/models HTTP/1.1\r\nhost: a\r\nx-long: {}\r\n\r\n",
        "a".repeat(100_000)
    );
    let post = |header: &str| {
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n{header}\r\n\r\n{{}}")
    };
    for (sent, status) in [
        ("nonsense\r\n\r\n".to_owned(), "400"),
        (post("content-length: 2\r\ncontent-length: 3"), "400"),
        (post("content-length: -1"), "400"),
        (post("transfer-encoding: gzip"), "400"),
        (
            "GET /v1/models HTTP/1.1\r\nhost: a\r\nbad name: x\r\n\r\n".to_owned(),
            "400",
        ),
        (
            "CONNECT 10.0.0.1:22 HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
            "405",
        ),
        ("TRACE / HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(), "405"),
        (long, "431"),
    ] {
        let mut caller = Raw::open(front.data).await;
        // The other side may answer and hang up before it has read all.
        caller.send(&sent).await;
        let answer = caller.until("\r\n\r\n").await;
        let shown: String = sent.chars().take(60).collect();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{shown:?}: {answer:?}"
        );
    }
    assert_eq!(engines[0].stats().requests, 0);
    front.assert_guards_at_zero().await;
}

/// A length and a transfer coding in one request: whoever reads it one way must not be followed by one who reads it
/// the other way, so nothing of it is taken.
#[tokio::test(flavor = "multi_thread")]
async fn requests_are_not_smuggled() {
    let (engines, front) = front("").await;
    let mut caller = Raw::open(front.data).await;
    let both = "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n\
        0\r\n\r\nGET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    caller.send(both).await;
    let answer = caller.rest().await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer:?}");
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer:?}");
    assert_eq!(engines[0].stats().requests, 0);
    front.assert_guards_at_zero().await;
}

/// A caller may send its next request before the answer to the first one is over. (Such a caller's hang-up shows only
/// at the next write to it: nobody reads its socket while its next request waits there.)
#[tokio::test(flavor = "multi_thread")]
async fn a_pipelined_request_does_not_hold_events_back() {
    let (_engines, front) = front("").await;
    let mut caller = Raw::open(front.data).await;
    let first = chat_bytes("x-emulator-failure: stall=1", true);
    caller
        .send(format!("{first}GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n"))
        .await;
    assert!(caller.until("data: ").await.contains("data: "));
}

/// A reset instead of a goodbye is a hang-up too.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_frees_everything() {
    let (engines, front) = front("").await;
    let mut caller = Raw::open(front.data).await;
    caller
        .send(chat_bytes("x-emulator-failure: stall=1", true))
        .await;
    assert!(caller.until("data: ").await.contains("data: "));
    caller.reset();
    front.assert_guards_at_zero().await;
    eventually("a free engine", || async {
        (engines[0].stats().in_flight == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_waits_for_100_gets_it() {
    let (_engines, front) = front("").await;
    let sent = chat_bytes(
        "expect: 100-continue\r\nx-emulator-echo: 1\r\nconnection: close",
        false,
    );
    let (head, body) = sent.split_at(sent.find("\r\n\r\n").unwrap() + 4);
    let mut caller = Raw::open(front.data).await;
    caller.send(head).await;
    let continued = caller.until("\r\n\r\n").await;
    assert!(
        continued.starts_with("HTTP/1.1 100 Continue\r\n"),
        "{continued:?}"
    );
    caller.send(body).await;
    let answer = caller.rest().await;
    assert!(answer.contains("HTTP/1.1 200 OK\r\n"), "{answer:?}");
    assert!(
        !answer.contains("\"expect\""),
        "answered here, not passed on: {answer}"
    );
    front.assert_guards_at_zero().await;
}

/// C01: the refusal of an announced length comes before the body; in chunks it comes at the one that crosses.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_limit_is_refused_where_it_is_known() {
    let (engines, front) = front("  maxBodyBytes: 1Mi\n").await;
    let head =
        |header: &str| format!("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n{header}\r\n\r\n");
    for expect in ["", "expect: 100-continue\r\n"] {
        let mut caller = Raw::open(front.data).await;
        caller
            .send(head(&format!("{expect}content-length: 1048577")))
            .await;
        let answer = caller.until("request_too_large").await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer:?}");
    }
    let mut caller = Raw::open(front.data).await;
    caller.send(head("transfer-encoding: chunked")).await;
    let chunk = format!("{:x}\r\n{}\r\n", 1 << 19, "a".repeat(1 << 19));
    caller.send(format!("{chunk}{chunk}1\r\na\r\n")).await;
    let answer = caller.until("request_too_large").await;
    assert!(
        answer.starts_with("HTTP/1.1 413 ") && answer.contains("1048576"),
        "{answer:?}"
    );
    assert_eq!(engines[0].stats().requests, 0);
    front.assert_guards_at_zero().await;
}

/// Half a body goes nowhere, and its connection does not stay.
#[tokio::test(flavor = "multi_thread")]
async fn half_a_body_goes_nowhere() {
    let (engines, front) = front("  headerTimeout: 200ms\n").await;
    for framing in ["content-length: 1000", "transfer-encoding: chunked"] {
        let mut caller = Raw::open(front.data).await;
        caller
            .send(format!(
                "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n2\r\n{{\"\r\n"
            ))
            .await;
        caller.reset();
    }
    // A header block that never ends is given up.
    let mut caller = Raw::open(front.data).await;
    caller
        .send("GET /v1/models HTTP/1.1\r\nhost: a\r\nx-")
        .await;
    caller.rest().await;
    eventually("no connection", || async {
        (front.metric(&["wicketgate_http_connections"]).await == 0.0).then_some(())
    })
    .await;
    assert_eq!(engines[0].stats().requests, 0);
    front.assert_guards_at_zero().await;
}

/// An engine's trailers reach callers that can take them, by either protocol.
#[tokio::test(flavor = "multi_thread")]
async fn trailers_of_answers_arrive() {
    let (_engines, front) = front("").await;
    for version in [Version::H1, Version::H2] {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-checksum", HeaderValue::from_static("abc"));
        let headers = [
            ("x-emulator-echo", "1"),
            ("x-emulator-trailers", "1"),
            ("te", "trailers"),
            ("trailer", "x-checksum"),
        ];
        let body = pieces(vec![Bytes::from_static(b"{}")], Some(trailers));
        let mut caller = Caller::connect(front.data, version).await;
        let answer = caller.call(request("POST", "/v1/x", &headers, body)).await;
        assert_eq!(answer.json()["trailers"][0][1], "abc", "{version:?}");
        let hash = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&answer.body));
        let came = answer
            .trailers
            .get("x-emulator-body-xxh3")
            .map(|value| value.to_str().unwrap());
        assert_eq!(came, Some(hash.as_str()), "{version:?}");
    }
    front.assert_guards_at_zero().await;
}
