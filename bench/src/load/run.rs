//! Sends a plan and watches what comes back.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, header};
use http_body_util::Full;
use tokio::{sync::mpsc, task::JoinSet};

use super::{
    plan::{Plan, Planned, plan},
    report::{LoadReport, Requests},
    request::{Story, one},
    spec::{Arrivals, LoadSpec, SpecError},
    totals::Totals,
};
use crate::client::Client;

/// Requests made ahead of their time, so that making texts delays no sending.
const AHEAD: usize = 256;
/// From the call to the first request's time zero.
const RUN_UP: Duration = Duration::from_millis(20);
/// How often progress is told.
const TICK: Duration = Duration::from_millis(100);

/// Where requests go.
#[derive(Clone, Debug)]
pub struct Target {
    /// Servers; requests go to them in turn.
    pub addresses: Vec<SocketAddr>,
    /// Path and query.
    pub path: String,
    /// `host` header and further ones; `content-type` is set.
    pub headers: HeaderMap,
}

impl Target {
    /// Chat completions of these servers.
    pub fn chat(addresses: Vec<SocketAddr>) -> Target {
        let host = addresses.first().map(|address| address.to_string());
        let host = HeaderValue::from_str(host.as_deref().unwrap_or_default());
        let mut headers = HeaderMap::new();
        headers.insert(
            header::HOST,
            host.unwrap_or(HeaderValue::from_static("localhost")),
        );
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        Target {
            addresses,
            path: "/v1/chat/completions".to_owned(),
            headers,
        }
    }

    pub(super) fn address(&self, index: u64) -> Option<SocketAddr> {
        let servers = u64::try_from(self.addresses.len()).ok()?;
        let server = usize::try_from(index.checked_rem(servers)?).ok()?;
        self.addresses.get(server).copied()
    }

    pub(super) fn request(&self, planned: &Planned) -> http::Result<Request<Full<Bytes>>> {
        let body = Full::new(planned.body.clone());
        let mut request = Request::post(&self.path).body(body)?;
        self.headers.clone_into(request.headers_mut());
        Ok(request)
    }
}

/// How a run stands.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot {
    /// Since its start.
    pub elapsed: Duration,
    /// How long requests are sent; answers may come later.
    pub duration: Duration,
    /// How requests ended until now.
    pub requests: Requests,
    /// Requests under way.
    pub in_flight: usize,
    /// Median time to first text until now, in milliseconds.
    pub ttft_p50_ms: f64,
}

/// Hears how a run goes.
pub trait Progress: Sync {
    /// Called ten times a second and at the end. Must be quick: it runs between two sendings.
    fn update(&self, snapshot: &Snapshot);
}

/// Hears nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn update(&self, _: &Snapshot) {}
}

impl<F: Fn(&Snapshot) + Sync> Progress for F {
    fn update(&self, snapshot: &Snapshot) {
        self(snapshot);
    }
}

/// Sends the load of `spec` to `target` and waits for every answer, each no longer than the spec's timeout.
///
/// Dropping the future hangs up on everything under way.
///
/// # Errors
/// When the spec makes no sense, or there is no server.
pub async fn run(
    spec: &LoadSpec,
    target: &Target,
    progress: &dyn Progress,
) -> Result<LoadReport, SpecError> {
    let plan = plan(spec)?;
    if target.addresses.is_empty() {
        return Err(SpecError::Zero("the number of servers"));
    }
    let mut planned = made_ahead(plan);
    let first = planned.recv().await;
    let mut run = Run {
        client: Arc::default(),
        target: Arc::new(target.clone()),
        spec,
        progress,
        start: Instant::now() + RUN_UP,
        tasks: JoinSet::new(),
        totals: Totals::new(spec),
    };
    run.send_all(first, &mut planned).await;
    run.finish().await;
    let elapsed = run.start.elapsed();
    Ok(run.totals.report(spec, elapsed))
}

/// Makes the plan's requests on a thread of its own, a bounded number ahead.
fn made_ahead(plan: Plan) -> mpsc::Receiver<Planned> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    tokio::task::spawn_blocking(move || {
        for planned in plan {
            if sender.blocking_send(planned).is_err() {
                // The run is over or was dropped.
                return;
            }
        }
    });
    receiver
}

struct Run<'a> {
    client: Arc<Client>,
    target: Arc<Target>,
    spec: &'a LoadSpec,
    progress: &'a dyn Progress,
    start: Instant,
    tasks: JoinSet<Story>,
    totals: Totals,
}

impl Run<'_> {
    /// Sends each request at its time. Bounded: one that is a whole timeout late has failed when it is sent.
    async fn send_all(&mut self, first: Option<Planned>, planned: &mut mpsc::Receiver<Planned>) {
        let mut tick = tokio::time::interval(TICK);
        let mut next = first;
        let closed = self.spec.arrivals == Arrivals::Closed;
        while let Some(mut request) = next.take() {
            let due = self.start + request.at;
            loop {
                let room = self.tasks.len() < self.spec.max_in_flight;
                tokio::select! {
                    biased;
                    () = tokio::time::sleep_until(due.into()), if room => break,
                    Some(story) = self.tasks.join_next() => self.take(story),
                    _ = tick.tick() => self.tell(),
                }
            }
            if closed {
                request.at = self.start.elapsed();
                if request.at >= self.spec.duration {
                    return;
                }
            }
            self.totals.requests.offered += 1;
            self.send(request);
            next = planned.recv().await;
        }
    }

    fn send(&mut self, request: Planned) {
        let (client, target) = (Arc::clone(&self.client), Arc::clone(&self.target));
        let (start, timeout) = (self.start, self.spec.timeout);
        self.tasks
            .spawn(async move { one(&client, &target, request, start, timeout).await });
    }

    /// Waits for what is under way: no longer than the timeout, which every request has of its own.
    async fn finish(&mut self) {
        let mut tick = tokio::time::interval(TICK);
        while !self.tasks.is_empty() {
            tokio::select! {
                Some(story) = self.tasks.join_next() => self.take(story),
                _ = tick.tick() => self.tell(),
            }
        }
        self.tell();
    }

    fn take(&mut self, story: Result<Story, tokio::task::JoinError>) {
        match story {
            Ok(story) => self.totals.add(story),
            Err(_) => self.totals.lost(),
        }
    }

    fn tell(&self) {
        self.progress.update(&Snapshot {
            elapsed: self.start.elapsed(),
            duration: self.spec.duration,
            requests: self.totals.requests,
            in_flight: self.tasks.len(),
            ttft_p50_ms: self.totals.ttft_p50_ms(),
        });
    }
}
