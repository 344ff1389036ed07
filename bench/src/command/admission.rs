//! The admission crate alone, on one core: what a request costs to enter the queue, to get its turn, to end and to be
//! cancelled, and what the depth of the queues adds to that.

use std::{
    collections::BTreeMap,
    io,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::json;
use wicketgate_admission::{
    Admission, AdmissionConfig, BandConfig, ClassId, Cost, Fairness, FairnessId, Item, Limits,
    MILLISECOND, Nanos, Outcome as End, Starvation, Wait,
    gate::{Answer, Ask},
};

use super::Output;
use crate::{
    measure::{Micros, Times, median, number, round},
    report::Outcome,
};

/// Flags of `bench admission`.
#[derive(Clone, Debug, Args)]
pub struct AdmissionArgs {
    /// Fairness ids, spread over the bands
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    flows: u32,
    /// Bands
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=64))]
    bands: u32,
    /// Requests that wait all the time
    #[arg(long, value_name = "COUNT", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    depth: u64,
    /// Requests that are cancelled while they wait
    #[arg(long, value_name = "COUNT", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    cancels: u64,
    /// How long to measure
    #[arg(long, value_name = "SECONDS", default_value_t = 4.0)]
    seconds: f64,
    /// Start of the randomness
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    pub(super) output: Output,
}

/// Operations between two looks at the clock.
const SLICE: usize = 500;
/// The depths that are compared. The requests of the first two fit in a core's own caches, those of the last do not.
const DEPTHS: [(&str, u64); 3] = [("1k", 1000), ("10k", 10_000), ("100k", 100_000)];
/// Virtual time between two requests.
const GAP: Nanos = 10_000;
/// Fewer rounds than this say nothing of a median.
const ROUNDS: usize = 5;

pub(super) fn run(args: &AdmissionArgs) -> io::Result<Outcome> {
    let time = |share: f64| Duration::try_from_secs_f64(args.seconds * share).unwrap_or_default();
    let vtc = policy("vtc")?;
    let per_pair = pairs(args, vtc, args.depth, time(0.2))?;
    let by_policy: BTreeMap<&str, f64> = ["drr", "round-robin", "global-strict"]
        .into_iter()
        .map(|name| {
            Ok((
                name,
                1.0 / pairs(args, policy(name)?, args.depth, time(0.1))?,
            ))
        })
        .collect::<io::Result<_>>()?;
    let by_policy = by_policy
        .into_iter()
        .chain([("vtc", 1.0 / per_pair)])
        .map(|(name, rate)| (name, round(rate, 0)))
        .collect::<BTreeMap<_, _>>();
    let depths = Depths::measure(args, vtc, time(0.2))?;
    let (cancel_s, cancelled) = cancels(args, vtc)?;
    let single = Single::measure(args, vtc, time(0.2))?;
    let all = single.all.us();
    let rate = 1.0 / per_pair;
    let cancel_rate = number(args.cancels) / cancel_s.max(1e-9);

    let mut outcome = Outcome::new();
    outcome.row(
        "flows in bands",
        format!("{} in {}", args.flows, args.bands),
    );
    outcome.row(
        "enqueue + dispatch per second",
        format!("{rate:.0} on one core, {} waiting", args.depth),
    );
    outcome.row(
        "one operation p50 / p99",
        format!("{:.2} / {:.2} us", all.p50, all.p99),
    );
    outcome.row(
        format!("cancel of {}", args.cancels),
        format!("{:.1} ms", cancel_s * 1e3),
    );
    outcome.row(
        "dispatch at 100k waiting",
        format!("{:.2} x its cost at 1k", depths.ratio()),
    );
    outcome.json = json!({
        "flows": args.flows,
        "bands": args.bands,
        "depth": args.depth,
        "enqueue_dispatch_per_s": round(rate, 0),
        "cancel_per_s": round(cancel_rate, 0),
        "cancel_100k_ms": round(cancel_s * 1e3 * 1e5 / number(args.cancels), 2),
        "p50_us": all.p50,
        "p99_us": all.p99,
        "depth_ratio": round(depths.ratio(), 3),
        "dispatch_us": depths.us(),
        "operations_us": single.by_kind(),
        "by_policy": by_policy,
        "operations": single.all.len(),
        "mode": "one thread, one operation at a time",
    });
    outcome.require(cancelled == args.cancels, || {
        format!(
            "{cancelled} of {} waiting requests could be cancelled",
            args.cancels
        )
    });
    outcome.require(rate.is_finite() && all.p99 > 0.0, || {
        "nothing was measured".to_owned()
    });
    Ok(outcome)
}

fn policy(name: &str) -> io::Result<Fairness> {
    Fairness::from_name(name).map_err(io::Error::other)
}

