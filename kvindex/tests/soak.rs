//! C35: unique long prompts without end. The index stays as large as it may be, and what it says of heads stays right.
//!
//! `WICKETGATE_INDEX_PROMPTS` says how many (`make nightly`: ten million); every one has 512 blocks of 16 tokens.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test that panics has failed, which is its job"
)]

use wicketgate_kvindex::{
    events::{Batch, EngineHash, Event, Stored},
    index::{Config, EndpointId, Index, Matches},
    keys::{Key, KeySpace, Scope},
};

const ENDPOINTS: u64 = 16;
/// Blocks that an endpoint may have.
const CAP: usize = 100_000;
/// Blocks of a prompt: 8192 tokens.
const BLOCKS: u32 = 512;
const PROMPTS: u64 = 8_000;

fn prompts() -> u64 {
    match std::env::var("WICKETGATE_INDEX_PROMPTS") {
        Ok(count) => count.parse().unwrap(),
        Err(_) => PROMPTS,
    }
}

fn id(endpoint: u64) -> EndpointId {
    EndpointId {
        incarnation: endpoint,
        rank: 0,
    }
}

/// A prompt that nobody else has from its first block on.
fn prompt(number: u64, out: &mut Vec<u32>) {
    out.clear();
    let first = [number as u32, (number >> 32) as u32];
    out.extend(first.into_iter().chain(2..BLOCKS * 16 + 1));
}

fn keys(space: &KeySpace, tokens: &[u32], out: &mut Vec<Key>) {
    let scope = Scope {
        model: "model",
        domain: None,
    };
    space.prompt(scope, tokens, &[], out);
    assert_eq!(out.len(), BLOCKS as usize);
}

/// Bytes of this process that are in memory, where the system says so.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * 4096)
}

/// Blocks of a prompt that an endpoint holds.
fn held(index: &Index, keys: &[Key], endpoint: u64, matches: &mut Matches) -> u32 {
    index.lookup(keys, matches);
    let found = matches.iter().find(|found| found.endpoint == id(endpoint));
    found.map_or(0, |found| found.total())
}

/// Half of the endpoints tell what they cache, the others are known by their picks.
#[test]
fn unique_prompts_without_end_take_no_more_than_they_may() {
    let (count, space) = (prompts(), KeySpace::new(16, 3));
    let index = Index::new(Config {
        keys: space,
        max_blocks: CAP,
        ..Config::default()
    });
    for endpoint in 0..ENDPOINTS {
        assert!(index.register(id(endpoint), "model"));
        index.bound_predictions(id(endpoint), Some(CAP));
    }
    let (mut tokens, mut names) = (Vec::new(), Vec::new());
    let mut matches = Matches::new();
    let mut full = None;
    for number in 0..count {
        let endpoint = number % ENDPOINTS;
        prompt(number, &mut tokens);
        keys(&space, &tokens, &mut names);
        if endpoint.is_multiple_of(2) {
            let hashes = names.iter().map(|key| EngineHash(key.0));
            let stored = Stored {
                hashes: hashes.collect(),
                tokens: tokens[..(BLOCKS * 16) as usize].to_vec(),
                block_size: 16,
                ..Stored::default()
            };
            let batch = Batch {
                events: vec![Event::Stored(stored)],
                ..Batch::default()
            };
            index.apply(id(endpoint), &batch).unwrap();
        } else {
            // Who was promised last is kept longest.
            assert!(index.predict(id(endpoint), &names, u64::MAX / 2 + number));
        }
        if number % 61 == 0 || number + 1 == count {
            assert_eq!(
                held(&index, &names, endpoint, &mut matches),
                BLOCKS,
                "{number}"
            );
            let stats = index.stats();
            let placed = stats.placements + stats.predicted;
            assert!(placed <= ENDPOINTS * CAP as u64, "{stats:?}");
        }
        // Everybody has had as much as fits, and a half more.
        if number == ENDPOINTS * (CAP as u64) * 3 / 2 / u64::from(BLOCKS) {
            full = Some((index.bytes(), resident()));
        }
    }
    let Some((bytes, memory)) = full else {
        panic!("{count} prompts do not fill the index");
    };
    let flat = |before: u64, now: u64| now <= before + before / 10;
    assert!(
        flat(bytes, index.bytes()),
        "{bytes} became {}",
        index.bytes()
    );
    match (memory, resident()) {
        (Some(before), Some(now)) => assert!(flat(before, now), "{before} became {now}"),
        _ => eprintln!("skipped: this system does not say how much memory a process takes"),
    }
    // Who leaves takes everything along.
    for endpoint in 0..ENDPOINTS {
        index.remove(id(endpoint));
    }
    let stats = index.stats();
    assert_eq!((stats.blocks, stats.placements, stats.predicted), (0, 0, 0));
}
