//! From a checked configuration to what runs.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use wicketgate_config::{
    Config, Endpoint, Engine, HashCheck, KvEvents, KvIndex, OnMismatch, SecretError, TlsFiles,
    TokenSource, TrustedProxy,
};
use wicketgate_kvindex::keys::engine::{Algorithm, ExtraStyle, HashScheme, VllmHasher};
use wicketgate_pool::{
    FlowControl, PoolConfig,
    scheduler::{Scheduler, SpecError},
};
use wicketgate_wire::EngineKind;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    discovery::EndpointEntry,
    engine::Reach,
    fleet::FleetSettings,
    gateway::{GatewaySpec, Listen, PoolSpec},
    http::{Limits, UpstreamPolicy},
    management::{ManagementSpec, Token, WarmPeer, WarmSpec},
    pipeline::Settings,
    prefix::{
        self, Approximate, CheckSpec, EventsFrom, PrefixSpec, TokenizerSource, TokenizerSpec,
    },
    telemetry::ScrapePolicy,
    tls::{Connector, ServerFiles, TlsError},
    trust::TrustedHeaders,
};

/// Connections of the gRPC servers at once: a handful of proxies.
const GRPC_CONNECTIONS: usize = 4096;

/// Least length of a seed, in bytes.
const SEED_LENGTH: usize = 16;

/// Which fronts a process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fronts {
    /// `wicketgate serve`
    Http,
    /// `wicketgate epp`
    ExtProc,
}

