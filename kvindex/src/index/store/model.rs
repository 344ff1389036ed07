//! The core under every interleaving that matters: `cargo test --features loom --lib store::model`.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a panic in the model is a failed check"
)]

use std::sync::Arc;

use loom::{model::Builder, thread};

use super::*;
use crate::{events::Tier, index::holdings::Holdings};

/// All interleavings with at most this many forced switches; more find nothing that these do not.
const SWITCHES: usize = 3;

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(SWITCHES);
    builder.max_branches = 100_000;
    builder.check(model);
}

struct Lane {
    store: Arc<Store>,
    holdings: Holdings,
}

impl Lane {
    fn new(store: &Arc<Store>, lane: u16) -> Lane {
        Lane {
            store: Arc::clone(store),
            holdings: Holdings::new(lane),
        }
    }

    /// Holds a chain, and gives the home of its last block.
    fn hold(&mut self, parent: Option<Spot>, keys: &[u64]) -> Option<Spot> {
        let holdings = &mut self.holdings;
        let mut last = None;
        self.store.place(parent, keys, |run, span| {
            let holding = holdings.enter(run).unwrap();
            let end = span.at + span.count;
            holdings.hold(holding, run, span.at, end, Tier::Device);
            last = Some(Spot {
                run: run.id,
                at: end as u16 - 1,
            });
        });
        last
    }

    /// Holds nothing of a run from `from` on.
    fn release(&mut self, run: u32, from: usize) {
        let holding = self.holdings.of_run(run).unwrap();
        let locked = self.store.lock(run).unwrap();
        self.holdings
            .release(holding, locked, from, MAX_RUN, Tier::Device);
    }
}

/// What a lookup would credit to a lane.
fn credit(store: &Store, lane: u16, keys: &[u64]) -> usize {
    let pin = store.pin();
    let mut depth = 0;
    while let Some(run) = keys.get(depth).and_then(|key| pin.get(*key)) {
        let matched = run.same(0, &keys[depth..]);
        let word = run.holders().find(|word| lane_of(*word) == lane);
        let held = word
            .map_or(0, |word| usize::from(lengths_of(word)[0]))
            .min(matched);
        depth += held;
        if held < matched {
            break;
        }
    }
    depth
}

#[test]
fn a_reader_sees_whole_steps_of_a_growing_chain() {
    check(|| {
        let store = Arc::new(Store::new());
        let reader = Arc::clone(&store);
        let mut lane = Lane::new(&store, 1);
        let writer = thread::spawn(move || {
            let end = lane.hold(None, &[10, 11]);
            lane.hold(end, &[12]);
        });
        let first = credit(&reader, 1, &[10, 11, 12]);
        let second = credit(&reader, 1, &[10, 11, 12]);
        assert!([0, 2, 3].contains(&first) && [0, 2, 3].contains(&second));
        assert!(first <= second, "what was seen is not unseen");
        writer.join().unwrap();
        assert_eq!(credit(&reader, 1, &[10, 11, 12]), 3);
    });
}

#[test]
fn two_writers_make_one_run() {
    check(|| {
        let store = Arc::new(Store::new());
        let mut lanes = [1, 2].map(|lane| Lane::new(&store, lane));
        let [first, second] = &mut lanes;
        // Two holders need a copy of the run, which must not lose what the first one holds.
        let mut first = std::mem::replace(first, Lane::new(&store, 8));
        let writer = thread::spawn(move || {
            first.hold(None, &[10, 11]);
            first
        });
        second.hold(None, &[10, 11, 12]);
        let _first = writer.join().unwrap();
        assert_eq!(credit(&store, 1, &[10, 11, 12]), 2);
        assert_eq!(credit(&store, 2, &[10, 11, 12]), 3);
        assert_eq!(store.size().runs, 1);
    });
}

#[test]
fn a_run_that_is_left_and_entered_at_once_stays_or_is_made_again() {
    check(|| {
        let store = Arc::new(Store::new());
        let mut leaver = Lane::new(&store, 1);
        let end = leaver.hold(None, &[10, 11]).unwrap();
        let mut comer = Lane::new(&store, 2);
        let writer = thread::spawn(move || leaver.release(end.run, 0));
        comer.hold(None, &[10, 11]);
        writer.join().unwrap();
        assert_eq!(credit(&store, 1, &[10, 11]), 0);
        assert_eq!(credit(&store, 2, &[10, 11]), 2);
        assert_eq!(store.size().runs, 1);
    });
}

/// A chain loses its head while another lane stores all of it: whoever holds the tail must be found behind the new head.
#[test]
fn a_torn_chain_has_one_home() {
    check(|| {
        let store = Arc::new(Store::new());
        // 10 11 is a run that 20 21 continues, as another lane goes on differently.
        let mut other = Lane::new(&store, 1);
        let head = other.hold(None, &[10, 11, 12]).unwrap().run;
        let mut tail = Lane::new(&store, 2);
        tail.hold(None, &[10, 11, 20, 21]);
        tail.release(head, 0);
        let mut comer = Lane::new(&store, 3);
        let writer = thread::spawn(move || other.release(head, 0));
        comer.hold(None, &[10, 11, 20, 21]);
        writer.join().unwrap();
        // The tail's lane gets its head back.
        tail.hold(None, &[10, 11]);
        assert_eq!(credit(&store, 3, &[10, 11, 20, 21]), 4);
        assert_eq!(credit(&store, 2, &[10, 11, 20, 21]), 4);
    });
}
