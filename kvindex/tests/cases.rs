//! Faults that others have had, as tests with the right value.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that panics has failed, which is its job"
)]

mod common;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use common::answer;
use wicketgate_kvindex::{
    cursor::{Cursor, Fate},
    events::{Batch, BlockExtras, EngineHash, Event, Extra, GroupKind, Removed, Stored, Tier},
    index::{Config, EndpointId, Index, Keyed, Matches, SnapshotError, TierWeights},
    keys::{Key, KeySpace, Scope},
};

const SPACE: fn() -> KeySpace = || KeySpace::new(16, 3);

fn config() -> Config {
    Config {
        keys: SPACE(),
        ..Config::default()
    }
}

fn id(incarnation: u64) -> EndpointId {
    EndpointId {
        incarnation,
        rank: 0,
    }
}

fn index(endpoints: u64) -> Index {
    let index = Index::new(config());
    (0..endpoints).for_each(|endpoint| assert!(index.register(id(endpoint), "model")));
    index
}

/// A prompt of `blocks` blocks, different for each `number`.
fn prompt(number: u32, blocks: u32) -> Vec<u32> {
    (0..blocks * 16).map(|at| number * 1_000_000 + at).collect()
}

fn names(prompt: &[u32]) -> Vec<EngineHash> {
    let ends = (16..=prompt.len()).step_by(16);
    ends.map(|end| EngineHash(u64::from(prompt[end - 1]) << 20 | 7))
        .collect()
}

/// Blocks `from..` of a prompt, as an engine tells of them.
fn stored(prompt: &[u32], from: usize) -> Event {
    let names = names(prompt);
    Event::Stored(Stored {
        hashes: names[from..].to_vec(),
        parent: from.checked_sub(1).map(|before| names[before]),
        tokens: prompt[from * 16..].to_vec(),
        block_size: 16,
        ..Stored::default()
    })
}

fn apply(index: &Index, endpoint: EndpointId, events: Vec<Event>) {
    index
        .apply(
            endpoint,
            &Batch {
                events,
                ..Batch::default()
            },
        )
        .unwrap();
}

fn asked(prompt: &[u32]) -> Vec<Key> {
    let mut keys = Vec::new();
    let longer = [prompt, &[1]].concat();
    SPACE().prompt(
        Scope {
            model: "model",
            domain: None,
        },
        &longer,
        &[],
        &mut keys,
    );
    keys
}

/// Blocks on any tier, by endpoint.
fn found(index: &Index, prompt: &[u32]) -> BTreeMap<u64, u32> {
    let mut matches = Matches::new();
    index.lookup(&asked(prompt), &mut matches);
    matches
        .iter()
        .map(|found| (found.endpoint.incarnation, found.total()))
        .collect()
}

/// C29: two tenants with one prompt share nothing; one tenant finds its own again.
#[test]
fn tenants_share_nothing() {
    let index = index(1);
    let prompt = prompt(1, 4);
    let Event::Stored(plain) = stored(&prompt, 0) else {
        panic!()
    };
    let salted = |salt: &str| {
        let extras = vec![BlockExtras {
            block: 0,
            extras: vec![Extra::Text(salt.into())],
        }];
        let hashes = plain
            .hashes
            .iter()
            .map(|hash| EngineHash(hash.0 ^ salt.len() as u64))
            .collect();
        Event::Stored(Stored {
            extras,
            hashes,
            ..plain.clone()
        })
    };
    apply(&index, id(0), vec![salted("acme"), salted("acme:1x")]);
    let domains = [
        (Some("acme"), 4),
        (Some("acme:1x"), 4),
        (Some("acme:"), 0),
        (Some("acm"), 0),
        (Some(""), 0),
        (None, 0),
    ];
    for (domain, blocks) in domains {
        let (mut keys, mut matches) = (Vec::new(), Matches::new());
        let longer = [&prompt[..], &[1]].concat();
        SPACE().prompt(
            Scope {
                model: "model",
                domain,
            },
            &longer,
            &[],
            &mut keys,
        );
        index.lookup(&keys, &mut matches);
        let held = matches.get(id(0)).map_or(0, |found| found.total());
        assert_eq!(held, blocks, "{domain:?}");
    }
}

