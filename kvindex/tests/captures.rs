//! Traffic of real engines, replayed: the index must hold what the naive model holds.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that panics has failed, which is its job"
)]

mod common;

use std::collections::HashMap;

use common::{CAPTURES, Oracle, Path, answer, capture};
use wicketgate_kvindex::{
    cursor::{Cursor, Fate},
    events::{Batch, Dialect, Event, Limits, Removed, decode_batch, parse_frames},
    index::{Applied, Config, EndpointId, Index, Matches},
    keys::{
        Scope,
        engine::{Algorithm, Checked, ExtraStyle, HashCheck, HashScheme, VllmHasher},
    },
};

const MODEL: &str = "tiny";

struct Replay {
    index: Index,
    oracle: Oracle,
    /// Publishers by topic and rank.
    sources: HashMap<(Vec<u8>, u32), (EndpointId, Cursor)>,
    applied: Applied,
}

impl Replay {
    fn new() -> Replay {
        let config = Config::default();
        Replay {
            oracle: Oracle::new(config.keys.block()),
            index: Index::new(config),
            sources: HashMap::new(),
            applied: Applied::default(),
        }
    }

    fn message(&mut self, parts: &[Vec<u8>]) {
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let frame = parse_frames(&parts).unwrap();
        let batch = decode_batch(frame.payload, Dialect::Vllm, Limits::default()).unwrap();
        assert_eq!(
            (batch.unknown, batch.malformed, batch.unknown_fields),
            (0, 0, 0)
        );
        let rank = batch.rank.unwrap();
        let next = self.sources.len() as u64;
        let (index, oracle) = (&self.index, &mut self.oracle);
        let source = (frame.topic.to_vec(), rank);
        let (id, cursor) = self.sources.entry(source).or_insert_with(|| {
            let id = EndpointId {
                incarnation: next,
                rank,
            };
            index.register(id, MODEL);
            oracle.register(id, MODEL);
            (id, Cursor::new(false))
        });
        let verdict = cursor.live(frame.sequence, Some(batch.published));
        assert!(!verdict.clear, "captures have no gaps");
        assert_eq!(verdict.message, Fate::Apply);
        let id = *id;
        self.apply(id, &batch);
    }

    fn apply(&mut self, id: EndpointId, batch: &Batch) {
        self.applied.add(&self.index.apply(id, batch).unwrap());
        self.oracle.apply(id, batch);
    }

    /// Asks for everything that the model knows, with more after it.
    fn check(&self) {
        let keys = self.index.config().keys;
        let mut matches = Matches::new();
        let mut asked = Vec::new();
        for Path { scope, tokens } in self.oracle.paths() {
            let (model, domain) = match scope.split_once('/') {
                Some((model, domain)) => (model, Some(domain)),
                None => (scope.as_str(), None),
            };
            let mut prompt = tokens.clone();
            prompt.extend([1u32; 40]);
            keys.prompt(Scope { model, domain }, &prompt, &[], &mut asked);
            self.index.lookup(&asked, &mut matches);
            let path = Path {
                scope: scope.clone(),
                tokens: prompt,
            };
            assert_eq!(answer(&matches), self.oracle.lookup(&path, asked.len()));
        }
        assert_eq!(
            self.index.stats().placements as usize,
            self.oracle.placements()
        );
    }
}

fn replayed(name: &str) -> Option<Replay> {
    let mut replay = Replay::new();
    for message in capture(&format!("{name}.bin"))? {
        replay.message(&message);
        replay.check();
    }
    Some(replay)
}

#[test]
fn every_capture_leaves_the_state_of_the_model() {
    for name in CAPTURES {
        if let Some(replay) = replayed(name) {
            let Applied {
                mismatched,
                unsupported,
                ..
            } = replay.applied;
            assert_eq!((mismatched, unsupported), (0, 0), "{name}");
            assert!(replay.index.stats().placements > 0, "{name}");
        }
    }
}

