//! `dynamo-kv-router`: the tree of one thread.

use std::{cell::RefCell, rc::Rc};

use dynamo_kv_router::{
    RadixTree,
    protocols::{LocalBlockHash, RouterEvent},
};
use wicketgate_bench_index::{Block, Reader, Subject};

use crate::events;

pub(crate) struct Peer(Rc<RefCell<RadixTree>>);

pub(crate) struct View(Rc<RefCell<RadixTree>>);

impl Subject for Peer {
    type Event = RouterEvent;
    type Query = Vec<LocalBlockHash>;
    type Reader = View;

    fn new(_endpoints: usize) -> Peer {
        Peer(Rc::new(RefCell::new(RadixTree::new())))
    }

    fn stored(endpoint: usize, parent: Option<&Block>, blocks: &[Block]) -> RouterEvent {
        events::stored(endpoint, parent, blocks)
    }

    fn removed(endpoint: usize, blocks: &[Block]) -> RouterEvent {
        events::removed(endpoint, blocks)
    }

    fn apply(&mut self, events: &mut Vec<RouterEvent>) {
        let mut tree = self.0.borrow_mut();
        for event in events.drain(..) {
            tree.apply_event(event).expect("the parent is known");
        }
    }

    fn reader(&self) -> View {
        View(Rc::clone(&self.0))
    }

    fn query(blocks: &[Block]) -> Vec<LocalBlockHash> {
        events::query(blocks)
    }

    fn hashed(tokens: &[u32]) -> Vec<LocalBlockHash> {
        events::hashed(tokens)
    }
}

impl Reader for View {
    type Query = Vec<LocalBlockHash>;

    /// It takes the query whole, so it gets a copy.
    fn lookup(&mut self, query: &Vec<LocalBlockHash>) -> usize {
        let found = self.0.borrow().find_matches(query.clone(), false);
        found.scores.len()
    }

    fn blocks(&mut self, query: &Vec<LocalBlockHash>) -> u64 {
        events::blocks(self.0.borrow().find_matches(query.clone(), false))
    }
}
