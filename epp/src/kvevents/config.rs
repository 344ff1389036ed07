//! Settings of the intake, and where an endpoint publishes.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use wicketgate_kvindex::{events::Limits, keys::engine::HashScheme};

pub use wicketgate_kvindex::events::Dialect;

/// Bounds and times of the intake.
#[derive(Clone, Debug, PartialEq)]
pub struct IntakeConfig {
    /// Topics to subscribe to begin so; empty for all. SGLang's topic is empty.
    pub topic: String,
    /// Bounds of one message.
    pub limits: Limits,
    /// Messages that wait for one source.
    pub queue_messages: usize,
    /// Bytes of the messages that wait for one source; a longer one waits alone.
    pub queue_bytes: usize,
    /// Longest time to connect and greet.
    pub connect_timeout: Duration,
    /// First and longest pause before an engine is dialled again; doubled each time, with jitter.
    pub pause: (Duration, Duration),
    /// Replays at once, over all sources.
    pub replays: usize,
    /// Longest silence of a replay.
    pub replay_idle: Duration,
    /// Longest time of a replay.
    pub replay_total: Duration,
    /// Time without replays from a source after one that failed.
    pub replay_cooldown: Duration,
    /// How engines hash, if what they publish is checked.
    pub hash_check: Option<HashScheme>,
}

impl Default for IntakeConfig {
    fn default() -> IntakeConfig {
        IntakeConfig {
            topic: String::new(),
            limits: Limits::default(),
            queue_messages: 256,
            queue_bytes: 8 << 20,
            connect_timeout: Duration::from_secs(3),
            pause: (Duration::from_millis(100), Duration::from_secs(5)),
            replays: 8,
            replay_idle: Duration::from_secs(2),
            replay_total: Duration::from_secs(120),
            replay_cooldown: Duration::from_secs(30),
            hash_check: None,
        }
    }
}

/// What to listen to for one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The model that requests name when they use no adapter.
    pub model: String,
    /// Whose arrays its events are.
    pub dialect: Dialect,
    /// Its data-parallel ranks, each with a publisher of its own.
    pub ranks: Vec<RankSource>,
}

/// What to listen to for one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankSource {
    /// Number of the rank.
    pub rank: u32,
    /// Where its events come from.
    pub events: Events,
    /// `host:port` that repeats events, where there is one.
    pub replay: Option<String>,
}

/// Where events come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Events {
    /// The engine listens on this `host:port`, and we connect.
    Connect(String),
    /// We listen, and the engine connects: what vLLM does when its endpoint names a host.
    Listen {
        /// Our address.
        at: SocketAddr,
        /// The only address that may connect; anyone who can reach the port when absent.
        from: Option<IpAddr>,
    },
    /// The engine connects to a port that it shares with others (see `Intake::listen`) and names itself in its topic:
    /// `kv@NAME@model`, or the topic as a whole.
    Topic(String),
}

impl Source {
    /// An endpoint with `ranks` ranks that listens on `port` and repeats events on `replay`, both plus the rank.
    pub fn at(model: &str, host: &str, port: u16, replay: Option<u16>, ranks: u32) -> Source {
        let address = |port: u16, rank: u32| {
            let port = u32::from(port).saturating_add(rank);
            match host.contains(':') && !host.starts_with('[') {
                true => format!("[{host}]:{port}"),
                false => format!("{host}:{port}"),
            }
        };
        Source {
            model: model.to_owned(),
            dialect: Dialect::Vllm,
            ranks: (0..ranks)
                .map(|rank| RankSource {
                    rank,
                    events: Events::Connect(address(port, rank)),
                    replay: replay.map(|port| address(port, rank)),
                })
                .collect(),
        }
    }
}
