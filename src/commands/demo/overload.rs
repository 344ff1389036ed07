//! Twice what the pool can do: strict bands, a floor for the lowest, two tenants of very different requests that share
//! by tokens, and engines that are protected at the expense of waiting.
//!
//! ```text
//!   1 capacity   closed loop, every tenant always waiting: what the pool does, and how it divides it
//!   2 0.9        open loop at 0.9 of that: time per token of a pool that is not full
//!   3 top alone  the top band as in 4 while a closed loop holds the pool at the lower bands' ceiling
//!   4 overload   open loop at twice the capacity
//! ```

mod analysis;
mod table;

use std::{io::IsTerminal as _, process::ExitCode, time::Duration};

use http::HeaderValue;
use wicketgate_bench::load::{Arrivals, LoadReport, LoadSpec, Silent, Target, run};
use wicketgate_sim::engine::{EngineConfig, EngineHandle};

use super::{
    DemoArgs, INVALID, say,
    stage::{self, PROFILE, Stage, Trouble},
};
use crate::commands::{fail, print};
use analysis::{Findings, Waits, findings};

const ENGINES: u64 = 4;
/// Requests that each engine runs at once.
const BATCH: u32 = 8;
/// Requests of the lower bands that the pool runs at once: one place of each batch is the top band's.
const LOWER: u32 = 4 * 7;
/// Share of the top band in the offered requests, against the pool's capacity.
const TOP_SHARE: f64 = 0.15;
/// Share of the tokens that the lowest band keeps.
const FLOOR: f64 = 0.1;

const TOP: i32 = 10;
const MIDDLE: i32 = 0;
const LOW: i32 = -10;

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tenant {
    name: &'static str,
    band: i32,
    /// Words of a request beyond the shared prefix.
    words: usize,
    seed: u64,
}

/// The middle band's tenants have equal weights; their requests differ 10:1 in size and 1:10 in prefix hits, as both
/// begin with a shared prefix of the same length.
const TENANTS: [Tenant; 4] = [
    Tenant {
        name: "interactive",
        band: TOP,
        words: 40,
        seed: 1,
    },
    Tenant {
        name: "small",
        band: MIDDLE,
        words: 10,
        seed: 2,
    },
    Tenant {
        name: "large",
        band: MIDDLE,
        words: 910,
        seed: 3,
    },
    Tenant {
        name: "batch",
        band: LOW,
        words: 400,
        seed: 4,
    },
];

/// Words of the prefix that all requests of a tenant share.
const PREFIX_WORDS: usize = 90;

/// What the gateway is told. A proxy sets the headers in real life; here the load does.
fn admission() -> String {
    format!(
        "trustedProxy: {{priorityHeader: x-demo-priority, fairnessIdHeader: x-demo-tenant}}
plugins:
- {{type: concurrency-detector, parameters: {{maxConcurrency: {BATCH}}}}}
- {{type: priority-holdback-policy, parameters: {{minCeiling: 0.7}}}}
admission:
  saturationDetector: {{pluginRef: concurrency-detector}}
  usageLimitPolicyPluginRef: priority-holdback-policy
  starvation: {{policy: floor, share: {FLOOR}}}
  priorityBands:
  - {{priority: {TOP}, requestTTL: 10s}}
  - {{priority: {MIDDLE}, requestTTL: 4s}}
  - {{priority: {LOW}, requestTTL: 8s}}
"
    )
}

/// How much of what a phase offers.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// Open loop, so many requests per second.
    Open(f64),
    /// So many under way at any time.
    Closed(usize),
    Nothing,
}

/// A phase's offer, one entry per tenant.
type Offer = [Load; TENANTS.len()];

/// What came of a phase, one entry per tenant.
pub(super) struct Phase {
    reports: Vec<Option<LoadReport>>,
    /// Mean time of an engine's step.
    step_ms: f64,
    left: u64,
    waits: Waits,
}

