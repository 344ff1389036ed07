//! Closed forms, naive models, and conservation under arbitrary load.

use std::collections::{BTreeMap, HashMap, HashSet};

use proptest::prelude::*;

use super::*;

mod properties;

/// One millisecond per token, blocks of four.
fn config(num_blocks: u32) -> CoreConfig {
    CoreConfig {
        model: StepModel::per_token(1.0),
        block_size: 4,
        num_blocks,
        max_num_seqs: 4,
        max_num_batched_tokens: 16,
        max_num_queued: None,
        policy: Policy::Fcfs,
        prefix_caching: true,
        events: true,
    }
}

fn request(id: u64, tokens: &[u32], max_tokens: u32) -> Request {
    Request {
        id,
        tokens: tokens.into(),
        max_tokens,
        output_key: id,
        cache_salt: None,
        adapter: None,
        priority: 0,
    }
}

/// Runs from 0 until idle; returns what finished.
fn run(core: &mut EngineCore) -> BTreeMap<u64, Finished> {
    let mut done = BTreeMap::new();
    let (mut now, mut out) = (0, StepOutcome::default());
    while core.step(now, &mut out) {
        now += out.duration;
        done.extend(out.finished.iter().map(|finished| (finished.id, *finished)));
        assert_eq!(core.check(), Ok(()));
        assert!(now < 1_000_000_000_000, "does not end");
    }
    assert!(core.is_idle());
    done
}

const SECOND: u64 = 1_000_000_000;

/// C36: one slot, a prefill of 4 s, ten requests at once: first tokens at 4, 8, ... 40 s, 220 s in all.
#[test]
fn one_slot_serves_in_order() {
    let mut core = EngineCore::new(CoreConfig {
        max_num_seqs: 1,
        max_num_batched_tokens: 4000,
        ..config(1001)
    });
    for id in 0..10 {
        let tokens: Vec<u32> = (0..4000).map(|at| at * 10 + id as u32).collect();
        core.submit(0, request(id, &tokens, 1)).unwrap();
    }
    let done = run(&mut core);
    let first: Vec<u64> = done
        .values()
        .map(|done| (done.first_token_at - done.arrived_at) / SECOND)
        .collect();
    assert_eq!(first, [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]);
    assert_eq!(
        done.values().map(|done| done.first_token_at).sum::<u64>(),
        220 * SECOND
    );
    let waits: Vec<u64> = done
        .values()
        .map(|done| done.admitted_at / SECOND)
        .collect();
    assert_eq!(waits, [0, 4, 8, 12, 16, 20, 24, 28, 32, 36]);
}

#[test]
fn a_long_prompt_is_computed_in_chunks_of_the_budget() {
    let mut core = EngineCore::new(config(100));
    core.submit(0, request(1, &[9; 40], 2)).unwrap();
    let mut out = StepOutcome::default();
    let mut steps = Vec::new();
    while core.step(0, &mut out) {
        steps.push((
            out.duration / 1_000_000,
            out.produced.len(),
            out.finished.len(),
        ));
    }
    assert_eq!(steps, [(16, 0, 0), (16, 0, 0), (8, 1, 0), (1, 1, 1)]);
}

#[test]
fn decodes_come_before_prefills_and_share_the_budget() {
    let mut core = EngineCore::new(config(100));
    core.submit(0, request(1, &[1; 4], 5)).unwrap();
    let mut out = StepOutcome::default();
    core.step(0, &mut out);
    core.submit(0, request(2, &[2; 20], 1)).unwrap();
    core.step(0, &mut out);
    // One token of the decode, and 15 of the budget's 16 left for the prompt.
    assert_eq!(
        (out.tokens, out.produced.len(), out.admitted.as_slice()),
        (16, 1, [2].as_slice())
    );
    core.step(0, &mut out);
    assert_eq!((out.tokens, out.produced.len()), (6, 2));
}

