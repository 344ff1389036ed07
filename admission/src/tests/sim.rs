//! A seeded simulation of adversarial load on a small pool, with every invariant watched at every step.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap},
    panic::{AssertUnwindSafe, catch_unwind},
};

use fastrand::Rng;

pub(super) use super::load::Scene;
use super::{
    checks::{Check, Gaps, Ledger, Served, Shares},
    load::{Habit, Tenant, config, tenants},
    rig::{self, CLASSES, World, ms},
};
use crate::{
    Admission, ClassId, Cost, Dispatch, Ended, FairnessId, Item, Nanos, Outcome,
    gate::{Answer, Ask},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive(usize),
    Complete(u64),
    Cancel(u64),
    Endpoints(u64),
    Wake,
}

struct Sim {
    scene: Scene,
    real: Admission,
    rng: Rng,
    now: Nanos,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    order: u64,
    tenants: Vec<Tenant>,
    /// Tenant, actual cost and dispatch of requests.
    fates: HashMap<u64, (usize, Cost, Option<Dispatch>)>,
    world: World,
    endpoints: u64,
    next_id: u64,
    ledger: Ledger,
    gaps: Option<Gaps>,
    shares: Option<Shares>,
    /// Waiting by band and class, with the ends of wait and entries of each band in order.
    waits: BTreeMap<(i32, ClassId), BTreeMap<u64, Nanos>>,
    /// The timer that is set.
    wake: Option<Nanos>,
    done: u64,
}

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    pub(super) events: u64,
    pub(super) outcomes: BTreeMap<Outcome, u64>,
    pub(super) gap_share: f64,
    pub(super) out_of_turn: u64,
}

impl Sim {
    fn new(scene: Scene, seed: u64) -> Sim {
        let mut rng = Rng::with_seed(seed);
        let config = config(scene, &mut rng);
        let gaps = (scene == Scene::Gaps).then(|| Gaps::new(config.default_band.fairness));
        let shares = (scene == Scene::Bands).then(|| Shares::new(config.starvation));
        let mut sim = Sim {
            scene,
            real: Admission::new(config).unwrap(),
            now: ms(1),
            events: BinaryHeap::new(),
            order: 0,
            tenants: tenants(scene, &mut rng),
            fates: HashMap::new(),
            world: World {
                free: [rng.u32(1..12); CLASSES],
                level: 0,
            },
            endpoints: 2,
            next_id: 0,
            ledger: Ledger::default(),
            gaps,
            shares,
            waits: BTreeMap::new(),
            wake: None,
            done: 0,
            rng,
        };
        sim.real.pool_state(sim.now, 2);
        for n in 0..sim.tenants.len() {
            let first = if n < 3 { 4 } else { 1 };
            for _ in 0..first {
                sim.at(0, Event::Arrive(n));
            }
        }
        if scene == Scene::All {
            sim.at(ms(50), Event::Endpoints(0));
        }
        sim
    }

    fn at(&mut self, later: Nanos, event: Event) {
        self.order += 1;
        self.events
            .push(Reverse((self.now + later, self.order, event)));
    }

    fn item(&mut self, tenant: usize) -> (Item, Cost) {
        self.next_id += 1;
        let rng = &mut self.rng;
        let t = &self.tenants[tenant];
        let cost = Cost {
            uncached_input: rng.u64(1..=t.size),
            output: rng.u64(0..=t.size),
        };
        let actual = Cost {
            uncached_input: if t.truth == 0 { 0 } else { cost.uncached_input },
            output: cost.output * t.truth / 4,
        };
        let some = |rng: &mut Rng, most: u64| (rng.u8(0..4) == 0).then(|| ms(rng.u64(1..most)));
        let all = self.scene == Scene::All;
        let item = Item {
            weight: t.weight,
            class: t.class,
            bytes: cost.uncached_input,
            cost,
            arrived: self.now,
            ttl: some(rng, 300).filter(|_| all),
            deadline: some(rng, 300).map(|d| self.now + d).filter(|_| all),
            slo_ttft: some(rng, 300),
            fairness: FairnessId::new(t.name.as_str()),
            ..rig::item(self.next_id, t.priority, "")
        };
        (item, actual)
    }

