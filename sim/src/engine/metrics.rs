//! `/metrics` in vLLM's names and labels.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use xxhash_rust::xxh3::xxh3_64;

use super::EngineConfig;
use crate::core::CoreStats;

const BOUNDS_S: [f64; 16] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 60.0,
];

/// A cumulative histogram of seconds.
#[derive(Default)]
struct Histogram {
    buckets: [AtomicU64; BOUNDS_S.len()],
    count: AtomicU64,
    sum_us: AtomicU64,
}

impl Histogram {
    fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        for (bucket, bound) in self.buckets.iter().zip(BOUNDS_S) {
            if seconds <= bound {
                bucket.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    fn write(&self, page: &mut String, name: &str, help: &str, labels: &str) {
        header(page, name, help, "histogram");
        for (bucket, bound) in self.buckets.iter().zip(BOUNDS_S) {
            let count = bucket.load(Ordering::Relaxed);
            line(page, &format!("{name}_bucket{{{labels},le=\"{bound:?}\"}} {count}.0"));
        }
        let count = self.count.load(Ordering::Relaxed);
        let sum = Duration::from_micros(self.sum_us.load(Ordering::Relaxed)).as_secs_f64();
        line(page, &format!("{name}_bucket{{{labels},le=\"+Inf\"}} {count}.0"));
        line(page, &format!("{name}_count{{{labels}}} {count}.0"));
        line(page, &format!("{name}_sum{{{labels}}} {sum:?}"));
    }
}

/// Counts that the core does not keep.
#[derive(Default)]
pub(super) struct Metrics {
    requests: AtomicU64,
    ids: AtomicU64,
    ttft: Histogram,
    e2e: Histogram,
}

fn header(page: &mut String, name: &str, help: &str, kind: &str) {
    line(page, &format!("# HELP {name} {help}"));
    line(page, &format!("# TYPE {name} {kind}"));
}

fn line(page: &mut String, text: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(page, "{text}");
}

impl Metrics {
    pub(super) fn count_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// A number from 0 to 1 that depends on how many requests came before: the same in each run.
    pub(super) fn draw(&self) -> f64 {
        let hash = xxh3_64(&self.requests().to_le_bytes()) >> 32;
        f64::from(u32::try_from(hash).unwrap_or(0)) / f64::from(u32::MAX)
    }

    pub(super) fn next_id(&self) -> String {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}", xxh3_64(&id.to_le_bytes()))
    }

    pub(super) fn first_token(&self, after: Duration) {
        self.ttft.observe(after);
    }

    pub(super) fn ended(&self, after: Duration) {
        self.e2e.observe(after);
    }

    pub(super) fn page(&self, config: &EngineConfig, core: &CoreStats) -> String {
        let mut page = String::with_capacity(8 * 1024);
        let model = config.models.first().map_or("", String::as_str);
        let model = model.replace('\\', "\\\\").replace('"', "\\\"");
        let labels = format!("engine=\"0\",model_name=\"{model}\"");
        let out = &mut page;
        let mut single = |name: &str, help: &str, kind: &str, value: f64| {
            header(out, name, help, kind);
            line(out, &format!("{name}{{{labels}}} {value:?}"));
        };
        let count = |value: u64| {
            #[expect(clippy::cast_precision_loss, reason = "a page shows numbers as vLLM does, as floats")]
            let value = value as f64;
            value
        };
        single("vllm:num_requests_running", "Requests in the batch.", "gauge", count(core.running as u64));
        single("vllm:num_requests_waiting", "Requests in the queue.", "gauge", count(core.waiting as u64));
        let usage = f64::from(core.held_blocks) / f64::from(core.total_blocks.max(1));
        single("vllm:kv_cache_usage_perc", "Share of KV blocks that requests hold.", "gauge", usage);
        for (name, help, value) in [
            ("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", core.prefix_queries),
            ("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", core.prefix_hits),
            ("vllm:num_preemptions_total", "Requests preempted.", core.preemptions),
            ("vllm:prompt_tokens_total", "Prompt tokens of admitted requests.", core.prompt_tokens),
            ("vllm:generation_tokens_total", "Tokens generated.", core.generated_tokens),
        ] {
            single(name, help, "counter", count(value));
        }
        let out = &mut page;
        let name = "vllm:num_requests_waiting_by_reason";
        header(out, name, "Requests in the queue by reason.", "gauge");
        line(out, &format!("{name}{{{labels},reason=\"capacity\"}} {}.0", core.waiting));
        line(out, &format!("{name}{{{labels},reason=\"deferred\"}} 0.0"));
        let name = "vllm:request_success_total";
        header(out, name, "Requests completed by reason.", "counter");
        for (reason, value) in [("stop", 0), ("length", core.finished), ("abort", 0)] {
            line(out, &format!("{name}{{engine=\"0\",finished_reason=\"{reason}\",model_name=\"{model}\"}} {value}.0"));
        }
        let name = "vllm:engine_sleep_state";
        header(out, name, "1 for the state that holds.", "gauge");
        for (state, value) in [("awake", 1), ("weights_offloaded", 0), ("discard_all", 0)] {
            line(out, &format!("{name}{{{labels},sleep_state=\"{state}\"}} {value}.0"));
        }
        let name = "vllm:cache_config_info";
        header(out, name, "Sizes of the KV cache.", "gauge");
        line(
            out,
            &format!(
                "{name}{{block_size=\"{}\",enable_prefix_caching=\"True\",engine=\"0\",num_gpu_blocks=\"{}\",prefix_caching_hash_algo=\"xxh3\"}} 1.0",
                config.block_size, config.num_blocks
            ),
        );
        if !config.adapters.is_empty() && self.requests() > 0 {
            let name = "vllm:lora_requests_info";
            header(out, name, "Adapters at work.", "gauge");
            let most = config.adapters.len();
            let names = config.adapters.join(",");
            line(out, &format!("{name}{{max_lora=\"{most}\",running_lora_adapters=\"{names}\",waiting_lora_adapters=\"\"}} {}.0", self.requests()));
        }
        self.ttft.write(out, "vllm:time_to_first_token_seconds", "Time to first token.", &labels);
        self.e2e.write(out, "vllm:e2e_request_latency_seconds", "Time of whole requests.", &labels);
        page
    }
}
