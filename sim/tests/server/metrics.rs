//! The page of metrics against pages of a real vLLM.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;
use wicketgate_sim::{
    batch::KvEvent,
    engine::{EngineConfig, KvEventSink, spawn_with, start},
};
use wicketgate_wire::metrics::{EngineKind, scan_metrics, series};

use crate::{
    client::{full, get, post, request, send},
    fixtures, frozen, instant, until, until_empty,
};

/// What routing reads.
const ROUTING: [&str; 17] = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_requests_waiting_by_reason",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
    "vllm:num_preemptions_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:external_prefix_cache_queries_total",
    "vllm:external_prefix_cache_hits_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_cached_by_source_total",
    "vllm:request_success_total",
    "vllm:admission_rejections_total",
    "vllm:engine_sleep_state",
    "vllm:lora_requests_info",
];

/// Label keys of each series, with the values of labels that count something.
fn labels(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for series in series(page.as_bytes()) {
        let mut keys: Vec<String> = series
            .labels
            .iter()
            .map(|(key, value)| match key {
                "reason" | "source" | "sleep_state" | "finished_reason" | "engine" => {
                    format!("{key}={value}")
                }
                _ => key.to_owned(),
            })
            .collect();
        keys.sort();
        all.entry(series.name.to_owned())
            .or_default()
            .insert(keys.join(","));
    }
    all
}

#[tokio::test]
async fn the_routing_series_are_vllms() {
    let engine = instant().await;
    let ours = labels(&get(engine.address(), "/metrics").await.body);
    let Some(page) = fixtures::read("metrics_loaded.txt") else {
        return;
    };
    let theirs = labels(&page);
    for name in ROUTING
        .iter()
        .filter(|name| **name != "vllm:lora_requests_info")
    {
        assert!(theirs.contains_key(*name), "{name} is not in the capture");
        assert_eq!(ours.get(*name), theirs.get(*name), "{name}");
    }
    // Whatever else we show is vLLM's too.
    for (name, labels) in &ours {
        assert_eq!(theirs.get(name), Some(labels), "{name}");
    }
}

#[tokio::test]
async fn a_loaded_page_reads_like_vllms() {
    // A step takes about 14 ms and an answer minutes: the state lasts.
    let loras = vec!["food".into(), "law".into()];
    let config = EngineConfig {
        max_num_seqs: 2,
        loras,
        time_scale: 1.0,
        ..frozen()
    };
    let engine = start(config).await.unwrap();
    let mut open = Vec::new();
    for model in ["food", "food", "law"] {
        let body =
            json!({"model": model, "prompt": vec![1; 320], "stream": true, "max_tokens": 30_000})
                .to_string();
        let call = request(
            "POST",
            "/v1/completions",
            &[("content-type", "application/json")],
            full(body),
        );
        open.push(send(engine.address(), call).await.unwrap());
    }
    until(&engine, "two running, one waiting", |stats| {
        (stats.running, stats.waiting) == (2, 1)
    })
    .await;
    let page = get(engine.address(), "/metrics").await;
    assert_eq!(
        page.headers["content-type"],
        "text/plain; version=1.0.0; charset=utf-8"
    );
    let sample = scan_metrics(EngineKind::Vllm, page.body.as_bytes());
    let rank = &sample.ranks[0];
    assert_eq!(rank.model.as_deref(), Some("m"));
    assert_eq!((rank.running, rank.waiting), (Some(2.0), Some(1.0)));
    assert_eq!((rank.block_size, rank.num_blocks), (Some(16), Some(19_209)));
    // Twice 320 tokens and a bit in blocks of 16; the second one found 19 blocks of the first.
    let usage = rank.kv_usage.unwrap();
    assert!((21.0 / 19_208.0..0.1).contains(&usage), "{usage}");
    assert_eq!(rank.prefix_queries, Some(640.0));
    assert_eq!(rank.prefix_hits, Some(304.0));
    assert_eq!(rank.sleeping, Some(false));
    let lora = sample.lora.expect("adapters are told of");
    let names = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>();
    assert_eq!(
        (names(&lora.running), names(&lora.waiting), lora.max),
        (vec!["food".into()], vec!["law".into()], Some(2))
    );
    if let Some(theirs) = fixtures::read("metrics_loaded_lora_queue.txt") {
        let (ours, theirs) = (labels(&page.body), labels(&theirs));
        assert_eq!(
            ours["vllm:lora_requests_info"],
            theirs["vllm:lora_requests_info"]
        );
    }
    drop(open);
    until_empty(&engine).await;
    let idle = scan_metrics(EngineKind::Vllm, engine.metrics().as_bytes());
    assert_eq!(idle.ranks[0].kv_usage, Some(0.0));
}

