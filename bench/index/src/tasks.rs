//! What is measured.

use std::{
    hint::black_box,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::{
    Reader as _, Subject,
    measure::{Quantiles, Rate, allocated, timed},
    workload::{self, Block, UNKNOWN, chain},
};

/// Sizes of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Endpoints that store and remove; ragged lookups have 512 of their own.
    pub endpoints: usize,
    /// Blocks of a chain.
    pub chain: usize,
    /// Blocks of one event.
    pub event: usize,
    /// Placements to store; whole chains of it are.
    pub placements: usize,
    /// Lookups to time.
    pub lookups: usize,
}

/// What to do; everything starts with an empty index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "snake_case")]
pub enum Task {
    /// Chains that are all different are stored and removed again, endpoints in turn.
    Distinct(Shape),
    /// Conversations of four endpoints each, behind a head that all of them share; then all endpoints lose them.
    Shared(Shape),
    /// Running sequences that grow by a block an event, in turn.
    Decode(Shape),
    /// All endpoints hold the whole of one chain of 1024 blocks; lookups of 1000, also under 30,000 events a second.
    Hot(Shape),
    /// 512 endpoints hold 1 to 8192 blocks of one chain, by chance; lookups of all of it.
    Ragged(Shape),
    /// From the tokens of 1000 and 8000 blocks to a query.
    Prompt(Shape),
}

/// What was measured; what a task does not measure is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Placements that were stored.
    pub placements: u64,
    /// Blocks stored.
    pub store: Option<Rate>,
    /// Blocks removed.
    pub remove: Option<Rate>,
    /// Bytes that the allocator gave out for each placement, everything included.
    pub bytes_per_placement: Option<f64>,
    /// Lookups of what is held.
    pub hit: Option<Quantiles>,
    /// The same while events come.
    pub hit_under_events: Option<Quantiles>,
    /// Lookups of what nobody holds.
    pub miss: Option<Quantiles>,
    /// Making queries of 1000 blocks.
    pub prompt_1k: Option<Quantiles>,
    /// Making queries of 8000 blocks.
    pub prompt_8k: Option<Quantiles>,
    /// Events applied a second while lookups were timed.
    pub events_per_s: Option<f64>,
    /// Lookups whose answer was checked.
    pub checked: u64,
    /// Those of them whose answer was not that of the workload.
    pub wrong: u64,
}

/// Lookups while another thread sends events; see [`busy`].
pub type Busy = fn(&Shape) -> (Quantiles, f64);

/// Endpoints of ragged lookups, and the longest that one of them holds.
const RAGGED: usize = 512;
const LONGEST: usize = 8192;
/// Events a second while lookups are timed.
const EVENTS: f64 = 30_000.0;
/// Blocks of a lookup in a chain that all endpoints hold.
const ASKED: usize = 1000;

pub(crate) fn run<S: Subject>(task: &Task, busy: Option<Busy>) -> Report {
    match task {
        Task::Distinct(shape) => distinct::<S>(shape),
        Task::Shared(shape) => shared::<S>(shape),
        Task::Decode(shape) => decode::<S>(shape),
        Task::Hot(shape) => hot::<S>(shape, busy),
        Task::Ragged(shape) => ragged::<S>(shape),
        Task::Prompt(shape) => prompt::<S>(shape),
    }
}

/// An index that is filled, what that took, and what it holds.
struct Filled<S> {
    subject: S,
    report: Report,
    empty: Option<u64>,
}

impl<S: Subject> Filled<S> {
    fn new(endpoints: usize) -> Filled<S> {
        let empty = allocated();
        Filled {
            subject: S::new(endpoints),
            report: Report::default(),
            empty,
        }
    }

    /// Applies what has to be there before anything is timed.
    fn prepare(&mut self, placements: usize, mut events: Vec<S::Event>) {
        self.report.placements += placements as u64;
        self.subject.apply(&mut events);
    }

    fn store(&mut self, placements: usize, mut events: Vec<S::Event>) {
        self.report.placements += placements as u64;
        let apply = || self.subject.apply(&mut events);
        self.report.store = Some(Rate::of(placements, S::ON_THIS_THREAD, apply));
    }

    /// Weighs the index; only it may be left of what was allocated since it was made.
    fn weigh(&mut self) {
        let bytes = allocated()
            .zip(self.empty)
            .map(|(now, empty)| now.saturating_sub(empty));
        let each = |bytes: u64| bytes as f64 / self.report.placements.max(1) as f64;
        self.report.bytes_per_placement = bytes.map(each);
    }

    fn remove(&mut self, placements: usize, mut events: Vec<S::Event>) {
        let apply = || self.subject.apply(&mut events);
        self.report.remove = Some(Rate::of(placements, S::ON_THIS_THREAD, apply));
    }

    /// Compares the answer to a lookup with what the workload made.
    fn check(&mut self, blocks: &[Block], endpoints: usize, held: u64) {
        let query = S::query(blocks);
        let mut reader = self.subject.reader();
        let found = (reader.lookup(&query), reader.blocks(&query));
        self.report.checked += 1;
        self.report.wrong += u64::from(found != (endpoints, held));
    }

