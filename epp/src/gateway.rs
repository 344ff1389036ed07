//! Wires the request path together and takes it apart again.

use std::{
    collections::HashMap,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use wicketgate_pool::{
    ConfigFault, Input, PoolConfig,
    admission::fleet::FleetConfig,
    scheduler::{NoPrefix, PrefixView},
};

use crate::{
    admin,
    clock::{Clock, nanos},
    discovery::{Cached, Directory, EndpointEntry, watch_file},
    extproc,
    fleet::{Fleet, FleetError, FleetSettings},
    http::{self, Limits, UpstreamPolicy, Upstreams},
    management::{self, Endpoints, Management, ManagementSpec, WarmSpec, warm::warm},
    metrics::Metrics,
    net::Shutdown,
    pipeline::{Pipeline, Routes, Settings},
    prefix::{LiveView, PrefixError, PrefixSpec, Prefixes},
    readiness::{Readiness, Stage},
    shell::{Held, PoolShell, RecordError, Recorder},
    telemetry::ScrapePolicy,
    tls::{Acceptor, Connector, ServerFiles, TlsError},
};

/// How often changed certificates are looked for.
const TLS_POLL: Duration = Duration::from_secs(5);
/// While draining, how long things must be quiet before the listeners close: a balancer needs that long to
/// see that we are not ready.
const DRAIN_QUIET: Duration = Duration::from_secs(2);

/// How long before the end of the drain those that still wait are told no.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// One listening address.
#[derive(Clone, Debug, PartialEq)]
pub struct Listen {
    /// Where to listen; port 0 takes a free one.
    pub address: SocketAddr,
    /// Certificates, for TLS.
    pub tls: Option<ServerFiles>,
}

/// One pool.
#[derive(Clone)]
pub struct PoolSpec {
    /// How it decides.
    pub config: Arc<PoolConfig>,
    /// Models it serves; empty together with `default` when it serves all that no other pool does.
    pub models: Vec<String>,
    /// Serves every model that no pool names.
    pub default: bool,
    /// Its endpoints.
    pub endpoints: Vec<EndpointEntry>,
    /// A watched file with more of them, and how to read it.
    pub endpoints_file: Option<PathBuf>,
}

/// Reads an endpoints file: the entries, or what is wrong with it.
pub type ReadEndpoints =
    Arc<dyn Fn(&str, &str) -> Result<Vec<EndpointEntry>, String> + Send + Sync>;

/// Everything that runs.
#[derive(Clone)]
pub struct GatewaySpec {
    /// The HTTP front.
    pub http: Option<Listen>,
    /// The ext_proc front.
    pub ext_proc: Option<Listen>,
    /// gRPC health alone, never encrypted.
    pub health: Option<SocketAddr>,
    /// Metrics and views.
    pub admin: Option<SocketAddr>,
    /// What changes state, and snapshots.
    pub management: Option<ManagementSpec>,
    /// Whose index to start from.
    pub warm: Option<WarmSpec>,
    /// Bounds of the HTTP front.
    pub limits: Limits,
    /// gRPC connections open at once.
    pub grpc_connections: usize,
    /// What a reload may change.
    pub settings: Settings,
    /// The prefix index, if there is to be one.
    pub prefix: Option<PrefixSpec>,
    /// How to scrape.
    pub scrape: ScrapePolicy,
    /// How to talk to endpoints.
    pub upstream: UpstreamPolicy,
    /// The pools; at least one.
    pub pools: Vec<PoolSpec>,
    /// Reads endpoints files.
    pub read_endpoints: ReadEndpoints,
    /// Start of the pools' randomness.
    pub seed: u64,
    /// Write every pool's steps to `FILE` (one pool) or `FILE.NAME` (several).
    pub record: Option<PathBuf>,
    /// Decision records kept per pool.
    pub keep_records: usize,
    /// Longest time for open requests at shutdown.
    pub drain_timeout: Duration,
    /// Other replicas in front of the same pools.
    pub fleet: Option<FleetSettings>,
    /// At shutdown, those that wait still get their turn; otherwise they are refused.
    pub drain_waiting: bool,
    /// Effective configuration for the views.
    pub effective: String,
}

/// Why a gateway did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// Certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A pool's plugins do not fit together, or its admission makes no sense.
    #[error("pool {pool}: {source}")]
    Pool {
        /// The pool's name.
        pool: Arc<str>,
        /// The cause.
        source: ConfigFault,
    },
    /// The recording cannot be written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Other replicas cannot be talked to.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// There is no prefix index.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
}

