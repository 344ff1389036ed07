//! KV events: from the engines' sockets into the prefix index.
//!
//! ```text
//!            line (one per connection)         source (one per endpoint incarnation and rank)
//! engine --> dial: reconnects, subscribes --.
//!                                            >- feed: bounded --> cursor -- apply, clear --> Index
//! engine --> listen: the engine connects ---'                       |
//! engine <-> replay (DEALER), only for what is missing <------------'
//! ```
//!
//! A source has one queue, bounded in messages and bytes. While it is full its line does not read, so the engine's own
//! queue fills, then the engine drops, and the next number shows it. A gap is filled by a replay where the engine has
//! one; until then the queue waits. Without a replay everything that the source said is forgotten, and it goes on.
//!
//! Nothing is shared between sources but the index, so a broken engine holds up nobody else. [`Intake::new`] uses the
//! present runtime: one of its own keeps large bursts away from the threads that serve requests.

mod config;
mod counts;
mod dial;
mod discover;
mod feed;
mod listen;
mod replay;
mod source;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
};

use parking_lot::Mutex;
use thiserror::Error;
use tokio::{runtime::Handle, sync::Semaphore, task::JoinHandle};
use wicketgate_kvindex::index::{EndpointId, Index};

pub use config::{Dialect, Events, IntakeConfig, RankSource, Source};
pub use counts::{Counts, IntakeStats, SourceStats};
pub use discover::{DiscoverError, base_model, discover, parse_sources};

use counts::Shared;
use feed::feed;
use listen::{Only, Post};

/// Why an endpoint cannot be listened to.
#[derive(Debug, Error)]
pub enum IntakeError {
    /// It has been added already.
    #[error("endpoint incarnation {0} is listened to already")]
    Known(u64),
    /// It names a rank twice, or none at all.
    #[error("a source needs ranks, each once")]
    Ranks,
    /// A port for its events cannot be opened.
    #[error("cannot listen on {at} for KV events: {error}")]
    Listen {
        /// Where.
        at: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// The index has no room for one more endpoint.
    #[error("the index takes no more endpoints")]
    Full,
}

/// A task that ends with its owner.
#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What belongs to one rank of an endpoint. Dropping it ends its connections.
struct Rank {
    shared: Arc<Shared>,
    /// Where its engine is found by topic.
    topic: Option<String>,
    _tasks: Vec<Task>,
}

/// Takes KV events in. Dropping it ends all connections; the index keeps what it has.
pub struct Intake {
    config: Arc<IntakeConfig>,
    index: Arc<Index>,
    runtime: Handle,
    replays: Arc<Semaphore>,
    post: Arc<Post>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    endpoints: HashMap<u64, Vec<Rank>>,
    /// Counts of sources that are gone.
    retired: Counts,
    ports: Vec<Task>,
}

impl Intake {
    /// Nothing yet, on the present Tokio runtime.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn new(config: IntakeConfig, index: Arc<Index>) -> Intake {
        Intake {
            replays: Arc::new(Semaphore::new(config.replays.max(1))),
            config: Arc::new(config),
            index,
            runtime: Handle::current(),
            post: Arc::default(),
            inner: Mutex::default(),
        }
    }

    /// Begins to listen to a life of an endpoint; it is in the index from now on, until [`Intake::remove`].
    ///
    /// # Errors
    /// When it is known already, or a port for it cannot be opened; then nothing has begun.
    pub fn add(&self, incarnation: u64, source: Source) -> Result<(), IntakeError> {
        let mut inner = self.inner.lock();
        if inner.endpoints.contains_key(&incarnation) {
            return Err(IntakeError::Known(incarnation));
        }
        let mut numbers: Vec<u32> = source.ranks.iter().map(|rank| rank.rank).collect();
        numbers.sort_unstable();
        if numbers.is_empty() || numbers.windows(2).any(|pair| pair.first() == pair.last()) {
            return Err(IntakeError::Ranks);
        }
        let ports = source
            .ranks
            .iter()
            .map(open)
            .collect::<Result<Vec<_>, _>>()?;
        let mut ranks = Vec::with_capacity(numbers.len());
        for (rank, port) in source.ranks.iter().zip(ports) {
            let id = EndpointId {
                incarnation,
                rank: rank.rank,
            };
            // A snapshot may have been taken in for it before.
            if !self.index.register(id, &source.model) && !self.index.contains(id) {
                ranks.iter().for_each(|rank: &Rank| {
                    self.index.remove(rank.shared.id);
                });
                return Err(IntakeError::Full);
            }
            ranks.push(self.rank(id, &source, rank, port));
        }
        inner.endpoints.insert(incarnation, ranks);
        Ok(())
    }

