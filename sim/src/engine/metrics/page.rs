//! The text of the page.

use std::fmt::Write as _;

use super::{EngineConfig, Histogram, write_number};

/// Writes samples in an order that never changes. The text before each number is built by the first page and
/// copied by the others.
#[derive(Debug, Default)]
pub(super) struct Page {
    model: String,
    /// Text between two numbers: line end, comments, name and labels.
    before: Vec<String>,
    next: usize,
    text: String,
    length: usize,
}

/// Escapes a label's value.
pub(super) fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

impl Page {
    pub(super) fn new(model: &str) -> Page {
        Page {
            model: escape(model),
            ..Page::default()
        }
    }

    pub(super) fn start(&mut self) {
        self.next = 0;
        self.text = String::with_capacity(self.length + 256);
    }

    pub(super) fn finish(&mut self) -> String {
        self.length = self.text.len();
        std::mem::take(&mut self.text)
    }

    /// One sample of a gauge.
    pub(super) fn gauge(&mut self, name: &str, label: &str, value: f64) {
        self.sample(name, "gauge", label, "", value);
    }

    /// Samples of a counter, by label, each with the time when the counter began.
    pub(super) fn counter(&mut self, name: &str, samples: &[(&str, u64)], created: f64) {
        for (label, value) in samples {
            self.sample(name, "counter", label, "_total", *value as f64);
        }
        for (label, _) in samples {
            self.sample(name, "gauge", label, "_created", created);
        }
    }

    /// All samples of a histogram.
    pub(super) fn histogram(&mut self, name: &str, histogram: &Histogram, created: f64) {
        self.sample(name, "histogram", "", "_sum", histogram.sum());
        let mut all = 0;
        for (bound, count) in histogram.cumulative() {
            all = count;
            // Only the first page needs the label.
            let label = match bound {
                _ if self.next < self.before.len() => String::new(),
                Some(bound) => {
                    let mut label = "le=\"".to_owned();
                    write_number(bound, &mut label);
                    label + "\""
                }
                None => "le=\"+Inf\"".to_owned(),
            };
            self.sample(name, "histogram", &label, "_bucket", count as f64);
        }
        self.sample(name, "histogram", "", "_count", all as f64);
        self.sample(name, "gauge", "", "_created", created);
    }

    /// Requests refused, by limit: the one family without an engine label.
    pub(super) fn rejections(&mut self, refused: u64, created: f64) {
        let name = "vllm:admission_rejections";
        let model = if self.next < self.before.len() {
            ""
        } else {
            &self.model
        };
        let labels = ["max_num_queued_reqs", "max_num_queued_tokens"]
            .map(|reason| format!("model_name=\"{model}\",reason=\"{reason}\""));
        for (labels, value) in labels.iter().zip([refused, 0]) {
            self.plain_sample(name, "counter", labels, "_total", value as f64);
        }
        for labels in &labels {
            self.plain_sample(name, "gauge", labels, "_created", created);
        }
    }

    /// A gauge with exactly these labels.
    pub(super) fn plain(&mut self, name: &str, labels: &str, value: f64) {
        self.plain_sample(name, "gauge", labels, "", value);
    }

    fn sample(&mut self, name: &str, kind: &str, label: &str, suffix: &str, value: f64) {
        if self.next < self.before.len() {
            return self.put(value);
        }
        let comma = if label.is_empty() { "" } else { "," };
        let labels = format!("engine=\"0\"{comma}{label},model_name=\"{}\"", self.model);
        self.plain_sample(name, kind, &labels, suffix, value);
    }

    fn plain_sample(&mut self, name: &str, kind: &str, labels: &str, suffix: &str, value: f64) {
        if self.next == self.before.len() {
            let mut before = String::new();
            // A counter's time of birth is a family of its own.
            let family = match (kind, suffix) {
                (_, "_created" | "_total") => format!("{name}{suffix}"),
                _ => name.to_owned(),
            };
            if self.commented_family(&family) {
                let _ = writeln!(before, "# HELP {family} {}", help(name));
                let _ = writeln!(before, "# TYPE {family} {kind}");
            }
            let _ = write!(before, "{name}{suffix}{{{labels}}} ");
            self.before.push(before);
        }
        self.put(value);
    }

    /// True if `family` begins here: no line of it has been built yet.
    fn commented_family(&self, family: &str) -> bool {
        let opening = format!("# TYPE {family} ");
        !self.before.iter().any(|before| before.contains(&opening))
    }

    fn put(&mut self, value: f64) {
        if let Some(before) = self.before.get(self.next) {
            self.text.push_str(before);
        }
        write_number(value, &mut self.text);
        self.text.push('\n');
        self.next += 1;
    }
}

