//! How large the index is, and what it gives up when that is too much.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{
    Index,
    member::{Member, Promised, Told},
    predictions::Predictions,
};
use crate::Nanos;

impl Index {
    /// Brings the gauges of what events told up to date.
    pub(super) fn count_told(&self, member: &Member, told: &Told) {
        let (mut bytes, mut placements, mut orphans) = (0, 0, 0);
        for (_, lane) in &told.lanes {
            bytes += lane.bytes();
            placements += lane.len();
            orphans += lane.orphans();
        }
        member
            .placements
            .store(placements as u64, Ordering::Relaxed);
        member.orphans.store(orphans as u64, Ordering::Relaxed);
        self.weigh(&member.told_bytes, bytes);
    }

    /// Brings the gauges of what picks promised up to date.
    pub(super) fn count_promised(&self, member: &Member, promised: &Promised) {
        let predictions = promised.predictions.as_ref();
        let blocks = predictions.map_or(0, Predictions::len);
        let due = predictions
            .and_then(Predictions::next)
            .unwrap_or(Nanos::MAX);
        member.predicted.store(blocks as u64, Ordering::Relaxed);
        member.due.store(due, Ordering::Relaxed);
        self.weigh(
            &member.promised_bytes,
            predictions.map_or(0, Predictions::bytes),
        );
    }

    pub(super) fn weigh(&self, gauge: &AtomicU64, bytes: usize) {
        let bytes = bytes as u64;
        let before = gauge.swap(bytes, Ordering::Relaxed);
        if before != bytes {
            self.bytes
                .fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    /// Bytes on the heap, about.
    pub fn bytes(&self) -> u64 {
        let tables = size_of::<Index>() + self.members.bytes();
        self.store.size().bytes + self.bytes.load(Ordering::Relaxed) + tables as u64
    }

    /// Gives up blocks of the largest endpoints while the whole is too large.
    pub(super) fn make_room(&self) {
        if self.bytes() <= self.config.max_bytes {
            return;
        }
        // A little more than needed, so that not every event comes here.
        let enough = self.config.max_bytes - self.config.max_bytes / 16;
        for _ in 0..64 {
            let members = self.members.all();
            let largest = members.iter().max_by_key(|member| member.bytes());
            let Some(member) = largest.filter(|_| self.bytes() > enough) else {
                return;
            };
            if !self.shrink(member) {
                return;
            }
        }
    }

    /// Gives up a quarter of what an endpoint holds; false if it held nothing.
    fn shrink(&self, member: &Member) -> bool {
        let mut given_up = 0;
        {
            let mut told = member.told.lock();
            let mut evicted = 0;
            for (_, lane) in &mut told.lanes {
                evicted += lane.evict(self.ground(member), lane.len() * 3 / 4);
            }
            told.totals.evicted += evicted as u64;
            given_up += evicted;
            self.count_told(member, &told);
        }
        let mut promised = member.promised.lock();
        if let Some(predictions) = &mut promised.predictions {
            let before = predictions.len();
            predictions.shrink(&self.store, before * 3 / 4);
            given_up += before - predictions.len();
        }
        self.count_promised(member, &promised);
        given_up > 0
    }
}
