//! Three replicas in front of common endpoints, on virtual time: messages come late and get lost, one replica is killed
//! and starts anew. INV-Q12 and INV-Q14 are watched at each dispatch, INV-Q13 over the run.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use fastrand::Rng;

use crate::{
    Admission, AdmissionConfig, BandConfig, Cost, Fairness, FairnessId, Item, Limits, Nanos,
    Starvation, Wait,
    fleet::{Counters, EndpointLoad, Fleet, FleetConfig, FleetState, ReplicaId},
    gate::{Concurrency, Detector, EndpointView, GateConfig, PoolGate, Scope, UsageLimitState},
    tests::rig::{self, ms},
};

const REPLICAS: usize = 3;
const ENDPOINTS: usize = 4;
/// Requests at once on an endpoint, over all replicas.
const LIMIT: u64 = 8;
/// A replica's share of it, rounded up.
const SHARE: u64 = LIMIT.div_ceil(REPLICAS as u64);
const INTERVAL: Nanos = ms(100);
const MAX_DELAY: Nanos = ms(20);
const STALE: Nanos = ms(1000);
/// Requests that a tenant keeps waiting at a replica.
const WAITING: usize = 4;
const KILL: Nanos = ms(20_000);
const RESTART: Nanos = ms(40_000);
const END: Nanos = ms(60_000);
/// Nothing is judged for so long after the number of replicas changed.
const SETTLE: Nanos = ms(3000);

/// Where tenants wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::tests) enum Scene {
    /// Everybody at every replica; half of them send requests ten times as large.
    Everywhere,
    /// The first at every replica, the others at one each: a replica alone would give the first half of all.
    Partly,
}

#[derive(Clone, Debug)]
struct Tenant {
    id: FairnessId,
    tokens: u64,
    at: Vec<usize>,
    /// Where it sends to when all replicas are there.
    home: Vec<usize>,
    /// Actual tokens as a share of the expected ones, in quarters.
    truth: u64,
}

#[derive(Debug)]
enum Event {
    Tell(usize),
    Deliver(usize, Box<Counters>, Nanos),
    Complete(u64),
    Wake(usize),
    Kill(usize),
    Restart(usize),
}

struct Replica {
    alive: bool,
    /// Which start of it.
    life: ReplicaId,
    queues: Admission,
    fleet: Fleet,
    /// By life of a peer: when the message was told that this replica goes by, and when it came.
    told: BTreeMap<ReplicaId, (Nanos, Nanos)>,
    wake: Option<Nanos>,
}

struct Running {
    tenant: usize,
    replica: usize,
    life: ReplicaId,
    endpoint: usize,
    charge: i64,
    actual: Cost,
}

struct Sim {
    fairness: Fairness,
    rng: Rng,
    now: Nanos,
    order: u64,
    events: BinaryHeap<Reverse<(Nanos, u64, usize)>>,
    what: HashMap<usize, Event>,
    tenants: Vec<Tenant>,
    replicas: Vec<Replica>,
    /// Waiting requests by number: tenant, replica and charge.
    waiting: HashMap<u64, (usize, usize, i64)>,
    /// Requests that each tenant has waiting at each replica.
    waits: BTreeMap<(usize, usize), usize>,
    running: HashMap<u64, Running>,
    next_id: u64,
    next_life: u64,
    /// By life and endpoint: requests in flight, and the instants of recent starts.
    in_flight: BTreeMap<(ReplicaId, usize), u64>,
    starts: BTreeMap<(ReplicaId, usize), Vec<Nanos>>,
    /// Service by tenant: over all, by life, and by life of late.
    served: Vec<i64>,
    by_life: BTreeMap<(ReplicaId, usize), i64>,
    recent: BTreeMap<ReplicaId, Vec<(Nanos, usize, i64)>>,
    window: Window,
    report: Report,
}

