//! The command line of `wicketgate engine`.

use std::net::{IpAddr, SocketAddr};

use super::{EngineConfig, Failure};
use crate::step::StepModel;

/// An emulated vLLM engine: real batching and prefix-cache behaviour, made-up text, no GPU.
#[derive(Clone, Debug, clap::Args)]
pub struct EngineArgs {
    /// Model name to serve; repeat for aliases
    #[arg(long, value_name = "NAME", default_value = "emulated")]
    model: Vec<String>,
    /// Adapter (LoRA) name to serve besides; repeatable
    #[arg(long, value_name = "NAME")]
    lora: Vec<String>,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    bind: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// Accelerator, model and parallelism whose measured step times to use, or `instant`
    #[arg(long, default_value = "h100-qwen3-32b-tp2")]
    profile: String,
    /// Wall time per model time: 0.1 runs ten times as fast
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    time_scale: f64,
    /// Tokens per KV block
    #[arg(long, value_name = "TOKENS", default_value_t = 16)]
    block_size: usize,
    /// KV blocks
    #[arg(long, value_name = "N", default_value_t = 19_208)]
    num_blocks: u32,
    /// Most requests in the batch
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_num_seqs: usize,
    /// Most tokens in a step
    #[arg(long, value_name = "N", default_value_t = 8192)]
    max_num_batched_tokens: u64,
    /// Most requests, running and waiting; further ones get 503 [default: no limit]
    #[arg(long, value_name = "N")]
    max_num_queued_reqs: Option<usize>,
    /// Longest prompt and answer together, in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 131_072)]
    max_model_len: u64,
    /// Start of the made-up text: the same seed gives the same answers
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Take faults from `POST /emulator/failure` and the header `x-emulator-failure`
    #[arg(long)]
    allow_failure_injection: bool,
}

impl EngineArgs {
    /// Where to listen.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.bind, self.port)
    }

    /// The engine that the arguments describe.
    ///
    /// # Errors
    /// When there is no such profile, or a size makes no sense.
    pub fn config(&self) -> Result<EngineConfig, String> {
        let model = StepModel::profile(&self.profile).ok_or_else(|| {
            let known = StepModel::profiles().join(", ");
            format!("--profile: no profile is named `{}`; known: {known}", self.profile)
        })?;
        if self.block_size == 0 || self.num_blocks == 0 || self.max_num_seqs == 0 || self.max_num_batched_tokens == 0 {
            return Err("block size, blocks, sequences and batched tokens must be at least 1".to_owned());
        }
        if !(self.time_scale.is_finite() && self.time_scale >= 0.0) {
            return Err(format!("--time-scale: {} is not a number from 0 on", self.time_scale));
        }
        Ok(EngineConfig {
            models: self.model.clone(),
            adapters: self.lora.clone(),
            model,
            time_scale: self.time_scale,
            block_size: self.block_size,
            num_blocks: self.num_blocks,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_num_queued: self.max_num_queued_reqs,
            max_model_len: self.max_model_len,
            seed: self.seed,
            failure: Failure::default(),
            allow_failures: self.allow_failure_injection,
        })
    }
}
