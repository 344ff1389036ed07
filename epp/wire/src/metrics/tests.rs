//! Real pages, a reference parser, and pages that engines should not send.

use std::{collections::BTreeMap, path::PathBuf};

use proptest::prelude::*;

use super::*;

fn vllm(text: &str) -> RankSample {
    let sample = scan_metrics(EngineKind::Vllm, text.as_bytes());
    sample.ranks.into_iter().next().unwrap_or_default()
}

/// C12: renamed, both, and values that are no observation.
#[test]
fn kv_usage_by_either_name() {
    let old = "vllm:gpu_cache_usage_perc{model_name=\"m\"} 0.4\n";
    let new = "vllm:kv_cache_usage_perc{model_name=\"m\"} 0.9\n";
    assert_eq!(vllm(old).kv_usage, Some(0.4));
    assert_eq!(vllm(&format!("{old}{new}")).kv_usage, Some(0.9));
    assert_eq!(vllm(&format!("{new}{old}")).kv_usage, Some(0.9));
    for bad in ["NaN", "-1", "+Inf", "1.01", "x"] {
        let page = format!("vllm:kv_cache_usage_perc{{model_name=\"m\"}} {bad}\n");
        assert_eq!(vllm(&page).kv_usage, None, "{bad}");
    }
    let sglang = scan_metrics(
        EngineKind::Sglang,
        b"sglang:token_usage{model_name=\"m\"} 0.7\n",
    );
    assert_eq!(sglang.ranks[0].kv_usage, Some(0.7));
}

#[test]
fn a_cut_line_does_not_count_and_a_real_zero_does() {
    let page =
        "vllm:num_requests_running{engine=\"0\"} 0.0\nvllm:num_requests_waiting{engine=\"0\"} 1";
    let sample = scan_metrics(EngineKind::Vllm, page.as_bytes());
    assert!(sample.truncated && sample.recognised);
    assert_eq!(
        (sample.ranks[0].running, sample.ranks[0].waiting),
        (Some(0.0), None)
    );
    assert!(!scan_metrics(EngineKind::Vllm, b"vllm:num_requests_wai").recognised);
}

/// C11: absent, several label sets, odd names, no number.
#[test]
fn adapters() {
    assert_eq!(
        scan_metrics(EngineKind::Vllm, b"vllm:num_requests_running 1\n").lora,
        None
    );
    let page = b"vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} 1.6e9\nvllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"a\",waiting_lora_adapters=\"a\"} 1.7e9\n";
    let lora = scan_metrics(EngineKind::Vllm, page).lora.unwrap();
    assert_eq!(lora.loaded().into_iter().collect::<Vec<_>>(), ["a"]);
    assert_eq!(lora.max, Some(2));
    let page = b"vllm:lora_requests_info{max_lora=\"\",running_lora_adapters=\"a,,b c\"} 1\n";
    let lora = scan_metrics(EngineKind::Vllm, page).lora.unwrap();
    assert_eq!(lora.running.into_iter().collect::<Vec<_>>(), ["a", "b c"]);
    assert_eq!(lora.max, None);
}

#[test]
fn several_engines_in_one_pod() {
    let page = b"vllm:num_requests_waiting{engine=\"1\",model_name=\"m\"} 7.0\nvllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 3.0\nvllm:num_requests_running{engine=\"1\"} 2\n";
    let sample = scan_metrics(EngineKind::Vllm, page);
    let seen: Vec<_> = sample
        .ranks
        .iter()
        .map(|r| (r.rank, r.waiting, r.running))
        .collect();
    assert_eq!(seen, [(0, Some(3.0), None), (1, Some(7.0), Some(2.0))]);
}

#[test]
fn sglang_tensor_ranks_repeat_one_value() {
    let page = b"sglang:num_queue_reqs{tp_rank=\"0\"} 4\nsglang:num_queue_reqs{tp_rank=\"1\"} 4\nsglang:num_running_reqs{tp_rank=\"0\"} 9\n";
    let sample = scan_metrics(EngineKind::Sglang, page);
    assert_eq!(sample.ranks.len(), 1);
    assert_eq!(
        (sample.ranks[0].waiting, sample.ranks[0].running),
        (Some(4.0), Some(9.0))
    );
}

