//! The load of the simulation: what is exercised, under which configuration, by which tenants.

use fastrand::Rng;

use super::rig::{self, CLASSES, ms};
use crate::{
    AdmissionConfig, BandConfig, ClassId, Fairness, Limits, NoEndpoints, Starvation, Wait,
};

/// What is exercised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scene {
    /// One band, one class, no bounds: service gaps.
    Gaps,
    /// Several bands that always wait: starvation.
    Bands,
    /// Everything: classes, bounds, ends of waits, hang-ups, empty pools.
    All,
}

/// How a tenant behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Habit {
    /// Always has several waiting.
    Flood,
    /// Sends its next one the moment the last one was dispatched: its queue empties each time.
    Rejoin,
    /// Sends many at once, then none for a while.
    Bursts,
    /// Now and then.
    Light,
}

#[derive(Clone, Debug)]
pub(super) struct Tenant {
    pub(super) name: String,
    pub(super) priority: i32,
    pub(super) weight: f64,
    pub(super) class: ClassId,
    pub(super) habit: Habit,
    /// Largest input and output.
    pub(super) size: u64,
    /// Actual output as a share of the expected one, in quarters; 4 is honest.
    pub(super) truth: u64,
}

pub(super) fn config(scene: Scene, rng: &mut Rng) -> AdmissionConfig {
    let no_bound = BandConfig {
        limits: Limits::default(),
        ttl: Wait::Unlimited,
        fairness: match rng.u8(0..3) {
            0 => Fairness::RoundRobin,
            1 => Fairness::Drr {
                quantum: 2 * rng.u64(8..2000),
            },
            _ => Fairness::Vtc { max_lag: 1 << 40 },
        },
        ..BandConfig::default()
    };
    match scene {
        Scene::Gaps => rig::alike(&no_bound, Starvation::Strict),
        Scene::Bands => {
            let starvation = match rng.u8(0..5) {
                0 => Starvation::Strict,
                1 | 2 => Starvation::Aging {
                    after: ms(rng.u64(5..200)),
                    share: 0.05 + 0.4 * rng.f64(),
                },
                _ => Starvation::Floor {
                    share: 0.02 + 0.25 * rng.f64(),
                    window: ms(500),
                },
            };
            let mut config = rig::alike(&no_bound, starvation);
            config.limits = Limits::default();
            config
        }
        Scene::All => AdmissionConfig {
            no_endpoints: NoEndpoints {
                ttl: Wait::AtMost(ms(150)),
                ..NoEndpoints::default()
            },
            ..rig::config(rng.u64(..))
        },
    }
}

/// Who sends. The first three always have something waiting.
pub(super) fn tenants(scene: Scene, rng: &mut Rng) -> Vec<Tenant> {
    let count = match scene {
        Scene::Gaps => rng.usize(2..9),
        Scene::Bands => rng.usize(3..10),
        Scene::All => rng.usize(4..16),
    };
    // Sizes and lies widen the bounds; without them the bounds are narrow.
    let plain = rng.bool();
    (0..count).map(|n| tenant(scene, rng, n, plain)).collect()
}

fn tenant(scene: Scene, rng: &mut Rng, n: usize, plain: bool) -> Tenant {
    let priority = match scene {
        Scene::Gaps => 0,
        Scene::Bands => [10, 0, -5][n % 3],
        Scene::All => rig::PRIORITIES[rng.usize(0..5)],
    };
    let class = match scene {
        Scene::Gaps | Scene::Bands => ClassId(0),
        Scene::All => ClassId(rng.u32(0..CLASSES as u32)),
    };
    let habit = match rng.u8(0..6) {
        0..=2 => Habit::Flood,
        3 => Habit::Rejoin,
        4 => Habit::Bursts,
        _ => Habit::Light,
    };
    Tenant {
        name: format!("t{n}"),
        priority,
        weight: [0.5, 1.0, 1.0, 1.0, 2.0, 4.0][rng.usize(0..6)],
        class,
        habit: if n < 3 { Habit::Flood } else { habit },
        size: if plain {
            100
        } else {
            [10, 100, 1000][rng.usize(0..3)]
        },
        truth: if plain {
            4
        } else {
            [4, 4, 4, 0, 1, 8][rng.usize(0..6)]
        },
    }
}
