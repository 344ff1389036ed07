//! Our index under the common workload.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use wicketgate_bench_index::{BLOCK_TOKENS, Block, Reader, Subject};
use wicketgate_kvindex::{
    events::{Dialect, EngineHash, Limits, Tier, decode_batch},
    index::{Config, EndpointId, Index, Keyed, Matches},
    keys::{Key, KeySpace, Scope},
};

const MODEL: &str = "model";

pub(crate) struct Ours(Arc<Index>);

pub(crate) struct Event {
    endpoint: EndpointId,
    parent: Option<EngineHash>,
    hashes: Vec<EngineHash>,
    /// `None` for a removal.
    keys: Option<Vec<Key>>,
}

pub(crate) struct View {
    index: Arc<Index>,
    matches: Matches,
}

fn endpoint(number: usize) -> EndpointId {
    EndpointId {
        incarnation: number as u64,
        rank: 0,
    }
}

fn index(endpoints: usize) -> Index {
    let index = Index::new(Config {
        keys: keys(),
        max_bytes: u64::MAX,
        ..Config::default()
    });
    for number in 0..endpoints {
        index.register(endpoint(number), MODEL);
    }
    index
}

fn keys() -> KeySpace {
    KeySpace::new(BLOCK_TOKENS as u32, 1)
}

fn hashes(blocks: &[Block]) -> Vec<EngineHash> {
    blocks
        .iter()
        .map(|block| EngineHash(block.engine))
        .collect()
}

impl Subject for Ours {
    type Event = Event;
    type Query = Vec<Key>;
    type Reader = View;

    fn new(endpoints: usize) -> Ours {
        Ours(Arc::new(index(endpoints)))
    }

    fn stored(number: usize, parent: Option<&Block>, blocks: &[Block]) -> Event {
        Event {
            endpoint: endpoint(number),
            parent: parent.map(|block| EngineHash(block.engine)),
            hashes: hashes(blocks),
            keys: Some(Ours::query(blocks)),
        }
    }

    fn removed(number: usize, blocks: &[Block]) -> Event {
        Event {
            endpoint: endpoint(number),
            parent: None,
            hashes: hashes(blocks),
            keys: None,
        }
    }

    fn apply(&mut self, events: &mut Vec<Event>) {
        for event in events {
            let Some(keys) = &event.keys else {
                self.0
                    .remove_keyed(event.endpoint, &event.hashes, Tier::Device);
                continue;
            };
            let stored = Keyed {
                parent: event.parent,
                hashes: &event.hashes,
                keys,
                tier: Tier::Device,
            };
            self.0.store_keyed(event.endpoint, &stored);
        }
    }

    fn reader(&self) -> View {
        View {
            index: Arc::clone(&self.0),
            matches: Matches::new(),
        }
    }

    fn query(blocks: &[Block]) -> Vec<Key> {
        blocks.iter().map(|block| Key(block.prefix)).collect()
    }

    fn hashed(tokens: &[u32]) -> Vec<Key> {
        let mut out = Vec::new();
        let scope = Scope {
            model: MODEL,
            domain: None,
        };
        keys().prompt(scope, tokens, &[], &mut out);
        out
    }
}

impl Reader for View {
    type Query = Vec<Key>;

    fn lookup(&mut self, query: &Vec<Key>) -> usize {
        self.index.lookup(query, &mut self.matches);
        self.matches.len()
    }

    fn blocks(&mut self, query: &Vec<Key>) -> u64 {
        self.index.lookup(query, &mut self.matches);
        self.matches
            .iter()
            .map(|found| u64::from(found.total()))
            .sum()
    }
}

/// Blocks a second from the bytes of messages to the index: decoded, hashed and stored. `None` if one was not applied
/// as it should be.
pub(crate) fn messages(endpoints: usize, event: usize, blocks: usize) -> Option<f64> {
    const CHAIN: usize = 1024;
    let mut messages = Vec::new();
    for number in 0..(blocks / CHAIN).max(1) {
        let name = |at: usize| ((number * CHAIN + at) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hashes: Vec<u64> = (1..=CHAIN).map(name).collect();
        let mut parent = None;
        for hashes in hashes.chunks(event) {
            messages.push((endpoint(number % endpoints), message(hashes, parent)));
            parent = hashes.last().copied();
        }
    }
    let index = index(endpoints);
    let (mut stored, mut took) = (0, Duration::ZERO);
    for (id, payload) in messages {
        let start = Instant::now();
        let batch = decode_batch(&payload, Dialect::Vllm, Limits::default()).ok()?;
        let applied = index.apply(id, &batch)?;
        took += start.elapsed();
        stored += applied.stored;
        if applied.orphaned + applied.unsupported + applied.mismatched > 0 {
            return None;
        }
    }
    (index.stats().placements == stored).then(|| stored as f64 / took.as_secs_f64().max(1e-9))
}

/// One stored event as vLLM 0.20 writes it.
fn message(hashes: &[u64], parent: Option<u64>) -> Vec<u8> {
    let mut out = vec![0x93, 0xcb];
    out.extend(1.5f64.to_be_bytes());
    out.extend([0x91, 0x96, 0xab]);
    out.extend(b"BlockStored");
    out.push(0xdd);
    out.extend((hashes.len() as u32).to_be_bytes());
    for hash in hashes {
        out.push(0xcf);
        out.extend(hash.to_be_bytes());
    }
    match parent {
        None => out.push(0xc0),
        Some(parent) => {
            out.push(0xcf);
            out.extend(parent.to_be_bytes());
        }
    }
    out.push(0xdd);
    out.extend((hashes.len() as u32 * BLOCK_TOKENS as u32).to_be_bytes());
    for hash in hashes {
        for at in 0..BLOCK_TOKENS as u32 {
            out.push(0xce);
            out.extend((*hash as u32 ^ at).to_be_bytes());
        }
    }
    out.extend([BLOCK_TOKENS as u8, 0xc0, 0]);
    out
}
