//! The metrics scanner against a reference parser: on every captured page and on generated ones.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, which is its job"
)]

use std::{collections::BTreeMap, path::PathBuf};

use prometheus_parse::Value::{Counter, Gauge, Histogram, Summary, Untyped};
use proptest::prelude::*;
use wicketgate_wire::{
    EngineKind, detect,
    metrics::{Series, series},
    scan_metrics,
};

type Key = (String, BTreeMap<String, String>);

fn ours(page: &str) -> Vec<(Key, f64)> {
    let read = |series: Series<'_>| {
        let labels = series
            .labels
            .iter()
            .map(|(k, v)| (k.to_owned(), v.into_owned()));
        ((series.name.to_owned(), labels.collect()), series.value)
    };
    sorted(series(page.as_bytes()).map(read).collect())
}

/// Stands for a colon in a name: the reference parser takes no name that has one, so without this it would see
/// nothing of an engine's series.
const COLON: &str = "__colon__";

fn without_colons(line: &str) -> String {
    let comment = line
        .strip_prefix("# HELP ")
        .or(line.strip_prefix("# TYPE "));
    let name = comment.unwrap_or(line).split(['{', ' ']).next().unwrap();
    line.replacen(name, &name.replace(':', COLON), 1)
}

/// The reference parser folds histograms together, so their parts are taken apart again.
fn reference(page: &str) -> Vec<(Key, f64)> {
    let lines = page.lines().map(|line| Ok(without_colons(line)));
    let scrape = prometheus_parse::Scrape::parse(lines).unwrap();
    let mut all = Vec::new();
    for sample in scrape.samples {
        let labels: BTreeMap<String, String> = sample
            .labels
            .iter()
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        let metric = sample.metric.replace(COLON, ":");
        let mut push = |name: String, extra: Option<(&str, String)>, value| {
            let mut labels = labels.clone();
            labels.extend(extra.map(|(k, v)| (k.to_owned(), v)));
            all.push(((name, labels), value));
        };
        match sample.value {
            Counter(value) | Gauge(value) | Untyped(value) => push(metric, None, value),
            Histogram(buckets) => {
                for bucket in buckets {
                    push(
                        format!("{metric}_bucket"),
                        Some(("le", bound(bucket.less_than))),
                        bucket.count,
                    );
                }
            }
            Summary(quantiles) => {
                for quantile in quantiles {
                    push(
                        metric.clone(),
                        Some(("quantile", bound(quantile.quantile))),
                        quantile.count,
                    );
                }
            }
        }
    }
    sorted(all)
}

fn bound(value: f64) -> String {
    value.to_string()
}

/// Bounds are compared as numbers: `+Inf`, `inf` and `5`, `5.0` are the same.
fn sorted(mut all: Vec<(Key, f64)>) -> Vec<(Key, f64)> {
    for ((_, labels), _) in &mut all {
        for name in ["le", "quantile"] {
            if let Some(value) = labels.get_mut(name)
                && let Ok(number) = value.parse()
            {
                *value = bound(number);
            }
        }
    }
    all.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    all
}

fn fixtures() -> Vec<(String, String)> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures/vllm");
    let Ok(entries) = std::fs::read_dir(&root) else {
        eprintln!("skipped: captured metrics pages absent");
        return Vec::new();
    };
    let mut pages = Vec::new();
    for entry in entries {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("metrics_") && name.ends_with(".txt") {
            pages.push((name, std::fs::read_to_string(path).unwrap()));
        }
    }
    assert!(!pages.is_empty());
    pages.sort();
    pages
}

/// The reference splits labels at every comma and equal sign, and ends them at every brace, quoted or not.
fn beyond_the_reference(line: &str) -> bool {
    let value = |value: &str| value.contains([',', '=', '{', '}', '\\', '"']);
    let mut all = ours(&format!("{line}\n"));
    all.pop()
        .is_some_and(|((_, labels), _)| labels.values().any(|text| value(text)))
}

