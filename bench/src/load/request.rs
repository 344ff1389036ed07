//! One request from its planned time to its end.

use std::{
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use wicketgate_wire::{Usage, UsageObserver};

use super::{plan::Planned, run::Target, sse::TextWatch};
use crate::client::Client;

/// Names of headers in which servers say why they refuse, the most telling one first.
const REASONS: [&str; 2] = ["x-llm-d-request-dropped-reason", "x-request-dropped-reason"];
/// Longest reason that is kept, in bytes.
const REASON_LENGTH: usize = 64;

/// How a request ended.
pub(super) enum End {
    /// Answered whole; `took` counts from the planned time.
    Ok {
        stream: Option<Stream>,
        took: Duration,
    },
    /// Refused on purpose.
    Shed { reason: String, took: Duration },
    /// Any other error.
    Failed { cause: String },
    /// Given up by its caller.
    Cancelled,
}

/// When text came, from the planned time.
#[derive(Clone, Copy)]
pub(super) struct Stream {
    pub(super) first: Duration,
    pub(super) last: Duration,
}

/// One request's story.
pub(super) struct Story {
    /// How late it left the generator.
    pub(super) lag: Duration,
    /// When it left, from the start of the run.
    pub(super) sent: Duration,
    /// When it was over, from the start of the run.
    pub(super) ended: Duration,
    pub(super) end: End,
    pub(super) usage: Usage,
}

/// Why an exchange broke.
enum Broken {
    Connect,
    Answer,
}

/// Sends a request whose time has come.
pub(super) async fn one(
    client: &Client,
    target: &Target,
    planned: Planned,
    start: Instant,
    timeout: Duration,
) -> Story {
    let due = start + planned.at;
    let mut story = Story {
        lag: due.elapsed(),
        sent: start.elapsed(),
        ended: Duration::ZERO,
        end: End::Cancelled,
        usage: Usage::default(),
    };
    // Both count from the planned time, as the latencies do.
    let limit = planned.cancel.map_or(timeout, |cancel| cancel.min(timeout));
    let cancels = planned.cancel.is_some_and(|cancel| cancel <= timeout);
    let exchanged = exchange(client, target, &planned, due, &mut story.usage);
    story.end = match tokio::time::timeout_at((due + limit).into(), exchanged).await {
        Ok(Ok(end)) => end,
        Ok(Err(Broken::Connect)) => failed("connect"),
        Ok(Err(Broken::Answer)) => failed("broken"),
        Err(_) if cancels => End::Cancelled,
        Err(_) => failed("timeout"),
    };
    story.ended = start.elapsed();
    story
}

fn failed(cause: &str) -> End {
    let cause = cause.to_owned();
    End::Failed { cause }
}

async fn exchange(
    client: &Client,
    target: &Target,
    planned: &Planned,
    due: Instant,
    usage: &mut Usage,
) -> Result<End, Broken> {
    let address = target.address(planned.index).ok_or(Broken::Connect)?;
    let request = target.request(planned).map_err(|_| Broken::Answer)?;
    let (connection, response) = send(client, address, request).await?;
    let (parts, body) = response.into_parts();
    let read = read(body, planned.stream, due).await?;
    client.keep(address, connection);
    *usage = read.observer.usage();
    let status = parts.status.as_u16();
    if let Some(reason) = shed_reason(status, &parts.headers) {
        let took = due.elapsed();
        return Ok(End::Shed { reason, took });
    }
    Ok(match (status, planned.stream) {
        (200, _) if read.observer.error_seen() => failed("error_in_stream"),
        (200, true) if !read.observer.done() => failed("cut"),
        (200, streams) => End::Ok {
            // A stream without any text has its end as its first sign.
            stream: streams.then(|| read.text.unwrap_or_else(|| Stream::at(due.elapsed()))),
            took: due.elapsed(),
        },
        (status, _) => failed(&format!("status_{status}")),
    })
}

/// On a kept connection or a new one. One that the server closed meanwhile took nothing, so a new one is tried.
async fn send(
    client: &Client,
    address: SocketAddr,
    request: Request<Full<Bytes>>,
) -> Result<(crate::client::Connection, Response<Incoming>), Broken> {
    if let Some(mut kept) = client.idle(address) {
        match kept.try_send(request.clone()).await {
            Ok(response) => return Ok((kept, response)),
            Err(error) if error.is_canceled() || error.is_closed() => {}
            Err(_) => return Err(Broken::Answer),
        }
    }
    let connect = |_: io::Error| Broken::Connect;
    let mut new = crate::client::Connection::open(address)
        .await
        .map_err(connect)?;
    let sent = new.try_send(request).await;
    Ok((new, sent.map_err(|_| Broken::Answer)?))
}

/// What an answer's body told.
struct Read {
    observer: UsageObserver,
    text: Option<Stream>,
}

impl Stream {
    fn at(time: Duration) -> Stream {
        Stream {
            first: time,
            last: time,
        }
    }
}

async fn read(mut body: Incoming, stream: bool, due: Instant) -> Result<Read, Broken> {
    let mut read = Read {
        observer: if stream {
            UsageObserver::sse()
        } else {
            UsageObserver::json()
        },
        text: None,
    };
    let mut watch = TextWatch::default();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| Broken::Answer)?.into_data() else {
            continue;
        };
        read.observer.feed(&data);
        if stream && watch.feed(&data) {
            let now = due.elapsed();
            read.text.get_or_insert(Stream::at(now)).last = now;
        }
    }
    read.observer.finish();
    Ok(read)
}

/// The reason of a refusal that is meant as one: 429 or 503 with a reason or a time to come back.
fn shed_reason(status: u16, headers: &HeaderMap) -> Option<String> {
    if !matches!(status, 429 | 503) {
        return None;
    }
    let said = REASONS.iter().find_map(|name| headers.get(*name));
    let text = match said.map(|reason| String::from_utf8_lossy(reason.as_bytes())) {
        Some(text) => text.chars().take(REASON_LENGTH).collect(),
        None if headers.contains_key(header::RETRY_AFTER) => "retry-after".to_owned(),
        None => return None,
    };
    Some(format!("{status} {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(
            header::HeaderName::from_static(name),
            header::HeaderValue::from_static(value),
        )])
    }

    #[test]
    fn a_refusal_says_why_or_when() {
        let retry = headers("retry-after", "1");
        let reason = headers("x-llm-d-request-dropped-reason", "rejected-saturated");
        let none = HeaderMap::new();
        assert_eq!(shed_reason(429, &retry).unwrap(), "429 retry-after");
        assert_eq!(shed_reason(503, &reason).unwrap(), "503 rejected-saturated");
        assert_eq!(shed_reason(503, &none), None);
        assert_eq!(shed_reason(500, &retry), None);
        let long: &'static str = "a".repeat(1000).leak();
        assert_eq!(
            shed_reason(429, &headers(REASONS[1], long)).unwrap().len(),
            4 + REASON_LENGTH
        );
    }
}
