//! Eligibility, tiers, fallbacks, weights, slow start, records.

use std::net::{IpAddr, Ipv4Addr};

use super::{Fleet, NOW, endpoint, labelled, request, scraped, spec};
use crate::{
    Endpoint, Incarnation, Neutral, NoEndpoint, PluginSpec, RequestView, SECOND, SchedulerSpec,
    SlowStart, SubsetEntry,
    record::Removal,
    spec::{ActiveRequest, PickerParameters, PrefixCache, SchedulerSpec as Spec},
};

fn picker(places: u32) -> PluginSpec {
    PluginSpec::MaxScorePicker(PickerParameters {
        max_num_of_endpoints: places,
    })
}

fn queue(places: u32) -> Spec {
    spec(vec![PluginSpec::QueueScorer, picker(places)])
}

fn ids(fleet: &mut Fleet, request: &RequestView<'_>) -> Vec<u64> {
    let decision = fleet.choose(request).unwrap();
    decision.targets.iter().map(|target| target.id.0).collect()
}

fn eject(endpoint: &mut Endpoint) {
    for _ in 0..5 {
        endpoint.health.record(NOW, false, &Default::default());
    }
}

fn entry(last: u8, port: Option<u16>) -> SubsetEntry {
    SubsetEntry {
        ip: IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)),
        port,
    }
}

#[test]
fn each_empty_stage_has_its_own_error() {
    let mut fleet = Fleet::new(&queue(1), Vec::new());
    assert_eq!(fleet.choose(&request()), Err(NoEndpoint::Empty));

    let mut draining = endpoint(1);
    draining.draining = true;
    fleet.endpoints = vec![draining.clone()];
    assert_eq!(fleet.choose(&request()), Err(NoEndpoint::Empty));

    fleet.endpoints = vec![draining, endpoint(2)];
    for subset in [vec![], vec![entry(1, None)], vec![entry(2, Some(1))]] {
        let view = RequestView {
            subset: Some(&subset),
            ..request()
        };
        assert_eq!(fleet.choose(&view), Err(NoEndpoint::Subset), "{subset:?}");
    }

    eject(&mut fleet.endpoints[1]);
    assert_eq!(fleet.choose(&request()), Err(NoEndpoint::Ejected));

    let mut fleet = Fleet::new(&spec(vec![PluginSpec::PrefillFilter]), vec![endpoint(1)]);
    let by = "prefill-filter".into();
    assert_eq!(fleet.choose(&request()), Err(NoEndpoint::Filtered { by }));
}

#[test]
fn a_subset_is_honoured_with_its_ports() {
    let endpoints = vec![endpoint(1), endpoint(2), endpoint(3)];
    let mut fleet = Fleet::new(&queue(9), endpoints);
    let subset = [entry(2, Some(8000)), entry(3, Some(8001)), entry(2, None)];
    let view = RequestView {
        subset: Some(&subset),
        ..request()
    };
    assert_eq!(ids(&mut fleet, &view), [2]);
}

#[test]
fn the_fallback_list_is_ordered_and_bounded() {
    let endpoints = vec![
        scraped(1, 5.0, 0.0, 0.0),
        scraped(2, 1.0, 0.0, 0.0),
        scraped(3, 3.0, 0.0, 0.0),
        scraped(4, 0.0, 0.0, 0.0),
    ];
    let mut fleet = Fleet::new(&queue(3), endpoints.clone());
    assert_eq!(ids(&mut fleet, &request()), [4, 2, 3]);
    let mut fleet = Fleet::new(&queue(9), endpoints);
    assert_eq!(ids(&mut fleet, &request()), [4, 2, 3, 1]);
}

#[test]
fn stand_bys_come_after_everybody_with_a_weight() {
    let mut idle = scraped(1, 0.0, 0.0, 0.0);
    idle.weight = 0;
    let busy = scraped(2, 9.0, 0.0, 0.0);
    let mut fleet = Fleet::new(&queue(1), vec![idle.clone(), busy.clone()]);
    assert_eq!(fleet.tally(50), [(2, 50)].into());
    fleet.endpoints[1].draining = true;
    assert_eq!(fleet.tally(50), [(1, 50)].into());
    let mut fleet = Fleet::new(&queue(3), vec![idle, busy]);
    assert_eq!(ids(&mut fleet, &request()), [2, 1]);
}