#[test]
fn captured_pages_read_as_the_reference_parser_does() {
    for (name, page) in fixtures() {
        let lines = page
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .count();
        assert_eq!(series(page.as_bytes()).count(), lines, "{name}");
        let (beyond, plain): (Vec<&str>, Vec<&str>) =
            page.lines().partition(|line| beyond_the_reference(line));
        for line in &beyond {
            assert!(
                line.starts_with("vllm:lora_requests_info{"),
                "{name}: {line}"
            );
        }
        let plain = plain.join("\n") + "\n";
        let (ours, reference) = (bits(ours(&plain)), bits(reference(&plain)));
        assert_eq!(ours, reference, "{name}");
        let engine = ours
            .iter()
            .filter(|((metric, _), _)| metric.starts_with("vllm:"));
        assert!(engine.count() > 250, "{name}");
    }
}

#[test]
fn captured_pages_give_the_routing_values() {
    let value = |page: &str, name: &str| {
        let found = series(page.as_bytes()).find(|series| series.name == name);
        found.map(|series| series.value)
    };
    for (name, page) in fixtures() {
        assert_eq!(detect(page.as_bytes()), Some(EngineKind::Vllm), "{name}");
        let sample = scan_metrics(EngineKind::Vllm, page.as_bytes());
        assert!(sample.recognised && !sample.truncated, "{name}");
        assert_eq!(
            sample.ranks.len(),
            if name.contains("dp2") { 2 } else { 1 },
            "{name}"
        );
        let rank = &sample.ranks[0];
        assert_eq!(
            rank.running,
            value(&page, "vllm:num_requests_running"),
            "{name}"
        );
        assert_eq!(
            rank.waiting,
            value(&page, "vllm:num_requests_waiting"),
            "{name}"
        );
        assert_eq!(
            rank.kv_usage,
            value(&page, "vllm:kv_cache_usage_perc"),
            "{name}"
        );
        assert!(
            rank.block_size.is_some() && rank.num_blocks.is_some(),
            "{name}"
        );
        assert!(
            rank.running.is_some() && rank.kv_usage.is_some() && rank.model.is_some(),
            "{name}"
        );
        match name.as_str() {
            "metrics_loaded.txt" => {
                assert_eq!((rank.running, rank.waiting), (Some(128.0), Some(43.0)))
            }
            "metrics_loaded_lora_queue.txt" => {
                assert_eq!((rank.running, rank.waiting), (Some(4.0), Some(20.0)));
                assert!(sample.lora.is_some_and(|lora| !lora.loaded.is_empty()));
            }
            _ => {}
        }
    }
}

type Generated = Vec<(String, BTreeMap<String, String>, String)>;

/// A value, with a time stamp or without.
fn number() -> impl Strategy<Value = String> {
    let value = prop_oneof![
        any::<i32>().prop_map(|value| value.to_string()),
        any::<f64>().prop_map(|value| value.to_string()),
        prop::sample::select(&["0", "0.0", "1e3", "1.5E-7", "+Inf", "-Inf", "NaN"][..])
            .prop_map(str::to_owned),
    ];
    (value, prop::option::of(0..2_000_000_000_000_i64)).prop_map(|(value, stamp)| match stamp {
        Some(stamp) => format!("{value} {stamp}"),
        None => value,
    })
}

fn samples(value: &'static str) -> impl Strategy<Value = Generated> {
    let labels = prop::collection::btree_map("[a-z_]{1,4}", value, 0..3);
    prop::collection::vec(("[a-z_][a-z0-9_:]{0,6}", labels, number()), 0..12)
}

fn written(samples: &Generated, comments: bool) -> String {
    let mut page = String::new();
    for (name, labels, value) in samples {
        let list: Vec<String> = labels.iter().map(|(k, v)| format!("{k}=\"{v}\"")).collect();
        let list = if list.is_empty() {
            String::new()
        } else {
            format!("{{{}}}", list.join(","))
        };
        if comments {
            page.push_str(&format!(
                "# HELP {name} some {{help}} 1\n# TYPE {name} gauge\n\n"
            ));
        }
        page.push_str(&format!("{name}{list} {value}\n"));
    }
    page
}

