//! Speed of the queues on one core: prints one JSON object.
//!
//! `cargo run --release -p wicketgate-admission --example admission_bench`
#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a benchmark prints its result and may end at once when it cannot run"
)]

use std::time::{Duration, Instant};

use wicketgate_admission::{
    Admission, AdmissionConfig, BandConfig, ClassId, Cost, Fairness, FairnessId, Item, Limits,
    Nanos, Outcome, Starvation,
    gate::{Answer, Ask},
};

const BANDS: u64 = 5;
const FLOWS: u64 = 1000;

fn config(fairness: Fairness) -> AdmissionConfig {
    let band = BandConfig {
        limits: Limits::default(),
        fairness,
        ..BandConfig::default()
    };
    AdmissionConfig {
        limits: Limits::default(),
        default_band: band.clone(),
        default_negative_band: band,
        starvation: Starvation::from_name("aging").expect("a policy of ours"),
        ..AdmissionConfig::default()
    }
}

/// A stream of requests over all flows and bands, the same for every run.
struct Source {
    rng: fastrand::Rng,
    ids: Vec<FairnessId>,
    next: u64,
}

impl Source {
    fn new() -> Source {
        let ids = (0..FLOWS).map(|i| FairnessId::new(format!("tenant-{i}")));
        Source {
            rng: fastrand::Rng::with_seed(7),
            ids: ids.collect(),
            next: 0,
        }
    }

    fn item(&mut self, now: Nanos) -> Item {
        self.next += 1;
        let flow = self.rng.u64(0..FLOWS);
        let priority = i32::try_from(flow % BANDS).unwrap_or(0) * 10 - 20;
        Item {
            id: self.next,
            priority,
            fairness: self.ids[usize::try_from(flow).unwrap_or(0)].clone(),
            weight: 1.0,
            class: ClassId(0),
            bytes: 2048,
            cost: Cost {
                uncached_input: self.rng.u64(100..4000),
                output: self.rng.u64(50..500),
            },
            arrived: now,
            ttl: None,
            deadline: None,
            slo_ttft: None,
        }
    }
}

fn always(_: &Ask) -> Answer {
    Answer::Start
}

fn filled(fairness: Fairness, depth: u64, source: &mut Source) -> Admission {
    let mut queues = Admission::new(config(fairness)).expect("a sound configuration");
    queues.pool_state(0, 100);
    for i in 0..depth {
        enqueue(&mut queues, i, source);
    }
    queues
}

fn enqueue(queues: &mut Admission, now: Nanos, source: &mut Source) {
    let entered = queues.enqueue(now, source.item(now), &mut Vec::new());
    assert_eq!(entered, Ok(()), "the bench queues nothing that is refused");
}

fn dispatch(queues: &mut Admission, now: Nanos) -> u64 {
    queues
        .next(now, &mut always)
        .map_or(0, |dispatch| dispatch.id)
}

/// Pairs of enqueue and dispatch per second at a steady depth. Completion is paid outside of the pair.
fn rate(fairness: Fairness, depth: u64, rounds: u64) -> f64 {
    let mut source = Source::new();
    let mut queues = filled(fairness, depth, &mut source);
    let mut spent = Duration::ZERO;
    let mut now = depth;
    let mut ids = Vec::with_capacity(1000);
    for _ in 0..rounds / 1000 {
        let items: Vec<Item> = (0..1000).map(|_| source.item(now)).collect();
        let start = Instant::now();
        for item in items {
            now += 1000;
            let entered = queues.enqueue(now, item, &mut Vec::new());
            debug_assert_eq!(entered, Ok(()));
            ids.push(dispatch(&mut queues, now));
        }
        spent += start.elapsed();
        for id in ids.drain(..) {
            queues.complete(
                now,
                id,
                Cost {
                    uncached_input: 1000,
                    output: 100,
                },
            );
        }
    }
    rounds as f64 / spent.as_secs_f64()
}