#[test]
fn a_filter_may_leave_the_stand_by_alone() {
    let mut prefill = labelled(1, &[("llm-d.ai/role", "prefill")]);
    prefill.weight = 0;
    let plugins = vec![PluginSpec::PrefillFilter, picker(2)];
    let mut fleet = Fleet::new(&spec(plugins), vec![prefill, endpoint(2)]);
    assert_eq!(ids(&mut fleet, &request()), [1]);
}

#[test]
fn weights_share_ties_and_own_load() {
    let mut light = scraped(1, 0.0, 0.0, 0.0);
    light.weight = 1;
    let mut heavy = scraped(2, 0.0, 0.0, 0.0);
    heavy.weight = 3;
    let mut fleet = Fleet::new(&queue(1), vec![light.clone(), heavy.clone()]);
    let tally = fleet.tally(4_000);
    assert!((850..1150).contains(&tally[&1]), "{tally:?}");

    let own = PluginSpec::ActiveRequestScorer(ActiveRequest::default());
    let mut fleet = Fleet::new(&spec(vec![own]), vec![light, heavy]);
    for _ in 0..400 {
        fleet.dispatch(&request(), &crate::NoPrefix);
    }
    let loads: Vec<_> = fleet.endpoints.iter().map(|e| e.load.requests).collect();
    assert_eq!(loads, [100, 300]);
}

#[test]
fn the_weighted_random_picker_follows_scores_and_weights() {
    let random = PluginSpec::WeightedRandomPicker(PickerParameters::default());
    let plugins = vec![PluginSpec::KvCacheUtilizationScorer, random];
    // Scores 0.2 and 0.8 with weights 3 and 1: shares 0.6 to 0.8.
    let mut first = scraped(1, 0.0, 0.0, 0.8);
    first.weight = 3;
    let mut fleet = Fleet::new(&spec(plugins), vec![first, scraped(2, 0.0, 0.0, 0.2)]);
    let tally = fleet.tally(7_000);
    assert!((2_790..3_210).contains(&tally[&1]), "{tally:?}");
}

#[test]
fn a_newcomer_ramps_up() {
    let plugins = || {
        let random = PluginSpec::WeightedRandomPicker(PickerParameters::default());
        vec![PluginSpec::KvCacheUtilizationScorer, random]
    };
    let mut new = scraped(2, 0.0, 0.0, 0.0);
    new.joined = NOW;
    let mut fleet = Fleet::new(&spec(plugins()), vec![scraped(1, 0.0, 0.0, 0.0), new]);
    fleet.policy.slow_start = SlowStart {
        window: 10 * SECOND,
        floor: 0.0,
    };
    fleet.policy.stale_after = 100 * SECOND;
    assert_eq!(fleet.tally(1_000), [(1, 1_000)].into());
    // Half way its share is 0.5 against 1: a third.
    fleet.now = NOW + 5 * SECOND;
    let tally = fleet.tally(3_000);
    assert!((870..1130).contains(&tally[&2]), "{tally:?}");
    fleet.now = NOW + 10 * SECOND;
    let tally = fleet.tally(2_000);
    assert!((890..1110).contains(&tally[&2]), "{tally:?}");
}

#[test]
fn a_recovered_endpoint_ramps_up_again() {
    let mut back = endpoint(1);
    let slow = SlowStart {
        window: 10 * SECOND,
        floor: 0.0,
    };
    assert_eq!(back.ramp(NOW, &slow), 1.0);
    eject(&mut back);
    let healed = NOW + 5 * SECOND;
    back.health.record(healed, true, &Default::default());
    assert_eq!(back.ramp(healed, &slow), 0.0);
    assert_eq!(back.ramp(healed + 5 * SECOND, &slow), 0.5);
    assert_eq!(back.ramp(healed + 10 * SECOND, &slow), 1.0);
}

#[test]
fn a_probe_is_the_target_once_and_never_a_fallback() {
    let mut back = scraped(1, 0.0, 0.0, 0.0);
    eject(&mut back);
    let mut fleet = Fleet::new(&queue(3), vec![back, scraped(2, 1.0, 0.0, 0.0)]);
    fleet.policy.stale_after = 100 * SECOND;
    assert_eq!(ids(&mut fleet, &request()), [2]);
    fleet.now = NOW + 5 * SECOND;
    assert_eq!(ids(&mut fleet, &request()), [1, 2]);
    fleet.endpoints[1].on_sample(NOW, &super::sample(0.0, 0.0, 0.0));
    fleet.endpoints[0].on_sample(NOW, &super::sample(1.0, 0.0, 0.0));
    assert_eq!(ids(&mut fleet, &request()), [2]);
    fleet.endpoints[0].on_sample(NOW, &super::sample(0.0, 0.0, 0.0));
    fleet.endpoints[1].on_sample(NOW, &super::sample(1.0, 0.0, 0.0));
    let now = fleet.now;
    fleet.endpoints[0].on_dispatch(now, 1);
    assert_eq!(ids(&mut fleet, &request()), [2]);
    let health = fleet.policy.health.clone();
    fleet.endpoints[0].health.record(now, true, &health);
    assert_eq!(ids(&mut fleet, &request()).len(), 2);
}

