//! Engines, a picker or gateway in front of them, Envoy in front of those.

use std::{
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::net::TcpListener;
use wicketgate_bench::envoy::{self, Envoy, Ports};
use wicketgate_sim::engine::{EngineConfig, EngineHandle, spawn};

use crate::{TempDir, client, eventually, free_address, process::Process};

/// An engine that answers at once and takes faults.
pub async fn engine() -> EngineHandle {
    engine_with(EngineConfig::default()).await
}

/// An engine with other settings; it takes faults in any case.
pub async fn engine_with(config: EngineConfig) -> EngineHandle {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = EngineConfig {
        allow_failure_injection: true,
        profile: "instant".to_owned(),
        ..config
    };
    spawn(listener, config).unwrap()
}

/// Several engines.
pub async fn engines(count: usize) -> Vec<EngineHandle> {
    let mut engines = Vec::new();
    for seed in 0..count as u64 {
        let config = EngineConfig {
            seed,
            ..EngineConfig::default()
        };
        engines.push(engine_with(config).await);
    }
    engines
}

/// Addresses of engines.
pub fn addresses(engines: &[EngineHandle]) -> Vec<SocketAddr> {
    engines.iter().map(EngineHandle::address).collect()
}

/// What runs in front of engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `wicketgate serve`
    Serve,
    /// `wicketgate epp`
    Epp,
}

/// A running `wicketgate serve` or `epp`.
pub struct Front {
    /// The process.
    pub process: Process,
    /// Data port of `serve`, ext_proc port of `epp`.
    pub data: SocketAddr,
    /// gRPC health of `epp`.
    pub health: SocketAddr,
    /// Metrics and views.
    pub admin: SocketAddr,
    /// Its configuration file.
    pub config: std::path::PathBuf,
    /// Where its files lie.
    pub dir: TempDir,
}

/// A pool's endpoints as a configuration names them.
pub fn endpoint_lines(endpoints: &[SocketAddr]) -> String {
    let line = |address: &SocketAddr| format!("  - {{address: \"{address}\"}}\n");
    let lines: String = endpoints.iter().map(line).collect();
    if lines.is_empty() {
        "  endpoints: []\n".to_owned()
    } else {
        format!("  endpoints:\n{lines}")
    }
}

/// The configuration of a front; `extra` is appended and may have keys of the root except `pools` and `server`,
/// `server` is more lines of that section, indented by two; it may say how long a drain takes.
pub fn config_text(
    command: Command,
    ports: [SocketAddr; 3],
    pool: &str,
    server: &str,
    extra: &str,
) -> String {
    let [data, health, admin] = ports.map(|address| address.port());
    let (http, ext_proc) = match command {
        Command::Serve => (data, 0),
        Command::Epp => (0, data),
    };
    let drain = match server.contains("drainTimeout") {
        true => "",
        false => "  drainTimeout: 10s\n",
    };
    let management = match server.contains("managementPort") {
        true => "",
        false => "  managementPort: 0\n",
    };
    format!(
        "server:\n  bind: 127.0.0.1\n  httpPort: {http}\n  extProcPort: {ext_proc}\n  healthPort: {health}\n  metricsPort: {admin}\n{drain}{management}  workers: 4\n{server}pools:\n- name: main\n{pool}{extra}"
    )
}

impl Front {
    /// Starts a front over endpoints with our default profile.
    pub async fn start(binary: &Path, command: Command, endpoints: &[SocketAddr]) -> Front {
        Front::start_with(binary, command, &endpoint_lines(endpoints), "", "", &[]).await
    }