fn spec(tenant: Tenant, load: Load, seconds: u64, hang_up: bool) -> LoadSpec {
    let duration = Duration::from_secs(seconds);
    let words = (tenant.words, tenant.words);
    let base = LoadSpec {
        seed: tenant.seed,
        groups: 1,
        system_words: PREFIX_WORDS,
        turn_words: words,
        turns: 1,
        long_share: 0.0,
        output: (16, 64),
        duration,
        // What stands in between: the queues fill up at first, and empty at last.
        window: Some((duration / 5, duration)),
        cancel_share: if hang_up { 0.05 } else { 0.0 },
        cancel_after: (Duration::from_millis(20), Duration::from_millis(1500)),
        ..LoadSpec::default()
    };
    match load {
        Load::Open(rate) => LoadSpec { rate, ..base },
        Load::Closed(max_in_flight) => LoadSpec {
            arrivals: Arrivals::Closed,
            max_in_flight,
            ..base
        },
        Load::Nothing => base,
    }
}

fn target(stage: &Stage, tenant: Tenant) -> Result<Target, Trouble> {
    let mut target = Target::chat(vec![stage.front]);
    let headers = &mut target.headers;
    headers.insert("x-demo-priority", HeaderValue::from(tenant.band));
    headers.insert("x-demo-tenant", HeaderValue::from_static(tenant.name));
    Ok(target)
}

async fn phase(
    args: &DemoArgs,
    name: &str,
    seconds: u64,
    offer: Offer,
    // Some callers leave while they wait, or while they are served.
    hang_up: bool,
) -> Result<Phase, Trouble> {
    say(name);
    let configs = (0..ENGINES).map(|seed| EngineConfig {
        profile: PROFILE.to_owned(),
        max_num_seqs: BATCH,
        seed,
        ..EngineConfig::default()
    });
    let engines = stage::engines(configs).await?;
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("steps");
    let stage = Stage::start(&engines, args.envoy, &admission(), Some(log.clone())).await?;
    let begun = std::time::Instant::now();
    let mut running = Vec::new();
    for (tenant, load) in TENANTS.into_iter().zip(offer) {
        let spec = spec(tenant, load, seconds, hang_up);
        let target = target(&stage, tenant)?;
        running.push(tokio::spawn(async move {
            match load {
                Load::Nothing => Ok(None),
                Load::Open(_) | Load::Closed(_) => run(&spec, &target, &Silent).await.map(Some),
            }
        }));
    }
    let ticking = tokio::spawn(tick(seconds));
    let mut reports = Vec::new();
    for task in running {
        reports.push(task.await??);
    }
    ticking.abort();
    let steps: u64 = engines.iter().map(|engine| engine.stats().steps).sum();
    let step_ms = step_ms(begun.elapsed(), steps, &engines);
    let left = stage.left().await;
    stage.end().await;
    Ok(Phase {
        reports,
        step_ms,
        left,
        waits: Waits::read(&log)?,
    })
}

/// Mean time of a step of engines that are never idle.
fn step_ms(elapsed: Duration, steps: u64, engines: &[EngineHandle]) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
    let each = steps.max(1) as f64 / engines.len().max(1) as f64;
    elapsed.as_secs_f64() * 1e3 / each
}

/// Seconds on a terminal.
async fn tick(seconds: u64) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    for second in 1..=seconds {
        tokio::time::sleep(Duration::from_secs(1)).await;
        progress(second, seconds);
    }
}

#[expect(clippy::print_stderr, reason = "live progress for people")]
fn progress(second: u64, seconds: u64) {
    eprint!("\r  {second:>3}/{seconds} s ");
    if second == seconds {
        eprintln!();
    }
}

