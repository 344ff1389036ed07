//! Every way in which Envoy can carry a request through ext_proc, message by message.

use wicketgate_epp::extproc::proto::{
    HttpBody, HttpHeaders, HttpTrailers, Phase,
    body_mode::{BUFFERED, BUFFERED_PARTIAL, FULL_DUPLEX_STREAMED, NONE, STREAMED},
};
use wicketgate_sim::engine::EngineHandle;
use wicketgate_testkit::{
    cluster::{Command, Front, addresses, endpoint_lines, engines},
    eventually,
    stream::{Exchange, Proxy, headers},
};

use crate::wicketgate;

/// A picker over `count` engines, with more lines of its `server` section, and a connection to it.
pub(crate) async fn picker(count: usize, server: &str) -> (Vec<EngineHandle>, Front, Proxy) {
    let engines = engines(count).await;
    let pool = endpoint_lines(&addresses(&engines));
    let front = Front::start_with(wicketgate(), Command::Epp, &pool, server, "", &[]).await;
    let proxy = Proxy::connect(front.data).await;
    (engines, front, proxy)
}

/// Nothing is held and no stream is open.
pub(crate) async fn assert_nothing_left(front: &Front) {
    front.assert_guards_at_zero().await;
    eventually("no open stream", || async {
        (front.metric(&["wicketgate_extproc_streams"]).await == 0.0).then_some(())
    })
    .await;
}

/// Request headers with these lines beside method and path.
pub(crate) fn request(method: &str, path: &str, more: &[(&str, &str)], end: bool) -> Phase {
    let mut lines = vec![(":method", method), (":path", path), (":authority", "a")];
    lines.extend_from_slice(more);
    Phase::RequestHeaders(HttpHeaders {
        headers: headers(&lines),
        end_of_stream: end,
    })
}

pub(crate) fn post() -> Phase {
    request("POST", "/v1/chat/completions", &[], false)
}

pub(crate) fn get() -> Phase {
    request("GET", "/v1/models", &[], true)
}

pub(crate) fn body(data: impl Into<bytes::Bytes>, end_of_stream: bool) -> Phase {
    Phase::RequestBody(HttpBody {
        body: data.into(),
        end_of_stream,
    })
}

pub(crate) fn trailers() -> Phase {
    Phase::RequestTrailers(HttpTrailers {})
}

pub(crate) fn response(status: &str, kind: &str, end_of_stream: bool) -> Phase {
    Phase::ResponseHeaders(HttpHeaders {
        headers: headers(&[(":status", status), ("content-type", kind)]),
        end_of_stream,
    })
}

pub(crate) fn answer(data: &'static str, end_of_stream: bool) -> Phase {
    Phase::ResponseBody(HttpBody {
        body: data.into(),
        end_of_stream,
    })
}

pub(crate) fn answer_trailers() -> Phase {
    Phase::ResponseTrailers(HttpTrailers {})
}

pub(crate) fn ok(end: bool) -> Phase {
    response("200", "application/json", end)
}

/// A chat of 61 bytes, and two pieces of it.
pub(crate) const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"hello!"}]}"#;

fn pieces() -> (&'static str, &'static str) {
    CHAT.split_at(20)
}

// What the picker says; `A` stands for the only endpoint.
const TO: &str = "request headers: to A, reroute";
const AS_IS: &str = "request headers: as it is";
const BODY_TO: &str = "request body: to A, reroute";
const BODY_AS_IS: &str = "request body: as it is";
pub(crate) const BODY: &str = "request body: 61 bytes, end";
pub(crate) const BACK: &str = "response headers: as it is";
const BACK_AS_IS: &str = "response body: as it is";

