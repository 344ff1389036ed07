//! What picks promise: prefixes that an endpoint will hold soon, until a given time or until room is short.
//!
//! Each prediction is a whole prefix of a prompt. For each run only the skyline is kept: pairs of a length and an expiry
//! such that no pair is outdone by one that is longer and lasts longer. Room is made by what expires first, from the
//! end of a chain on; with one lifetime for all that is least recently used first.

use std::{cmp::Reverse, collections::BTreeSet};

use super::{
    holdings::Holdings,
    store::{Spot, Store},
};
use crate::{Nanos, events::Tier};

/// Order in which predictions end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    expires: Nanos,
    depth: Reverse<u32>,
    holding: u32,
    length: u16,
}

/// Lengths grow and expiries fall along it.
type Skyline = Vec<(u16, Nanos)>;

#[derive(Debug)]
pub(crate) struct Predictions {
    holdings: Holdings,
    skylines: Vec<Skyline>,
    due: BTreeSet<Due>,
    /// Blocks of ours that are held.
    blocks: usize,
    /// Most blocks of ours; `None` for no bound but time.
    room: Option<usize>,
}

impl Predictions {
    pub(crate) fn new(lane: u16) -> Predictions {
        Predictions {
            holdings: Holdings::new(lane),
            skylines: Vec::new(),
            due: BTreeSet::new(),
            blocks: 0,
            room: None,
        }
    }

    pub(crate) fn lane(&self) -> u16 {
        self.holdings.lane()
    }

    pub(crate) fn len(&self) -> usize {
        self.blocks
    }

    pub(crate) fn bytes(&self) -> usize {
        let skylines: usize = self
            .skylines
            .iter()
            .map(|skyline| skyline.capacity() * 16)
            .sum();
        self.holdings.bytes()
            + skylines
            + self.skylines.capacity() * size_of::<Skyline>()
            + self.due.len() * size_of::<Due>() * 3 / 2
    }

    /// The next time at which something ends.
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.due.first().map(|due| due.expires)
    }

    /// Holds a prefix until `expires`.
    pub(crate) fn add(&mut self, store: &Store, keys: &[u64], expires: Nanos) {
        let mut parts: Vec<(u32, u32, u16)> = Vec::new();
        let (holdings, blocks) = (&mut self.holdings, &mut self.blocks);
        store.place(None, keys, |run, span| {
            let Some(holding) = holdings.enter(run) else {
                return;
            };
            let before = holdings.get(holding).map_or(0, |holding| holding.end());
            let end = span.at + span.count;
            holdings.hold(holding, run, span.at, end, Tier::Device);
            *blocks += end.max(before) - before;
            match parts.last_mut() {
                Some((last, _, length)) if *last == holding => *length = end as u16,
                _ => parts.push((holding, run.depth(), end as u16)),
            }
        });
        for (holding, depth, length) in parts {
            self.raise(holding, depth, length, expires);
        }
        if let Some(room) = self.room {
            self.shrink(store, room);
        }
    }

    fn raise(&mut self, holding: u32, depth: u32, length: u16, expires: Nanos) {
        let index = holding as usize;
        if self.skylines.len() <= index {
            self.skylines.resize_with(index + 1, Skyline::new);
        }
        let Some(skyline) = self.skylines.get_mut(index) else {
            return;
        };
        if skyline
            .iter()
            .any(|(other, until)| *other >= length && *until >= expires)
        {
            return;
        }
        let depth = Reverse(depth);
        let due = &mut self.due;
        skyline.retain(|(other, until)| {
            let outdone = *other <= length && *until <= expires;
            if outdone {
                due.remove(&Due {
                    expires: *until,
                    depth,
                    holding,
                    length: *other,
                });
            }
            !outdone
        });
        let at = skyline.partition_point(|(other, _)| *other < length);
        skyline.insert(at, (length, expires));
        due.insert(Due {
            expires,
            depth,
            holding,
            length,
        });
    }

    /// Ends what expires at `now` or before.
    pub(crate) fn expire(&mut self, store: &Store, now: Nanos) {
        while let Some(due) = self.due.first().copied().filter(|due| due.expires <= now) {
            self.cut(store, due, usize::MAX);
        }
    }

    /// The most blocks to hold from now on.
    pub(crate) fn bound(&mut self, store: &Store, room: Option<usize>) {
        self.room = room;
        if let Some(room) = room {
            self.shrink(store, room);
        }
    }

    pub(crate) fn shrink(&mut self, store: &Store, room: usize) {
        while self.blocks > room
            && let Some(due) = self.due.first().copied()
        {
            self.cut(store, due, self.blocks - room);
        }
    }

    /// Takes at most `most` blocks off the end of the part that is due first: the end of its skyline.
    fn cut(&mut self, store: &Store, due: Due, most: usize) {
        self.due.remove(&due);
        let Some(skyline) = self.skylines.get_mut(due.holding as usize) else {
            return;
        };
        skyline.pop();
        let below = skyline.last().map_or(0, |(length, _)| usize::from(*length));
        let end = below.max(usize::from(due.length).saturating_sub(most));
        if end > below {
            skyline.push((end as u16, due.expires));
            self.due.insert(Due {
                length: end as u16,
                ..due
            });
        }
        self.blocks = self.blocks.saturating_sub(usize::from(due.length) - end);
        let run = self
            .holdings
            .get(due.holding)
            .and_then(|holding| store.lock(holding.run));
        if let Some(run) = run {
            self.holdings
                .release(due.holding, run, end, usize::from(due.length), Tier::Device);
        }
    }

    /// Whether a block is promised.
    pub(crate) fn has(&self, spot: Spot) -> bool {
        let holding = self.holdings.of_run(spot.run);
        let holding = holding.and_then(|holding| self.holdings.get(holding));
        holding.is_some_and(|holding| usize::from(spot.at) < holding.end())
    }

    /// Ends everything.
    pub(crate) fn clear(&mut self, store: &Store) {
        self.holdings.clear(store);
        let room = self.room;
        *self = Predictions {
            room,
            ..Predictions::new(self.lane())
        };
    }
}
