//! From a checked file to the configuration that runs.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Serialize;
use serde_json::Value;
use wicketgate_scheduler::{Scheduler, SchedulerSpec};

use crate::{
    check,
    decode::{Decoded, map},
    endpoints::{self, Endpoint, Engine},
    error::{Errors, Warning},
    flow::{self, Flow, TrustedProxy},
    kvindex::{self, KvIndex},
    llmd,
    pools::{self, Pool},
    raw,
    scalar::shown,
    secret::Secret,
    table, write, yaml,
};

/// A validated configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
    /// What changes state, and snapshots.
    pub management: Management,
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
    /// Longest pause between two pieces of a request body.
    pub body_timeout: Duration,
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
    /// File with a bearer token for endpoints; see [`Config::bearer_token`].
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
    /// Whether and how requests wait.
    pub flow: Flow,
    /// Shares of fairness IDs.
    pub weights: Vec<(String, f64)>,
    /// At shutdown, those that wait still get their turn.
    pub drain_waiting: bool,
    /// Other replicas of this process.
    pub fleet: Option<Fleet>,
    /// The prefix index, if there is one.
    pub kv_index: Option<KvIndex>,
    /// Headers that are believed, if a proxy is trusted.
    pub trusted_proxy: Option<TrustedProxy>,
    /// Start of the pools' randomness; random when absent.
    pub seed: Option<u64>,
    /// Decision records kept per pool.
    pub record_decisions: usize,
    /// Least urgent level that is logged.
    pub log_level: String,
    /// Log a line for each request.
    pub access_log: bool,
    #[serde(skip)]
    effective: raw::Raw,
}

/// TLS of the fronts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Tls {
    /// HTTP front.
    pub http: Option<TlsFiles>,
    /// ext_proc front.
    pub ext_proc: Option<TlsFiles>,
}

/// The management port.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Management {
    /// Its address.
    pub bind: IpAddr,
    /// Its port; 0 takes a free one.
    pub port: u16,
    /// What callers show.
    pub token: Option<Secret>,
    /// Its certificates.
    pub tls: Option<TlsFiles>,
}

/// Other replicas of this process in front of the same pools.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fleet {
    /// Where the others reach this one.
    pub listen: Option<SocketAddr>,
    /// `host:port` of the others.
    pub peers: Vec<String>,
    /// Time between two messages.
    pub interval: Duration,
    /// A silent replica counts for so long.
    pub stale_after: Duration,
    /// Certificates of the fleet.
    pub tls: Option<TlsFiles>,
}

/// Where certificates lie.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TlsFiles {
    /// Certificate chain, PEM.
    pub cert: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
    /// CA of callers' certificates.
    pub client_ca: Option<PathBuf>,
}

/// Longest file that [`Config::load`] reads, in bytes; no real one comes near.
const LONGEST: u64 = 5 << 20;

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Every fault, with its line.
    pub fn load(path: &Path) -> Result<(Config, Vec<Warning>), Errors> {
        let name = path.display().to_string();
        let fail = |error: String| Errors::one(&name, format!("cannot be read: {error}"));
        let length = std::fs::metadata(path).map_err(|error| fail(error.to_string()))?;
        if length.len() > LONGEST {
            return Err(fail(format!("{} bytes are too many", length.len())));
        }
        let text = std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
        Config::parse(&text, &name)
    }

    /// Checks a text; `file` is its name in messages.
    ///
    /// # Errors
    /// Every fault, with its line.
    pub fn parse(text: &str, file: &str) -> Result<(Config, Vec<Warning>), Errors> {
        let (node, faults) = yaml::parse(text).map_err(|fault| Errors::new(file, vec![fault]))?;
        let mut out = Decoded::default();
        out.push_all(faults);
        let value = match node {
            Some(node) if !node.is_null() => map(&node, table::ROOT, "", &mut out),
            _ => serde_json::Map::new(),
        };
        let raw = match serde_json::from_value(Value::Object(value)) {
            Ok(raw) => raw,
            Err(error) => {
                out.fault("", error.to_string());
                raw::Raw::default()
            }
        };
        build(raw, out, file)
    }

    /// A configuration of one pool with these endpoints, without a file.
    ///
    /// # Errors
    /// Addresses that are none, and endpoints that come twice.
    pub fn from_backends(backends: &[String]) -> Result<Config, Errors> {
        Config::default_ours()?.with_backends(backends)
    }

    /// What an empty file gives.
    fn default_ours() -> Result<Config, Errors> {
        build(raw::Raw::default(), Decoded::default(), "defaults").map(|(config, _)| config)
    }

    /// This configuration with one pool of these endpoints, if the file has no pools of its own.
    ///
    /// # Errors
    /// A file with pools, addresses that are none, and endpoints that come twice.
    pub fn with_backends(self, backends: &[String]) -> Result<Config, Errors> {
        const FLAG: &str = "--backend";
        if !self.pools.is_empty() {
            let what = "the file has pools already; give endpoints in one place".to_owned();
            return Err(Errors::one(FLAG, what));
        }
        let endpoints = backends.iter().map(|address| raw::Endpoint {
            address: address.clone(),
            ..raw::Endpoint::default()
        });
        let raw = raw::Raw {
            pools: vec![raw::Pool {
                endpoints: endpoints.collect(),
                ..raw::Pool::default()
            }],
            ..self.effective
        };
        build(raw, Decoded::default(), FLAG).map(|(config, _)| config)
    }

    /// Reads an endpoints file that goes with this configuration.
    ///
    /// # Errors
    /// Every fault of the file, an address with another transport than `upstream` has among them.
    pub fn read_endpoints(&self, text: &str, file: &str) -> Result<Vec<Endpoint>, Errors> {
        endpoints::read(text, file, Some(self.upstream_ca.is_some()))
    }

    /// Where the bearer token for endpoints comes from, if they get one instead of the caller's.
    pub fn bearer_token(&self) -> Option<Secret> {
        let upstream = &self.effective.upstream;
        Secret::of(
            upstream.bearer_token_file.as_deref(),
            upstream.bearer_token.as_deref(),
        )
    }

    /// Everything in force, defaults included, as a file that gives this configuration again. Secrets appear as
    /// references only.
    pub fn effective_yaml(&self) -> String {
        write::yaml(&self.effective_value())
    }

    /// The same as a value, for views that speak JSON.
    pub fn effective_value(&self) -> Value {
        // Plain data with text keys always makes a value.
        serde_json::to_value(&self.effective).unwrap_or_default()
    }
}