/// Modes, what Envoy sends, and what it must be told.
struct Case {
    name: &'static str,
    modes: (i32, i32),
    steps: Vec<(Phase, Vec<&'static str>)>,
}

fn full_duplex() -> Vec<Case> {
    let case = |name, steps| Case {
        name,
        modes: (FULL_DUPLEX_STREAMED, FULL_DUPLEX_STREAMED),
        steps,
    };
    let (one, two) = pieces();
    vec![
        case(
            "pieces, the last one with the end",
            vec![
                (post(), vec![]),
                (body(one, false), vec![]),
                (body(two, true), vec![TO, BODY]),
                (ok(false), vec![BACK]),
                (answer("{}", false), vec!["response body: 2 bytes"]),
                (answer("", true), vec!["response body: 0 bytes, end"]),
            ],
        ),
        case(
            "an empty message with the end, as HTTP/1.1 has it",
            vec![
                (post(), vec![]),
                (body(CHAT, false), vec![]),
                (body("", true), vec![TO, BODY]),
                (ok(false), vec![BACK]),
                (answer("{}", true), vec!["response body: 2 bytes, end"]),
            ],
        ),
        case(
            "headers alone, both ways",
            vec![(get(), vec![TO]), (ok(true), vec![BACK])],
        ),
        case(
            "an empty body on a path that nobody claims",
            vec![
                (request("POST", "/v1/rerank", &[], false), vec![]),
                (body("", true), vec![TO, "request body: 0 bytes, end"]),
                (ok(true), vec![BACK]),
            ],
        ),
        case(
            "trailers end both bodies",
            vec![
                (post(), vec![]),
                (body(CHAT, false), vec![]),
                (
                    trailers(),
                    vec![TO, "request body: 61 bytes", "request trailers"],
                ),
                (ok(false), vec![BACK]),
                (answer("{}", false), vec!["response body: 2 bytes"]),
                (answer_trailers(), vec!["response trailers"]),
            ],
        ),
        case(
            "a second end of the request body is ignored",
            vec![
                (post(), vec![]),
                (body(CHAT, true), vec![TO, BODY]),
                (body("", true), vec![]),
                (ok(false), vec![BACK]),
                (answer("{}", true), vec!["response body: 2 bytes, end"]),
            ],
        ),
        case(
            "Envoy's own answer in place of an endpoint's",
            vec![
                (post(), vec![]),
                (body(CHAT, true), vec![TO, BODY]),
                (response("503", "text/plain", false), vec![BACK]),
                (
                    answer("no healthy upstream", true),
                    vec!["response body: 19 bytes, end"],
                ),
            ],
        ),
        case(
            "Envoy's own answer before the request is whole",
            vec![
                (post(), vec![]),
                (body(one, false), vec![]),
                (response("408", "text/plain", false), vec![BACK]),
                (
                    answer("stream timeout", true),
                    vec!["response body: 14 bytes, end"],
                ),
            ],
        ),
    ]
}

fn buffered() -> Vec<Case> {
    let case = |name, request, response, steps| Case {
        name,
        modes: (request, response),
        steps,
    };
    let (one, _) = pieces();
    vec![
        case(
            "buffered",
            BUFFERED,
            BUFFERED,
            vec![
                (post(), vec![AS_IS]),
                (body(CHAT, true), vec![BODY_TO]),
                (ok(false), vec![BACK]),
                (answer("{}", true), vec![BACK_AS_IS]),
            ],
        ),
        case(
            "buffered, no body",
            BUFFERED,
            NONE,
            vec![(get(), vec![TO]), (ok(false), vec![BACK])],
        ),
        case(
            "buffered, trailers",
            BUFFERED,
            STREAMED,
            vec![
                (post(), vec![AS_IS]),
                (body(CHAT, false), vec![BODY_TO]),
                (trailers(), vec!["request trailers"]),
                (ok(false), vec![BACK]),
                (answer("{}", false), vec![BACK_AS_IS]),
                (answer_trailers(), vec!["response trailers"]),
            ],
        ),
        case(
            "cut at the buffer's limit",
            BUFFERED_PARTIAL,
            STREAMED,
            vec![
                (post(), vec![AS_IS]),
                (body(one, false), vec![BODY_TO]),
                (ok(false), vec![BACK]),
                (answer("{", false), vec![BACK_AS_IS]),
                (answer("}", true), vec![BACK_AS_IS]),
            ],
        ),
        case(
            "cut nowhere",
            BUFFERED_PARTIAL,
            NONE,
            vec![
                (post(), vec![AS_IS]),
                (body(CHAT, true), vec![BODY_TO]),
                (ok(true), vec![BACK]),
            ],
        ),
    ]
}

fn others() -> Vec<Case> {
    let case = |name, request, response, steps| Case {
        name,
        modes: (request, response),
        steps,
    };
    let (one, two) = pieces();
    vec![
        case(
            "headers only",
            NONE,
            NONE,
            vec![(post(), vec![TO]), (ok(false), vec![BACK])],
        ),
        case(
            "headers only, no body",
            NONE,
            NONE,
            vec![(get(), vec![TO]), (ok(true), vec![BACK])],
        ),
        case(
            "full duplex, response not shown",
            FULL_DUPLEX_STREAMED,
            NONE,
            vec![
                (post(), vec![]),
                (body(CHAT, true), vec![TO, BODY]),
                (ok(false), vec![BACK]),
            ],
        ),
        case(
            "streamed",
            STREAMED,
            STREAMED,
            vec![
                (post(), vec![TO]),
                (body(one, false), vec![BODY_AS_IS]),
                (body(two, true), vec![BODY_AS_IS]),
                (ok(false), vec![BACK]),
                (answer("{}", false), vec![BACK_AS_IS]),
                (answer("", true), vec![BACK_AS_IS]),
            ],
        ),
        case(
            "streamed, trailers",
            STREAMED,
            STREAMED,
            vec![
                (post(), vec![TO]),
                (body(CHAT, false), vec![BODY_AS_IS]),
                (trailers(), vec!["request trailers"]),
                (ok(false), vec![BACK]),
                (answer_trailers(), vec!["response trailers"]),
            ],
        ),
        case(
            "streamed, answered before the request is whole",
            STREAMED,
            STREAMED,
            vec![
                (post(), vec![TO]),
                (body(one, false), vec![BODY_AS_IS]),
                (ok(false), vec![BACK]),
                (body(two, true), vec![BODY_AS_IS]),
                (answer("{}", true), vec![BACK_AS_IS]),
            ],
        ),
    ]
}

fn every_case() -> Vec<Case> {
    full_duplex()
        .into_iter()
        .chain(buffered())
        .chain(others())
        .collect()
}

/// Plays the first steps of a case.
async fn play(proxy: &Proxy, case: &Case, address: &str, steps: usize) -> Exchange {
    let mut exchange = proxy.open(case.modes).await;
    for (number, (phase, expected)) in case.steps.iter().take(steps).enumerate() {
        exchange.send(phase.clone()).await;
        for line in expected {
            let said = exchange.said().await.to_string();
            assert_eq!(
                said.replace(address, "A"),
                *line,
                "{}, step {number}",
                case.name
            );
        }
    }
    exchange
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mode_is_answered_in_its_own_way() {
    let (engines, picker, proxy) = picker(1, "").await;
    let address = engines[0].address().to_string();
    for case in every_case() {
        play(&proxy, &case, &address, usize::MAX)
            .await
            .finish()
            .await;
        picker.assert_guards_at_zero().await;
    }
    let odd = picker
        .metric(&["oddities_total", "second_end_of_stream"])
        .await;
    assert_eq!(
        (odd, picker.metric(&["oddities_total"]).await),
        (1.0, 1.0),
        "nothing else was odd"
    );
    assert_nothing_left(&picker).await;
}

/// At whatever point Envoy goes away, by a reset or by ending its side, nothing is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_can_end_at_every_point() {
    let (engines, picker, proxy) = picker(1, "").await;
    let address = engines[0].address().to_string();
    for case in every_case() {
        for steps in 0..case.steps.len() {
            drop(play(&proxy, &case, &address, steps).await);
            let mut exchange = play(&proxy, &case, &address, steps).await;
            exchange.half_close();
            while exchange.answer().await.ok().flatten().is_some() {}
        }
    }
    assert_nothing_left(&picker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn modes_that_are_not_announced_are_full_duplex() {
    let (engines, picker, proxy) = picker(1, "").await;
    let mut exchange = proxy.open((NONE, NONE)).await.unannounced();
    exchange.send(post()).await;
    exchange.send(body(CHAT, true)).await;
    let to = format!("request headers: to {}, reroute", engines[0].address());
    assert_eq!(exchange.said().await.to_string(), to);
    assert_eq!(exchange.said().await.to_string(), BODY);
    exchange.send(ok(false)).await;
    assert_eq!(exchange.said().await.to_string(), BACK);
    exchange.send(answer("{}", true)).await;
    assert_eq!(
        exchange.said().await.to_string(),
        "response body: 2 bytes, end"
    );
    exchange.finish().await;
    assert_nothing_left(&picker).await;
}

/// Envoy does not wait for answers then, and refuses them.
#[tokio::test(flavor = "multi_thread")]
async fn an_observed_request_is_not_answered() {
    let (_engines, picker, proxy) = picker(1, "").await;
    let mut exchange = proxy.open((NONE, STREAMED)).await.observing();
    for phase in [
        post(),
        ok(false),
        answer("data: {}\n\n", false),
        answer("", true),
    ] {
        exchange.send(phase).await;
    }
    exchange.finish().await;
    let held = picker.view("/debug/held").await;
    assert_eq!(held["main"]["totals"]["arrived"], 0, "{held}");
    assert_nothing_left(&picker).await;
}
