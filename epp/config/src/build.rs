//! From a checked file to the configuration that runs.

use std::{collections::HashMap, net::IpAddr, path::Path, path::PathBuf, time::Duration};

use serde_json::Value;
use wicketgate_scheduler::{HealthPolicy, Scheduler, SchedulerPolicy, SchedulerSpec, SlowStart};

use crate::{
    decode::{Decoded, map},
    endpoints::{self, Endpoint, Engine},
    error::{Errors, Fault, Warning},
    llmd, raw, table, write, yaml,
};

/// A validated configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Address of the data, health and metrics ports.
    pub bind: IpAddr,
    /// HTTP front.
    pub http_port: u16,
    /// ext_proc front.
    pub ext_proc_port: u16,
    /// gRPC health.
    pub health_port: u16,
    /// Metrics and views.
    pub metrics_port: u16,
    /// TLS of the fronts.
    pub tls: Tls,
    /// Longest body that is held, in bytes.
    pub max_body: u64,
    /// Longest header block, in bytes.
    pub max_header: usize,
    /// Connections of the HTTP front at once.
    pub max_connections: usize,
    /// Requests at once on one HTTP/2 connection.
    pub max_streams: u32,
    /// Longest time for a header block.
    pub header_timeout: Duration,
    /// Longest wait for a decision.
    pub decision_timeout: Duration,
    /// Longest time for open requests at shutdown.
    pub drain_timeout: Duration,
    /// Worker threads; 0 is one per core.
    pub workers: usize,
    /// Tell callers which endpoint served.
    pub expose_served_by: bool,
    /// Pools; may be empty when endpoints come from the command line.
    pub pools: Vec<Pool>,
    /// Longest time to a connection with an endpoint.
    pub connect_timeout: Duration,
    /// Longest time to an answer's headers.
    pub first_byte_timeout: Duration,
    /// Longest time of a whole request.
    pub total_timeout: Duration,
    /// Pauses before further rounds of tries.
    pub retry_backoff: Vec<Duration>,
    /// CA of the endpoints' certificates; with it they are talked to through TLS.
    pub upstream_ca: Option<PathBuf>,
    /// File with a bearer token for endpoints.
    pub bearer_token_file: Option<PathBuf>,
    /// Time from one scrape to the next.
    pub scrape_interval: Duration,
    /// Longest time of one scrape.
    pub scrape_timeout: Duration,
    /// Share of the interval by which scrapes are moved at random.
    pub scrape_jitter: f64,
    /// Longest metrics page, in bytes.
    pub scrape_max_page: usize,
    /// Path of the metrics page.
    pub scrape_path: String,
    /// Whose metric names endpoints use unless they say otherwise.
    pub engine: Engine,
    /// Profiles, plugins and weights.
    pub scheduler: SchedulerSpec,
    /// Start of the pools' randomness; random when absent.
    pub seed: Option<u64>,
    /// Decision records kept per pool.
    pub record_decisions: usize,
    /// Least urgent level that is logged.
    pub log_level: String,
    /// Log a line for each request.
    pub access_log: bool,
    effective: raw::Raw,
}

/// TLS of the fronts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tls {
    /// HTTP front.
    pub http: Option<TlsFiles>,
    /// ext_proc front.
    pub ext_proc: Option<TlsFiles>,
}

/// Where certificates lie.
#[derive(Clone, Debug, PartialEq)]
pub struct TlsFiles {
    /// Certificate chain, PEM.
    pub cert: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
    /// CA of callers' certificates.
    pub client_ca: Option<PathBuf>,
}

