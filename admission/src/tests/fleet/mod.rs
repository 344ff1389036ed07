//! Several replicas: the rules one by one with their right values, and the simulation of [`sim`].

pub(super) mod sim;

use std::sync::Arc;

use proptest::prelude::*;

use sim::{Scene, seeded};

use super::rig::{drained, fair, item, ms, open, queues};
use crate::{
    Admission, AdmissionConfig, Cost, Fairness, FairnessId, Item, Limits, Outcome, Starvation,
    fault::{Fault, with},
    fleet::{
        Counters, EndpointLoad, Fleet, FleetConfig, FleetState, FlowService, Heard, Queued,
        ReplicaId,
    },
    gate::EndpointView,
};

const ME: ReplicaId = ReplicaId(1);
const OTHER: ReplicaId = ReplicaId(2);

fn fleet(members: u32) -> Fleet {
    let config = FleetConfig {
        members,
        ..FleetConfig::default()
    };
    Fleet::new(config, ME).unwrap()
}

fn shared(fairness: Fairness) -> Admission {
    queues(super::rig::alike(&fair(fairness), Starvation::Strict))
}

fn vtc() -> Fairness {
    Fairness::Vtc { max_lag: 1 << 18 }
}

/// A message of a peer that hears us and everybody else.
fn said(number: u64) -> Counters {
    Counters {
        replica: OTHER,
        number,
        hears: vec![ME],
        linked: true,
        ..Counters::default()
    }
}

fn served(flow: &str, life: u64, service: i64) -> FlowService {
    FlowService {
        priority: 0,
        fairness: FairnessId::new(flow),
        weight: 1.0,
        life,
        service,
    }
}

fn busy(endpoint: &str, requests: u32, tokens: u64) -> EndpointLoad {
    EndpointLoad {
        endpoint: Arc::from(endpoint),
        requests,
        tokens,
    }
}

/// Puts so many requests of 100 tokens from each of the flows `a` and `b` in the queue.
fn put_both(queues: &mut Admission, each: u64) {
    for n in 0..each {
        for (at, flow) in ["a", "b"].into_iter().enumerate() {
            let cost = Cost {
                uncached_input: 100,
                output: 0,
            };
            let item = Item {
                cost,
                ..item(2 * n + at as u64 + 1, 0, flow)
            };
            assert_eq!(queues.enqueue(ms(1), item, &mut Vec::new()), Ok(()));
        }
    }
}

/// How many requests of `b` go before the first of `a`.
fn lead_of_b(queues: &mut Admission) -> usize {
    let order = drained(queues, ms(1));
    order.iter().take_while(|id| **id % 2 == 0).count()
}

/// What a peer serves counts once, whatever comes twice, late, or from before it was first heard.
pub(super) fn service_counts_once() {
    for fairness in [vtc(), Fairness::Drr { quantum: 100 }] {
        let (mut queues, mut fleet) = (shared(fairness), fleet(2));
        put_both(&mut queues, 30);
        let tell = |number, service, lives| Counters {
            flows: vec![served("a", 1, service)],
            lives,
            ..said(number)
        };
        let mut hear = |said: &Counters| fleet.hear(ms(1), said, &mut queues);
        // What was served before is nobody's debt here.
        assert_eq!(hear(&tell(5, 50_000, 1)), Heard::New);
        assert_eq!(hear(&tell(7, 50_600, 1)), Heard::New);
        assert_eq!(hear(&tell(7, 50_600, 1)), Heard::Old);
        assert_eq!(hear(&tell(6, 50_300, 1)), Heard::Old);
        assert_eq!(hear(&tell(8, 51_000, 1)), Heard::New);
        queues.audit().unwrap();
        assert_eq!(
            lead_of_b(&mut queues),
            10,
            "{fairness:?}: a got 1000 tokens elsewhere"
        );
    }
}

