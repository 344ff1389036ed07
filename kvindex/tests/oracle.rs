//! Random interleavings of everything that changes the index, against a naive model.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that panics has failed, which is its job"
)]

mod common;

use proptest::{collection::vec, prelude::*, test_runner::TestCaseResult};

use common::{Oracle, Path, answer};
use wicketgate_kvindex::{
    events::{Batch, EngineHash, Event, Removed, Stored, Tier},
    index::{Config, EndpointId, Index, Matches, check_snapshot},
    keys::{Key, KeySpace, Scope},
};

const OURS: u32 = 4;
/// Endpoints, by the tokens of their engines' blocks.
const SIZES: &[u32] = &[4, 8, 4, 2, 1, 12];
/// Engines whose blocks are at least ours.
const WHOLE: &[u32] = &[4, 8, 4];
/// Few that meet often.
const ALIKE: &[u32] = &[4, 4, 4];

/// A prompt is a row of symbols, one for each of our blocks; few symbols make chains branch at any place.
type Prompt = Vec<u8>;

#[derive(Clone, Debug)]
enum Step {
    Store {
        endpoint: usize,
        prompt: Prompt,
        from: usize,
        to: usize,
        tier: usize,
        group: u32,
    },
    /// The same blocks without tokens: on one more tier.
    Retier {
        endpoint: usize,
        prompt: Prompt,
        from: usize,
        to: usize,
        tier: usize,
    },
    Remove {
        endpoint: usize,
        prompt: Prompt,
        from: usize,
        to: usize,
        tier: usize,
        group: u32,
        tail_first: bool,
    },
    Clear {
        endpoint: usize,
    },
    Leave {
        endpoint: usize,
    },
    Predict {
        endpoint: usize,
        prompt: Prompt,
        lasts: u64,
    },
    Pass {
        time: u64,
    },
}

/// Steps of some endpoints with prompts of up to `longest` symbols out of `symbols`, and ranges of up to `most` blocks.
fn step(endpoints: usize, symbols: u8, longest: usize, most: usize) -> impl Strategy<Value = Step> {
    let prompt = move || vec(0..symbols, 1..=longest);
    let range = move || (0..most, 1..=most);
    let endpoint = move || 0..endpoints;
    let tier = || prop_oneof![8 => Just(0usize), 2 => 1usize..4];
    let group = || prop_oneof![9 => Just(0u32), 1 => Just(1u32)];
    prop_oneof![
        12 => (endpoint(), prompt(), range(), tier(), group()).prop_map(
            |(endpoint, prompt, (from, count), tier, group)| {
                // Mostly from the start, as prompts come.
                let from = if from % 3 == 0 { from } else { 0 };
                Step::Store { endpoint, prompt, from, to: from + count, tier, group }
            }
        ),
        2 => (endpoint(), prompt(), range(), 0usize..4).prop_map(
            |(endpoint, prompt, (from, count), tier)| {
                Step::Retier { endpoint, prompt, from, to: from + count, tier }
            }
        ),
        10 => (endpoint(), prompt(), range(), tier(), group(), any::<bool>()).prop_map(
            |(endpoint, prompt, (from, count), tier, group, tail_first)| {
                Step::Remove { endpoint, prompt, from, to: from + count, tier, group, tail_first }
            }
        ),
        1 => endpoint().prop_map(|endpoint| Step::Clear { endpoint }),
        1 => endpoint().prop_map(|endpoint| Step::Leave { endpoint }),
        3 => (endpoint(), prompt(), 1u64..20).prop_map(
            |(endpoint, prompt, lasts)| Step::Predict { endpoint, prompt, lasts }
        ),
        2 => (1u64..8).prop_map(|time| Step::Pass { time }),
    ]
}

/// `repeat` blocks of ours for each symbol.
fn tokens(prompt: &[u8], repeat: u32) -> Vec<u32> {
    let block = |symbol: u8| (0..OURS * repeat).map(move |at| u32::from(symbol) * 100 + at % 2);
    prompt.iter().copied().flat_map(block).collect()
}

/// A name as an engine would give it: of everything up to the end of the block.
fn name(salt: usize, tokens: &[u32]) -> EngineHash {
    let fold = |hash: u64, token: &u32| {
        (hash ^ u64::from(*token))
            .wrapping_mul(0x100_0000_01b3)
            .rotate_left(17)
    };
    EngineHash(
        tokens
            .iter()
            .fold(0xcbf2_9ce4_8422_2325 ^ salt as u64, fold),
    )
}

struct World {
    index: Index,
    /// Hears the same, where it knows the endpoint.
    also: Option<Index>,
    messages: u64,
    oracle: Oracle,
    sizes: &'static [u32],
    lives: Vec<u64>,
    now: u64,
    exact: bool,
    repeat: u32,
}