/// A pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Serves every model that no pool names.
    pub default: bool,
    /// Models it serves.
    pub models: Vec<String>,
    /// Its endpoints.
    pub endpoints: Vec<Endpoint>,
    /// A watched file with more of them.
    pub endpoints_file: Option<PathBuf>,
    /// Staleness, slow start, ejection, exploration.
    pub policy: SchedulerPolicy,
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Every fault, with its line.
    pub fn load(path: &Path) -> Result<(Config, Vec<Warning>), Errors> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| {
            let fault = Fault {
                line: 0,
                path: String::new(),
                what: format!("cannot be read: {error}"),
            };
            Errors::new(&name, vec![fault])
        })?;
        Config::parse(&text, &name)
    }

    /// Checks a text; `file` is its name in messages.
    ///
    /// # Errors
    /// Every fault, with its line.
    pub fn parse(text: &str, file: &str) -> Result<(Config, Vec<Warning>), Errors> {
        let node = yaml::parse(text).map_err(|fault| Errors::new(file, vec![fault]))?;
        let mut decoded = Decoded::default();
        let value = node.map(|node| map(&node, table::ROOT, "", &mut decoded));
        if !decoded.faults.is_empty() {
            return Err(Errors::new(file, decoded.faults));
        }
        let value = value.unwrap_or_else(|| Value::Object(serde_json::Map::new()));
        let raw: raw::Raw = match serde_json::from_value(value) {
            Ok(raw) => raw,
            Err(error) => {
                decoded.fault("", error.to_string());
                return Err(Errors::new(file, decoded.faults));
            }
        };
        let mut warnings = Vec::new();
        let config = build(raw, &mut decoded, &mut warnings);
        match config {
            Some(config) if decoded.faults.is_empty() => Ok((config, warnings)),
            Some(_) | None => Err(Errors::new(file, decoded.faults)),
        }
    }

    /// A configuration of one pool with these endpoints, without a file.
    ///
    /// # Errors
    /// Addresses that are none, and names that come twice.
    pub fn from_backends(backends: &[String]) -> Result<Config, Errors> {
        let endpoints = backends.iter().map(|address| raw::Endpoint {
            address: address.clone(),
            name: None,
            weight: 1,
            labels: std::collections::BTreeMap::new(),
            engine: None,
        });
        let raw = raw::Raw {
            pools: vec![raw::Pool {
                endpoints: endpoints.collect(),
                ..raw::Pool::default()
            }],
            ..raw::Raw::default()
        };
        let mut decoded = Decoded::default();
        match build(raw, &mut decoded, &mut Vec::new()) {
            Some(config) if decoded.faults.is_empty() => Ok(config),
            Some(_) | None => Err(Errors::new("--backend", decoded.faults)),
        }
    }

    /// Everything in force, defaults included, as a file that gives this configuration again.
    pub fn effective_yaml(&self) -> String {
        let value = serde_json::to_value(&self.effective);
        value.map_or_else(|error| format!("# {error}\n"), |value| write::yaml(&value))
    }
}

/// True if the file is llm-d's.
fn api(raw: &raw::Raw, decoded: &mut Decoded, warnings: &mut Vec<Warning>) -> bool {
    let of_kind = raw.kind.as_deref() == Some("EndpointPickerConfig");
    match raw.api_version.as_deref() {
        None => of_kind,
        Some("wicketgate/v1") => {
            if of_kind {
                decoded.fault(
                    "kind",
                    "`EndpointPickerConfig` goes with `llm-d.ai/v1alpha1`",
                );
            }
            false
        }
        Some("llm-d.ai/v1alpha1") => true,
        Some(old @ ("inference.networking.x-k8s.io/v1alpha1" | "config.x-k8s.io/v1alpha1")) => {
            warnings.push(Fault {
                line: decoded.line("apiVersion"),
                path: "apiVersion".to_owned(),
                what: format!("`{old}` is an old name; use `llm-d.ai/v1alpha1`"),
            });
            true
        }
        Some(other) => {
            decoded.fault(
                "apiVersion",
                format!("`{other}` is not known; expected `wicketgate/v1` or `llm-d.ai/v1alpha1`"),
            );
            false
        }
    }
}

fn build(mut raw: raw::Raw, out: &mut Decoded, warnings: &mut Vec<Warning>) -> Option<Config> {
    let of_llmd = api(&raw, out, warnings);
    let scheduler = llmd::scheduler(&raw, of_llmd, out);
    if out.faults.is_empty()
        && let Err(error) = Scheduler::new(&scheduler)
    {
        let path = if raw.scheduling_profiles.is_some() {
            "schedulingProfiles"
        } else {
            "plugins"
        };
        out.fault(path, error.to_string());
    }
    let bind = raw.server.bind.parse::<IpAddr>();
    if bind.is_err() {
        out.fault(
            "server.bind",
            format!("`{}` is no IP address", raw.server.bind),
        );
    }
    check_telemetry(&raw.telemetry, out);
    // Checked above; what they may say is built in, so the effective configuration does not repeat it.
    (raw.data_layer, raw.request_handler, raw.parser) = (None, None, None);
    let pools = pools(&raw, out);
    let server = &raw.server;
    let tls = |tls: &Option<raw::Tls>| {
        tls.as_ref().map(|tls| TlsFiles {
            cert: tls.cert_file.clone().into(),
            key: tls.key_file.clone().into(),
            client_ca: tls.client_ca_file.clone().map(PathBuf::from),
        })
    };
    Some(Config {
        bind: bind.ok()?,
        http_port: server.http_port,
        ext_proc_port: server.ext_proc_port,
        health_port: server.health_port,
        metrics_port: server.metrics_port,
        tls: Tls {
            http: tls(&server.tls),
            ext_proc: tls(&server.ext_proc_tls),
        },
        max_body: server.max_body_bytes.0,
        max_header: usize::try_from(server.max_header_bytes.0).unwrap_or(usize::MAX),
        max_connections: server.max_connections,
        max_streams: server.max_streams,
        header_timeout: server.header_timeout.0,
        decision_timeout: server.decision_timeout.0,
        drain_timeout: server.drain_timeout.0,
        workers: server.workers,
        expose_served_by: server.expose_served_by,
        pools,
        connect_timeout: raw.upstream.connect_timeout.0,
        first_byte_timeout: raw.upstream.first_byte_timeout.0,
        total_timeout: raw.upstream.total_timeout.0,
        retry_backoff: raw
            .upstream
            .retry_backoff
            .iter()
            .map(|pause| pause.0)
            .collect(),
        upstream_ca: raw
            .upstream
            .tls
            .as_ref()
            .map(|tls| tls.ca_file.clone().into()),
        bearer_token_file: raw.upstream.bearer_token_file.clone().map(PathBuf::from),
        scrape_interval: raw.telemetry.interval.0,
        scrape_timeout: raw.telemetry.timeout.0,
        scrape_jitter: raw.telemetry.jitter,
        scrape_max_page: usize::try_from(raw.telemetry.max_page_bytes.0).unwrap_or(usize::MAX),
        scrape_path: raw.telemetry.path.clone(),
        engine: Engine::parse(&raw.telemetry.engine),
        scheduler,
        seed: raw.scheduler.seed,
        record_decisions: raw.scheduler.record_decisions,
        log_level: raw.observability.log_level.clone(),
        access_log: raw.observability.access_log,
        effective: raw,
    })
}

