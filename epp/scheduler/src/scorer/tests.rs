//! Formulas on tables.

use std::sync::Arc;

use crate::{
    Adapters, Endpoint, Incarnation, PluginSpec, PrefixView, RequestView, Sample,
    spec::{ActiveRequest, LoadAware, NoHitLru, PrefixCache, SchedulerSpec, TokenLoad},
    tests::{Fleet, NOW, endpoint, request, sample, scraped},
};

/// Tokens cached on each endpoint, by place.
struct Cached(Vec<u64>);

impl PrefixView for Cached {
    fn cached_tokens(&self, _: &RequestView<'_>, endpoint: Incarnation) -> u64 {
        let place = usize::try_from(endpoint.0).unwrap() - 1;
        self.0.get(place).copied().unwrap_or(0)
    }
}

/// The raw scores of one scorer, in the endpoints' order.
fn raw(
    plugin: PluginSpec,
    endpoints: Vec<Endpoint>,
    view: &RequestView<'_>,
    prefix: &dyn PrefixView,
) -> Vec<Option<f64>> {
    let spec = SchedulerSpec::one_profile(vec![(plugin, None)]);
    let mut fleet = Fleet::new(&spec, endpoints);
    fleet.state.recording(true);
    let decision = fleet.choose_with(view, prefix).unwrap();
    let candidates = decision.record.unwrap().candidates;
    candidates.iter().map(|c| c.scores[0].raw).collect()
}

fn scores(plugin: PluginSpec, endpoints: Vec<Endpoint>) -> Vec<Option<f64>> {
    raw(plugin, endpoints, &request(), &Cached(Vec::new()))
}

fn waiting(values: &[f64]) -> Vec<Endpoint> {
    let values = values.iter().zip(1..);
    values.map(|(q, id)| scraped(id, *q, 0.0, 0.0)).collect()
}

fn loaded(requests: &[u32]) -> Vec<Endpoint> {
    let rows = requests.iter().zip(1..);
    rows.map(|(n, id)| {
        let mut endpoint = endpoint(id);
        endpoint.load.requests = *n;
        endpoint
    })
    .collect()
}

#[test]
fn queue() {
    let of = |values: &[f64]| scores(PluginSpec::QueueScorer, waiting(values));
    assert_eq!(of(&[0.0, 5.0, 10.0]), [Some(1.0), Some(0.5), Some(0.0)]);
    assert_eq!(of(&[7.0, 7.0]), [Some(1.0), Some(1.0)]);
    assert_eq!(of(&[3.0]), [Some(1.0)]);
}

#[test]
fn the_silent_take_no_part_in_minimum_and_maximum() {
    let mut endpoints = waiting(&[4.0, 2.0]);
    endpoints.push(endpoint(3));
    let expected = [Some(0.0), Some(1.0), None];
    assert_eq!(scores(PluginSpec::QueueScorer, endpoints), expected);
}

#[test]
fn running() {
    let endpoints = vec![scraped(1, 9.0, 8.0, 0.0), scraped(2, 0.0, 4.0, 0.0)];
    let expected = [Some(0.0), Some(1.0)];
    assert_eq!(
        scores(PluginSpec::RunningRequestsSizeScorer, endpoints),
        expected
    );
}

#[test]
fn kv_usage() {
    let endpoints = vec![
        scraped(1, 0.0, 0.0, 0.25),
        scraped(2, 0.0, 0.0, 1.0),
        endpoint(3),
    ];
    let expected = [Some(0.75), Some(0.0), None];
    assert_eq!(
        scores(PluginSpec::KvCacheUtilizationScorer, endpoints),
        expected
    );
}

#[test]
fn load_aware() {
    let plugin = PluginSpec::LoadAwareScorer(LoadAware::default());
    let expected = [Some(0.5), Some(0.25), Some(0.0), Some(0.0)];
    assert_eq!(
        scores(plugin, waiting(&[0.0, 64.0, 128.0, 500.0])),
        expected
    );
}

#[test]
fn active_requests() {
    let of = |p, n: &[u32]| scores(PluginSpec::ActiveRequestScorer(p), loaded(n));
    let default = ActiveRequest::default;
    assert_eq!(
        of(default(), &[0, 1, 4]),
        [Some(1.0), Some(0.75), Some(0.0)]
    );
    assert_eq!(of(default(), &[0, 0]), [Some(1.0), Some(1.0)]);
    assert_eq!(of(default(), &[3, 3]), [Some(0.0), Some(0.0)]);
    let relaxed = ActiveRequest {
        idle_threshold: 2,
        max_busy_score: 0.5,
    };
    assert_eq!(of(relaxed, &[2, 3, 6]), [Some(1.0), Some(0.25), Some(0.0)]);
}

#[test]
fn token_load_counts_uncached_tokens() {
    let plugin = PluginSpec::TokenLoadScorer(TokenLoad {
        queue_threshold_tokens: 4_000.0,
    });
    let mut endpoints = vec![endpoint(1), endpoint(2), endpoint(3)];
    endpoints[1].load.tokens = 1_000;
    endpoints[2].load.tokens = 9_000;
    // A prompt of 1000 tokens, 500 of them cached on the second.
    let expected = [Some(0.75), Some(0.625), Some(0.0)];
    assert_eq!(
        raw(plugin, endpoints, &request(), &Cached(vec![0, 500])),
        expected
    );
}