/// C30: store B1, store B2, a gap, a copy, a late one, a restart.
#[test]
fn a_torn_sequence_leaves_only_what_is_sure() {
    let index = index(1);
    let mut cursor = Cursor::new(false);
    let long = prompt(1, 4);
    let other = prompt(2, 1);
    let blocks = |from: usize, to: usize| stored(&long[..to * 16], from);
    let messages = [
        (5, blocks(0, 1)),
        (6, blocks(1, 2)),
        (9, blocks(3, 4)),
        (9, blocks(3, 4)),
        (7, blocks(2, 3)),
        (0, stored(&other, 0)),
    ];
    let mut held = Vec::new();
    for (sequence, event) in messages {
        let verdict = cursor.live(sequence, None);
        if verdict.clear {
            assert!(index.clear(id(0)));
        }
        if verdict.message == Fate::Apply {
            apply(&index, id(0), vec![event]);
        }
        held.push(found(&index, &long).get(&0).copied().unwrap_or(0));
    }
    assert_eq!(held, [1, 2, 0, 0, 0, 0]);
    assert_eq!(found(&index, &other), BTreeMap::from([(0, 1)]));
    assert_eq!(index.stats().placements, 1);
}

/// C32: blocks do not outlive the cache, the pod or the address.
#[test]
fn nothing_outlives_its_owner() {
    let index = index(1);
    let long = prompt(1, 100);
    apply(&index, id(0), vec![stored(&long, 0)]);
    assert_eq!(found(&index, &long), BTreeMap::from([(0, 100)]));
    apply(&index, id(0), vec![Event::Cleared]);
    assert!(found(&index, &long).is_empty());
    assert_eq!(index.stats().placements, 0);

    apply(&index, id(0), vec![stored(&long, 0)]);
    index.predict(id(0), &asked(&prompt(3, 5)), 1000);
    assert!(index.remove(id(0)));
    let late = Batch {
        events: vec![stored(&prompt(2, 1), 0)],
        ..Batch::default()
    };
    assert_eq!(index.apply(id(0), &late), None);
    assert!(!index.predict(id(0), &asked(&long), 1000));
    assert!(!index.clear(id(0)));
    index.register(id(7), "model");
    for prompt in [prompt(1, 100), prompt(2, 1), prompt(3, 5)] {
        assert!(found(&index, &prompt).is_empty());
    }
    let stats = index.stats();
    assert_eq!(
        (stats.placements, stats.predicted, stats.blocks, stats.runs),
        (0, 0, 0, 0)
    );
}

/// C35: a bound keeps the heads of chains, because only those can be matched.
#[test]
fn a_bound_keeps_heads() {
    let index = Index::new(Config {
        max_blocks: 4,
        ..config()
    });
    index.register(id(0), "model");
    let long = prompt(1, 6);
    apply(&index, id(0), vec![stored(&long, 0)]);
    assert_eq!(found(&index, &long), BTreeMap::from([(0, 4)]));
    // Continued from what was given up: it waits, and does no harm.
    apply(&index, id(0), vec![stored(&prompt(1, 7), 6)]);
    assert_eq!(found(&index, &long), BTreeMap::from([(0, 4)]));
    assert_eq!(index.stats().orphans, 1);
    assert_eq!(index.totals(id(0)).unwrap().evicted, 2);
}

/// What was used last stays, with everything before it.
#[test]
fn a_bound_gives_up_the_least_recent_chain_from_its_tail() {
    let index = Index::new(Config {
        max_blocks: 1000,
        ..config()
    });
    index.register(id(0), "model");
    // Ten chains of a hundred blocks that share their first ten.
    let chain = |number: u32| -> Vec<u32> {
        let own = (0..90 * 16).map(|at| number * 1_000_000 + 500_000 + at);
        prompt(99, 10).into_iter().chain(own).collect()
    };
    for number in 0..10 {
        apply(&index, id(0), vec![stored(&chain(number), 0)]);
    }
    assert_eq!(index.stats().placements, 910);
    apply(
        &index,
        id(0),
        vec![stored(&chain(10), 0), stored(&chain(11), 0)],
    );
    let held: Vec<u32> = (0..12)
        .map(|number| found(&index, &chain(number))[&0])
        .collect();
    // 1090 blocks came, 875 stay: the two oldest went first, and a part of the third; the shared head stayed.
    assert_eq!(held[0], 10);
    assert_eq!(held[1], 10);
    assert!(held[2] < 100 && held[2] >= 10, "{held:?}");
    assert!(held[3..].iter().all(|held| *held == 100), "{held:?}");
    assert!(index.stats().placements <= 1000);
}

