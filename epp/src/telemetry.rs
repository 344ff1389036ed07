//! Scrapes: one task per endpoint, one kept connection each, bounded in time and bytes.
//!
//! A failed scrape is news too: the pool hears of it and treats the endpoint's values by their age.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpStream,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use wicketgate_pool::{
    Input,
    scheduler::{Adapters, Incarnation, Sample},
};
use wicketgate_wire::{EngineKind, LoraSample, MetricsSample, scan_into};

use crate::{
    headers::readable_encoding,
    metrics::{Metrics, ScrapeLabels},
    prefix::Prefixes,
    shell::PoolShell,
    tls::Connector,
};

/// Good scrapes in a row without a signal after which its absence is said: one may be a hiccup.
const MISSING_AFTER: u32 = 3;

/// How to scrape.
#[derive(Clone)]
pub struct ScrapePolicy {
    /// Time from one scrape's start to the next one's.
    pub interval: Duration,
    /// Longest time of one scrape.
    pub timeout: Duration,
    /// Share of the interval by which each start is moved at random, so that endpoints do not beat in step.
    pub jitter: f64,
    /// Longest page, in bytes.
    pub max_page: usize,
    /// Path of the page.
    pub path: String,
    /// Pages are had through TLS, like everything else of the endpoints.
    pub tls: Option<Connector>,
}

/// Where and what to scrape.
#[derive(Clone, Debug)]
pub struct ScrapeTarget {
    /// Whose values these are.
    pub id: Incarnation,
    /// `ip:port` of the page.
    pub address: Arc<str>,
    /// Whose names the page uses.
    pub engine: EngineKind,
}

/// A running scraper; dropping it stops the scrapes.
#[derive(Debug)]
pub struct Scraper {
    task: JoinHandle<()>,
}

impl Drop for Scraper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Why a scrape brought nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScrapeError {
    Connect,
    Timeout,
    Status,
    TooLong,
    Broken,
    /// The page is compressed, though nobody asked for that.
    Encoded,
    /// The page has none of the names that this engine uses.
    Unrecognised,
}

impl ScrapeError {
    fn label(self) -> &'static str {
        match self {
            ScrapeError::Connect => "connect",
            ScrapeError::Timeout => "timeout",
            ScrapeError::Status => "status",
            ScrapeError::TooLong => "too_long",
            ScrapeError::Broken => "broken",
            ScrapeError::Encoded => "encoded",
            ScrapeError::Unrecognised => "unrecognised",
        }
    }
}

/// Starts scraping an endpoint into its pool.
pub fn start(
    target: ScrapeTarget,
    policy: ScrapePolicy,
    shell: Arc<PoolShell>,
    metrics: Arc<Metrics>,
    prefixes: Option<Arc<Prefixes>>,
) -> Scraper {
    let task = tokio::spawn(run(target, policy, shell, metrics, prefixes));
    Scraper { task }
}

async fn run(
    target: ScrapeTarget,
    policy: ScrapePolicy,
    shell: Arc<PoolShell>,
    metrics: Arc<Metrics>,
    prefixes: Option<Arc<Prefixes>>,
) {
    let mut page = Page::new(&target, &policy);
    let mut last: Option<Result<(), ScrapeError>> = None;
    let mut content = Content::default();
    // The first scrape comes at once: an endpoint without one is not chosen while others have theirs.
    let mut due = Instant::now();
    loop {
        let scraped = timeout(policy.timeout, page.scrape()).await;
        let scraped = scraped.unwrap_or(Err(ScrapeError::Timeout));
        let result = scraped.as_ref().map(|_| ()).map_err(|error| *error);
        if last != Some(result) {
            log_change(&target.address, result, last.is_none());
            last = Some(result);
        }
        let label = result.map_or_else(ScrapeError::label, |()| "ok");
        metrics
            .scrapes
            .get_or_create(&ScrapeLabels { result: label })
            .inc();
        match &scraped {
            Ok(sample) => {
                content.saw(&target.address, sample);
                if let Some(prefixes) = &prefixes {
                    prefixes.scraped(target.id, &page.scanned);
                }
            }
            Err(_) => {
                page.connection = None;
                if let Some(prefixes) = &prefixes {
                    prefixes.unscraped(target.id);
                }
            }
        }
        shell.post(Input::Telemetry {
            of: target.id,
            sample: scraped.ok(),
        });
        due = next_start(due, &policy);
        sleep(due.saturating_duration_since(Instant::now())).await;
    }
}

/// The state of an endpoint's page is logged when it changes, not each time.
fn log_change(address: &str, result: Result<(), ScrapeError>, first: bool) {
    match result {
        Ok(()) if first => tracing::debug!(address, "scraped"),
        Ok(()) => tracing::info!(address, "scrapes work again"),
        Err(error) => tracing::warn!(address, reason = error.label(), "scrape failed"),
    }
}

/// What an endpoint's good pages hold, so that a change is said once.
#[derive(Debug, Default)]
struct Content {
    /// Pages in a row without waiting, running, KV usage.
    missing: [u32; 3],
    /// The last page told of adapters.
    adapters: bool,
}

