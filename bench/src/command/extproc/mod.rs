//! The real picker and a bare ext_proc server, each in a process of its own, under the same load in turn.

mod caller;
mod drive;
mod script;

use std::{io, sync::Arc, time::Duration};

use clap::Args;
use serde_json::{Value, json};

use self::{
    drive::{Arrivals, Drive, Round},
    script::Shape,
};
use super::{Output, duration, size};
use crate::{
    child::{Child, Front, Role, Settings},
    measure::{median, number, round},
    report::{Outcome, progress},
};

/// Flags of `bench extproc`.
#[derive(Clone, Debug, Args)]
pub struct ExtprocArgs {
    /// Requests per second, open loop; without it, closed loop
    #[arg(long, value_name = "RATE", conflicts_with = "concurrency")]
    rate: Option<f64>,
    /// Requests in flight, closed loop
    #[arg(long, value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,
    /// Bytes of a request's body
    #[arg(long, value_name = "SIZE", default_value = "2k", value_parser = size)]
    prompt_bytes: usize,
    /// Bytes of a body's pieces
    #[arg(long, value_name = "SIZE", default_value = "16k", value_parser = size)]
    chunk_bytes: usize,
    /// Events of a streamed answer; 0 is one JSON answer
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1000))]
    events: u16,
    /// Endpoints, scraped all the while
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=5000))]
    endpoints: u16,
    /// Time from one scrape of an endpoint to the next
    #[arg(long, value_name = "DURATION", default_value = "50ms", value_parser = duration)]
    interval: Duration,
    /// How long to measure each server, over all rounds
    #[arg(long, value_name = "SECONDS", default_value_t = 6.0)]
    seconds: f64,
    /// Rounds, in each of which both servers have their turn
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=50))]
    rounds: u8,
    /// Connections to each server
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    connections: u16,
    /// Worker threads of each server
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,
    #[command(flatten)]
    pub(super) output: Output,
}

/// Time under load before the first round, for each server.
const WARM_UP: Duration = Duration::from_millis(500);
/// Lateness that is forgiven at any rate, at the 99th percentile.
const LAG_FLOOR: Duration = Duration::from_millis(10);

/// A server under measurement.
struct Server {
    child: Child,
    drive: Drive,
    rounds: Vec<Measured>,
    sent: u64,
}

/// One round's figures.
#[derive(Clone, Copy)]
struct Measured {
    rps: f64,
    p50_us: f64,
    p99_us: f64,
    cores: f64,
    core_s_per_request: f64,
}

pub(super) async fn run(args: &ExtprocArgs) -> io::Result<Outcome> {
    let shape = Shape {
        prompt_bytes: args.prompt_bytes,
        chunk_bytes: args.chunk_bytes,
        events: usize::from(args.events),
    };
    let arrivals = match args.rate {
        Some(rate) if rate > 0.0 && rate <= 1e6 => Arrivals::Open(rate),
        Some(rate) => return Err(io::Error::other(format!("{rate} is no rate"))),
        None => Arrivals::Closed(usize::from(args.concurrency)),
    };
    let scripts = Arc::new(shape.scripts());
    progress("starting engines, picker and floor");
    let engines = usize::from(args.endpoints);
    let pages = Child::start(&Role::Pages { engines }).await?;
    let workers = usize::from(args.workers);
    let gateway = Role::Gateway(Settings {
        front: Front::ExtProc,
        workers,
        backends: pages.addresses.clone(),
        interval_ms: u64::try_from(args.interval.as_millis())
            .unwrap_or(u64::MAX)
            .max(1),
    });
    let floor = Role::Floor {
        workers,
        endpoints: pages.addresses.clone(),
    };
    let connections = usize::from(args.connections);
    let mut ours = Server::start(&gateway, connections, &scripts).await?;
    let wanted = u64::from(args.endpoints);
    let seen = |stats: &crate::child::Stats| stats.counter("observed") >= wanted;
    ours.child
        .wait("the first scrape of every endpoint", seen)
        .await?;
    let mut floor = Server::start(&floor, connections, &scripts).await?;
    let idle = ours.idle().await?;
    let mut outcome = Outcome::new();
    for server in [&mut ours, &mut floor] {
        server.sent += server.drive.round(arrivals, WARM_UP).await?.requests;
    }
    let rounds = u32::from(args.rounds);
    let time = Duration::try_from_secs_f64(args.seconds).unwrap_or_default() / rounds;
    for number in 1..=rounds {
        progress(&format!("round {number} of {rounds}"));
        for server in [&mut ours, &mut floor] {
            let lag = server.round(arrivals, time).await?;
            outcome.require(lag <= LAG_FLOOR, || {
                format!("requests were sent late: p99 {lag:?}")
            });
        }
    }
    tell(
        args,
        &shape,
        arrivals,
        &mut outcome,
        (&mut ours, &mut floor),
        idle,
    )
    .await?;
    Ok(outcome)
}

impl Server {
    async fn start(
        role: &Role,
        connections: usize,
        scripts: &Arc<Vec<script::Script>>,
    ) -> io::Result<Server> {
        let child = Child::start(role).await?;
        let drive = Drive::connect(child.address()?, connections, Arc::clone(scripts)).await?;
        Ok(Server {
            child,
            drive,
            rounds: Vec::new(),
            sent: 0,
        })
    }

    /// Cores that the server takes while nothing is asked.
    async fn idle(&mut self) -> io::Result<f64> {
        let (before, started) = (self.child.stats().await?.cpu_ns, std::time::Instant::now());
        tokio::time::sleep(WARM_UP).await;
        let spent = self.child.stats().await?.cpu_ns - before;
        Ok(Duration::from_nanos(spent).as_secs_f64() / started.elapsed().as_secs_f64())
    }

