//! The pool with its queue: who waits, what lets them go, and that nothing is lost on the way.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, which is its job"
)]

use std::{collections::BTreeMap, io::Cursor, sync::Arc};

use proptest::prelude::*;
use wicketgate_pool::{
    Delta, Ended, FlowControl, Input, Output, Outputs, Pool, PoolConfig, Request, RequestId, Usage,
    admission::{
        AdmissionConfig, BandConfig, EvictionConfig, Fairness, FairnessId, Limits, Outcome,
        Starvation, Wait,
        fleet::{Counters, EndpointLoad, FleetConfig, FlowService, ReplicaId},
        gate::{
            CeilingDomain, Concurrency, Detector, GateConfig, Scope, Shape, Staleness, UsageLimit,
        },
    },
    replay::{Entry, Header, VERSION, replay},
    scheduler::{
        EndpointSpec, Incarnation, NoPrefix, Sample, SchedulerPolicy, SchedulerSpec, SubsetEntry,
    },
};

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

/// At most `most` of our requests on an endpoint, whatever it says.
fn own_limit(most: u64) -> GateConfig {
    GateConfig {
        detector: Detector::Concurrency(Concurrency {
            max_concurrency: most,
            ..Concurrency::default()
        }),
        ..GateConfig::default()
    }
}

fn config(flow: FlowControl) -> Arc<PoolConfig> {
    Arc::new(PoolConfig {
        name: "main".into(),
        scheduler: SchedulerSpec::default_ours(),
        policy: SchedulerPolicy::default(),
        flow,
        record_decisions: false,
    })
}

struct Rig {
    pool: Pool,
    now: u64,
    wake: Option<u64>,
}

impl Rig {
    fn new(flow: FlowControl) -> Rig {
        Rig {
            pool: Pool::new(config(flow), 7).unwrap(),
            now: 0,
            wake: None,
        }
    }

    fn gated(gate: GateConfig) -> Rig {
        Rig::new(FlowControl {
            gate,
            ..FlowControl::default()
        })
    }

    /// Runs the input at this instant and returns what came of it, timers aside.
    fn at(&mut self, now: u64, input: Input) -> Vec<Output> {
        self.now = now;
        if matches!(input, Input::Timer) {
            self.wake = None;
        }
        let mut out = Outputs::default();
        self.pool.step(now, input, &NoPrefix, &mut out);
        assert_eq!(self.pool.check(), Ok(()));
        let mut rest = Vec::new();
        for output in out.list {
            match output {
                Output::WakeAt(at) => {
                    assert!(self.wake.is_none_or(|wake| at < wake), "asked for later");
                    self.wake = Some(at);
                }
                other => rest.push(other),
            }
        }
        rest
    }

