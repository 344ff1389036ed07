//! The HTTP gateway with one worker thread before an upstream that answers at once, beside that upstream alone.

mod client;

use std::{io, time::Duration};

use clap::Args;
use serde_json::{Map, Value, json};

use self::client::{Callers, Requests, Round, Until};
use super::{Output, size};
use crate::{
    child::{Child, Front, Role, Settings},
    measure::{median, number, round},
    report::{Outcome, progress},
};

/// Flags of `bench serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Sizes of request bodies
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "2k,32k,128k", value_parser = size)]
    body: Vec<usize>,
    /// Callers at once where throughput and CPU time are measured
    #[arg(long, value_name = "COUNT", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,
    /// Engines behind the gateway, scraped all the while
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1000))]
    endpoints: u16,
    /// Rounds, in each of which everything has its turn
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=50))]
    rounds: u8,
    /// Time of each part of a round
    #[arg(long, value_name = "SECONDS", default_value_t = 0.6)]
    seconds: f64,
    #[command(flatten)]
    pub(super) output: Output,
}

/// Requests of one caller at a time, in each round, for the added latency.
const ALONE: u64 = 400;
/// Callers of streams at once.
const STREAMS: usize = 8;

/// What is measured, and where.
struct Bench {
    gateway: Child,
    upstream: Child,
    busy: Callers,
    busy_direct: Callers,
    streams: Callers,
    alone: Callers,
    alone_direct: Callers,
    /// Requests sent through the gateway.
    sent: u64,
    /// Requests sent past it.
    direct: u64,
}

/// Figures of all rounds.
#[derive(Default)]
struct Figures {
    /// CPU time per request by body size, in microseconds.
    us: Vec<Vec<f64>>,
    rps: Vec<f64>,
    direct_rps: Vec<f64>,
    sse_us: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    direct_p50: Vec<f64>,
    added_p50: Vec<f64>,
    added_p99: Vec<f64>,
}

pub(super) async fn run(args: &ServeArgs) -> io::Result<Outcome> {
    progress("starting engines and gateway");
    let mut bench = Bench::start(args).await?;
    let time = Until::Time(Duration::try_from_secs_f64(args.seconds).unwrap_or_default());
    let bodies: Vec<Requests> = args
        .body
        .iter()
        .map(|bytes| Requests::new(*bytes, false))
        .collect();
    let small = Requests::new(2 << 10, false);
    let stream = Requests::new(2 << 10, true);
    for requests in bodies.iter().chain([&stream]) {
        bench.busy(requests, time).await?;
    }
    let mut figures = Figures {
        us: vec![Vec::new(); bodies.len()],
        ..Figures::default()
    };
    for number in 1..=args.rounds {
        progress(&format!("round {number} of {}", args.rounds));
        for (requests, us) in bodies.iter().zip(&mut figures.us) {
            us.push(bench.busy(requests, time).await?.0);
        }
        let (_, rps) = bench.busy(&small, time).await?;
        figures.rps.push(rps);
        figures
            .direct_rps
            .push(bench.busy_direct(&small, time).await?);
        figures.sse_us.push(bench.streams(&stream, time).await?);
        bench.alone(&small, &mut figures).await?;
    }
    bench.tell(args, &figures).await
}

impl Bench {
    async fn start(args: &ServeArgs) -> io::Result<Bench> {
        let engines = usize::from(args.endpoints);
        let upstream = Child::start(&Role::Upstream { engines }).await?;
        let mut gateway = Child::start(&Role::Gateway(Settings {
            front: Front::Http,
            workers: 1,
            backends: upstream.addresses.clone(),
            interval_ms: 50,
        }))
        .await?;
        let wanted = u64::from(args.endpoints);
        let seen = |stats: &crate::child::Stats| stats.counter("observed") >= wanted;
        gateway
            .wait("the first scrape of every engine", seen)
            .await?;
        let (front, behind) = ([gateway.address()?], upstream.addresses.clone());
        let callers = usize::from(args.concurrency);
        Ok(Bench {
            busy: Callers::connect(&front, callers).await?,
            busy_direct: Callers::connect(&behind, callers).await?,
            streams: Callers::connect(&front, STREAMS).await?,
            alone: Callers::connect(&front, 1).await?,
            alone_direct: Callers::connect(&behind, 1).await?,
            gateway,
            upstream,
            sent: 0,
            direct: 0,
        })
    }

    /// CPU time per request in microseconds, and requests per second.
    async fn busy(&mut self, requests: &Requests, until: Until) -> io::Result<(f64, f64)> {
        let before = self.gateway.stats().await?.cpu_ns;
        let round = self.busy.round(requests, until).await?;
        self.spent(before, &round).await
    }

