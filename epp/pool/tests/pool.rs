//! The pool under arbitrary inputs: its invariants, and that a log of it replays.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, which is its job"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Cursor,
    sync::Arc,
};

use proptest::prelude::*;
use wicketgate_pool::{
    Delta, Ended, FlowControl, Input, Output, Outputs, Pool, PoolConfig, Request, RequestId,
    admission::Outcome,
    replay::{Entry, Header, ReplayError, VERSION, replay},
    scheduler::{EndpointSpec, Incarnation, NoPrefix, Sample, SchedulerPolicy, SchedulerSpec},
};

const MS: u64 = 1_000_000;

fn config() -> Arc<PoolConfig> {
    Arc::new(PoolConfig {
        name: "main".into(),
        scheduler: SchedulerSpec::default_ours(),
        policy: SchedulerPolicy::default(),
        // Nothing waits here: `queue.rs` beside this file has what does.
        flow: FlowControl::disabled(),
        record_decisions: false,
    })
}

fn pool() -> Pool {
    Pool::new(config(), 7).unwrap()
}

fn join(id: u64) -> Input {
    let address = format!("10.0.0.{id}:8000");
    Input::Endpoints(Delta {
        join: vec![(
            Incarnation(id),
            EndpointSpec::new(address.as_str(), address.as_str()),
        )],
        ..Delta::default()
    })
}

fn leave(id: u64) -> Input {
    Input::Endpoints(Delta {
        leave: vec![Incarnation(id)],
        ..Delta::default()
    })
}

fn arrive(id: u64, tokens: u64) -> Input {
    Input::Arrive(Arc::new(Request {
        id: RequestId(id),
        prompt_tokens: tokens,
        ..Request::default()
    }))
}

fn end(id: u64, how: Ended) -> Input {
    let id = RequestId(id);
    Input::End {
        id,
        how,
        usage: None,
    }
}

fn step(pool: &mut Pool, now: u64, input: Input) -> Vec<Output> {
    let mut out = Outputs::default();
    pool.step(now, input, &NoPrefix, &mut out);
    assert_eq!(pool.check(), Ok(()));
    out.list
}

fn target(outputs: &[Output]) -> Incarnation {
    match outputs {
        [Output::Dispatch { decision, .. }] => decision.targets[0].id,
        other => panic!("no dispatch but {other:?}"),
    }
}

fn refusal(outputs: &[Output]) -> Outcome {
    match outputs {
        [Output::Refuse { why, .. }] => *why,
        other => panic!("no refusal but {other:?}"),
    }
}

#[test]
fn an_empty_pool_refuses() {
    let mut pool = pool();
    assert_eq!(
        refusal(&step(&mut pool, 0, arrive(1, 10))),
        Outcome::RejectedNoEndpoints
    );
    step(&mut pool, 1, join(1));
    step(&mut pool, 2, leave(1));
    assert_eq!(
        refusal(&step(&mut pool, 3, arrive(2, 10))),
        Outcome::RejectedNoEndpoints
    );
}

#[test]
fn a_passed_deadline_refuses() {
    let mut pool = pool();
    step(&mut pool, 0, join(1));
    let late = Request {
        id: RequestId(1),
        deadline: Some(5),
        ..Request::default()
    };
    let refused = step(&mut pool, 5, Input::Arrive(Arc::new(late)));
    assert_eq!(refusal(&refused), Outcome::EvictedTtl);
}

/// C19: an endpoint that flaps never inherits, and never goes below zero.
#[test]
fn a_new_life_does_not_inherit_the_old_ones_load() {
    let mut pool = pool();
    step(&mut pool, 0, join(1));
    assert_eq!(target(&step(&mut pool, 1, arrive(1, 100))), Incarnation(1));
    step(&mut pool, 2, leave(1));
    assert_eq!((pool.running(), pool.orphaned()), (1, 1));
    step(&mut pool, 3, join(2));
    assert_eq!(pool.endpoints()[0].load.requests, 0);
    assert_eq!(target(&step(&mut pool, 4, arrive(2, 50))), Incarnation(2));
    step(&mut pool, 5, end(1, Ended::Complete(200)));
    assert_eq!(pool.orphaned(), 0);
    assert_eq!(
        (
            pool.endpoints()[0].load.requests,
            pool.endpoints()[0].load.tokens
        ),
        (1, 50)
    );
    step(&mut pool, 6, end(2, Ended::Complete(200)));
    assert_eq!((pool.endpoints()[0].load.requests, pool.running()), (0, 0));
}

