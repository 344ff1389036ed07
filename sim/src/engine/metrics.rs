//! `/metrics` in vLLM's names and labels.
//!
//! The page's lines never change but for their values (LoRA's excepted), so their text is built once; a scrape only
//! copies it and writes the numbers.

use std::{
    fmt::Write as _,
    time::{SystemTime, UNIX_EPOCH},
};

use super::{
    EngineConfig,
    histogram::{
        CHOICES, FIRST_TOKEN_SECONDS, Histogram, PREEMPTIONS, REQUEST_SECONDS, STEP_TOKENS,
        TOKEN_SECONDS, request_tokens,
    },
    state::{SleepLevel, Submission},
};
use crate::{
    Nanos,
    batch::{CoreStats, Finished},
};

mod lora;
mod page;

use lora::Adapters;
use page::Page;

/// Histograms and counts of requests.
#[derive(Debug)]
pub(super) struct Metrics {
    first_token: Histogram,
    inter_token: Histogram,
    time_per_output_token: Histogram,
    e2e: Histogram,
    queue: Histogram,
    inference: Histogram,
    prefill: Histogram,
    decode: Histogram,
    prompt_tokens: Histogram,
    generation_tokens: Histogram,
    max_generation_tokens: Histogram,
    max_tokens: Histogram,
    prefill_computed: Histogram,
    choices: Histogram,
    preemptions: Histogram,
    step_tokens: Histogram,
    stopped: u64,
    reached_length: u64,
    refused: u64,
    adapters: Adapters,
    created: f64,
    cache_config: String,
    page: Page,
}

fn seconds(nanos: Nanos) -> f64 {
    nanos as f64 / 1e9
}

impl Metrics {
    pub(super) fn new(config: &EngineConfig, created: f64) -> Metrics {
        let of = Histogram::new;
        let tokens = of(&request_tokens(config.model_len()));
        Metrics {
            first_token: of(FIRST_TOKEN_SECONDS),
            inter_token: of(TOKEN_SECONDS),
            time_per_output_token: of(TOKEN_SECONDS),
            e2e: of(REQUEST_SECONDS),
            queue: of(REQUEST_SECONDS),
            inference: of(REQUEST_SECONDS),
            prefill: of(REQUEST_SECONDS),
            decode: of(REQUEST_SECONDS),
            prompt_tokens: tokens.clone(),
            generation_tokens: tokens.clone(),
            max_generation_tokens: tokens.clone(),
            max_tokens: tokens.clone(),
            prefill_computed: tokens,
            choices: of(CHOICES),
            preemptions: of(PREEMPTIONS),
            step_tokens: of(STEP_TOKENS),
            stopped: 0,
            reached_length: 0,
            refused: 0,
            adapters: Adapters::new(&config.loras),
            created,
            cache_config: page::cache_config(config),
            page: Page::new(config.models.first().map_or("", String::as_str)),
        }
    }

    /// A request came into the queue.
    pub(super) fn arrived(&mut self, submission: &Submission) {
        self.choices.observe(f64::from(submission.n));
        self.max_tokens
            .observe(f64::from(submission.request.max_tokens));
        self.adapters.arrived(submission.adapter);
    }

    /// A request was refused because the queue was full.
    pub(super) fn refused(&mut self) {
        self.refused += 1;
    }

    /// A request joined the batch, or left it for the queue.
    pub(super) fn moved(&mut self, adapter: Option<usize>, running: bool) {
        self.adapters.moved(adapter, running);
    }

    /// A request left before its end.
    pub(super) fn gone(&mut self, adapter: Option<usize>, running: bool) {
        self.adapters.gone(adapter, running);
    }

    pub(super) fn step(&mut self, tokens: u32) {
        self.step_tokens.observe(f64::from(tokens));
    }

    /// Requests came, went or moved.
    pub(super) fn note_adapters(&mut self) {
        self.adapters.note(wall_clock);
    }

    pub(super) fn first_token(&mut self, after: Nanos) {
        self.first_token.observe(seconds(after));
    }

    pub(super) fn inter_token(&mut self, after: Nanos) {
        self.inter_token.observe(seconds(after));
    }

    pub(super) fn finished(&mut self, finished: &Finished, adapter: Option<usize>, stops: bool) {
        let decode = seconds(finished.finished_at - finished.first_token_at);
        self.e2e
            .observe(seconds(finished.finished_at - finished.arrived_at));
        self.queue
            .observe(seconds(finished.admitted_at - finished.arrived_at));
        self.inference
            .observe(seconds(finished.finished_at - finished.admitted_at));
        self.prefill
            .observe(seconds(finished.first_token_at - finished.admitted_at));
        self.decode.observe(decode);
        if finished.generated > 1 {
            self.time_per_output_token
                .observe(decode / f64::from(finished.generated - 1));
        }
        self.prompt_tokens
            .observe(f64::from(finished.prompt_tokens));
        self.generation_tokens
            .observe(f64::from(finished.generated));
        self.max_generation_tokens
            .observe(f64::from(finished.generated));
        self.prefill_computed
            .observe(f64::from(finished.prompt_tokens - finished.cached_tokens));
        self.preemptions.observe(f64::from(finished.preemptions));
        if stops {
            self.stopped += 1;
        } else {
            self.reached_length += 1;
        }
        self.adapters.gone(adapter, true);
    }

