//! The real picker and a bare ext_proc server, each in a process of its own, under the same load in turn.

mod caller;
mod drive;
mod result;
mod script;
mod server;

use std::{io, sync::Arc, time::Duration};

use clap::Args;

use self::{drive::Arrivals, result::Result, script::Shape, server::Server};
use super::{Output, duration, size};
use crate::{
    child::{Child, Front, Role, Settings},
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
    progress("starting engines, picker and floor");
    let engines = usize::from(args.endpoints);
    let pages = Child::start(&Role::Pages { engines }).await?;
    let (mut ours, mut floor) = servers(args, &shape, &pages).await?;
    let idle = ours.idle(WARM_UP).await?;
    let mut outcome = Outcome::new();
    for server in [&mut ours, &mut floor] {
        server.warm_up(arrivals, WARM_UP).await?;
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
    let result = Result {
        args,
        prompt_tokens: shape.prompt_tokens(),
        arrivals,
        idle,
        our_stats: ours.stats().await?,
        floor_stats: floor.stats().await?,
        ours,
        floor,
    };
    result.tell(&mut outcome);
    Ok(outcome)
}

/// The picker, once it has scraped every endpoint, and the floor.
async fn servers(args: &ExtprocArgs, shape: &Shape, pages: &Child) -> io::Result<(Server, Server)> {
    let (workers, connections) = (usize::from(args.workers), usize::from(args.connections));
    let scripts = Arc::new(shape.scripts());
    let interval_ms = u64::try_from(args.interval.as_millis()).unwrap_or(u64::MAX);
    let gateway = Role::Gateway(Settings {
        front: Front::ExtProc,
        workers,
        backends: pages.addresses.clone(),
        interval_ms: interval_ms.max(1),
    });
    let floor = Role::Floor {
        workers,
        endpoints: pages.addresses.clone(),
    };
    let mut ours = Server::start(&gateway, connections, &scripts).await?;
    ours.observed(u64::from(args.endpoints)).await?;
    let floor = Server::start(&floor, connections, &scripts).await?;
    Ok((ours, floor))
}
