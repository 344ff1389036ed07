//! What holds for every choice, whatever the fleet.

use std::net::SocketAddr;

use proptest::{collection::vec, prelude::*};

use super::{Fleet, NOW, sample};
use crate::{
    Availability, Decision, Endpoint, EndpointSpec, Incarnation, NoEndpoint, PluginSpec,
    PrefixView, RequestView, SECOND, SchedulerSpec, SubsetEntry,
    spec::{PickerParameters, SessionAffinity, SessionStrategy, Utilization},
};

/// One endpoint of a random fleet.
#[derive(Clone, Debug)]
pub(super) struct Row {
    weight: u32,
    draining: bool,
    age: u64,
    failures: u32,
    probing: bool,
    load: u32,
    scrape: Option<(u64, f64, f64)>,
}

pub(super) fn row() -> impl Strategy<Value = Row> {
    let number = prop_oneof![
        4 => 0.0..20.0_f64,
        1 => Just(0.0),
        1 => Just(f64::NAN),
        1 => Just(f64::INFINITY),
        1 => Just(-1.0),
    ];
    let usage = prop_oneof![4 => 0.0..=1.0_f64, 1 => Just(f64::NAN), 1 => Just(1.5)];
    (
        prop_oneof![Just(0_u32), 1..5_u32, Just(u32::MAX)],
        prop::bool::weighted(0.15),
        0..40_u64,
        prop_oneof![3 => Just(0_u32), 1 => 5..8_u32],
        any::<bool>(),
        0..30_u32,
        prop::option::of((0..5_u64, number, usage)),
    )
        .prop_map(
            |(weight, draining, age, failures, probing, load, scrape)| Row {
                weight,
                draining,
                age,
                failures,
                probing,
                load,
                scrape,
            },
        )
}

pub(super) fn build(rows: &[Row], health: &crate::HealthPolicy) -> Vec<Endpoint> {
    let rows = rows.iter().zip(1_u64..);
    rows.map(|(row, id)| {
        let spec = EndpointSpec {
            weight: row.weight,
            draining: row.draining,
            ..EndpointSpec::new(format!("ns/pod-{id}"), format!("10.0.0.{id}:8000"))
        };
        let mut endpoint = Endpoint::new(Incarnation(id), &spec, NOW - row.age * SECOND);
        // Failures of 0 to 12 s ago: some are still cooling down, some half-open.
        for _ in 0..row.failures {
            let at = NOW - row.age * SECOND * 12 / 40;
            endpoint.health.record(at, false, health);
        }
        if let Some((age, waiting, usage)) = row.scrape {
            endpoint.on_sample(NOW - age * SECOND, &sample(waiting, waiting, usage));
        }
        for _ in 0..row.load {
            endpoint.on_dispatch(if row.probing { NOW } else { 0 }, 100);
        }
        endpoint
    })
    .collect()
}

pub(super) struct Modulo;

impl PrefixView for Modulo {
    fn cached_tokens(&self, request: &RequestView<'_>, endpoint: Incarnation) -> u64 {
        request.prompt_tokens * (endpoint.0 % 3) / 2
    }
}

pub(super) fn specs() -> Vec<SchedulerSpec> {
    let three = PickerParameters {
        max_num_of_endpoints: 3,
    };
    let affinity = SessionAffinity {
        strategy: SessionStrategy::SessionId,
        ..SessionAffinity::default()
    };
    let with = |picker| {
        super::spec(vec![
            PluginSpec::DecodeFilter,
            PluginSpec::UtilizationFilter(Utilization::default()),
            PluginSpec::QueueScorer,
            PluginSpec::RunningRequestsSizeScorer,
            PluginSpec::LoraAffinityScorer,
            PluginSpec::LoadAwareScorer(Default::default()),
            PluginSpec::SessionAffinityScorer(affinity.clone()),
            picker,
        ])
    };
    vec![
        SchedulerSpec::default_ours(),
        SchedulerSpec::llmd_default(),
        with(PluginSpec::WeightedRandomPicker(three.clone())),
        with(PluginSpec::RandomPicker(three)),
    ]
}

fn inside(subset: &[SubsetEntry], endpoint: &Endpoint) -> bool {
    let Ok(socket) = endpoint.address.parse::<SocketAddr>() else {
        return false;
    };
    let port = |p: u16| p == socket.port();
    subset
        .iter()
        .any(|e| e.ip == socket.ip() && e.port.is_none_or(port))
}

/// Who may be a target at all, said in the plainest way.
fn may_serve(fleet: &Fleet, subset: Option<&[SubsetEntry]>, endpoint: &Endpoint) -> bool {
    let available = endpoint.health.available(fleet.now, &fleet.policy.health);
    !endpoint.draining
        && subset.is_none_or(|subset| inside(subset, endpoint))
        && !matches!(available, Availability::No { .. })
}

