//! The last word of everybody: ours, to be sent, and the others', to be heard.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use futures_core::Stream;
use parking_lot::Mutex;
use tokio::sync::watch;
use wicketgate_admission::fleet::{Counters, ReplicaId};

use super::{Counts, Traffic, one_more, proto::Told};

/// Replicas that are listened to, per pool.
const MAX_REPLICAS: usize = 64;

/// What came of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It says only who speaks, or it was kept or dropped.
    Fine,
    /// It is our own: the stream leads back to us.
    Ourselves,
}

/// Another replica's last message of a pool.
struct Word {
    said: Arc<Counters>,
    version: u64,
    came: Instant,
}

/// What was heard.
struct Theirs {
    /// Messages kept so far: each is newer than all before.
    version: u64,
    /// By pool; the pools are known from the start.
    pools: BTreeMap<Arc<str>, BTreeMap<ReplicaId, Word>>,
}

/// Shared by all streams of a process.
pub(super) struct Board {
    pub(super) me: ReplicaId,
    /// By pool; the pools are known from the start.
    ours: Mutex<BTreeMap<Arc<str>, Option<Arc<Told>>>>,
    theirs: Mutex<Theirs>,
    /// Rises with each message of ours.
    said: watch::Sender<u64>,
    /// Rises with each message of theirs.
    pub(super) heard: watch::Sender<u64>,
    stale_after: Duration,
    pub(super) counts: Counts,
}

impl Board {
    pub(super) fn new(me: ReplicaId, pools: &[Arc<str>], stale_after: Duration) -> Board {
        Board {
            me,
            ours: Mutex::new(pools.iter().map(|pool| (Arc::clone(pool), None)).collect()),
            theirs: Mutex::new(Theirs {
                version: 0,
                pools: pools
                    .iter()
                    .map(|pool| (Arc::clone(pool), BTreeMap::new()))
                    .collect(),
            }),
            said: watch::Sender::new(0),
            heard: watch::Sender::new(0),
            stale_after,
            counts: Counts::default(),
        }
    }

    pub(super) fn publish(&self, pool: &str, counters: &Counters) {
        let told = Arc::new(Told {
            replica: self.me.0,
            ..Told::new(pool, counters)
        });
        if let Some(last) = self.ours.lock().get_mut(pool) {
            *last = Some(told);
        } else {
            return;
        }
        self.said.send_modify(|version| *version += 1);
    }

    pub(super) fn latest(&self, pool: &str, since: u64) -> (u64, Vec<Arc<Counters>>) {
        let theirs = self.theirs.lock();
        let words = theirs
            .pools
            .get(pool)
            .into_iter()
            .flat_map(BTreeMap::values);
        let newer = words.filter(|word| word.version > since);
        (
            theirs.version,
            newer.map(|word| Arc::clone(&word.said)).collect(),
        )
    }

    /// A message came.
    pub(super) fn take(&self, told: Told) -> Taken {
        if told.replica == self.me.0 {
            return Taken::Ourselves;
        }
        if told.pool.is_empty() {
            return Taken::Fine;
        }
        let kept = self.keep(told);
        if !kept {
            one_more(&self.counts.dropped);
            return Taken::Fine;
        }
        one_more(&self.counts.received);
        self.wake();
        Taken::Fine
    }

    /// Tells whoever waits for changes.
    pub(super) fn wake(&self) {
        self.heard.send_modify(|version| *version += 1);
    }

    /// False when it is of a pool that we do not have, or of one replica too many. A message that was overtaken changes
    /// nothing.
    fn keep(&self, told: Told) -> bool {
        let mut theirs = self.theirs.lock();
        let Theirs { version, pools } = &mut *theirs;
        let Some(words) = pools.get_mut(told.pool.as_str()) else {
            return false;
        };
        let replica = ReplicaId(told.replica);
        let (known, came) = (words.get(&replica), Instant::now());
        if known.is_some_and(|word| told.number <= word.said.number) {
            return true;
        }
        if known.is_none() && words.len() >= MAX_REPLICAS {
            words.retain(|_, word| came.duration_since(word.came) <= self.stale_after);
            if words.len() >= MAX_REPLICAS {
                return false;
            }
        }
        *version += 1;
        let word = Word {
            said: Arc::new(told.counters()),
            version: *version,
            came,
        };
        words.insert(replica, word);
        true
    }
}

impl Counts {
    pub(super) fn now(&self) -> Traffic {
        let of = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        Traffic {
            sent: of(&self.sent),
            received: of(&self.received),
            dropped: of(&self.dropped),
            broken: of(&self.broken),
            unreached: of(&self.unreached),
            open: of(&self.open),
        }
    }
}

type Change = Pin<Box<dyn Future<Output = Option<watch::Receiver<u64>>> + Send>>;

/// Our messages on one stream: who we are, then of each pool the last one, whenever it is another.
pub(super) struct Outgoing {
    board: Arc<Board>,
    /// The number of the last message sent, by pool.
    sent: BTreeMap<Arc<str>, u64>,
    greeted: bool,
    change: Change,
}

fn change(mut said: watch::Receiver<u64>) -> Change {
    Box::pin(async move { said.changed().await.is_ok().then_some(said) })
}

impl Outgoing {
    pub(super) fn new(board: &Arc<Board>) -> Outgoing {
        Outgoing {
            sent: BTreeMap::new(),
            greeted: false,
            change: change(board.said.subscribe()),
            board: Arc::clone(board),
        }
    }

    /// A pool's message that this stream has not carried.
    fn unsent(&mut self) -> Option<Told> {
        let ours = self.board.ours.lock();
        let mut last = ours
            .iter()
            .filter_map(|(pool, told)| Some((pool, told.as_ref()?)));
        let (pool, told) = last.find(|(pool, told)| self.sent.get(*pool) != Some(&told.number))?;
        self.sent.insert(Arc::clone(pool), told.number);
        Some(Told::clone(told))
    }
}

impl Stream for Outgoing {
    type Item = Told;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Told>> {
        let this = &mut *self;
        if !this.greeted {
            this.greeted = true;
            return Poll::Ready(Some(Told::hello(this.board.me)));
        }
        loop {
            if let Some(told) = this.unsent() {
                one_more(&this.board.counts.sent);
                return Poll::Ready(Some(told));
            }
            let Some(said) = ready!(this.change.as_mut().poll(context)) else {
                return Poll::Ready(None);
            };
            this.change = change(said);
        }
    }
}