/// C35: many unique prompts over a few endpoints stay within the bytes that are allowed, and heads stay right.
#[test]
fn unique_prompts_stay_within_bytes() {
    let max_bytes = 2 << 20;
    let index = Index::new(Config {
        max_bytes,
        ..config()
    });
    (0..4).for_each(|endpoint| assert!(index.register(id(endpoint), "model")));
    for number in 0..2000 {
        let prompt = prompt(number, 64);
        let endpoint = u64::from(number % 4);
        apply(&index, id(endpoint), vec![stored(&prompt, 0)]);
        assert!(
            index.bytes() <= max_bytes,
            "{} bytes after {number}",
            index.bytes()
        );
        assert_eq!(
            found(&index, &prompt)[&endpoint],
            64,
            "the newest stays whole"
        );
    }
    let stats = index.stats();
    assert!(stats.placements > 20_000, "{stats:?}");
}

/// Predictions obey the same bound.
#[test]
fn predictions_stay_within_bytes() {
    let max_bytes = 1 << 20;
    let index = Index::new(Config {
        max_bytes,
        ..config()
    });
    index.register(id(0), "model");
    for number in 0..3000 {
        let prompt = prompt(number, 64);
        assert!(index.predict(id(0), &asked(&prompt), 1_000_000 + u64::from(number)));
        assert!(
            index.bytes() <= max_bytes,
            "{} bytes after {number}",
            index.bytes()
        );
        assert_eq!(found(&index, &prompt)[&0], 64);
    }
}

/// Without events: what was sent to an endpoint is there, until it would not fit any more.
#[test]
fn approximate_mode_is_least_recently_used() {
    let index = index(1);
    index.bound_predictions(id(0), Some(100));
    let send = |number: u32, now: u64| {
        assert!(index.predict(id(0), &asked(&prompt(number, 40)), now + 3600));
    };
    let held = |number: u32| {
        found(&index, &prompt(number, 40))
            .get(&0)
            .copied()
            .unwrap_or(0)
    };
    send(0, 0);
    send(1, 1);
    send(2, 2);
    assert_eq!([held(0), held(1), held(2)], [20, 40, 40]);
    send(0, 3);
    assert_eq!([held(0), held(1), held(2)], [40, 20, 40]);
    send(3, 4);
    assert_eq!([held(0), held(1), held(2), held(3)], [40, 0, 20, 40]);
    assert_eq!(index.stats().predicted, 100);
    assert_eq!(index.expire(3602), Some(3603));
    assert_eq!([held(0), held(2), held(3)], [40, 0, 40]);
    assert_eq!(index.expire(9999), None);
    assert_eq!(index.stats().predicted, 0);
}

/// A pick counts at once, ends when its time is over, and what events told stays.
#[test]
fn a_prediction_counts_until_it_expires() {
    let index = index(2);
    let long = prompt(1, 50);
    apply(&index, id(0), vec![stored(&long[..30 * 16], 0)]);
    index.predict(id(0), &asked(&long), 100);
    index.predict(id(1), &asked(&long[..10 * 16]), 50);
    assert_eq!(found(&index, &long), BTreeMap::from([(0, 50), (1, 10)]));
    assert_eq!(index.expire(49), Some(50));
    assert_eq!(found(&index, &long), BTreeMap::from([(0, 50), (1, 10)]));
    assert_eq!(index.expire(50), Some(100));
    assert_eq!(found(&index, &long), BTreeMap::from([(0, 50)]));
    assert_eq!(index.expire(100), None);
    assert_eq!(found(&index, &long), BTreeMap::from([(0, 30)]));
}