impl World {
    fn new(config: Config, sizes: &'static [u32], exact: bool, repeat: u32) -> World {
        let mut world = World {
            index: Index::new(config),
            also: None,
            messages: 0,
            oracle: Oracle::new(OURS),
            sizes,
            lives: vec![0; sizes.len()],
            now: 0,
            exact,
            repeat,
        };
        // Where the index may forget a block before its engine does, the promise of it may stay.
        world.oracle.breaks = exact;
        (0..sizes.len()).for_each(|endpoint| world.join(endpoint));
        world
    }

    fn id(&self, endpoint: usize) -> EndpointId {
        EndpointId {
            incarnation: self.lives[endpoint] * 100 + endpoint as u64,
            rank: endpoint as u32 % 2,
        }
    }

    fn join(&mut self, endpoint: usize) {
        let id = self.id(endpoint);
        assert!(self.index.register(id, "model"));
        self.oracle.register(id, "model");
    }

    fn apply(&mut self, endpoint: usize, events: Vec<Event>) {
        let batch = Batch {
            events,
            sequence: Some(self.messages),
            published: self.messages as f64 / 8.0,
            ..Batch::default()
        };
        self.messages += 1;
        let id = self.id(endpoint);
        self.index.apply(id, &batch).unwrap();
        if let Some(also) = &self.also {
            also.apply(id, &batch);
        }
        self.oracle.apply(id, &batch);
    }

    /// Names and tokens of the engine blocks `from..to` of a prompt, and the name before them.
    fn blocks(
        &self,
        endpoint: usize,
        prompt: &[u8],
        from: usize,
        to: usize,
    ) -> (Vec<EngineHash>, Vec<u32>, Option<EngineHash>) {
        let size = self.sizes[endpoint] as usize;
        let tokens = tokens(prompt, self.repeat);
        let (from, to) = (from * self.repeat as usize, to * self.repeat as usize);
        let (from, to) = (from.min(tokens.len() / size), to.min(tokens.len() / size));
        let names = (from..to)
            .map(|block| name(endpoint, &tokens[..(block + 1) * size]))
            .collect();
        let parent = (from > 0).then(|| name(endpoint, &tokens[..from * size]));
        (names, tokens[from * size..to * size].to_vec(), parent)
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Store {
                endpoint,
                prompt,
                from,
                to,
                tier,
                group,
            } => {
                let (hashes, tokens, parent) = self.blocks(*endpoint, prompt, *from, *to);
                if hashes.is_empty() {
                    return;
                }
                let stored = Stored {
                    hashes,
                    parent,
                    tokens,
                    block_size: self.sizes[*endpoint],
                    tier: Tier::ALL[*tier],
                    group: *group,
                    ..Stored::default()
                };
                self.apply(*endpoint, vec![Event::Stored(stored)]);
            }
            Step::Retier {
                endpoint,
                prompt,
                from,
                to,
                tier,
            } => {
                let (hashes, ..) = self.blocks(*endpoint, prompt, *from, *to);
                let tier = Tier::ALL[*tier];
                let block_size = self.sizes[*endpoint];
                let stored = Stored {
                    hashes,
                    tier,
                    block_size,
                    ..Stored::default()
                };
                self.apply(*endpoint, vec![Event::Stored(stored)]);
            }
            Step::Remove {
                endpoint,
                prompt,
                from,
                to,
                tier,
                group,
                tail_first,
            } => {
                let (mut hashes, ..) = self.blocks(*endpoint, prompt, *from, *to);
                if *tail_first {
                    hashes.reverse();
                }
                let removed = Removed {
                    hashes,
                    tier: Tier::ALL[*tier],
                    group: *group,
                };
                self.apply(*endpoint, vec![Event::Removed(removed)]);
            }
            Step::Clear { endpoint } => self.apply(*endpoint, vec![Event::Cleared]),
            Step::Leave { endpoint } => {
                let id = self.id(*endpoint);
                assert!(self.index.remove(id));
                self.oracle.remove(id);
                self.lives[*endpoint] += 1;
                self.join(*endpoint);
                // What the dead one still has to say is not heard.
                assert!(self.index.apply(id, &Batch::default()).is_none());
            }
            Step::Predict {
                endpoint,
                prompt,
                lasts,
            } => {
                let id = self.id(*endpoint);
                let (path, keys) = self.asked(prompt);
                self.index.predict(id, &keys, self.now + lasts);
                let tokens = path.tokens[..keys.len() * OURS as usize].to_vec();
                self.oracle
                    .predict(id, Path { tokens, ..path }, self.now + lasts);
            }
            Step::Pass { time } => {
                self.now += time;
                self.index.expire(self.now);
                self.oracle.expire(self.now);
            }
        }
    }

    /// A request for a prompt, with one token more, so that all of its blocks can be credited.
    fn asked(&self, prompt: &[u8]) -> (Path, Vec<Key>) {
        let mut tokens = tokens(prompt, self.repeat);
        let mut keys = Vec::new();
        tokens.push(9999);
        let scope = Scope {
            model: "model",
            domain: None,
        };
        self.index
            .config()
            .keys
            .prompt(scope, &tokens, &[], &mut keys);
        tokens.pop();
        (
            Path {
                scope: "model".to_owned(),
                tokens,
            },
            keys,
        )
    }

    fn check(&self, prompts: &[Prompt], matches: &mut Matches) -> TestCaseResult {
        for prompt in prompts {
            let (path, keys) = self.asked(prompt);
            self.index.lookup(&keys, matches);
            let (found, want) = (answer(matches), self.oracle.lookup(&path, keys.len()));
            if self.exact {
                prop_assert_eq!(&found, &want, "for {:?}", prompt);
            } else {
                for (id, blocks) in found {
                    let most = want.get(&id).copied().unwrap_or_default();
                    let within = blocks
                        .iter()
                        .zip(most)
                        .all(|(blocks, most)| *blocks <= most);
                    prop_assert!(within, "{:?} over {:?} for {:?}", blocks, most, prompt);
                }
            }
        }
        Ok(())
    }
}