#[test]
fn a_prefix_hit_leaves_the_last_token_to_compute() {
    let mut core = EngineCore::new(config(100));
    let prompt: Vec<u32> = (0..16).collect();
    core.submit(0, request(1, &prompt, 1)).unwrap();
    run(&mut core);
    core.submit(0, request(2, &prompt, 1)).unwrap();
    core.submit(0, request(3, &prompt[..13], 1)).unwrap();
    let salted = Request {
        cache_salt: Some("tenant".into()),
        ..request(4, &prompt, 1)
    };
    core.submit(0, salted).unwrap();
    let adapted = Request {
        adapter: Some("tenant".into()),
        ..request(5, &prompt, 1)
    };
    core.submit(0, adapted).unwrap();
    let done = run(&mut core);
    let cached: Vec<u32> = done.values().map(|done| done.cached_tokens).collect();
    assert_eq!(cached, [12, 12, 0, 0]);
    let stats = core.stats();
    assert_eq!((stats.prefix_queries, stats.prefix_hits), (16 * 4 + 13, 24));
    assert_eq!(
        (stats.prompt_tokens, stats.cached_prompt_tokens),
        (16 * 4 + 13, 24)
    );
}

#[test]
fn an_answer_is_the_next_turns_prefix() {
    let mut core = EngineCore::new(config(100));
    core.submit(0, request(1, &[1, 2, 3, 4, 5, 6], 10)).unwrap();
    run(&mut core);
    let mut next = vec![1, 2, 3, 4, 5, 6];
    next.extend((0..10).map(|index| output_token(1, index)));
    next.push(77);
    core.submit(0, request(2, &next, 1)).unwrap();
    // 6 + 9 tokens have their KV: the last generated one was never computed.
    assert_eq!(run(&mut core)[&2].cached_tokens, 12);
}

#[test]
fn without_a_prefix_cache_nothing_is_found_and_no_event_comes() {
    let mut core = EngineCore::new(CoreConfig {
        prefix_caching: false,
        ..config(8)
    });
    for id in 0..4 {
        core.submit(0, request(id, &[7; 16], 2)).unwrap();
        let mut out = StepOutcome::default();
        while core.step(0, &mut out) {
            assert!(out.events.is_empty());
            assert!(
                out.finished
                    .iter()
                    .all(|finished| finished.cached_tokens == 0)
            );
        }
    }
    assert_eq!(core.stats().prefix_queries, 0);
}

#[test]
fn what_cannot_be_taken_is_refused() {
    let mut core = EngineCore::new(CoreConfig {
        max_num_queued: Some(2),
        ..config(10)
    });
    assert_eq!(core.submit(0, request(9, &[], 1)), Err(Refused::Empty));
    assert_eq!(
        core.submit(0, request(9, &[1; 30], 11)),
        Err(Refused::TooLong)
    );
    core.submit(0, request(1, &[1], 1)).unwrap();
    assert_eq!(core.submit(0, request(1, &[1], 1)), Err(Refused::Duplicate));
    core.submit(0, request(2, &[1; 30], 10)).unwrap();
    assert_eq!(core.submit(0, request(3, &[1], 1)), Err(Refused::QueueFull));
    assert_eq!(core.stats().refused, 1);
    assert_eq!(run(&mut core).len(), 2);
    core.submit(0, request(3, &[1], 1)).unwrap();
}

#[test]
fn a_prompt_without_an_answer_is_only_computed() {
    let mut core = EngineCore::new(config(100));
    core.submit(0, request(1, &[5; 20], 0)).unwrap();
    let done = run(&mut core);
    assert_eq!((done[&1].generated, done[&1].finished_at), (0, 20_000_000));
    assert_eq!(core.stats().generated_tokens, 0);
    assert_eq!(core.stats().prompt_tokens, 20);
}

#[test]
fn preemption_takes_the_last_one_recomputes_it_and_leaks_nothing() {
    // Two requests of 12 + 12 tokens need 12 blocks; there are 8.
    let mut core = EngineCore::new(config(8));
    core.submit(0, request(1, &[1; 12], 12)).unwrap();
    core.submit(0, request(2, &[2; 12], 12)).unwrap();
    let done = run(&mut core);
    assert_eq!((done[&1].preemptions, done[&2].preemptions), (0, 1));
    assert!(done[&1].finished_at < done[&2].finished_at);
    let stats = core.stats();
    assert_eq!(
        (stats.preemptions, stats.generated_tokens, stats.finished),
        (1, 24, 2)
    );
    assert_eq!(stats.blocks.held, 0);
}

