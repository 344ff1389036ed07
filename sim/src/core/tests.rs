//! Closed forms, a naive model of the cache, and conservation under arbitrary load.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn config(num_blocks: u32) -> CoreConfig {
    CoreConfig {
        model: StepModel::per_token(1.0),
        block_size: 4,
        num_blocks,
        max_num_seqs: 4,
        max_num_batched_tokens: 16,
        max_num_queued: None,
        seed: 1,
    }
}

fn job(id: u64, tokens: &[u32], max_tokens: u32) -> Job {
    Job {
        id,
        tokens: tokens.into(),
        max_tokens,
        salt: String::new(),
    }
}

/// Runs until idle; returns each request's cached tokens and completion time in milliseconds.
fn run(core: &mut EngineCore) -> BTreeMap<u64, (u32, f64)> {
    let mut done = BTreeMap::new();
    let mut now = 0.0;
    for _ in 0..100_000 {
        if core.idle() {
            return done;
        }
        let out = core.step();
        now += out.nanos as f64 / 1e6;
        for produced in out.produced.iter().filter(|produced| produced.finished) {
            done.insert(produced.id, (produced.cached_tokens, now));
        }
        assert_eq!(core.check(), Ok(()));
    }
    panic!("does not end");
}

/// C36: one slot, a prefill of 4 s, ten requests at once: 4, 8, ... 40 s.
#[test]
fn one_slot_serves_in_order() {
    let mut core = EngineCore::new(CoreConfig {
        max_num_seqs: 1,
        max_num_batched_tokens: 4000,
        num_blocks: 1001,
        ..config(0)
    });
    for id in 0..10 {
        let tokens: Vec<u32> = (0..4000).map(|at| at * 10 + id as u32).collect();
        core.submit(job(id, &tokens, 1)).unwrap();
    }
    let ends: Vec<f64> = run(&mut core).values().map(|(_, end)| *end / 1000.0).collect();
    assert_eq!(ends, [4.0, 8.0, 12.0, 16.0, 20.0, 24.0, 28.0, 32.0, 36.0, 40.0]);
}

#[test]
fn a_long_prompt_is_computed_in_chunks_of_the_budget() {
    let mut core = EngineCore::new(config(100));
    core.submit(job(1, &[9; 40], 2)).unwrap();
    let steps: Vec<(u64, usize)> = (0..4).map(|_| core.step()).map(|out| (out.nanos / 1_000_000, out.produced.len())).collect();
    assert_eq!(steps, [(16, 0), (16, 0), (8, 1), (1, 1)]);
    assert!(core.idle());
}

#[test]
fn a_prefix_hit_leaves_the_last_token_to_compute() {
    let mut core = EngineCore::new(config(100));
    let prompt: Vec<u32> = (0..16).collect();
    core.submit(job(1, &prompt, 1)).unwrap();
    run(&mut core);
    core.submit(job(2, &prompt, 1)).unwrap();
    assert_eq!(run(&mut core)[&2].0, 12);
    core.submit(job(3, &prompt[..13], 1)).unwrap();
    assert_eq!(run(&mut core)[&3].0, 12);
    let salted = Job {
        salt: "tenant".into(),
        ..job(4, &prompt, 1)
    };
    core.submit(salted).unwrap();
    assert_eq!(run(&mut core)[&4].0, 0);
}

#[test]
fn an_answer_is_the_next_turns_prefix() {
    let mut core = EngineCore::new(config(100));
    let first = job(1, &[1, 2, 3, 4, 5, 6], 10);
    let key = prompt_key(&first);
    core.submit(first).unwrap();
    run(&mut core);
    let mut next = vec![1, 2, 3, 4, 5, 6];
    next.extend((0..10).map(|index| generated_token(1, key, index)));
    next.push(77);
    core.submit(job(2, &next, 1)).unwrap();
    // 6 + 9 tokens have their KV: the last generated one was never computed.
    assert_eq!(run(&mut core)[&2].0, 12);
}

#[test]
fn a_full_queue_refuses() {
    let mut core = EngineCore::new(CoreConfig {
        max_num_queued: Some(2),
        ..config(100)
    });
    core.submit(job(1, &[1], 1)).unwrap();
    core.submit(job(2, &[1], 1)).unwrap();
    assert_eq!(core.submit(job(3, &[1], 1)), Err(Refused::QueueFull));
    run(&mut core);
    core.submit(job(3, &[1], 1)).unwrap();
}

#[test]
fn preemption_recomputes_and_leaks_nothing() {
    // Two requests of 12 + 12 tokens need 12 blocks; there are 8.
    let mut core = EngineCore::new(config(8));
    core.submit(job(1, &[1; 12], 12)).unwrap();
    core.submit(job(2, &[2; 12], 12)).unwrap();
    let done = run(&mut core);
    assert_eq!(done.len(), 2);
    let stats = core.stats();
    assert!(stats.preemptions > 0);
    assert_eq!((stats.generated_tokens, stats.finished, stats.held_blocks), (24, 2, 0));
}