fn prompts(steps: &[Step]) -> Vec<Prompt> {
    let mut prompts: Vec<Prompt> = steps
        .iter()
        .filter_map(|step| match step {
            Step::Store { prompt, .. } | Step::Predict { prompt, .. } => Some(prompt.clone()),
            _ => None,
        })
        .collect();
    prompts.push(vec![0; 12]);
    prompts
}

/// All prompts of four symbols out of two.
fn four_symbols() -> Vec<Prompt> {
    let symbols = |bits: u8| (0..4).map(move |at| bits >> at & 1);
    (0..16).map(|bits| symbols(bits).collect()).collect()
}

fn config() -> Config {
    Config {
        keys: KeySpace::new(OURS, 5),
        ..Config::default()
    }
}

/// More on demand: `ORACLE_CASES=20000 cargo test --test oracle`.
fn cases() -> u32 {
    std::env::var("ORACLE_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(256)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    /// The index answers as the model does after every step, and is empty when everybody has left.
    #[test]
    fn it_answers_as_the_model_does(steps in vec(step(SIZES.len(), 3, 11, 24), 1..60)) {
        let mut world = World::new(config(), SIZES, true, 1);
        let mut matches = Matches::new();
        let prompts = prompts(&steps);
        for step in &steps {
            world.step(step);
            world.check(&prompts, &mut matches)?;
        }
        for endpoint in 0..SIZES.len() {
            world.index.remove(world.id(endpoint));
        }
        let stats = world.index.stats();
        prop_assert_eq!((stats.placements, stats.blocks, stats.runs, stats.endpoints), (0, 0, 0, 0));
    }

    /// The same with few chains that are interrupted and continued all the time.
    #[test]
    fn it_answers_as_the_model_does_for_torn_chains(steps in vec(step(ALIKE.len(), 2, 4, 4), 1..120)) {
        let mut world = World::new(config(), ALIKE, true, 1);
        let mut matches = Matches::new();
        let prompts = four_symbols();
        for step in &steps {
            world.step(step);
            world.check(&prompts, &mut matches)?;
        }
    }

    /// And with chains so long that what nobody holds of them is given back.
    #[test]
    fn it_answers_as_the_model_does_for_long_torn_chains(steps in vec(step(ALIKE.len(), 2, 4, 4), 1..120)) {
        let mut world = World::new(config(), ALIKE, true, 20);
        let mut matches = Matches::new();
        let prompts = four_symbols();
        for step in &steps {
            world.step(step);
        }
        world.check(&prompts, &mut matches)?;
    }

    /// The same with prompts so long that runs are cut and copied.
    #[test]
    fn it_answers_as_the_model_does_for_long_prompts(steps in vec(step(SIZES.len(), 3, 11, 24), 1..25)) {
        let mut world = World::new(config(), SIZES, true, 9);
        let mut matches = Matches::new();
        let prompts = prompts(&steps);
        for step in &steps {
            world.step(step);
        }
        world.check(&prompts, &mut matches)?;
    }

    /// A snapshot gives the same answers elsewhere and goes on with what comes next: to the same where nothing was behind
    /// a hole or waited, and never to more. What is damaged is refused, and what `check` lets through is taken.
    #[test]
    fn a_snapshot_tells_what_is_held(
        steps in vec(step(WHOLE.len(), 2, 4, 4), 1..80),
        between in vec(step(WHOLE.len(), 2, 4, 4), 0..20),
        later in vec(step(WHOLE.len(), 2, 4, 4), 0..20),
        calm in any::<bool>(),
        spoilt in vec((any::<usize>(), any::<u8>()), 1..4),
    ) {
        let mut world = World::new(config(), WHOLE, true, 1);
        let counts = |step: &&Step| match step {
            Step::Predict { .. } | Step::Leave { .. } => false,
            Step::Remove { .. } => !calm,
            Step::Store { from, .. } => !calm || *from == 0,
            _ => true,
        };
        steps.iter().filter(counts).for_each(|step| world.step(step));
        // Events go on while endpoint after endpoint is told; each is as it is at its own moment.
        world.also = Some(Index::new(config()));
        let mut between = between.iter().filter(counts);
        let prompts = four_symbols();
        let mut matches = [Matches::new(), Matches::new()];
        let mut taken = Vec::new();
        for endpoint in 0..WHOLE.len() {
            let (id, other) = (world.id(endpoint), world.also.as_ref().unwrap());
            other.register(id, "model");
            if let Some(mut snapshot) = world.index.export(id) {
                prop_assert_eq!(check_snapshot(&snapshot.blocks), Ok(()));
                other.replace(id, &snapshot).unwrap();
                let again = other.export(id).unwrap();
                prop_assert_eq!((again.last, again.since), (snapshot.last, snapshot.since));
                for prompt in &prompts {
                    let (_, keys) = world.asked(prompt);
                    world.index.lookup(&keys, &mut matches[0]);
                    other.lookup(&keys, &mut matches[1]);
                    let [first, second] = &matches;
                    let (first, second) = (answer(first), answer(second));
                    prop_assert_eq!(first.get(&id), second.get(&id));
                }
                for (at, value) in &spoilt {
                    let at = at % snapshot.blocks.len();
                    snapshot.blocks[at] = *value;
                }
                taken.push((id, snapshot));
            }
            if let Some(step) = between.next() {
                world.step(step);
            }
        }
        let other = world.also.take().unwrap();
        world.also = Some(std::mem::replace(&mut world.index, other));
        world.exact = calm;
        world.check(&prompts, &mut matches[0])?;
        for step in later.iter().filter(counts) {
            world.step(step);
            world.check(&prompts, &mut matches[0])?;
        }
        let third = Index::new(config());
        for (id, spoilt) in taken {
            third.register(id, "model");
            let replaced = third.replace(id, &spoilt);
            // A block size that does not fit is found only where the keys are known.
            prop_assert!(replaced.is_err() || check_snapshot(&spoilt.blocks).is_ok());
            prop_assert_eq!(replaced.is_ok(), third.export(id).is_some());
        }
    }

    /// Bounded, it forgets, and never says that more is held than is.
    #[test]
    fn bounded_it_never_credits_too_much(steps in vec(step(SIZES.len(), 3, 11, 24), 1..60), most in 1usize..30, room in 0usize..12) {
        let mut world = World::new(Config { max_blocks: most, max_orphan_bytes: 2000, ..config() }, SIZES, false, 1);
        for endpoint in 0..SIZES.len() {
            world.index.bound_predictions(world.id(endpoint), Some(room));
        }
        let mut matches = Matches::new();
        let prompts = prompts(&steps);
        for step in &steps {
            world.step(step);
            world.check(&prompts, &mut matches)?;
        }
        // Two groups of layers each.
        let stats = world.index.stats();
        prop_assert!(stats.placements as usize <= 2 * SIZES.len() * most);
    }
}

/// A chain loses its first blocks everywhere, comes back with another endpoint, and is still one chain.
#[test]
fn a_chain_that_was_torn_everywhere_is_found_again() {
    for (repeat, keeps_first) in [(1, false), (40, false), (40, true)] {
        let mut world = World::new(config(), ALIKE, true, repeat);
        let mut matches = Matches::new();
        let (left, right) = (vec![0, 0, 0, 0], vec![0, 0, 1, 1]);
        let store = |endpoint, prompt: &Prompt, to| Step::Store {
            endpoint,
            prompt: prompt.clone(),
            from: 0,
            to,
            tier: 0,
            group: 0,
        };
        let remove = |endpoint, prompt: &Prompt, from, to| Step::Remove {
            endpoint,
            prompt: prompt.clone(),
            from,
            to,
            tier: 0,
            group: 0,
            tail_first: true,
        };
        for step in [
            store(0, &left, 4),
            store(1, &right, 4),
            remove(1, &right, 0, 2),
            remove(0, &left, 1, 4),
            remove(0, &left, 0, usize::from(!keeps_first)),
            store(0, &right, 4),
            store(1, &right, 2),
        ] {
            world.step(&step);
            world
                .check(&[left.clone(), right.clone()], &mut matches)
                .unwrap();
        }
    }
}
