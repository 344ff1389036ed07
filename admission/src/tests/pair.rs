//! The real queues and the model, side by side: the same calls must give the same answers, every time.

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;

use super::{
    model::Model,
    rig::{CLASSES, PRIORITIES, World, config, ms},
};
use crate::{Admission, ClassId, Cost, FairnessId, Item, Nanos, Outcome, Pressure, gate::Ask};

/// One call, drawn from eight bytes.
type Op = [u8; 8];

struct Pair {
    real: Admission,
    model: Model,
    world: World,
    now: Nanos,
    next_id: u64,
    /// Every request so far, with its class.
    known: Vec<(u64, ClassId)>,
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, real: T, model: T) -> Result<(), String> {
    match real == model {
        true => Ok(()),
        false => Err(format!("{what}: real {real:?}, model {model:?}")),
    }
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let config = config(seed);
        let mut pair = Pair {
            real: Admission::new(config.clone()).unwrap(),
            model: Model::new(config),
            world: World {
                free: [2; CLASSES],
                level: 0,
            },
            now: ms(1),
            next_id: 0,
            known: Vec::new(),
        };
        pair.pool_state(2);
        pair
    }

    fn pool_state(&mut self, endpoints: u64) {
        self.real.pool_state(self.now, endpoints as usize);
        self.model.pool_state(self.now, endpoints);
    }

    fn apply(&mut self, op: Op) -> Result<(), String> {
        match op[0] % 16 {
            0..=5 => self.enqueue(op)?,
            6 => self.cancel(op)?,
            7..=9 => self.turn(16)?,
            10 => self.turn(1)?,
            11 => self.now += ms(u64::from(op[1] % 64)) + u64::from(op[2]),
            12 | 13 => self.complete(op)?,
            14 => self.capacity(op),
            _ => match op[1] % 4 {
                0 => self.pool_state(u64::from(op[2] % 3)),
                1 => self.pool_state(2),
                _ => self.evict(op)?,
            },
        }
        self.compare()
    }

    fn known(&self, op: Op) -> (u64, ClassId) {
        let back = usize::from(op[1]) % self.known.len().clamp(1, 24);
        let at = self.known.len().checked_sub(back + 1);
        at.map_or((0, ClassId(0)), |at| self.known[at])
    }

    fn enqueue(&mut self, op: Op) -> Result<(), String> {
        self.next_id += 1;
        let some = |byte: u8, value: Nanos| byte.is_multiple_of(4).then_some(value);
        let class = ClassId(u32::from(op[3]) % CLASSES as u32);
        let item = Item {
            id: self.next_id,
            // Rarely any priority at all, so that there are too many bands.
            priority: match op[1] {
                250.. => i32::from(op[2]) - 128,
                byte => PRIORITIES[usize::from(byte) % PRIORITIES.len()],
            },
            fairness: FairnessId::new(format!("f{}", op[2] % 6)),
            weight: [1.0, 2.0, 0.5, f64::NAN][usize::from(op[2] / 64)],
            class,
            bytes: u64::from(op[4].saturating_sub(32)) * 2,
            cost: Cost {
                uncached_input: u64::from(op[4]),
                output: u64::from(op[5]),
            },
            arrived: self.now.saturating_sub(ms(u64::from(op[5] % 5))),
            ttl: some(op[6], ms(u64::from(op[6] / 2))),
            deadline: some(op[7], self.now + ms(u64::from(op[7])).saturating_sub(ms(4))),
            slo_ttft: some(op[5], ms(u64::from(op[6]))),
        };
        self.known.push((item.id, class));
        let (mut real_out, mut model_out) = (Vec::new(), Vec::new());
        let real = self.real.enqueue(self.now, item.clone(), &mut real_out);
        let model = self.model.enqueue(self.now, item, &mut model_out);
        same("enqueue", real, model)?;
        same("displaced", real_out, model_out)
    }

    fn cancel(&mut self, op: Op) -> Result<(), String> {
        let (id, _) = self.known(op);
        same("cancel", self.real.cancel(id), self.model.cancel(id))
    }

    /// What a caller does on any event, for at most so many dispatches.
    fn turn(&mut self, most: usize) -> Result<(), String> {
        let (mut real, mut model) = (Vec::new(), Vec::new());
        if most > 1 {
            self.real.expire(self.now, &mut real);
            self.model.expire(self.now, &mut model);
            same("expired", real, model)?;
        }
        for _ in 0..most {
            let world = self.world.clone();
            let (mut real_asks, mut model_asks) = (Vec::new(), Vec::new());
            let mut gate = |ask: &Ask| {
                real_asks.push(*ask);
                world.answer(ask)
            };
            let real = self.real.next(self.now, &mut gate);
            let model = self
                .model
                .next(self.now, &|ask| world.answer(ask), &mut model_asks);
            same("questions", real_asks, model_asks)?;
            same("next", real, model)?;
            let Some(dispatch) = real else {
                break;
            };
            let class = self.known.iter().find(|(id, _)| *id == dispatch.id);
            let class = class.map_or(0, |(_, class)| class.0 as usize);
            self.world.free[class] -= 1;
        }
        Ok(())
    }

    fn complete(&mut self, op: Op) -> Result<(), String> {
        let (id, class) = self.known(op);
        let actual = Cost {
            uncached_input: u64::from(op[2] % 4) * u64::from(op[3]),
            output: u64::from(op[2] / 8 % 4) * u64::from(op[4]),
        };
        let real = self.real.complete(self.now, id, actual);
        same("complete", real, self.model.complete(self.now, id, actual))?;
        if real {
            self.world.free[class.0 as usize] += 1;
            self.real.capacity_changed(Some(class));
            self.model.capacity_changed(Some(class));
        }
        Ok(())
    }

    fn capacity(&mut self, op: Op) {
        self.world.level = op[1] % 12;
        for (at, free) in self.world.free.iter_mut().enumerate() {
            *free = u32::from(op[2 + at] % 4);
        }
        // Sometimes nobody says so, or only of one class.
        let class = match op[6] % 4 {
            0 => return,
            1 => Some(ClassId(u32::from(op[7]) % CLASSES as u32)),
            _ => None,
        };
        self.real.capacity_changed(class);
        self.model.capacity_changed(class);
    }

    fn evict(&mut self, op: Op) -> Result<(), String> {
        let pressure = Pressure {
            blocked: PRIORITIES[usize::from(op[2]) % PRIORITIES.len()],
            saturation: f64::from(op[3]) / 64.0,
            ceiling: f64::from(op[4]) / 128.0,
            running: self.real.running() as u64,
        };
        let odd = u64::from(op[5] % 3);
        let real = self
            .real
            .evict(self.now, &pressure, &mut |id| id % 3 != odd);
        let model = self
            .model
            .evict(self.now, &pressure, &mut |id| id % 3 != odd);
        same("victims", real, model)
    }

    fn compare(&self) -> Result<(), String> {
        let used = self.model.items.iter().fold((0, 0, 0), |sum, i| {
            let tokens = i.item.cost.tokens();
            (sum.0 + 1, sum.1 + i.item.bytes, sum.2 + tokens)
        });
        same("INV-Q1 used", self.real.used(), used)?;
        same("running", self.real.running(), self.model.runs.len())?;
        same("wake", self.real.wake_at(), self.model.wake_at())?;
        let bands: Vec<i32> = self.model.bands.keys().rev().copied().collect();
        same("bands", self.real.priorities().to_vec(), bands)?;
        for band in self.real.bands(self.now) {
            same("band", band.requests, self.model.waiting_in(band.priority))?;
        }
        for outcome in Outcome::ALL {
            let count = self.model.ended.get(&outcome).copied().unwrap_or(0);
            same("outcomes", self.real.totals().of(outcome), count)?;
        }
        self.real.audit()
    }
}

fn run(seed: u64, ops: impl Iterator<Item = Op>) -> Result<(), String> {
    let mut pair = Pair::new(seed);
    for (at, op) in ops.enumerate() {
        pair.apply(op)
            .map_err(|e| format!("seed {seed}, op {at}: {e}"))?;
    }
    Ok(())
}

/// One seeded run of this many calls. A panic of the code under test counts as a difference.
pub(super) fn seeded(seed: u64, ops: usize) -> Result<(), String> {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x5eed);
    let ops = std::iter::repeat_with(|| rng.u64(..).to_le_bytes()).take(ops);
    let run = catch_unwind(AssertUnwindSafe(|| run(seed, ops)));
    run.unwrap_or_else(|_| Err(format!("seed {seed}: a panic")))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(192) })]
    #[test]
    fn the_model_agrees(seed in any::<u64>(), ops in proptest::collection::vec(any::<Op>(), 1..160)) {
        prop_assert_eq!(run(seed, ops.into_iter()), Ok(()));
    }
}

#[test]
fn the_model_agrees_over_long_runs() {
    for seed in 0..60 {
        assert_eq!(seeded(seed, 1_500), Ok(()));
    }
}
