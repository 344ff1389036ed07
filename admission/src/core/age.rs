//! Who entered when: each lane's list, and the lanes of a band by the ends of theirs.
//!
//! A list over all items of a band would say the same, at the price of touching two more neighbours of each that leaves.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::{Admission, Band};
use crate::store::Heap;

/// What a walk from the newest request back has in sight, by the number in the order of entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    /// The newest of the lane at this position of the heap.
    Lane(usize),
    /// An older one of this lane, at this slot.
    Item(u32, u32),
}

impl Admission {
    /// The request enters its lane.
    pub(super) fn list(&mut self, band: u32, lane: u32, slot: u32) {
        let Admission {
            bands,
            lanes,
            requests,
            ..
        } = self;
        let seq = requests.waiting(slot).seq;
        let band = &mut bands[band];
        let state = &mut lanes[lane];
        let first = state.items.head().is_none();
        state.items.push_back(&mut requests.links, slot);
        let pos = state.newest_pos;
        let note = |lane, pos| lanes[lane].newest_pos = pos;
        match first {
            true => band.newest.push(Reverse(seq), lane, note),
            false => band.newest.update(pos, Reverse(seq), note),
        }
        if first {
            let note = |lane, pos| lanes[lane].oldest_pos = pos;
            band.oldest.push(seq, lane, note);
        }
    }

    /// The request leaves its lane.
    pub(super) fn unlist(&mut self, band: u32, lane: u32, slot: u32) {
        let Admission {
            bands,
            lanes,
            requests,
            ..
        } = self;
        let band = &mut bands[band];
        let state = &mut lanes[lane];
        let (head, tail) = (state.items.head(), state.items.tail());
        state.items.remove(&mut requests.links, slot);
        let (oldest_pos, newest_pos) = (state.oldest_pos, state.newest_pos);
        let ends = state.items.head().zip(state.items.tail());
        let seq = |slot: u32| requests.waiting(slot).seq;
        if head == Some(slot) {
            let note = |lane, pos| lanes[lane].oldest_pos = pos;
            match ends {
                Some((head, _)) => band.oldest.update(oldest_pos, seq(head), note),
                None => band.oldest.remove(oldest_pos, note),
            }
        }
        if tail == Some(slot) {
            let note = |lane, pos| lanes[lane].newest_pos = pos;
            match ends {
                Some((_, tail)) => band.newest.update(newest_pos, Reverse(seq(tail)), note),
                None => band.newest.remove(newest_pos, note),
            }
        }
    }

    /// The request of a band that has waited longest.
    pub(super) fn oldest(&self, band: &Band) -> Option<u32> {
        let (_, lane) = band.oldest.peek()?;
        self.lanes[lane].items.head()
    }

    /// A band's requests, last entered first. Each step is O(log n) in the lanes and requests that it has come past.
    pub(super) fn newest_first(&self, band: &Band) -> impl Iterator<Item = u32> {
        let mut seen: BinaryHeap<(u64, Seen)> = BinaryHeap::new();
        let sight = |seen: &mut BinaryHeap<_>, pos: usize| {
            if let Some((Reverse(seq), _)) = band.newest.at(pos) {
                seen.push((seq, Seen::Lane(pos)));
            }
        };
        sight(&mut seen, 0);
        std::iter::from_fn(move || {
            let (lane, slot) = match seen.pop()?.1 {
                Seen::Item(lane, slot) => (lane, slot),
                Seen::Lane(pos) => {
                    for below in Heap::<Reverse<u64>>::below(pos) {
                        sight(&mut seen, below);
                    }
                    let (_, lane) = band.newest.at(pos)?;
                    (lane, self.lanes[lane].items.tail()?)
                }
            };
            let list = &self.lanes[lane].items;
            if let Some(older) = list.before(&self.requests.links, slot) {
                seen.push((self.requests.waiting(older).seq, Seen::Item(lane, older)));
            }
            Some(slot)
        })
    }
}