/// Requests of peers fill endpoints while they are fresh; who is cut off has its share.
pub(super) fn limits_are_common() {
    let (mut queues, mut fleet) = (shared(vtc()), fleet(3));
    let own = EndpointView {
        own_requests: 2,
        own_tokens: 20,
        unseen_requests: 1,
        unseen_tokens: 10,
        ..EndpointView::default()
    };
    let view = |fleet: &Fleet| {
        let view = fleet.view("e", own);
        (
            view.own_requests,
            view.own_tokens,
            view.unseen_requests,
            view.unseen_tokens,
        )
    };
    fleet.attach(&mut queues);
    assert_eq!(
        (fleet.state(), view(&fleet)),
        (FleetState::Share, (6, 60, 3, 30))
    );
    let third = |number| Counters {
        replica: ReplicaId(3),
        ..said(number)
    };
    let loaded = Counters {
        endpoints: vec![busy("e", 4, 400), busy("f", 1, 1)],
        ..said(1)
    };
    fleet.hear(ms(1), &loaded, &mut queues);
    assert_eq!(fleet.state(), FleetState::Share, "one is missing");
    // Whoever is heard is counted also then.
    assert_eq!(view(&fleet), (6, 420, 5, 410));
    fleet.hear(ms(2), &third(1), &mut queues);
    assert_eq!(
        (fleet.state(), view(&fleet)),
        (FleetState::Whole, (6, 420, 5, 410))
    );
    // A reading shows them; what comes after it is unseen.
    fleet.read("e");
    assert_eq!(view(&fleet), (6, 420, 1, 10));
    let more = Counters {
        endpoints: vec![busy("e", 7, 650)],
        ..said(2)
    };
    fleet.hear(ms(3), &more, &mut queues);
    assert_eq!(view(&fleet), (9, 670, 4, 260));
    // The third falls silent a second after its only message; until then it counts.
    let at = ms(1002);
    assert_eq!(fleet.wake_at(), Some(at + 1));
    assert!(!fleet.pass(at, &mut queues) && fleet.state() == FleetState::Whole);
    assert!(fleet.pass(at + 1, &mut queues));
    assert_eq!(
        (fleet.state(), fleet.totals().fallbacks),
        (FleetState::Share, 1)
    );
    // Then the other one too, and its requests are no longer known.
    assert!(fleet.pass(ms(1003) + 1, &mut queues));
    assert_eq!(
        (view(&fleet), fleet.hearing(), fleet.wake_at()),
        ((6, 60, 3, 30), 0, None)
    );
    // They come back.
    fleet.hear(ms(1004), &said(3), &mut queues);
    fleet.hear(ms(1004), &third(2), &mut queues);
    assert_eq!(
        (fleet.state(), view(&fleet)),
        (FleetState::Whole, (2, 20, 1, 10))
    );
}

/// The rules that one replica keeps by itself.
pub(super) fn rules_hold() {
    service_counts_once();
    refunds_count_as_far_as_charges_did();
    limits_are_common();
}

/// Tenants share in tokens over all replicas, and limits are common, also while one of three is gone.
pub(super) fn replicas_hold(seed: u64) -> Result<(), String> {
    let policies = [vtc(), Fairness::Drr { quantum: 500 }];
    for scene in [Scene::Everywhere, Scene::Partly] {
        let fairness = policies[seed as usize % 2];
        let report = seeded(scene, fairness, seed % 3 == 2, seed)?;
        println!("{scene:?} {fairness:?} {report:?}");
        if report.jain.iter().any(|jain| *jain < 0.98) {
            return Err(format!("INV-Q13: {scene:?} {fairness:?}: {report:?}"));
        }
        if report.fallbacks < 2 {
            return Err(format!(
                "INV-Q14: not both that were left said so: {report:?}"
            ));
        }
    }
    Ok(())
}

#[test]
fn replicas_act_as_one() {
    for seed in 0..6 {
        replicas_hold(seed).unwrap();
    }
}

/// That is the exchange's doing: without it a tenant that waits at every replica gets a share of each.
#[test]
fn replicas_apart_do_not() {
    let report = with(Fault::PeersServiceIgnored, || {
        seeded(Scene::Partly, vtc(), false, 1)
    });
    let report = report.unwrap();
    println!("{report:?}");
    assert!(report.jain[0] < 0.9, "{report:?}");
}