fn check(fleet: &Fleet, subset: Option<&[SubsetEntry]>, result: &Result<Decision, NoEndpoint>) {
    let eligible = |e: &&Endpoint| may_serve(fleet, subset, e);
    let decision = match result {
        Ok(decision) => decision,
        Err(why) => {
            assert_eq!(fleet.endpoints.iter().filter(eligible).count(), 0, "{why}");
            return;
        }
    };
    assert!(!decision.targets.is_empty());
    let mut seen = Vec::new();
    let mut stand_bys = false;
    for (place, target) in decision.targets.iter().enumerate() {
        let row = fleet.endpoints.iter().find(|e| e.id == target.id).unwrap();
        assert_eq!(row.address, target.address);
        assert!(may_serve(fleet, subset, row));
        let available = row.health.available(fleet.now, &fleet.policy.health);
        assert!(place == 0 || available == Availability::Yes);
        assert!(!seen.contains(&target.id));
        seen.push(target.id);
        // Never back to a weighted one after a stand-by, and no stand-by while a weighted one may be the target.
        assert!(row.weight == 0 || !stand_bys);
        stand_bys |= row.weight == 0;
    }
    let weighted = |e: &Endpoint| e.weight > 0 && may_serve(fleet, subset, e);
    let first = fleet.endpoints.iter().find(|e| e.id == seen[0]).unwrap();
    assert!(first.weight > 0 || !fleet.endpoints.iter().any(weighted));
    let record = decision.record.as_ref().unwrap();
    assert_eq!(record.chosen, seen);
    assert_eq!(
        record.candidates.len() + record.removed.len(),
        fleet.endpoints.len()
    );
    for candidate in &record.candidates {
        assert!(candidate.total.is_finite() && candidate.total >= 0.0);
        for score in &candidate.scores {
            assert!(score.raw.is_none_or(|raw| (0.0..=1.0).contains(&raw)));
            assert!(score.weighted.is_finite() && score.weighted >= 0.0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn targets_are_eligible_and_in_order(
        rows in vec(row(), 0..12),
        subset in prop::option::of(vec((1..14_u8, prop::option::of(7_999..8_002_u16)), 0..6)),
        seed in any::<u64>(),
        explore in prop_oneof![Just(0.0), Just(0.5), Just(1.0), Just(f64::NAN)],
    ) {
        let subset: Option<Vec<_>> = subset.map(|list| {
            let entry = |(last, port)| SubsetEntry { ip: [10, 0, 0, last].into(), port };
            list.into_iter().map(entry).collect()
        });
        for spec in specs() {
            let mut fleet = Fleet::new(&spec, Vec::new());
            fleet.endpoints = build(&rows, &fleet.policy.health);
            fleet.policy.slow_start = Default::default();
            fleet.policy.explore = explore;
            fleet.state = crate::State::new(seed);
            fleet.state.recording(true);
            let view = RequestView { subset: subset.as_deref(), ..super::request() };
            for _ in 0..4 {
                let result = fleet.choose_with(&view, &Modulo);
                check(&fleet, subset.as_deref(), &result);
            }
        }
    }

    #[test]
    fn a_record_changes_no_choice(rows in vec(row(), 1..12), seed in any::<u64>()) {
        for spec in specs() {
            let run = |recording| {
                let mut fleet = Fleet::new(&spec, Vec::new());
                fleet.endpoints = build(&rows, &fleet.policy.health);
                fleet.state = crate::State::new(seed);
                fleet.state.recording(recording);
                let mut choices = Vec::new();
                for _ in 0..4 {
                    choices.push(fleet.choose_with(&super::request(), &Modulo).map(|d| d.targets));
                }
                choices
            };
            prop_assert_eq!(run(true), run(false));
        }
    }

    #[test]
    fn counts_never_go_below_zero(steps in vec((any::<bool>(), 0..100_u64), 0..60)) {
        let mut endpoint = super::endpoint(1);
        let (mut requests, mut tokens) = (0_u32, 0_u64);
        for (dispatch, n) in steps {
            if dispatch {
                endpoint.on_dispatch(NOW, n);
                (requests, tokens) = (requests + 1, tokens + n);
            } else {
                endpoint.on_end(NOW, n);
                (requests, tokens) = (requests.saturating_sub(1), tokens.saturating_sub(n));
            }
            prop_assert_eq!((endpoint.load.requests, endpoint.load.tokens), (requests, tokens));
            prop_assert_eq!(endpoint.unseen(), i64::from(requests));
        }
    }
}
