//! What the intake did, for metrics and the operator.

use parking_lot::Mutex;
use wicketgate_kvindex::{
    cursor::CursorCounts,
    events::Batch,
    index::{Applied, EndpointId},
    keys::engine::Checked,
};

/// Counts of a source, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that stood.
    pub connects: u64,
    /// Attempts to connect that failed, and connections that broke.
    pub failures: u64,
    /// Messages received, those of replays included.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages that are not three parts with a number.
    pub bad_frames: u64,
    /// Messages whose payload cannot be read.
    pub bad_batches: u64,
    /// Events of applied messages.
    pub events: u64,
    /// Events of unknown kinds, left out.
    pub unknown_events: u64,
    /// Events that make no sense, left out.
    pub malformed_events: u64,
    /// Fields that are not known, in events that count.
    pub unknown_fields: u64,
    /// Messages that replays repeated.
    pub replayed: u64,
    /// Replays that failed or were given up.
    pub replay_failures: u64,
    /// Gaps, replays, restarts and the like.
    pub cursor: CursorCounts,
    /// What the events did in the index.
    pub applied: Applied,
    /// Stored blocks whose hashes were checked.
    pub hashes: Checked,
}

impl Counts {
    /// Messages and events that were left out because they could not be read.
    pub fn skipped(&self) -> u64 {
        self.bad_frames + self.bad_batches + self.unknown_events + self.malformed_events
    }

    pub(super) fn add(&mut self, other: &Counts) {
        self.connects += other.connects;
        self.failures += other.failures;
        self.frames += other.frames;
        self.bytes += other.bytes;
        self.bad_frames += other.bad_frames;
        self.bad_batches += other.bad_batches;
        self.events += other.events;
        self.unknown_events += other.unknown_events;
        self.malformed_events += other.malformed_events;
        self.unknown_fields += other.unknown_fields;
        self.replayed += other.replayed;
        self.replay_failures += other.replay_failures;
        self.cursor.applied += other.cursor.applied;
        self.cursor.duplicates += other.cursor.duplicates;
        self.cursor.gaps += other.cursor.gaps;
        self.cursor.replays += other.cursor.replays;
        self.cursor.restarts += other.cursor.restarts;
        self.cursor.resets += other.cursor.resets;
        self.applied.add(&other.applied);
        self.hashes.add(other.hashes);
    }

    /// An applied message.
    pub(super) fn batch(&mut self, batch: &Batch, applied: &Applied) {
        self.events += batch.events.len() as u64;
        self.unknown_events += u64::from(batch.unknown);
        self.malformed_events += u64::from(batch.malformed);
        self.unknown_fields += u64::from(batch.unknown_fields);
        self.applied.add(applied);
    }
}

/// One source.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SourceStats {
    /// Whose it is.
    pub id: EndpointId,
    /// Its engine is connected.
    pub connected: bool,
    /// A replay is under way.
    pub catching_up: bool,
    /// The last message that counts came on the connection that stands: the engine at its other end said it.
    pub heard: bool,
    /// Messages that wait.
    pub waiting: usize,
    /// Number of the last message that counts.
    pub last: Option<u64>,
    /// When that one was published, in Unix seconds of the engine's clock.
    pub published: Option<f64>,
    /// Seconds from the engine's publishing to our applying, of the last live message; includes how far the two clocks
    /// differ.
    pub lag: Option<f64>,
    /// What it did so far.
    pub counts: Counts,
}

/// All sources.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IntakeStats {
    /// Sources: one for each endpoint and rank.
    pub sources: usize,
    /// Of those, connected.
    pub connected: usize,
    /// Of those, with a replay under way.
    pub catching_up: usize,
    /// Messages that wait.
    pub waiting: usize,
    /// Largest lag in seconds, see [`SourceStats::lag`].
    pub lag: f64,
    /// Messages on shared ports whose topic nobody waits for.
    pub strays: u64,
    /// What all did so far, those that are gone included.
    pub counts: Counts,
}

impl IntakeStats {
    pub(super) fn add(&mut self, source: &SourceStats) {
        self.sources += 1;
        self.connected += usize::from(source.connected);
        self.catching_up += usize::from(source.catching_up);
        self.waiting += source.waiting;
        self.lag = self.lag.max(source.lag.unwrap_or(0.0));
        self.counts.add(&source.counts);
    }
}

/// What a source's tasks and its observers share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) id: EndpointId,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Lines that stand.
    lines: u32,
    pub(super) catching_up: bool,
    /// Number of the connection on which the last message that counts came.
    pub(super) heard_on: Option<u64>,
    pub(super) waiting: usize,
    pub(super) last: Option<u64>,
    pub(super) published: Option<f64>,
    pub(super) lag: Option<f64>,
    pub(super) counts: Counts,
}

impl Shared {
    pub(super) fn new(id: EndpointId) -> Shared {
        Shared {
            id,
            state: Mutex::default(),
        }
    }

    pub(super) fn note(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
    }

    pub(super) fn stats(&self) -> SourceStats {
        let state = self.state.lock();
        SourceStats {
            id: self.id,
            connected: state.lines > 0,
            catching_up: state.catching_up,
            heard: state.lines > 0 && state.heard_on == Some(state.counts.connects),
            waiting: state.waiting,
            last: state.last,
            published: state.published,
            lag: state.lag,
            counts: state.counts,
        }
    }

    /// Counts a connection for as long as the guard lives.
    pub(super) fn connected(self: &std::sync::Arc<Shared>) -> Connected {
        let number = {
            let mut state = self.state.lock();
            state.lines += 1;
            state.counts.connects += 1;
            state.counts.connects
        };
        Connected {
            shared: std::sync::Arc::clone(self),
            number,
        }
    }
}

/// A connection that stands.
#[derive(Debug)]
pub(super) struct Connected {
    shared: std::sync::Arc<Shared>,
    /// Connections of the source so far, this one included.
    pub(super) number: u64,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.shared.note(|state| state.lines -= 1);
    }
}