    /// One round; how late requests were sent, at the 99th percentile.
    async fn round(&mut self, arrivals: Arrivals, time: Duration) -> io::Result<Duration> {
        let before = self.child.stats().await?.cpu_ns;
        let came: Round = self.drive.round(arrivals, time).await?;
        let spent = self.child.stats().await?.cpu_ns - before;
        let (cpu, wall) = (
            Duration::from_nanos(spent).as_secs_f64(),
            came.wall.as_secs_f64(),
        );
        let us = came.latency.us();
        self.sent += came.requests;
        self.rounds.push(Measured {
            rps: number(came.requests) / wall,
            p50_us: us.p50,
            p99_us: us.p99,
            cores: cpu / wall,
            core_s_per_request: cpu / number(came.requests.max(1)),
        });
        Ok(came.lag.at(0.99))
    }

    fn median(&self, of: fn(&Measured) -> f64) -> f64 {
        median(self.rounds.iter().map(of).collect())
    }

    fn json(&self, rss_mb: f64) -> Value {
        json!({
            "achieved_rps": round(self.median(|m| m.rps), 1),
            "latency_us": {"p50": round(self.median(|m| m.p50_us), 1), "p99": round(self.median(|m| m.p99_us), 1)},
            "cores": round(self.median(|m| m.cores), 4),
            "core_s_per_request": round(self.median(|m| m.core_s_per_request), 9),
            "rss_mb": round(rss_mb, 1),
        })
    }
}

async fn tell(
    args: &ExtprocArgs,
    shape: &Shape,
    arrivals: Arrivals,
    outcome: &mut Outcome,
    (ours, floor): (&mut Server, &mut Server),
    idle: f64,
) -> io::Result<()> {
    let (our_stats, floor_stats) = (ours.child.stats().await?, floor.child.stats().await?);
    let ratios = ours.rounds.iter().zip(&floor.rounds);
    let ratio = median(
        ratios
            .map(|(a, b)| a.core_s_per_request / b.core_s_per_request)
            .collect(),
    );
    let added = ours.median(|m| m.p50_us) - floor.median(|m| m.p50_us);
    let mode = match arrivals {
        Arrivals::Closed(callers) => {
            format!("full duplex both ways, closed loop, {callers} in flight")
        }
        Arrivals::Open(_) => "full duplex both ways, open loop".to_owned(),
    };
    outcome.row(
        "load",
        format!(
            "{mode}, {} bytes, {} endpoints",
            args.prompt_bytes, args.endpoints
        ),
    );
    for (name, server, stats) in [
        ("picker", &*ours, &our_stats),
        ("floor", &*floor, &floor_stats),
    ] {
        let [rps, p50, p99, cores, cpu] = [
            server.median(|m| m.rps),
            server.median(|m| m.p50_us),
            server.median(|m| m.p99_us),
            server.median(|m| m.cores),
            server.median(|m| m.core_s_per_request) * 1e6,
        ];
        let rss = stats.rss_mb;
        outcome.row(name, format!("{rps:.0} requests/s  {cpu:.1} us CPU each  {cores:.2} cores  p50 {p50:.0} us  p99 {p99:.0} us  {rss:.0} MiB"));
    }
    outcome.row("CPU over the floor", format!("{ratio:.2} x"));
    outcome.row("p50 over the floor", format!("{added:+.0} us"));
    outcome.row("picker while idle", format!("{idle:.3} cores"));
    let mut value = ours.json(our_stats.rss_mb);
    if let Value::Object(map) = &mut value {
        let offered = match arrivals {
            Arrivals::Open(rate) => rate,
            Arrivals::Closed(_) => round(ours.median(|m| m.rps), 1),
        };
        let more = [
            ("offered_rps", json!(offered)),
            ("prompt_bytes", json!(args.prompt_bytes)),
            ("prompt_tokens", json!(shape.prompt_tokens())),
            ("endpoints", json!(args.endpoints)),
            ("events", json!(args.events)),
            ("workers", json!(args.workers)),
            ("mode", json!(mode)),
            ("idle_cores", json!(round(idle, 4))),
            ("requests", json!(ours.sent)),
            ("floor", floor.json(floor_stats.rss_mb)),
            ("ratio", json!(round(ratio, 3))),
            ("added_us", json!(round(added, 1))),
        ];
        map.extend(more.map(|(key, value)| (key.to_owned(), value)));
    }
    outcome.json = value;
    for counter in ["arrived", "dispatched", "ended"] {
        let counted = our_stats.counter(counter);
        outcome.require(counted == ours.sent, || {
            format!("{} requests sent, {counted} {counter}", ours.sent)
        });
    }
    let (read, wanted) = (
        our_stats.counter("prompt_tokens"),
        ours.sent * shape.prompt_tokens(),
    );
    outcome.require(read == wanted, || {
        format!("usage of {read} prompt tokens was read instead of {wanted}")
    });
    let counted = floor_stats.counter("ended");
    outcome.require(counted == floor.sent, || {
        format!("{} requests sent to the floor, {counted} ended", floor.sent)
    });
    if let Arrivals::Open(rate) = arrivals {
        let achieved = ours.median(|m| m.rps);
        outcome.require(achieved >= 0.95 * rate, || {
            format!("{achieved:.0} requests per second instead of {rate:.0}")
        });
    }
    Ok(())
}