#[test]
fn what_peers_serve_counts_once() {
    service_counts_once();
}

/// A peer charges a flow far more than it can come to owe, and gives most of it back when the requests end early: the
/// flow is as far ahead as what it really got there, and no refund makes it richer than `max_debt`.
fn refunds_count_as_far_as_charges_did() {
    let config = FleetConfig {
        members: 2,
        max_debt: 700,
        ..FleetConfig::default()
    };
    for (services, of_a) in [(&[100_000, 100][..], 9..=10), (&[i64::MIN / 2], 13..=14)] {
        let mut queues = shared(Fairness::Drr { quantum: 100 });
        let mut fleet = Fleet::new(config, ME).unwrap();
        put_both(&mut queues, 40);
        fleet.hear(0, &said(1), &mut queues);
        for (number, service) in (2..).zip(services) {
            let told = Counters {
                flows: vec![served("a", 1, *service)],
                lives: 1,
                ..said(number)
            };
            fleet.hear(0, &told, &mut queues);
        }
        let order = drained(&mut queues, ms(1));
        let first = order.iter().take(20).filter(|id| **id % 2 == 1).count();
        assert!(
            of_a.contains(&first),
            "{services:?}: {first} of the first 20"
        );
    }
}

#[test]
fn refunds_of_peers_count_as_far_as_their_charges_did() {
    refunds_count_as_far_as_charges_did();
}

#[test]
fn limits_hold_over_replicas() {
    limits_are_common();
}

#[test]
fn a_broken_link_between_two_others_ends_the_whole() {
    let (mut queues, mut fleet) = (shared(vtc()), fleet(3));
    let third = Counters {
        replica: ReplicaId(3),
        ..said(1)
    };
    fleet.hear(0, &said(1), &mut queues);
    fleet.hear(0, &third, &mut queues);
    assert_eq!(fleet.state(), FleetState::Whole);
    let told = fleet.tell(0, &queues, []);
    assert_eq!((told.linked, told.hears), (true, vec![OTHER, ReplicaId(3)]));
    // The two do not hear each other: this one is still linked to both, but counts on nobody.
    fleet.hear(
        1,
        &Counters {
            linked: false,
            ..said(2)
        },
        &mut queues,
    );
    assert_eq!(
        (fleet.state(), fleet.tell(1, &queues, []).linked),
        (FleetState::Share, true)
    );
    // Nor does it help to hear one who does not hear us.
    fleet.hear(
        2,
        &Counters {
            hears: Vec::new(),
            ..said(3)
        },
        &mut queues,
    );
    assert_eq!(
        (fleet.state(), fleet.tell(2, &queues, []).linked),
        (FleetState::Share, false)
    );
}

#[test]
fn a_peer_that_starts_anew_is_another_one() {
    let (mut queues, mut fleet) = (shared(vtc()), fleet(2));
    put_both(&mut queues, 30);
    let first = |number, service| Counters {
        flows: vec![served("a", 1, service)],
        lives: 1,
        ..said(number)
    };
    fleet.hear(ms(1), &first(10, 0), &mut queues);
    fleet.hear(ms(1), &first(11, 500), &mut queues);
    // Its new start counts from zero again, and its messages from one.
    let second = |number, service| Counters {
        replica: ReplicaId(77),
        ..first(number, service)
    };
    assert_eq!(fleet.hear(ms(2), &second(1, 100), &mut queues), Heard::New);
    assert_eq!(fleet.hear(ms(2), &second(2, 300), &mut queues), Heard::New);
    queues.audit().unwrap();
    assert_eq!(lead_of_b(&mut queues), 7, "500 and 200");
    assert_eq!(fleet.hearing(), 2, "the old start counts until it is stale");
    fleet.pass(ms(1001) + 1, &mut queues);
    assert_eq!((fleet.hearing(), fleet.state()), (1, FleetState::Whole));
}