    fn time(&mut self, queries: &[S::Query], rounds: usize, together: u32) -> Quantiles {
        let mut reader = self.subject.reader();
        let mut queries = queries.iter().cycle();
        timed(rounds, together, || {
            if let Some(query) = queries.next() {
                black_box(reader.lookup(black_box(query)));
            }
        })
    }
}

fn distinct<S: Subject>(shape: &Shape) -> Report {
    let chains = (shape.placements / shape.chain).max(1);
    let owner = |number: usize| number % shape.endpoints;
    let mut filled = Filled::<S>::new(shape.endpoints);
    let mut events = Vec::new();
    for number in 0..chains {
        let blocks = chain(number, shape.chain);
        workload::store::<S>(shape, owner(number), None, &blocks, &mut events);
    }
    filled.store(chains * shape.chain, events);
    filled.weigh();
    let missed: Vec<S::Query> = (0..64)
        .map(|number| S::query(&chain(UNKNOWN + number, 1024)))
        .collect();
    filled.report.miss = Some(filled.time(&missed, shape.lookups / 64 + 1, 64));
    for number in (0..chains).step_by(chains / 16 + 1) {
        filled.check(&chain(number, shape.chain), 1, shape.chain as u64);
    }
    filled.check(&chain(UNKNOWN, 1024), 0, 0);
    let mut events = Vec::new();
    for number in 0..chains {
        let blocks = chain(number, shape.chain);
        workload::remove::<S>(shape, owner(number), &blocks, &mut events);
    }
    filled.remove(chains * shape.chain, events);
    for number in (0..chains).step_by(chains / 16 + 1) {
        filled.check(&chain(number, shape.chain), 0, 0);
    }
    filled.report
}

fn shared<S: Subject>(shape: &Shape) -> Report {
    /// Endpoints that hold one conversation.
    const HOLDERS: usize = 4;
    let holders = HOLDERS.min(shape.endpoints);
    let (head, tail) = (shape.chain / 4, shape.chain - shape.chain / 4);
    let conversations = (shape.placements / holders / tail.max(1)).max(1);
    let first = chain(0, head);
    let owner = |number: usize, holder: usize| (number * holders + holder) % shape.endpoints;
    let mut filled = Filled::<S>::new(shape.endpoints);
    let mut events = Vec::new();
    let mut placements = 0;
    for endpoint in 0..shape.endpoints {
        workload::store::<S>(shape, endpoint, None, &first, &mut events);
        placements += head;
    }
    for number in 0..conversations {
        let blocks = chain(1 + number, tail);
        for holder in 0..holders {
            let endpoint = owner(number, holder);
            workload::store::<S>(shape, endpoint, first.last(), &blocks, &mut events);
            placements += tail;
        }
    }
    filled.store(placements, events);
    filled.weigh();
    let whole = |number: usize| [first.as_slice(), &chain(1 + number, tail)].concat();
    for number in (0..conversations).step_by(conversations / 16 + 1) {
        let held = shape.endpoints * head + holders * tail;
        filled.check(&whole(number), shape.endpoints, held as u64);
    }
    let queries: Vec<S::Query> = (0..conversations.min(64))
        .map(|number| S::query(&whole(number)))
        .collect();
    filled.report.hit = Some(filled.time(&queries, shape.lookups, 1));
    let mut events = Vec::new();
    for number in 0..conversations {
        let blocks = chain(1 + number, tail);
        for holder in 0..holders {
            workload::remove::<S>(shape, owner(number, holder), &blocks, &mut events);
        }
    }
    filled.remove(conversations * holders * tail, events);
    let held = (shape.endpoints * head) as u64;
    filled.check(&whole(0), shape.endpoints, held);
    filled.report
}

fn decode<S: Subject>(shape: &Shape) -> Report {
    /// Sequences that an endpoint runs at once.
    const RUNNING: usize = 16;
    let prompt = shape.chain / 4;
    let sequences = shape.endpoints * RUNNING;
    let grown = (shape.placements / sequences).max(1);
    let chains: Vec<Vec<Block>> = (0..sequences)
        .map(|number| chain(number, prompt + grown))
        .collect();
    let owner = |number: usize| number % shape.endpoints;
    let mut filled = Filled::<S>::new(shape.endpoints);
    // The chains are not the index's, and the next ones are made beside them.
    let mut events = Vec::new();
    for (number, blocks) in chains.iter().enumerate() {
        let blocks = blocks.get(..prompt).unwrap_or_default();
        workload::store::<S>(shape, owner(number), None, blocks, &mut events);
    }
    filled.prepare(sequences * prompt, events);
    let mut events = Vec::new();
    for at in prompt..prompt + grown {
        for (number, blocks) in chains.iter().enumerate() {
            let parent = at.checked_sub(1).and_then(|before| blocks.get(before));
            let blocks = blocks.get(at..=at).unwrap_or_default();
            events.push(S::stored(owner(number), parent, blocks));
        }
    }
    filled.store(sequences * grown, events);
    filled.weigh();
    for blocks in chains.iter().step_by(sequences / 16 + 1) {
        filled.check(blocks, 1, (prompt + grown) as u64);
    }
    let mut events = Vec::new();
    for at in (prompt..prompt + grown).rev() {
        for (number, blocks) in chains.iter().enumerate() {
            let blocks = blocks.get(at..=at).unwrap_or_default();
            events.push(S::removed(owner(number), blocks));
        }
    }
    filled.remove(sequences * grown, events);
    for blocks in chains.iter().step_by(sequences / 16 + 1) {
        filled.check(blocks, 1, prompt as u64);
    }
    filled.report
}

