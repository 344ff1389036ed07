//! The HTTP front and engines whose answers are framed in odd ways: a caller gets the whole answer or an error, never
//! a part that looks whole.

use bytes::Bytes;
use wicketgate_testkit::{
    client::{Answer, Body, Caller, Version, chat, full, request, try_whole},
    cluster::{Command, Front},
    must,
    raw::{Odd, Raw, Then},
};

use crate::wicketgate;

const WHOLE: &str = "{\"id\":\"cmpl-1\",\"choices\":[],\"usage\":{\"prompt_tokens\":1}}";

/// In front of an engine that says this after each request.
async fn saying(then: Then) -> (Odd, Front) {
    let odd = Odd::start(then).await;
    let front = Front::start(wicketgate(), Command::Serve, &[odd.address]).await;
    (odd, front)
}

fn ask(method: &str, body: Body) -> http::Request<Body> {
    request(method, "/v1/chat/completions", &[("te", "trailers")], body)
}

async fn post(front: &Front, version: Version) -> Answer {
    let mut caller = Caller::connect(front.data, version).await;
    let response = must("a head", caller.send(ask("POST", full(chat(5, 3, false)))))
        .await
        .unwrap();
    must("the answer's end", try_whole(response)).await.unwrap()
}

async fn head_only(front: &Front) -> Answer {
    let mut caller = Caller::connect(front.data, Version::H1).await;
    let sent = ask("HEAD", full(Bytes::new()));
    let response = must("a head", caller.send(sent)).await.unwrap();
    must("the answer's end", try_whole(response)).await.unwrap()
}

/// RFC 9112, 6.3: a transfer coding overrides a length, and equal lengths are one.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_whole_whatever_it_says_of_its_length() {
    let json = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
    let chunked = format!("{:x}\r\n{WHOLE}\r\n0\r\n\r\n", WHOLE.len());
    let length = WHOLE.len();
    for words in [
        format!("{json}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n{chunked}"),
        format!("{json}transfer-encoding: chunked\r\ncontent-length: 5000\r\n\r\n{chunked}"),
        format!("{json}content-length: {length}\r\ncontent-length: {length}\r\n\r\n{WHOLE}"),
    ] {
        let (_odd, front) = saying(Then::Answer(words.clone().leak())).await;
        for version in [Version::H1, Version::H2] {
            let answer = post(&front, version).await;
            assert_eq!(
                (answer.status.as_u16(), &*answer.body),
                (200, WHOLE.as_bytes())
            );
            let lengths: Vec<_> = answer.headers.get_all("content-length").iter().collect();
            match lengths.as_slice() {
                [] => assert!(words.contains("chunked"), "{words}"),
                [one] => assert_eq!(*one, &length.to_string(), "{words}"),
                many => panic!("{many:?} of {words}"),
            }
        }
        front.assert_guards_at_zero().await;
        assert_eq!(front.metric(&["requests_total", "\"ok\""]).await, 2.0);
    }
}

/// An answer to HEAD, and one without content, have a body length at most in words.
#[tokio::test(flavor = "multi_thread")]
async fn heads_alone_pass_with_one_length_or_none() {
    let twice = "HTTP/1.1 200 OK\r\ncontent-length: 7\r\ncontent-length: 7\r\n\r\n";
    let (_odd, front) = saying(Then::Answer(twice)).await;
    let answer = head_only(&front).await;
    assert_eq!(
        (answer.status.as_u16(), answer.header("content-length")),
        (200, "7")
    );
    assert_eq!(answer.headers.get_all("content-length").iter().count(), 1);
    let (_odd, front) = saying(Then::Answer(
        "HTTP/1.1 204 No Content\r\ncontent-length: 4\r\n\r\n",
    ))
    .await;
    for version in [Version::H1, Version::H2] {
        let answer = post(&front, version).await;
        assert_eq!((answer.status.as_u16(), answer.body.len()), (204, 0));
        assert!(!answer.headers.contains_key("content-length"), "{answer:?}");
    }
    front.assert_guards_at_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_passed_on_is_502() {
    for words in [
        "HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nraw",
    ] {
        let (_odd, front) = saying(Then::Last(words)).await;
        for version in [Version::H1, Version::H2] {
            post(&front, version)
                .await
                .assert_error(502, "upstream_broken");
        }
        let head = head_only(&front).await;
        // A body's coding is no fault where there is no body to code; a length that is none is one.
        assert_eq!(head.status.as_u16(), 502, "{words}");
        front.assert_guards_at_zero().await;
    }
}

/// The version is each hop's own: a caller of HTTP/1.1 gets HTTP/1.1, its framing, and its connection kept.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_of_http_1_0_is_answered_in_the_callers_version() {
    let (_odd, front) = saying(Then::Last("HTTP/1.0 200 OK\r\n\r\nall of it")).await;
    let mut caller = Raw::open(front.data).await;
    for number in 1..=2 {
        caller
            .send("GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n")
            .await;
        let mut all = String::new();
        while all.matches("\r\n0\r\n\r\n").count() < number {
            all = caller.past(all.len()).await;
        }
        assert_eq!(all.matches("HTTP/1.1 200 OK\r\n").count(), number, "{all}");
        assert_eq!(
            all.matches("\r\n9\r\nall of it\r\n0\r\n\r\n").count(),
            number,
            "{all}"
        );
    }
    front.assert_guards_at_zero().await;
}

/// A trailer is no way around what holds for headers, in either direction.
#[tokio::test(flavor = "multi_thread")]
async fn trailers_that_would_be_headers_do_not_pass() {
    let words = "HTTP/1.1 200 OK\r\ntrailer: x-t, content-length\r\ntransfer-encoding: chunked\r\n\r\n\
        2\r\n{}\r\n0\r\nx-t: 1\r\ncontent-length: 3\r\nset-cookie: a=b\r\nx-gateway-destination-endpoint: 6.6.6.6:1\r\n\r\n";
    let (_odd, front) = saying(Then::Answer(words)).await;
    for version in [Version::H1, Version::H2] {
        let answer = post(&front, version).await;
        assert_eq!(answer.header("trailer"), "x-t");
        let names: Vec<&str> = answer.trailers.keys().map(|name| name.as_str()).collect();
        assert_eq!(names, ["x-t"], "{version:?}");
    }
    front.assert_guards_at_zero().await;
}
