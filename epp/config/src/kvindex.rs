//! `kvIndex`: from what the file says to what the index is made of.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    decode::Decoded,
    raw::Server,
    scalar::shown,
    secret::Secret,
    units::{Size, Span},
};

/// The prefix index.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KvIndex {
    /// Tokens per block of ours.
    pub block_size: u32,
    /// Most bytes.
    pub max_bytes: u64,
    /// How long a pick counts without a word of the engine.
    pub prediction_ttl: Duration,
    /// Endpoints without events are credited with what they were sent.
    pub approximate: bool,
    /// For how long.
    pub approximate_ttl: Duration,
    /// With how many blocks, when their metrics do not say.
    pub approximate_blocks: usize,
    /// Tokenisers.
    pub tokenizers: Vec<TokenizerFiles>,
    /// Bytes that each tokeniser remembers.
    pub tokenizer_memory: usize,
    /// Longer bodies are tokenised elsewhere.
    pub long_body: u64,
    /// Where events come from.
    pub events: KvEvents,
    /// What subscribed topics begin with.
    pub topic: String,
    /// Other replicas whose index is taken over at the start.
    pub warm_from: Option<WarmFrom>,
    /// What keys are made from; random when absent.
    pub seed: Option<Secret>,
    /// Longest snapshot that is taken in, in bytes.
    pub max_snapshot: usize,
}

/// Where to take the index over from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WarmFrom {
    /// Management ports of other replicas.
    pub peers: Vec<Peer>,
    /// Longest time for all of it.
    pub timeout: Duration,
}

/// Another replica's management port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Peer {
    /// `host:port`
    pub address: String,
    /// It is talked to through TLS.
    pub tls: bool,
}

/// Where the files of a model's tokeniser lie, and which names it serves.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenizerFiles {
    /// What requests name that use no adapter.
    pub model: String,
    /// The folder.
    pub path: PathBuf,
    /// Further names of the model.
    pub aliases: Vec<String>,
    /// Adapters.
    pub adapters: Vec<String>,
}

/// Where engines' events come from; an endpoint's labels go before the ports.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum KvEvents {
    /// From nowhere.
    Off,
    /// Engines listen.
    Connect {
        /// Port of rank 0.
        port: u16,
        /// Port that repeats events.
        replay_port: Option<u16>,
        /// Data-parallel ranks.
        ranks: u32,
    },
    /// Engines say where.
    Discover,
    /// Engines connect to us.
    Listen(SocketAddr),
}

/// The section of the file.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Section {
    block_size: u32,
    max_bytes: Size,
    prediction_ttl: Span,
    approximate: bool,
    approximate_ttl: Span,
    approximate_blocks: usize,
    tokenizers: Vec<Tokenizer>,
    tokenizer_memory: Size,
    long_body: Size,
    events: Events,
    #[serde(skip_serializing_if = "Option::is_none")]
    warm_from: Option<Warm>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed_file: Option<String>,
    max_snapshot_bytes: Size,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default)]
struct Warm {
    peers: Vec<String>,
    timeout: Span,
}

