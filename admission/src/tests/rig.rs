//! What tests share: items, configurations from a seed, and a small pure gate.

use crate::{
    Admission, AdmissionConfig, BandConfig, ClassId, Cost, Ended, EvictionConfig, Fairness,
    FairnessId, Item, Limits, MILLISECOND, Nanos, NoEndpoints, Ordering, Outcome, Starvation, Wait,
    gate::{Answer, Ask},
};

/// A plain request.
pub(super) fn item(id: u64, priority: i32, flow: &str) -> Item {
    Item {
        id,
        priority,
        fairness: FairnessId::new(flow),
        weight: 1.0,
        class: ClassId(0),
        bytes: 100,
        cost: Cost {
            uncached_input: 100,
            output: 50,
        },
        arrived: 0,
        ttl: None,
        deadline: None,
        slo_ttft: None,
    }
}

/// All bands alike.
pub(super) fn alike(band: &BandConfig, starvation: Starvation) -> AdmissionConfig {
    AdmissionConfig {
        default_band: band.clone(),
        default_negative_band: band.clone(),
        starvation,
        ..AdmissionConfig::default()
    }
}

pub(super) fn fair(fairness: Fairness) -> BandConfig {
    BandConfig {
        fairness,
        ..BandConfig::default()
    }
}

/// Everything may start.
pub(super) fn open(_: &Ask) -> Answer {
    Answer::Start
}

/// Nothing may start now.
pub(super) fn shut(_: &Ask) -> Answer {
    Answer::NotNow
}

pub(super) const PRIORITIES: [i32; 5] = [i32::MAX, 10, 0, -5, i32::MIN + 1];

pub(super) fn fairness(n: u8) -> Fairness {
    match n % 4 {
        0 => Fairness::GlobalStrict,
        1 => Fairness::RoundRobin,
        2 => Fairness::Drr { quantum: 40 },
        _ => Fairness::Vtc { max_lag: 2_000 },
    }
}

pub(super) fn starvation(n: u8) -> Starvation {
    match n % 3 {
        0 => Starvation::Strict,
        1 => Starvation::Aging {
            after: 40 * MILLISECOND,
            share: 0.25,
        },
        _ => Starvation::Floor {
            share: 0.1,
            window: 100 * MILLISECOND,
        },
    }
}

/// A configuration with tight bounds, so that every rule is met often.
pub(super) fn config(seed: u64) -> AdmissionConfig {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut limit = |most: u64| rng.bool().then(|| rng.u64(1..most));
    let mut limits = |scale: u64| Limits {
        max_requests: limit(12 * scale),
        max_bytes: limit(2_000 * scale),
        max_tokens: limit(4_000 * scale),
    };
    let (of_band, of_pool, of_room) = (limits(1), limits(2), limits(1));
    let band = |rng: &mut fastrand::Rng| BandConfig {
        limits: of_band,
        ttl: match rng.u8(0..3) {
            0 => Wait::Inherit,
            1 => Wait::Unlimited,
            _ => Wait::AtMost(rng.u64(20..200) * MILLISECOND),
        },
        fairness: fairness(rng.u8(..)),
        ordering: [
            Ordering::Fcfs,
            Ordering::Edf,
            Ordering::SloDeadline,
            Ordering::Sjf,
        ][rng.usize(0..4)],
        floor: (rng.u8(0..4) == 0).then_some(0.2),
    };
    AdmissionConfig {
        limits: of_pool,
        default_ttl: rng.bool().then(|| rng.u64(20..200) * MILLISECOND),
        no_endpoints: NoEndpoints {
            hold: rng.u8(0..4) > 0,
            limits: of_room,
            ttl: Wait::AtMost(rng.u64(20..200) * MILLISECOND),
            release_interval: if rng.bool() { 4 * MILLISECOND } else { 0 },
            release_window: 50 * MILLISECOND,
        },
        default_band: band(&mut rng),
        default_negative_band: band(&mut rng),
        bands: vec![(0, band(&mut rng))],
        starvation: starvation(rng.u8(..)),
        output_weight: 2.0,
        max_displaced: rng.u32(0..4),
        max_bands: rng.u32(2..6),
        max_flows: rng.u32(3..12),
        eviction: EvictionConfig {
            enabled: true,
            max_per_decision: 2,
            grace: 5 * MILLISECOND,
            timeout: 30 * MILLISECOND,
        },
    }
}

pub(super) const CLASSES: usize = 3;

/// A pool so small that everything about it is in sight.
#[derive(Clone, Debug)]
pub(super) struct World {
    /// Free places by class.
    pub(super) free: [u32; CLASSES],
    /// How full it is, 0 to 10.
    pub(super) level: u8,
}

impl World {
    /// Negative bands start below level 5, band 0 below 8, the others below 10; at 10 it is closed.
    pub(super) fn answer(&self, ask: &Ask) -> Answer {
        let ceiling = match ask.ceiling_of {
            i32::MIN..0 => 5,
            0 => 8,
            _ => 10,
        };
        let free = self.free.get(ask.class.0 as usize).copied().unwrap_or(0);
        if self.level >= 10 {
            Answer::Closed
        } else if free > 0 && self.level < ceiling {
            Answer::Start
        } else {
            Answer::NotNow
        }
    }
}

/// Instants and lengths in tests are counted in milliseconds.
pub(super) const fn ms(n: u64) -> Nanos {
    n * MILLISECOND
}

pub(super) fn queues(config: AdmissionConfig) -> Admission {
    let mut queues = Admission::new(config).unwrap();
    queues.pool_state(0, 1);
    queues
}

pub(super) fn strict() -> AdmissionConfig {
    alike(&BandConfig::default(), Starvation::Strict)
}

pub(super) fn put(queues: &mut Admission, now: u64, item: Item) -> Result<(), Outcome> {
    let mut displaced = Vec::new();
    let entered = queues.enqueue(now, item, &mut displaced);
    assert_eq!(displaced, [], "nobody gives way here");
    queues.audit().unwrap();
    entered
}

pub(super) fn expired(queues: &mut Admission, now: u64) -> Vec<Ended> {
    let mut out = Vec::new();
    queues.expire(now, &mut out);
    queues.audit().unwrap();
    out
}

pub(super) fn drained(queues: &mut Admission, now: u64) -> Vec<u64> {
    std::iter::from_fn(|| queues.next(now, &mut open).map(|d| d.id)).collect()
}
