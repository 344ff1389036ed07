//! One rank of one life of an endpoint: its messages in the order of their numbers, into the index.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::coop::consume_budget,
    time::Instant,
};
use wicketgate_kvindex::{
    cursor::{Cursor, Fate, Verdict},
    events::{Batch, Dialect, Event, decode_batch, parse_frames},
    index::{EndpointId, Index},
    keys::engine::{Checked, HashCheck},
};

use super::{
    adopt::Adoption,
    config::IntakeConfig,
    counts::Shared,
    feed::{Arrival, Queued},
    replay::{self, Ended},
};

/// Replays for one message that do not bring it about. The publisher forgets faster than it repeats.
const ROUNDS: u32 = 4;

/// Digests that a check of hashes remembers for each source, about 100 bytes each.
const DIGESTS: usize = 1 << 16;

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
    pub(super) overlap: bool,
    /// No replay is tried before.
    rested: Option<Instant>,
    hashes: Option<HashCheck>,
    /// Number of the connection whose messages come now.
    line: u64,
    /// What the index has was taken over on another replica's word, while our connection was the one with this number, and
    /// no message has gone on from there yet.
    pub(super) vouched: Option<u64>,
}

impl Position {
    /// What the check of hashes says of an applied message.
    fn check(&mut self, batch: &Batch) -> Checked {
        let mut found = Checked::default();
        let Some(check) = &mut self.hashes else {
            return found;
        };
        for event in &batch.events {
            if let Event::Stored(stored) = event {
                found.add(check.stored(stored));
            }
        }
        found
    }
}

impl Task {
    /// Applies what comes, until nobody can send any more or the endpoint is gone from the index. While `hold` says so,
    /// messages wait: what another replica heard goes first.
    pub(super) async fn run(
        self,
        mut feed: mpsc::Receiver<Queued>,
        mut adoptions: mpsc::Receiver<Adoption>,
        mut hold: watch::Receiver<bool>,
    ) {
        let mut position = Position {
            cursor: Cursor::new(self.replay.is_some()),
            overlap: false,
            rested: None,
            hashes: self
                .config
                .hash_check
                .clone()
                .map(|scheme| HashCheck::new(scheme, DIGESTS)),
            line: 0,
            vouched: None,
        };
        loop {
            let held = *hold.borrow_and_update() && hold.has_changed().is_ok();
            tokio::select! {
                biased;
                Some(adoption) = adoptions.recv() => {
                    let adopted = self.adopt(&mut position, &adoption.heard).await;
                    // Whoever asked may have gone.
                    let _ = adoption.done.send(adopted);
                }
                // An error means that the intake is gone, and this task ends with it.
                _ = hold.changed(), if held => {}
                queued = feed.recv(), if !held => match queued {
                    Some(queued) => self.arrived(&mut position, &queued.arrival).await,
                    None => return,
                },
            }
            self.note(&position);
            consume_budget().await;
        }
    }

    async fn arrived(&self, position: &mut Position, arrival: &Arrival) {
        match arrival {
            Arrival::Up(line) => {
                position.line = *line;
                if position.vouched.take_if(|stood| stood != line).is_some() {
                    // The connection on which it was to go on has ended: messages may be missing.
                    position.cursor.lost();
                    self.index.clear(self.id);
                }
                // What waited on that connection overlaps with what was taken over.
                position.overlap = position.vouched.is_some();
                if let Some(from) = position.cursor.connected() {
                    self.catch_up(position, from).await;
                }
            }
            Arrival::Message(message) => {
                if let Some(read) = self.read(message) {
                    self.offer(position, &read).await;
                }
            }
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
            self.forget(position);
        }
        if verdict.message != Fate::Apply {
            return;
        }
        if live {
            position.overlap = false;
            position.vouched = None;
        }
        let Some(applied) = self.index.apply(self.id, &read.batch) else {
            return;
        };
        let hashes = position.check(&read.batch);
        let lag = (unix_seconds() - read.batch.published).max(0.0);
        self.shared.note(|state| {
            state.counts.batch(&read.batch, &applied);
            state.counts.hashes.add(hashes);
            state.counts.replayed += u64::from(!live);
            state.heard_on = live.then_some(position.line);
            if live && !lag.is_nan() {
                state.lag = Some(lag);
            }
        });
    }

    /// Forgets all that the engine said.
    fn forget(&self, position: &mut Position) {
        self.index.clear(self.id);
        if let Some(check) = &mut position.hashes {
            check.clear();
        }
    }

    /// Lets the engine repeat what is missing, if it does, and says that this is over.
    async fn catch_up(&self, position: &mut Position, from: u64) {
        let rested = position
            .rested
            .is_none_or(|rested| Instant::now() >= rested);
        if let Some(address) = self.replay.as_deref().filter(|_| rested) {
            self.shared.note(|state| state.catching_up = true);
            let ended = replay::replay(self, address, position, from, None).await;
            self.shared.note(|state| {
                state.catching_up = false;
                state.counts.replay_failures += u64::from(ended != Ended::Done);
            });
            if ended == Ended::Done {
                if position.cursor.replay_done() {
                    self.forget(position);
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