    /// Starts a front; see [`config_text`].
    pub async fn start_with(
        binary: &Path,
        command: Command,
        pool: &str,
        server: &str,
        extra: &str,
        arguments: &[&str],
    ) -> Front {
        let dir = TempDir::new();
        let ports = [free_address(), free_address(), free_address()];
        let config = dir.write(
            "config.yaml",
            &config_text(command, ports, pool, server, extra),
        );
        let name = match command {
            Command::Serve => "serve",
            Command::Epp => "epp",
        };
        let file = config.display().to_string();
        let mut all = vec![name, "--config", &file];
        all.extend_from_slice(arguments);
        let process = Process::start(binary, &all);
        let [data, health, admin] = ports;
        let front = Front {
            process,
            data,
            health,
            admin,
            config,
            dir,
        };
        let until = Instant::now() + crate::PATIENCE;
        while tokio::net::TcpStream::connect(admin).await.is_err() {
            assert!(
                Instant::now() < until,
                "not ready: {:?}",
                front.process.words()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        front
    }

    /// A page of the admin port as JSON.
    pub async fn view(&self, path: &str) -> Value {
        client::call(self.admin, "GET", path, &[], "").await.json()
    }

    /// The metrics page.
    pub async fn metrics(&self) -> String {
        let page = client::call(self.admin, "GET", "/metrics", &[], "").await;
        String::from_utf8(page.body.to_vec()).unwrap()
    }

    /// The sum of a metric's samples whose line contains all of `parts`.
    pub async fn metric(&self, parts: &[&str]) -> f64 {
        let page = self.metrics().await;
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        let lines = lines.filter(|line| parts.iter().all(|part| line.contains(part)));
        lines
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
            .sum()
    }

    /// Waits until every endpoint was scraped, so that picks are by load.
    pub async fn wait_scraped(&self, endpoints: usize) {
        eventually("a scrape of each endpoint", || async {
            let view = self.view("/debug/endpoints").await;
            let rows = view["main"].as_array().unwrap();
            let scraped = rows.iter().filter(|row| !row["running"].is_null()).count();
            (scraped == endpoints).then_some(())
        })
        .await;
    }

    /// Requests that it counts as running.
    pub async fn running(&self) -> u64 {
        self.view("/debug/held").await["main"]["running"]
            .as_u64()
            .unwrap()
    }

    /// Every count is back at zero and every dispatch has ended once.
    pub async fn assert_guards_at_zero(&self) {
        eventually("guards at zero", || async {
            let view = self.view("/debug/held").await;
            let held = &view["main"];
            let zero = ["running", "waiting", "orphaned"]
                .iter()
                .all(|key| held[*key] == 0);
            let ended = held["totals"]["dispatched"] == held["totals"]["ended"];
            (zero && ended).then_some(())
        })
        .await;
        let rows = self.view("/debug/endpoints").await;
        for row in rows["main"].as_array().unwrap() {
            assert_eq!(row["in_flight"]["requests"], 0, "{row}");
            assert_eq!(row["in_flight"]["tokens"], 0, "{row}");
        }
    }
}

/// Envoy in front of a picker.
pub struct Gateway {
    /// Envoy.
    pub envoy: Envoy,
    /// Where callers go.
    pub address: SocketAddr,
}

impl Gateway {
    /// Starts Envoy with a manifest in which `edit` may change more; waits until it counts the picker as healthy.
    pub async fn start(
        envoy: &Path,
        manifest: &str,
        picker: &Front,
        endpoints: &[SocketAddr],
        edit: impl FnOnce(String) -> String,
    ) -> Gateway {
        let ports = Ports {
            listen: free_address(),
            admin: free_address(),
            epp: picker.data,
            endpoints: endpoints.to_vec(),
        };
        let config = envoy::render(manifest, &ports);
        let config = edit(envoy::block(&config, "access log", envoy::ACCESS_LOG));
        let started = Envoy::start(envoy, &config, ports.admin).await.unwrap();
        started.wait_picker_healthy().await.unwrap();
        Gateway {
            envoy: started,
            address: ports.listen,
        }
    }

    /// Waits until its access log has `count` lines; gives them.
    pub async fn log(&self, count: usize) -> Vec<Value> {
        eventually("the access log", || async {
            let lines = self.envoy.access_log();
            (lines.len() >= count).then_some(lines)
        })
        .await
    }
}