#[tokio::test]
async fn histograms_and_counters_add_up() {
    let engine = instant().await;
    for _ in 0..3 {
        let body = json!({"prompt": vec![1; 40], "max_tokens": 5});
        assert_eq!(
            post(engine.address(), "/v1/completions", &body)
                .await
                .status,
            200
        );
    }
    let page = engine.metrics();
    let value = |wanted: &str| {
        let mut found = series(page.as_bytes()).filter(|series| series.name == wanted);
        found.next().map(|series| series.value)
    };
    for (name, expected) in [
        ("vllm:prompt_tokens_total", 120.0),
        ("vllm:prompt_tokens_cached_total", 64.0),
        ("vllm:generation_tokens_total", 15.0),
        ("vllm:time_to_first_token_seconds_count", 3.0),
        ("vllm:inter_token_latency_seconds_count", 12.0),
        ("vllm:e2e_request_latency_seconds_count", 3.0),
        ("vllm:request_prompt_tokens_sum", 120.0),
        ("vllm:request_prefill_kv_computed_tokens_sum", 56.0),
        ("vllm:request_generation_tokens_sum", 15.0),
        ("vllm:iteration_tokens_total_count", 15.0),
        ("vllm:iteration_tokens_total_sum", 68.0),
    ] {
        assert_eq!(value(name), Some(expected), "{name}");
    }
    let success =
        r#"vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 3.0"#;
    assert!(page.contains(success));
    // Each family has its comments once, before its samples.
    for line in page.lines().filter(|line| line.starts_with("# TYPE")) {
        assert_eq!(page.matches(line).count(), 1, "{line}");
    }
    assert_eq!(page, engine.metrics());
}

#[derive(Default)]
struct Collect(Mutex<Vec<KvEvent>>);

impl KvEventSink for Collect {
    fn publish(&self, events: &[KvEvent]) {
        self.0.lock().extend_from_slice(events);
    }
}

#[tokio::test]
async fn a_sink_gets_the_cache_events_and_a_reset_comes_with_the_next_step() {
    let sink = Arc::new(Collect::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let engine = spawn_with(listener, EngineConfig::instant("m"), Some(sink.clone())).unwrap();
    let body = json!({"prompt": vec![1; 33], "max_tokens": 1, "cache_salt": "s"});
    post(engine.address(), "/v1/completions", &body).await;
    post(engine.address(), "/reset_prefix_cache", &json!({})).await;
    let kinds = || -> Vec<&'static str> {
        let kind = |event: &KvEvent| match event {
            KvEvent::Stored { hashes, salt, .. } => {
                assert_eq!((hashes.len(), salt.as_deref()), (2, Some("s")));
                "stored"
            }
            KvEvent::Removed { .. } => "removed",
            KvEvent::Cleared => "cleared",
        };
        sink.0.lock().iter().map(kind).collect()
    };
    assert_eq!(kinds(), ["stored"]);
    post(engine.address(), "/v1/completions", &body).await;
    assert_eq!(kinds(), ["stored", "cleared", "stored"]);
}
