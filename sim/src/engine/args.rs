//! Flags of `wicketgate engine`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::EngineConfig;
use crate::batch::Policy;

/// An emulated vLLM engine: real HTTP, real queueing and batching, computed step times, made-up words.
#[derive(Clone, Debug, clap::Args)]
pub struct EngineArgs {
    /// Name that the model is served under; give it again for more names. The first one labels the metrics.
    #[arg(long = "model", value_name = "NAME", default_value = "emulated")]
    pub models: Vec<String>,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    pub port: u16,
    /// Address to listen on.
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub bind: IpAddr,
    /// Accelerator, model and parallelism whose step times are used, such as h200-llama3.1-8b-tp1; `instant` takes
    /// no time at all. A wrong name lists all.
    #[arg(long, value_name = "NAME", default_value = "h100-qwen3-32b-tp2")]
    pub profile: String,
    /// Speed: with 10 the engine is ten times as fast as its profile.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub time_scale: f64,
    /// Tokens per KV block.
    #[arg(long, value_name = "TOKENS", default_value_t = 16)]
    pub block_size: u32,
    /// KV blocks, vLLM's null block included (its num_gpu_blocks).
    #[arg(long, value_name = "COUNT", default_value_t = 19_209)]
    pub num_blocks: u32,
    /// Most requests in the batch.
    #[arg(long, value_name = "COUNT", default_value_t = 256)]
    pub max_num_seqs: u32,
    /// Most tokens in a step.
    #[arg(long, value_name = "TOKENS", default_value_t = 8192)]
    pub max_num_batched_tokens: u32,
    /// Most requests, running and waiting together; further ones get 503. Unbounded if left out.
    #[arg(long, value_name = "COUNT")]
    pub max_num_queued_reqs: Option<u32>,
    /// Longest prompt and answer together. By default what the KV blocks hold, at most 32768.
    #[arg(long, value_name = "TOKENS")]
    pub max_model_len: Option<u32>,
    /// Order of the queue: `fcfs`, or `priority` (smallest first, from the request or X-Vllm-Priority).
    #[arg(long, value_name = "POLICY", default_value = "fcfs", value_parser = ["fcfs", "priority"])]
    pub scheduling_policy: String,
    /// Keep no prefix cache.
    #[arg(long)]
    pub no_enable_prefix_caching: bool,
    /// Generated words and injected failures depend on it; engines with the same seed give the same answers.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub seed: u64,
    /// LoRA adapters, each served as a model of its own.
    #[arg(long = "lora", value_name = "NAME", num_args = 1..)]
    pub loras: Vec<String>,
    /// Obey the header x-emulator-failure and POST /emulator/failure.
    #[arg(long)]
    pub allow_failure_injection: bool,
}

impl EngineArgs {
    /// Where to listen.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.bind, self.port)
    }

    /// The settings that the flags ask for.
    ///
    /// # Errors
    /// Says which of them make no sense.
    pub fn config(&self) -> Result<EngineConfig, String> {
        let config = EngineConfig {
            models: self.models.clone(),
            loras: self.loras.clone(),
            bind: self.bind,
            port: self.port,
            profile: self.profile.clone(),
            time_scale: self.time_scale,
            block_size: self.block_size,
            num_blocks: self.num_blocks,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_num_queued: self.max_num_queued_reqs,
            max_model_len: self.max_model_len,
            policy: if self.scheduling_policy == "priority" {
                Policy::Priority
            } else {
                Policy::Fcfs
            },
            prefix_caching: !self.no_enable_prefix_caching,
            seed: self.seed,
            allow_failure_injection: self.allow_failure_injection,
            ..EngineConfig::default()
        };
        config.core(false)?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        engine: EngineArgs,
    }

    fn config(line: &str) -> Result<EngineConfig, String> {
        let cli: Cli =
            clap::Parser::try_parse_from(line.split(' ')).map_err(|wrong| wrong.to_string())?;
        cli.engine.config()
    }

    #[test]
    fn no_flags_are_the_default() {
        let expected = EngineConfig {
            port: 8000,
            ..EngineConfig::default()
        };
        assert_eq!(config("engine"), Ok(expected));
    }

    #[test]
    fn flags_reach_the_config() {
        let config = config(
            "engine --model a --model b --port 0 --profile instant --time-scale 10 --block-size 32 --num-blocks 100 \
             --max-num-seqs 4 --max-num-queued-reqs 8 --scheduling-policy priority --lora food law --seed 7",
        );
        let expected = EngineConfig {
            models: vec!["a".into(), "b".into()],
            loras: vec!["food".into(), "law".into()],
            profile: "instant".into(),
            time_scale: 10.0,
            block_size: 32,
            num_blocks: 100,
            max_num_seqs: 4,
            max_num_queued: Some(8),
            policy: Policy::Priority,
            seed: 7,
            ..EngineConfig::default()
        };
        assert_eq!(config, Ok(expected));
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (line, says) in [
            ("engine --profile a100", "h200-llama3.1-8b-tp1"),
            ("engine --time-scale 0", "time scale"),
            (
                "engine --num-blocks 10 --max-model-len 4096",
                "does not fit",
            ),
            ("engine --block-size 0", "block size"),
            ("engine --scheduling-policy random", "possible values"),
        ] {
            let wrong = config(line).unwrap_err();
            assert!(wrong.contains(says), "{line}: {wrong}");
        }
    }
}