const OUR_VERSION: &str = "wicketgate/v1";
const LLMD_VERSION: &str = "llm-d.ai/v1alpha1";
const LLMD_KIND: &str = "EndpointPickerConfig";

/// True if the file is llm-d's.
fn api(raw: &raw::Raw, out: &mut Decoded) -> bool {
    let kind = raw.kind.as_deref();
    let of_llmd = match raw.api_version.as_deref() {
        None => return kind == Some(LLMD_KIND),
        Some(OUR_VERSION) => false,
        Some(LLMD_VERSION) => true,
        Some(old @ ("inference.networking.x-k8s.io/v1alpha1" | "config.x-k8s.io/v1alpha1")) => {
            let what = format!("`{old}` is an old name; use `{LLMD_VERSION}`");
            out.warn("apiVersion", what);
            true
        }
        Some(other) => {
            let what = format!(
                "{} is not known; expected `{OUR_VERSION}` or `{LLMD_VERSION}`",
                shown(other)
            );
            out.fault("apiVersion", what);
            return kind == Some(LLMD_KIND);
        }
    };
    let (wanted, version) = match of_llmd {
        true => (LLMD_KIND, LLMD_VERSION),
        false => ("WicketgateConfig", OUR_VERSION),
    };
    if kind.is_some_and(|kind| kind != wanted) {
        let what = format!("`{version}` goes with `kind: {wanted}`");
        out.fault("kind", what);
    }
    of_llmd
}

/// The checks that follow decoding, and the configuration if nothing is wrong.
fn build(
    mut raw: raw::Raw,
    mut out: Decoded,
    file: &str,
) -> Result<(Config, Vec<Warning>), Errors> {
    let of_llmd = api(&raw, &mut out);
    let scheduler = llmd::scheduler(&mut raw, of_llmd, &mut out);
    let index = raw.kv_index.get_or_insert_default();
    if index.events.mode.is_empty() {
        // llm-d listens to nobody unless it is told to.
        let mode = if of_llmd { "off" } else { "auto" };
        mode.clone_into(&mut index.events.mode);
    }
    let built = flow::build(&raw, of_llmd, &mut out);
    pools::upstream(&mut raw, &mut out);
    check::all(&raw, &mut out);
    let pools = pools::build(&raw, &mut out);
    if out.is_good()
        && let Err(error) = Scheduler::new(&scheduler)
    {
        out.fault("plugins", error.to_string());
    }
    if !out.is_good() {
        return Err(Errors::new(file, out.into_faults()));
    }
    normalise(&mut raw, &scheduler, &built, of_llmd);
    out.warnings.sort_by_key(|warning| warning.line);
    Ok((config(raw, scheduler, built, pools), out.warnings))
}

