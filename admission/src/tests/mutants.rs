//! Every rule is broken once, on purpose: the checks must go red.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{
    fleet, pair,
    sim::{self, Scene},
};
use crate::{
    Cost,
    fault::{ALL, Fault, with},
    gate::{Answer, Ask, EndpointView, Gate, GateConfig, PoolGate, Reading, UsageLimitState},
};

/// Rules whose breach the invariants must show by themselves, without the model.
const SEEN_BY_INVARIANTS: &[(Fault, Scene)] = &[
    (Fault::TurnIsKept, Scene::Gaps),
    (Fault::DrrChargesNothing, Scene::Gaps),
    (Fault::DrrRejoinsTheRound, Scene::Gaps),
    (Fault::DrrIgnoresWeight, Scene::Gaps),
    (Fault::DrrForgivesDebt, Scene::Gaps),
    (Fault::VtcDoesNotLift, Scene::Gaps),
    (Fault::VtcIgnoresWeight, Scene::Gaps),
    (Fault::VtcCountsRequests, Scene::Gaps),
    (Fault::NoReconciliation, Scene::Gaps),
    (Fault::NobodyAges, Scene::Bands),
    (Fault::AgingIsUnbounded, Scene::Bands),
    (Fault::NoFloor, Scene::Bands),
    (Fault::FloorIsUnbounded, Scene::Bands),
    (Fault::LowBandFirst, Scene::Bands),
    (Fault::NeverAsksAgain, Scene::Bands),
    (Fault::CancelLeaksBytes, Scene::All),
    (Fault::CancelIsForgotten, Scene::All),
    (Fault::EmptyPoolDispatches, Scene::All),
];

/// Faults of the detectors, which neither sees.
const OF_DETECTORS: &[Fault] = &[Fault::StaleCountsAsFresh, Fault::GateForgetsDispatched];

/// Faults of the exchange between replicas, which neither sees, and those that the simulation of replicas shows by
/// itself.
const OF_FLEET: &[(Fault, bool)] = &[
    (Fault::PeersServiceIgnored, true),
    (Fault::PeersServiceTwice, false),
    (Fault::PeersRefundsCountTwice, false),
    (Fault::PeersPastCounts, false),
    (Fault::PeersInFlightIgnored, true),
    (Fault::NoShareWhenCutOff, true),
    (Fault::SilentPeersCount, true),
];

fn model_sees() -> bool {
    (0..150).any(|seed| pair::seeded(seed, 500).is_err())
}

fn invariants_see(scene: Scene) -> bool {
    (0..150).any(|seed| sim::seeded(scene, seed, 3_000).is_err())
}

/// An old reading, and a batch that was filled since the reading, start nothing.
fn detectors_hold() {
    let reading = |at| Reading {
        at,
        waiting: Some(0.0),
        running: Some(0.0),
        kv_usage: Some(0.0),
    };
    let old = EndpointView {
        reading: Some(reading(0)),
        own_requests: 4,
        batch_slots: Some(4),
        ..EndpointView::default()
    };
    let now = 60 * crate::SECOND;
    let filled = EndpointView {
        reading: Some(reading(now)),
        unseen_requests: 4,
        ..old
    };
    let ask = Ask {
        id: 1,
        class: crate::ClassId(0),
        priority: 0,
        ceiling_of: 0,
        cost: Cost::default(),
        since: 0,
    };
    for view in [old, filled] {
        let mut limits = UsageLimitState::default();
        let (config, views) = (GateConfig::default(), [view]);
        let mut gate = PoolGate::new(&config, now, &views, &[0], &|_, _| true, &mut limits);
        assert_eq!(gate.can_start(&ask), Answer::NotNow);
    }
}

#[test]
fn every_broken_rule_is_seen() {
    assert!(!model_sees(), "the model differs from sound code");
    detectors_hold();
    fleet::rules_hold();
    let mut alive = Vec::new();
    for fault in ALL {
        let of_fleet = OF_FLEET.iter().any(|(of_fleet, _)| of_fleet == fault);
        let killed = with(*fault, || match OF_DETECTORS.contains(fault) {
            true => catch_unwind(AssertUnwindSafe(detectors_hold)).is_err(),
            false if of_fleet => catch_unwind(AssertUnwindSafe(fleet::rules_hold)).is_err(),
            false => model_sees(),
        });
        if !killed {
            alive.push(*fault);
        }
    }
    println!(
        "mutants killed: {} / {}",
        ALL.len() - alive.len(),
        ALL.len()
    );
    assert_eq!(alive, [], "mutants that live");
}

#[test]
fn the_simulation_of_replicas_sees_what_it_watches() {
    let sees = || fleet::replicas_hold(1).is_err();
    assert!(!sees(), "red on sound code");
    let lives = |(fault, watched): &&(Fault, bool)| *watched && !with(*fault, sees);
    let alive: Vec<_> = OF_FLEET.iter().filter(lives).collect();
    assert!(alive.is_empty(), "mutants that live: {alive:?}");
}

#[test]
fn the_invariants_alone_see_what_they_state() {
    for scene in [Scene::Gaps, Scene::Bands, Scene::All] {
        assert!(!invariants_see(scene), "{scene:?} is red on sound code");
    }
    let lives = |(fault, scene): &&(Fault, Scene)| !with(*fault, || invariants_see(*scene));
    let alive: Vec<_> = SEEN_BY_INVARIANTS.iter().filter(lives).collect();
    let all = SEEN_BY_INVARIANTS.len();
    println!(
        "mutants killed by invariants: {} / {all}",
        all - alive.len()
    );
    assert!(alive.is_empty(), "mutants that live: {alive:?}");
}