    fn rank(
        &self,
        id: EndpointId,
        source: &Source,
        rank: &RankSource,
        port: Option<TcpListener>,
    ) -> Rank {
        let shared = Arc::new(Shared::new(id));
        let (feeder, feed) = feed(&self.config, Arc::clone(&shared));
        let task = source::Task {
            id,
            config: Arc::clone(&self.config),
            index: Arc::clone(&self.index),
            shared: Arc::clone(&shared),
            replays: Arc::clone(&self.replays),
            dialect: source.dialect,
            replay: rank.replay.clone(),
        };
        let mut tasks = vec![self.spawn(task.run(feed, rank.last))];
        let mut topic = None;
        match &rank.events {
            Events::Connect(address) => {
                let config = Arc::clone(&self.config);
                tasks.push(self.spawn(dial::dial(address.clone(), config, feeder)));
            }
            Events::Listen { from, .. } => {
                if let Some(port) = port {
                    let only = Only {
                        from: *from,
                        feeder,
                    };
                    let config = Arc::clone(&self.config);
                    tasks.push(self.spawn(listen::listen(port, config, Arc::new(only))));
                }
            }
            Events::Topic(name) => {
                self.post.add(name, id.rank, feeder);
                topic = Some(name.clone());
            }
        }
        Rank {
            shared,
            topic,
            _tasks: tasks,
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Task {
        Task(self.runtime.spawn(task))
    }

    /// Stops listening to a life of an endpoint and takes all its ranks out of the index; false if it is not known.
    /// What is still under way for it changes nothing any more.
    pub fn remove(&self, incarnation: u64) -> bool {
        let mut inner = self.inner.lock();
        let Some(ranks) = inner.endpoints.remove(&incarnation) else {
            return false;
        };
        for rank in &ranks {
            if let Some(name) = &rank.topic {
                self.post.remove(name, rank.shared.id.rank);
            }
            self.index.remove(rank.shared.id);
            inner.retired.add(&rank.shared.stats().counts);
        }
        true
    }

    /// Opens a port to which engines connect that are told apart by their topics ([`Events::Topic`]); says which, as
    /// port 0 takes a free one. It stays open as long as the intake.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn listen(&self, at: SocketAddr) -> io::Result<SocketAddr> {
        let port = bind(at)?;
        let at = port.local_addr()?;
        let post = Arc::clone(&self.post);
        let task = self.spawn(listen::listen(port, Arc::clone(&self.config), post));
        self.inner.lock().ports.push(task);
        Ok(at)
    }

    /// Counts of everything so far, and the present state.
    pub fn stats(&self) -> IntakeStats {
        let inner = self.inner.lock();
        let mut stats = IntakeStats {
            counts: inner.retired,
            strays: self.post.strays(),
            ..IntakeStats::default()
        };
        for rank in inner.endpoints.values().flatten() {
            stats.add(&rank.shared.stats());
        }
        stats
    }

    /// Whether some rank of an endpoint is connected.
    pub fn connected(&self, incarnation: u64) -> bool {
        let inner = self.inner.lock();
        let ranks = inner.endpoints.get(&incarnation).into_iter().flatten();
        ranks.into_iter().any(|rank| rank.shared.stats().connected)
    }

    /// When a rank published the last message that counts, in Unix seconds of the engine's clock.
    pub fn published(&self, id: EndpointId) -> Option<f64> {
        let inner = self.inner.lock();
        let mut ranks = inner.endpoints.get(&id.incarnation)?.iter();
        let rank = ranks.find(|rank| rank.shared.id == id)?;
        rank.shared.stats().published
    }

    /// Every source, in the order of its endpoint and rank.
    pub fn sources(&self) -> Vec<SourceStats> {
        let inner = self.inner.lock();
        let ranks = inner.endpoints.values().flatten();
        let mut all: Vec<SourceStats> = ranks.map(|rank| rank.shared.stats()).collect();
        all.sort_unstable_by_key(|source| source.id);
        all
    }
}

impl std::fmt::Debug for Intake {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Intake")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// The port of a rank whose engine connects to it.
fn open(rank: &RankSource) -> Result<Option<TcpListener>, IntakeError> {
    let Events::Listen { at, .. } = rank.events else {
        return Ok(None);
    };
    let bound = bind(at);
    bound
        .map(Some)
        .map_err(|error| IntakeError::Listen { at, error })
}

fn bind(at: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(at)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
