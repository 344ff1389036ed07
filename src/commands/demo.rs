//! `demo`: the main job in a minute, on one machine, without a GPU.

mod cached;
mod overload;
mod stage;
mod tour;

use std::{process::ExitCode, time::Duration};

use clap::{Args, ValueEnum};

use super::{fail, log, runtime};

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
    /// Requests per second of the tour; the overload measures the pool's capacity and offers twice that
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
    /// Twice what the pool can do: three bands, two tenants of very different requests in the middle one
    Overload,
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
        Scenario::Tour => runtime.block_on(tour::tour(args)),
        Scenario::Overload => runtime.block_on(overload::overload(args)),
    };
    runtime.shutdown_timeout(Duration::from_secs(1));
    match shown {
        Ok(code) => code,
        Err(error) => fail(1, format!("demo: {error}")),
    }
}

/// Says something to people; not in the way of `--json`.
#[expect(clippy::print_stderr, reason = "the demo talks to people")]
fn say(text: &str) {
    eprintln!("{text}");
}
