//! Times single decisions over scraped, loaded fleets. Run it in release:
//! `cargo run --release -p wicketgate-scheduler --example decide`.
#![expect(clippy::print_stdout, reason = "its output is its result")]

use std::{hint::black_box, time::Instant};

use wicketgate_scheduler::{
    Endpoint, EndpointSpec, Incarnation, NoPrefix, RequestView, SECOND, Sample, Scheduler,
    SchedulerPolicy, SchedulerSpec, Snapshot, SpecError, State,
};

fn fleet(count: u64) -> Vec<Endpoint> {
    (0..count)
        .map(|i| {
            let address = format!("10.0.{}.{}:8000", i / 250, i % 250);
            let spec = EndpointSpec::new(format!("ns/pod-{i}"), address);
            let mut endpoint = Endpoint::new(Incarnation(i), &spec, 0);
            let sample = Sample {
                waiting: Some((i % 7) as f64),
                running: Some((i % 31) as f64),
                kv_usage: Some((i % 97) as f64 / 97.0),
                ..Sample::default()
            };
            endpoint.on_sample(100 * SECOND, &sample);
            for _ in 0..i % 31 {
                endpoint.on_dispatch(100 * SECOND, 900);
            }
            endpoint
        })
        .collect()
}

/// Sorted nanoseconds of single decisions.
fn time(spec: &SchedulerSpec, endpoints: &[Endpoint], runs: u64) -> Result<Vec<u64>, SpecError> {
    let scheduler = Scheduler::new(spec)?;
    let policy = SchedulerPolicy::default();
    let mut state = State::new(1);
    let snapshot = Snapshot {
        now: 101 * SECOND,
        endpoints,
        prefix: &NoPrefix,
        policy: &policy,
        full: &[],
    };
    let mut nanos = Vec::new();
    for id in 0..runs {
        let request = RequestView {
            id,
            model: "m",
            prompt_tokens: 1_000 + id % 64,
            output_tokens: 256,
            session: None,
            session_hash: None,
            subset: None,
            priority: 0,
            headers: &[],
            keys: &[],
        };
        let start = Instant::now();
        let _ = black_box(scheduler.choose(black_box(&request), &snapshot, &mut state));
        nanos.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    nanos.sort_unstable();
    Ok(nanos)
}

fn main() -> Result<(), SpecError> {
    let specs = [
        ("ours", SchedulerSpec::default_ours()),
        ("llm-d", SchedulerSpec::llmd_default()),
    ];
    for (name, spec) in specs {
        for count in [5, 25, 100, 1_000] {
            let endpoints = fleet(count);
            let nanos = time(&spec, &endpoints, 50_000)?;
            let at = |share: usize| {
                let nanos = nanos.get(nanos.len() * share / 100).copied();
                nanos.unwrap_or(0) as f64 / 1_000.0
            };
            println!(
                "{name:>6} {count:>5} endpoints: p50 {:.2} us, p99 {:.2} us",
                at(50),
                at(99)
            );
        }
    }
    Ok(())
}
