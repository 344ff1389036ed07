//! Small pages, each with what is to be read of it.

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

/// C12: an old name does not speak for a new one that says nothing; a page that ends in the middle of a name keeps
/// what was whole.
#[test]
fn kv_usage_that_is_not_said() {
    let old = "vllm:gpu_cache_usage_perc{model_name=\"m\"} 0.4\n";
    for bad in ["NaN", "-1", "+Inf"] {
        let new = format!("vllm:kv_cache_usage_perc{{model_name=\"m\"}} {bad}\n");
        assert_eq!(vllm(&format!("{old}{new}")).kv_usage, None, "{bad}");
        assert_eq!(vllm(&format!("{new}{old}")).kv_usage, None, "{bad}");
    }
    let cut = format!("{old}vllm:num_requests_wai");
    let sample = scan_metrics(EngineKind::Vllm, cut.as_bytes());
    assert!(sample.truncated);
    assert_eq!(
        (sample.ranks[0].kv_usage, sample.ranks[0].waiting),
        (Some(0.4), None)
    );
}

/// Prometheus' own series, on pages of either engine; by itself it is no engine's page.
#[test]
fn when_the_process_started() {
    let started = |page: &str| scan_metrics(EngineKind::Vllm, page.as_bytes());
    let page =
        started("process_start_time_seconds 1.79607283692e+09\nvllm:num_requests_running 1\n");
    assert_eq!(
        (page.started, page.recognised),
        (Some(1_796_072_836.92), true)
    );
    for none in ["NaN", "0", "-1", "x"] {
        let page = started(&format!("process_start_time_seconds {none}\n"));
        assert_eq!((page.started, page.recognised), (None, false), "{none}");
    }
    assert_eq!(
        started("process_start_time_seconds_created 7\n").started,
        None
    );
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

/// C11 (b): two series; the one with the larger value counts; running and waiting name one adapter, which takes one
/// slot of two.
#[test]
fn an_adapter_that_runs_and_waits_is_one() {
    let page = "vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"a\",waiting_lora_adapters=\"a\"} 1.7e9\n\
        vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} 1.6e9\n";
    let lora = scan_metrics(EngineKind::Vllm, page.as_bytes())
        .lora
        .unwrap();
    let list = |set: &std::collections::BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>();
    assert_eq!(
        (list(&lora.loaded), lora.max),
        (vec!["a".to_owned()], Some(2))
    );
    assert_eq!(list(&lora.running), list(&lora.waiting));
    for (names, expected) in [
        ("a,,b", vec!["a", "b"]),
        (" a b , c ", vec!["a b", "c"]),
        (",", vec![]),
    ] {
        let page = format!(
            "vllm:lora_requests_info{{max_lora=\"x\",running_lora_adapters=\"{names}\"}} 1\n"
        );
        let lora = scan_metrics(EngineKind::Vllm, page.as_bytes())
            .lora
            .unwrap();
        assert_eq!(
            (list(&lora.running), lora.max),
            (
                expected.iter().map(|name| (*name).to_owned()).collect(),
                None
            )
        );
    }
}

/// C11: absent, several label sets, odd names, no number.
#[test]
fn adapters() {
    assert_eq!(
        scan_metrics(EngineKind::Vllm, b"vllm:num_requests_running 1\n").lora,
        None
    );
    let old = "vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} 1.6e9\n";
    let new = "vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"a\",waiting_lora_adapters=\"a\"} 1.7e9\n";
    for page in [format!("{old}{new}"), format!("{new}{old}")] {
        let lora = scan_metrics(EngineKind::Vllm, page.as_bytes())
            .lora
            .unwrap();
        assert_eq!(lora.loaded.iter().collect::<Vec<_>>(), ["a"]);
        assert_eq!(lora.max, Some(2));
    }
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

/// Tensor ranks repeat, data-parallel ranks do not, and a page size that is not written is not known.
#[test]
fn an_sglang_page() {
    let page = br#"# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="qwen",moe_ep_rank="0",pp_rank="0",tp_rank="0",dp_rank="0"} 9.0
sglang:num_running_reqs{engine_type="unified",model_name="qwen",moe_ep_rank="0",pp_rank="0",tp_rank="1",dp_rank="0"} 8.0
sglang:num_running_reqs{engine_type="unified",model_name="qwen",moe_ep_rank="0",pp_rank="0",tp_rank="0",dp_rank="1"} 2.0
sglang:num_queue_reqs{model_name="qwen",tp_rank="0",dp_rank="0"} 4.0
sglang:token_usage{model_name="qwen",tp_rank="0",dp_rank="0"} 0.25
sglang:token_usage{model_name="qwen",tp_rank="1",dp_rank="0"} NaN
sglang:max_total_num_tokens{model_name="qwen",tp_rank="0",dp_rank="0"} 1.2e+05
sglang:cache_hit_rate{model_name="qwen",tp_rank="0",dp_rank="0"} 0.5
"#;
    assert_eq!(detect(page), Some(EngineKind::Sglang));
    let sample = scan_metrics(EngineKind::Sglang, page);
    assert!(sample.recognised && !sample.truncated && sample.lora.is_none());
    let [zero, one] = &sample.ranks[..] else {
        panic!("{sample:?}");
    };
    assert_eq!(
        (zero.rank, zero.running, zero.waiting),
        (0, Some(9.0), Some(4.0))
    );
    assert_eq!(
        (zero.kv_usage, zero.capacity_tokens),
        (Some(0.25), Some(120_000))
    );
    assert_eq!(
        (zero.block_size, zero.model.as_deref()),
        (None, Some("qwen"))
    );
    assert_eq!((one.rank, one.running, one.waiting), (1, Some(2.0), None));
    assert!(!scan_metrics(EngineKind::Vllm, page).recognised);
}

#[test]
fn older_names_of_counters() {
    let old = "vllm:gpu_prefix_cache_queries_total 10\nvllm:gpu_prefix_cache_hits_total 4\n";
    let new = "vllm:prefix_cache_queries_total 30\nvllm:prefix_cache_hits_total NaN\nvllm:num_preemptions_total 2\n";
    let (only_old, both) = (vllm(old), vllm(&format!("{new}{old}")));
    assert_eq!(
        (only_old.prefix_queries, only_old.prefix_hits),
        (Some(10.0), Some(4.0))
    );
    // The new name is there and says nothing: the old one does not speak for it.
    assert_eq!((both.prefix_queries, both.prefix_hits), (Some(30.0), None));
    assert_eq!(both.preemptions, Some(2.0));
    assert_eq!(vllm("vllm:num_preemptions_total -1\n").preemptions, None);
}

#[test]
fn cache_description_and_sleep() {
    let page = "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"None\",kv_cache_size_tokens=\"640\"} 1.0\n";
    let rank = vllm(page);
    assert_eq!(
        (rank.block_size, rank.num_blocks, rank.capacity_tokens),
        (Some(16), None, Some(640))
    );
    let state = |awake: &str, level: &str| {
        vllm(&format!(
            "vllm:engine_sleep_state{{engine=\"0\",sleep_state=\"awake\"}} {awake}\nvllm:engine_sleep_state{{engine=\"0\",sleep_state=\"weights_offloaded\"}} {level}\n"
        ))
        .sleeping
    };
    assert_eq!(state("1.0", "0.0"), Some(false));
    assert_eq!(state("0.0", "1.0"), Some(true));
    assert_eq!(state("NaN", "0.0"), None);
    assert_eq!(vllm("vllm:engine_sleep_state 1\n").sleeping, None);
}

#[test]
fn openmetrics_ends_and_foreign_ends() {
    let scan = |text: &str| scan_metrics(EngineKind::Vllm, text.as_bytes());
    let page = "vllm:num_requests_running 3\n# EOF";
    assert!(!scan(page).truncated);
    assert_eq!(scan(page).ranks[0].running, Some(3.0));
    let windows = "vllm:num_requests_running{engine=\"0\"} 3\r\nvllm:num_requests_waiting 1\r\n";
    assert_eq!(
        (
            scan(windows).ranks[0].running,
            scan(windows).ranks[0].waiting
        ),
        (Some(3.0), Some(1.0))
    );
    assert_eq!(scan(""), MetricsSample::default());
    assert_eq!(scan("<html>502</html>\n"), MetricsSample::default());
    assert_eq!(detect(b"# HELP vllm:x\npython_info 1\n"), None);
}

/// A page cannot make a reader slow or large by inventing ranks.
#[test]
fn ranks_are_bounded() {
    let mut page = String::new();
    for rank in (0..4 * MAX_RANKS).rev() {
        page.push_str(&format!(
            "vllm:num_requests_waiting{{engine=\"{rank}\"}} 1\n"
        ));
    }
    let sample = scan_metrics(EngineKind::Vllm, page.as_bytes());
    assert_eq!(sample.ranks.len(), MAX_RANKS);
    assert!(sample.ranks.is_sorted_by_key(|rank| rank.rank));
}

#[test]
fn a_reused_sample_forgets_the_page_before() {
    let mut sample = scan_metrics(EngineKind::Vllm, b"vllm:num_requests_running{engine=\"3\"} 1\nvllm:lora_requests_info{max_lora=\"1\"} 1\ncut");
    assert!(sample.truncated && sample.lora.is_some());
    scan_into(
        EngineKind::Vllm,
        b"vllm:num_requests_waiting 2\n",
        &mut sample,
    );
    assert_eq!(
        sample,
        scan_metrics(EngineKind::Vllm, b"vllm:num_requests_waiting 2\n")
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

/// The gate on first bytes lets every name through that has a meaning.
#[test]
fn no_wanted_name_is_passed_over() {
    for kind in [EngineKind::Vllm, EngineKind::Sglang] {
        let names = names::names(kind);
        let mut known = 0;
        for name in [
            "num_requests_waiting",
            "num_requests_running",
            "kv_cache_usage_perc",
            "gpu_cache_usage_perc",
            "num_preemptions_total",
            "prefix_cache_queries_total",
            "gpu_prefix_cache_queries_total",
            "prefix_cache_hits_total",
            "gpu_prefix_cache_hits_total",
            "cache_config_info",
            "engine_sleep_state",
            "lora_requests_info",
            "num_queue_reqs",
            "num_running_reqs",
            "token_usage",
            "max_total_num_tokens",
        ] {
            if (names.meaning)(name.as_bytes()).is_some() {
                known += 1;
                assert!(names.first.contains(&name.as_bytes()[0]), "{name}");
            }
        }
        assert_eq!(known, if kind == EngineKind::Vllm { 12 } else { 5 });
    }
}

proptest! {
    #[test]
    fn any_bytes_are_survived(text in prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200),
        "((vllm|sglang):(num_requests_waiting|lora_requests_info|cache_config_info|token_usage)(\\{([a-z]+=\"[^\n]{0,4}\"?,?){0,3}\\}?)? ?[0-9.eE+Na-]{0,5}\n?){0,5}".prop_map(String::into_bytes),
    ]) {
        for kind in [EngineKind::Vllm, EngineKind::Sglang] {
            for rank in scan_metrics(kind, &text).ranks {
                prop_assert!(rank.kv_usage.is_none_or(|usage| (0.0..=1.0).contains(&usage)));
                prop_assert!(rank.waiting.is_none_or(|waiting| waiting.is_finite() && waiting >= 0.0));
            }
        }
        series(&text).for_each(|series| series.labels.iter().for_each(drop));
    }
}