/// INV-Q13: the width of what one tenant is ahead of another.
#[derive(Default)]
struct Window {
    least: BTreeMap<(usize, usize), i64>,
    /// What the others served a tenant unknown to who dispatched it, at most.
    unknown: i64,
    dearest: i64,
    /// Largest `expected - actual` of a tenant's requests in flight together.
    error: i64,
}

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub(in crate::tests) struct Report {
    /// Jain's index over tokens: of three, of two, of three replicas again.
    pub(in crate::tests) jain: [f64; 3],
    pub(in crate::tests) dispatches: u64,
    /// Largest excess over the limit of an endpoint, and largest age of what a replica went by.
    pub(in crate::tests) excess: u64,
    pub(in crate::tests) age: Nanos,
    /// Largest width of a lead, as a share of its bound.
    pub(in crate::tests) lead: f64,
    pub(in crate::tests) fallbacks: u64,
}

fn key(endpoint: usize) -> Arc<str> {
    Arc::from(format!("endpoint-{endpoint}"))
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
        ..rig::alike(&band, Starvation::Strict)
    }
}

fn gate() -> GateConfig {
    let detector = Concurrency {
        max_concurrency: LIMIT,
        scope: Scope::Endpoint,
        ..Concurrency::default()
    };
    GateConfig {
        detector: Detector::Concurrency(detector),
        ..GateConfig::default()
    }
}

fn jain(served: &[f64]) -> f64 {
    let (sum, squares) = served
        .iter()
        .fold((0.0, 0.0), |(s, q), x| (s + x, q + x * x));
    sum * sum / (served.len() as f64 * squares)
}

impl Sim {
    fn new(scene: Scene, fairness: Fairness, lies: bool, seed: u64) -> Sim {
        let all: Vec<usize> = (0..REPLICAS).collect();
        let home = |n: usize| match scene {
            Scene::Partly if n > 0 => vec![n - 1],
            Scene::Everywhere | Scene::Partly => all.clone(),
        };
        let tenants = (0..4).map(|n| Tenant {
            id: FairnessId::new(format!("tenant-{n}")),
            tokens: match scene {
                Scene::Everywhere => [100, 1000][n % 2],
                Scene::Partly => [1000, 100, 100, 100][n],
            },
            at: home(n),
            home: home(n),
            truth: if lies { [4, 4, 2, 8][n] } else { 4 },
        });
        let mut sim = Sim {
            fairness,
            rng: Rng::with_seed(seed),
            now: ms(1),
            order: 0,
            events: BinaryHeap::new(),
            what: HashMap::new(),
            tenants: tenants.collect(),
            replicas: Vec::new(),
            waiting: HashMap::new(),
            waits: BTreeMap::new(),
            running: HashMap::new(),
            next_id: 0,
            next_life: 0,
            in_flight: BTreeMap::new(),
            starts: BTreeMap::new(),
            served: vec![0; 4],
            by_life: BTreeMap::new(),
            recent: BTreeMap::new(),
            window: Window::default(),
            report: Report::default(),
        };
        for at in 0..REPLICAS {
            let replica = sim.start();
            sim.replicas.push(replica);
            let first = sim.rng.u64(0..INTERVAL);
            sim.at(first, Event::Tell(at));
        }
        sim.at(KILL, Event::Kill(REPLICAS - 1));
        sim.at(RESTART, Event::Restart(REPLICAS - 1));
        sim
    }

    fn start(&mut self) -> Replica {
        self.next_life += 1;
        let life = ReplicaId(self.next_life);
        let mut queues = Admission::new(config(self.fairness)).unwrap();
        queues.pool_state(self.now, ENDPOINTS);
        let members = REPLICAS as u32;
        let config = FleetConfig {
            members,
            stale_after: STALE,
            ..FleetConfig::default()
        };
        let mut fleet = Fleet::new(config, life).unwrap();
        fleet.attach(&mut queues);
        Replica {
            alive: true,
            life,
            queues,
            fleet,
            told: BTreeMap::new(),
            wake: None,
        }
    }

    fn at(&mut self, later: Nanos, event: Event) {
        self.order += 1;
        let slot = self.order as usize;
        self.what.insert(slot, event);
        self.events
            .push(Reverse((self.now + later, self.order, slot)));
    }

    /// Every tenant has its requests waiting where it sends to.
    fn fill(&mut self, replica: usize) {
        for tenant in 0..self.tenants.len() {
            if !self.tenants[tenant].at.contains(&replica) {
                continue;
            }
            let waits = self.waits.get(&(tenant, replica)).copied().unwrap_or(0);
            for _ in waits..WAITING {
                self.send(tenant, replica);
            }
        }
    }