/// Length of the chain that all endpoints hold.
const HOT: usize = 1024;

fn hot_index<S: Subject>(shape: &Shape) -> (Filled<S>, Vec<Block>) {
    let blocks = chain(0, HOT);
    let mut filled = Filled::<S>::new(shape.endpoints);
    let mut events = Vec::new();
    for endpoint in 0..shape.endpoints {
        workload::store::<S>(shape, endpoint, None, &blocks, &mut events);
    }
    filled.store(shape.endpoints * HOT, events);
    (filled, blocks)
}

fn hot<S: Subject>(shape: &Shape, busy: Option<Busy>) -> Report {
    let (mut filled, blocks) = hot_index::<S>(shape);
    filled.weigh();
    let asked = blocks.get(..ASKED).unwrap_or_default();
    filled.check(asked, shape.endpoints, (shape.endpoints * ASKED) as u64);
    filled.report.hit = Some(filled.time(&[S::query(asked)], shape.lookups, 1));
    if let Some(busy) = busy {
        let (quantiles, events) = busy(shape);
        filled.report.hit_under_events = Some(quantiles);
        filled.report.events_per_s = Some(events);
    }
    filled.report
}

/// Lookups of 1000 blocks that all endpoints hold, while another thread sends 30,000 events a second that take the
/// blocks after them away from one endpoint after the other and bring them back. The times and the events a second
/// that there were.
pub fn busy<S: Subject + Send>(shape: &Shape) -> (Quantiles, f64) {
    let (mut filled, blocks) = hot_index::<S>(shape);
    let (asked, tail) = blocks.split_at(ASKED);
    let mut reader = filled.subject.reader();
    let query = S::query(asked);
    let stop = AtomicBool::new(false);
    let subject = &mut filled.subject;
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let start = Instant::now();
            let mut sent = 0usize;
            while !stop.load(Ordering::Relaxed) {
                let due = start.elapsed().as_secs_f64() * EVENTS;
                while (sent as f64) < due && !stop.load(Ordering::Relaxed) {
                    let endpoint = sent / 2 % shape.endpoints;
                    let event = match sent % 2 {
                        0 => S::removed(endpoint, tail),
                        _ => S::stored(endpoint, asked.last(), tail),
                    };
                    subject.send(event);
                    sent += 1;
                }
                thread::park_timeout(Duration::from_micros(200));
            }
            sent as f64 / start.elapsed().as_secs_f64().max(1e-9)
        });
        // Long enough for thousands of events.
        let until = Instant::now() + Duration::from_millis(300);
        let mut quantiles = timed(shape.lookups, 1, || {
            black_box(reader.lookup(black_box(&query)));
        });
        while Instant::now() < until {
            quantiles = timed(shape.lookups, 1, || {
                black_box(reader.lookup(black_box(&query)));
            });
        }
        stop.store(true, Ordering::Relaxed);
        (quantiles, writer.join().unwrap_or(0.0))
    })
}

fn ragged<S: Subject>(shape: &Shape) -> Report {
    let blocks = chain(0, LONGEST);
    let mut filled = Filled::<S>::new(RAGGED);
    let mut events = Vec::new();
    let mut placements = 0;
    for endpoint in 0..RAGGED {
        let length = 1 + workload::chance(endpoint) as usize % LONGEST;
        let blocks = blocks.get(..length).unwrap_or_default();
        workload::store::<S>(shape, endpoint, None, blocks, &mut events);
        placements += length;
    }
    filled.store(placements, events);
    filled.weigh();
    filled.check(&blocks, RAGGED, placements as u64);
    filled.report.hit = Some(filled.time(&[S::query(&blocks)], shape.lookups / 8 + 1, 1));
    filled.report
}

fn prompt<S: Subject>(shape: &Shape) -> Report {
    let time = |blocks: usize| {
        let tokens = workload::tokens(blocks);
        timed(shape.lookups / 64 + 1, 1, || {
            black_box(S::hashed(black_box(&tokens)));
        })
    };
    Report {
        prompt_1k: Some(time(1000)),
        prompt_8k: Some(time(8000)),
        ..Report::default()
    }
}
