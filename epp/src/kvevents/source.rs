//! One rank of one life of an endpoint: its messages in the order of their numbers, into the index.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use tokio::{
    sync::{Semaphore, mpsc},
    task::coop::consume_budget,
    time::Instant,
};
use wicketgate_kvindex::{
    cursor::{Cursor, Fate, Verdict},
    events::{Batch, Dialect, decode_batch, parse_frames},
    index::{EndpointId, Index},
};

use super::{
    config::IntakeConfig,
    counts::Shared,
    feed::{Arrival, Queued},
    replay::{self, Ended},
};

/// Replays for one message that do not bring it about. The publisher forgets faster than it repeats.
const ROUNDS: u32 = 4;

/// What a source's task works with.
pub(super) struct Task {
    pub(super) id: EndpointId,
    pub(super) config: Arc<IntakeConfig>,
    pub(super) index: Arc<Index>,
    pub(super) shared: Arc<Shared>,
    /// Replays that all sources may have at once.
    pub(super) replays: Arc<Semaphore>,
    pub(super) dialect: Dialect,
    /// `host:port` that repeats messages.
    pub(super) replay: Option<String>,
}

/// A message that could be read.
pub(super) struct Read {
    pub(super) sequence: u64,
    pub(super) batch: Batch,
}

/// The task's own state.
pub(super) struct Position {
    pub(super) cursor: Cursor,
    /// A replay has just ended: what the stream repeats of it is no restart of the publisher.
    overlap: bool,
    /// No replay is tried before.
    rested: Option<Instant>,
}

impl Task {
    /// Applies what comes, until nobody can send any more or the endpoint is gone from the index.
    pub(super) async fn run(self, mut feed: mpsc::Receiver<Queued>, last: Option<u64>) {
        let replay = self.replay.is_some();
        let mut position = Position {
            cursor: match last {
                Some(last) => Cursor::resumed(replay, last),
                None => Cursor::new(replay),
            },
            overlap: false,
            rested: None,
        };
        while let Some(queued) = feed.recv().await {
            match &queued.arrival {
                Arrival::Up => {
                    position.overlap = false;
                    if let Some(from) = position.cursor.connected() {
                        self.catch_up(&mut position, from).await;
                    }
                }
                Arrival::Message(message) => {
                    if let Some(read) = self.read(message) {
                        self.offer(&mut position, &read).await;
                    }
                }
            }
            self.note(&position);
            consume_budget().await;
        }
    }

    /// Reads a message, or counts why it cannot be read: then the next number shows what is missing.
    pub(super) fn read(&self, parts: &[Bytes]) -> Option<Read> {
        let bytes: usize = parts.iter().map(Bytes::len).sum();
        let slices: smallvec::SmallVec<[&[u8]; 4]> = parts.iter().map(AsRef::as_ref).collect();
        let frame = parse_frames(&slices);
        let batch = frame.ok().map(|frame| {
            let batch = decode_batch(frame.payload, self.dialect, self.config.limits);
            (frame.sequence, batch)
        });
        self.shared.note(|state| {
            let counts = &mut state.counts;
            counts.frames += 1;
            counts.bytes += bytes as u64;
            counts.bad_frames += u64::from(batch.is_none());
            counts.bad_batches += u64::from(matches!(batch, Some((_, Err(_)))));
        });
        let (sequence, batch) = batch?;
        let mut batch = batch.ok()?;
        batch.sequence = Some(sequence);
        Some(Read { sequence, batch })
    }

    /// Offers a live message to the cursor, as often as replays make it worth while.
    async fn offer(&self, position: &mut Position, read: &Read) {
        let published = Some(read.batch.published);
        for _ in 0..ROUNDS {
            let verdict = if position.overlap {
                position.cursor.held(read.sequence, published)
            } else {
                position.cursor.live(read.sequence, published)
            };
            self.obey(position, verdict, read, true);
            match (verdict.message, verdict.ask_replay) {
                (Fate::Hold, Some(from)) => self.catch_up(position, from).await,
                _ => return,
            }
        }
        let lost = position.cursor.lost();
        self.obey(position, lost, read, true);
        let verdict = position.cursor.live(read.sequence, published);
        self.obey(position, verdict, read, true);
    }

    /// Does what the cursor says, except for a replay.
    pub(super) fn obey(&self, position: &mut Position, verdict: Verdict, read: &Read, live: bool) {
        if verdict.clear {
            self.index.clear(self.id);
        }
        if verdict.message != Fate::Apply {
            return;
        }
        if live {
            position.overlap = false;
        }
        let Some(applied) = self.index.apply(self.id, &read.batch) else {
            return;
        };
        let lag = (unix_seconds() - read.batch.published).max(0.0);
        self.shared.note(|state| {
            state.counts.batch(&read.batch, &applied);
            state.counts.replayed += u64::from(!live);
            if live && !lag.is_nan() {
                state.lag = Some(lag);
            }
        });
    }

    /// Lets the engine repeat what is missing, if it does, and says that this is over.
    async fn catch_up(&self, position: &mut Position, from: u64) {
        let rested = position
            .rested
            .is_none_or(|rested| Instant::now() >= rested);
        if let Some(address) = self.replay.as_deref().filter(|_| rested) {
            self.shared.note(|state| state.catching_up = true);
            let ended = replay::replay(self, address, position, from).await;
            self.shared.note(|state| {
                state.catching_up = false;
                state.counts.replay_failures += u64::from(ended != Ended::Done);
            });
            if ended == Ended::Done {
                if position.cursor.replay_done() {
                    self.index.clear(self.id);
                }
            } else {
                tracing::warn!(
                    address,
                    reason = ended.label(),
                    "a replay of KV events failed"
                );
                position.rested = Some(Instant::now() + self.config.replay_cooldown);
            }
        }
        position.cursor.replay_over();
        position.overlap = true;
    }

    pub(super) fn note(&self, position: &Position) {
        self.shared.note(|state| {
            state.counts.cursor = position.cursor.counts();
            state.last = position.cursor.last();
            state.published = position.cursor.published();
        });
    }
}

/// The wall clock, which is what engines put into their messages.
fn unix_seconds() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(f64::NAN, |now| now.as_secs_f64())
}
