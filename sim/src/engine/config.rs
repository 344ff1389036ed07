//! What an emulated engine is made of.

use std::net::{IpAddr, Ipv4Addr};

use super::FailureConfig;
use crate::{
    batch::{CoreConfig, Policy},
    step::StepModel,
};

/// Settings of an emulated engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Served names of the model; the first one labels the metrics. At least one.
    pub models: Vec<String>,
    /// LoRA adapters, each a model name of its own. At most 64.
    pub loras: Vec<String>,
    /// Address to listen on.
    pub bind: IpAddr,
    /// Port to listen on; 0 takes a free one.
    pub port: u16,
    /// Step times: a name of [`StepModel::profiles`]. With `instant` steps take no time.
    pub profile: String,
    /// Model time that passes in a unit of wall time: 10 runs ten times as fast as the profile says.
    pub time_scale: f64,
    /// Tokens per KV block.
    pub block_size: u32,
    /// KV blocks as vLLM's `num_gpu_blocks` counts them: one of them is its null block.
    pub num_blocks: u32,
    /// Most requests in the batch.
    pub max_num_seqs: u32,
    /// Most tokens in a step.
    pub max_num_batched_tokens: u32,
    /// Most requests, running and waiting together, before 503; unbounded by default.
    pub max_num_queued: Option<u32>,
    /// Longest prompt and answer together, in tokens; by default what fits the KV blocks, at most 32,768.
    pub max_model_len: Option<u32>,
    /// Order of the queue.
    pub policy: Policy,
    /// Keep a prefix cache.
    pub prefix_caching: bool,
    /// Texts and injected failures depend on it.
    pub seed: u64,
    /// Length of embedding vectors, unless a request says otherwise.
    pub embedding_dims: u32,
    /// Longest request body in bytes; longer ones get 413.
    pub max_body_bytes: usize,
    /// Obey `x-emulator-failure` and `POST /emulator/failure`.
    pub allow_failure_injection: bool,
    /// Failures from the start.
    pub failure: FailureConfig,
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            models: vec!["emulated".to_owned()],
            loras: Vec::new(),
            bind: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            profile: "h100-qwen3-32b-tp2".to_owned(),
            time_scale: 1.0,
            block_size: 16,
            // 307,328 tokens: what a Qwen3-32B TP2 pod on two H100 has.
            num_blocks: 19_209,
            max_num_seqs: 256,
            max_num_batched_tokens: 8192,
            max_num_queued: None,
            max_model_len: None,
            policy: Policy::Fcfs,
            prefix_caching: true,
            seed: 0,
            embedding_dims: 256,
            max_body_bytes: 128 << 20,
            allow_failure_injection: false,
            failure: FailureConfig::default(),
        }
    }
}

impl EngineConfig {
    /// An engine on a free port of the loopback whose steps take no time, with failure injection allowed: for tests
    /// of what is in front of it.
    pub fn instant(model: &str) -> EngineConfig {
        EngineConfig {
            models: vec![model.to_owned()],
            profile: "instant".to_owned(),
            allow_failure_injection: true,
            ..EngineConfig::default()
        }
    }

    /// Longest prompt and answer together.
    pub(super) fn model_len(&self) -> u32 {
        self.max_model_len
            .unwrap_or_else(|| self.capacity().min(32_768))
    }

    fn capacity(&self) -> u32 {
        self.num_blocks
            .saturating_sub(1)
            .saturating_mul(self.block_size)
    }

    /// The core's settings.
    ///
    /// # Errors
    /// Says which setting makes no sense.
    pub(super) fn core(&self, events: bool) -> Result<CoreConfig, String> {
        let Some(model) = StepModel::profile(&self.profile) else {
            let known = StepModel::profiles().join(", ");
            return Err(format!(
                "unknown profile {:?}; known are {known}",
                self.profile
            ));
        };
        if self.models.is_empty() {
            return Err("at least one model name is needed".to_owned());
        }
        if self.loras.len() > 64 {
            return Err(format!(
                "{} adapters; at most 64 are possible",
                self.loras.len()
            ));
        }
        if !(self.time_scale.is_finite() && self.time_scale > 0.0) {
            return Err(format!(
                "the time scale is {}, not above 0",
                self.time_scale
            ));
        }
        let sizes = [
            ("block size", self.block_size, 1),
            ("number of blocks", self.num_blocks, 2),
            ("max-num-seqs", self.max_num_seqs, 1),
            ("max-num-batched-tokens", self.max_num_batched_tokens, 1),
            ("max-model-len", self.model_len(), 2),
            ("embedding length", self.embedding_dims, 1),
        ];
        for (name, value, least) in sizes {
            if value < least {
                return Err(format!("the {name} is {value}, below {least}"));
            }
        }
        if self.model_len() > self.capacity() {
            let (wanted, room) = (self.model_len(), self.capacity());
            return Err(format!(
                "a sequence of {wanted} tokens does not fit KV blocks for {room}"
            ));
        }
        self.failure.validate()?;
        Ok(CoreConfig {
            model,
            block_size: self.block_size,
            num_blocks: self.num_blocks - 1,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_num_queued: self.max_num_queued,
            policy: self.policy,
            prefix_caching: self.prefix_caching,
            events,
        })
    }
}