#[test]
fn flows_that_came_after_the_last_message_count_in_full() {
    let (mut queues, mut fleet) = (shared(vtc()), fleet(2));
    put_both(&mut queues, 30);
    let tell = |number, rows: Vec<FlowService>, lives| Counters {
        flows: rows,
        lives,
        ..said(number)
    };
    fleet.hear(0, &tell(1, vec![], 4), &mut queues);
    // Life 3 is older than the last message and was not in it: only what comes next is news.
    fleet.hear(0, &tell(2, vec![served("a", 3, 10_000)], 4), &mut queues);
    // Life 5 began since; then the flow was forgotten there and began again as life 6.
    fleet.hear(0, &tell(3, vec![served("a", 5, 300)], 5), &mut queues);
    fleet.hear(0, &tell(4, vec![served("a", 6, 200)], 6), &mut queues);
    assert_eq!(lead_of_b(&mut queues), 5);
}

#[test]
fn bounds_over_all_bands_are_common() {
    let config = |members| {
        let limits = Limits {
            max_requests: Some(6),
            ..Limits::default()
        };
        let queues = queues(AdmissionConfig {
            limits,
            ..super::rig::strict()
        });
        (queues, fleet(members))
    };
    let fill = |queues: &mut Admission, from: u64| {
        let put = |id: &u64| queues.enqueue(0, item(*id, 0, "a"), &mut Vec::new()) == Ok(());
        (from..from + 10).filter(put).count()
    };
    let (mut queues, mut fleet) = config(2);
    fleet.attach(&mut queues);
    assert_eq!(
        fill(&mut queues, 0),
        3,
        "half of six, while the other is not heard"
    );
    let waiting = Queued {
        requests: 2,
        bytes: 200,
        tokens: 300,
    };
    fleet.hear(0, &Counters { waiting, ..said(1) }, &mut queues);
    assert_eq!(
        fill(&mut queues, 20),
        1,
        "six less two there and three here"
    );
    // A higher band's request takes the place of a lower one's here, not of those elsewhere.
    let mut displaced = Vec::new();
    assert_eq!(queues.enqueue(0, item(90, 5, "b"), &mut displaced), Ok(()));
    assert_eq!(displaced, [(20, Outcome::EvictedPriority)]);
    queues.audit().unwrap();
}

#[test]
fn what_a_replica_tells() {
    let (mut queues, mut fleet) = (shared(vtc()), fleet(1));
    fleet.attach(&mut queues);
    put_both(&mut queues, 2);
    assert_eq!(queues.next(ms(2), &mut open).map(|d| d.id), Some(1));
    assert_eq!(queues.next(ms(3), &mut open).map(|d| d.id), Some(2));
    let used = Cost {
        uncached_input: 40,
        output: 0,
    };
    assert!(queues.complete(ms(4), 1, used));
    let told = fleet.tell(ms(4), &queues, [busy("e", 1, 100), busy("idle", 0, 0)]);
    let expected = Counters {
        replica: ME,
        number: 1,
        hears: Vec::new(),
        linked: true,
        waiting: Queued {
            requests: 2,
            bytes: 200,
            tokens: 200,
        },
        running: 1,
        endpoints: vec![busy("e", 1, 100)],
        lives: 2,
        flows: vec![served("a", 1, 40), served("b", 2, 100)],
    };
    assert_eq!(told, expected);
    // Later only what changed lately is in it; sums go on.
    assert_eq!(fleet.tell(ms(9000), &queues, []).flows, []);
    assert_eq!(queues.next(ms(9001), &mut open).map(|d| d.id), Some(3));
    let told = fleet.tell(ms(9001), &queues, []);
    assert_eq!((told.number, told.flows), (3, vec![served("a", 1, 140)]));
    assert_eq!(fleet.state(), FleetState::Alone);
}

