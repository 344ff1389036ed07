//! The HTTP front, the views and ext_proc, and peers that take their time: nobody holds a connection, a count or memory
//! by doing nothing.

use std::net::SocketAddr;

use wicketgate_sim::engine::EngineHandle;
use wicketgate_testkit::{
    client::{Version, call, chat, chat_call, full, request},
    cluster::{Command, Front, addresses, endpoint_lines, engines},
    eventually, must,
    raw::Raw,
};

use crate::wicketgate;

async fn front(server: &str, extra: &str) -> (Vec<EngineHandle>, Front) {
    let engines = engines(1).await;
    let pool = endpoint_lines(&addresses(&engines));
    let front = Front::start_with(wicketgate(), Command::Serve, &pool, server, extra, &[]).await;
    (engines, front)
}

/// Says this much and no more, on so many connections.
async fn quiet(address: SocketAddr, words: &str, count: usize) -> Vec<Raw> {
    let mut sockets = Vec::new();
    for _ in 0..count {
        let mut socket = Raw::open(address).await;
        socket.send(words).await;
        sockets.push(socket);
    }
    sockets
}

/// Whoever does not say what it wants does not keep others out.
#[tokio::test(flavor = "multi_thread")]
async fn connections_without_a_request_are_closed() {
    let (_engines, front) = front("  headerTimeout: 300ms\n  maxConnections: 4\n", "").await;
    for words in ["", "P", "PRI * HTTP/2.0\r\n", "GET / HT"] {
        let sockets = quiet(front.data, words, 4).await;
        // All slots are taken: this one is served when they are free.
        let answer = must("an answer", chat_call(front.data, &[])).await;
        assert_eq!(answer.status, 200, "{words:?}");
        for mut socket in sockets {
            assert_eq!(socket.rest().await, "", "{words:?}");
        }
    }
    front.assert_guards_at_zero().await;
}

/// The same on the ports that only friends reach.
#[tokio::test(flavor = "multi_thread")]
async fn silent_sockets_on_the_other_ports_are_closed() {
    let engines = engines(1).await;
    let picker = Front::start(wicketgate(), Command::Epp, &addresses(&engines)).await;
    let mut sockets = Vec::new();
    for address in [picker.data, picker.health, picker.admin] {
        sockets.extend(quiet(address, "", 1).await);
        sockets.extend(quiet(address, "PRI * HT", 1).await);
    }
    // A gRPC server speaks first: its settings, then the end.
    for mut socket in sockets {
        socket.rest().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_come_is_408() {
    let (engines, front) = front("  bodyTimeout: 300ms\n", "").await;
    for framing in ["content-length: 100", "transfer-encoding: chunked"] {
        let mut caller = Raw::open(front.data).await;
        let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n";
        caller
            .send(format!("{head}{framing}\r\n\r\n1\r\n{{\r\n"))
            .await;
        let answer = caller.rest().await;
        assert!(
            answer.starts_with("HTTP/1.1 408 Request Timeout\r\n"),
            "{answer}"
        );
        assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
        assert!(
            answer.contains("\r\ncontent-type: application/json\r\n"),
            "{answer}"
        );
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["error"]["code"], "body_timeout");
        assert_eq!(body["error"]["type"], "invalid_request_error");
    }
    assert_eq!(engines[0].stats().requests, 0);
    let labels = ["requests_total", "\"chat", "\"main\"", "body_timeout"];
    assert_eq!(front.metric(&labels).await, 2.0);
    front.assert_guards_at_zero().await;
}

/// A body that comes in drops has the time of a whole request, and no more.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_in_drops_is_408() {
    let (engines, front) = front("", "upstream: {totalTimeout: 1s}\n").await;
    let mut caller = Raw::open(front.data).await;
    let head = "POST /v1/x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    caller.send(head).await;
    eventually("an answer", || async {
        (front.metric(&["requests_total", "body_timeout"]).await == 1.0).then_some(())
    })
    .await;
    assert!(caller.rest().await.starts_with("HTTP/1.1 408 "));
    assert_eq!(engines[0].stats().requests, 0);
}

/// A caller that reads nothing: its time is over all the same, at the engine too, and then its connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_does_not_read_is_ended() {
    let (engines, front) = front("", "upstream: {totalTimeout: 1s}\n").await;
    let mut caller = Raw::open(front.data).await;
    let body = String::from_utf8(chat(5, 2_000_000, true).to_vec()).unwrap();
    let length = body.len();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n"
    );
    caller.send(format!("{head}{body}")).await;
    eventually("the request at the engine", || async {
        (engines[0].stats().requests == 1).then_some(())
    })
    .await;
    front.assert_guards_at_zero().await;
    eventually("a free engine", || async {
        (engines[0].stats().in_flight == 0).then_some(())
    })
    .await;
    assert_eq!(front.metric(&["requests_total", "timed_out"]).await, 1.0);
    eventually("no connection", || async {
        (front.metric(&["wicketgate_http_connections"]).await == 0.0).then_some(())
    })
    .await;
    let all = caller.rest().await;
    assert!(!all.ends_with("0\r\n\r\n"), "a part must not look whole");
}

/// The same over HTTP/2, where the caller's window is what does not open.
#[tokio::test(flavor = "multi_thread")]
async fn a_window_that_does_not_open_holds_nothing() {
    let (engines, front) = front("", "upstream: {totalTimeout: 1s}\n").await;
    let mut caller = wicketgate_testkit::client::Caller::connect(front.data, Version::H2).await;
    let sent = request(
        "POST",
        "/v1/chat/completions",
        &[],
        full(chat(5, 2_000_000, true)),
    );
    let response = caller.send(sent).await.unwrap();
    assert_eq!(response.status(), 200);
    eventually("the count", || async {
        (front.metric(&["requests_total", "timed_out"]).await == 1.0).then_some(())
    })
    .await;
    front.assert_guards_at_zero().await;
    eventually("a free engine", || async {
        (engines[0].stats().in_flight == 0).then_some(())
    })
    .await;
    drop(response);
}

/// A body takes about its own length in memory, however finely it is cut.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_in_single_bytes_takes_no_more_memory() {
    const BYTES: usize = 4 << 20;
    let (_engines, front) = front("", "").await;
    let before = front.process.peak();
    let mut caller = Raw::open(front.data).await;
    let head = "POST /v1/x HTTP/1.1\r\nhost: a\r\nx-emulator-echo: 1\r\ntransfer-encoding: chunked\r\n\r\n";
    caller.send(head).await;
    let pieces = "1\r\na\r\n".repeat(1 << 16);
    for _ in 0..BYTES >> 16 {
        caller.send(&pieces).await;
    }
    caller.send("0\r\n\r\n").await;
    let answer = caller.until("body_len").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let grown = (front.process.peak() - before) / BYTES as u64;
    assert!(grown < 10, "{grown} bytes of memory for each byte of body");
    let whole = call(
        front.data,
        "POST",
        "/v1/x",
        &[("x-emulator-echo", "1")],
        "a".repeat(BYTES),
    )
    .await;
    let hash = whole.json()["body_xxh3_hex"].as_str().unwrap().to_owned();
    assert!(caller.until(&hash).await.contains(&hash), "the same bytes");
    front.assert_guards_at_zero().await;
}
