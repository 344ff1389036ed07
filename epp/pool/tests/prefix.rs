//! The pool and a prefix index that changes under it: what is charged, what is counted, and that a log replays.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, which is its job"
)]

use std::{cell::RefCell, collections::BTreeMap, io::Cursor, sync::Arc};

use wicketgate_pool::{
    Delta, Ended, FlowControl, Input, Output, Outputs, Pool, PoolConfig, Request, RequestId,
    admission::{
        AdmissionConfig,
        gate::{Concurrency, Detector, GateConfig},
    },
    replay::{Entry, Header, Recording, ReplayError, VERSION, replay},
    scheduler::{
        EndpointSpec, Incarnation, PrefixView, RequestView, SchedulerPolicy, SchedulerSpec,
    },
};

/// What each request has cached where. A pick caches all of a request's prompt there, for the next one too.
#[derive(Default)]
struct Cache {
    held: RefCell<BTreeMap<(u64, u64), u64>>,
    looks: RefCell<u32>,
}

impl Cache {
    fn set(&self, request: u64, endpoint: u64, tokens: u64) {
        self.held.borrow_mut().insert((request, endpoint), tokens);
    }
}

impl PrefixView for Cache {
    fn cached_tokens(&self, request: &RequestView<'_>, endpoint: Incarnation) -> u64 {
        let held = self.held.borrow();
        held.get(&(request.id, endpoint.0)).copied().unwrap_or(0)
    }

    fn look(&self, request: &RequestView<'_>) -> bool {
        *self.looks.borrow_mut() += 1;
        let held = self.held.borrow();
        held.keys().any(|(id, _)| *id == request.id)
    }

    fn picked(&self, request: &RequestView<'_>, endpoint: Incarnation) {
        self.set(request.id + 1, endpoint.0, request.prompt_tokens);
    }
}

fn config() -> Arc<PoolConfig> {
    let detector = Detector::Concurrency(Concurrency {
        max_concurrency: 1,
        ..Concurrency::default()
    });
    Arc::new(PoolConfig {
        name: "main".into(),
        scheduler: SchedulerSpec::default_ours(),
        policy: SchedulerPolicy::default(),
        flow: FlowControl {
            enabled: true,
            admission: AdmissionConfig::default(),
            gate: GateConfig {
                detector,
                ..GateConfig::default()
            },
        },
        record_decisions: false,
    })
}

/// A pool of two endpoints and the log of what it did.
struct Rig {
    pool: Pool,
    cache: Cache,
    log: Vec<String>,
    now: u64,
}

impl Rig {
    fn new() -> Rig {
        let header = Header {
            version: VERSION,
            config: config(),
            seed: 7,
        };
        let mut rig = Rig {
            pool: Pool::new(config(), 7).unwrap(),
            cache: Cache::default(),
            log: vec![serde_json::to_string(&header).unwrap()],
            now: 0,
        };
        let join = [1, 2].map(|id| {
            let address = format!("10.0.0.{id}:8000");
            let spec = EndpointSpec::new(address.as_str(), address.as_str());
            (Incarnation(id), spec)
        });
        rig.step(Input::Endpoints(Delta {
            join: join.into(),
            ..Delta::default()
        }));
        rig
    }

    /// Who got a place, and where.
    fn step(&mut self, input: Input) -> Vec<(u64, u64)> {
        self.now += 1_000_000;
        let recording = Recording::new(&self.cache);
        let mut out = Outputs::default();
        self.pool
            .step(self.now, input.clone(), &recording, &mut out);
        assert_eq!(self.pool.check(), Ok(()));
        let entry = Entry {
            now: self.now,
            input,
            prefix: recording.into_answers(),
            outputs: out.list.clone(),
        };
        self.log.push(serde_json::to_string(&entry).unwrap());
        let placed = out.list.iter().filter_map(|output| match output {
            Output::Dispatch { id, decision, .. } => Some((id.0, decision.targets[0].id.0)),
            _ => None,
        });
        placed.collect()
    }

