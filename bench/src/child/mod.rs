//! Parts that run in processes of their own, so that their CPU time and memory are theirs alone.
//!
//! A child is this very program, started as `bench child ROLE`. It prints one line when it listens, then answers
//! each line on its standard input with its counts; when the input ends, so does the child. A parent that dies in
//! whatever way leaves nothing behind.

mod floor;
mod gateway;
mod parent;
mod server;
mod upstream;

use std::{
    any::Any,
    collections::BTreeMap,
    io::{self, BufRead as _, Write as _},
    net::SocketAddr,
    process::ExitCode,
};

pub(crate) use parent::Child;
use serde::{Deserialize, Serialize};
pub(crate) use upstream::{ANSWER_HEADER, EVENTS, SSE64};

use crate::measure::{cpu_time, peak_rss_mb, raise_file_limit};

/// What a child is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub(crate) enum Role {
    /// Metrics pages of this many engines, each on a port of its own.
    Pages { engines: usize },
    /// Engines that answer at once, each on a port of its own.
    Upstream { engines: usize },
    /// The real gateway.
    Gateway(gateway::Settings),
    /// A bare ext_proc server: round robin, nothing parsed.
    Floor {
        workers: usize,
        endpoints: Vec<SocketAddr>,
    },
}

pub(crate) use gateway::{Front, Settings, counters, gateway};

/// The line of a child that listens.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ready {
    Listens(Vec<SocketAddr>),
    Failed(String),
}

/// A child's counts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Stats {
    /// CPU time of the whole process since its start, in nanoseconds.
    pub(crate) cpu_ns: u64,
    /// Most memory it has held, in MiB.
    pub(crate) rss_mb: f64,
    /// Its own counters.
    pub(crate) counters: BTreeMap<String, u64>,
}

impl Stats {
    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }
}

/// A part that runs.
struct Running {
    addresses: Vec<SocketAddr>,
    counters: Box<dyn Fn() -> BTreeMap<String, u64>>,
    /// Runs as long as this is held.
    _part: Box<dyn Any>,
}

impl Role {
    fn workers(&self) -> usize {
        match self {
            Role::Pages { .. } | Role::Upstream { .. } => 1,
            Role::Gateway(settings) => settings.workers,
            Role::Floor { workers, .. } => *workers,
        }
    }

    async fn start(self) -> Result<Running, String> {
        match self {
            Role::Pages { engines } => upstream::pages(engines).await.map_err(|e| e.to_string()),
            Role::Upstream { engines } => {
                upstream::engines(engines).await.map_err(|e| e.to_string())
            }
            Role::Gateway(settings) => gateway::start(&settings).await,
            Role::Floor { endpoints, .. } => {
                floor::start(&endpoints).await.map_err(|e| e.to_string())
            }
        }
    }
}

/// The child's side: runs until standard input ends.
pub(crate) fn run(role: &str) -> ExitCode {
    raise_file_limit();
    match serve(role) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The parent may be gone; then nobody needs to know.
            let _ = print(&Ready::Failed(error));
            ExitCode::FAILURE
        }
    }
}

fn serve(role: &str) -> Result<(), String> {
    let role: Role = serde_json::from_str(role).map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(role.workers().max(1))
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let running = runtime.block_on(role.start())?;
    print(&Ready::Listens(running.addresses.clone())).map_err(|error| error.to_string())?;
    for line in io::stdin().lock().lines() {
        if line.is_err() {
            break;
        }
        let stats = Stats {
            cpu_ns: u64::try_from(cpu_time().as_nanos()).unwrap_or(u64::MAX),
            rss_mb: peak_rss_mb().unwrap_or(0.0),
            counters: (running.counters)(),
        };
        if print(&stats).is_err() {
            break;
        }
    }
    runtime.shutdown_background();
    Ok(())
}

fn print(value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}