/// Seconds of one enqueue and one dispatch at this depth: the median of slices, since a slice in which the machine did
/// something else says nothing of the queues.
fn pairs(args: &AdmissionArgs, fairness: Fairness, depth: u64, time: Duration) -> io::Result<f64> {
    let mut queues = Queues::new(args, fairness, depth)?;
    let mut slices = Vec::new();
    let until = Instant::now() + time;
    while slices.len() < ROUNDS || Instant::now() < until {
        let items: Vec<Item> = (0..SLICE).map(|_| queues.next_item()).collect();
        let started = Instant::now();
        for item in items {
            queues.enqueue(item)?;
            queues.dispatch()?;
        }
        slices.push(started.elapsed().as_secs_f64() / SLICE as f64);
        queues.complete_all();
    }
    queues.check()?;
    Ok(median(slices))
}

/// Seconds of one dispatch at each of [`DEPTHS`], measured in turn.
struct Depths([f64; DEPTHS.len()]);

impl Depths {
    fn measure(args: &AdmissionArgs, fairness: Fairness, time: Duration) -> io::Result<Depths> {
        let mut all = Vec::new();
        for (_, depth) in DEPTHS {
            all.push((Queues::new(args, fairness, depth)?, Vec::new()));
        }
        let until = Instant::now() + time;
        let mut rounds = 0;
        while rounds < ROUNDS || Instant::now() < until {
            rounds += 1;
            for (queues, slices) in &mut all {
                // Far fewer than wait in the smallest one, so that its depth is what it is called.
                let count = SLICE / 5;
                let started = Instant::now();
                for _ in 0..count {
                    queues.dispatch()?;
                }
                slices.push(started.elapsed().as_secs_f64() / count as f64);
                queues.complete_all();
                for _ in 0..count {
                    let item = queues.next_item();
                    queues.enqueue(item)?;
                }
            }
        }
        let mut depths = Depths([0.0; DEPTHS.len()]);
        for ((queues, slices), seconds) in all.into_iter().zip(&mut depths.0) {
            queues.check()?;
            *seconds = median(slices);
        }
        Ok(depths)
    }

    /// The deepest by the shallowest.
    fn ratio(&self) -> f64 {
        let [shallow, .., deep] = self.0;
        deep / shallow.max(1e-12)
    }

    fn us(&self) -> BTreeMap<&'static str, f64> {
        let names = DEPTHS.iter().map(|(name, _)| *name);
        names
            .zip(self.0.map(|seconds| round(seconds * 1e6, 3)))
            .collect()
    }
}

/// Seconds for the cancels, in random order, and how many of them found their request waiting.
fn cancels(args: &AdmissionArgs, fairness: Fairness) -> io::Result<(f64, u64)> {
    let mut rounds = Vec::new();
    let mut least = u64::MAX;
    for round in 0..3 {
        let mut queues = Queues::new(args, fairness, args.cancels)?;
        let mut ids: Vec<u64> = (1..=args.cancels).collect();
        fastrand::Rng::with_seed(args.seed ^ round).shuffle(&mut ids);
        let started = Instant::now();
        let gone = ids.iter().filter(|id| queues.real.cancel(**id)).count() as u64;
        rounds.push(started.elapsed().as_secs_f64());
        queues.check()?;
        let counted = queues.real.totals().of(End::EvictedCancelled);
        least = least.min(gone).min(counted);
    }
    Ok((median(rounds), least))
}