/// Bits, so that NaN equals itself.
fn bits(all: Vec<(Key, f64)>) -> Vec<(Key, u64)> {
    let mut all: Vec<_> = all
        .into_iter()
        .map(|(key, value)| {
            (
                key,
                if value.is_nan() {
                    f64::NAN.to_bits()
                } else {
                    value.to_bits()
                },
            )
        })
        .collect();
    all.sort();
    all
}

/// A page of vLLM's routing series for a few ranks, among others.
fn routing_page() -> impl Strategy<Value = Generated> {
    let name = prop::sample::select(
        &[
            "vllm:num_requests_waiting",
            "vllm:num_requests_running",
            "vllm:kv_cache_usage_perc",
            "vllm:gpu_cache_usage_perc",
            "vllm:num_requests_waiting_by_reason",
            "vllm:num_requests",
            "vllm:kv_cache_usage_percent",
            "sglang:num_requests_waiting",
        ][..],
    )
    .prop_map(str::to_owned);
    let engine = prop::option::of(0..3_u32);
    let value = prop_oneof![
        3 => (0..=20_u32).prop_map(|value| (f64::from(value) / 10.0).to_string()),
        1 => prop::sample::select(&["NaN", "+Inf", "-1"][..]).prop_map(str::to_owned),
    ];
    prop::collection::vec((name, engine, value), 0..14).prop_map(|all| {
        let line = |(name, engine, value): (String, Option<u32>, String)| {
            let mut labels = BTreeMap::from([("model_name".to_owned(), "m".to_owned())]);
            labels.extend(engine.map(|engine| ("engine".to_owned(), engine.to_string())));
            (name, labels, value)
        };
        all.into_iter().map(line).collect()
    })
}

/// The largest usable value of a name at a rank; `None` if the name is not there, `Some(None)` if it says nothing.
fn largest(page: &[(Key, f64)], name: &str, rank: &str, most: f64) -> Option<Option<f64>> {
    let of_rank = page.iter().filter(|((known, labels), _)| {
        known == name && labels.get("engine").map_or("0", String::as_str) == rank
    });
    let values: Vec<f64> = of_rank.map(|(_, value)| *value).collect();
    let usable = values
        .iter()
        .copied()
        .filter(|value| (0.0..=most).contains(value) && value.is_finite());
    (!values.is_empty()).then(|| usable.reduce(f64::max))
}

proptest! {
    #[test]
    fn generated_pages_read_back(samples in samples("[a-z{},= .\\-]{0,8}"), comments in any::<bool>()) {
        let expected = samples.iter().map(|(name, labels, value)| {
            let value = value.split(' ').next().unwrap().parse().unwrap();
            ((name.clone(), labels.clone()), value)
        });
        prop_assert_eq!(bits(ours(&written(&samples, comments))), bits(sorted(expected.collect())));
    }

    /// The reference takes commas, braces and equal signs in values for structure, so these have none.
    #[test]
    fn generated_pages_read_as_the_reference_parser_does(samples in samples("[a-z0-9 .\\-]{1,8}"), comments in any::<bool>()) {
        let page = written(&samples, comments);
        prop_assert_eq!(bits(ours(&page)), bits(reference(&page)));
    }

    /// The selective scan takes of the reference's samples what its rules say.
    #[test]
    fn the_routing_values_are_the_reference_parsers(samples in routing_page()) {
        let page = written(&samples, true);
        let all = reference(&page);
        let sample = scan_metrics(EngineKind::Vllm, page.as_bytes());
        for rank in ["0", "1", "2"] {
            let found = sample.ranks.iter().find(|known| known.rank.to_string() == rank);
            let value = |name, most| largest(&all, name, rank, most);
            let waiting = value("vllm:num_requests_waiting", f64::MAX);
            let running = value("vllm:num_requests_running", f64::MAX);
            let usage = value("vllm:kv_cache_usage_perc", 1.0).or(value("vllm:gpu_cache_usage_perc", 1.0));
            prop_assert_eq!(found.is_some(), waiting.is_some() || running.is_some() || usage.is_some());
            prop_assert_eq!(found.and_then(|rank| rank.waiting), waiting.flatten());
            prop_assert_eq!(found.and_then(|rank| rank.running), running.flatten());
            prop_assert_eq!(found.and_then(|rank| rank.kv_usage), usage.flatten());
        }
    }
}
