//! A scripted Envoy against a real picker process: phases that real Envoy does not produce on demand.

use wicketgate_epp::extproc::proto::{Answer, CommonAnswer, ProcessingResponse, body_mode};
use wicketgate_testkit::{
    client::chat,
    cluster::{Command, Front, addresses, engines},
    stream::{Exchange, Proxy},
};

use crate::wicketgate;

const DUPLEX: (i32, i32) = (
    body_mode::FULL_DUPLEX_STREAMED,
    body_mode::FULL_DUPLEX_STREAMED,
);

async fn picker() -> (Vec<wicketgate_sim::engine::EngineHandle>, Front) {
    let engines = engines(2).await;
    let picker = Front::start(wicketgate(), Command::Epp, &addresses(&engines)).await;
    (engines, picker)
}

async fn next(exchange: &mut Exchange) -> ProcessingResponse {
    exchange.answer().await.unwrap().expect("an answer")
}

/// The destination that a head answer sets; checks that the metadata says the same.
fn destination(response: &ProcessingResponse) -> String {
    let common = match response.answer.as_ref().unwrap() {
        Answer::RequestHeaders(common) | Answer::RequestBody(common) => common,
        other => panic!("{other:?}"),
    };
    let mutation = common
        .response
        .as_ref()
        .unwrap()
        .header_mutation
        .as_ref()
        .unwrap();
    let header = mutation.set_headers[0].header.as_ref().unwrap();
    let value = String::from_utf8(header.raw_value.to_vec()).unwrap();
    let metadata = format!("{:?}", response.dynamic_metadata.as_ref().unwrap());
    assert!(metadata.contains(&value), "{metadata}");
    value
}

fn body_of(common: &CommonAnswer) -> (Vec<u8>, bool) {
    let response = common.response.as_ref().unwrap();
    let piece = response
        .body_mutation
        .as_ref()
        .unwrap()
        .streamed_response
        .as_ref()
        .unwrap();
    (piece.body.to_vec(), piece.end_of_stream)
}

/// Sends a chat and reads the answers to it.
async fn place(exchange: &mut Exchange) {
    exchange
        .request_headers("POST", "/v1/chat/completions", false)
        .await;
    exchange.request_body(chat(5, 3, false), true).await;
    destination(&next(exchange).await);
    let Some(Answer::RequestBody(common)) = next(exchange).await.answer else {
        panic!("no body");
    };
    assert_eq!(body_of(&common), (chat(5, 3, false).to_vec(), true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_end_of_stream_is_ignored_and_counted() {
    let (_engines, picker) = picker().await;
    let proxy = Proxy::connect(picker.data).await;
    let mut exchange = proxy.open(DUPLEX).await;
    place(&mut exchange).await;
    exchange.request_body("", true).await;
    exchange.response_headers("200", false).await;
    let head = next(&mut exchange).await.answer.unwrap();
    assert!(matches!(head, Answer::ResponseHeaders(_)), "{head:?}");
    exchange.response_body("{}", true).await;
    let Some(Answer::ResponseBody(common)) = next(&mut exchange).await.answer else {
        panic!("no body");
    };
    assert_eq!(body_of(&common), (b"{}".to_vec(), true));
    exchange.finish().await;
    picker.assert_guards_at_zero().await;
    assert_eq!(
        picker
            .metric(&["oddities_total", "second_end_of_stream"])
            .await,
        1.0
    );
}

/// C03: a request of headers alone, answered in every phase.
#[tokio::test(flavor = "multi_thread")]
async fn headers_alone_are_placed_and_answered() {
    let (engines, picker) = picker().await;
    let proxy = Proxy::connect(picker.data).await;
    for modes in [
        DUPLEX,
        (body_mode::NONE, body_mode::STREAMED),
        (body_mode::BUFFERED, body_mode::BUFFERED),
    ] {
        let mut exchange = proxy.open(modes).await;
        exchange.request_headers("GET", "/v1/models", true).await;
        let placed = destination(&next(&mut exchange).await);
        let known: Vec<String> = addresses(&engines)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert!(
            placed
                .split(',')
                .all(|address| known.iter().any(|known| known == address)),
            "{placed}"
        );
        exchange.response_headers("200", false).await;
        next(&mut exchange).await;
        exchange.response_body("{}", true).await;
        next(&mut exchange).await;
        exchange.finish().await;
    }
    picker.assert_guards_at_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_dropped_gives_back_its_count() {
    let (_engines, picker) = picker().await;
    let proxy = Proxy::connect(picker.data).await;
    let mut exchange = proxy.open(DUPLEX).await;
    place(&mut exchange).await;
    assert_eq!(picker.running().await, 1);
    drop(exchange);
    picker.assert_guards_at_zero().await;
    // Dropped in the middle of an upload: nothing was ever counted.
    let mut exchange = proxy.open(DUPLEX).await;
    exchange
        .request_headers("POST", "/v1/chat/completions", false)
        .await;
    exchange.request_body("{", false).await;
    drop(exchange);
    // And with the whole connection.
    let mut exchange = proxy.open(DUPLEX).await;
    place(&mut exchange).await;
    drop(proxy);
    drop(exchange);
    picker.assert_guards_at_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_json_and_too_much_of_it_get_one_answer() {
    let (_engines, picker) = picker().await;
    let proxy = Proxy::connect(picker.data).await;
    for (body, status) in [
        (b"{\"model\":\"\xff\"}".to_vec(), 400),
        (vec![b' '; (16 << 20) + 1], 413),
    ] {
        let mut exchange = proxy.open(DUPLEX).await;
        exchange
            .request_headers("POST", "/v1/chat/completions", false)
            .await;
        for piece in body.chunks(1 << 20) {
            exchange.request_body(piece.to_vec(), false).await;
        }
        exchange.request_body("", true).await;
        let Some(Answer::Immediate(immediate)) = next(&mut exchange).await.answer else {
            panic!("no immediate answer");
        };
        assert_eq!(immediate.status.unwrap().code, status);
        exchange.finish().await;
    }
    picker.assert_guards_at_zero().await;
}

/// Messages out of order, or without a phase, neither crash the picker nor leave a count.
#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_survived() {
    let (_engines, picker) = picker().await;
    let proxy = Proxy::connect(picker.data).await;
    let mut exchange = proxy.open(DUPLEX).await;
    exchange.response_body("x", false).await;
    exchange.request_trailers().await;
    exchange.request_body("x", true).await;
    exchange.response_headers("abc", true).await;
    drop(exchange);
    let mut exchange = proxy.open((99, -1)).await;
    exchange.request_headers("", "", true).await;
    next(&mut exchange).await;
    drop(exchange);
    picker.assert_guards_at_zero().await;
    let mut exchange = proxy.open(DUPLEX).await;
    place(&mut exchange).await;
}

/// One connection carries any number of requests: HTTP/2 cuts connections on which streams end untidily.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_lasts() {
    let (_engines, picker) = picker().await;
    let proxy = Proxy::connect(picker.data).await;
    for round in 0..3000 {
        let mut exchange = proxy.open(DUPLEX).await;
        exchange.request_headers("GET", "/v1/models", true).await;
        next(&mut exchange).await;
        exchange.response_headers("200", true).await;
        next(&mut exchange).await;
        if round % 3 == 0 {
            drop(exchange);
        } else {
            exchange.finish().await;
        }
    }
    picker.assert_guards_at_zero().await;
    let ok = picker.metric(&["requests_total", "outcome=\"ok\""]).await;
    assert_eq!(ok, 3000.0);
}