/// What a family means.
fn help(name: &str) -> &'static str {
    match name {
        "vllm:num_requests_running" => "Requests in the batch.",
        "vllm:num_requests_waiting" => "Requests in the queue.",
        "vllm:num_requests_waiting_by_reason" => "Requests in the queue, by what they wait for.",
        "vllm:engine_sleep_state" => "1 for the state that the engine is in.",
        "vllm:kv_cache_usage_perc" => "Share of the KV blocks that requests hold, 0 to 1.",
        "vllm:prefix_cache_queries" => "Prompt tokens looked up in the prefix cache.",
        "vllm:prefix_cache_hits" => "Prompt tokens found in the prefix cache.",
        "vllm:external_prefix_cache_queries" => {
            "Prompt tokens looked up in other instances' caches."
        }
        "vllm:external_prefix_cache_hits" => "Prompt tokens found in other instances' caches.",
        "vllm:num_preemptions" => "Requests that had to leave the batch for lack of KV blocks.",
        "vllm:prompt_tokens" => "Prompt tokens of computed prompts.",
        "vllm:prompt_tokens_by_source" => "Prompt tokens, by where their KV came from.",
        "vllm:prompt_tokens_cached" => "Prompt tokens that came from a cache.",
        "vllm:prompt_tokens_cached_by_source" => {
            "Prompt tokens that came from a cache, by its tier."
        }
        "vllm:generation_tokens" => "Tokens generated.",
        "vllm:request_success" => "Requests completed, by why they ended.",
        "vllm:admission_rejections" => "Requests refused by a limit of the queue.",
        "vllm:request_prompt_tokens" => "Prompt tokens of a request.",
        "vllm:request_generation_tokens" => "Generated tokens of a request.",
        "vllm:iteration_tokens_total" => "Tokens in a step.",
        "vllm:request_max_num_generation_tokens" => {
            "Most generated tokens among a request's choices."
        }
        "vllm:request_params_n" => "Choices asked for.",
        "vllm:request_params_max_tokens" => "Token limit asked for.",
        "vllm:time_to_first_token_seconds" => "From arrival to the first token.",
        "vllm:inter_token_latency_seconds" => "Between two tokens.",
        "vllm:request_time_per_output_token_seconds" => "Mean time between a request's tokens.",
        "vllm:e2e_request_latency_seconds" => "From arrival to the last token.",
        "vllm:request_queue_time_seconds" => "From arrival to the batch.",
        "vllm:request_inference_time_seconds" => "From the batch to the last token.",
        "vllm:request_prefill_time_seconds" => "From the batch to the first token.",
        "vllm:request_decode_time_seconds" => "From the first token to the last.",
        "vllm:request_num_preemptions" => "Preemptions of a request.",
        "vllm:request_prefill_kv_computed_tokens" => {
            "Prompt tokens computed, cached ones left out."
        }
        "vllm:cache_config_info" => "Sizes of the KV cache.",
        _ => "",
    }
}

/// Labels of `vllm:cache_config_info`: those of vLLM 0.32, with what an emulated cache has.
pub(super) fn cache_config(config: &EngineConfig) -> String {
    let (size, blocks) = (config.block_size, config.num_blocks);
    let tokens = u64::from(blocks) * u64::from(size);
    let sequences = tokens as f64 / f64::from(config.model_len());
    let caching = if config.prefix_caching {
        "True"
    } else {
        "False"
    };
    [
        ("_block_size_resolved", "True"),
        ("block_size", &size.to_string()),
        ("cache_dtype", "auto"),
        ("cache_hit_alignment_tokens", "None"),
        ("effective_attention_block_size", &size.to_string()),
        ("enable_mamba_shared_prefix_checkpoint", "False"),
        ("enable_prefix_caching", caching),
        ("engine", "0"),
        ("gpu_memory_utilization", "0.92"),
        ("hash_block_size", "None"),
        ("is_attention_free", "False"),
        ("kv_cache_dtype_skip_layers", "[]"),
        ("kv_cache_layout", "None"),
        ("kv_cache_max_concurrency", &format!("{sequences:.1}")),
        ("kv_cache_memory_bytes", "None"),
        ("kv_cache_size_tokens", &tokens.to_string()),
        ("kv_offloading_backend", "native"),
        ("kv_offloading_size", "None"),
        ("kv_sharing_fast_prefill", "False"),
        ("mamba_block_size", "None"),
        ("mamba_cache_dtype", "auto"),
        ("mamba_cache_mode", "none"),
        ("mamba_page_size_padded", "None"),
        ("mamba_ssm_cache_dtype", "float32"),
        ("num_cpu_blocks", "None"),
        ("num_gpu_blocks", &blocks.to_string()),
        ("num_gpu_blocks_override", "None"),
        ("prefix_cache_retention_interval", "0"),
        ("prefix_caching_hash_algo", "emulated_xxh3"),
        ("prefix_match_unit", "None"),
        ("replayssm_buffer_len", "16"),
        ("skip_page_size_padded", "None"),
        ("sliding_window", "None"),
        ("swa_bounded_replay", "True"),
        ("use_kda_recoverssm", "False"),
        ("use_replayssm", "False"),
        ("user_specified_block_size", "True"),
    ]
    .map(|(name, value)| format!("{name}=\"{value}\""))
    .join(",")
}
