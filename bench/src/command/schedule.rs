//! The scheduler crate alone: our default profile over endpoints with telemetry, loads and cached prefixes.

use std::{
    collections::VecDeque,
    io,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::json;
use wicketgate_scheduler::{
    Endpoint, EndpointSpec, Incarnation, Nanos, PrefixView, RequestView, SECOND, Sample, Scheduler,
    SchedulerPolicy, SchedulerSpec, Snapshot, State,
};

use super::Output;
use crate::{
    measure::{Times, median, number, round},
    report::Outcome,
};

/// Flags of `bench schedule`.
#[derive(Clone, Debug, Args)]
pub struct ScheduleArgs {
    /// Endpoints of the pool
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    endpoints: u64,
    /// How long to decide
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    seconds: f64,
    /// Start of the randomness
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    pub(super) output: Output,
}

/// Decisions before the measured ones: the tables have been in the caches then, as in a server under load.
const WARM_UP: u64 = 2000;
/// Decisions between two looks at the clock.
const SLICE: u64 = 500;
/// Requests per endpoint that are under way at once.
const IN_FLIGHT: usize = 8;
/// Virtual time between two requests, and between two scrapes of one endpoint.
const GAP: Nanos = SECOND / 2000;
const SCRAPE: Nanos = SECOND / 20;

pub(super) fn run(args: &ScheduleArgs) -> io::Result<Outcome> {
    let mut fleet = Fleet::new(args.endpoints, args.seed)?;
    for _ in 0..WARM_UP {
        fleet.decide()?;
    }
    let mut times = Times::new();
    let mut rates = Vec::new();
    let until = Instant::now() + Duration::try_from_secs_f64(args.seconds).unwrap_or_default();
    while Instant::now() < until {
        rates.push(slice(&mut fleet, &mut times)?);
    }
    let us = times.us();
    let per_s = median(rates);
    let mut outcome = Outcome::new();
    outcome.row("endpoints", args.endpoints);
    outcome.row("decisions", times.len());
    outcome.row(
        "decision p50 / p99",
        format!("{:.1} / {:.1} us", us.p50, us.p99),
    );
    outcome.row("decisions per second", format!("{per_s:.0} on one core"));
    outcome.json = json!({
        "endpoints": args.endpoints,
        "decision_us": us,
        "decisions_per_s": round(per_s, 0),
        "decisions": times.len(),
        "mode": "one thread, one decision at a time",
    });
    let (decided, dispatched) = (WARM_UP + times.len(), fleet.dispatched);
    outcome.require(times.len() > 0, || "no decision was measured".to_owned());
    outcome.require(decided == dispatched, || {
        format!("{decided} decisions, but the endpoints were given {dispatched} requests")
    });
    Ok(outcome)
}

/// Decides [`SLICE`] times; decisions per second. The middle slice counts: a slice in which the machine did
/// something else says nothing of the scheduler.
fn slice(fleet: &mut Fleet, times: &mut Times) -> io::Result<f64> {
    let mut spent = Duration::ZERO;
    for _ in 0..SLICE {
        let took = fleet.decide()?;
        spent += took;
        times.add(took);
    }
    Ok(number(SLICE) / spent.as_secs_f64().max(1e-9))
}

/// A pool's state outside a pool: the same calls in the same order, and nothing else.
struct Fleet {
    scheduler: Scheduler,
    policy: SchedulerPolicy,
    state: State,
    endpoints: Vec<Endpoint>,
    /// Where requests under way are, and the tokens they raised.
    running: VecDeque<(usize, u64)>,
    rng: fastrand::Rng,
    now: Nanos,
    next: u64,
    scraped: usize,
    dispatched: u64,
}

impl Fleet {
    fn new(count: u64, seed: u64) -> io::Result<Fleet> {
        let scheduler = Scheduler::new(&SchedulerSpec::default_ours()).map_err(io::Error::other)?;
        let endpoint = |index: u64| {
            let [.., a, b, c] = index.to_be_bytes();
            let address = format!("10.{a}.{b}.{c}:8000");
            let spec = EndpointSpec::new(format!("pool/engine-{index}"), address);
            Endpoint::new(Incarnation(index + 1), &spec, 0)
        };
        let mut fleet = Fleet {
            scheduler,
            policy: SchedulerPolicy::default(),
            state: State::new(seed),
            endpoints: (0..count).map(endpoint).collect(),
            running: VecDeque::new(),
            rng: fastrand::Rng::with_seed(seed),
            // Past the slow start of endpoints that joined at zero.
            now: 60 * SECOND,
            next: 0,
            scraped: 0,
            dispatched: 0,
        };
        for _ in 0..fleet.endpoints.len() {
            fleet.scrape();
        }
        Ok(fleet)
    }

    /// A scrape of the endpoint whose turn it is.
    fn scrape(&mut self) {
        let sample = Sample {
            waiting: Some(f64::from(self.rng.u32(0..6))),
            running: Some(f64::from(self.rng.u32(0..64))),
            kv_usage: Some(self.rng.f64() * 0.95),
            block_size: Some(16),
            num_blocks: Some(19_208),
            ..Sample::default()
        };
        self.scraped = (self.scraped + 1) % self.endpoints.len().max(1);
        if let Some(endpoint) = self.endpoints.get_mut(self.scraped) {
            endpoint.on_sample(self.now, &sample);
        }
    }

    /// Scrapes and ends that fall between two requests. Not measured.
    fn pass_time(&mut self) {
        self.now += GAP;
        let scrapes = self.endpoints.len() as u64 * GAP / SCRAPE;
        for _ in 0..scrapes.max(1) {
            self.scrape();
        }
        while self.running.len() > IN_FLIGHT * self.endpoints.len() {
            let Some((at, tokens)) = self.running.pop_front() else {
                return;
            };
            if let Some(endpoint) = self.endpoints.get_mut(at) {
                endpoint.on_end(self.now, tokens);
            }
        }
    }

    /// One decision and its bookkeeping; how long that took.
    fn decide(&mut self) -> io::Result<Duration> {
        self.pass_time();
        self.next += 1;
        let prompt_tokens = 1 << self.rng.u32(6..15);
        let prefix = Cached(prompt_tokens);
        let request = RequestView {
            id: self.next,
            model: "bench",
            prompt_tokens,
            output_tokens: self.rng.u64(16..512),
            session: None,
            session_hash: Some(self.rng.u64(0..4096)),
            subset: None,
            priority: 0,
            headers: &[],
            keys: &[],
        };
        let started = Instant::now();
        let snapshot = Snapshot {
            now: self.now,
            endpoints: &self.endpoints,
            prefix: &prefix,
            policy: &self.policy,
            full: &[],
        };
        let decision = self.scheduler.choose(&request, &snapshot, &mut self.state);
        let decision = decision.map_err(io::Error::other)?;
        self.scheduler
            .after_dispatch(&request, &decision, &mut self.state);
        let target = decision.targets.first().map_or(0, |target| target.id.0);
        let at = usize::try_from(target.wrapping_sub(1)).unwrap_or(usize::MAX);
        if let Some(endpoint) = self.endpoints.get_mut(at) {
            endpoint.on_dispatch(self.now, prompt_tokens);
            self.dispatched += 1;
        }
        let took = started.elapsed();
        self.running.push_back((at, prompt_tokens));
        Ok(took)
    }
}

/// An eighth of the endpoints hold a part of the prompt, each request another eighth.
struct Cached(u64);

impl PrefixView for Cached {
    fn cached_tokens(&self, request: &RequestView<'_>, endpoint: Incarnation) -> u64 {
        let mixed = (request.id ^ endpoint.0.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        match mixed >> 61 {
            0 => self.0 / 16 * (mixed >> 32 & 15),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_decision_is_counted_and_load_is_spread() {
        let mut fleet = Fleet::new(20, 7).unwrap();
        for _ in 0..1000 {
            fleet.decide().unwrap();
        }
        assert_eq!(fleet.dispatched, 1000);
        let loads: Vec<u32> = fleet
            .endpoints
            .iter()
            .map(|row| row.load.requests)
            .collect();
        let total: u32 = loads.iter().sum();
        assert_eq!(total as usize, fleet.running.len());
        assert!(
            loads.iter().all(|load| *load <= 2 * total / 20 + 1),
            "{loads:?}"
        );
        assert!(fleet.endpoints.iter().all(|row| row.telemetry.observed()));
    }
}