/// What an engine gives up is no longer promised, however fresh the promise: found with a real vLLM, whose cache was full.
#[test]
fn a_block_that_is_given_up_ends_the_promise_of_it() {
    let index = index(2);
    let (long, other) = (prompt(1, 50), prompt(2, 20));
    for endpoint in [id(0), id(1)] {
        apply(&index, endpoint, vec![stored(&long, 0), stored(&other, 0)]);
        index.predict(endpoint, &asked(&long), 100);
    }
    let removed = |hashes: &[EngineHash], tier| {
        Event::Removed(Removed {
            hashes: hashes.to_vec(),
            tier,
            group: 0,
        })
    };
    // Others' blocks, and copies elsewhere, are none of it.
    apply(
        &index,
        id(0),
        vec![
            removed(&names(&other), Tier::Device),
            removed(&names(&long)[30..], Tier::Host),
        ],
    );
    assert_eq!(found(&index, &long), BTreeMap::from([(0, 50), (1, 50)]));
    assert_eq!(index.stats().predicted, 100);
    apply(
        &index,
        id(0),
        vec![removed(&names(&long)[30..], Tier::Device)],
    );
    assert_eq!(found(&index, &long), BTreeMap::from([(0, 30), (1, 50)]));
    assert_eq!(index.stats().predicted, 50);
    // Promised anew it counts anew.
    index.predict(id(0), &asked(&long[..40 * 16]), 100);
    assert_eq!(found(&index, &long), BTreeMap::from([(0, 40), (1, 50)]));
}

/// Chains longer than a run, stored in pieces of any size, cut in the middle and made whole.
#[test]
fn long_chains_are_exact() {
    let index = index(2);
    let long = prompt(1, 10_000);
    let names = names(&long);
    apply(&index, id(0), vec![stored(&long, 0)]);
    for (from, to) in (0..10_000)
        .step_by(7)
        .map(|from| (from, (from + 7).min(10_000)))
    {
        apply(&index, id(1), vec![stored(&long[..to * 16], from)]);
    }
    assert_eq!(
        found(&index, &long),
        BTreeMap::from([(0, 10_000), (1, 10_000)])
    );
    for hole in [9_999, 8_190, 4_096, 4_095, 4_094, 1, 0] {
        let removed = Removed {
            hashes: vec![names[hole]],
            ..Removed::default()
        };
        apply(&index, id(0), vec![Event::Removed(removed)]);
        let want = BTreeMap::from([(0, hole as u32), (1, 10_000)]);
        assert_eq!(
            found(&index, &long),
            want.into_iter().filter(|(_, n)| *n > 0).collect()
        );
    }
    for hole in [0, 1, 4_094, 4_095, 4_096, 8_190, 9_999] {
        apply(&index, id(0), vec![stored(&long[..(hole + 1) * 16], hole)]);
    }
    assert_eq!(
        found(&index, &long),
        BTreeMap::from([(0, 10_000), (1, 10_000)])
    );
    for depth in [1usize, 100, 4_095, 4_096, 9_999] {
        let part = &long[..depth * 16];
        let mut other = part.to_vec();
        other.extend(prompt(2, 3));
        let want = BTreeMap::from([(0, depth as u32), (1, depth as u32)]);
        assert_eq!(found(&index, &other), want);
    }
}

/// More endpoints than any fixed set of bits would hold, that come and go.
#[test]
fn there_may_be_thousands_of_endpoints() {
    let index = index(3000);
    let long = prompt(1, 8);
    for endpoint in 0..3000 {
        let blocks = 1 + endpoint as usize % 8;
        apply(&index, id(endpoint), vec![stored(&long[..blocks * 16], 0)]);
    }
    let all = found(&index, &long);
    assert_eq!(all.len(), 3000);
    assert!(
        all.iter()
            .all(|(endpoint, blocks)| u64::from(*blocks) == 1 + endpoint % 8)
    );
    for endpoint in (0..3000).filter(|endpoint| endpoint % 3 != 0) {
        assert!(index.remove(id(endpoint)));
        assert!(index.register(id(10_000 + endpoint), "model"));
    }
    let rest = found(&index, &long);
    assert_eq!(rest.len(), 1000);
    assert!(rest.keys().all(|endpoint| endpoint % 3 == 0));
    assert_eq!(index.stats().endpoints, 3000);
}

/// Lanes of those that left are used again, many times over.
#[test]
fn endpoints_may_come_and_go_for_ever() {
    let index = index(0);
    let long = prompt(1, 3);
    for life in 0..70_000 {
        index.register(id(life), "model");
        if life % 100 == 0 {
            apply(&index, id(life), vec![stored(&long, 0)]);
            assert_eq!(found(&index, &long), BTreeMap::from([(life, 3)]));
        } else {
            index.predict(id(life), &asked(&long), 5);
        }
        index.remove(id(life));
    }
    assert!(index.bytes() < 4 << 20, "{}", index.bytes());
}

