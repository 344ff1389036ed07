//! Answers in pieces: cut inside characters and events, relayed byte by byte, read all the same.

use std::sync::Arc;

use bytes::Bytes;
use wicketgate_epp::extproc::proto::{
    HttpBody, Phase,
    body_mode::{FULL_DUPLEX_STREAMED, STREAMED},
};
use wicketgate_testkit::{
    client::{Caller, Version, chat, full, request},
    cluster::{Command, Front},
    scripted::{IDLE, Reply, Scripted},
};

use super::placed;
use crate::{
    extproc_phases::{assert_nothing_left, body, post, response},
    wicketgate,
};

/// Characters of three and four bytes, a usage in an event of its own, the end mark.
const EVENTS: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"日本🙂\"}}]}\n\n\
    data: {\"usage\":{\"completion_tokens\":3}}\n\ndata: [DONE]\n\n";

/// The name that an engine may use inside, in an event without a usage.
const NAMED: &str = "data: {\"model\":\"base-v1\",\"choices\":[]}\n\n";

/// Prompt tokens in the first event, output tokens in the last one; line ends of every kind, comments, no space after
/// the colon, two events in one piece, bytes after the end mark, no blank line at the end.
const ODD: &str = ": hello\r\n\r\ndata:{\"usage\":{\"prompt_tokens\":7}}\r\n\r\n\
    data: {\"choices\":[{\"delta\":{\"content\":\"é\"}}]}\n\ndata: {\"choices\":[]}\n\n\
    data: {\"usage\":{\"completion_tokens\":5}}\r\rdata: [DONE]\n\nrubbish\n\ndata: {\"usage\":";

fn cut(text: &str, at: usize) -> Vec<Bytes> {
    let (a, b) = text.as_bytes().split_at(at);
    vec![Bytes::copy_from_slice(a), Bytes::copy_from_slice(b)]
}

/// C08 and the answer's part of C07: through the HTTP front an answer that is cut anywhere arrives as it was sent.
#[tokio::test(flavor = "multi_thread")]
async fn any_cut_is_relayed_as_it_is() {
    let answers: Vec<Vec<Bytes>> = [EVENTS, NAMED, ODD]
        .iter()
        .flat_map(|text| (0..=text.len()).map(|at| cut(text, at)))
        .collect();
    let answers = Arc::new(answers);
    let sent = Arc::clone(&answers);
    let engine = Scripted::start(Reply::page(IDLE), move |number| {
        Reply::events(sent[number as usize].clone())
    })
    .await;
    let front = Front::start(wicketgate(), Command::Serve, &[engine.address]).await;
    let mut caller = Caller::connect(front.data, Version::H1).await;
    for pieces in answers.iter() {
        let sent = request("POST", "/v1/chat/completions", &[], full(chat(5, 3, true)));
        let answer = caller.call(sent).await;
        assert_eq!(answer.body, pieces.concat(), "{pieces:?}");
    }
    front.assert_guards_at_zero().await;
    let (events, odd) = (EVENTS.len() + 1, ODD.len() + 1);
    let tokens = async |kind| front.metric(&["wicketgate_tokens_total", kind]).await;
    assert_eq!(tokens("completion").await, (3 * events + 5 * odd) as f64);
    assert_eq!(tokens("prompt").await, (7 * odd) as f64);
    let ok = front.metric(&["requests_total", "outcome=\"ok\""]).await;
    assert_eq!(ok, answers.len() as f64);
}

/// C08: the same through ext_proc, where each piece is answered with itself or with leave to pass.
#[tokio::test(flavor = "multi_thread")]
async fn any_cut_is_relayed_to_envoy_as_it_is() {
    let (_engines, picker, proxy) = crate::extproc_phases::picker(1, "").await;
    let chat = chat(5, 3, true);
    for mode in [FULL_DUPLEX_STREAMED, STREAMED] {
        for at in 0..=EVENTS.len() {
            let mut exchange = proxy.open((FULL_DUPLEX_STREAMED, mode)).await;
            exchange.send(post()).await;
            exchange.send(body(chat.clone(), true)).await;
            placed(&mut exchange).await;
            exchange.said().await;
            exchange
                .send(response("200", "text/event-stream", false))
                .await;
            exchange.said().await;
            for (piece, end_of_stream) in cut(EVENTS, at).into_iter().zip([false, true]) {
                let body = piece.clone();
                exchange
                    .send(Phase::ResponseBody(HttpBody {
                        body,
                        end_of_stream,
                    }))
                    .await;
                let said = exchange.said().await;
                let expected = (mode == FULL_DUPLEX_STREAMED).then_some((piece, end_of_stream));
                assert_eq!(said.changes().piece, expected, "cut at {at}: {said}");
            }
            exchange.finish().await;
        }
    }
    assert_nothing_left(&picker).await;
    let tokens = picker.metric(&["tokens_total", "completion"]).await;
    assert_eq!(tokens, (2 * 3 * (EVENTS.len() + 1)) as f64);
}

/// C08: an event without an end is not read for ever, and is relayed all the same; the next answer is read again.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_without_an_end_is_relayed() {
    let long: Vec<Bytes> = std::iter::once(Bytes::from_static(b"data: {\"x\":\""))
        .chain(std::iter::repeat_n(Bytes::from(vec![b'a'; 1 << 16]), 40))
        .chain([Bytes::from_static(
            b"\"}\n\ndata: {\"usage\":{\"completion_tokens\":9}}\n\n",
        )])
        .collect();
    let whole = long.concat();
    let engine = Scripted::start(Reply::page(IDLE), move |number| {
        Reply::events(match number {
            0 => long.clone(),
            _ => vec![Bytes::from_static(EVENTS.as_bytes())],
        })
    })
    .await;
    let front = Front::start(wicketgate(), Command::Serve, &[engine.address]).await;
    for (expected, tokens) in [(whole.as_slice(), 0.0), (EVENTS.as_bytes(), 3.0)] {
        let mut caller = Caller::connect(front.data, Version::H2).await;
        let sent = request("POST", "/v1/chat/completions", &[], full(chat(5, 3, true)));
        assert!(caller.call(sent).await.body == expected);
        front.assert_guards_at_zero().await;
        assert_eq!(front.metric(&["tokens_total", "completion"]).await, tokens);
    }
}