    fn arrive(&mut self, tenant: usize) -> Check {
        let (item, actual) = self.item(tenant);
        let id = item.id;
        let mut out = Vec::new();
        let entered = self.real.enqueue(self.now, item.clone(), &mut out);
        self.ended(&out)?;
        self.fates.insert(id, (tenant, actual, None));
        match entered {
            Ok(()) => {
                if let Some(gaps) = &mut self.gaps {
                    gaps.entered(&item);
                }
                let waits = self.waits.entry((item.priority, item.class)).or_default();
                waits.insert(id, self.now);
                self.ledger.entered(self.now, item);
                if self.scene == Scene::All && self.rng.u8(0..8) == 0 {
                    let later = ms(self.rng.u64(0..100));
                    self.at(later, Event::Cancel(id));
                }
            }
            Err(_) => {
                self.fates.remove(&id);
                let later = ms(self.rng.u64(1..30));
                self.at(later, Event::Arrive(tenant));
            }
        }
        let (used, bytes, _) = self.real.used();
        if (used, bytes) != (self.ledger.waiting, self.ledger.bytes) {
            let ledger = (self.ledger.waiting, self.ledger.bytes);
            return Err(format!(
                "INV-Q1: waiting {:?}, seen {ledger:?}",
                (used, bytes)
            ));
        }
        Ok(())
    }

    /// When a tenant sends its next one, after one left the queue.
    fn again(&mut self, tenant: usize) {
        let later = match self.tenants[tenant].habit {
            Habit::Flood if self.scene == Scene::All => ms(self.rng.u64(0..4)),
            Habit::Flood | Habit::Rejoin => 0,
            Habit::Bursts => match self.rng.u8(0..40) {
                0 => ms(self.rng.u64(10..200)),
                _ => 0,
            },
            Habit::Light => ms(self.rng.u64(1..50)),
        };
        self.at(later, Event::Arrive(tenant));
    }

    fn ended(&mut self, ended: &[Ended]) -> Check {
        for (id, outcome) in ended {
            let seen = self.ledger.ended(*id, *outcome)?;
            self.left(*id, &seen.item);
            if let Some(gaps) = &mut self.gaps {
                gaps.left(&seen.item);
            }
            if let Some((tenant, ..)) = self.fates.remove(id) {
                self.again(tenant);
            }
        }
        Ok(())
    }

    fn left(&mut self, id: u64, item: &Item) {
        if let Some(waits) = self.waits.get_mut(&(item.priority, item.class)) {
            waits.remove(&id);
        }
    }

    fn turn(&mut self) -> Check {
        let mut out = Vec::new();
        self.real.expire(self.now, &mut out);
        self.ended(&out)?;
        loop {
            let lower = self.lower();
            let world = self.world.clone();
            let mut gate = |ask: &Ask| world.answer(ask);
            let Some(dispatch) = self.real.next(self.now, &mut gate) else {
                break;
            };
            self.dispatched(dispatch, &lower)?;
        }
        self.nothing_idles()?;
        if let Some(at) = self.real.wake_at() {
            let at = at.max(self.now + 1);
            if self.wake.is_none_or(|wake| at < wake) {
                self.wake = Some(at);
                self.at(at - self.now, Event::Wake);
            }
        }
        Ok(())
    }

    /// Bands below the top in which something waits, with the oldest entry.
    fn lower(&self) -> Vec<(i32, Nanos)> {
        if self.shares.is_none() {
            return Vec::new();
        }
        let top = self.real.priorities().first().copied();
        let mut lower: BTreeMap<i32, Nanos> = BTreeMap::new();
        for ((band, _), waits) in &self.waits {
            if let Some((_, entered)) = waits.first_key_value().filter(|_| Some(*band) != top) {
                let oldest = lower.entry(*band).or_insert(*entered);
                *oldest = (*oldest).min(*entered);
            }
        }
        lower.into_iter().collect()
    }