    fn arrive(&mut self, id: u64) -> Vec<(u64, u64)> {
        self.step(Input::Arrive(Arc::new(Request {
            id: RequestId(id),
            prompt_tokens: 1000,
            output_tokens: 10,
            keys: [id].into(),
            ..Request::default()
        })))
    }

    fn end(&mut self, id: u64) -> Vec<(u64, u64)> {
        self.step(Input::End {
            id: RequestId(id),
            how: Ended::Complete(200),
            usage: None,
        })
    }

    fn tokens(&self) -> Vec<u64> {
        let rows = self.pool.endpoints().iter();
        rows.map(|row| row.load.tokens).collect()
    }
}

#[test]
fn the_choice_and_the_counts_are_by_what_is_cached() {
    let mut rig = Rig::new();
    rig.cache.set(1, 2, 960);
    assert_eq!(rig.arrive(1), [(1, 2)]);
    assert_eq!(rig.tokens(), [0, 40]);
    // The pick is in the index at once, but the endpoint is full: the other one computes all of it.
    assert_eq!(rig.cache.held.borrow()[&(2, 2)], 1000);
    assert_eq!(rig.arrive(2), [(2, 1)]);
    assert_eq!(rig.tokens(), [1000, 40]);
}

#[test]
fn who_waits_is_charged_for_what_is_not_cached_and_placed_by_what_is_cached_then() {
    let mut rig = Rig::new();
    assert_eq!(rig.arrive(1).len() + rig.arrive(3).len(), 2);
    rig.cache.set(11, 1, 800);
    rig.cache.set(11, 2, 600);
    assert_eq!(rig.arrive(11), []);
    let queue = rig.pool.queue(rig.now);
    // 200 tokens of the prompt, and 10 of the answer.
    assert_eq!(queue.bands[0].tokens, 210, "{queue:?}");
    // The cache moved while it waited.
    rig.cache.set(11, 1, 0);
    rig.cache.set(11, 2, 960);
    let first = rig.end(1);
    let at = first.first().map(|(_, at)| *at).unwrap();
    let expected = if at == 2 { 40 } else { 1000 };
    let place = usize::try_from(at - 1).unwrap();
    assert_eq!(rig.tokens()[place], expected);
}

/// Several questions in one step: each gets its own recorded answers.
#[test]
fn a_log_replays_without_the_index() {
    let mut rig = Rig::new();
    for round in 0..200_u64 {
        let id = round * 3 + 1;
        rig.cache.set(id, 1 + round % 2, round % 11 * 96);
        rig.cache.set(id + 1, 2 - round % 2, round % 7 * 96);
        let mut open: Vec<u64> = Vec::new();
        for id in [id, id + 1, id + 2] {
            open.extend(rig.arrive(id).iter().map(|(id, _)| *id));
        }
        while let Some(id) = open.pop() {
            open.extend(rig.end(id).iter().map(|(id, _)| *id));
        }
        assert_eq!((rig.pool.running(), rig.pool.waiting()), (0, 0));
    }
    let both = rig.log.iter().filter(|line| line.contains("],[["));
    assert!(both.count() > 0, "no step asked twice");
    let text = rig.log.join("\n");
    let report = replay(Cursor::new(&text), |_| ()).unwrap();
    assert_eq!(report.dispatched, 600);
    // Without the answers it is another run.
    let bare: Vec<String> = rig
        .log
        .iter()
        .map(|line| {
            let mut entry: serde_json::Value = serde_json::from_str(line).unwrap();
            entry.as_object_mut().unwrap().remove("prefix");
            entry.to_string()
        })
        .collect();
    let diverged = replay(Cursor::new(bare.join("\n")), |_| ()).unwrap_err();
    assert!(matches!(diverged, ReplayError::Diverged { .. }));
}