    /// Lets time pass, with every timer that was asked for, and returns what came of them and when.
    fn until(&mut self, end: u64) -> Vec<(u64, Output)> {
        let mut all = Vec::new();
        while let Some(at) = self.wake.filter(|at| *at <= end) {
            let at = at.max(self.now);
            all.extend(
                self.at(at, Input::Timer)
                    .into_iter()
                    .map(|output| (at, output)),
            );
        }
        self.now = end;
        all
    }
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

fn drain(id: u64) -> Input {
    let address = format!("10.0.0.{id}:8000");
    let mut spec = EndpointSpec::new(address.as_str(), address.as_str());
    spec.draining = true;
    Input::Endpoints(Delta {
        change: vec![(Incarnation(id), spec)],
        ..Delta::default()
    })
}

fn request(id: u64) -> Request {
    Request {
        id: RequestId(id),
        prompt_tokens: 100,
        output_tokens: 10,
        bytes: 400,
        ..Request::default()
    }
}

fn arrive(request: Request) -> Input {
    Input::Arrive(Arc::new(request))
}

fn end(id: u64) -> Input {
    Input::End {
        id: RequestId(id),
        how: Ended::Complete(200),
        usage: None,
    }
}

fn scrape(id: u64, waiting: f64, running: f64, slots: Option<u64>) -> Input {
    Input::Telemetry {
        of: Incarnation(id),
        sample: Some(Sample {
            waiting: Some(waiting),
            running: Some(running),
            kv_usage: Some(0.1),
            max_num_seqs: slots,
            ..Sample::default()
        }),
    }
}

fn started(outputs: &[Output]) -> Vec<u64> {
    outputs
        .iter()
        .filter_map(|output| match output {
            Output::Dispatch { id, .. } => Some(id.0),
            _ => None,
        })
        .collect()
}

fn refused(outputs: &[Output]) -> Vec<(u64, Outcome)> {
    outputs
        .iter()
        .filter_map(|output| match output {
            Output::Refuse { id, why, .. } => Some((id.0, *why)),
            _ => None,
        })
        .collect()
}

#[test]
fn what_cannot_start_waits_and_goes_when_a_place_is_free() {
    let mut rig = Rig::gated(own_limit(1));
    rig.at(0, join(1));
    assert_eq!(started(&rig.at(MS, arrive(request(1)))), [1]);
    assert_eq!(rig.at(2 * MS, arrive(request(2))), []);
    assert_eq!(rig.at(3 * MS, arrive(request(3))), []);
    assert_eq!((rig.pool.running(), rig.pool.waiting()), (1, 2));
    let next = rig.at(10 * MS, end(1));
    assert_eq!(started(&next), [2]);
    assert!(matches!(next[0], Output::Dispatch { waited, .. } if waited == 8 * MS));
    assert_eq!(started(&rig.at(11 * MS, end(2))), [3]);
}

/// The headroom gate counts what was dispatched since the scrape, and frees at once what ended since.
#[test]
fn batch_slots_are_counted_between_scrapes() {
    let mut rig = Rig::gated(GateConfig::default());
    rig.at(0, join(1));
    rig.at(MS, scrape(1, 0.0, 2.0, Some(4)));
    assert_eq!(started(&rig.at(2 * MS, arrive(request(1)))), [1]);
    assert_eq!(started(&rig.at(3 * MS, arrive(request(2)))), [2]);
    assert_eq!(rig.at(4 * MS, arrive(request(3))), [], "4 of 4 slots");
    rig.at(50 * MS, scrape(1, 0.0, 4.0, Some(4)));
    assert_eq!(rig.pool.waiting(), 1);
    // The engine still says 4, but one of them was ours and is over.
    assert_eq!(started(&rig.at(60 * MS, end(1))), [3]);
    assert_eq!(rig.at(61 * MS, arrive(request(4))), []);
}

/// The choice among several goes to one that can start it, whatever the scorers prefer.
#[test]
fn a_full_endpoint_is_a_fallback_only() {
    let mut rig = Rig::gated(GateConfig::default());
    rig.at(0, join(1));
    rig.at(0, join(2));
    rig.at(MS, scrape(1, 0.0, 1.0, Some(1)));
    rig.at(MS, scrape(2, 0.0, 7.0, Some(8)));
    for id in 1..=20 {
        let outputs = rig.at((id + 1) * MS, arrive(request(id)));
        let Output::Dispatch { decision, .. } = &outputs[0] else {
            panic!("{outputs:?}");
        };
        assert_eq!(decision.targets[0].id, Incarnation(2));
        rig.at((id + 1) * MS, end(id));
    }
}

/// C23: requests wait for the first endpoint that is ready and was scraped, then go by policy order, paced.
#[test]
fn an_empty_pool_holds_and_releases_in_order() {
    let mut rig = Rig::new(FlowControl::default());
    for (id, priority) in [(1, 0), (2, 10), (3, 0)] {
        let waiting = Request {
            priority,
            ttl: Some(30 * S),
            ..request(id)
        };
        assert_eq!(rig.at(id * MS, arrive(waiting)), []);
    }
    let view = rig.pool.queue(4 * MS);
    assert_eq!(view.requests, 3);
    assert_eq!(
        view.saturation, None,
        "an empty pool is neither full nor free"
    );
    rig.at(5 * S, join(1));
    assert_eq!(rig.until(6 * S - 1), [], "it was not scraped yet");
    let mut order = started(&rig.at(6 * S, scrape(1, 0.0, 0.0, Some(64))));
    let first = order.len();
    let later = rig.until(7 * S);
    order.extend(
        later
            .iter()
            .flat_map(|(_, output)| started(std::slice::from_ref(output))),
    );
    assert_eq!(order, [2, 1, 3]);
    assert_eq!(first, 1, "not all at once");
    assert_eq!(later[0].0, 6 * S + 20 * MS);
}

#[test]
fn an_empty_pool_ends_waits_with_503() {
    let mut rig = Rig::new(FlowControl::default());
    for id in 1..=3 {
        let waiting = Request {
            ttl: Some(30 * S),
            ..request(id)
        };
        rig.at(0, arrive(waiting));
    }
    assert_eq!(rig.until(30 * S - 1), []);
    let ended: Vec<_> = rig.until(40 * S);
    assert_eq!(ended.len(), 3);
    for (at, output) in ended {
        assert_eq!(at, 30 * S);
        let (_, why) = refused(&[output])[0];
        assert_eq!(
            (why, why.status()),
            (Outcome::EvictedNoEndpoints, Some(503))
        );
    }
    assert_eq!(rig.pool.queue(40 * S).requests, 0);
}

/// C13: an endpoint that is going away gets nothing new at once; what it runs stays counted; when all go, requests wait.
#[test]
fn draining_endpoints_get_nothing_new() {
    let mut rig = Rig::gated(own_limit(1000));
    rig.at(0, join(1));
    rig.at(0, join(2));
    let outputs = rig.at(MS, arrive(request(1000)));
    let Output::Dispatch { decision, .. } = &outputs[0] else {
        panic!("{outputs:?}");
    };
    let (first, other) = (decision.targets[0].id.0, 3 - decision.targets[0].id.0);
    rig.at(2 * MS, drain(first));
    for id in 1..=100 {
        let outputs = rig.at(3 * MS, arrive(request(id)));
        let Output::Dispatch { decision, .. } = &outputs[0] else {
            panic!("{outputs:?}");
        };
        assert!(decision.targets.iter().all(|target| target.id.0 == other));
    }
    assert_eq!(rig.pool.running(), 101);
    rig.at(4 * MS, drain(other));
    assert_eq!(rig.at(5 * MS, arrive(request(101))), []);
    assert_eq!(rig.pool.waiting(), 1);
    rig.at(6 * MS, leave(first));
    rig.at(6 * MS, leave(other));
    assert_eq!((rig.pool.running(), rig.pool.orphaned()), (101, 101));
    assert_eq!(started(&rig.at(7 * MS, join(3))), [101]);
}

/// A gate over the whole pool judges it by the endpoints that stay: an idle one that is going away lends no room, a full one
/// takes none.
#[test]
fn what_drains_is_no_part_of_the_pool() {
    let mut gate = own_limit(2);
    if let Detector::Concurrency(detector) = &mut gate.detector {
        detector.scope = Scope::Pool;
    }
    let mut rig = Rig::gated(gate.clone());
    rig.at(0, join(1));
    rig.at(0, join(2));
    rig.at(MS, drain(1));
    let all: Vec<u64> = (1..=6)
        .flat_map(|id| started(&rig.at(2 * MS, arrive(request(id)))))
        .collect();
    assert_eq!((all, rig.pool.waiting()), (vec![1, 2], 4));

    let mut rig = Rig::gated(gate);
    rig.at(0, join(1));
    for id in 1..=2 {
        assert_eq!(started(&rig.at(MS, arrive(request(id)))), [id]);
    }
    rig.at(2 * MS, join(2));
    rig.at(2 * MS, drain(1));
    assert_eq!(rig.pool.saturation(2 * MS).effective(), Some(0.0));
    for id in 3..=4 {
        assert_eq!(started(&rig.at(3 * MS, arrive(request(id)))), [id]);
    }
    assert!(started(&rig.at(3 * MS, arrive(request(5)))).is_empty());
}

/// One request of a priority that nobody listed changes the ceilings of others only while it is there.
#[test]
fn a_stray_priority_is_no_rank_for_good() {
    let mut flow = FlowControl {
        gate: GateConfig {
            usage_limit: UsageLimit::PriorityHoldback {
                shape: Shape::Linear,
                domain: CeilingDomain::Rank,
                min_ceiling: 0.5,
                max_ceiling: 1.0,
            },
            ..own_limit(4)
        },
        ..FlowControl::default()
    };
    let listed = [10, 0].map(|priority| (priority, BandConfig::default()));
    flow.admission.bands = listed.to_vec();
    let mut rig = Rig::new(flow);
    let of = |id, priority| Request {
        priority,
        ..request(id)
    };
    rig.at(0, join(1));
    assert_eq!(started(&rig.at(MS, arrive(of(1, i32::MAX)))), [1]);
    // Of three ranks the middle one may fill three of four places.
    let some: Vec<u64> = (2..=5)
        .flat_map(|id| started(&rig.at(2 * MS, arrive(of(id, 10)))))
        .collect();
    assert_eq!(some, [2, 3]);
    // The stray one is gone, and of two ranks the upper one may fill the pool: also with those that were refused.
    assert_eq!(started(&rig.at(3 * MS, end(1))), [4, 5]);
    assert!(started(&rig.at(4 * MS, arrive(of(6, 0)))).is_empty());
}

/// S07: a restriction that leaves nobody is said at once; a waiting one blocks nobody else.
#[test]
fn a_restricted_request_blocks_nobody_else() {
    let mut rig = Rig::gated(own_limit(1));
    rig.at(0, join(1));
    rig.at(0, join(2));
    let only = |id, address: &str| Request {
        subset: Some(vec![SubsetEntry::parse(address).unwrap()]),
        ..request(id)
    };
    let outside = rig.at(MS, arrive(only(1, "10.0.0.9:8000")));
    assert_eq!(refused(&outside), [(1, Outcome::RejectedSubsetEmpty)]);
    let nobody = Request {
        subset: Some(Vec::new()),
        ..request(2)
    };
    assert_eq!(
        refused(&rig.at(MS, arrive(nobody))),
        [(2, Outcome::RejectedSubsetEmpty)]
    );
    assert_eq!(started(&rig.at(MS, arrive(only(3, "10.0.0.1:8000")))), [3]);
    assert_eq!(rig.at(MS, arrive(only(4, "10.0.0.1:8000"))), []);
    assert_eq!(
        started(&rig.at(MS, arrive(request(5)))),
        [5],
        "the other endpoint is free"
    );
    assert_eq!(started(&rig.at(2 * MS, end(5))), [] as [u64; 0]);
    assert_eq!(started(&rig.at(3 * MS, end(3))), [4]);
}

/// A breaker says no at once, for those that wait too.
#[test]
fn an_ejected_pool_refuses_who_waits() {
    let mut rig = Rig::gated(own_limit(5));
    rig.at(0, join(1));
    for id in 1..=5 {
        assert_eq!(started(&rig.at(MS, arrive(request(id)))), [id]);
    }
    assert_eq!(rig.at(MS, arrive(request(6))), []);
    let mut outputs = Vec::new();
    for id in 1..=5 {
        let failed = Input::End {
            id: RequestId(id),
            how: Ended::UpstreamFailed,
            usage: None,
        };
        outputs.extend(rig.at(2 * MS, failed));
        if id == 1 {
            assert_eq!(
                started(&outputs),
                [6],
                "one place was free before the ejection"
            );
        }
    }
    let outputs = rig.at(3 * MS, arrive(request(7)));
    assert_eq!(refused(&outputs), [(7, Outcome::RejectedAllEjected)]);
    // After the cool-down one request may probe.
    assert_eq!(started(&rig.at(10 * S, arrive(request(8)))), [8]);
}

#[test]
fn a_cancelled_wait_leaves_at_once() {
    let mut rig = Rig::gated(own_limit(1));
    rig.at(0, join(1));
    rig.at(0, arrive(request(1)));
    rig.at(0, arrive(request(2)));
    rig.at(1, Input::Cancel(RequestId(2)));
    assert_eq!((rig.pool.waiting(), rig.pool.totals().cancelled), (0, 1));
    // Twice, of a running one, of nobody: nothing.
    for id in [2, 1, 77] {
        rig.at(2, Input::Cancel(RequestId(id)));
    }
    assert_eq!((rig.pool.running(), rig.pool.totals().cancelled), (1, 1));
}

/// C17: the header only shortens, the band's wait holds without one, and both end to the nanosecond.
#[test]
fn waits_end_exactly() {
    let flow = FlowControl {
        gate: own_limit(1),
        admission: AdmissionConfig {
            default_band: BandConfig {
                ttl: Wait::AtMost(8 * S),
                ..BandConfig::default()
            },
            ..AdmissionConfig::default()
        },
        ..FlowControl::default()
    };
    let mut rig = Rig::new(flow);
    rig.at(0, join(1));
    rig.at(0, arrive(request(1)));
    for (id, ttl) in [(2, Some(3 * S)), (3, Some(3600 * S)), (4, None)] {
        let waiting = Request { ttl, ..request(id) };
        rig.at(id, arrive(waiting));
    }
    let ends: Vec<_> = rig
        .until(20 * S)
        .into_iter()
        .map(|(at, output)| (at, refused(&[output])[0]))
        .collect();
    let late = Outcome::EvictedTtl;
    assert_eq!(
        ends,
        [
            (3 * S + 2, (2, late)),
            (8 * S + 3, (3, late)),
            (8 * S + 4, (4, late)),
        ]
    );
}

/// C22: what old readings mean is declared, for the gate inside the pool too, and time alone applies it.
#[test]
fn staleness_is_a_declared_choice() {
    let rig = |staleness| {
        let mut rig = Rig::gated(GateConfig {
            staleness,
            ..GateConfig::default()
        });
        rig.at(0, join(1));
        rig.at(0, scrape(1, 0.0, 1.0, Some(1)));
        assert_eq!(rig.at(MS, arrive(request(1))), [], "full by its own word");
        rig
    };
    let mut own = rig(Staleness::OwnCount);
    let went = own.until(10 * S);
    assert_eq!(went.len(), 1);
    assert_eq!(
        went[0].0,
        2 * S + 1,
        "the instant at which the reading is old"
    );
    assert_eq!(started(&[went[0].1.clone()]), [1]);
    let mut ignore = rig(Staleness::Ignore);
    assert_eq!(ignore.until(10 * S).len(), 1);
    let mut saturated = rig(Staleness::Saturated);
    assert_eq!(saturated.until(10 * S), []);
    assert_eq!(saturated.pool.waiting(), 1);
}

/// What a request really cost is settled with its flow: who was charged for cached tokens gets them back.
#[test]
fn usage_settles_the_charge() {
    let mut rig = Rig::gated(own_limit(1));
    rig.at(0, join(1));
    let of = |id, fairness: &str| Request {
        fairness: FairnessId::new(fairness),
        prompt_tokens: 1000,
        ..request(id)
    };
    rig.at(0, arrive(of(1, "cached")));
    for id in [2, 4, 6, 8] {
        rig.at(1, arrive(of(id, "cached")));
        rig.at(1, arrive(of(id + 1, "plain")));
    }
    let mut order = Vec::new();
    let mut current = 1;
    while let Some(next) = {
        let cached = current == 1 || current % 2 == 0;
        let usage = Usage {
            prompt_tokens: Some(1000),
            cached_tokens: Some(if cached { 990 } else { 0 }),
            completion_tokens: Some(10),
        };
        let over = Input::End {
            id: RequestId(current),
            how: Ended::Complete(200),
            usage: Some(usage),
        };
        started(&rig.at(2 + current, over)).first().copied()
    } {
        order.push(next % 2);
        current = next;
    }
    // All of the cheap flow's four go before the dear flow's third.
    let last_cheap = order.iter().rposition(|flow| *flow == 0).unwrap();
    let dear_before = order[..last_cheap]
        .iter()
        .filter(|flow| **flow == 1)
        .count();
    assert!(dear_before <= 2, "{order:?}");
}

#[test]
fn a_full_queue_refuses_and_a_higher_band_displaces() {
    let flow = FlowControl {
        gate: own_limit(1),
        admission: AdmissionConfig {
            limits: Limits {
                max_requests: Some(2),
                ..Limits::default()
            },
            ..AdmissionConfig::default()
        },
        ..FlowControl::default()
    };
    let mut rig = Rig::new(flow);
    rig.at(0, join(1));
    rig.at(0, arrive(request(1)));
    rig.at(1, arrive(request(2)));
    rig.at(2, arrive(request(3)));
    let full = rig.at(3, arrive(request(4)));
    assert_eq!(refused(&full), [(4, Outcome::RejectedSaturated)]);
    let urgent = Request {
        priority: 5,
        ..request(5)
    };
    let displaced = rig.at(4, arrive(urgent));
    assert_eq!(refused(&displaced), [(3, Outcome::EvictedPriority)]);
    assert_eq!(started(&rig.at(5, end(1))), [5]);
}

#[test]
fn closing_drains_or_refuses() {
    for drain in [true, false] {
        let mut rig = Rig::gated(own_limit(1));
        rig.at(0, join(1));
        rig.at(0, arrive(request(1)));
        rig.at(1, arrive(request(2)));
        let closed = rig.at(2, Input::Close { drain });
        let newcomer = rig.at(3, arrive(request(3)));
        assert_eq!(refused(&newcomer), [(3, Outcome::RejectedShuttingDown)]);
        if drain {
            assert_eq!(closed, []);
            assert_eq!(started(&rig.at(4, end(1))), [2]);
        } else {
            assert_eq!(refused(&closed), [(2, Outcome::EvictedShuttingDown)]);
            assert_eq!(rig.at(4, end(1)), []);
        }
    }
}

/// A blocked higher band has sheddable requests ended, newest first, few at a time, each once.
#[test]
fn eviction_makes_room_for_a_blocked_band() {
    let flow = FlowControl {
        gate: own_limit(3),
        admission: AdmissionConfig {
            eviction: EvictionConfig {
                enabled: true,
                max_per_decision: 1,
                grace: 10 * MS,
                timeout: 10 * S,
            },
            ..AdmissionConfig::default()
        },
        ..FlowControl::default()
    };
    let mut rig = Rig::new(flow);
    rig.at(0, join(1));
    for id in 1..=3 {
        let batch = Request {
            priority: -1,
            ..request(id)
        };
        assert_eq!(started(&rig.at(id, arrive(batch))), [id]);
    }
    let urgent = Request {
        priority: 10,
        ..request(9)
    };
    let evict = |id| Output::Evict { id: RequestId(id) };
    assert_eq!(rig.at(10, arrive(urgent)), [evict(3)]);
    assert_eq!(rig.at(11, Input::Timer), [], "the first is not over yet");
    let over = Input::End {
        id: RequestId(3),
        how: Ended::Evicted,
        usage: None,
    };
    assert_eq!(started(&rig.at(12, over)), [9]);
}

/// A reload keeps who waits, and its own limits.
#[test]
fn a_reload_keeps_who_waits() {
    let mut rig = Rig::gated(own_limit(1));
    rig.at(0, join(1));
    rig.at(0, arrive(request(1)));
    rig.at(1, arrive(request(2)));
    let wider = config(FlowControl {
        gate: own_limit(2),
        admission: AdmissionConfig {
            starvation: Starvation::Strict,
            default_band: BandConfig {
                fairness: Fairness::RoundRobin,
                ..BandConfig::default()
            },
            ..AdmissionConfig::default()
        },
        ..FlowControl::default()
    });
    assert_eq!(started(&rig.at(2, Input::Config(wider))), [2]);
    let mut broken = FlowControl::default();
    broken.gate.own_limit = 0;
    let outputs = rig.at(3, Input::Config(config(broken)));
    assert!(matches!(&outputs[..], [Output::ConfigRefused(why)] if why.contains("ownLimit")));
}

/// C15: a burst with no scrape in between spreads by own counts.
#[test]
fn a_burst_spreads_by_own_counts() {
    let mut rig = Rig::gated(GateConfig::default());
    for id in 1..=8 {
        rig.at(0, join(id));
        rig.at(0, scrape(id, 0.0, 0.0, Some(256)));
    }
    for id in 1..=480 {
        let outputs = rig.at(id * 100_000, arrive(request(id)));
        assert_eq!(started(&outputs), [id]);
    }
    for row in rig.pool.endpoints() {
        assert!(
            row.load.requests <= 120,
            "{} has {}",
            row.name,
            row.load.requests
        );
    }
}

/// INV-Q12 and INV-Q14 in the pool: what others have at an endpoint counts there, and who hears nobody keeps to its share.
#[test]
fn other_replicas_count() {
    let mut rig = Rig::gated(own_limit(4));
    rig.at(0, join(1));
    let config = FleetConfig {
        members: 2,
        ..FleetConfig::default()
    };
    let me = ReplicaId(1);
    rig.at(0, Input::Fleet { me, config });
    // Nobody is heard yet: half of 4.
    for id in 1..=3 {
        rig.at(MS, arrive(request(id)));
    }
    assert_eq!((rig.pool.running(), rig.pool.waiting()), (2, 1));
    let says = |number, requests| {
        Input::Peer(Arc::new(Counters {
            replica: ReplicaId(2),
            number,
            hears: vec![me],
            linked: true,
            running: u64::from(requests),
            endpoints: vec![EndpointLoad {
                endpoint: "10.0.0.1:8000".into(),
                requests,
                tokens: 0,
            }],
            ..Counters::default()
        }))
    };
    assert_eq!(rig.at(10 * MS, says(1, 2)), [], "2 here and 2 there are 4");
    assert_eq!(started(&rig.at(20 * MS, says(2, 1))), [3]);
    assert_eq!(rig.at(21 * MS, arrive(request(4))), []);
    // The other falls silent: its requests count no more, and we keep to our half.
    assert_eq!(rig.until(3 * S), []);
    rig.at(3 * S, end(1));
    assert_eq!((rig.pool.running(), rig.pool.waiting()), (2, 1));
    let view = rig.pool.fleet().unwrap();
    assert_eq!(
        (view.members, view.hearing, view.totals.fallbacks),
        (2, 0, 1)
    );
    let told = rig.at(3 * S, Input::Tell);
    assert!(
        matches!(&told[..], [Output::Tell(said)] if said.running == 2 && said.waiting.requests == 1)
    );
}

#[derive(Clone, Debug)]
enum Op {
    Join,
    Leave(usize),
    Drain(usize),
    Arrive {
        tenant: u8,
        priority: i32,
        tokens: u64,
        ttl: Option<u64>,
        only: Option<u8>,
    },
    Cancel(usize),
    Served(usize, usize),
    Failed(usize, usize, bool),
    FirstToken(usize),
    End(usize, Ended, Option<u64>),
    Scrape(usize, Option<(u8, u8, u8)>),
    Reload(u64),
    Close,
    Fleet,
    Tell,
    Peer {
        replica: u8,
        number: u8,
        requests: u32,
        service: i32,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let how = prop_oneof![
        3 => Just(Ended::Complete(200)),
        1 => Just(Ended::Complete(500)),
        1 => Just(Ended::Complete(503)),
        1 => Just(Ended::ClientGone),
        1 => Just(Ended::UpstreamFailed),
        1 => Just(Ended::Evicted),
        1 => Just(Ended::Dropped),
    ];
    let arrive = (
        0..4_u8,
        -2..3_i32,
        prop_oneof![9 => 0..5000_u64, 1 => Just(u64::MAX)],
        prop::option::of(1..3000_u64),
        prop::option::weighted(0.2, 1..6_u8),
    );
    prop_oneof![
        10 => Just(Op::Join),
        5 => (0..8_usize).prop_map(Op::Leave),
        5 => (0..8_usize).prop_map(Op::Drain),
        80 => arrive.prop_map(|(tenant, priority, tokens, ttl, only)| Op::Arrive { tenant, priority, tokens, ttl, only }),
        10 => (0..64_usize).prop_map(Op::Cancel),
        8 => (0..32_usize, 0..8_usize).prop_map(|(r, e)| Op::Served(r, e)),
        8 => (0..32_usize, 0..8_usize, any::<bool>()).prop_map(|(r, e, c)| Op::Failed(r, e, c)),
        15 => (0..32_usize).prop_map(Op::FirstToken),
        50 => (0..32_usize, how, prop::option::of(0..4000_u64)).prop_map(|(r, how, used)| Op::End(r, how, used)),
        30 => (0..8_usize, prop::option::of((0..3_u8, 0..6_u8, 0..100_u8))).prop_map(|(e, s)| Op::Scrape(e, s)),
        2 => (1..6_u64).prop_map(Op::Reload),
        1 => Just(Op::Close),
        2 => Just(Op::Fleet),
        5 => Just(Op::Tell),
        10 => (2..5_u8, any::<u8>(), 0..4_u32, any::<i32>())
            .prop_map(|(replica, number, requests, service)| Op::Peer { replica, number, requests, service }),
    ]
}

fn tight(own: u64) -> FlowControl {
    FlowControl {
        admission: AdmissionConfig {
            limits: Limits {
                max_requests: Some(12),
                max_bytes: Some(20_000),
                max_tokens: None,
            },
            default_ttl: Some(5 * S),
            max_flows: 3,
            max_bands: 3,
            starvation: Starvation::Aging {
                after: S,
                share: 0.2,
            },
            eviction: EvictionConfig {
                enabled: true,
                ..EvictionConfig::default()
            },
            ..AdmissionConfig::default()
        },
        gate: GateConfig {
            own_limit: u32::try_from(own).unwrap(),
            first_scrape_grace: S,
            ..GateConfig::default()
        },
        ..FlowControl::default()
    }
}

/// Every request's story so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Story {
    Waits,
    Runs,
    Over,
}

struct Run {
    rig: Rig,
    stories: BTreeMap<u64, Story>,
    lives: Vec<u64>,
    life: u64,
    log: Vec<String>,
}

impl Run {
    fn new() -> Run {
        let header = Header {
            version: VERSION,
            config: config(tight(2)),
            seed: 7,
        };
        Run {
            rig: Rig::new(tight(2)),
            stories: BTreeMap::new(),
            lives: Vec::new(),
            life: 0,
            log: vec![serde_json::to_string(&header).unwrap()],
        }
    }