/// One running pool.
struct RunningPool {
    name: Arc<str>,
    shell: Arc<PoolShell>,
    directory: Arc<Directory>,
    /// True once its endpoints are known, be they none.
    synced: watch::Receiver<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for RunningPool {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        self.directory.close();
    }
}

/// A running gateway. Dropping it cuts everything; [`Gateway::drain`] ends it in order.
pub struct Gateway {
    /// Where the HTTP front listens.
    pub http: Option<SocketAddr>,
    /// Where the ext_proc front listens.
    pub ext_proc: Option<SocketAddr>,
    /// Where gRPC health listens.
    pub health: Option<SocketAddr>,
    /// Where metrics and views listen.
    pub admin: Option<SocketAddr>,
    /// Where the management port listens.
    pub management: Option<SocketAddr>,
    /// The path that the fronts share.
    pub pipeline: Arc<Pipeline>,
    pools: Vec<RunningPool>,
    readiness: Arc<Readiness>,
    stop_data: watch::Sender<bool>,
    stop_rest: watch::Sender<bool>,
    data: Vec<JoinHandle<()>>,
    rest: Vec<JoinHandle<()>>,
    drain_timeout: Duration,
    drain_waiting: AtomicBool,
    effective: Arc<parking_lot::RwLock<String>>,
}

impl Gateway {
    /// Starts everything that the spec names. Listening begins before this returns.
    ///
    /// # Errors
    /// When an address, a certificate, a pool or the recording cannot be had; nothing is left running then.
    pub async fn start(spec: GatewaySpec) -> Result<Gateway, StartError> {
        let clock = Clock::start();
        let metrics = Arc::new(Metrics::new());
        let upstreams = Arc::new(Upstreams::default());
        let prefixes = match spec.prefix.clone() {
            Some(prefix) => {
                // Reading a tokeniser takes a while.
                let started = tokio::task::spawn_blocking(move || Prefixes::start(clock, prefix));
                Some(
                    started
                        .await
                        .map_err(std::io::Error::other)
                        .map_err(PrefixError::from)??,
                )
            }
            None => None,
        };
        // Before any engine is heard: what a peer knows goes first.
        let warming = prefixes.as_ref().zip(spec.warm.clone());
        let warming = warming.map(|(prefixes, warm)| (Arc::clone(prefixes), warm, prefixes.hold()));
        let mut pools = Vec::new();
        for pool in &spec.pools {
            let prefixes = prefixes.as_ref();
            pools.push(start_pool(
                &spec, pool, clock, &metrics, &upstreams, prefixes,
            )?);
        }
        if let Some(settings) = &spec.fleet {
            join_fleet(settings, &mut pools).await?;
        }
        let routes = routes(&spec.pools, &pools);
        let rest = prefixes.as_ref().map(Prefixes::tick);
        let pipeline = Pipeline::new(clock, spec.settings.clone(), routes, metrics);
        let pipeline = Arc::new(pipeline.with_prefixes(prefixes));
        let (stop_data, data_signal) = Shutdown::new();
        let (stop_rest, rest_signal) = Shutdown::new();
        let (reporter, health_service) = tonic_health::server::health_reporter();
        let mut gateway = Gateway {
            http: None,
            ext_proc: None,
            health: None,
            admin: None,
            management: None,
            pipeline: Arc::clone(&pipeline),
            pools,
            readiness: Arc::new(Readiness::new(reporter).await),
            stop_data,
            stop_rest,
            data: Vec::new(),
            rest: rest.into_iter().collect(),
            drain_timeout: spec.drain_timeout,
            drain_waiting: AtomicBool::new(spec.drain_waiting),
            effective: Arc::new(parking_lot::RwLock::new(spec.effective.clone())),
        };
        if let Some(listen) = &spec.http {
            let (listener, tls) = bind(listen, &[b"h2", b"http/1.1"]).await?;
            gateway.http = listener.local_addr().ok();
            gateway.watch_tls(tls.clone(), Acceptor::reload);
            gateway.data.push(tokio::spawn(http::serve(
                listener,
                tls,
                spec.limits,
                Arc::clone(&pipeline),
                upstreams,
                spec.upstream.clone(),
                data_signal.clone(),
            )));
        }
        if let Some(listen) = &spec.ext_proc {
            let (listener, tls) = bind(listen, &[b"h2"]).await?;
            gateway.ext_proc = listener.local_addr().ok();
            gateway.watch_tls(tls.clone(), Acceptor::reload);
            gateway.data.push(tokio::spawn(extproc::serve(
                listener,
                tls,
                spec.grpc_connections,
                Some(Arc::clone(&pipeline)),
                health_service.clone(),
                data_signal,
                spec.drain_timeout,
            )));
        }
        if let Some(address) = spec.health {
            let listener = listen(address).await?;
            gateway.health = listener.local_addr().ok();
            let grace = Duration::from_secs(1);
            gateway.rest.push(tokio::spawn(extproc::serve(
                listener,
                None,
                spec.grpc_connections,
                None,
                health_service,
                rest_signal.clone(),
                grace,
            )));
        }
        if let Some(address) = spec.admin {
            let listener = listen(address).await?;
            gateway.admin = listener.local_addr().ok();
            let views = gateway.views();
            gateway.rest.push(tokio::spawn(admin::serve(
                listener,
                views,
                rest_signal.clone(),
            )));
        }
        if let Some(managed) = &spec.management {
            let (listener, tls) = bind(&managed.listen, &[b"h2", b"http/1.1"]).await?;
            gateway.management = listener.local_addr().ok();
            gateway.watch_tls(tls.clone(), Acceptor::reload);
            let pools = gateway.pools.iter();
            let pools = pools.map(|pool| (Arc::clone(&pool.name), Arc::clone(&pool.directory)));
            let roster = Endpoints {
                pools: pools.collect(),
                read: Arc::clone(&spec.read_endpoints),
            };
            let management = Arc::new(Management::new(pipeline, managed, roster));
            gateway.rest.push(tokio::spawn(management::serve(
                listener,
                tls,
                management,
                rest_signal,
            )));
        }
        gateway.watch_tls(spec.upstream.tls.clone(), Connector::reload);
        let synced = gateway.pools.iter().map(|pool| pool.synced.clone());
        let synced: Vec<_> = synced.collect();
        let warming = warming.map(|(prefixes, spec, hold)| warm(prefixes, spec, synced, hold));
        gateway.serve_when_ready(warming).await;
        Ok(gateway)
    }

