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
    let lines = format!(
        "GET / HTTP/1.1\r\nhost: a\r\n{}\r\n",
        "x-a: b\r\n".repeat(200)
    );
    for (sent, status, code) in [
        ("nonsense\r\n\r\n".to_owned(), 400, "bad_request"),
        ("GET\r\n\r\n".to_owned(), 400, "bad_request"),
        ("\x16\x03\x01 tls\r\n\r\n".to_owned(), 400, "bad_request"),
        (
            post("content-length: 2\r\ncontent-length: 3"),
            400,
            "bad_request",
        ),
        (post("content-length: -1"), 400, "bad_request"),
        // Lengths that are over the limit whatever the limit is.
        (
            post("content-length: 99999999999999999999"),
            413,
            "request_too_large",
        ),
        (
            post("content-length: 18446744073709551615"),
            413,
            "request_too_large",
        ),
        (
            post("content-length: 18446744073709551613"),
            413,
            "request_too_large",
        ),
        (post("transfer-encoding: gzip"), 400, "bad_request"),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"
                .to_owned(),
            501,
            "not_implemented",
        ),
        (
            "GET /v1/models HTTP/1.1\r\nhost: a\r\nbad name: x\r\n\r\n".to_owned(),
            400,
            "bad_request",
        ),
        (
            "GET /v1/models HTTP/1.1\r\n\r\n".to_owned(),
            400,
            "bad_request",
        ),
        (
            "GET /v1/models HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n".to_owned(),
            400,
            "bad_request",
        ),
        (
            "CONNECT 10.0.0.1:22 HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
            405,
            "method_not_allowed",
        ),
        (
            "TRACE / HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
            405,
            "method_not_allowed",
        ),
        (long, 431, "headers_too_large"),
        (lines, 431, "headers_too_large"),
    ] {
        let mut caller = Raw::open(front.data).await;
        // The other side may answer and hang up before it has read all.
        caller.send(&sent).await;
        let answer = caller.until("\"}}").await;
        let shown: String = sent.chars().take(60).collect();
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("{shown:?}: {answer:?}"));
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{shown:?}: {answer:?}"
        );
        assert!(
            head.contains("content-type: application/json"),
            "{shown:?}: {answer:?}"
        );
        let length = format!("content-length: {}", body.len());
        assert!(head.contains(&length), "{shown:?}: {answer:?}");
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["error"]["code"], code, "{shown:?}");
        assert_eq!(body["error"]["type"], "invalid_request_error", "{shown:?}");
    }
    assert_eq!(engines[0].stats().requests, 0);
    front.assert_guards_at_zero().await;
    assert_eq!(
        front.metric(&["requests_total", "headers_too_large"]).await,
        2.0
    );
    assert_eq!(
        front.metric(&["requests_total", "request_too_large"]).await,
        3.0
    );
}

/// A length and a transfer coding in one request: whoever reads it one way must not be followed by one who reads it
/// the other way, so nothing of it is taken, though the body is a proper one, and nothing after it.
#[tokio::test(flavor = "multi_thread")]
async fn requests_are_not_smuggled() {
    let (engines, front) = front("").await;
    let chat = String::from_utf8(chat(5, 3, false).to_vec()).unwrap();
    let chunked = format!("{:x}\r\n{chat}\r\n0\r\n\r\n", chat.len());
    let length = format!("content-length: {}", chunked.len());
    let next = "GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    let coding = "transfer-encoding: chunked";
    for (number, (first, second)) in [
        ("content-length: 5", coding),
        (coding, "Content-Length: 5"),
        (coding, length.as_str()),
        ("content-length: x", coding),
    ]
    .into_iter()
    .enumerate()
    {
        let mut caller = Raw::open(front.data).await;
        // Behind a request in order, on the same connection.
        caller.send("GET /health HTTP/1.1\r\nhost: a\r\n\r\n").await;
        let before = caller.until("\r\n\r\n").await;
        assert!(before.starts_with("HTTP/1.1 200 OK\r\n"), "{before}");
        caller
            .send(format!(
                "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n{first}\r\n{second}\r\n\r\n{chunked}{next}"
            ))
            .await;
        let all = caller.rest().await;
        let answer = all.strip_prefix(&before).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{first}: {answer:?}");
        assert!(answer.contains("\"bad_request\""), "{first}: {answer:?}");
        assert_eq!(
            answer.matches("HTTP/1.1 ").count(),
            1,
            "{first}: {answer:?}"
        );
        let counted = front.metric(&["requests_total", "bad_request"]).await;
        assert_eq!(counted, number as f64 + 1.0);
    }
    assert_eq!(engines[0].stats().requests, 0);
    front.assert_guards_at_zero().await;
}

/// An offer to change the protocol may be ignored, and the connection serves on: Java's and curl's clients make it with
/// every request.
#[tokio::test(flavor = "multi_thread")]
async fn an_offer_of_http2_is_ignored() {
    let (_engines, front) = front("").await;
    let offer = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\nx-emulator-echo: 1";
    let mut caller = Raw::open(front.data).await;
    let mut all = String::new();
    for number in 1..=2 {
        caller.send(chat_bytes(offer, false)).await;
        while all.matches("body_xxh3_hex").count() < number {
            all = caller.past(all.len()).await;
        }
        assert_eq!(all.matches("HTTP/1.1 200 OK\r\n").count(), number, "{all}");
    }
    for gone in ["\"upgrade\"", "http2-settings", "\"connection\""] {
        assert!(!all.contains(gone), "{gone} went on: {all}");
    }
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

/// Half a body goes nowhere, and its connection does not stay, whether it is reset or said goodbye to.
#[tokio::test(flavor = "multi_thread")]
async fn half_a_body_goes_nowhere() {
    let (engines, front) = front("  headerTimeout: 200ms\n").await;
    for framing in ["content-length: 1000", "transfer-encoding: chunked"] {
        for reset in [true, false] {
            let mut caller = Raw::open(front.data).await;
            caller
                .send(format!(
                    "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n2\r\n{{\"\r\n"
                ))
                .await;
            if reset {
                caller.reset();
            }
        }
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
    // Each of the four is counted once, as a caller that is gone or as half a body: which of them is heard first is a
    // matter of moments.
    let gone = front.metric(&["requests_total", "client_gone"]).await;
    let incomplete = front.metric(&["requests_total", "incomplete_body"]).await;
    assert_eq!(gone + incomplete, 4.0, "{gone} {incomplete}");
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
