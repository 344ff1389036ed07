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
    pub tokenizers: Vec<ModelTokens>,
    /// Bytes that each tokeniser remembers.
    pub tokenizer_memory: usize,
    /// Longer bodies are tokenised elsewhere.
    pub long_body: u64,
    /// Whether engines make the same tokens.
    pub token_check: TokenCheck,
    /// Where events come from.
    pub events: KvEvents,
    /// What subscribed topics begin with.
    pub topic: String,
    /// How engines hash, if that is checked.
    pub hash_check: Option<HashCheck>,
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

/// How engines hash blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HashCheck {
    /// vLLM's algorithm, or `sglang`.
    pub scheme: String,
    /// vLLM's `PYTHONHASHSEED`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<String>,
    /// `tagged` or `plain`.
    pub extras: String,
}

impl Default for HashCheck {
    fn default() -> Self {
        HashCheck {
            scheme: String::new(),
            seed: None,
            extras: "tagged".to_owned(),
        }
    }
}

/// Who makes the tokens of a model's prompts, and which names it serves.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelTokens {
    /// What requests name that use no adapter.
    pub model: String,
    /// Who makes them.
    pub source: TokenSource,
    /// Further names of the model.
    pub aliases: Vec<String>,
    /// Adapters.
    pub adapters: Vec<String>,
}

/// Who makes the tokens of a model's prompts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum TokenSource {
    /// We do, from the files in this folder.
    Folder(PathBuf),
    /// Its engines.
    Engine,
    /// The service at this `host:port`.
    Service(String),
}

/// How our tokens are compared with the engines', and how engines are asked for theirs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenCheck {
    /// Each engine is asked about some prompts of ours.
    pub probe: bool,
    /// Share of live prompts that are compared.
    pub sample: f64,
    /// What becomes of a model's prompts while its tokens differ.
    pub on_mismatch: OnMismatch,
    /// Longest time that a request waits for an engine's tokens.
    pub timeout: Duration,
    /// Requests that wait for engines' tokens at once.
    pub concurrency: usize,
}

/// What becomes of the prompts of a model whose tokens differ from the engine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum OnMismatch {
    /// Engines tokenise them.
    Engine,
    /// They go by load alone.
    Load,
    /// Nothing.
    Ignore,
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
    /// Engines that listen say where, the others are let be.
    Auto,
    /// Engines connect to us.
    Listen(SocketAddr),
}