    /// Ready at once if every pool knows its endpoints and there is no peer to start from, else when the last one does and
    /// that is over.
    async fn serve_when_ready(
        &mut self,
        warming: Option<impl Future<Output = ()> + Send + 'static>,
    ) {
        let pools = self.pools.iter();
        let mut unknown: Vec<_> = pools.map(|pool| pool.synced.clone()).collect();
        unknown.retain(|synced| !*synced.borrow());
        if unknown.is_empty() && warming.is_none() {
            return self.readiness.reach(Stage::Serving).await;
        }
        let readiness = Arc::clone(&self.readiness);
        self.rest.push(tokio::spawn(async move {
            if let Some(warming) = warming {
                warming.await;
            }
            for synced in &mut unknown {
                // An error means that the pool is gone, and with it the process.
                let _ = synced.wait_for(|known| *known).await;
            }
            readiness.reach(Stage::Serving).await;
        }));
    }

    fn views(&self) -> Arc<admin::Views> {
        let (readiness, effective) = (Arc::clone(&self.readiness), Arc::clone(&self.effective));
        Arc::new(admin::Views {
            pipeline: Arc::clone(&self.pipeline),
            config: Box::new(move || effective.read().clone()),
            ready: Box::new(move || readiness.ready()),
        })
    }

    /// Reads certificates again and again, if there are any.
    fn watch_tls<T: Send + Sync + 'static>(
        &mut self,
        tls: Option<T>,
        reload: fn(&T) -> Result<(), TlsError>,
    ) {
        let Some(tls) = tls else { return };
        self.rest.push(tokio::spawn(async move {
            loop {
                tokio::time::sleep(TLS_POLL).await;
                if let Err(error) = reload(&tls) {
                    tracing::warn!(%error, "certificates on disk cannot be used; the old ones stay");
                }
            }
        }));
    }

    /// What each pool holds.
    pub fn held(&self) -> Vec<(Arc<str>, Held)> {
        let pools = self.pools.iter();
        pools
            .map(|pool| (Arc::clone(&pool.name), pool.shell.held()))
            .collect()
    }

    /// Makes a pool's endpoint set equal to `entries`; false if there is no such pool.
    pub fn set_endpoints(&self, pool: &str, entries: &[EndpointEntry]) -> bool {
        let found = self
            .pools
            .iter()
            .find(|running| running.name.as_ref() == pool);
        found
            .map(|running| running.directory.set(entries))
            .is_some()
    }

    /// Takes over a new configuration: settings, decisions and endpoints of pools that go on, by name.
    ///
    /// Pools that are new or gone, addresses and certificates' places need a restart; they are returned as
    /// words for the log.
    pub fn reconfigure(&self, spec: &GatewaySpec) -> Vec<String> {
        let mut left = Vec::new();
        for pool in &spec.pools {
            let running = self
                .pools
                .iter()
                .find(|running| running.name == pool.config.name);
            match running {
                None => left.push(format!(
                    "pool {} is new: restart to add it",
                    pool.config.name
                )),
                Some(running) => {
                    running.shell.post(Input::Config(Arc::clone(&pool.config)));
                    if pool.endpoints_file.is_none() {
                        running.directory.set(&pool.endpoints);
                    }
                }
            }
        }
        for running in &self.pools {
            if !spec
                .pools
                .iter()
                .any(|pool| pool.config.name == running.name)
            {
                left.push(format!("pool {} is gone: restart to end it", running.name));
            }
        }
        let kept: Vec<PoolSpec> = spec
            .pools
            .iter()
            .filter(|pool| {
                self.pools
                    .iter()
                    .any(|running| running.name == pool.config.name)
            })
            .cloned()
            .collect();
        self.pipeline
            .reconfigure(spec.settings.clone(), routes(&kept, &self.pools));
        self.drain_waiting
            .store(spec.drain_waiting, Ordering::Release);
        self.effective.write().clone_from(&spec.effective);
        left
    }

    /// Marks the configuration on disk as not in force, or as in force again.
    pub fn reload_failed(&self, failed: bool) {
        self.pipeline.metrics.reload_failed.set(i64::from(failed));
    }

    /// Ends in order: not ready at once; serve on until quiet or half the drain time is over; then close the
    /// listeners and let the open requests end. True if nothing was cut.
    pub async fn drain(mut self) -> bool {
        self.readiness.reach(Stage::Draining).await;
        let begun = tokio::time::Instant::now();
        let busy = |gateway: &Gateway| {
            gateway
                .held()
                .iter()
                .any(|(_, h)| h.running + h.waiting > 0)
        };
        let quiet = DRAIN_QUIET.min(self.drain_timeout / 2);
        while begun.elapsed() < self.drain_timeout / 2 {
            if begun.elapsed() >= quiet && !busy(&self) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // Receivers may be gone already; then there is nothing to stop.
        let _ = self.stop_data.send(true);
        for pool in &self.pools {
            pool.shell.close(self.drain_waiting.load(Ordering::Acquire));
        }
        let deadline = begun + self.drain_timeout;
        // Who still waits shortly before the end gets an answer rather than a cut connection.
        let pools: Vec<_> = self.pools.iter().map(|p| Arc::clone(&p.shell)).collect();
        let margin = LAST_WORDS.min(self.drain_timeout / 4);
        let last_words = tokio::spawn(async move {
            tokio::time::sleep_until(deadline - margin).await;
            pools.iter().for_each(|shell| shell.close(false));
        });
        for task in std::mem::take(&mut self.data) {
            let abort = task.abort_handle();
            if tokio::time::timeout_at(deadline, task).await.is_err() {
                abort.abort();
            }
        }
        last_words.abort();
        let clean = !busy(&self);
        let _ = self.stop_rest.send(true);
        for pool in &self.pools {
            pool.shell.stop_recording();
        }
        clean
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.data
            .iter()
            .chain(&self.rest)
            .for_each(JoinHandle::abort);
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| StartError::Listen { address, source })
}

