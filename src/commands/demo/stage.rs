//! What every scenario plays on: emulated engines, a gateway in front of them, an Envoy before that.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::net::TcpListener;
use wicketgate_bench::envoy::{self, Envoy, OVERRIDE_HOST, Ports};
use wicketgate_config::Config;
use wicketgate_epp::{
    configure::{Fronts, gateway_spec},
    gateway::Gateway,
    prefix::{TokenizerSource, TokenizerSpec},
};
use wicketgate_sim::engine::{EngineConfig, EngineHandle, spawn};

use super::cached::{self, EmulatedTokens, Publishing};

/// Anything that keeps a scenario from going on.
pub(super) type Trouble = Box<dyn std::error::Error>;

/// The step times of the engines.
pub(super) const PROFILE: &str = "h100-llama3.1-8b-tp1";

/// Engines of one phase, each on a free port.
pub(super) async fn engines(
    configs: impl IntoIterator<Item = EngineConfig>,
) -> std::io::Result<Vec<EngineHandle>> {
    let mut engines = Vec::new();
    for config in configs {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        engines.push(spawn(listener, config)?);
    }
    Ok(engines)
}

/// A gateway in front of engines, and the Envoy before it if one was asked for.
pub(super) struct Stage {
    pub(super) gateway: Gateway,
    envoy: Option<Envoy>,
    /// Where callers go.
    pub(super) front: SocketAddr,
}

impl Stage {
    /// Starts with our defaults and `extra` sections; `record` is where the pool's steps are written.
    pub(super) async fn start(
        engines: &[EngineHandle],
        with_envoy: bool,
        extra: &str,
        record: Option<PathBuf>,
    ) -> Result<Stage, Trouble> {
        let addresses: Vec<SocketAddr> = engines.iter().map(EngineHandle::address).collect();
        let backends: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
        let (config, _) = Config::parse(extra, "demo")?;
        let config = config.with_backends(&backends)?;
        Stage::run(config, addresses, with_envoy, record).await
    }

    /// Starts in front of engines that say what they cache, with an index of that.
    pub(super) async fn start_cached(
        engines: &[Publishing],
        with_envoy: bool,
    ) -> Result<Stage, Trouble> {
        let (config, _) = Config::parse(&cached::config(engines), "demo")?;
        let addresses = engines.iter().map(|engine| engine.handle.address());
        Stage::run(config, addresses.collect(), with_envoy, None).await
    }

    async fn run(
        mut config: Config,
        addresses: Vec<SocketAddr>,
        with_envoy: bool,
        record: Option<PathBuf>,
    ) -> Result<Stage, Trouble> {
        config.bind = [127, 0, 0, 1].into();
        (
            config.http_port,
            config.ext_proc_port,
            config.health_port,
            config.metrics_port,
            config.management.port,
        ) = (0, 0, 0, 0, 0);
        config.drain_timeout = Duration::from_secs(10);
        let fronts = match with_envoy {
            true => Fronts::ExtProc,
            false => Fronts::Http,
        };
        let mut spec = gateway_spec(&config, fronts, record)?;
        if let Some(prefix) = &mut spec.prefix {
            prefix.tokenizers.push(TokenizerSpec {
                model: Arc::from("emulated"),
                aliases: Vec::new(),
                adapters: Vec::new(),
                source: TokenizerSource::Ready(Arc::new(EmulatedTokens)),
            });
        }
        let gateway = Gateway::start(spec).await?;
        let (envoy, front) = match with_envoy {
            true => {
                let (envoy, address) = start_envoy(&gateway, addresses).await?;
                (Some(envoy), Some(address))
            }
            false => (None, gateway.http),
        };
        let front = front.ok_or("the gateway has no address")?;
        Ok(Stage {
            gateway,
            envoy,
            front,
        })
    }

    /// Requests that are still counted: in a queue, or at an engine. A caller that hung up just now is given a moment.
    pub(super) async fn left(&self) -> u64 {
        let mut left = u64::MAX;
        for _ in 0..100 {
            let held = self.gateway.held();
            left = held
                .iter()
                .map(|(_, held)| held.running + held.waiting)
                .sum();
            if left == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        left
    }

    pub(super) async fn end(self) {
        drop(self.envoy);
        self.gateway.drain().await;
    }
}

async fn start_envoy(
    gateway: &Gateway,
    endpoints: Vec<SocketAddr>,
) -> Result<(Envoy, SocketAddr), Trouble> {
    let binary = envoy::binary(Path::new("."));
    let binary =
        binary.ok_or("no Envoy: run scripts/setup-test-env.sh here, or set WICKETGATE_ENVOY")?;
    let free = || async { TcpListener::bind("127.0.0.1:0").await?.local_addr() };
    let ports = Ports {
        listen: free().await?,
        admin: free().await?,
        epp: gateway.ext_proc.ok_or("the picker has no address")?,
        endpoints,
    };
    let config = envoy::render(OVERRIDE_HOST, &ports);
    let envoy = Envoy::start(&binary, &config, ports.admin).await?;
    envoy.wait_picker_healthy().await?;
    Ok((envoy, ports.listen))
}