    fn dispatched(&mut self, dispatch: Dispatch, lower: &[(i32, Nanos)]) -> Check {
        let seen = self.ledger.ended(dispatch.id, Outcome::Dispatched)?;
        let item = &seen.item;
        if self.endpoints == 0 {
            return Err("INV-Q7: an empty pool dispatched".to_owned());
        }
        if item.deadline.is_some_and(|d| d <= self.now)
            || item.ttl.is_some_and(|ttl| seen.entered + ttl <= self.now)
        {
            return Err(format!(
                "INV-Q4: dispatched after its wait was over: {item:?}"
            ));
        }
        self.order_kept(&dispatch, item)?;
        let (tenant, actual, fate) = self.fates.get_mut(&dispatch.id).unwrap();
        *fate = Some(dispatch);
        let (tenant, actual) = (*tenant, *actual);
        if let Some(gaps) = &mut self.gaps {
            gaps.dispatched(item, actual)?;
        }
        if let Some(shares) = &mut self.shares {
            shares.served(&Served {
                now: self.now,
                dispatch: &dispatch,
                charge: item.cost.weighted(2.0) as f64,
                lower,
            })?;
        }
        let item = item.clone();
        self.left(dispatch.id, &item);
        let class = item.class.0 as usize;
        self.world.free[class] = self.world.free[class]
            .checked_sub(1)
            .ok_or("INV-Q6: dispatched without room")?;
        let busy = 1 + actual.uncached_input + 4 * actual.output;
        self.at(busy * 1000, Event::Complete(dispatch.id));
        self.again(tenant);
        Ok(())
    }

    /// INV-Q6: in order means that nothing of a higher band could have started.
    fn order_kept(&self, dispatch: &Dispatch, item: &Item) -> Check {
        if dispatch.turn != crate::Turn::InOrder || self.scene == Scene::All {
            return Ok(());
        }
        for ((band, class), waits) in &self.waits {
            if *band > dispatch.priority && !waits.is_empty() && self.could_start(*band, *class) {
                return Err(format!("INV-Q6: {item:?} went before band {band}"));
            }
        }
        Ok(())
    }

    fn could_start(&self, band: i32, class: ClassId) -> bool {
        let ask = Ask {
            id: 0,
            class,
            priority: band,
            ceiling_of: band,
            cost: Cost::default(),
            since: 0,
        };
        self.endpoints > 0 && self.world.answer(&ask) == Answer::Start
    }

    /// INV-Q7: when nothing more is dispatched, nothing that waits could start at its own band's ceiling.
    fn nothing_idles(&self) -> Check {
        if self.scene == Scene::All {
            // There bands are shared and releases are paced; the model covers those.
            return Ok(());
        }
        for ((band, class), waits) in &self.waits {
            if !waits.is_empty() && self.could_start(*band, *class) {
                return Err(format!(
                    "INV-Q7: {} of band {band} wait for nothing",
                    waits.len()
                ));
            }
        }
        Ok(())
    }

    fn complete(&mut self, id: u64) -> Check {
        let seen = self.ledger.completed(id)?;
        let (_, actual, dispatch) = self.fates.remove(&id).unwrap();
        if !self.real.complete(self.now, id, actual) {
            return Err(format!("INV-Q2: {id} is not known to run"));
        }
        if let Some(gaps) = &mut self.gaps {
            gaps.completed(&seen.item, actual)?;
        }
        if let (Some(shares), Some(dispatch)) = (&mut self.shares, dispatch) {
            let used = match actual {
                Cost {
                    uncached_input: 0,
                    output: 0,
                } => 0,
                used => used.weighted(2.0),
            };
            let unused = seen.item.cost.weighted(2.0).saturating_sub(used);
            shares.unused(&dispatch, unused as f64);
        }
        self.world.free[seen.item.class.0 as usize] += 1;
        self.real.capacity_changed(Some(seen.item.class));
        Ok(())
    }