    async fn spent(&mut self, before: u64, round: &Round) -> io::Result<(f64, f64)> {
        let spent = self.gateway.stats().await?.cpu_ns - before;
        self.sent += round.requests;
        let requests = number(round.requests.max(1));
        Ok((
            number(spent) / 1e3 / requests,
            requests / round.wall.as_secs_f64(),
        ))
    }

    async fn busy_direct(&mut self, requests: &Requests, until: Until) -> io::Result<f64> {
        let round = self.busy_direct.round(requests, until).await?;
        self.direct += round.requests;
        Ok(number(round.requests) / round.wall.as_secs_f64())
    }

    async fn streams(&mut self, requests: &Requests, until: Until) -> io::Result<f64> {
        let before = self.gateway.stats().await?.cpu_ns;
        let round = self.streams.round(requests, until).await?;
        Ok(self.spent(before, &round).await?.0)
    }

    /// One caller, past the gateway and through it.
    async fn alone(&mut self, requests: &Requests, figures: &mut Figures) -> io::Result<()> {
        let direct = self
            .alone_direct
            .round(requests, Until::Count(ALONE))
            .await?;
        let through = self.alone.round(requests, Until::Count(ALONE)).await?;
        self.direct += direct.requests;
        self.sent += through.requests;
        let (direct, through) = (direct.latency.us(), through.latency.us());
        figures.p50.push(through.p50);
        figures.p99.push(through.p99);
        figures.direct_p50.push(direct.p50);
        figures.added_p50.push(through.p50 - direct.p50);
        figures.added_p99.push(through.p99 - direct.p99);
        Ok(())
    }

    async fn tell(&mut self, args: &ServeArgs, figures: &Figures) -> io::Result<Outcome> {
        let (stats, upstream) = (self.gateway.stats().await?, self.upstream.stats().await?);
        let middle = |values: &Vec<f64>| median(values.clone());
        let (rps, direct_rps) = (middle(&figures.rps), middle(&figures.direct_rps));
        let mut us = Map::new();
        let mut outcome = Outcome::new();
        outcome.row(
            "gateway",
            format!(
                "{rps:.0} requests/s of 2k, {} callers, one worker",
                args.concurrency
            ),
        );
        outcome.row("no gateway", format!("{direct_rps:.0} requests/s"));
        for (bytes, values) in args.body.iter().zip(&figures.us) {
            let name = size_name(*bytes);
            outcome.row(
                format!("CPU per request of {name}"),
                format!("{:.1} us", middle(values)),
            );
            us.insert(name, json!(round(middle(values), 2)));
        }
        let sse = middle(&figures.sse_us);
        outcome.row("CPU per stream of 64 events", format!("{sse:.1} us"));
        let (p50, p99) = (middle(&figures.added_p50), middle(&figures.added_p99));
        outcome.row(
            "added p50 / p99, one caller",
            format!("{p50:+.0} / {p99:+.0} us"),
        );
        outcome.row("memory", format!("{:.1} MiB", stats.rss_mb));
        let scheduler = stats.counter("dispatched");
        let admission = stats.counter("admitted");
        outcome.json = json!({
            "engine": "emulated",
            "mode": format!("closed loop, {} callers, one worker thread", args.concurrency),
            "rps": round(rps, 0),
            "us_per_request": Value::Object(us),
            "added_us": {"p50": round(p50, 1), "p99": round(p99, 1)},
            "sse64_us": round(sse, 1),
            "rss_mb": round(stats.rss_mb, 1),
            "stages": {"admission": admission, "scheduler": scheduler},
            "requests": self.sent,
            "direct": {"rps": round(direct_rps, 0), "p50_us": round(middle(&figures.direct_p50), 1)},
            "p50_us": round(middle(&figures.p50), 1),
            "p99_us": round(middle(&figures.p99), 1),
        });
        for counter in ["arrived", "admitted", "dispatched", "ended"] {
            let counted = stats.counter(counter);
            outcome.require(counted == self.sent, || {
                format!("{} requests sent, {counted} {counter}", self.sent)
            });
        }
        let (got, wanted) = (upstream.counter("requests"), self.sent + self.direct);
        outcome.require(got == wanted, || {
            format!("{wanted} requests sent, {got} reached the engines")
        });
        Ok(outcome)
    }
}

/// `2k` for 2048.
fn size_name(bytes: usize) -> String {
    match bytes % 1024 {
        0 => format!("{}k", bytes / 1024),
        _ => bytes.to_string(),
    }
}
