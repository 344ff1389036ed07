//! The prefix index in the path: from prompts to keys, from keys to what each endpoint has cached.
//!
//! ```text
//!  Ask ──prompt: tokens, keys──> Request ──> pool ──asks──> LiveView ──> Index <── Intake <── engines' KV events
//!       (before the pool is asked)                             └──picks──────^
//!  Directory ──join, leave──> Life                       scrapes ──sizes, sleep──^
//! ```
//!
//! A life of an endpoint whose events come in is *exact*: a pick counts there for a moment only, until the engine's
//! own word. Any other is *approximate*, if the configuration lets it be: picks are all that is known of it, the last
//! ones, as many as its cache holds.

mod check;
mod life;
mod prompt;
mod snapshot;
mod spoken;
#[cfg(test)]
mod tests;
mod text;
mod view;
mod warm;

use std::{
    collections::HashMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use tokio::{
    runtime::Runtime,
    sync::{Semaphore, mpsc, watch},
    task::JoinHandle,
};
use wicketgate_kvindex::{
    index::{Config, EndpointId, Index, Matches, Stats},
    keys::{Key, KeySpace, engine::HashScheme},
    tokens::Model,
};
use wicketgate_pool::scheduler::Incarnation;
use wicketgate_wire::{EngineKind, MetricsSample};

use crate::{
    clock::{Clock, nanos},
    engine::{Line, Reach},
    kvevents::{Intake, IntakeConfig, IntakeStats, SourceStats},
};

pub use check::{CheckSpec, Checked, OnMismatch};
pub(crate) use life::same_events;
pub use life::{Life, LifeSpec};
pub use prompt::{Content, How, Prompted, Tokens};
pub use snapshot::SnapshotFault;
pub use view::LiveView;
pub use warm::{EngineLine, Fate, Report, SnapshotCounts, Standing, Transfer};
pub use wicketgate_kvindex::tokens::TokensError;
pub use wicketgate_wire::Api;

/// How often predictions are ended and new sources noticed.
const TICK: Duration = Duration::from_millis(100);

/// What the index is made of.
#[derive(Clone)]
pub struct PrefixSpec {
    /// Tokens per block.
    pub block_size: u32,
    /// Most bytes of the index.
    pub max_bytes: u64,
    /// How long a pick counts at an endpoint whose events come in.
    pub prediction_ttl: Duration,
    /// Endpoints without events are credited with what they were sent.
    pub approximate: Option<Approximate>,
    /// Tokenisers.
    pub tokenizers: Vec<TokenizerSpec>,
    /// Bytes that each tokeniser remembers.
    pub tokenizer_memory: usize,
    /// Bodies longer than this many bytes are tokenised on a blocking thread.
    pub long_body: u64,
    /// Where events come from.
    pub events: EventsFrom,
    /// What subscribed topics begin with.
    pub topic: String,
    /// How engines hash, if what they publish is checked.
    pub hash_check: Option<HashScheme>,
    /// Makes keys and the tokenisers' memory unknown outside; equal for replicas that share snapshots.
    pub seed: u64,
    /// How our tokens are compared with the engines', and what follows.
    pub check: CheckSpec,
    /// How engines are asked.
    pub reach: Reach,
}

/// How endpoints without events are credited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Approximate {
    /// For how long at most.
    pub ttl: Duration,
    /// With how many blocks at most, when nothing is known of their cache.
    pub blocks: usize,
}

/// A model's tokeniser and the names that requests use for it.
#[derive(Clone)]
pub struct TokenizerSpec {
    /// What requests name that use no adapter.
    pub model: Arc<str>,
    /// Further names of it.
    pub aliases: Vec<String>,
    /// Its adapters.
    pub adapters: Vec<String>,
    /// How its prompts become tokens.
    pub source: TokenizerSource,
}