async fn bind(
    to: &Listen,
    alpn: &'static [&'static [u8]],
) -> Result<(TcpListener, Option<Acceptor>), StartError> {
    let tls = to
        .tls
        .clone()
        .map(|files| Acceptor::new(files, alpn))
        .transpose()?;
    Ok((listen(to.address).await?, tls))
}

fn start_pool(
    spec: &GatewaySpec,
    pool: &PoolSpec,
    clock: Clock,
    metrics: &Arc<Metrics>,
    upstreams: &Arc<Upstreams>,
    prefixes: Option<&Arc<Prefixes>>,
) -> Result<RunningPool, StartError> {
    let name = Arc::clone(&pool.config.name);
    let recorder = match &spec.record {
        None => None,
        Some(path) if spec.pools.len() == 1 => {
            Some(Recorder::create(path, &pool.config, spec.seed)?)
        }
        Some(path) => {
            let mut file = path.clone().into_os_string();
            file.push(format!(".{name}"));
            Some(Recorder::create(file.as_ref(), &pool.config, spec.seed)?)
        }
    };
    let config = Arc::clone(&pool.config);
    let prefix: Box<dyn PrefixView + Send + Sync> = match prefixes {
        Some(prefixes) => Box::new(LiveView::new(Arc::clone(prefixes))),
        None => Box::new(NoPrefix),
    };
    let shell = PoolShell::new(
        clock,
        config,
        spec.seed,
        prefix,
        recorder,
        spec.keep_records,
    );
    let shell = shell.map_err(|source| StartError::Pool {
        pool: Arc::clone(&name),
        source,
    })?;
    let directory = Directory::new(
        Arc::clone(&shell),
        Arc::clone(metrics),
        Arc::clone(upstreams),
        spec.scrape.clone(),
        prefixes.map(|prefixes| Cached {
            prefixes: Arc::clone(prefixes),
            pool: Arc::clone(&name),
            models: pool.models.as_slice().into(),
        }),
    );
    directory.set(&pool.endpoints);
    let mut tasks = vec![tokio::spawn(Arc::clone(&shell).run_timer())];
    let (known, synced) = watch::channel(pool.endpoints_file.is_none());
    if let Some(path) = &pool.endpoints_file {
        let (directory, fixed) = (Arc::clone(&directory), pool.endpoints.clone());
        let (read, shown) = (Arc::clone(&spec.read_endpoints), path.display().to_string());
        tasks.push(watch_file(path.clone(), None, move |text| {
            let read = read(text, &shown).and_then(|entries| both(&fixed, entries, &shown));
            match read {
                Ok(entries) => {
                    directory.set(&entries);
                    known.send_replace(true);
                }
                Err(error) => tracing::error!(error, "endpoints file refused; the old set stays"),
            }
        }));
    }
    Ok(RunningPool {
        name,
        shell,
        directory,
        synced,
        tasks,
    })
}