#[test]
fn debts_from_elsewhere_are_bounded() {
    let config = FleetConfig {
        members: 2,
        max_debt: 700,
        ..FleetConfig::default()
    };
    for fairness in [
        Fairness::Drr { quantum: 100 },
        Fairness::Vtc { max_lag: 700 },
    ] {
        let (mut queues, mut fleet) = (shared(fairness), Fleet::new(config, ME).unwrap());
        put_both(&mut queues, 40);
        fleet.hear(0, &said(1), &mut queues);
        let much = Counters {
            flows: vec![served("a", 1, i64::MAX / 2)],
            lives: 1,
            ..said(2)
        };
        fleet.hear(0, &much, &mut queues);
        queues.audit().unwrap();
        // 700 tokens and the request that goes past them; more than that nobody is made to wait.
        let lead = lead_of_b(&mut queues);
        assert!((7..=9).contains(&lead), "{fairness:?}: {lead}");
    }
}

#[test]
fn a_fleet_is_bounded() {
    let config = FleetConfig {
        max_peers: 2,
        max_flows: 3,
        max_endpoints: 2,
        ..FleetConfig::default()
    };
    let queues_config = AdmissionConfig {
        max_flows: 3,
        ..super::rig::strict()
    };
    let (mut queues, mut fleet) = (queues(queues_config), Fleet::new(config, ME).unwrap());
    put_both(&mut queues, 1);
    let from = |replica, number| Counters {
        replica: ReplicaId(replica),
        flows: (0..5)
            .map(|n| served(&format!("f{n}"), n + 1, 10))
            .collect(),
        endpoints: (0..4).map(|n| busy(&format!("e{n}"), 1, 1)).collect(),
        lives: 5,
        ..said(number)
    };
    assert_eq!(fleet.hear(0, &said(1), &mut queues), Heard::New);
    assert_eq!(fleet.hear(0, &from(OTHER.0, 2), &mut queues), Heard::New);
    assert_eq!(
        (fleet.totals().rows_dropped, fleet.totals().flows_unplaced),
        (4, 2)
    );
    assert_eq!(fleet.hear(0, &from(8, 1), &mut queues), Heard::New);
    assert_eq!(fleet.hear(0, &from(9, 1), &mut queues), Heard::Refused);
    // A silent one gives its place up.
    fleet.hear(ms(500), &from(8, 2), &mut queues);
    assert_eq!(fleet.hear(ms(1200), &from(9, 1), &mut queues), Heard::New);
    assert_eq!((fleet.hearing(), fleet.totals().silenced), (2, 1));
    let long = Counters {
        endpoints: vec![busy(&"x".repeat(5000), 1, 1)],
        flows: vec![served(&"y".repeat(300), 9, 1)],
        ..said(9)
    };
    let dropped = fleet.totals().rows_dropped;
    fleet.hear(
        ms(1200),
        &Counters {
            replica: ReplicaId(9),
            ..long
        },
        &mut queues,
    );
    assert_eq!(fleet.totals().rows_dropped, dropped + 2);
    queues.audit().unwrap();
    let faults = FleetConfig {
        members: 9,
        stale_after: 0,
        max_peers: 2,
        ..FleetConfig::default()
    };
    assert_eq!(
        Fleet::new(faults, ME).unwrap_err().to_string(),
        "staleAfter: must be at least 1; maxPeers: fewer than the other members"
    );
}

#[test]
fn a_reload_keeps_the_fleet() {
    let (mut queues, mut fleet) = (shared(vtc()), fleet(2));
    fleet.attach(&mut queues);
    put_both(&mut queues, 2);
    queues.next(ms(1), &mut open);
    queues
        .reconfigure(queues.config().clone(), &mut Vec::new())
        .unwrap();
    queues.next(ms(1), &mut open);
    queues.audit().unwrap();
    let told = fleet.tell(ms(1), &queues, []);
    assert_eq!(
        (told.lives, told.flows.len()),
        (2, 1),
        "a new life after the sums started anew"
    );
}

