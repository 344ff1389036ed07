//! What a picker must do in ext_proc beside answering each phase: bytes, counts, hints.

use wicketgate_epp::extproc::proto::body_mode::{FULL_DUPLEX_STREAMED, NONE};
use wicketgate_testkit::{cluster::addresses, said::Said, stream::list};

use crate::extproc_phases::{
    BACK, BODY, CHAT, answer, assert_nothing_left, body, get, ok, picker, post,
};

/// The bytes that go on are the bytes that came, however they were cut.
#[tokio::test(flavor = "multi_thread")]
async fn the_body_goes_on_byte_by_byte() {
    let (_engines, picker, proxy) = picker(1, "").await;
    let chat = wicketgate_testkit::client::chat(5, 3, false);
    for cut in [1, 2, 3, 7, chat.len()] {
        let mut exchange = proxy.open((FULL_DUPLEX_STREAMED, NONE)).await;
        exchange.send(post()).await;
        let pieces: Vec<&[u8]> = chat.chunks(cut).collect();
        for (number, piece) in pieces.iter().enumerate() {
            exchange
                .send(body(piece.to_vec(), number + 1 == pieces.len()))
                .await;
        }
        assert!(matches!(exchange.said().await, Said::RequestHeaders(_)));
        let mut got = Vec::new();
        loop {
            let (bytes, end) = exchange
                .said()
                .await
                .changes()
                .piece
                .expect("a piece of body");
            got.extend_from_slice(&bytes);
            if end {
                break;
            }
        }
        assert_eq!(got, chat, "cut every {cut} bytes");
    }
    assert_nothing_left(&picker).await;
}

/// A refused chat is counted as what it is, where it would have gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_counted_under_its_labels() {
    let (_engines, picker, proxy) = picker(1, "").await;
    let mut exchange = proxy.open((FULL_DUPLEX_STREAMED, NONE)).await;
    exchange.send(post()).await;
    exchange.send(body("{", true)).await;
    assert_eq!(
        exchange.said().await.to_string(),
        "immediate: 400 wicketgate_invalid_body"
    );
    let labels = [
        "requests_total",
        "\"chat_completions\"",
        "pool=\"main\"",
        "invalid_body",
    ];
    assert_eq!(picker.metric(&labels).await, 1.0);
    drop(exchange);
    assert_nothing_left(&picker).await;
}

/// Whom the proxy says that it served counts, not whom we chose.
#[tokio::test(flavor = "multi_thread")]
async fn the_counts_go_to_whoever_served() {
    let (engines, picker, proxy) = picker(2, "").await;
    let mut exchange = proxy
        .open((FULL_DUPLEX_STREAMED, FULL_DUPLEX_STREAMED))
        .await;
    exchange.send(post()).await;
    exchange.send(body(CHAT, true)).await;
    let chosen = exchange.said().await.changes().destination.unwrap();
    let first = chosen.split(',').next().unwrap().to_owned();
    let all = addresses(&engines);
    let other = all
        .iter()
        .map(ToString::to_string)
        .find(|address| *address != first)
        .unwrap();
    let in_flight = async |address: &str| {
        let view = picker.view("/debug/endpoints").await;
        let rows = view["main"].as_array().unwrap();
        let row = rows.iter().find(|row| row["address"] == address).unwrap();
        row["in_flight"]["requests"].as_u64().unwrap()
    };
    assert_eq!((in_flight(&first).await, in_flight(&other).await), (1, 0));
    assert_eq!(exchange.said().await.to_string(), BODY);
    let served = "x-gateway-destination-endpoint-served";
    exchange.metadata(
        "envoy.lb",
        served,
        prost_types::value::Kind::StringValue(other.clone()),
    );
    exchange.send(ok(false)).await;
    assert_eq!(exchange.said().await.to_string(), BACK);
    assert_eq!((in_flight(&first).await, in_flight(&other).await), (0, 1));
    exchange.send(answer("{}", true)).await;
    exchange.said().await;
    exchange.finish().await;
    assert_eq!((in_flight(&first).await, in_flight(&other).await), (0, 0));
    assert_eq!(
        picker.metric(&["wicketgate_served_elsewhere_total"]).await,
        1.0
    );
    assert_nothing_left(&picker).await;
}

/// S07: hints of every shape, by list and by string.
#[tokio::test(flavor = "multi_thread")]
async fn subset_hints_of_every_shape() {
    use prost_types::value::Kind;
    let (engines, picker, proxy) = picker(3, "").await;
    let at: Vec<String> = addresses(&engines)
        .iter()
        .map(ToString::to_string)
        .collect();
    let text = |text: String| Kind::StringValue(text);
    let cases = [
        (list(&[&at[1]]), Some(&at[1])),
        (text(at[2].clone()), Some(&at[2])),
        (text(format!(" {} , 10.0.0.1:8000,", at[0])), Some(&at[0])),
        (list(&["10.0.0.1:8000", &at[0], "pod-1", ""]), Some(&at[0])),
        // The same address with another port is another endpoint.
        (list(&["127.0.0.1:1", &at[1]]), Some(&at[1])),
        (list(&["127.0.0.1:1"]), None),
        (list(&[]), None),
        (text(String::new()), None),
        (list(&["10.0.0.1:8000"]), None),
        (list(&["pod-1"]), None),
        (Kind::NumberValue(7.0), None),
        (Kind::BoolValue(true), None),
        (Kind::NullValue(0), None),
    ];
    for (hint, expected) in cases {
        for phases in [vec![get()], vec![post(), body(CHAT, true)]] {
            let mut exchange = proxy.open((FULL_DUPLEX_STREAMED, NONE)).await;
            let key = "x-gateway-destination-endpoint-subset";
            exchange.metadata("envoy.lb.subset_hint", key, hint.clone());
            for phase in phases {
                exchange.send(phase).await;
            }
            let said = exchange.said().await;
            match expected {
                Some(address) => assert_eq!(said.changes().destination.as_ref(), Some(address)),
                None => {
                    assert_eq!(
                        said.to_string(),
                        "immediate: 503 wicketgate_subset_empty",
                        "{hint:?}"
                    );
                }
            }
        }
    }
    // The same key in somebody else's namespace is no hint.
    let mut exchange = proxy.open((NONE, NONE)).await;
    exchange.metadata("other", "x-gateway-destination-endpoint-subset", list(&[]));
    exchange.send(post()).await;
    assert!(exchange.said().await.changes().destination.is_some());
    drop(exchange);
    assert_nothing_left(&picker).await;
}