    fn step(&mut self, event: Event) -> Check {
        match event {
            Event::Arrive(tenant) => self.arrive(tenant)?,
            Event::Complete(id) => self.complete(id)?,
            Event::Cancel(id) => {
                if self.real.cancel(id) {
                    self.ended(&[(id, Outcome::EvictedCancelled)])?;
                }
            }
            Event::Endpoints(n) => {
                self.endpoints = n;
                self.real.pool_state(self.now, n as usize);
                let (later, next) = match n {
                    0 => (ms(self.rng.u64(5..300)), self.rng.u64(1..4)),
                    _ => (ms(self.rng.u64(50..2000)), 0),
                };
                self.at(later, Event::Endpoints(next));
            }
            // One that was overtaken by an earlier one is nothing.
            Event::Wake if self.wake != Some(self.now) => return Ok(()),
            Event::Wake => self.wake = None,
        }
        self.done += 1;
        self.turn()?;
        if self.done.is_multiple_of(4096) {
            self.real.audit()?;
        }
        Ok(())
    }

    fn run(mut self, events: u64) -> Result<Report, String> {
        while self.done < events {
            let Some(Reverse((at, _, event))) = self.events.pop() else {
                return Err("the load came to an end".to_owned());
            };
            self.now = at.max(self.now);
            let step = self.step(event);
            step.map_err(|e| format!("event {} at {} us: {e}", self.done, self.now / 1000))?;
        }
        self.real.audit()?;
        let totals = self.real.totals();
        if totals.floor_violations > 0 {
            return Err(format!("INV-Q9: {} windows", totals.floor_violations));
        }
        Ok(Report {
            events: self.done,
            outcomes: self.ledger.by_outcome.clone(),
            gap_share: self.gaps.map_or(0.0, |gaps| gaps.largest_share_of_bound),
            out_of_turn: self.real.bands(self.now).map(|b| b.out_of_turn).sum(),
        })
    }
}

/// One run. A panic of the code under test counts as a violation.
pub(super) fn seeded(scene: Scene, seed: u64, events: u64) -> Result<Report, String> {
    let run = catch_unwind(AssertUnwindSafe(|| Sim::new(scene, seed).run(events)));
    let run = run.unwrap_or_else(|_| Err("a panic".to_owned()));
    run.map_err(|e| format!("{scene:?} seed {seed}: {e}"))
}

/// INV-Q1 to INV-Q9 over at least a million events; `WICKETGATE_ADMISSION_EVENTS` asks for more.
#[test]
fn invariants_hold_under_adversarial_load() {
    let asked = std::env::var("WICKETGATE_ADMISSION_EVENTS");
    let events: u64 = asked.ok().and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let runs = 60;
    let mut total = Report::default();
    for seed in 0..runs {
        let scene = [Scene::Gaps, Scene::Bands, Scene::All][seed as usize % 3];
        let report = seeded(scene, seed, events.div_ceil(runs)).unwrap();
        total.events += report.events;
        total.gap_share = total.gap_share.max(report.gap_share);
        total.out_of_turn += report.out_of_turn;
        for (outcome, count) in report.outcomes {
            *total.outcomes.entry(outcome).or_default() += count;
        }
    }
    println!("{total:?}");
    assert!(total.events >= events);
    assert!(total.out_of_turn > 0, "starvation policies were exercised");
    assert!(
        total.gap_share > 0.5 && total.gap_share <= 1.0,
        "the gap bound is tight: {total:?}"
    );
    for outcome in [
        Outcome::Dispatched,
        Outcome::EvictedTtl,
        Outcome::EvictedNoEndpoints,
        Outcome::EvictedCancelled,
        Outcome::EvictedPriority,
    ] {
        assert!(total.outcomes.contains_key(&outcome), "no {outcome:?}");
    }
}
