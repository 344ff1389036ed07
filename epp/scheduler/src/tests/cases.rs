//! Inputs that broke systems like this one, each with the right answer.

use std::{cell::RefCell, collections::BTreeSet};

use super::{Fleet, NOW, endpoint, request, sample, scraped, spec};
use crate::{
    Endpoint, Incarnation, Missing, Nanos, PluginSpec, PrefixView, RequestView, SECOND, Sample,
    SchedulerSpec,
    spec::{ActiveRequest, PickerParameters, TokenLoad},
};

const MILLI: Nanos = SECOND / 1_000;

fn three() -> Vec<Endpoint> {
    vec![
        scraped(1, 1.0, 0.0, 0.2),
        scraped(2, 0.0, 0.0, 0.0),
        endpoint(3),
    ]
}

/// C09: an endpoint never scraped must not look idle.
#[test]
fn c09_an_endpoint_never_scraped_wins_no_pick() {
    for spec in [SchedulerSpec::llmd_default(), SchedulerSpec::default_ours()] {
        let mut fleet = Fleet::new(&spec, three());
        assert_eq!(fleet.tally(1_000), [(2, 1_000)].into());
    }
}

#[test]
fn c09_nor_under_any_picker_or_growing_own_load() {
    let pickers = [
        PluginSpec::MaxScorePicker(PickerParameters::default()),
        PluginSpec::WeightedRandomPicker(PickerParameters::default()),
        PluginSpec::RandomPicker(PickerParameters::default()),
    ];
    for picker in pickers {
        let scorers = [
            PluginSpec::QueueScorer,
            PluginSpec::ActiveRequestScorer(ActiveRequest::default()),
            PluginSpec::TokenLoadScorer(TokenLoad::default()),
        ];
        let plugins = scorers.into_iter().chain([picker]).collect();
        let mut fleet = Fleet::new(&spec(plugins), three());
        let picks: BTreeSet<_> = (0..1_000)
            .map(|_| fleet.dispatch(&request(), &crate::NoPrefix))
            .collect();
        assert!(!picks.contains(&3), "{picks:?}");
    }
}

#[test]
fn c09_the_explore_share_is_all_it_gets() {
    let mut fleet = Fleet::new(&SchedulerSpec::llmd_default(), three());
    fleet.policy.explore = 0.05;
    let tally = fleet.tally(10_000);
    assert_eq!(tally.keys().copied().collect::<Vec<_>>(), [2, 3]);
    // 500 expected; five standard deviations are 109.
    assert!((391..=609).contains(&tally[&3]), "{tally:?}");
}

#[test]
fn c09_if_nobody_was_scraped_all_are_used() {
    let endpoints = vec![endpoint(1), endpoint(2), endpoint(3)];
    let mut fleet = Fleet::new(&SchedulerSpec::llmd_default(), endpoints);
    let tally = fleet.tally(3_000);
    assert!(tally.values().all(|n| (850..1150).contains(n)), "{tally:?}");
}

/// The bound on own load looks at endpoints that get regular work, not at those it would let in by the back door.
#[test]
fn c09_nor_when_the_only_scraped_one_has_all_the_load() {
    let endpoints = std::iter::once(scraped(1, 0.0, 0.0, 0.0));
    let endpoints = endpoints.chain((2..=8).map(endpoint)).collect();
    let mut fleet = Fleet::new(&SchedulerSpec::default_ours(), endpoints);
    for _ in 0..200 {
        assert_eq!(fleet.dispatch(&request(), &crate::NoPrefix), 1);
    }
}

#[test]
fn c09_a_real_zero_is_idle() {
    let endpoints = vec![scraped(1, 3.0, 1.0, 0.3), scraped(2, 0.0, 0.0, 0.0)];
    let mut fleet = Fleet::new(&SchedulerSpec::llmd_default(), endpoints);
    assert_eq!(fleet.tally(100), [(2, 100)].into());
}

