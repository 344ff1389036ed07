//! Messages that no correct Envoy sends.

use wicketgate_epp::extproc::proto::{
    HttpHeaders, Phase,
    body_mode::{BUFFERED, BUFFERED_PARTIAL, FULL_DUPLEX_STREAMED, NONE, STREAMED},
};
use wicketgate_testkit::{client::chat, said::Said};

use crate::extproc_phases::{
    CHAT, answer, answer_trailers, assert_nothing_left, body, get, picker, post, request, response,
    trailers,
};

/// A failure of the stream itself must not look like success: Envoy would go on with an empty body.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_message_is_never_a_clean_end() {
    let (_engines, picker, proxy) = picker(1, "  maxBodyBytes: 64Ki\n").await;
    let ended = proxy.garbage().await;
    assert!(
        ended.is_err(),
        "a message that cannot be decoded: {ended:?}"
    );
    // One message far larger than any piece may be.
    let mut exchange = proxy.open((FULL_DUPLEX_STREAMED, NONE)).await;
    exchange.send(post()).await;
    exchange.try_send(body(vec![b' '; 1 << 20], true)).await;
    match exchange.answer().await.map(|answer| answer.map(Said::from)) {
        Err(_) => {}
        Ok(Some(Said::Immediate { status, .. })) => assert_eq!(status, 413),
        other => panic!("a message that is too large: {other:?}"),
    }
    assert_nothing_left(&picker).await;
}

/// C01 message by message: exactly at the limit passes, one byte more is 413, announced or not.
#[tokio::test(flavor = "multi_thread")]
async fn the_body_limit_is_exact() {
    let (_engines, picker, proxy) = picker(1, "  maxBodyBytes: 64Ki\n").await;
    let padded = |bytes: usize| format!("{CHAT}{}", " ".repeat(bytes - CHAT.len()));
    for mode in [FULL_DUPLEX_STREAMED, BUFFERED] {
        let mut exchange = proxy.open((mode, NONE)).await;
        exchange
            .send(request(
                "POST",
                "/v1/chat/completions",
                &[("content-length", "65537")],
                false,
            ))
            .await;
        assert_eq!(
            exchange.said().await.to_string(),
            "immediate: 413 wicketgate_request_too_large"
        );
        exchange.finish().await;
        for (bytes, fits) in [(65_536, true), (65_537, false)] {
            let mut exchange = proxy.open((mode, NONE)).await;
            exchange.send(post()).await;
            if mode == BUFFERED {
                assert_eq!(
                    exchange.said().await.to_string(),
                    "request headers: as it is"
                );
            }
            exchange.send(body(padded(bytes), true)).await;
            let said = exchange.said().await;
            if fits {
                assert!(said.changes().destination.is_some(), "{said}");
                continue;
            }
            assert_eq!(
                said.to_string(),
                "immediate: 413 wicketgate_request_too_large"
            );
            let Said::Immediate { body, .. } = said else {
                unreachable!("it reads like one")
            };
            assert!(String::from_utf8_lossy(&body).contains("65536"), "{body:?}");
            exchange.finish().await;
        }
    }
    assert_nothing_left(&picker).await;
}

/// The order of phases is Envoy's to keep; one that does not keep it harms nobody but its own request.
#[tokio::test(flavor = "multi_thread")]
async fn phases_in_any_order_leave_nothing() {
    let (_engines, picker, proxy) = picker(2, "").await;
    let whole = chat(5, 3, false);
    let phases = [
        post(),
        get(),
        body(whole.clone(), false),
        body(whole, true),
        body("", true),
        trailers(),
        response("200", "text/event-stream", false),
        response("xyz", "", true),
        answer("data: {\"choices\":[]}\n\n", false),
        answer("data: [DONE]\n\n", true),
        answer_trailers(),
    ];
    let modes = [
        NONE,
        STREAMED,
        BUFFERED,
        BUFFERED_PARTIAL,
        FULL_DUPLEX_STREAMED,
        99,
    ];
    let mut rng = fastrand::Rng::with_seed(11);
    for _ in 0..400 {
        let mode = |rng: &mut fastrand::Rng| modes[rng.usize(..modes.len())];
        let mut exchange = proxy.open((mode(&mut rng), mode(&mut rng))).await;
        for _ in 0..rng.usize(..8) {
            if !exchange
                .try_send(phases[rng.usize(..phases.len())].clone())
                .await
            {
                break;
            }
        }
        if rng.bool() {
            exchange.half_close();
            while exchange.answer().await.ok().flatten().is_some() {}
        }
    }
    let mut exchange = proxy.open((FULL_DUPLEX_STREAMED, NONE)).await;
    exchange.send(get()).await;
    assert!(exchange.said().await.changes().destination.is_some());
    drop(exchange);
    assert_nothing_left(&picker).await;
    assert_eq!(
        picker
            .process
            .words()
            .iter()
            .filter(|line| line.contains("ERROR"))
            .count(),
        0
    );
}

/// Headers that are not text, of any length, or none at all.
#[tokio::test(flavor = "multi_thread")]
async fn odd_headers_do_no_harm() {
    let (_engines, picker, proxy) = picker(1, "").await;
    let long = "a".repeat(60_000);
    for header in [
        ("x-long", long.as_str()),
        (long.as_str(), "x"),
        ("content-length", "-1"),
        ("content-length", "99999999999999999999"),
        ("", ""),
        ("x-\u{1f642}", "\u{1f642}"),
    ] {
        let mut exchange = proxy.open((FULL_DUPLEX_STREAMED, NONE)).await;
        exchange
            .send(request("POST", "/v1/chat/completions", &[header], false))
            .await;
        exchange.send(body(CHAT, true)).await;
        assert!(
            exchange.said().await.changes().destination.is_some(),
            "{:.20}",
            header.0
        );
    }
    let mut exchange = proxy.open((NONE, NONE)).await;
    let none = HttpHeaders {
        headers: None,
        end_of_stream: true,
    };
    exchange.send(Phase::RequestHeaders(none)).await;
    assert!(exchange.said().await.changes().destination.is_some());
    drop(exchange);
    assert_nothing_left(&picker).await;
}