#[test]
fn an_aborted_request_frees_its_blocks_and_keeps_them_cached() {
    let mut core = EngineCore::new(config(100));
    let prompt: Vec<u32> = (0..20).collect();
    core.submit(job(1, &prompt, 50)).unwrap();
    core.step();
    core.step();
    assert!(core.abort(1));
    assert!(!core.abort(1));
    assert_eq!(core.check(), Ok(()));
    assert_eq!(core.stats().held_blocks, 0);
    core.submit(job(2, &prompt, 1)).unwrap();
    assert_eq!(run(&mut core)[&2].0, 16);
}

#[test]
fn a_reset_forgets_unless_blocks_are_held() {
    let mut core = EngineCore::new(config(100));
    core.submit(job(1, &[5; 20], 50)).unwrap();
    core.step();
    let mut events = Vec::new();
    assert!(!core.reset_prefix_cache(&mut events));
    assert!(events.is_empty());
    core.abort(1);
    assert!(core.reset_prefix_cache(&mut events));
    assert_eq!(events, [KvEvent::Cleared]);
    core.submit(job(2, &[5; 20], 1)).unwrap();
    assert_eq!(run(&mut core)[&2].0, 0);
}

#[derive(Clone, Debug)]
enum Op {
    Submit { family: u32, length: usize, output: u32 },
    Abort(usize),
    Step,
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..4_u32, 1..40_usize, 1..20_u32).prop_map(|(family, length, output)| Op::Submit { family, length, output }),
        1 => (0..16_usize).prop_map(Op::Abort),
        8 => Just(Op::Step),
        1 => Just(Op::Reset),
    ]
}

proptest! {
    /// Blocks and requests are conserved at every step; a mirror fed by the events alone knows exactly the cached
    /// blocks; every request ends once with exactly its tokens; the same operations bring the same bytes.
    #[test]
    fn nothing_is_lost(ops in prop::collection::vec(op(), 0..120), blocks in 12..60_u32) {
        let mut runs = Vec::new();
        for _ in 0..2 {
            let mut core = EngineCore::new(config(blocks));
            let mut mirror: BTreeMap<u64, ()> = BTreeMap::new();
            let mut open: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
            let mut log = String::new();
            let mut apply = |events: &[KvEvent]| for event in events {
                match event {
                    KvEvent::Stored { hash, .. } => assert_eq!(mirror.insert(*hash, ()), None),
                    KvEvent::Removed { hash } => assert_eq!(mirror.remove(hash), Some(())),
                    KvEvent::Cleared => mirror.clear(),
                }
            };
            let mut sizes = Vec::new();
            for (id, op) in ops.iter().chain(std::iter::repeat_n(&Op::Step, 3000)).enumerate() {
                match op {
                    Op::Submit { family, length, output } => {
                        let tokens: Vec<u32> = (0..*length as u32).map(|at| family * 1000 + at).collect();
                        let fits = (*length as u32 + output).div_ceil(4) <= blocks;
                        let taken = core.submit(job(id as u64, &tokens, *output));
                        prop_assert_eq!(taken, if fits { Ok(()) } else { Err(Refused::TooLong) });
                        if fits {
                            open.insert(id as u64, (0, *output));
                        }
                    }
                    Op::Abort(index) => {
                        if let Some(id) = open.keys().nth(*index).copied() {
                            prop_assert!(core.abort(id));
                            open.remove(&id);
                        }
                    }
                    Op::Step => {
                        let out = core.step();
                        log.push_str(&format!("{:?}{:?}", out.produced, out.events));
                        apply(&out.events);
                        for produced in out.produced {
                            let (seen, wanted) = open.get_mut(&produced.id).expect("open");
                            *seen += 1;
                            prop_assert_eq!(*seen, produced.generated);
                            prop_assert_eq!(produced.finished, *seen == *wanted);
                            if produced.finished {
                                open.remove(&produced.id);
                            }
                        }
                    }
                    Op::Reset => {
                        let mut events = Vec::new();
                        core.reset_prefix_cache(&mut events);
                        apply(&events);
                    }
                }
                prop_assert_eq!(core.check(), Ok(()));
                sizes.push(core.cache.cached());
                if core.idle() && id >= ops.len() {
                    break;
                }
            }
            drop(apply);
            prop_assert_eq!(mirror.len(), core.cache.cached());
            prop_assert!(open.is_empty() && core.idle());
            prop_assert_eq!(core.stats().held_blocks, 0);
            runs.push(log);
        }
        prop_assert_eq!(&runs[0], &runs[1]);
    }
}