/// The section of the file.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Section {
    pub(crate) enabled: bool,
    block_size: u32,
    pub(crate) max_bytes: Size,
    pub(crate) prediction_ttl: Span,
    approximate: bool,
    approximate_ttl: Span,
    approximate_blocks: usize,
    tokenizers: Vec<Tokenizer>,
    tokenizer_memory: Size,
    long_body: Size,
    token_check: CheckSection,
    pub(crate) engine_tokens: EngineSection,
    pub(crate) events: Events,
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
#[serde(default, rename_all = "camelCase")]
struct Tokenizer {
    model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    engine: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    render_url: Option<String>,
    aliases: Vec<String>,
    adapters: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
struct CheckSection {
    probe: bool,
    sample: f64,
    on_mismatch: String,
}

impl Default for CheckSection {
    fn default() -> Self {
        CheckSection {
            probe: true,
            sample: 0.01,
            on_mismatch: "engine".to_owned(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct EngineSection {
    pub(crate) timeout: Span,
    concurrency: usize,
}

impl Default for EngineSection {
    fn default() -> Self {
        EngineSection {
            timeout: Span(Duration::from_millis(100)),
            concurrency: 64,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Events {
    pub(crate) mode: String,
    pub(crate) port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) replay_port: Option<u16>,
    ranks: u32,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) topic: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) listen: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hash_check: Option<HashCheck>,
}

impl Default for Section {
    fn default() -> Self {
        Section {
            enabled: true,
            block_size: 16,
            max_bytes: Size(2 << 30),
            prediction_ttl: Span(Duration::from_secs(5)),
            approximate: true,
            approximate_ttl: Span(Duration::from_secs(30 * 60)),
            approximate_blocks: 31_250,
            tokenizers: Vec::new(),
            tokenizer_memory: Size(64 << 20),
            long_body: Size(8 << 10),
            token_check: CheckSection::default(),
            engine_tokens: EngineSection::default(),
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
            // Whose file it is decides.
            mode: String::new(),
            port: 5557,
            replay_port: None,
            ranks: 1,
            topic: String::new(),
            listen: None,
            hash_check: None,
        }
    }
}

impl Section {
    /// True if a model has a tokeniser, by any of its names.
    pub(crate) fn has_model(&self, model: &str) -> bool {
        let mut named = self.tokenizers.iter().flat_map(|tokenizer| {
            let more = tokenizer.aliases.iter().chain(&tokenizer.adapters);
            more.chain([&tokenizer.model])
        });
        named.any(|name| name == model)
    }

    /// A model whose engines, or the service at this URL, make its tokens.
    pub(crate) fn add_model(&mut self, model: &str, render_url: Option<String>) {
        self.tokenizers.push(Tokenizer {
            model: model.to_owned(),
            engine: render_url.is_none(),
            render_url,
            ..Tokenizer::default()
        });
    }

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
        ("engineTokens.timeout", section.engine_tokens.timeout),
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
        source(tokenizer, &path, out);
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

/// One of three ways to tokens, and only one.
fn source(tokenizer: &Tokenizer, path: &str, out: &mut Decoded) {
    let Tokenizer {
        path: folder,
        engine,
        render_url,
        ..
    } = tokenizer;
    let ways = [folder.is_some(), *engine, render_url.is_some()];
    if ways.into_iter().filter(|way| *way).count() != 1 {
        let what = "needs one of `path`, `engine: true` and `renderUrl`";
        out.fault(path, what);
    }
    if folder.as_deref() == Some("") {
        let what = "an empty text is no folder; name one";
        out.fault(&format!("{path}.path"), what);
    }
    if let Some(url) = render_url
        && service(url).is_none()
    {
        let what = format!("{} is not like http://HOST:PORT", shown(url));
        out.fault(&format!("{path}.renderUrl"), what);
    }
}

/// `host:port` of a URL without a path.
pub(crate) fn service(url: &str) -> Option<String> {
    let authority = url.strip_prefix("http://")?;
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !authority.ends_with(']') => (host, port.parse().ok()?),
        _ => (authority, 80),
    };
    let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let bracketed = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_host = match bracketed {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(named),
    };
    (is_host && port > 0_u16).then(|| format!("{host}:{port}"))
}

fn token_source(tokenizer: &Tokenizer) -> TokenSource {
    let url = tokenizer.render_url.as_deref().and_then(service);
    match (&tokenizer.path, url) {
        (Some(folder), _) => TokenSource::Folder(folder.into()),
        (None, Some(at)) => TokenSource::Service(at),
        (None, None) => TokenSource::Engine,
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
    let silent = match section.events.mode.as_str() {
        "off" => true,
        // Engines are asked for events where some model has a tokeniser.
        "auto" => section.tokenizers.is_empty(),
        _ => false,
    };
    if silent {
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
            .map(|files| ModelTokens {
                model: files.model.clone(),
                source: token_source(files),
                aliases: files.aliases.clone(),
                adapters: files.adapters.clone(),
            })
            .collect(),
        tokenizer_memory: bytes(section.tokenizer_memory),
        long_body: section.long_body.0,
        token_check: TokenCheck {
            probe: section.token_check.probe,
            sample: section.token_check.sample,
            on_mismatch: match section.token_check.on_mismatch.as_str() {
                "load" => OnMismatch::Load,
                "ignore" => OnMismatch::Ignore,
                _ => OnMismatch::Engine,
            },
            timeout: section.engine_tokens.timeout.0,
            concurrency: section.engine_tokens.concurrency,
        },
        events: match (events.mode.as_str(), listen) {
            ("connect", _) => KvEvents::Connect {
                port: events.port,
                replay_port: events.replay_port,
                ranks: events.ranks,
            },
            ("discover", _) => KvEvents::Discover,
            ("auto", _) => KvEvents::Auto,
            ("listen", Some(at)) => KvEvents::Listen(at),
            _ => KvEvents::Off,
        },
        topic: events.topic.clone(),
        hash_check: events.hash_check.clone(),
        warm_from: section.warm_from.as_ref().map(|warm| WarmFrom {
            peers: warm.peers.iter().filter_map(|url| peer(url)).collect(),
            timeout: warm.timeout.0,
        }),
        seed: Secret::of(section.seed_file.as_deref(), section.seed.as_deref()),
        max_snapshot: bytes(section.max_snapshot_bytes),
    }
}