    fn send(&mut self, tenant: usize, replica: usize) {
        self.next_id += 1;
        let spread = self.tenants[tenant].tokens;
        let uncached_input = self.rng.u64(spread / 2..spread * 3 / 2);
        let item = Item {
            fairness: self.tenants[tenant].id.clone(),
            cost: Cost {
                uncached_input,
                output: 0,
            },
            ..rig::item(self.next_id, 0, "")
        };
        let entered = self.replicas[replica]
            .queues
            .enqueue(self.now, item, &mut Vec::new());
        assert_eq!(entered, Ok(()));
        let charge = uncached_input as i64;
        self.waiting.insert(self.next_id, (tenant, replica, charge));
        *self.waits.entry((tenant, replica)).or_default() += 1;
    }

    /// Dispatches at a replica until nothing more may start.
    fn turn(&mut self, replica: usize) -> Result<(), String> {
        if !self.replicas[replica].alive {
            return Ok(());
        }
        let now = self.now;
        let state = &mut self.replicas[replica];
        if state.fleet.pass(now, &mut state.queues) {
            state.queues.capacity_changed(None);
        }
        self.fill(replica);
        loop {
            let views = self.views(replica);
            let (gate, mut limits) = (gate(), UsageLimitState::default());
            let state = &mut self.replicas[replica];
            let mut gate = PoolGate::new(&gate, now, &views, &[0], &|_, _| true, &mut limits);
            let Some(dispatch) = state.queues.next(now, &mut gate) else {
                break;
            };
            let least = (0..ENDPOINTS)
                .min_by_key(|e| views[*e].own_requests)
                .unwrap();
            self.dispatched(replica, dispatch.id, least)?;
        }
        let wake = self.replicas[replica].fleet.wake_at();
        if let Some(at) = wake.filter(|at| self.replicas[replica].wake != Some(*at)) {
            self.replicas[replica].wake = Some(at);
            self.at(at.saturating_sub(now), Event::Wake(replica));
        }
        Ok(())
    }

    fn views(&self, replica: usize) -> Vec<EndpointView> {
        let state = &self.replicas[replica];
        let view = |endpoint| {
            let own = self
                .in_flight
                .get(&(state.life, endpoint))
                .copied()
                .unwrap_or(0);
            let view = EndpointView {
                own_requests: own as u32,
                ..EndpointView::default()
            };
            state.fleet.view(&key(endpoint), view)
        };
        (0..ENDPOINTS).map(view).collect()
    }

    fn dispatched(&mut self, replica: usize, id: u64, endpoint: usize) -> Result<(), String> {
        let (tenant, at, charge) = self.waiting.remove(&id).ok_or("an unknown request went")?;
        assert_eq!(at, replica);
        *self.waits.entry((tenant, replica)).or_default() -= 1;
        let life = self.replicas[replica].life;
        let actual = Cost {
            uncached_input: charge as u64 * self.tenants[tenant].truth / 4,
            output: 0,
        };
        self.report.dispatches += 1;
        *self.in_flight.entry((life, endpoint)).or_default() += 1;
        self.starts
            .entry((life, endpoint))
            .or_default()
            .push(self.now);
        self.limits_hold(replica, endpoint)?;
        let busy = actual.uncached_input * 200_000;
        let run = Running {
            tenant,
            replica,
            life,
            endpoint,
            charge,
            actual,
        };
        self.running.insert(id, run);
        self.at(busy, Event::Complete(id));
        self.window.dearest = self.window.dearest.max(charge);
        self.window.error = self.window.error.max(self.error(tenant));
        self.serve(life, tenant, charge);
        self.lead_holds(replica, tenant)?;
        self.fill(replica);
        Ok(())
    }

    fn error(&self, tenant: usize) -> i64 {
        let running = self.running.values().filter(|run| run.tenant == tenant);
        running
            .map(|run| (run.charge - run.actual.uncached_input as i64).abs())
            .sum()
    }