pub(super) async fn overload(args: &DemoArgs) -> Result<ExitCode, Trouble> {
    let short = (args.seconds / 2).max(1);
    say(&format!(
        "four emulated engines ({PROFILE}, {BATCH} requests each), three bands, {} s of overload",
        args.seconds
    ));
    let always = Load::Closed(48);
    let capacity = phase(
        args,
        "phase 1: what the pool can do: everybody but the top band always waits",
        short,
        [Load::Nothing, always, always, always],
        false,
    )
    .await?;
    let rates: Vec<f64> = capacity
        .reports
        .iter()
        .map(|report| {
            report
                .as_ref()
                .map_or(0.0, |report| report.rates.completed_rps)
        })
        .collect();
    let Some((mix, total)) = mix(&rates) else {
        return Err("the pool did nothing in phase 1".into());
    };
    let at = |share: f64| mix.map(|rate| Load::Open(rate * share));
    let relaxed = phase(
        args,
        &format!("phase 2: 0.9 of its {total:.0} requests/s"),
        short,
        at(0.9),
        false,
    )
    .await?;
    let [small, large, batch] = held(mix, &relaxed);
    let alone = phase(
        args,
        "phase 3: the top band with nobody waiting, the pool held at the ceiling of the others",
        short,
        [Load::Open(TOP_SHARE * total), small, large, batch],
        false,
    )
    .await?;
    let overload = phase(
        args,
        &format!("phase 4: twice its capacity, {:.0} requests/s", 2.0 * total),
        args.seconds,
        twice(mix, total),
        true,
    )
    .await?;
    let mode = if args.envoy { "envoy" } else { "serve" };
    let findings = findings(mode, total, &capacity, &relaxed, &alone, &overload);
    if args.json {
        print(&format!("{}\n", findings.json()));
    } else {
        print(&table::table(&findings));
    }
    Ok(verdict(&findings))
}

/// Requests per second of each tenant at the pool's capacity, as it divides it, the top band's share taken off the
/// others; and their sum.
fn mix(rates: &[f64]) -> Option<([f64; TENANTS.len()], f64)> {
    let [_, small, large, batch] = rates else {
        return None;
    };
    let total = small + large + batch;
    let rest = 1.0 - TOP_SHARE;
    let mix = [TOP_SHARE * total, small * rest, large * rest, batch * rest];
    (total > 0.0 && mix.iter().all(|rate| *rate > 0.0)).then_some((mix, total))
}

/// The pool held at the ceiling of the lower bands by the mix that it serves under overload: each tenant has so many
/// under way as it has there, which is its rate times the time that one takes (Little's law).
fn held(mix: [f64; TENANTS.len()], relaxed: &Phase) -> [Load; TENANTS.len() - 1] {
    let [_, small, large, batch] = mix;
    let took = |tenant: usize| {
        let report = relaxed.reports.get(tenant).and_then(Option::as_ref);
        report.map_or(1.0, |report| report.e2e_ms.p50.max(1.0))
    };
    let work = [small * took(1), large * took(2), batch * took(3)];
    let all: f64 = work.iter().sum();
    work.map(|work| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of 28"
        )]
        let places = (work / all.max(1.0) * f64::from(LOWER)).round() as usize;
        Load::Closed(places.max(1))
    })
}

/// Twice the capacity, of which the top band offers what it did before.
fn twice(mix: [f64; TENANTS.len()], total: f64) -> Offer {
    let [top, small, large, batch] = mix;
    let factor = (2.0 * total - top) / (small + large + batch);
    [top, small * factor, large * factor, batch * factor].map(Load::Open)
}

fn verdict(findings: &Findings) -> ExitCode {
    if findings.failed > 0 || findings.left > 0 {
        let what = format!(
            "{} requests failed, {} still counted",
            findings.failed, findings.left
        );
        return fail(1, what);
    }
    if !findings.valid {
        return fail(
            INVALID,
            "the load was not offered as planned: this machine is too busy",
        );
    }
    let aims = findings.aims();
    let missed: Vec<&str> = aims
        .iter()
        .filter(|(_, met)| !met)
        .map(|(aim, _)| aim.as_str())
        .collect();
    if !missed.is_empty() {
        return fail(1, format!("not so in this run: {}", missed.join("; ")));
    }
    ExitCode::SUCCESS
}