#[test]
fn the_first_token_gives_the_prefill_back_and_the_end_gives_the_request_back() {
    let mut pool = pool();
    step(&mut pool, 0, join(1));
    step(&mut pool, 1, arrive(1, 100));
    assert_eq!(pool.endpoints()[0].load.tokens, 100);
    step(&mut pool, 2, Input::FirstToken(RequestId(1)));
    assert_eq!(
        (
            pool.endpoints()[0].load.requests,
            pool.endpoints()[0].load.tokens
        ),
        (1, 0)
    );
    step(&mut pool, 3, end(1, Ended::ClientGone));
    step(&mut pool, 4, end(1, Ended::ClientGone));
    assert_eq!(pool.endpoints()[0].load.requests, 0);
    assert_eq!(pool.totals().unknown, 1);
}

#[test]
fn what_was_really_served_moves_the_counts() {
    let mut pool = pool();
    step(&mut pool, 0, join(1));
    step(&mut pool, 0, join(2));
    let chosen = target(&step(&mut pool, 1, arrive(1, 100)));
    let other = Incarnation(3 - chosen.0);
    step(
        &mut pool,
        2,
        Input::Served {
            id: RequestId(1),
            by: other,
        },
    );
    for row in pool.endpoints() {
        let expected = if row.id == other { (1, 100) } else { (0, 0) };
        assert_eq!((row.load.requests, row.load.tokens), expected);
    }
}

#[test]
fn a_full_queue_is_no_fault_but_a_broken_engine_is() {
    let mut pool = pool();
    step(&mut pool, 0, join(1));
    let mut id = 0;
    let mut rounds = |pool: &mut Pool, how| {
        (0..20).find_map(|round| {
            id += 1;
            let outputs = step(pool, (round + 1) * MS, arrive(id, 1));
            if let [Output::Refuse { why, .. }] = outputs.as_slice() {
                return Some(*why);
            }
            step(pool, (round + 1) * MS, end(id, how));
            None
        })
    };
    assert_eq!(rounds(&mut pool, Ended::Complete(503)), None);
    assert_eq!(rounds(&mut pool, Ended::Complete(400)), None);
    assert_eq!(
        rounds(&mut pool, Ended::UpstreamFailed),
        Some(Outcome::RejectedAllEjected)
    );
}

/// C18: nothing but the end gives a count back, however long it takes.
#[test]
fn a_long_request_stays_counted() {
    let mut pool = pool();
    step(&mut pool, 0, join(1));
    for id in 1..=4 {
        step(&mut pool, id, arrive(id, 1));
    }
    let eleven_minutes = 11 * 60 * 1000 * MS;
    step(&mut pool, eleven_minutes, Input::Timer);
    assert_eq!(pool.endpoints()[0].load.requests, 4);
}

#[derive(Clone, Debug)]
enum Op {
    Join,
    Leave(usize),
    Arrive(u64),
    Served(usize, usize),
    Failed(usize, usize, bool),
    FirstToken(usize),
    End(usize, Ended),
    Scrape(usize, Option<(u8, u8)>),
}

fn op() -> impl Strategy<Value = Op> {
    let how = prop_oneof![
        Just(Ended::Complete(200)),
        Just(Ended::Complete(500)),
        Just(Ended::ClientGone),
        Just(Ended::UpstreamFailed),
        Just(Ended::Dropped),
    ];
    prop_oneof![
        1 => Just(Op::Join),
        1 => (0..8_usize).prop_map(Op::Leave),
        6 => prop_oneof![9 => 0..5000_u64, 1 => Just(u64::MAX)].prop_map(Op::Arrive),
        1 => (0..32_usize, 0..8_usize).prop_map(|(r, e)| Op::Served(r, e)),
        1 => (0..32_usize, 0..8_usize, any::<bool>()).prop_map(|(r, e, c)| Op::Failed(r, e, c)),
        2 => (0..32_usize).prop_map(Op::FirstToken),
        4 => (0..32_usize, how).prop_map(|(r, how)| Op::End(r, how)),
        3 => (0..8_usize, prop::option::of((0..20_u8, 0..100_u8))).prop_map(|(e, s)| Op::Scrape(e, s)),
    ]
}

/// Turns an operation into an input over the lives and requests that exist; `None` when there are none.
struct Driver {
    next_life: u64,
    next_request: u64,
    lives: Vec<u64>,
    requests: Vec<u64>,
}

