//! What a pool's choices remember: the random stream and the session bindings.

mod rng;
pub(crate) mod sessions;

use serde::{Deserialize, Serialize};

pub(crate) use rng::Rng;
pub(crate) use sessions::Sessions;

use crate::{Nanos, SubsetEntry};

/// The mutable part of one pool's scheduling. Owned by the pool, used by one choice at a time.
///
/// It can be cloned and written down, so that a replay may start in the middle of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    pub(crate) rng: Rng,
    /// The instant of the last choice, which is that of the dispatch after it.
    pub(crate) now: Nanos,
    /// Nobody held a part of the last choice's prompt.
    #[serde(default)]
    pub(crate) cold: bool,
    pub(crate) sessions: Sessions,
    pub(crate) recording: bool,
    #[serde(skip)]
    pub(crate) scratch: Scratch,
}

/// Buffers reused between choices; they carry nothing over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) scores: Vec<f64>,
    pub(crate) keep: Vec<bool>,
    pub(crate) subset: Vec<SubsetEntry>,
}

impl State {
    /// A fresh state; everything random follows from `seed`.
    pub fn new(seed: u64) -> State {
        State {
            rng: Rng::new(seed),
            now: 0,
            cold: true,
            sessions: Sessions::default(),
            recording: false,
            scratch: Scratch::default(),
        }
    }

    /// Whether decisions carry a [`crate::DecisionRecord`] from now on. Choices are the same either way.
    pub fn recording(&mut self, on: bool) {
        self.recording = on;
    }

    /// Session bindings held, over all plugins.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }
}
