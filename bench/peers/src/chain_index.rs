//! `kv-index`: the run-compressed index, with the map of engine hashes that its caller keeps for each worker.

use std::sync::Arc;

use kv_index::{
    ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock,
    compute_request_content_hashes,
};
use wicketgate_bench_index::{BLOCK_TOKENS, Block, Reader, Subject};

pub(crate) struct Peer {
    index: Arc<ChainIndex>,
    workers: Vec<(u32, ChainBlockMap)>,
}

pub(crate) enum Event {
    Stored(usize, Option<SequenceHash>, Vec<StoredBlock>),
    Removed(usize, Vec<SequenceHash>),
}

pub(crate) struct View(Arc<ChainIndex>);

impl Subject for Peer {
    type Event = Event;
    type Query = Vec<ContentHash>;
    type Reader = View;

    fn new(endpoints: usize) -> Peer {
        let index = ChainIndex::with_max_workers(endpoints);
        let worker = |number: usize| {
            let id = index.intern_worker(&format!("http://worker-{number}:8000"));
            (
                id.expect("there are as many slots as workers"),
                ChainBlockMap::new(),
            )
        };
        let workers = (0..endpoints).map(worker).collect();
        Peer {
            index: Arc::new(index),
            workers,
        }
    }

    fn stored(endpoint: usize, parent: Option<&Block>, blocks: &[Block]) -> Event {
        let block = |block: &Block| StoredBlock {
            seq_hash: SequenceHash(block.engine),
            content_hash: ContentHash(block.content),
        };
        let parent = parent.map(|block| SequenceHash(block.engine));
        Event::Stored(endpoint, parent, blocks.iter().map(block).collect())
    }

    fn removed(endpoint: usize, blocks: &[Block]) -> Event {
        let hashes = blocks.iter().map(|block| SequenceHash(block.engine));
        Event::Removed(endpoint, hashes.collect())
    }

    fn apply(&mut self, events: &mut Vec<Event>) {
        for event in events {
            match event {
                Event::Stored(endpoint, parent, blocks) => {
                    let (worker, map) = &mut self.workers[*endpoint];
                    let applied = self.index.apply_stored(*worker, blocks, *parent, map);
                    applied.expect("the parent is known");
                }
                Event::Removed(endpoint, hashes) => {
                    let (worker, map) = &mut self.workers[*endpoint];
                    self.index.apply_removed(*worker, hashes, map);
                }
            }
        }
    }

    fn reader(&self) -> View {
        View(Arc::clone(&self.index))
    }

    fn query(blocks: &[Block]) -> Vec<ContentHash> {
        blocks
            .iter()
            .map(|block| ContentHash(block.content))
            .collect()
    }

    fn hashed(tokens: &[u32]) -> Vec<ContentHash> {
        compute_request_content_hashes(tokens, BLOCK_TOKENS)
    }
}

impl Reader for View {
    type Query = Vec<ContentHash>;

    fn lookup(&mut self, query: &Vec<ContentHash>) -> usize {
        self.0.find_matches(query, false).scores.len()
    }

    fn blocks(&mut self, query: &Vec<ContentHash>) -> u64 {
        let scores = self.0.find_matches(query, false).scores;
        scores.into_values().map(u64::from).sum()
    }
}