/// Writes out what the file left to defaults, so that the effective file shows it.
fn normalise(raw: &mut raw::Raw, scheduler: &SchedulerSpec, built: &flow::Built, of_llmd: bool) {
    let plugins = scheduler.plugins.iter().map(|instance| {
        let spec = serde_json::to_value(&instance.plugin).unwrap_or_default();
        raw::Plugin {
            type_name: instance.plugin.type_name().to_owned(),
            name: (*instance.name != *instance.plugin.type_name())
                .then(|| instance.name.to_string()),
            parameters: spec.get("parameters").cloned().unwrap_or_default(),
        }
    });
    let profiles = scheduler.profiles.iter().map(|profile| raw::Profile {
        name: profile.name.to_string(),
        plugins: profile
            .plugins
            .iter()
            .map(|plugin| raw::PluginRef {
                plugin_ref: plugin.plugin.to_string(),
                weight: plugin.weight,
            })
            .collect(),
    });
    // What these sections ask for is always on or has no effect, and a warning said so.
    raw.data_layer = None;
    raw.request_handler = None;
    raw.parser = None;
    raw.flow_control = None;
    raw.admission = Some(built.effective.clone());
    if raw.api_version.is_some() {
        let version = if of_llmd { LLMD_VERSION } else { OUR_VERSION };
        raw.api_version = Some(version.to_owned());
    }
    raw.plugins = Some(plugins.chain(built.plugins.iter().cloned()).collect());
    raw.scheduling_profiles = Some(profiles.collect());
}

fn tls_files(tls: Option<&raw::Tls>) -> Option<TlsFiles> {
    tls.map(|tls| TlsFiles {
        cert: tls.cert_file.clone().into(),
        key: tls.key_file.clone().into(),
        client_ca: tls.client_ca_file.clone().map(PathBuf::from),
    })
}

fn config(raw: raw::Raw, scheduler: SchedulerSpec, built: flow::Built, pools: Vec<Pool>) -> Config {
    let (server, upstream, telemetry) = (&raw.server, &raw.upstream, &raw.telemetry);
    let bytes = |size: crate::units::Size| usize::try_from(size.0).unwrap_or(usize::MAX);
    Config {
        bind: server.bind.parse().unwrap_or(Ipv4Addr::UNSPECIFIED.into()),
        http_port: server.http_port,
        ext_proc_port: server.ext_proc_port,
        health_port: server.health_port,
        metrics_port: server.metrics_port,
        management: Management {
            bind: server
                .management_bind
                .parse()
                .unwrap_or(Ipv4Addr::LOCALHOST.into()),
            port: server.management_port,
            token: Secret::of(
                server.management_token_file.as_deref(),
                server.management_token.as_deref(),
            ),
            tls: tls_files(server.management_tls.as_ref()),
        },
        tls: Tls {
            http: tls_files(server.tls.as_ref()),
            ext_proc: tls_files(server.ext_proc_tls.as_ref()),
        },
        max_body: server.max_body_bytes.0,
        max_header: bytes(server.max_header_bytes),
        max_connections: server.max_connections,
        max_streams: server.max_streams,
        header_timeout: server.header_timeout.0,
        body_timeout: server.body_timeout.0,
        decision_timeout: server.decision_timeout.0,
        drain_timeout: server.drain_timeout.0,
        workers: server.workers,
        expose_served_by: server.expose_served_by,
        pools,
        connect_timeout: upstream.connect_timeout.0,
        first_byte_timeout: upstream.first_byte_timeout.0,
        total_timeout: upstream.total_timeout.0,
        retry_backoff: upstream.retry_backoff.iter().map(|pause| pause.0).collect(),
        upstream_ca: upstream.tls.as_ref().map(|tls| tls.ca_file.clone().into()),
        bearer_token_file: upstream.bearer_token_file.clone().map(PathBuf::from),
        scrape_interval: telemetry.interval.0,
        scrape_timeout: telemetry.timeout.0,
        scrape_jitter: telemetry.jitter,
        scrape_max_page: bytes(telemetry.max_page_bytes),
        scrape_path: telemetry.path.clone(),
        engine: Engine::parse(&telemetry.engine),
        scheduler,
        flow: built.flow,
        weights: built.weights,
        drain_waiting: built.drain_waiting,
        fleet: raw.fleet.as_ref().map(|fleet| Fleet {
            listen: fleet.listen.as_deref().and_then(|at| at.parse().ok()),
            peers: fleet.peers.clone(),
            interval: fleet.interval.0,
            stale_after: fleet.stale_after.0,
            tls: tls_files(fleet.tls.as_ref()),
        }),
        kv_index: raw
            .kv_index
            .as_ref()
            .filter(|section| section.enabled)
            .map(kvindex::build),
        trusted_proxy: raw.trusted_proxy.as_ref().map(flow::trusted_proxy),
        seed: raw.scheduler.seed,
        record_decisions: raw.scheduler.record_decisions,
        log_level: raw.observability.log_level.clone(),
        access_log: raw.observability.access_log,
        effective: raw,
    }
}
