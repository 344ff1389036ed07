//! Flags of `wicketgate engine`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{EngineConfig, KvEventsConfig, KvShape};
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
    /// Publish KV events here over ZMQ, as tcp://IP:PORT.
    #[arg(long, value_name = "URL", value_parser = tcp)]
    pub kv_events: Option<SocketAddr>,
    /// Connect to the address of --kv-events instead of listening, as vLLM does for any host but `*`.
    #[arg(long, requires = "kv_events")]
    pub kv_connect: bool,
    /// Repeat KV events here on request, as tcp://IP:PORT.
    #[arg(long, value_name = "URL", value_parser = tcp, requires = "kv_events")]
    pub kv_replay: Option<SocketAddr>,
    /// How KV events are written: maps as vLLM from 0.24 on, or arrays as before.
    #[arg(long, value_name = "SHAPE", value_enum, default_value_t = KvShape::Map)]
    pub kv_shape: KvShape,
    /// First part of each message of KV events; kv@ADDRESS@MODEL by default.
    #[arg(long, value_name = "TEXT", requires = "kv_events")]
    pub kv_topic: Option<String>,
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

    /// Where and how to publish KV events, for an engine that listens on `address`; nothing if no flag asks for it.
    pub fn kv_events(&self, address: SocketAddr) -> Option<KvEventsConfig> {
        let model = self.models.first().map_or("", String::as_str);
        let topic = self.kv_topic.clone();
        let topic = topic.unwrap_or_else(|| format!("kv@{address}@{model}"));
        Some(KvEventsConfig {
            connect: self.kv_connect,
            replay: self.kv_replay,
            shape: self.kv_shape,
            block_size: self.block_size,
            loras: self.loras.clone(),
            ..KvEventsConfig::at(self.kv_events?, topic)
        })
    }
}

/// An address as ZMQ writes it; `*` is any.
fn tcp(text: &str) -> Result<SocketAddr, String> {
    let address = text
        .strip_prefix("tcp://")
        .ok_or("it must begin with tcp://")?;
    let address = match address.strip_prefix("*:") {
        Some(port) => format!("0.0.0.0:{port}"),
        None => address.to_owned(),
    };
    let parsed = address.parse();
    parsed.map_err(|_| format!("{address:?} is no IP address with a port"))
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
    fn kv_events_are_off_unless_asked_for() {
        let events = |line: &str| {
            let cli: Cli = clap::Parser::try_parse_from(line.split(' ')).unwrap();
            let here = "127.0.0.1:8001".parse().unwrap();
            cli.engine.kv_events(here)
        };
        assert_eq!(events("engine"), None);
        let given = events(
            "engine --model m --block-size 32 --lora food --kv-events tcp://*:5557 --kv-replay tcp://127.0.0.1:5558 \
             --kv-shape array",
        );
        let expected = KvEventsConfig {
            replay: Some("127.0.0.1:5558".parse().unwrap()),
            shape: KvShape::Array,
            block_size: 32,
            loras: vec!["food".into()],
            ..KvEventsConfig::at(
                "0.0.0.0:5557".parse().unwrap(),
                "kv@127.0.0.1:8001@m".into(),
            )
        };
        assert_eq!(given, Some(expected));
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
            ("engine --kv-events 127.0.0.1:5557", "tcp://"),
            ("engine --kv-events tcp://host:5557", "no IP address"),
            ("engine --kv-replay tcp://127.0.0.1:5558", "--kv-events"),
        ] {
            let wrong = config(line).unwrap_err();
            assert!(wrong.contains(says), "{line}: {wrong}");
        }
    }
}
