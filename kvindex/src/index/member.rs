//! One endpoint, as writers know it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{
    EndpointId,
    lane::{Applied, Lane},
    predictions::Predictions,
};
use crate::Nanos;

/// An endpoint.
pub(crate) struct Member {
    pub(crate) id: EndpointId,
    pub(crate) slot: u32,
    /// What requests that use no adapter name.
    pub(crate) model: Box<str>,
    pub(crate) told: Mutex<Told>,
    pub(crate) promised: Mutex<Promised>,
    /// Engine block in blocks of ours, once it is known.
    pub(crate) stride: AtomicU32,
    pub(crate) told_bytes: AtomicU64,
    pub(crate) promised_bytes: AtomicU64,
    pub(crate) placements: AtomicU64,
    pub(crate) predicted: AtomicU64,
    pub(crate) orphans: AtomicU64,
    /// When the next prediction ends.
    pub(crate) due: AtomicU64,
}

impl Member {
    pub(crate) fn new(id: EndpointId, slot: u32, model: &str) -> Member {
        Member {
            id,
            slot,
            model: model.into(),
            told: Mutex::default(),
            promised: Mutex::default(),
            stride: AtomicU32::new(1),
            told_bytes: AtomicU64::new(0),
            promised_bytes: AtomicU64::new(0),
            placements: AtomicU64::new(0),
            predicted: AtomicU64::new(0),
            orphans: AtomicU64::new(0),
            due: AtomicU64::new(Nanos::MAX),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.told_bytes.load(Ordering::Relaxed) + self.promised_bytes.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
pub(crate) struct Told {
    pub(crate) dead: bool,
    pub(crate) lanes: Vec<(u32, Lane)>,
    /// Number of the last message that was applied.
    pub(crate) sequence: Option<u64>,
    /// When that one was published, by the engine's clock.
    pub(crate) published: f64,
    /// Number of the first message that counts in.
    pub(crate) since: Option<u64>,
    pub(crate) totals: Applied,
}

#[derive(Default)]
pub(crate) struct Promised {
    pub(crate) dead: bool,
    pub(crate) predictions: Option<Predictions>,
    pub(crate) room: Option<usize>,
}
