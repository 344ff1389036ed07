//! The tour: mixed chats through the gateway to four engines, against round robin.

use std::{io::IsTerminal as _, net::SocketAddr, process::ExitCode, time::Duration};

use serde_json::{Value, json};
use wicketgate_bench::load::{LoadReport, LoadSpec, Progress, Snapshot, SpecError, Target, run};
use wicketgate_sim::engine::{EngineConfig, EngineHandle};

use super::{
    DemoArgs, INVALID, cached, say,
    stage::{self, PROFILE, Stage, Trouble},
};
use crate::commands::{fail, print};

/// How fast each engine is: the last one is an older card.
const ENGINES: [f64; 4] = [1.0, 1.0, 1.0, 0.4];

/// A phase's line on a terminal; silent in pipes.
struct Line {
    name: &'static str,
    terminal: bool,
}

impl Progress for Line {
    #[expect(clippy::print_stderr, reason = "live progress for people")]
    fn update(&self, snapshot: &Snapshot) {
        if self.terminal {
            let requests = snapshot.requests;
            eprint!(
                "\r  {:<12} {:>3.0}/{:.0} s   ok {:>5}  shed {:>3}  failed {:>3}  cancelled {:>3}  in flight {:>3}  ttft p50 {:>5.0} ms ",
                self.name,
                snapshot.elapsed.as_secs_f64(),
                snapshot.duration.as_secs_f64(),
                requests.ok,
                requests.shed,
                requests.failed,
                requests.cancelled,
                snapshot.in_flight,
                snapshot.ttft_p50_ms
            );
        }
    }
}

fn engines() -> impl Iterator<Item = EngineConfig> {
    (0..).zip(ENGINES).map(|(seed, time_scale)| EngineConfig {
        profile: PROFILE.to_owned(),
        time_scale,
        seed,
        ..EngineConfig::default()
    })
}

async fn phase(
    args: &DemoArgs,
    name: &'static str,
    targets: Vec<SocketAddr>,
) -> Result<LoadReport, SpecError> {
    let spec = LoadSpec {
        rate: args.rate,
        duration: Duration::from_secs(args.seconds),
        cancel_share: 0.02,
        ..LoadSpec::default()
    };
    let terminal = std::io::stderr().is_terminal();
    let line = Line { name, terminal };
    let report = run(&spec, &Target::chat(targets), &line).await;
    if terminal {
        say("");
    }
    report
}

pub(super) async fn tour(args: &DemoArgs) -> Result<ExitCode, Trouble> {
    say(&format!(
        "four emulated engines ({PROFILE}; the fourth 2.5 times as slow), {} requests/s, {} s a phase",
        args.rate, args.seconds
    ));
    say("phase 1: round robin, straight to the engines");
    let four = stage::engines(engines()).await?;
    let targets = four.iter().map(EngineHandle::address).collect();
    let baseline = phase(args, "round robin", targets).await?;
    drop(four);

    let mode = if args.envoy { "envoy" } else { "serve" };
    say(match mode {
        "envoy" => "phase 2: through Envoy, which asks wicketgate epp for each request",
        _ => "phase 2: through wicketgate serve",
    });
    let four = cached::engines(engines()).await?;
    let stage = Stage::start_cached(&four, args.envoy).await?;
    let report = phase(args, mode, vec![stage.front]).await?;
    let seen = four.iter().map(|engine| engine.handle.stats().requests);
    let seen: Vec<u64> = seen.collect();
    let left = stage.left().await;
    stage.end().await;

    if args.json {
        print(&format!(
            "{}\n",
            summary(mode, &report, &baseline, &seen, left)
        ));
    } else {
        print(&table(mode, &report, &baseline, &seen, left));
    }
    Ok(verdict(&report, &baseline, left))
}

fn verdict(report: &LoadReport, baseline: &LoadReport, left: u64) -> ExitCode {
    if report.requests.failed > 0 || left > 0 {
        return fail(
            1,
            format!(
                "{} requests failed, {left} still counted",
                report.requests.failed
            ),
        );
    }
    if !report.valid || !baseline.valid {
        return fail(
            INVALID,
            "the load was not offered as planned: this machine is too busy",
        );
    }
    ExitCode::SUCCESS
}

/// The keys that scripts rely on; those of stages that are not built yet are not there.
fn summary(
    mode: &str,
    report: &LoadReport,
    baseline: &LoadReport,
    seen: &[u64],
    left: u64,
) -> Value {
    json!({
        "engine": "emulated",
        "mode": mode,
        "rate_mode": "open loop, Poisson",
        "requests": report.requests,
        "ttft_ms": report.ttft_ms,
        "tpot_ms": report.tpot_ms,
        "rates": report.rates,
        "prefix": {
            "hit_ratio": report.prefix.hit_ratio,
            "round_robin_hit_ratio": baseline.prefix.hit_ratio,
        },
        "lag_ms": report.lag_ms,
        "valid": report.valid && baseline.valid,
        "guards": left,
        "requests_per_engine": seen,
        "round_robin": {
            "requests": baseline.requests,
            "ttft_ms": baseline.ttft_ms,
            "tpot_ms": baseline.tpot_ms,
        },
    })
}

fn table(
    mode: &str,
    report: &LoadReport,
    baseline: &LoadReport,
    seen: &[u64],
    left: u64,
) -> String {
    let row = |name: &str, report: &LoadReport| {
        let requests = report.requests;
        format!(
            "{name:<13} {:>7} {:>6} {:>5} {:>6} {:>9} {:>8.0} {:>8.0} {:>8.0} {:>8.1} {:>8.1}\n",
            requests.offered,
            requests.ok,
            requests.shed,
            requests.failed,
            requests.cancelled,
            report.ttft_ms.p50,
            report.ttft_ms.p90,
            report.ttft_ms.p99,
            report.tpot_ms.p50,
            report.tpot_ms.p90
        )
    };
    let head = "              offered     ok  shed failed cancelled  ttft p50      p90      p99 tpot p50      p90  (ms)\n";
    let seen: Vec<String> = seen.iter().map(u64::to_string).collect();
    let hits = |report: &LoadReport| report.prefix.hit_ratio.unwrap_or(0.0) * 100.0;
    format!(
        "\n{head}{}{}prompt tokens from the engines' caches: round robin {:.0} %, {mode} {:.0} %\nrequests per engine, the fourth being slow: {}; counts still held: {left}\n",
        row("round robin", baseline),
        row(mode, report),
        hits(baseline),
        hits(report),
        seen.join(" ")
    )
}