#[test]
fn a_fixed_neutral_value_counts_for_the_silent() {
    let mut silent = scraped(1, 0.0, 0.0, 0.0);
    silent.telemetry.kv_usage = None;
    let endpoints = vec![silent, scraped(2, 0.0, 0.0, 0.5)];
    let plugins = vec![PluginSpec::KvCacheUtilizationScorer];
    let mut fleet = Fleet::new(&spec(plugins), endpoints);
    fleet.policy.neutral = Neutral::Fixed(0.6);
    assert_eq!(fleet.tally(50), [(1, 50)].into());
    fleet.policy.neutral = Neutral::Fixed(0.4);
    assert_eq!(fleet.tally(50), [(2, 50)].into());
}

#[test]
fn the_total_is_the_weighted_sum_of_clamped_scores() {
    let plugins = vec![
        (PluginSpec::QueueScorer, Some(2.0)),
        (PluginSpec::KvCacheUtilizationScorer, Some(0.5)),
        (
            PluginSpec::PrefixCacheScorer(PrefixCache::default()),
            Some(3.0),
        ),
    ];
    let endpoints = vec![scraped(1, 4.0, 0.0, 0.25), scraped(2, 0.0, 0.0, 1.0)];
    let mut fleet = Fleet::new(&SchedulerSpec::one_profile(plugins), endpoints);
    fleet.state.recording(true);
    struct Half;
    impl crate::PrefixView for Half {
        fn cached_tokens(&self, request: &RequestView<'_>, endpoint: Incarnation) -> u64 {
            if endpoint.0 == 1 {
                request.prompt_tokens / 2
            } else {
                0
            }
        }
    }
    let decision = fleet.choose_with(&request(), &Half).unwrap();
    let record = decision.record.unwrap();
    let totals: Vec<_> = record.candidates.iter().map(|c| c.total).collect();
    assert_eq!(totals, [0.5 * 0.75 + 3.0 * 0.5, 2.0]);
    assert_eq!(record.candidates[0].cached_tokens, 500);
    assert_eq!(record.chosen, [Incarnation(2)]);
}

#[test]
fn the_record_says_who_went_out_and_why() {
    let mut draining = endpoint(1);
    draining.draining = true;
    let mut ejected = endpoint(2);
    eject(&mut ejected);
    let mut stand_by = labelled(3, &[("llm-d.ai/role", "decode")]);
    stand_by.weight = 0;
    let prefill = labelled(4, &[("llm-d.ai/role", "prefill")]);
    let mut far = endpoint(6);
    far.update(&crate::EndpointSpec::new("ns/far", "10.9.0.6:8000"));
    let subset: Vec<_> = (1..=9).map(|last| entry(last, None)).collect();
    let view = RequestView {
        subset: Some(&subset),
        ..request()
    };
    let endpoints = vec![draining, ejected, stand_by, prefill, endpoint(5), far];
    let mut fleet = Fleet::new(&spec(vec![PluginSpec::DecodeFilter]), endpoints);
    assert_eq!(fleet.choose(&view).unwrap().record, None);
    fleet.state.recording(true);
    let record = fleet.choose(&view).unwrap().record.unwrap();
    let mut why: Vec<_> = record.removed.iter().map(|r| (r.id.0, &r.why)).collect();
    why.sort_by_key(|(id, _)| *id);
    let until = NOW + 5 * SECOND;
    let expected = [
        (1, &Removal::Draining),
        (2, &Removal::Ejected { until }),
        (3, &Removal::StandBy),
        (4, &Removal::Filter("decode-filter".into())),
        (6, &Removal::Subset),
    ];
    assert_eq!(why, expected);
    assert_eq!(record.candidates.len(), 1);
    assert_eq!(record.chosen, [Incarnation(5)]);
}