/// Why a configuration cannot run, though it reads well.
#[derive(Debug, thiserror::Error)]
pub enum ConfigureError {
    /// A CA file cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The plugins do not fit together.
    #[error("plugins: {0}")]
    Scheduler(#[from] SpecError),
    /// The bearer token cannot be read.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The bearer token is none.
    #[error("upstream: the bearer token has characters that a header cannot carry")]
    Token,
    /// The management port's token is none.
    #[error("server.managementToken: it has characters that a header cannot carry")]
    ManagementToken,
    /// A seed that can be guessed lets callers make prompts with equal keys.
    #[error("kvIndex.seed: {0} characters are too few; at least {SEED_LENGTH}, by chance")]
    Seed(usize),
    /// A picker's answer is an address: Envoy looks up no names, and would send the request anywhere else.
    #[error("pool {pool}: {address} is a host name; behind `epp` endpoints are given as IP:PORT")]
    HostName {
        /// The pool.
        pool: String,
        /// What stands there.
        address: String,
    },
    /// There is no pool.
    #[error("no pool: add `pools` with endpoints to the configuration, or use --backend")]
    NoPool,
}

/// What a configuration makes run.
///
/// # Errors
/// When files that it names cannot be used, or it has no pool.
pub fn gateway_spec(
    config: &Config,
    fronts: Fronts,
    record: Option<PathBuf>,
) -> Result<GatewaySpec, ConfigureError> {
    if config.pools.is_empty() {
        return Err(ConfigureError::NoPool);
    }
    if fronts == Fronts::ExtProc {
        let all = config.pools.iter();
        let mut all = all.flat_map(|pool| pool.endpoints.iter().map(move |of| (pool, of)));
        if let Some((pool, endpoint)) = all.find(|(_, endpoint)| is_name(&endpoint.address)) {
            return Err(ConfigureError::HostName {
                pool: pool.name.clone(),
                address: endpoint.address.clone(),
            });
        }
    }
    let scheduler = Scheduler::new(&config.scheduler)?;
    let at = |port| SocketAddr::new(config.bind, port);
    let listen = |port, tls: &Option<TlsFiles>| Listen {
        address: at(port),
        tls: tls.as_ref().map(server_files),
    };
    let http = (fronts == Fronts::Http).then(|| listen(config.http_port, &config.tls.http));
    let ext_proc =
        (fronts == Fronts::ExtProc).then(|| listen(config.ext_proc_port, &config.tls.ext_proc));
    let upstream = upstream(config)?;
    let prefix = config.kv_index.as_ref();
    let prefix = prefix
        .map(|index| prefix_spec(index, &upstream))
        .transpose()?;
    let token = management_token(config)?;
    Ok(GatewaySpec {
        health: ext_proc.is_some().then(|| at(config.health_port)),
        http,
        ext_proc,
        admin: Some(at(config.metrics_port)),
        management: Some(ManagementSpec {
            listen: Listen {
                address: SocketAddr::new(config.management.bind, config.management.port),
                tls: config.management.tls.as_ref().map(server_files),
            },
            token: token.clone(),
            max_snapshot: config
                .kv_index
                .as_ref()
                .map_or(0, |index| index.max_snapshot),
        }),
        warm: config
            .kv_index
            .as_ref()
            .and_then(|index| warm_spec(config, index, token)),
        limits: Limits {
            connections: config.max_connections,
            header_bytes: config.max_header,
            streams: config.max_streams,
            header_timeout: config.header_timeout,
            grace: config.drain_timeout,
            expose_served_by: config.expose_served_by,
        },
        grpc_connections: GRPC_CONNECTIONS,
        settings: Settings {
            max_body: config.max_body,
            body_timeout: config.body_timeout,
            decision_timeout: config.decision_timeout,
            plugin_headers: scheduler
                .headers()
                .iter()
                .map(|name| name.to_string())
                .collect(),
            session_header: scheduler.session_token_header(),
            trusted: config
                .trusted_proxy
                .as_ref()
                .map(|trusted| Arc::new(trusted_headers(trusted))),
            weights: Arc::new(
                config
                    .weights
                    .iter()
                    .map(|(id, weight)| (id.as_str().into(), *weight))
                    .collect(),
            ),
            access_log: config.access_log,
        },
        prefix,
        scrape: ScrapePolicy {
            interval: config.scrape_interval,
            timeout: config.scrape_timeout,
            jitter: config.scrape_jitter,
            max_page: config.scrape_max_page,
            path: config.scrape_path.clone(),
            tls: upstream.tls.clone(),
        },
        upstream,
        pools: config
            .pools
            .iter()
            .map(|pool| pool_spec(config, pool))
            .collect(),
        read_endpoints: Arc::new(reader(config, fronts)),
        seed: config.seed.unwrap_or_else(|| fastrand::u64(..)),
        record,
        keep_records: config.record_decisions,
        drain_timeout: config.drain_timeout,
        fleet: config.fleet.as_ref().map(|fleet| FleetSettings {
            listen: fleet.listen,
            peers: fleet.peers.clone(),
            interval: fleet.interval,
            stale_after: fleet.stale_after,
            tls: fleet.tls.as_ref().map(server_files),
        }),
        drain_waiting: config.drain_waiting,
        effective: config.effective_yaml(),
    })
}

fn management_token(config: &Config) -> Result<Option<Token>, ConfigureError> {
    let Some(secret) = &config.management.token else {
        return Ok(None);
    };
    let token = Token::new(&secret.read()?);
    token.map(Some).ok_or(ConfigureError::ManagementToken)
}

fn warm_spec(config: &Config, index: &KvIndex, token: Option<Token>) -> Option<WarmSpec> {
    let warm = index.warm_from.as_ref()?;
    let peers = warm.peers.iter().map(|peer| WarmPeer {
        address: peer.address.clone(),
        tls: peer.tls,
    });
    Some(WarmSpec {
        peers: peers.collect(),
        timeout: warm.timeout,
        token,
        tls: config.management.tls.as_ref().map(server_files),
        max_bytes: index.max_snapshot,
    })
}

/// What keys are made from: the same text gives the same keys in every replica.
fn seed(index: &KvIndex) -> Result<u64, ConfigureError> {
    let Some(secret) = &index.seed else {
        return Ok(fastrand::u64(..));
    };
    let text = secret.read()?;
    match text.len() < SEED_LENGTH {
        true => Err(ConfigureError::Seed(text.len())),
        false => Ok(xxh3_64(text.as_bytes())),
    }
}

fn prefix_spec(index: &KvIndex, upstream: &UpstreamPolicy) -> Result<PrefixSpec, ConfigureError> {
    let tokenizers = index.tokenizers.iter();
    let check = &index.token_check;
    Ok(PrefixSpec {
        block_size: index.block_size,
        max_bytes: index.max_bytes,
        prediction_ttl: index.prediction_ttl,
        approximate: index.approximate.then_some(Approximate {
            ttl: index.approximate_ttl,
            blocks: index.approximate_blocks,
        }),
        tokenizers: tokenizers
            .map(|files| TokenizerSpec {
                model: Arc::from(files.model.as_str()),
                aliases: files.aliases.clone(),
                adapters: files.adapters.clone(),
                source: match &files.source {
                    TokenSource::Folder(folder) => TokenizerSource::Folder(folder.clone()),
                    TokenSource::Engine => TokenizerSource::Engine,
                    TokenSource::Service(at) => TokenizerSource::Service(at.as_str().into()),
                },
            })
            .collect(),
        tokenizer_memory: index.tokenizer_memory,
        long_body: index.long_body,
        check: CheckSpec {
            probe: check.probe,
            sample: check.sample,
            on_mismatch: match check.on_mismatch {
                OnMismatch::Engine => prefix::OnMismatch::Engine,
                OnMismatch::Load => prefix::OnMismatch::Load,
                OnMismatch::Ignore => prefix::OnMismatch::Ignore,
            },
            timeout: check.timeout,
            concurrency: check.concurrency,
        },
        reach: Reach {
            tls: upstream.tls.clone(),
            authorization: upstream.authorization.clone(),
        },
        events: match index.events {
            KvEvents::Off => EventsFrom::Off,
            KvEvents::Connect {
                port,
                replay_port,
                ranks,
            } => EventsFrom::Connect {
                port,
                replay_port,
                ranks,
            },
            KvEvents::Discover => EventsFrom::Discover,
            KvEvents::Auto => EventsFrom::Auto,
            KvEvents::Listen(at) => EventsFrom::Listen(at),
        },
        topic: index.topic.clone(),
        hash_check: index.hash_check.as_ref().and_then(hash_scheme),
        seed: seed(index)?,
    })
}

/// `None` for a name that the configuration does not let through.
fn hash_scheme(check: &HashCheck) -> Option<HashScheme> {
    if check.scheme == "sglang" {
        return Some(HashScheme::Sglang);
    }
    Some(HashScheme::Vllm(VllmHasher {
        algorithm: Algorithm::named(&check.scheme)?,
        seed: check.seed.clone(),
        style: match check.extras.as_str() {
            "plain" => ExtraStyle::Plain,
            _ => ExtraStyle::Tagged,
        },
    }))
}

fn trusted_headers(trusted: &TrustedProxy) -> TrustedHeaders {
    let names = |names: &[String]| names.iter().map(|name| Box::from(name.as_str())).collect();
    let objectives = trusted.objectives.iter();
    TrustedHeaders {
        fairness_id: names(&trusted.fairness_id),
        priority: names(&trusted.priority),
        objective: names(&trusted.objective),
        objectives: objectives
            .map(|(name, priority)| (Box::from(name.as_str()), *priority))
            .collect(),
        ttl: names(&trusted.ttl),
        slo_ttft: names(&trusted.slo_ttft),
    }
}

fn server_files(files: &TlsFiles) -> ServerFiles {
    ServerFiles {
        cert: files.cert.clone(),
        key: files.key.clone(),
        client_ca: files.client_ca.clone(),
    }
}

fn upstream(config: &Config) -> Result<UpstreamPolicy, ConfigureError> {
    let authorization = match config.bearer_token() {
        None => None,
        Some(secret) => {
            let token = secret.read()?;
            let value = http::HeaderValue::from_str(&format!("Bearer {}", token.trim()));
            let mut value = value.map_err(|_| ConfigureError::Token)?;
            value.set_sensitive(true);
            Some(value)
        }
    };
    Ok(UpstreamPolicy {
        connect_timeout: config.connect_timeout,
        first_byte_timeout: config.first_byte_timeout,
        total_timeout: config.total_timeout,
        retry_backoff: config.retry_backoff.clone(),
        tls: config.upstream_ca.clone().map(Connector::new).transpose()?,
        authorization,
    })
}

fn pool_spec(config: &Config, pool: &wicketgate_config::Pool) -> PoolSpec {
    PoolSpec {
        config: Arc::new(PoolConfig {
            name: Arc::from(pool.name.as_str()),
            scheduler: config.scheduler.clone(),
            policy: pool.policy.clone(),
            flow: FlowControl {
                enabled: config.flow.enabled,
                admission: config.flow.admission.clone(),
                gate: config.flow.gate.clone(),
            },
            record_decisions: config.record_decisions > 0,
        }),
        models: pool.models.clone(),
        default: pool.default,
        endpoints: pool
            .endpoints
            .iter()
            .map(|endpoint| entry(endpoint, config.engine))
            .collect(),
        endpoints_file: pool.endpoints_file.clone(),
    }
}

fn entry(endpoint: &Endpoint, engine: Engine) -> EndpointEntry {
    EndpointEntry {
        name: Arc::from(endpoint.name.as_str()),
        address: Arc::from(endpoint.address.as_str()),
        weight: endpoint.weight,
        draining: endpoint.draining,
        labels: endpoint.labels.clone(),
        engine: match endpoint.engine.unwrap_or(engine) {
            Engine::Vllm => EngineKind::Vllm,
            Engine::Sglang => EngineKind::Sglang,
        },
    }
}

/// True for `host:port`.
fn is_name(address: &str) -> bool {
    address.parse::<SocketAddr>().is_err()
}

/// Reads endpoints files that go with this configuration.
fn reader(
    config: &Config,
    fronts: Fronts,
) -> impl Fn(&str, &str) -> Result<Vec<EndpointEntry>, String> + use<> {
    let config = config.clone();
    move |text, file| {
        let list = config
            .read_endpoints(text, file)
            .map_err(|errors| errors.to_string())?;
        let name = list.iter().find(|endpoint| is_name(&endpoint.address));
        if let Some(endpoint) = name.filter(|_| fronts == Fronts::ExtProc) {
            let address = &endpoint.address;
            return Err(format!(
                "{file}: {address} is a host name; behind `epp` endpoints are given as IP:PORT"
            ));
        }
        Ok(list
            .iter()
            .map(|endpoint| entry(endpoint, config.engine))
            .collect())
    }
}
