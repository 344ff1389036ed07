//! Replicas of this process in front of the same pools: a small gRPC stream between each two of them.
//!
//! ```text
//!  Member::tell ─> board ─> Outgoing ══ /wicketgate.fleet.v1.Fleet/Exchange ══> the others' inbox ─> Member::hear
//!                             │ link: we dial each peer of the configuration, with backoff
//!                             └ serve: others dial us; a stream carries both ways
//! ```
//! What is said is [`Counters`]: sums since the start of the sender, and gauges. So only the last message of each
//! replica and pool is held, on both sides; one that is slow skips what it missed, and doubles do no harm. A replica
//! is a random number drawn at its start: one that started anew is never taken for its former self.
//!
//! Everything is bounded: pools, peers, the size of a message, connections. What peers say is believed: the port belongs
//! on a closed network, or behind TLS with certificates of their own CA.

mod board;
mod link;
mod proto;
mod serve;
#[cfg(test)]
mod tests;

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use board::Board;
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use wicketgate_admission::fleet::{Counters, ReplicaId};

use crate::{
    net::Shutdown,
    tls::{Acceptor, ServerFiles, TlsError},
};

/// Largest message in bytes; one with every row that the counters' bounds allow is smaller.
const MAX_MESSAGE: usize = 4 << 20;

/// Who the other replicas are, and how often they talk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetSettings {
    /// Where the others dial us; `None` only dials.
    pub listen: Option<SocketAddr>,
    /// `host:port` of the others. Our own address may be among them: it is noticed and left out.
    pub peers: Vec<String>,
    /// Time between two messages.
    pub interval: Duration,
    /// What a peer said counts for so long.
    pub stale_after: Duration,
    /// Certificate, key and CA of the fleet, for both sides of each stream. The CA is needed.
    pub tls: Option<ServerFiles>,
}

impl Default for FleetSettings {
    fn default() -> Self {
        FleetSettings {
            listen: None,
            peers: Vec::new(),
            interval: Duration::from_millis(100),
            stale_after: Duration::from_secs(1),
            tls: None,
        }
    }
}

/// Why a fleet could not start.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The address cannot be bound.
    #[error("fleet.listen {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// Certificates cannot be used.
    #[error("fleet.tls: {0}")]
    Tls(#[from] TlsError),
    /// Without a CA anybody could be a replica.
    #[error("fleet.tls: needs a client CA: replicas know each other by it")]
    NoCa,
    /// Times that make no sense.
    #[error("fleet.interval: must be above zero and below staleAfter")]
    Interval,
}

/// Counts over the life of a fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Traffic {
    /// Messages put on streams.
    pub sent: u64,
    /// Messages that came and were kept.
    pub received: u64,
    /// Messages that came and were dropped: of pools that we do not have, or of too many replicas.
    pub dropped: u64,
    /// Streams that ended with an error: garbage, too large, broken off.
    pub broken: u64,
    /// Times that a peer was dialled in vain.
    pub unreached: u64,
    /// Streams open now, both ways.
    pub open: u64,
}

/// The counters behind [`Traffic`].
#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    received: AtomicU64,
    dropped: AtomicU64,
    broken: AtomicU64,
    unreached: AtomicU64,
    open: AtomicU64,
}

