//! Open-loop load on any OpenAI-compatible server.

use std::{io, net::SocketAddr, process::ExitCode, time::Duration};

use clap::Args;
use serde_json::{Value, json};
use tokio::net::lookup_host;

use super::{Output, block_on, duration, tell, usage};
use crate::{
    load::{
        Arrivals, LoadReport, LoadSpec, Progress, Quantiles, Snapshot, Target, run as offer, steps,
    },
    report::{Outcome, progress},
};

/// Flags of `bench load`.
#[derive(Clone, Debug, Args)]
pub struct LoadArgs {
    /// The server, such as http://127.0.0.1:8080; again for more, which take turns
    #[arg(long = "target", value_name = "URL", required = true)]
    targets: Vec<String>,
    /// Requests per second; several rising rates are measured one after the other
    #[arg(long, value_name = "RATE", value_delimiter = ',', default_value = "10")]
    rate: Vec<f64>,
    /// How long requests are sent, at each rate
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    seconds: f64,
    /// How requests are spread over time
    #[arg(long, value_name = "HOW", value_enum, default_value = "poisson")]
    arrivals: Arrivals,
    /// Model to ask for
    #[arg(long, value_name = "NAME", default_value = "emulated")]
    model: String,
    /// System prompts; the chats of a group share one
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    groups: usize,
    /// Words of a system prompt
    #[arg(long, value_name = "WORDS", default_value_t = 300)]
    system_words: usize,
    /// Turns of a chat
    #[arg(long, value_name = "COUNT", default_value_t = 6)]
    turns: usize,
    /// Time between two turns of a chat
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    think: Duration,
    /// Share of long single prompts
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    long_share: f64,
    /// Most tokens to generate; at least an eighth of it is asked for
    #[arg(long, value_name = "TOKENS", default_value_t = 96)]
    output_tokens: u32,
    /// Share of requests that ask for a stream
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    stream_share: f64,
    /// Share of requests whose caller hangs up
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    cancel_share: f64,
    /// Requests under way at once
    #[arg(long, value_name = "COUNT", default_value_t = 4096)]
    max_in_flight: usize,
    /// Longest time of a request
    #[arg(long, value_name = "DURATION", default_value = "120s", value_parser = duration)]
    timeout: Duration,
    /// Lateness of sending that is forgiven at any rate; else 1 % of the mean gap is allowed
    #[arg(long, value_name = "DURATION", default_value = "10ms", value_parser = duration)]
    lag_floor: Duration,
    /// Start of the randomness
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: Output,
}

impl LoadArgs {
    fn spec(&self, rate: f64) -> LoadSpec {
        LoadSpec {
            model: self.model.clone(),
            rate,
            duration: Duration::try_from_secs_f64(self.seconds).unwrap_or_default(),
            arrivals: self.arrivals,
            seed: self.seed,
            groups: self.groups,
            system_words: self.system_words,
            turns: self.turns,
            think: self.think,
            long_share: self.long_share,
            output: ((self.output_tokens / 8).max(1), self.output_tokens.max(1)),
            stream_share: self.stream_share,
            cancel_share: self.cancel_share,
            max_in_flight: self.max_in_flight,
            timeout: self.timeout,
            lag_floor: self.lag_floor,
            ..LoadSpec::default()
        }
    }
}

pub(super) fn run(args: &LoadArgs) -> ExitCode {
    if let Err(error) = steps(&args.rate) {
        return usage(error);
    }
    for rate in &args.rate {
        if let Err(error) = args.spec(*rate).check() {
            return usage(error);
        }
    }
    tell(args.output, block_on(measure(args)))
}

async fn measure(args: &LoadArgs) -> io::Result<Outcome> {
    let mut addresses = Vec::new();
    for url in &args.targets {
        addresses.push(resolve(url).await?);
    }
    let target = Target::chat(addresses);
    let mut reports = Vec::new();
    for rate in &args.rate {
        progress(&format!("{rate} requests per second"));
        let report = offer(&args.spec(*rate), &target, &Line).await;
        reports.push(report.map_err(io::Error::other)?);
    }
    Ok(outcome(&reports))
}

/// The address behind `http://host:port`, or behind `host:port`.
async fn resolve(url: &str) -> io::Result<SocketAddr> {
    let host = url
        .strip_prefix("http://")
        .unwrap_or(url)
        .trim_end_matches('/');
    let port = if host
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok())
    {
        ""
    } else {
        ":80"
    };
    let mut found = lookup_host(format!("{host}{port}")).await?;
    found
        .next()
        .ok_or_else(|| io::Error::other(format!("{url} has no address")))
}

/// A line a second.
struct Line;

impl Progress for Line {
    fn update(&self, snapshot: &Snapshot) {
        let ms = snapshot.elapsed.as_millis();
        if ms % 1000 < 100 {
            let Snapshot {
                requests,
                in_flight,
                ttft_p50_ms,
                ..
            } = snapshot;
            let ok = requests.ok;
            progress(&format!(
                "{:>4} s  ok {ok}  under way {in_flight}  TTFT p50 {ttft_p50_ms:.0} ms",
                ms / 1000
            ));
        }
    }
}

fn outcome(reports: &[LoadReport]) -> Outcome {
    let mut outcome = Outcome::new();
    for report in reports {
        rows(&mut outcome, report);
        outcome.require(report.valid, || {
            let lag = report.lag_ms;
            format!(
                "the load of {} per second was not offered: {} of {} requests late, p99 {} ms of {} ms",
                report.rates.offered_rps, lag.late, report.requests.offered, lag.p99, lag.allowed
            )
        });
    }
    outcome.json = match reports {
        [only] => json!(only),
        steps => {
            json!({"mode": "open loop", "steps": steps.iter().map(|step| json!(step)).collect::<Vec<Value>>()})
        }
    };
    outcome
}

fn rows(outcome: &mut Outcome, report: &LoadReport) {
    let (requests, rates) = (report.requests, report.rates);
    let quantiles = |q: Quantiles| format!("{:.1} / {:.1} / {:.1} ms", q.p50, q.p90, q.p99);
    outcome.row(
        "offered / sent / completed",
        format!(
            "{} / {} / {} per second",
            rates.offered_rps, rates.sent_rps, rates.completed_rps
        ),
    );
    outcome.row("requests", requests.offered);
    outcome.row("  ok", requests.ok);
    outcome.row(
        "  shed",
        format!(
            "{} ({:.1} %) {:?}",
            requests.shed,
            report.shed.share * 100.0,
            report.shed.by_reason
        ),
    );
    outcome.row(
        "  failed",
        format!(
            "{} ({:.1} %) {:?}",
            requests.failed,
            report.failed.share * 100.0,
            report.failed.by_cause
        ),
    );
    outcome.row("  cancelled", requests.cancelled);
    outcome.row("TTFT p50 / p90 / p99", quantiles(report.ttft_ms));
    outcome.row("TPOT p50 / p90 / p99", quantiles(report.tpot_ms));
    outcome.row("E2E p50 / p90 / p99", quantiles(report.e2e_ms));
    if let Some(ratio) = report.prefix.hit_ratio {
        outcome.row(
            "prefix hits",
            format!("{:.1} % of prompt tokens", ratio * 100.0),
        );
    }
    outcome.row(
        "sent late p99 / max",
        format!(
            "{} / {} ms of {} ms allowed",
            report.lag_ms.p99, report.lag_ms.max, report.lag_ms.allowed
        ),
    );
}
