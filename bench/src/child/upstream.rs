//! Engines that cost nothing: captured metrics pages, and answers that are there at once.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;

use super::{
    Running,
    server::{Answer, chunk, chunked_head, open, whole},
};
use crate::{pages::page, raw::header};

/// Pages of each engine, served in turn: a page that never changed would be too kind to caches.
const TURNS: usize = 2;
/// Request header that names the wanted answer.
pub(crate) const ANSWER_HEADER: &str = "x-bench-answer";
/// [`ANSWER_HEADER`] for a stream of [`EVENTS`] events. Anything else gets one JSON answer.
pub(crate) const SSE64: &str = "sse64";
/// Events of a stream, `[DONE]` not counted.
pub(crate) const EVENTS: usize = 64;

/// Pages and how many were served.
struct Pages {
    /// By engine and turn, head included.
    pages: Vec<Vec<Bytes>>,
    next: AtomicUsize,
    served: AtomicU64,
}

impl Pages {
    fn new(engines: usize) -> Pages {
        let kind = "text/plain; version=0.0.4; charset=utf-8";
        let turns = |engine| {
            (0..TURNS)
                .map(|turn| whole(kind, &page(engine, turn)))
                .collect()
        };
        Pages {
            pages: (0..engines).map(turns).collect(),
            next: AtomicUsize::new(0),
            served: AtomicU64::new(0),
        }
    }

    fn get(&self, engine: usize) -> Bytes {
        self.served.fetch_add(1, Relaxed);
        let turn = self.next.fetch_add(1, Relaxed) % TURNS;
        let page = self.pages.get(engine).and_then(|turns| turns.get(turn));
        page.cloned().unwrap_or_default()
    }
}

/// Metrics pages alone.
pub(super) async fn pages(engines: usize) -> io::Result<Running> {
    let pages = Arc::new(Pages::new(engines));
    let served = Arc::clone(&pages);
    let answer: Answer = Arc::new(move |engine, _| vec![pages.get(engine)]);
    let ports = open(engines, answer).await?;
    Ok(Running {
        addresses: ports.addresses.clone(),
        counters: Box::new(move || {
            BTreeMap::from([("pages".to_owned(), served.served.load(Relaxed))])
        }),
        _part: Box::new(ports),
    })
}

/// Engines that answer chat requests at once, with their metrics pages.
pub(super) async fn engines(engines: usize) -> io::Result<Running> {
    let pages = Arc::new(Pages::new(engines));
    let requests = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&requests);
    let (json, stream) = (vec![json_answer()], stream_answer());
    let answer: Answer = Arc::new(move |engine, head| {
        if head.starts_with(b"GET ") {
            return vec![pages.get(engine)];
        }
        requests.fetch_add(1, Relaxed);
        if header(head, ANSWER_HEADER.as_bytes()) == Some(SSE64.as_bytes()) {
            stream.clone()
        } else {
            json.clone()
        }
    });
    let ports = open(engines, answer).await?;
    Ok(Running {
        addresses: ports.addresses.clone(),
        counters: Box::new(move || {
            BTreeMap::from([("requests".to_owned(), counted.load(Relaxed))])
        }),
        _part: Box::new(ports),
    })
}

const USAGE: &str = r#"{"prompt_tokens":512,"total_tokens":640,"completion_tokens":128,"prompt_tokens_details":{"cached_tokens":384}}"#;

fn json_answer() -> Bytes {
    let text = "The river drives the turbine and the gate holds the water back. ".repeat(6);
    whole(
        "application/json",
        &format!(
            r#"{{"id":"chatcmpl-bench","object":"chat.completion","created":1796072868,"model":"bench","choices":[{{"index":0,"message":{{"role":"assistant","content":"{text}"}},"logprobs":null,"finish_reason":"stop"}}],"usage":{USAGE}}}"#
        ),
    )
}

/// Head, events and end of a stream; each event is written for itself, as engines do.
fn stream_answer() -> Vec<Bytes> {
    let event = |inside: &str| {
        let text = format!(
            r#"data: {{"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1796072868,"model":"bench",{inside}}}"#
        );
        chunk(&format!("{text}\n\n"))
    };
    let token = event(
        r#""choices":[{"index":0,"delta":{"content":" river"},"logprobs":null,"finish_reason":null}]"#,
    );
    let usage = event(&format!(r#""choices":[],"usage":{USAGE}"#));
    let mut pieces = vec![chunked_head("text/event-stream; charset=utf-8")];
    pieces.extend(std::iter::repeat_n(token, EVENTS - 1));
    pieces.push(usage);
    pieces.push(chunk("data: [DONE]\n\n"));
    pieces.push(chunk(""));
    pieces
}