#[test]
fn labels_with_everything_inside() {
    let page = b"m{a=\"x\\\"}{,y\",b = \"\\\\n\\n\",} 1e3 1700000000 # {t=\"1\"} 2\n# HELP m x\n\nm 2\nbad{ 3\nm{a=\"\"} NaN\n";
    let all: Vec<_> = series(page).collect();
    assert_eq!(all.len(), 3);
    assert_eq!(all[0].value, 1000.0);
    let labels: Vec<_> = all[0]
        .labels
        .iter()
        .map(|(k, v)| (k, v.into_owned()))
        .collect();
    assert_eq!(
        labels,
        [("a", "x\"}{,y".to_owned()), ("b", "\\n\n".to_owned())]
    );
    assert_eq!((all[1].name, all[1].value), ("m", 2.0));
    assert!(all[2].value.is_nan());
}

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

/// The reference parser folds histograms together, so their parts are taken apart again.
fn reference(page: &str) -> Vec<(Key, f64)> {
    let lines = page.lines().map(|line| Ok(line.to_owned()));
    let scrape = prometheus_parse::Scrape::parse(lines).unwrap();
    let mut all = Vec::new();
    for sample in scrape.samples {
        let labels: BTreeMap<String, String> = sample
            .labels
            .iter()
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        let mut push = |name: String, extra: Option<(&str, String)>, value| {
            let mut labels = labels.clone();
            labels.extend(extra.map(|(k, v)| (k.to_owned(), v)));
            all.push(((name, labels), value));
        };
        use prometheus_parse::Value::{Counter, Gauge, Histogram, Summary, Untyped};
        match sample.value {
            Counter(value) | Gauge(value) | Untyped(value) => push(sample.metric, None, value),
            Histogram(buckets) => {
                for bucket in buckets {
                    push(
                        format!("{}_bucket", sample.metric),
                        Some(("le", bound(bucket.less_than))),
                        bucket.count,
                    );
                }
            }
            Summary(quantiles) => {
                for quantile in quantiles {
                    push(
                        sample.metric.clone(),
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

#[test]
fn captured_pages_read_as_the_reference_parser_does() {
    for (name, page) in fixtures() {
        let (ours, reference) = (ours(&page), reference(&page));
        let ours: BTreeMap<_, _> = ours
            .into_iter()
            .map(|(key, value)| (key, value.to_bits()))
            .collect();
        assert!(reference.len() > 40, "{name}: {}", reference.len());
        for (key, value) in reference {
            assert_eq!(ours.get(&key), Some(&value.to_bits()), "{name}: {key:?}");
        }
        let lines = page
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .count();
        assert_eq!(series(page.as_bytes()).count(), lines, "{name}");
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
                assert!(sample.lora.is_some_and(|lora| !lora.loaded().is_empty()));
            }
            _ => {}
        }
    }
}

type Generated = Vec<(String, BTreeMap<String, String>, i32)>;

fn samples(value: &'static str) -> impl Strategy<Value = Generated> {
    let labels = prop::collection::btree_map("[a-z_]{1,4}", value, 0..3);
    prop::collection::vec(("[a-z_][a-z0-9_]{0,6}", labels, any::<i32>()), 0..12)
}

fn written(samples: &Generated) -> String {
    let mut page = String::new();
    for (name, labels, value) in samples {
        let list: Vec<String> = labels.iter().map(|(k, v)| format!("{k}=\"{v}\"")).collect();
        let list = if list.is_empty() {
            String::new()
        } else {
            format!("{{{}}}", list.join(","))
        };
        page.push_str(&format!("{name}{list} {value}\n"));
    }
    page
}

proptest! {
    #[test]
    fn generated_pages_read_back(samples in samples("[a-z{},= .\\-]{0,8}")) {
        let expected = samples.iter().map(|(name, labels, value)| {
            ((name.clone(), labels.clone()), f64::from(*value))
        });
        prop_assert_eq!(ours(&written(&samples)), sorted(expected.collect()));
    }

    /// The reference takes commas, braces and equal signs in values for structure, so these have none.
    #[test]
    fn generated_pages_read_as_the_reference_parser_does(samples in samples("[a-z0-9 .\\-]{1,8}")) {
        let page = written(&samples);
        prop_assert_eq!(ours(&page), reference(&page));
    }

    #[test]
    fn any_bytes_are_survived(text in prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200),
        "(vllm:(num_requests_waiting|lora_requests_info|cache_config_info)(\\{([a-z]+=\"[^\n]{0,4}\"?,?){0,3}\\}?)? ?[0-9.eE+Na-]{0,5}\n?){0,5}".prop_map(String::into_bytes),
    ]) {
        scan_metrics(EngineKind::Vllm, &text);
        scan_metrics(EngineKind::Sglang, &text);
        series(&text).for_each(|series| series.labels.iter().for_each(drop));
    }
}