fn check_telemetry(telemetry: &raw::Telemetry, out: &mut Decoded) {
    let least = Duration::from_millis(10);
    if telemetry.interval.0 < least {
        out.fault(
            "telemetry.interval",
            format!("{} is too short; at least 10ms", telemetry.interval),
        );
    }
    if telemetry.staleness.0 <= telemetry.interval.0 {
        let what = format!(
            "{} is not longer than the interval of {}: every value would count as stale",
            telemetry.staleness, telemetry.interval
        );
        out.fault("telemetry.staleness", what);
    }
    if telemetry.timeout.0.is_zero() {
        out.fault("telemetry.timeout", "must be longer than 0s");
    }
    let token = |c: char| c.is_ascii_graphic() && c != '#';
    if !telemetry.path.starts_with('/') || !telemetry.path.chars().all(token) {
        out.fault(
            "telemetry.path",
            format!(
                "`{}` is no path; expected one like /metrics",
                telemetry.path
            ),
        );
    }
}

fn pools(raw: &raw::Raw, out: &mut Decoded) -> Vec<Pool> {
    let mut names: HashMap<&str, usize> = HashMap::new();
    let mut models: HashMap<&str, usize> = HashMap::new();
    let alone = raw.pools.len() == 1;
    let mut defaults = 0;
    let mut built = Vec::new();
    for (index, pool) in raw.pools.iter().enumerate() {
        let path = format!("pools[{index}]");
        if let Some(first) = names.insert(&pool.name, index) {
            out.fault(
                &path,
                format!(
                    "`{}` is the name of pools[{first}] too; names must differ",
                    pool.name
                ),
            );
        }
        for (place, model) in pool.models.iter().enumerate() {
            if let Some(first) = models.insert(model, index) {
                out.fault(
                    &format!("{path}.models[{place}]"),
                    format!("`{model}` is served by pools[{first}] already"),
                );
            }
        }
        let default = pool.default.unwrap_or(alone);
        defaults += usize::from(default);
        if default && defaults > 1 {
            out.fault(
                &format!("{path}.default"),
                "a second default pool; one is enough",
            );
        }
        if !default && pool.models.is_empty() {
            out.fault(
                &path,
                "this pool is no default and names no models: nothing would reach it",
            );
        }
        built.push(Pool {
            name: pool.name.clone(),
            default,
            models: pool.models.clone(),
            endpoints: endpoints::build(&pool.endpoints, &format!("{path}.endpoints"), out),
            endpoints_file: pool.endpoints_file.clone().map(PathBuf::from),
            policy: policy(raw, pool),
        });
    }
    built
}

fn policy(raw: &raw::Raw, pool: &raw::Pool) -> SchedulerPolicy {
    let nanos = |span: crate::units::Span| u64::try_from(span.0.as_nanos()).unwrap_or(u64::MAX);
    let base = SchedulerPolicy::default();
    SchedulerPolicy {
        stale_after: nanos(raw.telemetry.staleness),
        slow_start: SlowStart {
            window: nanos(pool.slow_start.window),
            ..base.slow_start
        },
        health: HealthPolicy {
            failures: pool.breaker.failures,
            window: nanos(pool.breaker.window),
            cool_down: nanos(pool.breaker.cooldown),
            cool_down_cap: nanos(pool.breaker.cooldown_cap),
            ..base.health
        },
        explore: pool.explore,
        ..base
    }
}