fn one_more(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// An open stream; dropping it takes it off the count.
struct Open(Arc<Board>);

impl Open {
    fn new(board: &Arc<Board>) -> Open {
        one_more(&board.counts.open);
        Open(Arc::clone(board))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.counts.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A pool, as the fleet needs it.
pub trait Member: Send + Sync + 'static {
    /// What this replica says now.
    fn tell(&self) -> Counters;
    /// What another one said last.
    fn hear(&self, said: &Counters);
    /// How many replicas there are, this one included: at the start, and when it is known better.
    fn members(&self, members: u32);
}

/// This replica's streams. Dropping it ends them.
pub struct Fleet {
    board: Arc<Board>,
    settings: FleetSettings,
    tls: Option<Acceptor>,
    address: Option<SocketAddr>,
    members: Arc<AtomicU32>,
    /// Thrown when the fleet is dropped.
    _stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Fleet {
    /// Listens, and dials the peers. `pools` are the names of the pools that are talked about.
    ///
    /// # Errors
    /// When the address cannot be bound, or certificates or times cannot be used.
    pub async fn start(settings: FleetSettings, pools: &[Arc<str>]) -> Result<Fleet, FleetError> {
        Fleet::start_as(settings, pools, ReplicaId(fastrand::u64(1..))).await
    }

    async fn start_as(
        settings: FleetSettings,
        pools: &[Arc<str>],
        me: ReplicaId,
    ) -> Result<Fleet, FleetError> {
        if settings.interval.is_zero() || settings.interval >= settings.stale_after {
            return Err(FleetError::Interval);
        }
        let (stop, shutdown) = Shutdown::new();
        let board = Arc::new(Board::new(me, pools, settings.stale_after));
        let mut tasks = Vec::new();
        let tls = match &settings.tls {
            None => None,
            Some(files) if files.client_ca.is_none() => return Err(FleetError::NoCa),
            Some(files) => Some(Acceptor::new(files.clone(), &[b"h2"])?),
        };
        let mut bound = None;
        if let Some(address) = settings.listen {
            let fail = |source| FleetError::Listen { address, source };
            let listener = TcpListener::bind(address).await.map_err(fail)?;
            bound = Some(listener.local_addr().map_err(fail)?);
            let served = serve::serve(listener, tls.clone(), Arc::clone(&board), shutdown);
            tasks.push(tokio::spawn(served));
        }
        let others = u32::try_from(settings.peers.len()).unwrap_or(u32::MAX);
        let members = Arc::new(AtomicU32::new(others.saturating_add(1)));
        for peer in &settings.peers {
            let link = link::Link {
                peer: peer.clone(),
                tls: settings.tls.clone(),
                board: Arc::clone(&board),
                silence: settings
                    .stale_after
                    .saturating_mul(3)
                    .max(Duration::from_secs(3)),
                members: Arc::clone(&members),
            };
            tasks.push(tokio::spawn(link.run()));
        }
        Ok(Fleet {
            board,
            settings,
            tls,
            address: bound,
            members,
            _stop: stop,
            tasks,
        })
    }

    /// Who this replica is.
    pub fn me(&self) -> ReplicaId {
        self.board.me
    }

    /// Where it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Replicas, this one included: those of the configuration, less our own address among them.
    pub fn members(&self) -> u32 {
        self.members.load(Ordering::Acquire)
    }

    /// Counts so far.
    pub fn traffic(&self) -> Traffic {
        self.board.counts.now()
    }

    /// Says this to every replica. What was said of the pool before and not yet sent is replaced.
    pub fn publish(&self, pool: &str, counters: &Counters) {
        self.board.publish(pool, counters);
    }

    /// What others said of the pool after version `since`, each replica's last message, and the version after which there
    /// is nothing new. Start with 0.
    pub fn latest(&self, pool: &str, since: u64) -> (u64, Vec<Arc<Counters>>) {
        self.board.latest(pool, since)
    }

    /// Changes whenever something was heard, or the number of members became known better.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.board.heard.subscribe()
    }

    /// Reads the certificates again; new connections use them.
    ///
    /// # Errors
    /// When a file is missing or does not fit; the old ones stay.
    pub fn reload_tls(&self) -> Result<(), TlsError> {
        self.tls.as_ref().map_or(Ok(()), Acceptor::reload)
    }

    /// Carries counters between a pool and the other replicas, for as long as it is polled.
    pub async fn carry(&self, pool: &str, member: &impl Member) {
        let mut changes = self.changes();
        let mut ticks = tokio::time::interval(self.settings.interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut members, mut version) = (self.members(), 0);
        member.members(members);
        loop {
            tokio::select! {
                _ = ticks.tick() => self.publish(pool, &member.tell()),
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let known = self.members();
                    if known != members {
                        members = known;
                        member.members(members);
                    }
                    let (now, said) = self.latest(pool, version);
                    version = now;
                    for said in said {
                        member.hear(&said);
                    }
                }
            }
        }
    }
}