/// Cancels per second with so many waiting, in random order, and the time for all of them in milliseconds.
fn cancels(fairness: Fairness, waiting: u64) -> (f64, f64) {
    let mut source = Source::new();
    let mut queues = filled(fairness, waiting, &mut source);
    let mut ids: Vec<u64> = (1..=waiting).collect();
    source.rng.shuffle(&mut ids);
    let start = Instant::now();
    let gone = ids.iter().filter(|id| queues.cancel(**id)).count() as u64;
    let spent = start.elapsed().as_secs_f64();
    assert_eq!((gone, queues.waiting()), (waiting, 0));
    assert_eq!(queues.totals().of(Outcome::EvictedCancelled), waiting);
    (waiting as f64 / spent, spent * 1e3)
}

/// p50, p99 and p99.9 in microseconds of single operations of all kinds, clock included.
fn single(fairness: Fairness, depth: u64, rounds: u64) -> [f64; 3] {
    let mut source = Source::new();
    let mut queues = filled(fairness, depth, &mut source);
    let mut nanos: Vec<u64> = Vec::with_capacity(rounds as usize * 4);
    let mut timed = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        nanos.push(start.elapsed().as_nanos() as u64);
    };
    for i in 0..rounds {
        let now = depth + i * 1000;
        let (one, other) = (source.item(now), source.item(now));
        let other_id = other.id;
        let (mut one, mut other) = (Some(one), Some(other));
        let put = |item: &mut Option<Item>, queues: &mut Admission| {
            if let Some(item) = item.take() {
                let entered = queues.enqueue(now, item, &mut Vec::new());
                debug_assert_eq!(entered, Ok(()));
            }
        };
        timed(&mut || put(&mut one, &mut queues));
        timed(&mut || put(&mut other, &mut queues));
        let mut id = 0;
        timed(&mut || id = dispatch(&mut queues, now));
        timed(&mut || {
            queues.complete(
                now,
                id,
                Cost {
                    uncached_input: 1000,
                    output: 100,
                },
            );
        });
        timed(&mut || {
            queues.cancel(other_id);
        });
    }
    nanos.sort_unstable();
    [0.5, 0.99, 0.999].map(|q| {
        let at = (nanos.len() as f64 * q) as usize;
        nanos.get(at).copied().unwrap_or(0) as f64 / 1e3
    })
}

fn best(runs: usize, run: impl FnMut(usize) -> f64) -> f64 {
    (0..runs).map(run).fold(0.0, f64::max)
}

fn main() {
    let vtc = Fairness::from_name("vtc").expect("a policy of ours");
    let policies = ["vtc", "drr", "round-robin", "global-strict"];
    let by_policy: Vec<String> = policies
        .iter()
        .filter_map(|name| Some((name, Fairness::from_name(name).ok()?)))
        .map(|(name, policy)| {
            let rate = best(3, |_| rate(policy, 2000, 500_000));
            format!("\"{name}\":{rate:.0}")
        })
        .collect();
    let depths = [100_u64, 10_000, 100_000, 1_000_000];
    let by_depth: Vec<String> = depths
        .iter()
        .map(|depth| format!("\"{depth}\":{:.0}", best(2, |_| rate(vtc, *depth, 500_000))))
        .collect();
    let headline = best(3, |_| rate(vtc, 2000, 1_000_000));
    let runs = (0..5).map(|_| cancels(vtc, 100_000));
    let (cancel_per_s, cancel_100k_ms) = runs.fold((0.0, f64::INFINITY), |best, run| {
        (f64::max(best.0, run.0), f64::min(best.1, run.1))
    });
    let [p50, p99, p999] = single(vtc, 5000, 200_000);
    println!(
        "{{\"flows\":{FLOWS},\"bands\":{BANDS},\"enqueue_dispatch_per_s\":{headline:.0},\
         \"cancel_per_s\":{cancel_per_s:.0},\"cancel_100k_ms\":{cancel_100k_ms:.2},\"p50_us\":{p50:.3},\
         \"p99_us\":{p99:.3},\"p999_us\":{p999:.3},\"by_policy\":{{{}}},\"by_depth\":{{{}}}}}",
        by_policy.join(","),
        by_depth.join(","),
    );
}