/// Blocks that moved to the host count there, and weigh less.
#[test]
fn tiers_are_told_apart() {
    let index = index(1);
    let long = prompt(1, 10);
    let names = names(&long);
    apply(&index, id(0), vec![stored(&long, 0)]);
    let host = Stored {
        hashes: names[4..8].to_vec(),
        tier: Tier::Host,
        block_size: 16,
        ..Stored::default()
    };
    let gone = Removed {
        hashes: names[4..].iter().rev().copied().collect(),
        ..Removed::default()
    };
    apply(
        &index,
        id(0),
        vec![Event::Stored(host), Event::Removed(gone)],
    );
    let mut matches = Matches::new();
    index.lookup(&asked(&long), &mut matches);
    let found = matches.get(id(0)).unwrap();
    assert_eq!(found.blocks, [4, 8, 8, 8]);
    assert_eq!(
        (
            found.on(Tier::Device),
            found.on(Tier::Host),
            found.on(Tier::Disk)
        ),
        (4, 4, 0)
    );
    assert!((found.weighted(&TierWeights::default()) - (4.0 + 4.0 * 0.8)).abs() < 1e-9);
}

/// Only groups that need whole prefixes count, and all of them must hold a block.
#[test]
fn hybrid_models_need_every_full_group() {
    let index = index(1);
    let long = prompt(1, 6);
    let group = |group, kind, blocks: usize| {
        let Event::Stored(stored) = stored(&long[..blocks * 16], 0) else {
            panic!()
        };
        Event::Stored(Stored {
            group,
            kind,
            ..stored
        })
    };
    let full = GroupKind::Full;
    apply(
        &index,
        id(0),
        vec![group(0, full, 6), group(1, GroupKind::Other, 1)],
    );
    assert_eq!(found(&index, &long), BTreeMap::from([(0, 6)]));
    apply(&index, id(0), vec![group(2, full, 4)]);
    assert_eq!(found(&index, &long), BTreeMap::from([(0, 4)]));
    assert_eq!(index.totals(id(0)).unwrap().unsupported, 1);
    let gone = Removed {
        hashes: names(&long)[..1].to_vec(),
        group: 2,
        ..Removed::default()
    };
    apply(&index, id(0), vec![Event::Removed(gone)]);
    assert!(found(&index, &long).is_empty());
}

/// Sizes that do not fit into each other are counted and left out.
#[test]
fn odd_block_sizes_are_left_out() {
    let index = index(1);
    let odd = Stored {
        hashes: vec![EngineHash(1)],
        tokens: vec![1; 24],
        block_size: 24,
        ..Stored::default()
    };
    apply(&index, id(0), vec![Event::Stored(odd)]);
    assert_eq!(index.totals(id(0)).unwrap().unsupported, 1);
    assert_eq!(index.stats().placements, 0);
}

/// An engine that comes back with another block size begins anew.
#[test]
fn a_new_block_size_begins_anew() {
    let index = index(1);
    let long = prompt(1, 8);
    apply(&index, id(0), vec![stored(&long, 0)]);
    let halves = Stored {
        hashes: (0..2).map(EngineHash).collect(),
        tokens: long[..64].to_vec(),
        block_size: 32,
        ..Stored::default()
    };
    apply(&index, id(0), vec![Event::Stored(halves)]);
    assert_eq!(found(&index, &long), BTreeMap::from([(0, 4)]));
    assert_eq!(index.stats().placements, 2);
}

/// A name that comes to mean another block counts for that one only.
#[test]
fn a_name_that_changes_its_meaning_is_followed() {
    let index = index(1);
    let (one, two) = (prompt(1, 2), prompt(2, 2));
    let named = |prompt: &[u32]| {
        let Event::Stored(stored) = stored(prompt, 0) else {
            panic!()
        };
        Event::Stored(Stored {
            hashes: vec![EngineHash(1), EngineHash(2)],
            ..stored
        })
    };
    apply(&index, id(0), vec![named(&one)]);
    apply(&index, id(0), vec![named(&two)]);
    assert!(found(&index, &one).is_empty());
    assert_eq!(found(&index, &two), BTreeMap::from([(0, 2)]));
    assert_eq!(index.totals(id(0)).unwrap().mismatched, 2);
}