/// It starts in the middle of a life: the first removals are of blocks that nobody heard of.
#[test]
fn a_stream_that_is_joined_late_is_followed() {
    let Some(replay) = replayed("kv_events_small_cache") else {
        return;
    };
    let Applied {
        stored,
        removed,
        unknown,
        orphaned,
        ..
    } = replay.applied;
    // Counted in the capture itself: 24 hashes begin with a removal.
    assert_eq!((unknown, orphaned), (24, 0));
    assert!(removed > unknown && stored > removed);
}

/// A block that was computed again is stored again, and is gone only when all its copies are.
#[test]
fn a_block_is_gone_when_all_its_copies_are() {
    let Some(replayed) = replayed("kv_events_duplicate_last_block") else {
        return;
    };
    let mut replay = replayed;
    let id = EndpointId {
        incarnation: 0,
        rank: 0,
    };
    let copies = replay.index.copies(id, 0);
    let (thrice, once): (Vec<_>, Vec<_>) =
        copies.into_iter().partition(|(.., copies)| *copies == 3);
    assert_eq!((thrice.len(), once.len()), (1, 1));
    let (hash, tier, _) = thrice[0];
    let removed = Removed {
        hashes: vec![hash],
        tier,
        group: 0,
    };
    let batch = Batch {
        events: vec![Event::Removed(removed)],
        ..Batch::default()
    };
    for left in [2, 2, 1] {
        replay.apply(id, &batch);
        replay.check();
        assert_eq!(replay.index.stats().placements, left);
    }
}

/// Both ranks hold the same prompts under the same names, and each counts for itself.
#[test]
fn ranks_are_endpoints_of_their_own() {
    let Some(replay) = replayed("kv_events_dp2") else {
        return;
    };
    let stats = replay.index.stats();
    assert_eq!(stats.endpoints, 2);
    assert!(stats.blocks < stats.placements, "they share blocks");
}

/// What engines of each setting published, against the hashes that its tokens should have.
#[test]
fn published_hashes_pass_the_check() {
    let vllm = |algorithm: &str, seed: Option<&str>, style| {
        HashScheme::Vllm(VllmHasher {
            algorithm: Algorithm::named(algorithm).unwrap(),
            seed: seed.map(str::to_owned),
            style,
        })
    };
    let tagged = ExtraStyle::Tagged;
    let plain = ExtraStyle::Plain;
    for (name, scheme, blocks) in [
        (
            "sha256_cbor_default",
            vllm("sha256_cbor", None, tagged),
            (16, 0),
        ),
        // It served an adapter too, whose path counts and is not published.
        ("sha256_default", vllm("sha256", None, tagged), (16, 8)),
        (
            "sha256_cbor_seed0_bytes",
            vllm("sha256_cbor", Some("0"), tagged),
            (16, 0),
        ),
        (
            "xxhash_cbor_seed42_bytes",
            vllm("xxhash_cbor", Some("42"), tagged),
            (16, 0),
        ),
        ("xxhash_seed42", vllm("xxhash", Some("42"), tagged), (16, 0)),
        (
            "v020_sha256_cbor_seed0",
            vllm("sha256_cbor", Some("0"), plain),
            (20, 0),
        ),
    ] {
        let Some(messages) = capture(&format!("kv_events_vectors_{name}.bin")) else {
            return;
        };
        let mut right = HashCheck::new(scheme.clone(), 1000);
        let mut wrong = HashCheck::new(vllm("sha256_cbor", Some("another"), tagged), 1000);
        let (mut found, mut foreign) = (Checked::default(), Checked::default());
        for parts in &messages {
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let frame = parse_frames(&parts).unwrap();
            let batch = decode_batch(frame.payload, Dialect::Vllm, Limits::default()).unwrap();
            for event in &batch.events {
                if let Event::Stored(stored) = event {
                    found.add(right.stored(stored));
                    foreign.add(wrong.stored(stored));
                }
            }
        }
        let expected = Checked {
            same: blocks.0,
            different: 0,
            untold: blocks.1,
        };
        assert_eq!(found, expected, "{name}");
        assert_eq!(foreign.same, 0, "{name}");
    }
}
