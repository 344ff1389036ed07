//! Draws follow their weights; lists follow the order of draws.

use std::collections::BTreeMap;

use crate::{
    PluginSpec, SchedulerSpec, State,
    spec::PickerParameters,
    tests::{Fleet, request, scraped, spec},
};

fn places(n: u32) -> PickerParameters {
    PickerParameters {
        max_num_of_endpoints: n,
    }
}

/// Three endpoints that score 0.6, 0.3 and 0.1.
fn fleet(picker: PluginSpec) -> Fleet {
    let endpoints = [(1, 0.4), (2, 0.7), (3, 0.9)];
    let endpoints = endpoints.map(|(id, kv)| scraped(id, 0.0, 0.0, kv)).into();
    Fleet::new(
        &spec(vec![PluginSpec::KvCacheUtilizationScorer, picker]),
        endpoints,
    )
}

fn orders(fleet: &mut Fleet, picks: u32) -> BTreeMap<Vec<u64>, u32> {
    let mut orders = BTreeMap::new();
    for _ in 0..picks {
        let decision = fleet.choose(&request()).unwrap();
        let order = decision.targets.iter().map(|target| target.id.0).collect();
        *orders.entry(order).or_default() += 1;
    }
    orders
}

#[test]
fn the_best_score_wins_and_the_rest_follow() {
    let mut fleet = fleet(PluginSpec::MaxScorePicker(places(3)));
    assert_eq!(orders(&mut fleet, 100), [(vec![1, 2, 3], 100)].into());
}

#[test]
fn equals_are_drawn_evenly() {
    let plugins = vec![
        PluginSpec::QueueScorer,
        PluginSpec::MaxScorePicker(places(3)),
    ];
    let endpoints = (1..=3).map(|id| scraped(id, 0.0, 0.0, 0.0)).collect();
    let mut fleet = Fleet::new(&spec(plugins), endpoints);
    let orders = orders(&mut fleet, 6_000);
    assert_eq!(orders.len(), 6);
    assert!(
        orders.values().all(|n| (850..1150).contains(n)),
        "{orders:?}"
    );
}

/// A-Res is drawing in proportion to the score without putting back: 1, 2, 3 comes with 0.6 x 0.3/0.4.
#[test]
fn weighted_draws_have_the_distribution_of_a_res() {
    let mut fleet = fleet(PluginSpec::WeightedRandomPicker(places(3)));
    let orders = orders(&mut fleet, 20_000);
    let expected = [
        ([1, 2, 3], 0.6 * 0.3 / 0.4),
        ([1, 3, 2], 0.6 * 0.1 / 0.4),
        ([2, 1, 3], 0.3 * 0.6 / 0.7),
        ([2, 3, 1], 0.3 * 0.1 / 0.7),
        ([3, 1, 2], 0.1 * 0.6 / 0.9),
        ([3, 2, 1], 0.1 * 0.3 / 0.9),
    ];
    for (order, share) in expected {
        let seen = f64::from(orders[&order.to_vec()]) / 20_000.0;
        assert!((seen - share).abs() < 0.015, "{order:?}: {seen} {share}");
    }
}

#[test]
fn without_any_score_a_weighted_draw_is_even() {
    let picker = PluginSpec::WeightedRandomPicker(places(1));
    let plugins = vec![PluginSpec::KvCacheUtilizationScorer, picker];
    let endpoints = (1..=4).map(|id| scraped(id, 0.0, 0.0, 1.0)).collect();
    let tally = Fleet::new(&spec(plugins), endpoints).tally(4_000);
    assert!(tally.values().all(|n| (850..1150).contains(n)), "{tally:?}");
}

#[test]
fn a_score_of_zero_is_drawn_last_when_others_score() {
    let picker = PluginSpec::WeightedRandomPicker(places(2));
    let plugins = vec![PluginSpec::KvCacheUtilizationScorer, picker];
    let endpoints = vec![scraped(1, 0.0, 0.0, 1.0), scraped(2, 0.0, 0.0, 0.99)];
    let mut fleet = Fleet::new(&spec(plugins), endpoints);
    assert_eq!(orders(&mut fleet, 200), [(vec![2, 1], 200)].into());
}

#[test]
fn the_random_picker_ignores_scores() {
    let tally = fleet(PluginSpec::RandomPicker(places(1))).tally(3_000);
    assert!(tally.values().all(|n| (850..1150).contains(n)), "{tally:?}");
}

#[test]
fn every_seed_has_its_own_order() {
    let endpoints = || (1..=9).map(|id| scraped(id, 0.0, 0.0, 0.0)).collect();
    let order = |seed| {
        let mut fleet = Fleet::new(&SchedulerSpec::llmd_default(), endpoints());
        fleet.state = State::new(seed);
        (0..20).map(|_| fleet.pick()).collect::<Vec<_>>()
    };
    assert_eq!(order(5), order(5));
    assert_ne!(order(5), order(6));
}