    fn pick(&self, story: Story, index: usize) -> Option<u64> {
        let of: Vec<u64> = self
            .stories
            .iter()
            .filter(|(_, s)| **s == story)
            .map(|(id, _)| *id)
            .collect();
        (!of.is_empty()).then(|| of[index % of.len()])
    }

    fn life(&self, index: usize) -> Option<u64> {
        (!self.lives.is_empty()).then(|| self.lives[index % self.lives.len()])
    }

    /// Steps, writes it down, and holds each output against the story of its request.
    fn step(&mut self, now: u64, input: Input) {
        let mut out = Outputs::default();
        self.rig.now = now;
        if matches!(input, Input::Timer) {
            self.rig.wake = None;
        }
        self.rig.pool.step(now, input.clone(), &NoPrefix, &mut out);
        assert_eq!(self.rig.pool.check(), Ok(()));
        for output in &out.list {
            match output {
                Output::Dispatch { id, decision, .. } => {
                    assert_eq!(self.stories.insert(id.0, Story::Runs), Some(Story::Waits));
                    let dead = decision
                        .targets
                        .iter()
                        .find(|to| !self.lives.contains(&to.id.0));
                    assert_eq!(dead, None, "a dead target");
                }
                Output::Refuse { id, why, .. } => {
                    assert_eq!(self.stories.insert(id.0, Story::Over), Some(Story::Waits));
                    assert!(why.status().is_some(), "{why:?} has no answer");
                }
                Output::Evict { id } => assert_eq!(self.stories[&id.0], Story::Runs),
                Output::WakeAt(at) => self.rig.wake = Some(*at),
                Output::Tell(said) => assert_eq!(said.replica, ReplicaId(1)),
                Output::ConfigRefused(why) => panic!("{why}"),
            }
        }
        let entry = Entry {
            now,
            input,
            prefix: Vec::new(),
            outputs: out.list,
        };
        self.log.push(serde_json::to_string(&entry).unwrap());
    }