    fn serve(&mut self, life: ReplicaId, tenant: usize, tokens: i64) {
        self.served[tenant] += tokens;
        *self.by_life.entry((life, tenant)).or_default() += tokens;
        self.recent
            .entry(life)
            .or_default()
            .push((self.now, tenant, tokens));
    }

    /// INV-Q12 and INV-Q14.
    fn limits_hold(&mut self, replica: usize, endpoint: usize) -> Result<(), String> {
        let state = &self.replicas[replica];
        let count = |life| self.in_flight.get(&(life, endpoint)).copied().unwrap_or(0);
        let own = count(state.life);
        if state.fleet.state() == FleetState::Share && own > SHARE {
            return Err(format!(
                "INV-Q14: {own} of one replica, its share is {SHARE}"
            ));
        }
        let (mut all, mut unknown) = (own, 0);
        for (life, (told, came)) in &state.told {
            if *life == state.life || self.now - came > STALE {
                continue;
            }
            self.report.age = self.report.age.max(self.now - told);
            all += count(*life);
            let starts = self.starts.get(&(*life, endpoint)).into_iter().flatten();
            unknown += starts.filter(|at| *at >= told).count() as u64;
        }
        self.report.excess = self.report.excess.max(all.saturating_sub(LIMIT));
        match all <= LIMIT + unknown {
            true => Ok(()),
            false => Err(format!(
                "INV-Q12: {all} in flight, the limit is {LIMIT} and {unknown} starts were not known"
            )),
        }
    }