#[test]
fn by_priority_the_urgent_overtakes_and_the_least_urgent_is_preempted() {
    let by_priority = CoreConfig {
        policy: Policy::Priority,
        max_num_seqs: 1,
        ..config(100)
    };
    let mut core = EngineCore::new(by_priority);
    for (id, priority) in [(1, 0), (2, 5), (3, -5)] {
        core.submit(
            0,
            Request {
                priority,
                ..request(id, &[id as u32; 8], 2)
            },
        )
        .unwrap();
    }
    let done = run(&mut core);
    let mut order: Vec<u64> = done.keys().copied().collect();
    order.sort_by_key(|id| done[id].finished_at);
    assert_eq!(order, [3, 1, 2]);

    let mut core = EngineCore::new(CoreConfig {
        policy: Policy::Priority,
        ..config(8)
    });
    // The first one is the least urgent: it goes although the other came later.
    core.submit(
        0,
        Request {
            priority: 9,
            ..request(1, &[1; 12], 12)
        },
    )
    .unwrap();
    core.step(0, &mut StepOutcome::default());
    core.submit(0, request(2, &[2; 12], 12)).unwrap();
    let done = run(&mut core);
    assert_eq!((done[&1].preemptions, done[&2].preemptions), (1, 0));
}

#[test]
fn an_aborted_request_frees_its_blocks_and_keeps_them_cached() {
    let mut core = EngineCore::new(config(100));
    let prompt: Vec<u32> = (0..20).collect();
    core.submit(0, request(1, &prompt, 50)).unwrap();
    core.submit(0, request(2, &[3; 8], 1)).unwrap();
    let mut out = StepOutcome::default();
    core.step(0, &mut out);
    core.schedule(0, &mut out);
    assert!(core.abort(1));
    assert!(!core.abort(1));
    core.complete(0, &mut out);
    assert_eq!(core.check(), Ok(()));
    assert_eq!(
        out.finished
            .iter()
            .map(|finished| finished.id)
            .collect::<Vec<_>>(),
        [2]
    );
    assert_eq!((core.stats().blocks.held, core.stats().aborted), (0, 1));
    core.submit(0, request(3, &prompt, 1)).unwrap();
    assert_eq!(run(&mut core)[&3].cached_tokens, 16);
}

#[test]
fn a_reset_forgets_unless_blocks_are_held() {
    let mut core = EngineCore::new(config(100));
    core.submit(0, request(1, &[5; 20], 50)).unwrap();
    core.step(0, &mut StepOutcome::default());
    let mut events = Vec::new();
    assert!(!core.reset_prefix_cache(&mut events));
    assert!(events.is_empty());
    core.abort(1);
    assert!(core.reset_prefix_cache(&mut events));
    assert_eq!(events, [KvEvent::Cleared]);
    core.submit(0, request(2, &[5; 20], 1)).unwrap();
    assert_eq!(run(&mut core)[&2].cached_tokens, 0);
}

#[test]
fn events_chain_blocks_and_name_what_is_taken() {
    let mut core = EngineCore::new(config(4));
    let prompt: Vec<u32> = (0..9).collect();
    core.submit(0, request(1, &prompt, 5)).unwrap();
    let (mut out, mut events) = (StepOutcome::default(), Vec::new());
    while core.step(0, &mut out) {
        events.append(&mut out.events);
    }
    let first = block_hash(root_hash(None, None), &[0, 1, 2, 3]);
    let second = block_hash(first, &[4, 5, 6, 7]);
    let tail = [
        8,
        output_token(1, 0),
        output_token(1, 1),
        output_token(1, 2),
    ];
    let third = block_hash(second, &tail);
    let stored = |hashes: Vec<u64>, parent, tokens: &[u32]| KvEvent::Stored {
        hashes,
        parent,
        tokens: tokens.to_vec(),
        salt: None,
        adapter: None,
    };
    let expected = [
        stored(vec![first, second], None, &[0, 1, 2, 3, 4, 5, 6, 7]),
        stored(vec![third], Some(second), &tail),
    ];
    assert_eq!(events, expected);
    core.submit(0, request(2, &[99; 8], 1)).unwrap();
    core.step(0, &mut out);
    // Idle blocks go in the order of their release, each request's tail first: the empty one, then the third.
    assert_eq!(out.events[0], KvEvent::Removed { hash: third });
}

#[test]
fn a_prompt_of_whole_blocks_is_stored_twice() {
    let mut core = EngineCore::new(config(100));
    let mut stored = Vec::new();
    for id in 0..2 {
        core.submit(0, request(id, &[4; 8], 1)).unwrap();
        let mut out = StepOutcome::default();
        while core.step(0, &mut out) {
            for event in &out.events {
                if let KvEvent::Stored { hashes, .. } = event {
                    stored.extend(hashes.clone());
                }
            }
        }
    }
    assert_eq!(stored.len(), 3);
    assert_eq!(stored[1], stored[2]);
}
