//! `demo`: the main job in a minute, on one machine, without a GPU.

use std::{io::IsTerminal as _, net::SocketAddr, path::Path, process::ExitCode, time::Duration};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use wicketgate_bench::{
    envoy::{self, Envoy, OVERRIDE_HOST, Ports},
    load::{LoadReport, LoadSpec, Progress, Snapshot, SpecError, Target, run},
};
use wicketgate_config::Config;
use wicketgate_epp::{
    configure::{Fronts, gateway_spec},
    gateway::Gateway,
};
use wicketgate_sim::engine::{EngineConfig, EngineHandle, spawn};

use super::{fail, log, print, runtime};

const PROFILE: &str = "h100-llama3.1-8b-tp1";
/// How fast each engine is: the last one is an older card.
const ENGINES: [f64; 4] = [1.0, 1.0, 1.0, 0.4];
/// The load was not offered as planned.
const INVALID: u8 = 3;

/// `wicketgate demo`
#[derive(Args)]
pub(crate) struct DemoArgs {
    /// What to show
    #[arg(long, value_enum, default_value_t = Scenario::Tour)]
    scenario: Scenario,
    /// Put a real Envoy in front, with the endpoint picker behind ext_proc
    #[arg(long)]
    envoy: bool,
    /// How long requests are sent in each phase
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Requests per second
    #[arg(long, value_name = "N", default_value_t = 24.0)]
    rate: f64,
    /// Print one JSON object on the last line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Scenario {
    /// Mixed chats through the gateway to four engines, against round robin
    Tour,
}

pub(crate) fn demo(args: &DemoArgs) -> ExitCode {
    log("warn");
    if !(args.rate.is_finite() && args.rate > 0.0 && args.rate <= 10_000.0) {
        return fail(super::USAGE, "--rate: expected a number from 0 to 10000");
    }
    let runtime = match runtime(0) {
        Ok(runtime) => runtime,
        Err(error) => return fail(1, error),
    };
    let shown = match args.scenario {
        Scenario::Tour => runtime.block_on(tour(args)),
    };
    runtime.shutdown_timeout(Duration::from_secs(1));
    match shown {
        Ok(code) => code,
        Err(error) => fail(1, format!("demo: {error}")),
    }
}

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

/// Says something to people; not in the way of `--json`.
#[expect(clippy::print_stderr, reason = "the demo talks to people")]
fn say(text: &str) {
    eprintln!("{text}");
}

async fn engines() -> std::io::Result<Vec<EngineHandle>> {
    let mut engines = Vec::new();
    for (seed, time_scale) in (0..).zip(ENGINES) {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let config = EngineConfig {
            profile: PROFILE.to_owned(),
            time_scale,
            seed,
            ..EngineConfig::default()
        };
        engines.push(spawn(listener, config)?);
    }
    Ok(engines)
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

async fn tour(args: &DemoArgs) -> Result<ExitCode, Box<dyn std::error::Error>> {
    say(&format!(
        "four emulated engines ({PROFILE}; the fourth 2.5 times as slow), {} requests/s, {} s a phase",
        args.rate, args.seconds
    ));
    say("phase 1: round robin, straight to the engines");
    let four = engines().await?;
    let targets = four.iter().map(EngineHandle::address).collect();
    let baseline = phase(args, "round robin", targets).await?;
    drop(four);

    let mode = if args.envoy { "envoy" } else { "serve" };
    say(match mode {
        "envoy" => "phase 2: through Envoy, which asks wicketgate epp for each request",
        _ => "phase 2: through wicketgate serve",
    });
    let four = engines().await?;
    let addresses: Vec<SocketAddr> = four.iter().map(EngineHandle::address).collect();
    let backends: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    let mut config = Config::from_backends(&backends)?;
    config.bind = [127, 0, 0, 1].into();
    (
        config.http_port,
        config.ext_proc_port,
        config.health_port,
        config.metrics_port,
    ) = (0, 0, 0, 0);
    config.drain_timeout = Duration::from_secs(10);
    let fronts = if args.envoy {
        Fronts::ExtProc
    } else {
        Fronts::Http
    };
    let gateway = Gateway::start(gateway_spec(&config, fronts, None)?).await?;
    let envoy = if args.envoy {
        Some(start_envoy(&gateway, addresses).await?)
    } else {
        None
    };
    let front = envoy
        .as_ref()
        .map_or(gateway.http, |(_, address)| Some(*address));
    let front = front.ok_or("the gateway has no address")?;
    let report = phase(args, mode, vec![front]).await?;
    let seen: Vec<u64> = four.iter().map(|engine| engine.stats().requests).collect();
    let held = gateway.held();
    let left: u64 = held
        .iter()
        .map(|(_, held)| held.running + held.waiting)
        .sum();
    drop(envoy);
    gateway.drain().await;

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

async fn start_envoy(
    gateway: &Gateway,
    endpoints: Vec<SocketAddr>,
) -> Result<(Envoy, SocketAddr), Box<dyn std::error::Error>> {
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
    format!(
        "\n{head}{}{}requests per engine, the fourth being slow: {}; counts still held: {left}\n",
        row("round robin", baseline),
        row(mode, report),
        seen.join(" ")
    )
}
