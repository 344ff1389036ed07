//! Counters of the process. Labels come from closed sets and configured names, never from a caller's text.

use std::sync::Arc;

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, text::encode},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};
use wicketgate_pool::Ended;
use wicketgate_wire::Api;

/// Labels of a request.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct RequestLabels {
    /// Dialect.
    pub api: &'static str,
    /// Pool, or empty when none was asked.
    pub pool: PoolLabel,
    /// `ok`, `client_gone`, `upstream_failed`, ... or the code of our own answer.
    pub outcome: &'static str,
}

/// Labels of a pool.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct PoolLabels {
    /// The pool's configured name.
    pub pool: PoolLabel,
}

/// A configured name as a label value.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct PoolLabel(pub Arc<str>);

impl EncodeLabelValue for PoolLabel {
    fn encode(
        &self,
        encoder: &mut prometheus_client::encoding::LabelValueEncoder<'_>,
    ) -> Result<(), std::fmt::Error> {
        self.0.as_ref().encode(encoder)
    }
}

/// Labels of a count of tokens.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct TokenLabels {
    /// `prompt`, `cached` or `completion`.
    pub kind: &'static str,
}

/// Labels of a scrape.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ScrapeLabels {
    /// `ok`, or why it failed.
    pub result: &'static str,
}

/// Labels of a control header that made no sense.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct IgnoredLabels {
    /// What it would have said: `ttl`, `slo_ttft`, `priority` or `objective`.
    pub header: &'static str,
    /// What is wrong with it.
    pub why: &'static str,
}

/// Labels of something odd that was tolerated.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct OddityLabels {
    /// What.
    pub kind: &'static str,
}

/// Every counter of the data path.
pub struct Metrics {
    registry: Registry,
    /// Requests by how they ended.
    pub requests: Family<RequestLabels, Counter>,
    /// Time from the first byte to the decision.
    pub decision: Histogram,
    /// Time in the queue of requests that got their turn.
    pub queue: Histogram,
    /// Time from the first byte to the end.
    pub duration: Histogram,
    /// Time from the first byte to the first token.
    pub ttft: Histogram,
    /// Tokens that engines reported.
    pub tokens: Family<TokenLabels, Counter>,
    /// Scrapes by result.
    pub scrapes: Family<ScrapeLabels, Counter>,
    /// Control headers of a trusted proxy that made no sense.
    pub ignored_headers: Family<IgnoredLabels, Counter>,
    /// Protocol oddities that were tolerated.
    pub oddities: Family<OddityLabels, Counter>,
    /// Requests that another endpoint than the chosen one served.
    pub served_elsewhere: Counter,
    /// Tries down the fallback list.
    pub retries: Counter,
    /// ext_proc streams open now.
    pub streams: Gauge,
    /// Connections of the HTTP front open now.
    pub connections: Gauge,
    /// 1 while the last configuration on disk is not in force.
    pub reload_failed: Gauge,
}

/// 0.1 ms to about 105 s.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 21))
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Self {
        let mut metrics = Metrics {
            registry: Registry::with_prefix("wicketgate"),
            requests: Family::default(),
            decision: seconds(),
            queue: seconds(),
            duration: seconds(),
            ttft: seconds(),
            tokens: Family::default(),
            scrapes: Family::default(),
            ignored_headers: Family::default(),
            oddities: Family::default(),
            served_elsewhere: Counter::default(),
            retries: Counter::default(),
            streams: Gauge::default(),
            connections: Gauge::default(),
            reload_failed: Gauge::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let to = &mut self.registry;
        to.register(
            "requests",
            "Requests by how they ended",
            self.requests.clone(),
        );
        let seconds = Unit::Seconds;
        to.register_with_unit(
            "decision_duration",
            "First byte to decision",
            seconds.clone(),
            self.decision.clone(),
        );
        to.register_with_unit(
            "queue_duration",
            "Time in the queue of requests that got their turn",
            seconds.clone(),
            self.queue.clone(),
        );
        to.register_with_unit(
            "request_duration",
            "First byte to end",
            seconds.clone(),
            self.duration.clone(),
        );
        to.register_with_unit(
            "ttft",
            "First byte to first token",
            seconds,
            self.ttft.clone(),
        );
        to.register(
            "tokens",
            "Tokens that engines reported",
            self.tokens.clone(),
        );
        to.register("scrapes", "Scrapes by result", self.scrapes.clone());
        to.register(
            "ignored_headers",
            "Control headers of a trusted proxy that made no sense",
            self.ignored_headers.clone(),
        );
        to.register(
            "oddities",
            "Protocol oddities tolerated",
            self.oddities.clone(),
        );
        to.register(
            "served_elsewhere",
            "Requests that another endpoint than the chosen one served",
            self.served_elsewhere.clone(),
        );
        to.register(
            "retries",
            "Tries down the fallback list",
            self.retries.clone(),
        );
        to.register(
            "extproc_streams",
            "ext_proc streams open",
            self.streams.clone(),
        );
        to.register(
            "http_connections",
            "HTTP connections open",
            self.connections.clone(),
        );
        to.register(
            "config_reload_failed",
            "1 while the configuration on disk is not in force",
            self.reload_failed.clone(),
        );
    }

    /// Counts a request that an endpoint answered, or that ended under way.
    pub fn ended(&self, api: Api, pool: &Arc<str>, how: Ended) {
        self.count(api, pool, ended_label(how));
    }

    /// Counts a request under an outcome's word.
    pub fn count(&self, api: Api, pool: &Arc<str>, outcome: &'static str) {
        let labels = RequestLabels {
            api: api.as_str(),
            pool: PoolLabel(Arc::clone(pool)),
            outcome,
        };
        self.requests.get_or_create(&labels).inc();
    }

    /// Notes how long a request waited for its turn, in nanoseconds.
    pub fn waited(&self, nanos: u64) {
        self.queue
            .observe(std::time::Duration::from_nanos(nanos).as_secs_f64());
    }

    /// Adds the tokens that an engine reported.
    pub fn usage(&self, usage: &wicketgate_pool::Usage) {
        let kinds = [
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("completion", usage.completion_tokens),
        ];
        for (kind, tokens) in kinds {
            if let Some(tokens) = tokens {
                self.tokens
                    .get_or_create(&TokenLabels { kind })
                    .inc_by(tokens);
            }
        }
    }

    /// The page in OpenMetrics text form.
    ///
    /// # Errors
    /// Never in practice: writing to a string.
    pub fn page(&self) -> Result<String, std::fmt::Error> {
        let mut page = String::with_capacity(16 * 1024);
        encode(&mut page, &self.registry)?;
        Ok(page)
    }
}

fn ended_label(how: Ended) -> &'static str {
    match how {
        Ended::Complete(status) if status < 400 => "ok",
        Ended::Complete(status) if status < 500 => "upstream_4xx",
        Ended::Complete(_) => "upstream_5xx",
        Ended::ClientGone => "client_gone",
        Ended::UpstreamFailed => "upstream_failed",
        Ended::TimedOut => "timed_out",
        Ended::Unobserved => "unobserved",
        Ended::Evicted => "evicted",
        Ended::Dropped => "dropped",
    }
}
