//! Messages of engines, whole and damaged, through the decoder, the cursor and the index.
//!
//! Every file of the corpus is sent as it is; then messages of it are damaged by chance, `WICKETGATE_FUZZ_MESSAGES` of
//! them, 20,000 unless said otherwise. Whatever comes: nothing panics, nothing takes more memory than its bytes allow,
//! the counts of the index add up, and a whole message after it is applied. The number of a failed case is printed; each
//! has a random generator of its own.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test that panics has failed, which is its job"
)]

mod mutate;
mod shapes;

use std::path::PathBuf;

use fastrand::Rng;
use wicketgate_kvindex::{
    cursor::{Cursor, Fate},
    events::{
        Batch, Dialect, EngineHash, Event, Extra, Limits, Stored, Tier, decode_batch, parse_frames,
    },
    index::{Applied, Config, EndpointId, Index, Matches},
    keys::{KeySpace, Scope},
};

const ENGINE: EndpointId = EndpointId {
    incarnation: 1,
    rank: 0,
};

/// Small, so that bounds are reached.
fn config() -> Config {
    Config {
        keys: KeySpace::new(shapes::SIZE as u32, 7),
        max_bytes: 1 << 20,
        max_blocks: 400,
        max_orphan_bytes: 16 << 10,
    }
}

/// An engine's side of a picker.
struct Listener {
    index: Index,
    cursor: Cursor,
    dialect: Dialect,
    matches: Matches,
}

/// What became of a message.
#[derive(Debug, PartialEq)]
enum Came {
    Unread,
    Dropped,
    Applied(Applied),
}

impl Listener {
    fn new(dialect: Dialect) -> Listener {
        let index = Index::new(config());
        assert!(index.register(ENGINE, "model"));
        Listener {
            index,
            cursor: Cursor::new(false),
            dialect,
            matches: Matches::new(),
        }
    }

    fn message(&mut self, parts: &[Vec<u8>]) -> Came {
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let Ok(frame) = parse_frames(&parts) else {
            return self.lost();
        };
        let Ok(batch) = decode_batch(frame.payload, self.dialect, Limits::default()) else {
            return self.lost();
        };
        let (taken, sent) = (weight(&batch), frame.payload.len());
        assert!(
            taken <= MOST_WEIGHT * sent + (1 << 16),
            "{sent} bytes became {taken}"
        );
        let verdict = self.cursor.live(frame.sequence, Some(batch.published));
        assert_eq!(verdict.ask_replay, None);
        if verdict.clear {
            assert!(self.index.clear(ENGINE));
        }
        match verdict.message {
            Fate::Apply => Came::Applied(self.apply(&batch)),
            Fate::Drop => Came::Dropped,
            Fate::Hold => unreachable!("nothing is held without a replay"),
        }
    }

    fn lost(&mut self) -> Came {
        assert!(self.cursor.lost().clear);
        assert!(self.index.clear(ENGINE));
        Came::Unread
    }

    fn apply(&mut self, batch: &Batch) -> Applied {
        let applied = self.index.apply(ENGINE, batch).unwrap();
        let (mut stored, mut removed, mut cleared) = (0, 0, 0);
        for event in &batch.events {
            match event {
                Event::Stored(event) => stored += event.hashes.len() as u64,
                Event::Removed(event) => removed += event.hashes.len() as u64,
                Event::Cleared => cleared += 1,
            }
        }
        assert_eq!(applied.stored + applied.unsupported, stored);
        // Of a group that never stored anything all are unknown, and only that.
        assert!(applied.removed <= removed && removed <= applied.removed + applied.unknown);
        assert_eq!(applied.cleared, cleared);
        let (stats, config) = (self.index.stats(), config());
        assert!(stats.bytes <= config.max_bytes, "{stats:?}");
        for event in &batch.events {
            if let Event::Stored(stored) = event {
                let copies = self.index.copies(ENGINE, stored.group);
                assert!(copies.len() <= config.max_blocks);
                self.ask(stored);
            }
        }
        applied
    }

    /// Nobody is credited with more than was asked for.
    fn ask(&mut self, stored: &Stored) {
        let mut keys = Vec::new();
        let scope = Scope {
            model: "model",
            domain: stored.salt.as_deref(),
        };
        let space = config().keys;
        space.prompt(scope, &stored.tokens, &[], &mut keys);
        self.index.lookup(&keys, &mut self.matches);
        for found in self.matches.iter() {
            assert_eq!(found.endpoint, ENGINE);
            assert!(found.blocks.is_sorted() && found.total() as usize <= keys.len());
        }
    }

    /// A whole message gets through, if not at once then when those after it show that the engine began anew.
    fn still_listens(&mut self, round: u64) {
        for sequence in 0..3 {
            let (parts, names) = shapes::probe(sequence, round * 3 + sequence);
            let Came::Applied(applied) = self.message(&parts) else {
                continue;
            };
            assert_eq!((applied.stored, applied.orphaned), (3, 0));
            let copies = self.index.copies(ENGINE, 0);
            for name in names {
                let held = |(hash, tier, _): &(EngineHash, Tier, u32)| {
                    (*hash, *tier) == (EngineHash(name), Tier::Device)
                };
                assert!(copies.iter().any(held));
            }
            return;
        }
        unreachable!("three whole messages in a row and none was applied");
    }