/// Where a tokeniser comes from.
#[derive(Clone)]
pub enum TokenizerSource {
    /// From a folder with the files of a Hugging Face model.
    Folder(PathBuf),
    /// It is there.
    Ready(Arc<dyn Tokens>),
    /// From nowhere: the engines are asked for each prompt, at `/tokenize`.
    Engine,
    /// From nowhere: the service at this `host:port` is asked for each prompt, at `/v1/.../render`.
    Service(Arc<str>),
}

/// Where an endpoint's events come from, unless its labels say otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventsFrom {
    /// From nowhere.
    Off,
    /// It listens.
    Connect {
        /// Port of rank 0.
        port: u16,
        /// Port that repeats events, of rank 0.
        replay_port: Option<u16>,
        /// Data-parallel ranks.
        ranks: u32,
    },
    /// It says where.
    Discover,
    /// If some model has a tokeniser: it says where, and listens there; one that would connect to us, or does not say,
    /// is let be.
    Auto,
    /// It connects to us here.
    Listen(SocketAddr),
}

/// Why there is no index.
#[derive(Debug, thiserror::Error)]
pub enum PrefixError {
    /// A file of a tokeniser cannot be read.
    #[error("tokenizer of {model}: {}: {source}", path.display())]
    Read {
        /// Whose.
        model: Arc<str>,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A tokeniser makes no sense.
    #[error("tokenizer of {model}: {source}")]
    Tokenizer {
        /// Whose.
        model: Arc<str>,
        /// The cause.
        source: TokensError,
    },
    /// The threads or the port of the intake cannot be had.
    #[error("KV events: {0}")]
    Intake(#[from] std::io::Error),
}

/// A model by the names that requests use.
struct Known {
    model: Arc<str>,
    adapters: Vec<String>,
    source: Source,
    /// An engine made other tokens than we did, when they were compared last.
    distrusted: AtomicBool,
}

/// Who makes the tokens of a model's prompts, as long as nothing is wrong with them.
enum Source {
    /// We do.
    Own(Arc<dyn Tokens>),
    /// Its engines.
    Engine,
    /// A service beside them.
    Service(Arc<Line>),
}

/// What is known of a life of an endpoint.
struct State {
    /// The pool's name.
    pool: Arc<str>,
    /// The endpoint's name.
    name: Arc<str>,
    /// Models that its pool names.
    models: Arc<[String]>,
    /// The way to its engine.
    line: Line,
    /// It is not asked for tokens before this time: it did not tell when it was asked last.
    rested: AtomicU64,
    /// Counts up when its engine may be another one than before: it was away.
    renewals: watch::Sender<u64>,
    /// It could not be scraped when that was tried last.
    lost: AtomicBool,
    /// All of its sources of events were connected when that was looked at last.
    connected: AtomicBool,
    /// Connections that they had had by then.
    lines: AtomicU64,
    /// `host:port` of its API.
    address: Arc<str>,
    /// Whose engine it is.
    engine: EngineKind,
    /// Events come, or came.
    exact: AtomicBool,
    /// When the engine's process started, by its last scrape; bits of Unix seconds, 0 when unknown.
    started: AtomicU64,
    /// The engine slept when it was scraped last.
    asleep: AtomicBool,
    /// Blocks of ours that the engine's cache holds, 0 when unknown.
    room: AtomicU64,
    /// Ranks in the index; what is not known to be of one of them is credited to the first.
    ranks: RwLock<Vec<u32>>,
    /// It has left: nobody begins to listen to it any more.
    left: Mutex<bool>,
}

/// Counts of the path, for metrics.
#[derive(Debug, Default)]
pub struct PrefixCounts {
    prompts: [AtomicU64; How::ALL.len()],
    /// Prompt tokens of requests that got a place.
    tokens: AtomicU64,
    /// Of those, cached where they went, as far as was known.
    hits: AtomicU64,
}

/// The index of a process and what feeds it.
pub struct Prefixes {
    clock: Clock,
    spec: PrefixSpec,
    index: Arc<Index>,
    intake: Intake,
    /// Threads of the intake: bursts of events hold up no request.
    runtime: Option<Runtime>,
    by_name: HashMap<Box<str>, Arc<Known>>,
    /// The model of requests that name none.
    only: Option<Arc<Known>>,
    lives: RwLock<HashMap<Incarnation, Arc<State>>>,
    /// Every model with a tokeniser.
    all: Vec<Arc<Known>>,
    /// Long prompts that are tokenised at once.
    turns: Arc<Semaphore>,
    /// Requests that wait for an engine's tokens at once.
    askers: Semaphore,
    /// Live prompts to be compared, and the end that compares them until somebody does.
    samples: mpsc::Sender<check::Sample>,
    sampled: Mutex<Option<mpsc::Receiver<check::Sample>>>,
    checks: check::Checks,
    counts: PrefixCounts,
    snapshots: SnapshotCounts,
}

/// One source of events with its endpoint's names.
#[derive(Clone, Debug)]
pub struct SourceView {
    /// The pool.
    pub pool: Arc<str>,
    /// The endpoint.
    pub endpoint: Arc<str>,
    /// What its source did.
    pub stats: SourceStats,
}

/// What one endpoint holds of a prompt.
#[derive(Clone, Debug)]
pub struct Holder {
    /// The pool.
    pub pool: Arc<str>,
    /// The endpoint.
    pub endpoint: Arc<str>,
    /// Its rank.
    pub rank: u32,
    /// Blocks on each tier or a nearer one.
    pub blocks: [u32; 4],
}

impl Prefixes {
    /// Reads the tokenisers and begins to take events in for whoever joins.
    ///
    /// # Errors
    /// When a tokeniser cannot be read, or a port for events cannot be opened.
    pub fn start(clock: Clock, spec: PrefixSpec) -> Result<Arc<Prefixes>, PrefixError> {
        let mut by_name = HashMap::new();
        let mut all = Vec::new();
        for tokenizer in &spec.tokenizers {
            let known = Arc::new(Known {
                model: Arc::clone(&tokenizer.model),
                adapters: tokenizer.adapters.clone(),
                source: load(tokenizer, &spec)?,
                distrusted: AtomicBool::new(false),
            });
            let names = tokenizer.aliases.iter().chain(&tokenizer.adapters);
            let names = names.map(String::as_str).chain([&*tokenizer.model]);
            by_name.extend(names.map(|name| (name.into(), Arc::clone(&known))));
            all.push(known);
        }
        let index = Arc::new(Index::new(Config {
            keys: KeySpace::new(spec.block_size, spec.seed),
            max_bytes: spec.max_bytes,
            ..Config::default()
        }));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("kv-events")
            .enable_all()
            .build()?;
        let intake = match intake(&runtime, &spec, &index) {
            Ok(intake) => intake,
            Err(error) => {
                runtime.shutdown_background();
                return Err(error.into());
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (samples, sampled) = mpsc::channel(check::WAITING);
        Ok(Arc::new(Prefixes {
            clock,
            index,
            intake,
            runtime: Some(runtime),
            by_name,
            only: match all.as_slice() {
                [only] => Some(Arc::clone(only)),
                _ => None,
            },
            lives: RwLock::default(),
            all,
            turns: Arc::new(Semaphore::new(cores)),
            askers: Semaphore::new(spec.check.concurrency),
            samples,
            sampled: Mutex::new(Some(sampled)),
            checks: check::Checks::default(),
            counts: PrefixCounts::default(),
            snapshots: SnapshotCounts::default(),
            spec,
        }))
    }

    /// Ends predictions in time, notices whose events come in, and compares prompts. Ends with the index.
    pub fn tick(self: &Arc<Self>) -> JoinHandle<()> {
        let weak = Arc::downgrade(self);
        let checker = self.check_samples().map(life::Follower);
        tokio::spawn(async move {
            let _checker = checker;
            while let Some(prefixes) = weak.upgrade() {
                prefixes.index.expire(prefixes.clock.now());
                prefixes.notice();
                drop(prefixes);
                tokio::time::sleep(TICK).await;
            }
        })
    }

    /// What an endpoint was credited with for its picks alone is forgotten once it speaks for itself.
    fn notice(&self) {
        let lives = self.lives.read();
        let sources = self.intake.sources();
        for ranks in sources.chunk_by(|a, b| a.id.incarnation == b.id.incarnation) {
            let Some(first) = ranks.first() else { continue };
            let id = Incarnation(first.id.incarnation);
            let Some(state) = lives.get(&id) else {
                continue;
            };
            state.line_up(ranks);
            let speaks = |source: &SourceStats| source.connected || source.last.is_some();
            if ranks.iter().any(speaks) && !state.exact.swap(true, Ordering::AcqRel) {
                let room = state.room();
                for rank in state.ranks.read().iter() {
                    let id = endpoint(id, *rank);
                    self.index.bound_predictions(id, Some(0));
                    self.index.bound_predictions(id, room);
                }
            }
        }
    }

    /// A scrape failed: who answers the next one may be another engine.
    pub(crate) fn unscraped(&self, id: Incarnation) {
        if let Some(state) = self.lives.read().get(&id) {
            state.lost.store(true, Ordering::Release);
        }
    }

    /// Takes over what a scrape says of an engine's cache.
    pub(crate) fn scraped(&self, id: Incarnation, sample: &MetricsSample) {
        let Some(state) = self.lives.read().get(&id).map(Arc::clone) else {
            return;
        };
        if state.lost.swap(false, Ordering::AcqRel) {
            state.renew();
        }
        // Every rank has a cache of its own; the smallest one counts for all.
        let sizes = sample.ranks.iter().filter_map(|rank| {
            let blocks = rank.num_blocks?.checked_mul(rank.block_size?)?;
            Some(rank.capacity_tokens.unwrap_or(blocks) / u64::from(self.spec.block_size))
        });
        if let Some(room) = sizes.min().filter(|room| *room > 0)
            && state.room.swap(room, Ordering::AcqRel) != room
        {
            self.bound(id, &state);
        }
        self.restarted(id, &state, sample.started);
        let asleep = sample.ranks.iter().any(|rank| rank.sleeping == Some(true));
        if asleep && !state.asleep.swap(asleep, Ordering::AcqRel) {
            for rank in state.ranks.read().iter() {
                self.index.clear(endpoint(id, *rank));
            }
        }
        state.asleep.store(asleep, Ordering::Release);
    }

    /// Forgets what a process had that is gone. Its successor may have said nothing yet; once it has, the intake knows.
    fn restarted(&self, id: Incarnation, state: &State, started: Option<f64>) {
        let Some(started) = started else { return };
        let before = f64::from_bits(state.started.swap(started.to_bits(), Ordering::AcqRel));
        if before == started {
            return;
        }
        let first = before == 0.0;
        for rank in state.ranks.read().iter() {
            let id = endpoint(id, *rank);
            let last = self.intake.source(id).and_then(|source| source.published);
            // What was promised to an engine that says nothing is gone with its process too.
            if last.map_or(!first, |last| last < started) {
                self.index.clear(id);
            }
        }
    }

    /// Bounds what picks may promise for a life.
    fn bound(&self, id: Incarnation, state: &State) {
        let blocks = self.spec.approximate.map(|approximate| approximate.blocks);
        for rank in state.ranks.read().iter() {
            self.index
                .bound_predictions(endpoint(id, *rank), state.room().or(blocks));
        }
    }

    /// A pick promises a prompt to a life.
    fn promise(&self, id: Incarnation, keys: &[Key]) {
        let lives = self.lives.read();
        let Some(state) = lives.get(&id) else { return };
        let exact = state.exact.load(Ordering::Acquire);
        let ttl = match (exact, self.spec.approximate) {
            (true, _) | (false, None) => self.spec.prediction_ttl,
            (false, Some(approximate)) => approximate.ttl,
        };
        let rank = state.ranks.read().first().copied().unwrap_or(0);
        let until = self.clock.now().saturating_add(nanos(ttl));
        self.index.predict(endpoint(id, rank), keys, until);
    }

    /// Lets messages of engines wait until this is dropped: what another replica heard goes first.
    pub fn hold(self: &Arc<Self>) -> Hold {
        self.intake.hold(true);
        Hold(Arc::clone(self))
    }

    /// Whether messages of engines wait.
    pub fn is_held(&self) -> bool {
        self.intake.is_held()
    }

    /// Counts of the path.
    pub fn counts(&self) -> &PrefixCounts {
        &self.counts
    }

    /// Comparisons of our tokens with engines', by what they came to.
    pub fn checks(&self) -> impl Iterator<Item = (Checked, u64)> {
        self.checks.counts()
    }

    /// Models whose tokens are ours, and whether they were the engine's when they were compared last.
    pub fn trust(&self) -> impl Iterator<Item = (&Arc<str>, bool)> {
        let own = self.all.iter();
        let own = own.filter(|known| matches!(known.source, Source::Own(_)));
        own.map(|known| (&known.model, !known.distrusted.load(Ordering::Acquire)))
    }

    /// Sizes of the index.
    pub fn stats(&self) -> Stats {
        self.index.stats()
    }

    /// Tokens per block.
    pub fn block_size(&self) -> u32 {
        self.spec.block_size
    }

    /// Counts of the intake.
    pub fn intake(&self) -> IntakeStats {
        self.intake.stats()
    }

    /// Every source of events.
    pub fn sources(&self) -> Vec<SourceView> {
        let lives = self.lives.read();
        let sources = self.intake.sources().into_iter();
        let named = sources.filter_map(|stats| {
            let state = lives.get(&Incarnation(stats.id.incarnation))?;
            Some(SourceView {
                pool: Arc::clone(&state.pool),
                endpoint: Arc::clone(&state.name),
                stats,
            })
        });
        named.collect()
    }

    /// Lives by how they are credited: exact and approximate.
    pub fn lives(&self) -> (usize, usize) {
        let lives = self.lives.read();
        let exact = lives.values();
        let exact = exact.filter(|state| state.exact.load(Ordering::Acquire));
        let exact = exact.count();
        (exact, lives.len() - exact)
    }

    /// Who holds how much of a prompt, the most first.
    pub fn holders(&self, keys: &[u64]) -> Vec<Holder> {
        let keys: Vec<Key> = keys.iter().copied().map(Key).collect();
        let mut matches = Matches::new();
        self.index.lookup(&keys, &mut matches);
        let lives = self.lives.read();
        let named = matches.iter().filter_map(|found| {
            let state = lives.get(&Incarnation(found.endpoint.incarnation))?;
            Some(Holder {
                pool: Arc::clone(&state.pool),
                endpoint: Arc::clone(&state.name),
                rank: found.endpoint.rank,
                blocks: found.blocks,
            })
        });
        let mut holders: Vec<Holder> = named.collect();
        holders.sort_by(|a, b| {
            let key = |of: &Holder| (of.blocks, Arc::clone(&of.endpoint));
            key(b)
                .0
                .cmp(&key(a).0)
                .then_with(|| key(a).1.cmp(&key(b).1))
        });
        holders
    }
}

/// Messages of engines wait as long as it lives.
pub struct Hold(Arc<Prefixes>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.intake.hold(false);
    }
}

impl Drop for Prefixes {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // To wait for its threads here would block a thread that serves requests.
            runtime.shutdown_background();
        }
    }
}

impl State {
    /// Its engine may be another one from now on.
    fn renew(&self) {
        self.renewals
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// All of its ranks were connected when that was looked at last.
    fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Acquire)
    }