impl Driver {
    fn input(&mut self, op: &Op) -> Option<Input> {
        let life = |index: usize| self.lives.get(index % self.lives.len().max(1)).copied();
        let request = |index: usize| {
            let id = self.requests.get(index % self.requests.len().max(1));
            id.map(|id| RequestId(*id))
        };
        Some(match op {
            Op::Join => {
                self.next_life += 1;
                self.lives.push(self.next_life);
                join(self.next_life)
            }
            Op::Leave(index) => {
                let id = life(*index)?;
                self.lives.retain(|other| *other != id);
                leave(id)
            }
            Op::Arrive(tokens) => {
                self.next_request += 1;
                arrive(self.next_request, *tokens)
            }
            Op::Served(r, e) => Input::Served {
                id: request(*r)?,
                by: Incarnation(life(*e)?),
            },
            Op::Failed(r, e, certain) => Input::Failed {
                id: request(*r)?,
                at: Incarnation(life(*e)?),
                certain: *certain,
            },
            Op::FirstToken(r) => Input::FirstToken(request(*r)?),
            Op::End(r, how) => {
                let id = request(*r)?;
                self.requests.retain(|other| *other != id.0);
                end(id.0, *how)
            }
            Op::Scrape(e, sample) => Input::Telemetry {
                of: Incarnation(life(*e)?),
                sample: sample.map(|(waiting, kv)| Sample {
                    waiting: Some(f64::from(waiting)),
                    running: Some(f64::from(waiting) / 2.0),
                    kv_usage: Some(f64::from(kv) / 100.0),
                    ..Sample::default()
                }),
            },
        })
    }
}

/// Runs operations, checks each output, and returns the log as lines.
fn run(ops: &[(u16, Op)]) -> (Pool, Vec<String>, Vec<u64>) {
    let mut pool = pool();
    let mut driver = Driver {
        next_life: 0,
        next_request: 0,
        lives: Vec::new(),
        requests: Vec::new(),
    };
    let header = Header {
        version: VERSION,
        config: config(),
        seed: 7,
    };
    let mut log = vec![serde_json::to_string(&header).unwrap()];
    let mut now = 0;
    let mut places: BTreeMap<u64, Incarnation> = BTreeMap::new();
    for (pause, op) in ops {
        now += u64::from(*pause) * MS;
        let Some(input) = driver.input(op) else {
            continue;
        };
        let outputs = step(&mut pool, now, input.clone());
        if let Op::Arrive(_) = op {
            match outputs.as_slice() {
                [Output::Dispatch { id, decision, .. }] => {
                    let ids: BTreeSet<_> = decision.targets.iter().map(|to| to.id).collect();
                    assert_eq!(ids.len(), decision.targets.len(), "a repeat in the list");
                    assert!(
                        ids.iter().all(|to| driver.lives.contains(&to.0)),
                        "a dead target"
                    );
                    places.insert(id.0, decision.targets[0].id);
                    driver.requests.push(id.0);
                }
                [Output::Refuse { .. }] => {}
                other => panic!("an arrival gets one answer, not {other:?}"),
            }
        } else {
            assert_eq!(outputs, []);
        }
        let entry = Entry {
            now,
            input,
            prefix: Vec::new(),
            outputs,
        };
        log.push(serde_json::to_string(&entry).unwrap());
    }
    (pool, log, driver.requests)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// INV-P1 and INV-P2 hold after every step, and all counts are zero when all requests have ended.
    #[test]
    fn counts_are_conserved(ops in prop::collection::vec((0..2000_u16, op()), 0..200)) {
        let (mut pool, _, open) = run(&ops);
        prop_assert_eq!(pool.running(), open.len());
        for id in open {
            step(&mut pool, u64::MAX / 2, end(id, Ended::Complete(200)));
        }
        prop_assert_eq!(pool.running(), 0);
        prop_assert_eq!(pool.orphaned(), 0);
        for row in pool.endpoints() {
            prop_assert_eq!((row.load.requests, row.load.tokens), (0, 0));
        }
    }

    /// A recorded run replays to the same outputs.
    #[test]
    fn a_log_replays(ops in prop::collection::vec((0..2000_u16, op()), 0..120)) {
        let (_, log, open) = run(&ops);
        let report = replay(Cursor::new(log.join("\n")), |_| ()).unwrap();
        prop_assert_eq!(report.steps as usize, log.len() - 1);
        prop_assert_eq!(report.running as usize, open.len());
    }
}