/// An observed endpoint that went silent is neither idle nor full: it scores like the worst that is known.
#[test]
fn a_stale_endpoint_does_not_beat_an_idle_one() {
    let mut fleet = Fleet::new(
        &SchedulerSpec::llmd_default(),
        vec![endpoint(1), endpoint(2), endpoint(3)],
    );
    fleet.endpoints[0].on_sample(0, &sample(0.0, 0.0, 0.0));
    fleet.endpoints[1].on_sample(NOW, &sample(2.0, 1.0, 0.5));
    fleet.endpoints[2].on_sample(NOW, &sample(0.0, 0.0, 0.0));
    assert_eq!(fleet.tally(100), [(3, 100)].into());
}

/// C12: not a number, negative and above 1 are no observation of that signal.
#[test]
fn c12_impossible_values_never_score() {
    for value in [f64::NAN, f64::INFINITY, -1.0, 1.01] {
        let mut fleet = Fleet::new(&SchedulerSpec::llmd_default(), Vec::new());
        let mut odd = endpoint(1);
        odd.on_sample(NOW, &sample(0.0, 0.0, value));
        fleet.endpoints = vec![odd, scraped(2, 0.0, 0.0, 0.9), scraped(3, 0.0, 0.0, 0.1)];
        fleet.state.recording(true);
        let decision = fleet.choose(&request()).unwrap();
        assert_eq!(decision.targets[0].id, Incarnation(3), "{value}");
        let record = decision.record.unwrap();
        let kv: Vec<_> = record.candidates.iter().map(|c| &c.scores[1]).collect();
        assert_eq!(kv[0].raw, None);
        // Twice the lowest observed score, which is that of endpoint 2.
        assert_eq!(kv[0].weighted, kv[1].weighted);
    }
}

/// C12: only the missing signal is lost, and it is seen to be missing.
#[test]
fn c12_a_renamed_metric_is_a_visible_condition() {
    let mut renamed = endpoint(1);
    for _ in 0..3 {
        renamed.on_sample(NOW, &Sample::default());
    }
    let all = Missing {
        waiting: 3,
        running: 3,
        kv_usage: 3,
    };
    assert_eq!(renamed.telemetry.missing, all);
    assert_eq!(renamed.telemetry.failures, 0);
    assert!(!renamed.telemetry.observed());
    let mut partly = endpoint(2);
    let cut = Sample {
        running: Some(4.0),
        ..Sample::default()
    };
    partly.on_sample(NOW, &cut);
    assert_eq!(partly.running(NOW, SECOND), Some(4.0));
    assert_eq!(partly.waiting(NOW, SECOND), None);
    let missing = partly.telemetry.missing;
    assert_eq!(
        (missing.waiting, missing.running, missing.kv_usage),
        (1, 0, 1)
    );
}

/// A pick enters the view at once, as the approximate index does.
#[derive(Default)]
struct Guesses(RefCell<BTreeSet<u64>>);

impl PrefixView for Guesses {
    fn cached_tokens(&self, request: &RequestView<'_>, endpoint: Incarnation) -> u64 {
        let warm = self.0.borrow().contains(&endpoint.0);
        if warm { request.prompt_tokens } else { 0 }
    }
}

fn eight() -> Vec<Endpoint> {
    (1..=8).map(endpoint).collect()
}

/// C15: own counts alone spread a burst that no scrape sees.
#[test]
fn c15_a_burst_between_scrapes_spreads() {
    let view = RequestView {
        prompt_tokens: 4_096,
        ..request()
    };
    let mut fleet = Fleet::new(&SchedulerSpec::default_ours(), eight());
    for i in 0..480 {
        fleet.now = NOW + i * 50 * MILLI / 480;
        fleet.dispatch(&view, &crate::NoPrefix);
    }
    let loads: Vec<_> = fleet.endpoints.iter().map(|e| e.load.requests).collect();
    assert_eq!(loads, [60; 8]);
}