impl Content {
    fn saw(&mut self, address: &str, sample: &Sample) {
        let signals = [
            ("waiting", sample.waiting),
            ("running", sample.running),
            ("kv_usage", sample.kv_usage),
        ];
        for (missing, (signal, value)) in self.missing.iter_mut().zip(signals) {
            if value.is_some() {
                if std::mem::take(missing) >= MISSING_AFTER {
                    tracing::info!(address, signal, "scrapes bring a signal again");
                }
                continue;
            }
            *missing = missing.saturating_add(1);
            if *missing == MISSING_AFTER {
                tracing::warn!(address, signal, "scrapes do not bring a signal");
            }
        }
        let adapters = sample.adapters.is_some();
        if adapters != std::mem::replace(&mut self.adapters, adapters) {
            tracing::info!(address, adapters, "scrapes tell of adapters, or no longer");
        }
    }
}

/// A late scrape does not make the next ones come in a burst.
fn next_start(due: Instant, policy: &ScrapePolicy) -> Instant {
    let spread = policy.jitter * (fastrand::f64() - 0.5);
    let step = policy.interval.mul_f64((1.0 + spread).max(0.0));
    let next = due + step;
    let now = Instant::now();
    if next > now { next } else { now + step }
}

/// One endpoint's page and the connection to it.
struct Page<'a> {
    target: &'a ScrapeTarget,
    policy: &'a ScrapePolicy,
    connection: Option<Connection>,
    text: BytesMut,
    scanned: MetricsSample,
}

struct Connection {
    sender: http1::SendRequest<Empty<Bytes>>,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl<'a> Page<'a> {
    fn new(target: &'a ScrapeTarget, policy: &'a ScrapePolicy) -> Self {
        Page {
            target,
            policy,
            connection: None,
            text: BytesMut::new(),
            scanned: MetricsSample::default(),
        }
    }

    async fn scrape(&mut self) -> Result<Sample, ScrapeError> {
        let mut connection = match self.connection.take() {
            Some(connection) if !connection.sender.is_closed() => connection,
            Some(_) | None => self.connect().await?,
        };
        if connection.sender.ready().await.is_err() {
            connection = self.connect().await?;
        }
        let request = http::Request::get(&self.policy.path)
            .header(http::header::HOST, self.target.address.as_ref())
            .header(http::header::ACCEPT, "text/plain")
            .body(Empty::new())
            .map_err(|_| ScrapeError::Broken)?;
        let answer = connection.sender.send_request(request).await;
        let response = answer.map_err(|_| ScrapeError::Broken)?;
        let status = response.status();
        let encoding = response.headers().get(http::header::CONTENT_ENCODING);
        let readable = encoding.is_none_or(|value| readable_encoding(value.as_bytes()));
        self.read(response.into_body()).await?;
        if !status.is_success() {
            return Err(ScrapeError::Status);
        }
        if !readable {
            return Err(ScrapeError::Encoded);
        }
        self.connection = Some(connection);
        scan_into(self.target.engine, &self.text, &mut self.scanned);
        if self.scanned.recognised {
            Ok(sample(&self.scanned))
        } else {
            Err(ScrapeError::Unrecognised)
        }
    }

    async fn read(&mut self, mut body: hyper::body::Incoming) -> Result<(), ScrapeError> {
        self.text.clear();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| ScrapeError::Broken)?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if self.text.len() + data.len() > self.policy.max_page {
                return Err(ScrapeError::TooLong);
            }
            self.text.extend_from_slice(&data);
        }
        Ok(())
    }

    async fn connect(&self) -> Result<Connection, ScrapeError> {
        let stream = TcpStream::connect(self.target.address.as_ref()).await;
        let stream = stream.map_err(|_| ScrapeError::Connect)?;
        stream.set_nodelay(true).map_err(|_| ScrapeError::Connect)?;
        match &self.policy.tls {
            None => open(TokioIo::new(stream)).await,
            Some(tls) => {
                let shaken = tls.connect(&self.target.address, stream).await;
                open(TokioIo::new(shaken.map_err(|_| ScrapeError::Connect)?)).await
            }
        }
    }
}

async fn open<T>(io: T) -> Result<Connection, ScrapeError>
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let built = http1::handshake(io).await;
    let (sender, connection) = built.map_err(|_| ScrapeError::Connect)?;
    let driver = tokio::spawn(async move {
        // The next scrape finds the connection closed and says so.
        let _ = connection.await;
    });
    Ok(Connection { sender, driver })
}

/// One endpoint's values from its ranks': counts add up, ratios count the fullest rank.
fn sample(scanned: &MetricsSample) -> Sample {
    fn add(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
        values.flatten().reduce(|a, b| a + b)
    }
    let ranks = &scanned.ranks;
    Sample {
        waiting: add(ranks.iter().map(|rank| rank.waiting)),
        running: add(ranks.iter().map(|rank| rank.running)),
        kv_usage: ranks
            .iter()
            .filter_map(|rank| rank.kv_usage)
            .reduce(f64::max),
        block_size: ranks.iter().find_map(|rank| rank.block_size),
        num_blocks: ranks
            .iter()
            .filter_map(|rank| rank.num_blocks)
            .reduce(|a, b| a + b),
        adapters: scanned.lora.as_ref().map(adapters),
        ..Sample::default()
    }
}

fn adapters(lora: &LoraSample) -> Adapters {
    let names = |set: &std::collections::BTreeSet<String>| {
        set.iter().map(|name| Arc::from(name.as_str())).collect()
    };
    Adapters {
        running: names(&lora.running),
        waiting: names(&lora.waiting),
        max: lora.max,
    }
}