/// Anything that could be said, in any order.
fn anything() -> impl Strategy<Value = Counters> {
    let flow = (any::<i8>(), 0..4u8, any::<f64>(), 0..6u64, any::<i64>()).prop_map(
        |(priority, flow, weight, life, service)| FlowService {
            priority: i32::from(priority % 2),
            weight,
            ..served(["a", "b", "c", "d"][usize::from(flow)], life, service)
        },
    );
    let load = (0..3u8, any::<u32>(), any::<u64>())
        .prop_map(|(e, requests, tokens)| busy(["e", "f", ""][usize::from(e)], requests, tokens));
    let flows = proptest::collection::vec(flow, 0..6);
    let loads = proptest::collection::vec(load, 0..4);
    let waiting = (any::<u64>(), any::<u64>(), any::<u64>());
    (
        1..5u64,
        any::<u64>(),
        any::<bool>(),
        flows,
        loads,
        any::<u64>(),
        waiting,
    )
        .prop_map(
            |(replica, number, linked, flows, endpoints, lives, waiting)| Counters {
                replica: ReplicaId(replica),
                linked,
                flows,
                endpoints,
                lives,
                waiting: Queued {
                    requests: waiting.0,
                    bytes: waiting.1,
                    tokens: waiting.2,
                },
                ..said(number)
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]
    /// Whatever is heard: no panic, the queues agree with themselves, and in the end the endpoints' sums are those of
    /// the last message of each peer that is fresh (INV-Q15).
    #[test]
    fn nothing_that_is_heard_does_harm(all in proptest::collection::vec((anything(), 0..700u64), 1..40), drr in any::<bool>()) {
        let fairness = if drr { Fairness::Drr { quantum: 70 } } else { vtc() };
        let (mut queues, mut fleet) = (shared(fairness), fleet(3));
        fleet.attach(&mut queues);
        put_both(&mut queues, 8);
        let mut last: Vec<(u64, u64, &Counters)> = Vec::new();
        let mut now = 0;
        for (said, later) in &all {
            now += ms(*later);
            if fleet.hear(now, said, &mut queues) == Heard::New {
                last.retain(|(replica, ..)| *replica != said.replica.0);
                last.push((said.replica.0, now, said));
            }
            queues.audit().unwrap();
            let next = queues.next(now, &mut open);
            if let Some(dispatch) = next.filter(|d| d.id % 3 == 0) {
                queues.complete(now, dispatch.id, Cost::default());
            }
            queues.audit().unwrap();
            fleet.tell(now, &queues, []);
        }
        let fresh = last.iter().filter(|(_, at, _)| now - at <= ms(1000));
        let rows = fresh.flat_map(|(.., said)| &said.endpoints).filter(|row| &*row.endpoint == "e");
        let sum = rows.fold(0_u64, |sum, row| sum.saturating_add(u64::from(row.requests)));
        let seen = fleet.view("e", EndpointView::default()).own_requests;
        prop_assert_eq!(u64::from(seen), sum.min(u64::from(u32::MAX)));
    }

    /// Lost, doubled and overtaken messages change nothing in the end, as long as the last one comes.
    #[test]
    fn only_the_last_message_counts(
        steps in proptest::collection::vec((0..500i64, 0..500i64), 1..20),
        order in proptest::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let mut sums = (0, 0);
        let messages: Vec<Counters> = steps.iter().zip(2..).map(|((a, b), number)| {
            sums = (sums.0 + a, sums.1 + b);
            Counters { flows: vec![served("a", 1, sums.0), served("b", 2, sums.1)], lives: 2, ..said(number) }
        }).collect();
        let lead = |heard: &[&Counters]| {
            let (mut queues, mut fleet) = (shared(vtc()), fleet(2));
            put_both(&mut queues, 40);
            for message in heard {
                fleet.hear(0, message, &mut queues);
            }
            drained(&mut queues, 0)
        };
        let start = said(1);
        let lossy: Vec<&Counters> = order.iter().map(|at| at.get(&messages)).collect();
        let last = messages.last().unwrap();
        let direct = lead(&[&start, last]);
        let others = lead(&[&[&start], lossy.as_slice(), &[last, last]].concat());
        prop_assert_eq!(direct, others);
    }
}