    fn apply(&mut self, now: u64, op: &Op, next: u64) {
        while let Some(at) = self.rig.wake.filter(|at| *at <= now) {
            let at = at.max(self.rig.now);
            self.step(at, Input::Timer);
        }
        let input = match op {
            Op::Join => {
                self.life += 1;
                self.lives.push(self.life);
                join(self.life)
            }
            Op::Leave(e) => {
                let Some(id) = self.life(*e) else { return };
                self.lives.retain(|other| *other != id);
                leave(id)
            }
            Op::Drain(e) => match self.life(*e) {
                Some(id) => drain(id),
                None => return,
            },
            Op::Arrive {
                tenant,
                priority,
                tokens,
                ttl,
                only,
            } => {
                self.stories.insert(next, Story::Waits);
                arrive(Request {
                    priority: *priority,
                    fairness: FairnessId::new(format!("t{tenant}")),
                    prompt_tokens: *tokens,
                    ttl: ttl.map(|ms| ms * MS),
                    subset: only
                        .map(|ip| vec![SubsetEntry::parse(&format!("10.0.0.{ip}:8000")).unwrap()]),
                    ..request(next)
                })
            }
            Op::Cancel(r) => {
                let Some(id) = self.pick(Story::Waits, *r) else {
                    return;
                };
                self.stories.insert(id, Story::Over);
                Input::Cancel(RequestId(id))
            }
            Op::Served(r, e) => match (self.pick(Story::Runs, *r), self.life(*e)) {
                (Some(id), Some(life)) => Input::Served {
                    id: RequestId(id),
                    by: Incarnation(life),
                },
                _ => return,
            },
            Op::Failed(r, e, certain) => match (self.pick(Story::Runs, *r), self.life(*e)) {
                (Some(id), Some(life)) => Input::Failed {
                    id: RequestId(id),
                    at: Incarnation(life),
                    certain: *certain,
                },
                _ => return,
            },
            Op::FirstToken(r) => match self.pick(Story::Runs, *r) {
                Some(id) => Input::FirstToken(RequestId(id)),
                None => return,
            },
            Op::End(r, how, used) => {
                let Some(id) = self.pick(Story::Runs, *r) else {
                    return;
                };
                self.stories.insert(id, Story::Over);
                Input::End {
                    id: RequestId(id),
                    how: *how,
                    usage: used.map(|tokens| Usage {
                        prompt_tokens: Some(tokens),
                        completion_tokens: Some(tokens / 10),
                        cached_tokens: None,
                    }),
                }
            }
            Op::Scrape(e, sample) => {
                let Some(id) = self.life(*e) else { return };
                match sample {
                    None => Input::Telemetry {
                        of: Incarnation(id),
                        sample: None,
                    },
                    Some((waiting, running, _)) => {
                        scrape(id, f64::from(*waiting), f64::from(*running), Some(4))
                    }
                }
            }
            Op::Reload(own) => Input::Config(config(tight(*own))),
            Op::Close => Input::Close { drain: true },
            Op::Fleet => Input::Fleet {
                me: ReplicaId(1),
                config: FleetConfig {
                    members: 3,
                    ..FleetConfig::default()
                },
            },
            Op::Tell => Input::Tell,
            Op::Peer {
                replica,
                number,
                requests,
                service,
            } => Input::Peer(Arc::new(Counters {
                replica: ReplicaId(u64::from(*replica)),
                number: u64::from(*number),
                hears: vec![ReplicaId(1)],
                endpoints: vec![EndpointLoad {
                    endpoint: "10.0.0.1:8000".into(),
                    requests: *requests,
                    tokens: u64::from(*requests),
                }],
                lives: 1,
                flows: vec![FlowService {
                    priority: 0,
                    fairness: FairnessId::new("t1"),
                    weight: 1.0,
                    life: 1,
                    service: i64::from(*service),
                }],
                ..Counters::default()
            })),
        };
        self.step(now, input);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// One answer per request, never to one that is over; counts hold after every step; in the end nothing is left; and
    /// the log replays to the same outputs.
    #[test]
    fn nothing_is_lost_and_the_log_replays(ops in prop::collection::vec((0..400_u16, op()), 0..250)) {
        let mut run = Run::new();
        let mut now = 0;
        for (number, (pause, op)) in ops.iter().enumerate() {
            now += u64::from(*pause) * MS;
            run.apply(now, op, number as u64 + 1);
        }
        let report = replay(Cursor::new(run.log.join("\n")), |_| ()).unwrap();
        prop_assert_eq!(report.steps as usize, run.log.len() - 1);
        prop_assert_eq!(report.running as usize, run.rig.pool.running());
        prop_assert_eq!(report.waiting as usize, run.rig.pool.waiting());
        // Time ends every wait, the end every run.
        let mut later = now;
        for _ in 0..1000 {
            let Some(at) = run.rig.wake else { break };
            later = at.max(later);
            run.step(later, Input::Timer);
        }
        while let Some(id) = run.pick(Story::Runs, 0) {
            run.stories.insert(id, Story::Over);
            run.step(later, end(id));
        }
        prop_assert_eq!((run.rig.pool.running(), run.rig.pool.waiting()), (0, 0));
        prop_assert_eq!(run.rig.pool.orphaned(), 0);
        prop_assert!(run.stories.values().all(|story| *story == Story::Over));
    }
}