/// Lookups while writers work: never more than was ever stored, and right when all is quiet.
#[test]
fn readers_and_writers_work_side_by_side() {
    const WRITERS: u64 = 3;
    let index = index(WRITERS);
    let chains: Vec<Vec<u32>> = (0..4)
        .map(|branch| [prompt(1, 40), prompt(2 + branch, 60)].concat())
        .collect();
    let keys: Vec<Vec<Key>> = chains.iter().map(|chain| asked(chain)).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (index, chains) = (&index, &chains);
                scope.spawn(move || churn(index, writer, chains))
            })
            .collect();
        let (index, keys, stop) = (&index, &keys, &stop);
        scope.spawn(move || {
            let mut matches = Matches::new();
            while !stop.load(Ordering::Relaxed) {
                for keys in keys {
                    index.lookup(keys, &mut matches);
                    assert!(matches.len() <= WRITERS as usize);
                    // Nobody ever holds the last ten blocks of any chain.
                    assert!(matches.iter().all(|found| found.total() <= 90));
                }
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let mut matches = Matches::new();
    for (branch, keys) in keys.iter().enumerate() {
        index.lookup(keys, &mut matches);
        // Each writer ends with one branch of its own.
        let want: BTreeMap<EndpointId, [u32; 4]> = (0..WRITERS)
            .map(|writer| {
                (
                    id(writer),
                    [if writer as usize % 4 == branch {
                        90
                    } else {
                        40
                    }; 4],
                )
            })
            .collect();
        assert_eq!(answer(&matches), want);
    }
}

/// Stores and removes branches of the chains, and ends with one of them.
fn churn(index: &Index, writer: u64, chains: &[Vec<u32>]) {
    let mut random = fastrand::Rng::with_seed(writer);
    for _ in 0..400 {
        let chain = &chains[random.usize(..4)];
        let names = names(chain);
        let (mut keys, to) = (asked(chain), 1 + random.usize(..90));
        keys.truncate(to);
        let stored = Keyed {
            parent: None,
            hashes: &names[..to],
            keys: &keys,
            tier: Tier::Device,
        };
        index.store_keyed(id(writer), &stored).unwrap();
        match random.u8(..4) {
            0 => assert!(index.clear(id(writer))),
            1 => {
                let from = random.usize(..to);
                let tail: Vec<EngineHash> = names[from..to].iter().rev().copied().collect();
                index.remove_keyed(id(writer), &tail, Tier::Device).unwrap();
            }
            2 => {
                let head: Vec<EngineHash> = names[..to / 2].to_vec();
                index.remove_keyed(id(writer), &head, Tier::Device).unwrap();
            }
            _ => {}
        }
    }
    index.clear(id(writer));
    let chain = &chains[writer as usize % 4];
    apply(index, id(writer), vec![stored(&chain[..90 * 16], 0)]);
}

/// A group of layers that cannot be told would be missing elsewhere, and the other group's blocks look usable: an endpoint
/// is told as a whole or not at all.
#[test]
fn an_endpoint_with_a_group_that_cannot_be_told_is_not_told() {
    let index = index(1);
    let message = |sequence, event| Batch {
        events: vec![event],
        sequence: Some(sequence),
        published: 1.0,
        ..Batch::default()
    };
    let chain = prompt(1, 4);
    assert_eq!(index.export(id(0)), None);
    index.apply(id(0), &message(0, stored(&chain, 0))).unwrap();
    let told = index.export(id(0)).unwrap();
    assert_eq!((told.last, told.since, told.published), (0, 0, 1.0));
    let halves = Stored {
        hashes: (0..8).map(EngineHash).collect(),
        tokens: chain.clone(),
        block_size: 8,
        group: 1,
        ..Stored::default()
    };
    index
        .apply(id(0), &message(1, Event::Stored(halves)))
        .unwrap();
    assert_eq!(index.export(id(0)), None);
    // Where it is told, it replaces what was there, also with another block size, and an unknown endpoint is refused.
    let other = Index::new(config());
    assert_eq!(other.replace(id(0), &told), Err(SnapshotError::Unknown));
    other.register(id(0), "model");
    other
        .apply(id(0), &message(5, stored(&prompt(2, 9), 0)))
        .unwrap();
    assert_eq!(other.replace(id(0), &told), Ok(4));
    assert_eq!(other.export(id(0)), Some(told));
    let mut matches = Matches::new();
    other.lookup(&asked(&prompt(2, 9)), &mut matches);
    assert!(matches.is_empty());
}