    /// What was taken is given back.
    fn ends(self) {
        assert!(self.index.clear(ENGINE));
        let stats = self.index.stats();
        assert_eq!(
            (stats.placements, stats.blocks, stats.runs, stats.orphans),
            (0, 0, 0, 0)
        );
    }
}

/// Bytes of a batch for each byte of its message, at most.
const MOST_WEIGHT: usize = 64;

/// Bytes that a batch takes, about.
fn weight(batch: &Batch) -> usize {
    let extra = |extra: &Extra| {
        size_of::<Extra>()
            + match extra {
                Extra::Text(text) => text.capacity(),
                Extra::Media { id, .. } => id.capacity(),
                Extra::Opaque(bytes) => bytes.capacity(),
            }
    };
    let event = |event: &Event| match event {
        Event::Stored(stored) => {
            let extras = stored.extras.iter().map(|block| {
                size_of_val(block)
                    + block.extras.iter().map(extra).sum::<usize>()
                    + (block.extras.capacity() - block.extras.len()) * size_of::<Extra>()
            });
            stored.hashes.capacity() * 8 + stored.tokens.capacity() * 4 + extras.sum::<usize>()
        }
        Event::Removed(removed) => removed.hashes.capacity() * 8,
        Event::Cleared => 0,
    };
    batch.events.capacity() * size_of::<Event>() + batch.events.iter().map(event).sum::<usize>()
}

fn dialect(name: &str) -> Dialect {
    match name.starts_with("sglang") {
        true => Dialect::Sglang,
        false => Dialect::Vllm,
    }
}

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/corpus"))
}

/// The files as they lie there: name and messages.
fn files() -> Vec<(String, Vec<Vec<Vec<u8>>>)> {
    let mut files: Vec<_> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, shapes::read(&std::fs::read(path).unwrap()))
        })
        .collect();
    files.sort();
    files
}

/// `WICKETGATE_WRITE_CORPUS=1` writes it.
#[test]
fn the_corpus_is_what_the_shapes_say() {
    let mut shapes = shapes::corpus();
    shapes.sort();
    if std::env::var_os("WICKETGATE_WRITE_CORPUS").is_some() {
        for (name, messages) in &shapes {
            let path = folder().join(format!("{name}.bin"));
            std::fs::write(path, shapes::write(messages)).unwrap();
        }
    }
    // Files that somebody added, after a failure for example, are welcome.
    let files = files();
    for shape in &shapes {
        assert!(files.contains(shape), "{}", shape.0);
    }
}

#[test]
fn every_version_of_every_engine_is_understood() {
    let mut engines = 0;
    for (name, messages) in files() {
        if name.starts_with("damaged") {
            continue;
        }
        engines += 1;
        let mut listener = Listener::new(dialect(&name));
        for message in &messages {
            let came = listener.message(message);
            let Came::Applied(applied) = came else {
                unreachable!("{name}: {came:?}");
            };
            let Applied {
                unknown,
                unsupported,
                orphaned,
                mismatched,
                ..
            } = applied;
            let faults = (unknown, unsupported, orphaned, mismatched);
            assert_eq!(faults, (0, 0, 0, 0), "{name}");
        }
        let left = listener.index.stats().placements;
        assert_eq!(left, shapes::LEFT as u64, "{name}");
        listener.ends();
    }
    assert!(engines >= 15);
}

#[test]
fn damaged_messages_do_no_harm() {
    let mut round = 0;
    let mut damaged = 0;
    for (name, messages) in files() {
        if !name.starts_with("damaged") {
            continue;
        }
        damaged += 1;
        for dialect in [Dialect::Vllm, Dialect::Sglang] {
            let mut listener = Listener::new(dialect);
            listener.still_listens(round);
            for message in &messages {
                listener.message(message);
            }
            listener.still_listens(round + 1);
            listener.ends();
            round += 2;
        }
    }
    assert!(damaged >= 20);
}

/// Tells which case failed.
struct Case(u64);

impl Drop for Case {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("case {}", self.0);
        }
    }
}

#[test]
fn messages_damaged_by_chance_do_no_harm() {
    let cases = match std::env::var("WICKETGATE_FUZZ_MESSAGES") {
        Ok(count) => count.parse().unwrap(),
        Err(_) => 20_000,
    };
    let messages: Vec<(Dialect, Vec<Vec<u8>>)> = files()
        .into_iter()
        .flat_map(|(name, messages)| {
            let dialect = dialect(&name);
            messages.into_iter().map(move |message| (dialect, message))
        })
        .collect();
    let payloads: Vec<Vec<u8>> = messages
        .iter()
        .filter_map(|(_, parts)| parts.last().cloned())
        .collect();
    let mut listeners = [Dialect::Vllm, Dialect::Sglang].map(Listener::new);
    let (mut applied, mut unread) = (0, 0);
    for number in 0..cases {
        let _case = Case(number);
        let mut random = Rng::with_seed(number);
        let (dialect, message) = &messages[random.usize(..messages.len())];
        let message = mutate::damaged(&mut random, message, &payloads);
        let listener = &mut listeners[usize::from(*dialect == Dialect::Sglang)];
        match listener.message(&message) {
            Came::Applied(_) => applied += 1,
            Came::Unread => unread += 1,
            Came::Dropped => {}
        }
        if random.u8(..) < 32 {
            listener.still_listens(number);
        }
    }
    // Both kinds are many: else the damage is too small, or too great.
    assert!(
        applied > cases / 20 && unread > cases / 20,
        "{applied} {unread}"
    );
    listeners.into_iter().for_each(Listener::ends);
}
