//! The same spec, state and inputs give the same decisions, bit for bit.

use proptest::{collection::vec, prelude::*};

use super::{
    Fleet, NOW, properties,
    properties::{Modulo, Row},
    request,
};
use crate::{Decision, NoEndpoint, RequestView, SchedulerSpec, State};

type Choices = Vec<Result<Decision, NoEndpoint>>;

/// A run of choices with dispatches and sessions; the state may be replaced on the way.
fn run(
    spec: &SchedulerSpec,
    rows: &[Row],
    seed: u64,
    mut at_half: impl FnMut(State) -> State,
) -> Choices {
    let mut fleet = Fleet::new(spec, Vec::new());
    fleet.endpoints = properties::build(rows, &fleet.policy.health);
    fleet.policy.explore = 0.2;
    fleet.state = State::new(seed);
    fleet.state.recording(true);
    let mut choices = Vec::new();
    for i in 0..20 {
        if i == 10 {
            fleet.state = at_half(fleet.state);
        }
        fleet.now = NOW + i;
        let headers = [("x-session-id".to_owned(), format!("s{}", i % 3))];
        let view = RequestView {
            headers: &headers,
            ..request()
        };
        let choice = fleet.choose_with(&view, &Modulo);
        if let Ok(decision) = &choice {
            fleet
                .scheduler
                .after_dispatch(&view, decision, &mut fleet.state);
            let id = decision.targets[0].id;
            let row = fleet.endpoints.iter_mut().find(|e| e.id == id).unwrap();
            row.on_dispatch(fleet.now, 1_000);
        }
        choices.push(choice);
    }
    choices
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn runs_repeat_also_from_a_state_written_down(
        rows in vec(properties::row(), 0..10),
        seed in any::<u64>(),
    ) {
        for spec in properties::specs() {
            let first = run(&spec, &rows, seed, |state| state);
            prop_assert_eq!(&first, &run(&spec, &rows, seed, |state| state.clone()));
            prop_assert_eq!(&first, &run(&spec, &rows, seed, |state| {
                let text = serde_json::to_string(&state).unwrap();
                serde_json::from_str(&text).unwrap()
            }));
        }
    }

    #[test]
    fn a_decision_survives_a_log(rows in vec(properties::row(), 1..10), seed in any::<u64>()) {
        for spec in properties::specs() {
            for decision in run(&spec, &rows, seed, |state| state).into_iter().flatten() {
                let text = serde_json::to_string(&decision).unwrap();
                prop_assert_eq!(serde_json::from_str::<Decision>(&text).unwrap(), decision);
            }
        }
    }
}

#[test]
fn another_seed_gives_another_run() {
    let spec = SchedulerSpec::default_ours();
    let order = |seed| {
        let mut fleet = Fleet::new(&spec, (1..=8).map(super::endpoint).collect());
        fleet.state = State::new(seed);
        let picks = (0..32).map(|_| fleet.pick());
        picks.collect::<Vec<_>>()
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
}

/// One changed weight is enough to tell a run apart.
#[test]
fn another_weight_gives_another_run() {
    let mut spec = SchedulerSpec::llmd_default();
    let endpoints = || {
        vec![
            super::scraped(1, 0.0, 0.0, 0.5),
            super::scraped(2, 4.0, 0.0, 0.0),
        ]
    };
    let mut fleet = Fleet::new(&spec, endpoints());
    assert_eq!(fleet.pick(), 1);
    spec.profiles[0].plugins[1].weight = Some(9.0);
    let mut fleet = Fleet::new(&spec, endpoints());
    assert_eq!(fleet.pick(), 2);
}