    /// The whole page.
    pub(super) fn page(&mut self, core: &CoreStats, asleep: Option<SleepLevel>) -> String {
        // Moved out for the moment, so that it can write while the rest is read.
        let mut page = std::mem::take(&mut self.page);
        page.start();
        self.gauges(core, asleep, &mut page);
        self.counters(core, &mut page);
        self.histograms(&mut page);
        page.plain("vllm:cache_config_info", &self.cache_config, 1.0);
        let mut text = page.finish();
        self.adapters.write(&mut text);
        self.page = page;
        text
    }

    fn gauges(&self, core: &CoreStats, asleep: Option<SleepLevel>, page: &mut Page) {
        page.gauge("vllm:num_requests_running", "", f64::from(core.running));
        page.gauge("vllm:num_requests_waiting", "", f64::from(core.waiting));
        let by_reason = "vllm:num_requests_waiting_by_reason";
        page.gauge(by_reason, "reason=\"capacity\"", f64::from(core.waiting));
        page.gauge(by_reason, "reason=\"deferred\"", 0.0);
        let sleep = "vllm:engine_sleep_state";
        for (label, state) in [
            ("sleep_state=\"awake\"", None),
            (
                "sleep_state=\"weights_offloaded\"",
                Some(SleepLevel::Offloaded),
            ),
            ("sleep_state=\"discard_all\"", Some(SleepLevel::Discarded)),
        ] {
            page.gauge(sleep, label, f64::from(u8::from(state == asleep)));
        }
        let usage = f64::from(core.blocks.held) / f64::from(core.total_blocks.max(1));
        page.gauge("vllm:kv_cache_usage_perc", "", usage);
    }

    fn counters(&self, core: &CoreStats, page: &mut Page) {
        let created = self.created;
        let computed = core.prompt_tokens - core.cached_prompt_tokens;
        page.counter(
            "vllm:prefix_cache_queries",
            &[("", core.prefix_queries)],
            created,
        );
        page.counter("vllm:prefix_cache_hits", &[("", core.prefix_hits)], created);
        page.counter("vllm:external_prefix_cache_queries", &[("", 0)], created);
        page.counter("vllm:external_prefix_cache_hits", &[("", 0)], created);
        page.counter("vllm:num_preemptions", &[("", core.preemptions)], created);
        page.counter("vllm:prompt_tokens", &[("", core.prompt_tokens)], created);
        let sources = [
            ("source=\"local_compute\"", computed),
            ("source=\"local_cache_hit\"", core.cached_prompt_tokens),
            ("source=\"external_kv_transfer\"", 0),
        ];
        page.counter("vllm:prompt_tokens_by_source", &sources, created);
        page.counter(
            "vllm:prompt_tokens_cached",
            &[("", core.prefix_hits)],
            created,
        );
        let tiers = [
            ("source=\"device\"", core.prefix_hits),
            ("source=\"host\"", 0),
            ("source=\"p2p\"", 0),
            ("source=\"disk\"", 0),
            ("source=\"external_unspecified\"", 0),
        ];
        page.counter("vllm:prompt_tokens_cached_by_source", &tiers, created);
        page.counter(
            "vllm:generation_tokens",
            &[("", core.generated_tokens)],
            created,
        );
        let reasons = [
            ("finished_reason=\"stop\"", self.stopped),
            ("finished_reason=\"length\"", self.reached_length),
            ("finished_reason=\"abort\"", 0),
            ("finished_reason=\"error\"", 0),
            ("finished_reason=\"repetition\"", 0),
        ];
        page.counter("vllm:request_success", &reasons, created);
        page.rejections(self.refused, created);
    }

    fn histograms(&self, page: &mut Page) {
        let all = [
            ("vllm:request_prompt_tokens", &self.prompt_tokens),
            ("vllm:request_generation_tokens", &self.generation_tokens),
            ("vllm:iteration_tokens_total", &self.step_tokens),
            (
                "vllm:request_max_num_generation_tokens",
                &self.max_generation_tokens,
            ),
            ("vllm:request_params_n", &self.choices),
            ("vllm:request_params_max_tokens", &self.max_tokens),
            ("vllm:time_to_first_token_seconds", &self.first_token),
            ("vllm:inter_token_latency_seconds", &self.inter_token),
            (
                "vllm:request_time_per_output_token_seconds",
                &self.time_per_output_token,
            ),
            ("vllm:e2e_request_latency_seconds", &self.e2e),
            ("vllm:request_queue_time_seconds", &self.queue),
            ("vllm:request_inference_time_seconds", &self.inference),
            ("vllm:request_prefill_time_seconds", &self.prefill),
            ("vllm:request_decode_time_seconds", &self.decode),
            ("vllm:request_num_preemptions", &self.preemptions),
            (
                "vllm:request_prefill_kv_computed_tokens",
                &self.prefill_computed,
            ),
        ];
        for (name, histogram) in all {
            page.histogram(name, histogram, self.created);
        }
    }
}

/// Seconds of Unix time.
fn wall_clock() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}

/// A number as vLLM's page writes it: always with a decimal point.
fn write_number(value: f64, text: &mut String) {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        let _ = write!(text, "{}.0", value as i64);
    } else {
        let _ = write!(text, "{value}");
    }
}