    /// INV-Q13, for tenants that wait at every replica without a break.
    fn lead_holds(&mut self, replica: usize, tenant: usize) -> Result<(), String> {
        if self.tenants.iter().any(|tenant| tenant.at.len() < REPLICAS) {
            return Ok(());
        }
        let state = &self.replicas[replica];
        let mut unknown = 0;
        for (life, all) in &self.recent {
            if *life != state.life {
                let told = state.told.get(life).map_or(0, |(told, _)| *told);
                let late = all.iter().rev().take_while(|(at, ..)| *at >= told);
                unknown += late
                    .filter(|(_, of, _)| *of == tenant)
                    .map(|(.., t)| (*t).max(0))
                    .sum::<i64>();
            }
        }
        self.window.unknown = self.window.unknown.max(unknown);
        let quantum = match self.fairness {
            Fairness::Drr { quantum } => quantum as i64,
            _ => 0,
        };
        let Window {
            unknown,
            dearest,
            error,
            ..
        } = self.window;
        let bound = 2 * (2 * quantum + 2 * dearest + 4 * error + unknown);
        for other in 0..self.tenants.len() {
            for (ahead, behind) in [(tenant, other), (other, tenant)] {
                let lead = self.served[ahead] - self.served[behind];
                let least = self.window.least.entry((ahead, behind)).or_insert(lead);
                *least = lead.min(*least);
                let width = lead - *least;
                self.report.lead = self.report.lead.max(width as f64 / bound as f64);
                if width > bound {
                    return Err(format!(
                        "INV-Q13: a lead grew by {width}, at most {bound} may be"
                    ));
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Tell(at) => {
                self.at(INTERVAL, Event::Tell(at));
                self.tell(at);
                self.turn(at)
            }
            Event::Deliver(at, said, told) => {
                let state = &mut self.replicas[at];
                if state.alive {
                    let heard = state.fleet.hear(self.now, &said, &mut state.queues);
                    if heard == crate::fleet::Heard::New {
                        state.told.insert(said.replica, (told, self.now));
                        state.queues.capacity_changed(None);
                    }
                }
                self.turn(at)
            }
            Event::Complete(id) => {
                let run = self.running.remove(&id).ok_or("completed twice")?;
                *self.in_flight.entry((run.life, run.endpoint)).or_default() -= 1;
                let state = &mut self.replicas[run.replica];
                if !state.alive || state.life != run.life {
                    return Ok(());
                }
                let state = &mut self.replicas[run.replica];
                assert!(state.queues.complete(self.now, id, run.actual));
                state.queues.capacity_changed(None);
                let more = run.actual.uncached_input as i64 - run.charge;
                self.serve(run.life, run.tenant, more);
                self.turn(run.replica)
            }
            Event::Wake(at) => self.turn(at),
            Event::Kill(at) => {
                // What it had dispatched goes on: nobody knows of it any more.
                self.report.fallbacks += self.replicas[at].fleet.totals().fallbacks;
                self.replicas[at].alive = false;
                self.waiting.retain(|_, (_, replica, _)| *replica != at);
                self.waits.retain(|(_, replica), _| *replica != at);
                for tenant in &mut self.tenants {
                    if tenant.at == [at] {
                        tenant.at = vec![(at + 1) % REPLICAS];
                    }
                }
                Ok(())
            }
            Event::Restart(at) => {
                self.replicas[at] = self.start();
                for tenant in &mut self.tenants {
                    tenant.at = tenant.home.clone();
                }
                // It knows nothing of who is ahead.
                self.window = Window::default();
                self.turn(at)
            }
        }
    }

    fn tell(&mut self, at: usize) {
        let state = &mut self.replicas[at];
        if !state.alive {
            return;
        }
        let life = state.life;
        let since = self.now.saturating_sub(2 * STALE);
        for recent in self.recent.values_mut() {
            recent.retain(|(at, ..)| *at >= since);
        }
        for starts in self.starts.values_mut() {
            starts.retain(|at| *at >= since);
        }
        let load = |endpoint| EndpointLoad {
            endpoint: key(endpoint),
            requests: self.in_flight.get(&(life, endpoint)).copied().unwrap_or(0) as u32,
            tokens: 0,
        };
        let said = state
            .fleet
            .tell(self.now, &state.queues, (0..ENDPOINTS).map(load));
        for row in &said.flows {
            let tenant = self
                .tenants
                .iter()
                .position(|tenant| tenant.id == row.fairness);
            assert_eq!(
                Some(&row.service),
                self.by_life.get(&(life, tenant.unwrap()))
            );
        }
        for other in (0..REPLICAS).filter(|other| *other != at) {
            // One in ten is lost, and they overtake each other.
            if self.rng.u8(0..10) > 0 {
                let delay = self.rng.u64(ms(1)..MAX_DELAY);
                self.at(
                    delay,
                    Event::Deliver(other, Box::new(said.clone()), self.now),
                );
            }
        }
    }

    fn run(mut self) -> Result<Report, String> {
        let mut marks: BTreeMap<Nanos, Vec<i64>> = BTreeMap::new();
        let phases = [
            (SETTLE, KILL),
            (KILL + SETTLE, RESTART),
            (RESTART + SETTLE, END),
        ];
        let edges: Vec<Nanos> = phases.iter().flat_map(|(from, to)| [*from, *to]).collect();
        while let Some(Reverse((at, _, slot))) = self.events.pop() {
            for edge in edges.iter().filter(|edge| **edge <= at) {
                marks.entry(*edge).or_insert_with(|| self.served.clone());
            }
            if at > END {
                break;
            }
            self.now = at;
            let event = self.what.remove(&slot).ok_or("an event twice")?;
            self.step(event)
                .map_err(|e| format!("at {} ms: {e}", at / ms(1)))?;
        }
        for (index, (from, to)) in phases.into_iter().enumerate() {
            let served = marks[&from].iter().zip(&marks[&to]);
            let served: Vec<f64> = served.map(|(a, b)| (b - a) as f64).collect();
            self.report.jain[index] = jain(&served);
        }
        for replica in &self.replicas {
            replica.queues.audit()?;
            self.report.fallbacks += replica.fleet.totals().fallbacks;
            if replica.fleet.state() != FleetState::Whole {
                return Err("INV-Q14: the fleet did not come together again".to_owned());
            }
        }
        Ok(self.report)
    }
}

/// One run. A panic of the code under test counts as a violation.
pub(in crate::tests) fn seeded(
    scene: Scene,
    fairness: Fairness,
    lies: bool,
    seed: u64,
) -> Result<Report, String> {
    let run = catch_unwind(AssertUnwindSafe(|| {
        Sim::new(scene, fairness, lies, seed).run()
    }));
    let run = run.unwrap_or_else(|_| Err("a panic".to_owned()));
    run.map_err(|e| format!("{scene:?} {fairness:?} seed {seed}: {e}"))
}