/// Lets every pool talk to its other replicas.
async fn join_fleet(settings: &FleetSettings, pools: &mut [RunningPool]) -> Result<(), StartError> {
    let names: Vec<_> = pools.iter().map(|pool| Arc::clone(&pool.name)).collect();
    let fleet = Arc::new(Fleet::start(settings.clone(), &names).await?);
    tracing::info!(me = fleet.me().0, members = fleet.members(), address = ?fleet.address(), "fleet");
    for pool in pools {
        let config = FleetConfig {
            stale_after: nanos(settings.stale_after),
            members: fleet.members(),
            ..FleetConfig::default()
        };
        let me = fleet.me();
        pool.shell.post(Input::Fleet { me, config });
        let (fleet, name, shell) = (
            Arc::clone(&fleet),
            Arc::clone(&pool.name),
            Arc::clone(&pool.shell),
        );
        pool.tasks.push(tokio::spawn(
            async move { fleet.carry(&name, &shell).await },
        ));
    }
    Ok(())
}

/// The endpoints of the configuration and those of its file. One that is in both would get a double share.
fn both(
    fixed: &[EndpointEntry],
    mut entries: Vec<EndpointEntry>,
    file: &str,
) -> Result<Vec<EndpointEntry>, String> {
    for entry in &entries {
        let clash =
            |other: &&EndpointEntry| other.name == entry.name || other.address == entry.address;
        if let Some(other) = fixed.iter().find(clash) {
            return Err(format!(
                "{file}: {} ({}) is in the configuration already, as {} ({}); keep one of them",
                entry.name, entry.address, other.name, other.address
            ));
        }
    }
    entries.extend(fixed.iter().cloned());
    Ok(entries)
}

fn routes(specs: &[PoolSpec], running: &[RunningPool]) -> Routes {
    let mut routes = Routes {
        pools: Vec::new(),
        by_model: HashMap::new(),
        default: None,
    };
    for spec in specs {
        let Some(pool) = running.iter().find(|pool| pool.name == spec.config.name) else {
            continue;
        };
        let index = routes.pools.len();
        routes
            .pools
            .push((Arc::clone(&pool.name), Arc::clone(&pool.shell)));
        for model in &spec.models {
            routes.by_model.insert(model.as_str().into(), index);
        }
        if spec.default {
            routes.default = Some(index);
        }
    }
    routes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, address: &str) -> EndpointEntry {
        EndpointEntry {
            name: name.into(),
            address: address.into(),
            weight: 1,
            draining: false,
            labels: std::collections::BTreeMap::new(),
            engine: wicketgate_wire::EngineKind::Vllm,
        }
    }

    #[test]
    fn an_endpoint_stands_in_the_configuration_or_in_its_file() {
        let fixed = [entry("a", "10.0.0.1:1")];
        let two = both(&fixed, vec![entry("b", "10.0.0.2:1")], "f");
        assert_eq!(two.map(|list| list.len()), Ok(2));
        for again in [entry("a", "10.0.0.2:1"), entry("b", "10.0.0.1:1")] {
            let refused = both(&fixed, vec![again], "f").unwrap_err();
            assert!(
                refused.starts_with("f: ") && refused.contains("already"),
                "{refused}"
            );
        }
    }
}