/// C15: affinity within twice the mean, most siblings where the prefix already is, no fixed first winner.
#[test]
fn c15_one_warm_prefix_drowns_nobody() {
    let view = RequestView {
        prompt_tokens: 4_096,
        ..request()
    };
    let mut firsts = BTreeSet::new();
    for seed in 0..32 {
        let mut fleet = Fleet::new(&SchedulerSpec::default_ours(), eight());
        fleet.state = crate::State::new(seed);
        let guesses = Guesses::default();
        let mut warm = 0;
        for i in 0..480 {
            fleet.now = NOW + i * 50 * MILLI / 480;
            let id = fleet.dispatch(&view, &guesses);
            if i == 0 {
                firsts.insert(id);
            }
            if !guesses.0.borrow_mut().insert(id) {
                warm += 1;
            }
        }
        let loads = fleet.endpoints.iter().map(|e| e.load.requests);
        assert!(loads.max() <= Some(120));
        assert!(warm >= 240, "{warm}");
    }
    assert!(firsts.len() > 4, "{firsts:?}");
}

/// A burst between two scrapes, with scraped endpoints and a profile that reads telemetry alone.
#[test]
fn a_scrape_is_corrected_by_what_was_dispatched_since() {
    let endpoints = (1..=8).map(|id| scraped(id, 0.0, 0.0, 0.1)).collect();
    let mut fleet = Fleet::new(&SchedulerSpec::llmd_default(), endpoints);
    for _ in 0..480 {
        fleet.dispatch(&request(), &crate::NoPrefix);
    }
    let loads: Vec<_> = fleet.endpoints.iter().map(|e| e.load.requests).collect();
    assert_eq!(loads, [60; 8]);
    let row = &mut fleet.endpoints[0];
    assert_eq!(row.waiting(NOW, SECOND), Some(60.0));
    row.on_end(NOW, 1_000);
    assert_eq!(row.waiting(NOW, SECOND), Some(59.0));
    row.on_sample(NOW, &sample(7.0, 52.0, 0.9));
    assert_eq!(row.waiting(NOW, SECOND), Some(7.0));
    assert_eq!(row.running(NOW, SECOND), Some(52.0));
}

#[test]
fn a_reading_is_carried_on_by_what_came_and_went() {
    let mut row = endpoint(1);
    let seen = |row: &Endpoint| (row.waiting(NOW, SECOND), row.running(NOW, SECOND));
    for _ in 0..10 {
        row.on_dispatch(NOW, 1);
    }
    // Two of the ten are still on their way.
    row.on_sample(NOW, &sample(3.0, 5.0, 0.0));
    assert_eq!(seen(&row), (Some(5.0), Some(7.0)));
    // As many come as go: nothing changes, however many they are.
    for _ in 0..50 {
        row.on_dispatch(NOW, 1);
        row.on_end(NOW, 1);
    }
    assert_eq!(seen(&row), (Some(5.0), Some(7.0)));
    assert_eq!(row.dispatched_since_scrape, 50);
    for _ in 0..9 {
        row.on_end(NOW, 1);
    }
    assert_eq!(seen(&row), (Some(0.0), Some(0.0)));
    // Work of others is no work of ours on its way.
    row.on_sample(NOW, &sample(3.0, 500.0, 0.0));
    assert_eq!(seen(&row), (Some(3.0), Some(500.0)));
    // A count that cannot be read says nothing about what is on its way.
    row.on_sample(NOW, &sample(f64::NAN, 9.0, 0.0));
    assert_eq!(row.running(NOW, SECOND), Some(9.0));
    row.on_dispatch(NOW, 1);
    row.on_sample(NOW + 1, &Sample::default());
    assert_eq!(row.running(NOW, SECOND), Some(10.0));
}

/// C19: a request ends on the life it began on.
#[test]
fn c19_a_flapping_endpoint_never_counts_below_zero() {
    let mut old = endpoint(1);
    old.on_dispatch(NOW, 10);
    let mut new = endpoint(2);
    new.on_dispatch(NOW, 20);
    old.on_end(NOW, 10);
    assert_eq!((new.load.requests, new.load.tokens), (1, 20));
    new.on_end(NOW, 20);
    assert_eq!((new.load.requests, new.load.tokens), (0, 0));
    // Even an end too many leaves nothing that looks freer than free.
    new.on_end(NOW, 20);
    assert_eq!((new.load.requests, new.load.tokens), (0, 0));
    assert_eq!(new.unseen(), 0);
}
