//! The real discovery and telemetry over many engines, while nothing else happens.

use std::{
    io,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::json;

use super::{Output, duration};
use crate::{
    child::{Child, Front, Role, Settings, counters, gateway},
    measure::{Times, cpu_time, number, peak_rss_mb, round},
    report::{Outcome, progress},
};

/// Flags of `bench scrape`.
#[derive(Clone, Debug, Args)]
pub struct ScrapeArgs {
    /// Engines to scrape
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    endpoints: u64,
    /// Time from one scrape of an engine to the next
    #[arg(long, value_name = "DURATION", default_value = "50ms", value_parser = duration)]
    interval: Duration,
    /// How long to measure
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    seconds: f64,
    #[command(flatten)]
    pub(super) output: Output,
}

/// How often the age of values is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Longest wait for the first scrape of every engine.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn run(args: &ScrapeArgs) -> io::Result<Outcome> {
    let engines = usize::try_from(args.endpoints).map_err(io::Error::other)?;
    progress("starting engines");
    let mut pages = Child::start(&Role::Pages { engines }).await?;
    let settings = Settings {
        front: Front::ExtProc,
        workers: 0,
        backends: pages.addresses.clone(),
        interval_ms: u64::try_from(args.interval.as_millis())
            .unwrap_or(u64::MAX)
            .max(1),
    };
    let gateway = gateway(&settings).await.map_err(io::Error::other)?;
    let count = |name: &str| counters(&gateway).get(name).copied().unwrap_or(0);
    let until = Instant::now() + PATIENCE;
    while count("observed") < args.endpoints {
        if Instant::now() > until {
            let seen = count("observed");
            return Err(io::Error::other(format!(
                "only {seen} engines could be scraped"
            )));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    progress("measuring");
    let served_before = pages.stats().await?.counter("pages");
    let (before, errors_before) = (count("scrapes"), count("scrape_errors"));
    let (cpu, started) = (cpu_time(), Instant::now());
    let end = started + Duration::try_from_secs_f64(args.seconds).unwrap_or_default();
    let mut ages = Times::new();
    while Instant::now() < end {
        tokio::time::sleep(LOOK.min(end.saturating_duration_since(Instant::now()))).await;
        for (_, shell) in &gateway.pipeline.routes().pools {
            shell.endpoints(|rows, now| {
                let seen = rows.iter().filter_map(|row| row.telemetry.age(now));
                seen.for_each(|age| ages.add(Duration::from_nanos(age)));
            });
        }
    }
    let (cpu, wall) = (cpu_time() - cpu, started.elapsed());
    let scrapes = count("scrapes") - before;
    let errors = count("scrape_errors") - errors_before;
    let served = pages.stats().await?.counter("pages") - served_before;
    Ok(tell(
        args,
        &Measured {
            cpu,
            wall,
            scrapes,
            errors,
            served,
        },
        &ages,
    ))
}

struct Measured {
    cpu: Duration,
    wall: Duration,
    scrapes: u64,
    errors: u64,
    /// Pages that the engines sent.
    served: u64,
}

fn tell(args: &ScrapeArgs, measured: &Measured, ages: &Times) -> Outcome {
    let wall = measured.wall.as_secs_f64();
    let per_s = number(measured.scrapes) / wall;
    let asked = number(args.endpoints) / args.interval.as_secs_f64().max(1e-3);
    let cores = measured.cpu.as_secs_f64() / wall;
    let each = measured.cpu.as_secs_f64() * 1e6 / number(measured.scrapes.max(1));
    let age = ages.ms();
    let mut outcome = Outcome::new();
    outcome.row(
        "endpoints",
        format!("{} every {:?}", args.endpoints, args.interval),
    );
    outcome.row("scrapes per second", format!("{per_s:.0} of {asked:.0}"));
    outcome.row("errors", measured.errors);
    outcome.row("cores", format!("{cores:.3}"));
    outcome.row("CPU per scrape", format!("{each:.1} us"));
    outcome.row(
        "age of values p50 / p99",
        format!("{:.1} / {:.1} ms", age.p50, age.p99),
    );
    if let Some(rss) = peak_rss_mb() {
        outcome.row("memory", format!("{rss:.1} MiB"));
    }
    outcome.json = json!({
        "endpoints": args.endpoints,
        "interval_ms": round(args.interval.as_secs_f64() * 1e3, 3),
        "scrapes_per_s": round(per_s, 1),
        "asked_per_s": round(asked, 1),
        "cores": round(cores, 4),
        "us_per_scrape": round(each, 2),
        "age_ms": age,
        "rss_mb": peak_rss_mb().map(|rss| round(rss, 1)),
        "errors": measured.errors,
        "engine": "captured vLLM pages of 48-76 KB",
    });
    outcome.require(measured.errors == 0, || {
        format!("{} scrapes failed", measured.errors)
    });
    // One page per engine can be under way at either end of the measurement.
    outcome.require(
        measured.scrapes.abs_diff(measured.served) <= args.endpoints,
        || {
            format!(
                "{} scrapes counted, {} pages sent",
                measured.scrapes, measured.served
            )
        },
    );
    outcome.require(per_s >= 0.9 * asked, || {
        format!("{per_s:.0} scrapes per second instead of {asked:.0}")
    });
    outcome
}