impl Default for Warm {
    fn default() -> Self {
        Warm {
            peers: Vec::new(),
            timeout: Span(Duration::from_secs(10)),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
struct Tokenizer {
    model: String,
    path: String,
    aliases: Vec<String>,
    adapters: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
struct Events {
    mode: String,
    port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    replay_port: Option<u16>,
    ranks: u32,
    #[serde(skip_serializing_if = "String::is_empty")]
    topic: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    listen: Option<String>,
}

impl Default for Section {
    fn default() -> Self {
        Section {
            block_size: 16,
            max_bytes: Size(2 << 30),
            prediction_ttl: Span(Duration::from_secs(5)),
            approximate: true,
            approximate_ttl: Span(Duration::from_secs(30 * 60)),
            approximate_blocks: 31_250,
            tokenizers: Vec::new(),
            tokenizer_memory: Size(64 << 20),
            long_body: Size(8 << 10),
            events: Events::default(),
            warm_from: None,
            seed: None,
            seed_file: None,
            max_snapshot_bytes: Size(256 << 20),
        }
    }
}

impl Default for Events {
    fn default() -> Self {
        Events {
            mode: "off".to_owned(),
            port: 5557,
            replay_port: None,
            ranks: 1,
            topic: String::new(),
            listen: None,
        }
    }
}

impl Section {
    /// Takes over a size that stands elsewhere in the file.
    pub(crate) fn set(&mut self, key: &str, value: &Value) -> Result<(), String> {
        let most = match key {
            "blockSize" => 4096,
            _ => 3_000_000,
        };
        let size = value.as_u64().filter(|size| (1..=most).contains(size));
        let size = size.and_then(|size| u32::try_from(size).ok());
        let size = size.ok_or_else(|| format!("expected a whole number from 1 to {most}"))?;
        match key {
            "blockSize" => self.block_size = size,
            _ => self.approximate_blocks = size as usize,
        }
        Ok(())
    }
}

/// What the table cannot say: names that come twice, times of no length, an address that is none.
pub(crate) fn check(section: &Section, out: &mut Decoded) {
    for (key, span) in [
        ("predictionTtl", section.prediction_ttl),
        ("approximateTtl", section.approximate_ttl),
    ] {
        if span.0.is_zero() {
            out.fault(&format!("kvIndex.{key}"), "must be longer than 0s");
        }
    }
    if section.max_bytes.0 < 1 << 20 {
        out.fault("kvIndex.maxBytes", "too small; at least 1Mi");
    }
    let mut names: Vec<&str> = Vec::new();
    for (index, tokenizer) in section.tokenizers.iter().enumerate() {
        let path = format!("kvIndex.tokenizers[{index}]");
        if tokenizer.path.is_empty() && out.has(&format!("{path}.path")) {
            out.fault(
                &format!("{path}.path"),
                "an empty text is no folder; name one",
            );
        }
        let all = std::iter::once(&tokenizer.model);
        for name in all.chain(&tokenizer.aliases).chain(&tokenizer.adapters) {
            if names.contains(&name.as_str()) {
                let what = format!("{} has a tokeniser already; keep one", shown(name));
                out.fault(&path, what);
            }
            names.push(name);
        }
    }
    let events = &section.events;
    let listens = events.mode == "listen";
    match &events.listen {
        None if listens => {
            let what = "`listen` needs an address to listen on: `listen: IP:PORT`";
            out.fault("kvIndex.events.mode", what);
        }
        Some(at) if at.parse::<SocketAddr>().is_err() => {
            let what = format!("{} is no address; expected IP:PORT", shown(at));
            out.fault("kvIndex.events.listen", what);
        }
        Some(_) if !listens => {
            let what = format!("has no effect with `mode: {}`; remove it", events.mode);
            out.fault("kvIndex.events.listen", what);
        }
        None | Some(_) => {}
    }
}

/// Snapshots: who to take them from, and what makes them fit.
pub(crate) fn check_warm(section: &Section, server: &Server, out: &mut Decoded) {
    if section.max_snapshot_bytes.0 < 1 << 10 {
        out.fault("kvIndex.maxSnapshotBytes", "too small; at least 1Ki");
    }
    if section.seed_file.as_deref() == Some("") {
        let what = "an empty text is no file; name one or remove the key";
        out.fault("kvIndex.seedFile", what);
    }
    if section.seed.is_some() && section.seed_file.is_some() {
        let what = "`seedFile` and `seed` are both set; keep one";
        out.fault("kvIndex.seed", what);
    }
    let Some(warm) = &section.warm_from else {
        return;
    };
    if section.seed.is_none() && section.seed_file.is_none() {
        let what = "needs `kvIndex.seed`, the same for all replicas, such as `seed: ${env:NAME}`: keys of another seed mean nothing here";
        out.fault("kvIndex.warmFrom", what);
    }
    if section.events.mode == "off" {
        let what = "needs `kvIndex.events`: without the engine's events nobody can tell whether a snapshot is still true";
        out.fault("kvIndex.warmFrom", what);
    }
    if warm.timeout.0.is_zero() {
        out.fault("kvIndex.warmFrom.timeout", "must be longer than 0s");
    }
    if warm.peers.is_empty() && out.has("kvIndex.warmFrom.peers") {
        out.fault("kvIndex.warmFrom.peers", "names no peer");
    }
    let ca = server.management_tls.as_ref();
    let ca = ca.is_some_and(|tls| tls.client_ca_file.is_some());
    for (index, peer) in warm.peers.iter().enumerate() {
        let path = format!("kvIndex.warmFrom.peers[{index}]");
        match self::peer(peer) {
            None => {
                let what = format!(
                    "{} is no peer; expected http://host:port or https://host:port of its management port",
                    shown(peer)
                );
                out.fault(&path, what);
            }
            Some(peer) if peer.tls && !ca => {
                let what = "`https://` needs `server.managementTls` with `clientCaFile`: replicas know each other by it";
                out.fault(&path, what);
            }
            Some(_) => {}
        }
    }
}

/// A peer's address from its URL.
fn peer(url: &str) -> Option<Peer> {
    let (rest, tls) = match url.strip_prefix("https://") {
        Some(rest) => (rest, true),
        None => (url.strip_prefix("http://")?, false),
    };
    let address = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = address.rsplit_once(':')?;
    port.parse::<u16>().ok().filter(|port| *port > 0)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let bracketed = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let fits = match bracketed {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(plain),
    };
    fits.then(|| Peer {
        address: address.to_owned(),
        tls,
    })
}

/// The section as it runs.
pub(crate) fn build(section: &Section) -> KvIndex {
    let events = &section.events;
    let bytes = |size: Size| usize::try_from(size.0).unwrap_or(usize::MAX);
    let listen = events.listen.as_deref().and_then(|at| at.parse().ok());
    KvIndex {
        block_size: section.block_size,
        max_bytes: section.max_bytes.0,
        prediction_ttl: section.prediction_ttl.0,
        approximate: section.approximate,
        approximate_ttl: section.approximate_ttl.0,
        approximate_blocks: section.approximate_blocks,
        tokenizers: section
            .tokenizers
            .iter()
            .map(|files| TokenizerFiles {
                model: files.model.clone(),
                path: files.path.clone().into(),
                aliases: files.aliases.clone(),
                adapters: files.adapters.clone(),
            })
            .collect(),
        tokenizer_memory: bytes(section.tokenizer_memory),
        long_body: section.long_body.0,
        events: match (events.mode.as_str(), listen) {
            ("connect", _) => KvEvents::Connect {
                port: events.port,
                replay_port: events.replay_port,
                ranks: events.ranks,
            },
            ("discover", _) => KvEvents::Discover,
            ("listen", Some(at)) => KvEvents::Listen(at),
            _ => KvEvents::Off,
        },
        topic: events.topic.clone(),
        warm_from: section.warm_from.as_ref().map(|warm| WarmFrom {
            peers: warm.peers.iter().filter_map(|url| peer(url)).collect(),
            timeout: warm.timeout.0,
        }),
        seed: Secret::of(section.seed_file.as_deref(), section.seed.as_deref()),
        max_snapshot: bytes(section.max_snapshot_bytes),
    }
}