fn busy_log() -> Vec<String> {
    let mut ops = vec![(0, Op::Join), (0, Op::Join), (0, Op::Join)];
    for round in 0..60_u16 {
        for endpoint in 0..3_u8 {
            let waiting = u8::try_from((round * 7 + u16::from(endpoint) * 5) % 20).unwrap();
            let sample = (waiting, 90 - waiting * 4);
            ops.push((20, Op::Scrape(endpoint.into(), Some(sample))));
        }
        ops.push((1, Op::Arrive(100)));
    }
    run(&ops).1
}

#[test]
fn one_changed_weight_makes_a_replay_diverge() {
    let log = busy_log().join("\n");
    replay(Cursor::new(&log), |_| ()).unwrap();
    let altered = replay(Cursor::new(&log), |config| {
        let mut value = serde_json::to_value(&config.scheduler).unwrap();
        raise_first_weight(&mut value);
        config.scheduler = serde_json::from_value(value).unwrap();
    });
    assert!(
        matches!(altered, Err(ReplayError::Diverged { .. })),
        "{altered:?}"
    );
}

/// Sets the first `weight` found to another value.
fn raise_first_weight(value: &mut serde_json::Value) -> bool {
    match value {
        serde_json::Value::Object(map) => {
            if let Some(weight) = map.get_mut("weight") {
                *weight = serde_json::json!(weight.as_f64().unwrap() + 40.0);
                return true;
            }
            map.values_mut().any(raise_first_weight)
        }
        serde_json::Value::Array(list) => list.iter_mut().any(raise_first_weight),
        _ => false,
    }
}

#[test]
fn a_damaged_log_is_refused_with_its_line() {
    let log = busy_log();
    let mut cut = log.clone();
    cut[5].truncate(20);
    let error = replay(Cursor::new(cut.join("\n")), |_| ()).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("line 6: not a replay log entry"),
        "{error}"
    );
    assert!(matches!(
        replay(Cursor::new(""), |_| ()),
        Err(ReplayError::Empty)
    ));
    let mut old = log;
    old[0] = old[0].replacen("\"version\":3", "\"version\":1", 1);
    let error = replay(Cursor::new(old.join("\n")), |_| ()).unwrap_err();
    assert_eq!(error.to_string(), "log version 1, this build reads 3");
}

/// An endpoint that comes back is found out by one request. When that one goes elsewhere, or says nothing, the next may.
#[test]
fn a_probe_that_tells_nothing_frees_its_slot() {
    for elsewhere in [true, false] {
        let mut pool = pool();
        step(&mut pool, 0, join(1));
        for id in 1..=5 {
            step(&mut pool, id, arrive(id, 1));
            step(&mut pool, id, end(id, Ended::UpstreamFailed));
        }
        step(&mut pool, 10, join(2));
        let later = 10 * 1000 * MS;
        let mut probes = 0;
        for id in 6..=60 {
            if target(&step(&mut pool, later + id, arrive(id, 1))) != Incarnation(1) {
                step(&mut pool, later + id, end(id, Ended::Complete(200)));
                continue;
            }
            probes += 1;
            if elsewhere {
                let by = Incarnation(2);
                let id = RequestId(id);
                step(&mut pool, later + id.0, Input::Served { id, by });
            }
            step(&mut pool, later + id, end(id, Ended::Complete(503)));
        }
        assert!(probes > 1, "{probes} probes, elsewhere: {elsewhere}");
    }
}

/// A long answer is no broken engine as long as its scrapes come back.
#[test]
fn time_outs_eject_only_what_is_silent_too() {
    let mut pool = pool();
    step(&mut pool, 0, join(1));
    let round = |pool: &mut Pool, id: u64| {
        let outputs = step(pool, id * MS, arrive(id, 1));
        let refused = matches!(outputs.as_slice(), [Output::Refuse { .. }]);
        step(pool, id * MS, end(id, Ended::TimedOut));
        refused
    };
    assert!((1..=20).all(|id| !round(&mut pool, id)));
    let silent = Input::Telemetry {
        of: Incarnation(1),
        sample: None,
    };
    step(&mut pool, 21 * MS, silent);
    assert!((22..=40).any(|id| round(&mut pool, id)));
}

/// A length that a caller only claims counts for no more than the bound on every cost, and is given back.
#[test]
fn absurd_lengths_are_bounded() {
    let mut pool = pool();
    step(&mut pool, 0, join(1));
    for id in 1..=4 {
        step(&mut pool, id, arrive(id, u64::MAX - 1));
    }
    assert_eq!(pool.endpoints()[0].load.tokens, 4 << 32);
    for id in 1..=4 {
        step(&mut pool, 10, end(id, Ended::ClientGone));
    }
    assert_eq!(pool.endpoints()[0].load.tokens, 0);
}