    /// Looks at the connections of its ranks: one that broke, or stands anew, may be another engine's.
    fn line_up(&self, ranks: &[SourceStats]) {
        let all = ranks.iter().all(|source| source.connected);
        let lines = ranks.iter().map(|source| source.counts.connects).sum();
        let before = self.lines.swap(lines, Ordering::AcqRel);
        let broke = self.connected.swap(all, Ordering::AcqRel) && !all;
        // The first connections of all are no news.
        let anew = lines > before && before >= ranks.len() as u64;
        if broke || anew {
            self.renew();
        }
    }

    fn room(&self) -> Option<usize> {
        let room = self.room.load(Ordering::Acquire);
        usize::try_from(room).ok().filter(|room| *room > 0)
    }
}

impl PrefixCounts {
    /// Requests by what became of their prompts.
    pub fn prompts(&self) -> impl Iterator<Item = (How, u64)> {
        let counts = self.prompts.iter();
        let loaded = counts.map(|count| count.load(Ordering::Relaxed));
        How::ALL.into_iter().zip(loaded)
    }

    /// Prompt tokens of requests that got a place, and how many of them were cached where they went.
    pub fn tokens(&self) -> (u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load(&self.tokens), load(&self.hits))
    }

    fn dispatched(&self, tokens: u64, hits: u64) {
        self.tokens.fetch_add(tokens, Ordering::Relaxed);
        self.hits.fetch_add(hits, Ordering::Relaxed);
    }

    fn count(&self, how: How) {
        if let Some(count) = self.prompts.get(how as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn endpoint(id: Incarnation, rank: u32) -> EndpointId {
    EndpointId {
        incarnation: id.0,
        rank,
    }
}

/// The intake, on threads of its own.
fn intake(runtime: &Runtime, spec: &PrefixSpec, index: &Arc<Index>) -> std::io::Result<Intake> {
    let _inside = runtime.enter();
    let config = IntakeConfig {
        topic: spec.topic.clone(),
        hash_check: spec.hash_check.clone(),
        ..IntakeConfig::default()
    };
    let intake = Intake::new(config, Arc::clone(index));
    if let EventsFrom::Listen(at) = spec.events {
        let at = intake.listen(at)?;
        tracing::info!(%at, "engines may publish KV events here");
    }
    Ok(intake)
}

/// Who makes a model's tokens; a tokeniser of ours is read from its files.
fn load(tokenizer: &TokenizerSpec, spec: &PrefixSpec) -> Result<Source, PrefixError> {
    let folder = match &tokenizer.source {
        TokenizerSource::Ready(tokens) => return Ok(Source::Own(Arc::clone(tokens))),
        TokenizerSource::Engine => return Ok(Source::Engine),
        TokenizerSource::Service(address) => {
            let line = Line::new(Arc::clone(address), Reach::default());
            return Ok(Source::Service(Arc::new(line)));
        }
        TokenizerSource::Folder(folder) => folder,
    };
    let model = &tokenizer.model;
    let read = |name: &str| read(&folder.join(name), model);
    let files = read("tokenizer.json")?.ok_or_else(|| PrefixError::Read {
        model: Arc::clone(model),
        path: folder.join("tokenizer.json"),
        source: std::io::ErrorKind::NotFound.into(),
    })?;
    let config = read("tokenizer_config.json")?;
    let template = read("chat_template.jinja")?;
    let template = template.map(|text| String::from_utf8_lossy(&text).into_owned());
    let built = Model::new(
        &files,
        config.as_deref(),
        template.as_deref(),
        spec.tokenizer_memory,
        spec.seed,
    );
    let built = built.map_err(|source| PrefixError::Tokenizer {
        model: Arc::clone(model),
        source,
    })?;
    Ok(Source::Own(Arc::new(built)))
}

/// A file, if it is there.
fn read(path: &Path, model: &Arc<str>) -> Result<Option<Vec<u8>>, PrefixError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PrefixError::Read {
            model: Arc::clone(model),
            path: path.to_owned(),
            source,
        }),
    }
}
