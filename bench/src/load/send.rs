//! Sends a plan and watches what comes back.

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use http_body_util::BodyExt as _;
use tokio::sync::mpsc;
use wicketgate_wire::UsageObserver;

use super::{
    plan::Planned,
    report::{LoadReport, Requests, Times},
};
use crate::client::{Client, post};

/// Longest wait for answers after the last request was sent.
const TAIL: Duration = Duration::from_secs(120);
/// Lateness that a timer's own coarseness explains, whatever the rate.
const LATE_FLOOR: Duration = Duration::from_millis(25);

/// Hears how a run goes.
pub trait Progress: Send + Sync {
    /// Called after each end of a request.
    fn update(&self, requests: &Requests, in_flight: u64, elapsed: Duration);
}

/// Hears nothing.
pub struct Silent;

impl Progress for Silent {
    fn update(&self, _: &Requests, _: u64, _: Duration) {}
}

/// How one request ended.
enum End {
    Ok {
        first: Duration,
        rest: Duration,
        tokens: u64,
    },
    Shed,
    Failed,
    Cancelled,
}

/// One request's story.
struct Story {
    late: Duration,
    end: End,
    prompt_tokens: u64,
    cached_tokens: u64,
    cached_known: bool,
}

/// Sends a plan to `targets`, request by request in turn, on `path`.
pub async fn run(
    plan: Vec<Planned>,
    targets: Arc<[SocketAddr]>,
    path: &str,
    progress: &dyn Progress,
) -> LoadReport {
    let client = Arc::new(Client::default());
    let path: Arc<str> = path.into();
    let span = plan.last().map_or(Duration::ZERO, |last| last.at);
    let offered = plan.len() as u64;
    let (stories, mut told) = mpsc::channel(1024);
    let start = Instant::now();
    let sender = tokio::spawn(async move {
        for (index, planned) in plan.into_iter().enumerate() {
            tokio::time::sleep_until((start + planned.at).into()).await;
            let Some(target) = targets.get(index % targets.len().max(1)).copied() else {
                return;
            };
            let (client, path, stories) = (Arc::clone(&client), Arc::clone(&path), stories.clone());
            tokio::spawn(async move {
                let story = one(&client, target, &path, planned, start).await;
                // Nobody listens any more once the tail is over.
                let _ = stories.send(story).await;
            });
        }
    });
    let mut totals = Totals::new(offered);
    let deadline = tokio::time::Instant::from_std(start + span) + TAIL;
    while let Ok(Some(story)) = tokio::time::timeout_at(deadline, told.recv()).await {
        totals.add(&story);
        let done = totals.requests;
        let over = done.ok + done.shed + done.failed + done.cancelled;
        progress.update(&done, offered.saturating_sub(over), start.elapsed());
    }
    sender.abort();
    totals.report(span, start.elapsed())
}

struct Totals {
    requests: Requests,
    ttft: Times,
    tpot: Times,
    late: Times,
    prompt: u64,
    cached: u64,
    cached_known: bool,
}

impl Totals {
    fn new(offered: u64) -> Totals {
        Totals {
            requests: Requests {
                offered,
                ..Requests::default()
            },
            ttft: Times::new(),
            tpot: Times::new(),
            late: Times::new(),
            prompt: 0,
            cached: 0,
            cached_known: false,
        }
    }

    fn add(&mut self, story: &Story) {
        self.late.add(story.late);
        self.prompt += story.prompt_tokens;
        self.cached += story.cached_tokens;
        self.cached_known |= story.cached_known;
        match story.end {
            End::Ok {
                first,
                rest,
                tokens,
            } => {
                self.requests.ok += 1;
                self.ttft.add(first);
                if let Some(gaps) = u32::try_from(tokens)
                    .ok()
                    .and_then(|tokens| tokens.checked_sub(1))
                    .filter(|gaps| *gaps > 0)
                {
                    self.tpot.add(rest / gaps);
                }
            }
            End::Shed => self.requests.shed += 1,
            End::Failed => self.requests.failed += 1,
            End::Cancelled => self.requests.cancelled += 1,
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "counts of a run are far below 2^52"
    )]
    fn report(mut self, span: Duration, elapsed: Duration) -> LoadReport {
        let done = self.requests;
        // What has not come back by the end of the tail has failed.
        self.requests.failed += done.offered - (done.ok + done.shed + done.failed + done.cancelled);
        let span = span.as_secs_f64().max(1e-9);
        let period = Duration::from_secs_f64(span / done.offered.max(1) as f64);
        let late_p99_ms = self.late.ms(0.99);
        let allowed = LATE_FLOOR.max(period / 100).as_secs_f64() * 1e3;
        LoadReport {
            requests: self.requests,
            offered_rps: done.offered as f64 / span,
            achieved_rps: done.ok as f64 / elapsed.as_secs_f64().max(span),
            ttft_ms: self.ttft.latency(),
            tpot_ms: self.tpot.latency(),
            engine_cached_share: (self.cached_known && self.prompt > 0)
                .then(|| self.cached as f64 / self.prompt as f64),
            late_p99_ms,
            valid: late_p99_ms <= allowed,
        }
    }
}

async fn one(
    client: &Client,
    target: SocketAddr,
    path: &str,
    planned: Planned,
    start: Instant,
) -> Story {
    let due = start + planned.at;
    let mut story = Story {
        late: due.elapsed(),
        end: End::Failed,
        prompt_tokens: 0,
        cached_tokens: 0,
        cached_known: false,
    };
    let call = call(client, target, path, planned.body, due, &mut story);
    let end = match planned.cancel {
        None => call.await,
        Some(after) => match tokio::time::timeout(after, call).await {
            Ok(end) => end,
            Err(_) => Ok(End::Cancelled),
        },
    };
    story.end = end.unwrap_or(End::Failed);
    story
}

async fn call(
    client: &Client,
    target: SocketAddr,
    path: &str,
    body: bytes::Bytes,
    due: Instant,
    story: &mut Story,
) -> io::Result<End> {
    let mut connection = client.connection(target).await?;
    let answer = connection.send(post(path, body)?).await?;
    let status = answer.status().as_u16();
    let mut observer = UsageObserver::sse();
    let mut first = None;
    let mut incoming = answer.into_body();
    while let Some(frame) = incoming.frame().await {
        if let Ok(data) = frame.map_err(io::Error::other)?.into_data() {
            observer.feed(&data);
            if first.is_none() && observer.first_content() {
                first = Some(due.elapsed());
            }
        }
    }
    observer.finish();
    client.keep(target, connection);
    let usage = observer.usage();
    story.prompt_tokens = usage.prompt_tokens.unwrap_or(0);
    story.cached_tokens = usage.cached_tokens.unwrap_or(0);
    story.cached_known = usage.cached_tokens.is_some();
    Ok(match (status, first) {
        (429 | 503, _) => End::Shed,
        (200, Some(first)) if observer.done() && !observer.error_seen() => End::Ok {
            first,
            rest: due.elapsed().saturating_sub(first),
            tokens: usage.completion_tokens.unwrap_or(0),
        },
        _ => End::Failed,
    })
}