#[test]
fn prefix_cache() {
    let of = |p, prompt_tokens, cached: &[u64]| {
        let view = RequestView {
            prompt_tokens,
            ..request()
        };
        let endpoints = (1..).zip(cached).map(|(id, _)| endpoint(id)).collect();
        let plugin = PluginSpec::PrefixCacheScorer(p);
        raw(plugin, endpoints, &view, &Cached(cached.to_vec()))
    };
    let default = PrefixCache::default;
    assert_eq!(
        of(default(), 1_000, &[0, 250, 1_000, 2_000]),
        [Some(0.0), Some(0.25), Some(1.0), Some(1.0)]
    );
    assert_eq!(of(default(), 0, &[5]), [Some(0.0)]);
    let length = PrefixCache {
        match_length_weight: 0.5,
        match_length_scale_tokens: 2_000.0,
    };
    // Half the prompt, half the scale: 0.5 x 0.5 + 0.5 x 0.25; the length part is capped at 1.
    assert_eq!(of(length.clone(), 2_000, &[1_000]), [Some(0.375)]);
    assert_eq!(of(length, 8_000, &[4_000]), [Some(0.75)]);
}

#[test]
fn lora_affinity() {
    let names = |list: &[&str]| -> Vec<Arc<str>> { list.iter().map(|n| (*n).into()).collect() };
    let on = |id, running: &[&str], waiting: &[&str], max| {
        let mut row = endpoint(id);
        let adapters = Adapters {
            running: names(running),
            waiting: names(waiting),
            max,
        };
        let scrape = Sample {
            adapters: Some(adapters),
            ..sample(0.0, 0.0, 0.0)
        };
        row.on_sample(NOW, &scrape);
        row
    };
    let view = RequestView {
        model: "food",
        ..request()
    };
    let endpoints = vec![
        on(1, &["food", "law"], &[], Some(2)),
        // The same adapter in both lists takes one slot.
        on(2, &["law"], &["law"], Some(2)),
        on(3, &["law"], &["food"], Some(2)),
        on(4, &["law", "tax"], &[], Some(2)),
        on(5, &[], &[], None),
        on(6, &["food"], &[], None),
        on(7, &[], &["food"], None),
        endpoint(8),
    ];
    let got = raw(
        PluginSpec::LoraAffinityScorer,
        endpoints,
        &view,
        &Cached(Vec::new()),
    );
    let expected = [
        Some(1.0),
        Some(0.8),
        Some(0.6),
        Some(0.0),
        None,
        Some(1.0),
        Some(0.6),
        None,
    ];
    assert_eq!(got, expected);
}

#[test]
fn stale_readings_are_none() {
    let mut old = endpoint(1);
    old.on_sample(NOW - 3_000_000_000, &sample(0.0, 0.0, 0.0));
    let endpoints = || vec![old.clone(), scraped(2, 1.0, 1.0, 0.5)];
    let plugins = [
        PluginSpec::QueueScorer,
        PluginSpec::RunningRequestsSizeScorer,
        PluginSpec::KvCacheUtilizationScorer,
        PluginSpec::LoadAwareScorer(LoadAware::default()),
    ];
    for plugin in plugins {
        assert_eq!(scores(plugin, endpoints())[0], None);
    }
}

#[test]
fn new_prompts_go_round() {
    let spec = SchedulerSpec::one_profile(vec![(
        PluginSpec::NoHitLruScorer(NoHitLru::default()),
        None,
    )]);
    let mut fleet = Fleet::new(&spec, (1..=3).map(endpoint).collect());
    fleet.state.recording(true);
    let raw = |fleet: &mut Fleet, cached: &[u64]| {
        let decision = fleet.choose_with(&request(), &Cached(cached.to_vec()));
        let decision = decision.unwrap();
        let scores = decision.record.as_ref().unwrap().candidates.iter();
        let scores: Vec<f64> = scores.map(|c| c.scores[0].raw.unwrap()).collect();
        let state = &mut fleet.state;
        fleet.scheduler.after_dispatch(&request(), &decision, state);
        (scores, decision.targets[0].id.0)
    };
    // Nobody had one yet: in the order of the list.
    assert_eq!(raw(&mut fleet, &[]), (vec![1.0, 0.5, 0.0], 1));
    assert_eq!(raw(&mut fleet, &[]), (vec![0.0, 1.0, 0.5], 2));
    // A hit says nothing, and changes nothing.
    assert_eq!(raw(&mut fleet, &[0, 0, 16]).0, [0.5; 3]);
    assert_eq!(raw(&mut fleet, &[]), (vec![0.5, 0.0, 1.0], 3));
    assert_eq!(raw(&mut fleet, &[]), (vec![1.0, 0.5, 0.0], 1));
    // A single endpoint.
    let mut alone = Fleet::new(&spec, vec![endpoint(1)]);
    alone.state.recording(true);
    assert_eq!(raw(&mut alone, &[]).0, [1.0]);
}
