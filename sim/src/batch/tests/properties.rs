//! Arbitrary load.

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Submit {
        family: u32,
        length: u32,
        output: u32,
        salt: bool,
        priority: i64,
    },
    Abort(usize),
    /// The first half of a step, then an abort, then the second half.
    AbortInside(usize),
    Step,
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    let submit = (0..4_u32, 1..40_u32, 0..20_u32, any::<bool>(), -2..3_i64);
    prop_oneof![
        4 => submit.prop_map(|(family, length, output, salt, priority)| {
            Op::Submit { family, length, output, salt, priority }
        }),
        1 => (0..16_usize).prop_map(Op::Abort),
        1 => (0..16_usize).prop_map(Op::AbortInside),
        8 => Just(Op::Step),
        1 => Just(Op::Reset),
    ]
}

/// Watches an engine from outside.
#[derive(Default)]
struct Watcher {
    /// Copies of each cached block, by the events alone.
    mirror: HashMap<u64, u32>,
    /// Tokens seen and wanted of each open request.
    open: BTreeMap<u64, (u32, u32)>,
    log: String,
}

impl Watcher {
    fn events(&mut self, events: &[KvEvent]) {
        for event in events {
            match event {
                KvEvent::Stored { hashes, .. } => {
                    hashes
                        .iter()
                        .for_each(|hash| *self.mirror.entry(*hash).or_default() += 1);
                }
                KvEvent::Removed { hash } => {
                    let copies = self
                        .mirror
                        .get_mut(hash)
                        .expect("a removed block was stored");
                    *copies -= 1;
                    if *copies == 0 {
                        self.mirror.remove(hash);
                    }
                }
                KvEvent::Cleared => self.mirror.clear(),
            }
        }
    }

    fn outcome(&mut self, out: &StepOutcome) {
        self.log.push_str(&format!("{out:?}\n"));
        self.events(&out.events);
        for produced in &out.produced {
            let (seen, _) = self.open.get_mut(&produced.id).expect("an open request");
            *seen += 1;
            assert_eq!(*seen, produced.generated);
        }
        for finished in &out.finished {
            let (seen, wanted) = self.open.remove(&finished.id).expect("finishes once");
            assert_eq!((seen, finished.generated), (wanted, wanted));
            assert!(finished.arrived_at <= finished.admitted_at);
            assert!(finished.admitted_at <= finished.first_token_at);
            assert!(finished.first_token_at <= finished.finished_at);
        }
    }

    fn apply(&mut self, core: &mut EngineCore, op: &Op, id: u64, now: &mut u64, blocks: u32) {
        let mut out = StepOutcome::default();
        match op {
            Op::Submit {
                family,
                length,
                output,
                salt,
                priority,
            } => {
                let tokens: Vec<u32> = (0..*length).map(|at| family * 1000 + at).collect();
                let request = Request {
                    cache_salt: salt.then(|| "salt".into()),
                    priority: *priority,
                    ..request(id, &tokens, *output)
                };
                let fits = (length + output).div_ceil(4) <= blocks;
                assert_eq!(
                    core.submit(*now, request),
                    if fits { Ok(()) } else { Err(Refused::TooLong) }
                );
                if fits {
                    self.open.insert(id, (0, *output));
                }
            }
            Op::Abort(index) => self.abort(core, *index),
            Op::AbortInside(index) => {
                core.schedule(*now, &mut out);
                self.abort(core, *index);
                *now += out.duration;
                core.complete(*now, &mut out);
                self.outcome(&out);
            }
            Op::Step => {
                let idle = core.is_idle();
                assert_eq!(
                    core.step(*now, &mut out),
                    !idle,
                    "a step computes something if there is something"
                );
                *now += out.duration;
                self.outcome(&out);
            }
            Op::Reset => {
                core.reset_prefix_cache(&mut out.events);
                self.outcome(&out);
            }
        }
    }

    fn abort(&mut self, core: &mut EngineCore, index: usize) {
        if let Some(id) = self.open.keys().nth(index).copied() {
            assert!(core.abort(id));
            self.open.remove(&id);
        }
    }
}

proptest! {
    /// Blocks and requests are conserved at every step; the events alone tell exactly what is cached; every request
    /// ends once with exactly its tokens; the same operations bring the same bytes.
    #[test]
    fn nothing_is_lost_and_nothing_is_left(
        ops in prop::collection::vec(op(), 0..120),
        blocks in 10..60_u32,
        by_priority in any::<bool>(),
    ) {
        let policy = if by_priority { Policy::Priority } else { Policy::Fcfs };
        let mut logs = Vec::new();
        for _ in 0..2 {
            let mut core = EngineCore::new(CoreConfig { policy, ..config(blocks) });
            let (mut watcher, mut now) = (Watcher::default(), 0);
            for (id, op) in ops.iter().enumerate() {
                watcher.apply(&mut core, op, id as u64, &mut now, blocks);
                prop_assert_eq!(core.check(), Ok(()));
            }
            for _ in 0..5000 {
                if core.is_idle() {
                    break;
                }
                watcher.apply(&mut core, &Op::Step, 0, &mut now, blocks);
                prop_assert_eq!(core.check(), Ok(()));
            }
            prop_assert!(core.is_idle(), "a request is stuck");
            prop_assert!(watcher.open.is_empty());
            let counts = core.stats().blocks;
            prop_assert_eq!(counts.held, 0);
            prop_assert_eq!(watcher.mirror.values().sum::<u32>(), counts.cached);
            let found = watcher.mirror.keys().all(|hash| core.pool.lookup(&[*hash]) == 1);
            prop_assert!(found, "an event names a block that is not cached");
            logs.push(watcher.log);
        }
        prop_assert_eq!(&logs[0], &logs[1]);
    }

    /// With room for everything, a hit is the longest run of blocks that some earlier sequence computed.
    #[test]
    fn hits_are_those_of_a_naive_model(
        prompts in prop::collection::vec((0..3_u32, 1..30_usize, 0..6_u32, prop::option::of(0..29_usize)), 1..20),
    ) {
        let mut core = EngineCore::new(config(1000));
        let mut known: HashSet<Vec<u32>> = HashSet::new();
        for (id, (family, length, output, fork)) in prompts.into_iter().enumerate() {
            let id = id as u64;
            let mut tokens: Vec<u32> = (0..length as u32).map(|at| family * 100 + at).collect();
            if let Some(token) = fork.and_then(|at| tokens.get_mut(at)) {
                *token += 50_000;
            }
            let usable = (tokens.len() - 1) / 4;
            let hit = (1..=usable).take_while(|blocks| known.contains(&tokens[..blocks * 4])).count();
            core.submit(0, request(id, &tokens, output)).unwrap();
            prop_assert_eq!(run(&mut core)[&id].cached_tokens as usize, hit * 4);
            // The last generated token is never computed.
            tokens.extend((0..output.saturating_sub(1)).map(|index| output_token(id, index)));
            known.extend((1..=tokens.len() / 4).map(|blocks| tokens[..blocks * 4].to_vec()));
        }
    }
}