/// Times of single operations, clock included.
struct Single {
    all: Times,
    kinds: [(&'static str, Times); 4],
}

impl Single {
    fn measure(args: &AdmissionArgs, fairness: Fairness, time: Duration) -> io::Result<Single> {
        let mut queues = Queues::new(args, fairness, args.depth)?;
        let mut single = Single {
            all: Times::new(),
            kinds: ["enqueue", "turn", "complete", "cancel"].map(|kind| (kind, Times::new())),
        };
        let until = Instant::now() + time;
        let mut rounds = 0;
        while rounds < SLICE || Instant::now() < until {
            rounds += 1;
            let (one, other) = (queues.next_item(), queues.next_item());
            let cancelled = other.id;
            single.time(0, || queues.enqueue(one))?;
            single.time(0, || queues.enqueue(other))?;
            single.time(1, || queues.turn())?;
            single.time(2, || {
                queues.complete_all();
                Ok(())
            })?;
            single.time(3, || {
                queues.real.cancel(cancelled);
                Ok(())
            })?;
        }
        queues.check()?;
        Ok(single)
    }

    fn time(&mut self, kind: usize, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let started = Instant::now();
        act()?;
        let took = started.elapsed();
        self.all.add(took);
        if let Some((_, times)) = self.kinds.get_mut(kind) {
            times.add(took);
        }
        Ok(())
    }

    fn by_kind(&self) -> BTreeMap<&'static str, Micros> {
        self.kinds
            .iter()
            .map(|(kind, times)| (*kind, times.us()))
            .collect()
    }
}

/// The real queues under a load that keeps every band as deep as it was: the next request enters the band of the last
/// dispatch, at a flow of chance. Old requests of lower bands take their tenth of the turns.
struct Queues {
    real: Admission,
    rng: fastrand::Rng,
    /// Flows by band.
    flows: Vec<Vec<FairnessId>>,
    now: Nanos,
    next: u64,
    /// Bands to which a request is owed, last dispatch last.
    owed: Vec<i32>,
    running: Vec<u64>,
    dispatched: u64,
}

impl Queues {
    fn new(args: &AdmissionArgs, fairness: Fairness, depth: u64) -> io::Result<Queues> {
        let mut flows = vec![Vec::new(); args.bands as usize];
        for flow in 0..args.flows.max(args.bands) {
            if let Some(band) = flows.get_mut((flow % args.bands) as usize) {
                band.push(FairnessId::new(format!("tenant-{flow}")));
            }
        }
        let mut queues = Queues {
            real: Admission::new(config(fairness)).map_err(io::Error::other)?,
            rng: fastrand::Rng::with_seed(args.seed),
            flows,
            now: MILLISECOND,
            next: 0,
            owed: Vec::new(),
            running: Vec::new(),
            dispatched: 0,
        };
        queues.real.pool_state(queues.now, 100);
        for at in 0..depth {
            let band = i32::try_from(at % u64::from(args.bands)).unwrap_or(0);
            queues.owed.push(band);
            let item = queues.next_item();
            queues.enqueue(item)?;
        }
        // Everything is old from here on.
        queues.now += 100 * MILLISECOND;
        Ok(queues)
    }

    fn next_item(&mut self) -> Item {
        self.next += 1;
        self.now += GAP;
        let band = self.owed.pop().unwrap_or(0);
        let of_band = usize::try_from(band)
            .ok()
            .and_then(|band| self.flows.get(band));
        let flow = of_band.and_then(|flows| self.rng.choice(flows)).cloned();
        Item {
            id: self.next,
            priority: band,
            fairness: flow.unwrap_or_default(),
            weight: 1.0,
            class: ClassId(0),
            bytes: 2048,
            cost: Cost {
                uncached_input: self.rng.u64(100..4000),
                output: self.rng.u64(50..500),
            },
            arrived: self.now,
            ttl: None,
            deadline: None,
            slo_ttft: None,
        }
    }

    fn enqueue(&mut self, item: Item) -> io::Result<()> {
        let entered = self.real.enqueue(self.now, item, &mut Vec::new());
        entered.map_err(|why| io::Error::other(format!("the queue refused a request: {why:?}")))
    }

    fn dispatch(&mut self) -> io::Result<()> {
        let Some(dispatch) = self.real.next(self.now, &mut always) else {
            return Err(io::Error::other("nothing went, though everything may"));
        };
        self.dispatched += 1;
        self.owed.push(dispatch.priority);
        self.running.push(dispatch.id);
        Ok(())
    }

    /// What a caller does on an event: ends of waits, a dispatch, the next timer.
    fn turn(&mut self) -> io::Result<()> {
        self.real.expire(self.now, &mut Vec::new());
        self.dispatch()?;
        std::hint::black_box(self.real.wake_at());
        Ok(())
    }

    fn complete_all(&mut self) {
        let used = Cost {
            uncached_input: 1000,
            output: 100,
        };
        for id in self.running.drain(..) {
            self.real.complete(self.now, id, used);
        }
    }

    /// The queues' own books agree, and nothing got lost.
    fn check(&self) -> io::Result<()> {
        self.real.audit().map_err(io::Error::other)?;
        let totals = self.real.totals();
        match totals.of(End::Dispatched) == self.dispatched {
            true => Ok(()),
            false => Err(io::Error::other("dispatches were miscounted")),
        }
    }
}

fn config(fairness: Fairness) -> AdmissionConfig {
    let band = BandConfig {
        limits: Limits::default(),
        ttl: Wait::Unlimited,
        fairness,
        ..BandConfig::default()
    };
    AdmissionConfig {
        limits: Limits::default(),
        default_band: band.clone(),
        default_negative_band: band,
        starvation: Starvation::Aging {
            after: 10 * MILLISECOND,
            share: 0.1,
        },
        max_flows: 1 << 20,
        ..AdmissionConfig::default()
    }
}

fn always(_: &Ask) -> Answer {
    Answer::Start
}
