//! Filters on tables.

use crate::{
    Endpoint, Incarnation, NoEndpoint, PluginSpec, PrefixView, RequestView,
    spec::{
        BoundedLoad, ByLabel, Condition, ConditionMetric, Expression, Operator, PickerParameters,
        PrefixAffinity, SchedulerSpec, Selector, Utilization,
    },
    tests::{Fleet, NOW, endpoint, labelled, request, sample, scraped},
};

/// Who stays, in the order of their ids.
fn staying(filter: PluginSpec, endpoints: Vec<Endpoint>) -> Vec<u64> {
    let all = PickerParameters {
        max_num_of_endpoints: 99,
    };
    let plugins = vec![(filter, None), (PluginSpec::RandomPicker(all), None)];
    let mut fleet = Fleet::new(&SchedulerSpec::one_profile(plugins), endpoints);
    let targets = match fleet.choose(&request()) {
        Ok(decision) => decision.targets,
        Err(NoEndpoint::Filtered { .. }) => return Vec::new(),
        Err(other) => panic!("{other}"),
    };
    let mut ids: Vec<_> = targets.iter().map(|target| target.id.0).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn roles() {
    let roles = [
        "decode",
        "prefill",
        "encode",
        "encode-prefill",
        "prefill-decode",
        "encode-prefill-decode",
        "both",
        "other",
    ];
    let endpoints = || {
        let labelled = (1..)
            .zip(roles)
            .map(|(id, role)| labelled(id, &[("llm-d.ai/role", role)]));
        labelled.chain([endpoint(9)]).collect()
    };
    let of = |filter| staying(filter, endpoints());
    assert_eq!(of(PluginSpec::DecodeFilter), [1, 5, 6, 7, 9]);
    assert_eq!(of(PluginSpec::PrefillFilter), [2, 4, 5, 6, 7]);
    assert_eq!(of(PluginSpec::EncodeFilter), [3, 4, 6]);
}

#[test]
fn selectors() {
    let endpoints = || {
        vec![
            labelled(1, &[("zone", "a"), ("gpu", "h100")]),
            labelled(2, &[("zone", "b"), ("gpu", "h100")]),
            labelled(3, &[("zone", "a")]),
            endpoint(4),
        ]
    };
    let by = |labels: &[(&str, &str)], expressions: &[(&str, Operator, &[&str])]| {
        let selector = Selector {
            match_labels: labels
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            match_expressions: expressions
                .iter()
                .map(|(key, operator, values)| Expression {
                    key: (*key).to_owned(),
                    operator: *operator,
                    values: values.iter().map(|v| (*v).to_owned()).collect(),
                })
                .collect(),
        };
        staying(PluginSpec::LabelSelectorFilter(selector), endpoints())
    };
    assert_eq!(by(&[], &[]), [1, 2, 3, 4]);
    assert_eq!(by(&[("zone", "a")], &[]), [1, 3]);
    assert_eq!(by(&[("zone", "a"), ("gpu", "h100")], &[]), [1]);
    assert_eq!(by(&[], &[("zone", Operator::In, &["a", "b"])]), [1, 2, 3]);
    assert_eq!(by(&[], &[("zone", Operator::NotIn, &["a"])]), [2, 4]);
    assert_eq!(by(&[], &[("gpu", Operator::Exists, &[])]), [1, 2]);
    assert_eq!(by(&[], &[("gpu", Operator::DoesNotExist, &[])]), [3, 4]);
    let both = &[
        ("zone", Operator::Exists, &[][..]),
        ("gpu", Operator::DoesNotExist, &[]),
    ];
    assert_eq!(by(&[], both), [3]);
    assert_eq!(by(&[("zone", "c")], &[]), Vec::<u64>::new());
}

#[test]
fn by_label() {
    let filter = |allows_no_label| {
        PluginSpec::ByLabel(ByLabel {
            label: "tier".to_owned(),
            valid_values: vec!["gold".to_owned(), "silver".to_owned()],
            allows_no_label,
        })
    };
    let endpoints = || {
        vec![
            labelled(1, &[("tier", "gold")]),
            labelled(2, &[("tier", "tin")]),
            endpoint(3),
        ]
    };
    assert_eq!(staying(filter(false), endpoints()), [1]);
    assert_eq!(staying(filter(true), endpoints()), [1, 3]);
}

fn limit(metric: ConditionMetric, max_value: f64, fallback_on_empty: bool) -> PluginSpec {
    PluginSpec::UtilizationFilter(Utilization {
        conditions: vec![Condition { metric, max_value }],
        fallback_on_empty,
    })
}

#[test]
fn utilization() {
    let endpoints = || {
        let mut busy = endpoint(3);
        busy.load.requests = 9;
        busy.on_sample(NOW, &sample(0.0, 9.0, 0.0));
        vec![scraped(1, 5.0, 2.0, 0.8), scraped(2, 6.0, 1.0, 0.9), busy]
    };
    let of = |metric, max, fallback| staying(limit(metric, max, fallback), endpoints());
    assert_eq!(of(ConditionMetric::WaitingQueue, 5.0, false), [1, 3]);
    assert_eq!(of(ConditionMetric::RunningRequests, 1.0, false), [2]);
    assert_eq!(of(ConditionMetric::KvCacheUtilization, 0.8, false), [1, 3]);
    assert_eq!(of(ConditionMetric::ActiveRequests, 8.0, false), [1, 2]);
}

#[test]
fn utilization_keeps_the_unknown_and_may_fall_back() {
    let metric = ConditionMetric::WaitingQueue;
    let one_full = || vec![scraped(1, 9.0, 0.0, 0.0), endpoint(2)];
    assert_eq!(staying(limit(metric, 5.0, false), one_full()), [2]);
    let full = || vec![scraped(1, 9.0, 0.0, 0.0), scraped(2, 8.0, 0.0, 0.0)];
    assert_eq!(
        staying(limit(metric, 5.0, false), full()),
        Vec::<u64>::new()
    );
    assert_eq!(staying(limit(metric, 5.0, true), full()), [1, 2]);
}

fn running(id: u64, requests: u32, weight: u32) -> Endpoint {
    let mut row = endpoint(id);
    row.load.requests = requests;
    row.weight = weight;
    row
}

#[test]
fn bounded_load() {
    let filter = |factor, min_requests| {
        PluginSpec::BoundedLoadFilter(BoundedLoad {
            factor,
            min_requests,
        })
    };
    let endpoints = || {
        vec![
            running(1, 11, 1),
            running(2, 10, 1),
            running(3, 0, 1),
            // A stand-by is no part of the mean and no matter of this filter.
            running(4, 50, 0),
        ]
    };
    // (21 + 1) x 2 / 3 = 14.7 -> 15: both stay.
    assert_eq!(staying(filter(2.0, 0), endpoints()), [1, 2, 3, 4]);
    // (21 + 1) x 1.5 / 3 = 11: 12 is over, 11 is not.
    assert_eq!(staying(filter(1.5, 0), endpoints()), [2, 3, 4]);
    assert_eq!(staying(filter(1.5, 12), endpoints()), [1, 2, 3, 4]);
    // Shares by weight: (8 + 1) x 1 x 1/3 = 3 and x 2/3 = 6.
    let uneven = vec![running(1, 3, 1), running(2, 5, 2)];
    assert_eq!(staying(filter(1.0, 0), uneven), [2]);
}

#[test]
fn bounded_load_leaves_somebody_even_at_factor_one() {
    let filter = PluginSpec::BoundedLoadFilter(BoundedLoad {
        factor: 1.0,
        min_requests: 0,
    });
    let even = (1..=7).map(|id| running(id, 3, 1)).collect();
    assert_eq!(staying(filter, even).len(), 7);
}

/// Tokens cached on each endpoint, by place.
struct Cached([u64; 3]);

impl PrefixView for Cached {
    fn cached_tokens(&self, _: &RequestView<'_>, endpoint: Incarnation) -> u64 {
        let place = usize::try_from(endpoint.0).unwrap() - 1;
        self.0[place]
    }
}

#[test]
fn prefixes_hold_unless_they_cost_too_much() {
    // 1,000 tokens of a prompt, at 1,000 a second.
    let spec = PrefixAffinity {
        max_ttft_penalty_ms: 500.0,
        peak_prefill_throughput: 1000.0,
        ..PrefixAffinity::default()
    };
    let staying = |cached: [u64; 3], loads: [u64; 3]| {
        let all = PickerParameters {
            max_num_of_endpoints: 99,
        };
        let plugins = vec![
            (PluginSpec::PrefixCacheAffinityFilter(spec.clone()), None),
            (PluginSpec::RandomPicker(all), None),
        ];
        let endpoints = loads.iter().zip(1..).map(|(tokens, id)| {
            let mut endpoint = endpoint(id);
            endpoint.load.tokens = *tokens;
            endpoint
        });
        let mut fleet = Fleet::new(&SchedulerSpec::one_profile(plugins), endpoints.collect());
        let decision = fleet.choose_with(&request(), &Cached(cached)).unwrap();
        let mut ids: Vec<_> = decision.targets.iter().map(|target| target.id.0).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(staying([800, 799, 900], [0, 0, 0]), [1, 3]);
    // Nobody holds enough of it.
    assert_eq!(staying([799, 0, 0], [0, 0, 0]), [1, 2, 3]);
    // The holder would take 200 ms + its load, the fastest other one 1 s.
    assert_eq!(staying([800, 0, 0], [1300, 0, 0]), [1]);
    assert_eq!(staying([800, 0, 0], [1301, 0, 0]), [1, 2, 3]);
    // One holder within bounds is enough for all of them.
    assert_eq!(staying([800, 0, 1000], [5000, 0, 0]), [1, 3]);
}
