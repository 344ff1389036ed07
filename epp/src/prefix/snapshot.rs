//! What the index knows of engines as bytes, from one replica to another.
//!
//! ```text
//! "WGKVSNAP"  version u16  block u32  probe u64                           all numbers little-endian
//! each source:  1 u8  head length u32  head  blocks  checksum u64 (XXH3 of head and blocks)
//!   head:  pool, endpoint, address, engine, model: each length u16 and text
//!          rank u32  last u64  published f64  since u64  heard u8  blocks length u64
//! 0 u8  sources u32                                                       and nothing more
//! ```
//!
//! The probe is the key of a fixed prompt: it differs when keys are made in another way or from another seed, and tells
//! nobody the seed. Whoever has a snapshot can tell which of some prompts are cached: it is as private as prompts are.

use std::hash::Hasher as _;

use thiserror::Error;
use wicketgate_kvindex::{
    index::{EndpointSnapshot, SNAPSHOT_VERSION, SnapshotError, check_snapshot},
    keys::{KeySpace, Scope},
};
use wicketgate_wire::EngineKind;
use xxhash_rust::xxh3::Xxh3;

const MAGIC: &[u8; 8] = b"WGKVSNAP";
/// The two bytes count together: either a change here or one of what an endpoint's blocks look like.
const VERSION: u16 = (1 << 8) | SNAPSHOT_VERSION;
const SOURCE: u8 = 1;
const END: u8 = 0;
/// More sources than any index has lanes.
const MOST_SOURCES: usize = 1 << 16;

/// Why a snapshot is refused. Nothing of it is taken in then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SnapshotFault {
    /// Something else.
    #[error("this is no snapshot of a prefix index")]
    Magic,
    /// Written by another version.
    #[error(
        "a snapshot of format {theirs:#06x}; this version reads {VERSION:#06x}: use replicas of one version"
    )]
    Version {
        /// Its format.
        theirs: u16,
    },
    /// Its blocks have another size.
    #[error(
        "its blocks have {theirs} tokens, and here they have {ours}: give replicas the same `kvIndex.blockSize`"
    )]
    Block {
        /// Tokens there.
        theirs: u32,
        /// Tokens here.
        ours: u32,
    },
    /// Its keys are made from another seed.
    #[error("its keys are of another seed: give replicas the same `kvIndex.seed`")]
    Seed,
    /// It ends too early, contradicts itself or was changed on its way.
    #[error("cut short or damaged at byte {at}")]
    Damaged {
        /// Where that shows.
        at: usize,
    },
}

impl SnapshotFault {
    /// A word for callers that are programs.
    pub fn code(&self) -> &'static str {
        match self {
            SnapshotFault::Magic => "no_snapshot",
            SnapshotFault::Version { .. } => "other_version",
            SnapshotFault::Block { .. } => "other_block_size",
            SnapshotFault::Seed => "other_seed",
            SnapshotFault::Damaged { .. } => "damaged",
        }
    }
}

/// Who an engine is to every replica, and what one of them heard of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Told<'a> {
    pub(super) pool: &'a str,
    pub(super) endpoint: &'a str,
    pub(super) address: &'a str,
    pub(super) engine: EngineKind,
    pub(super) model: &'a str,
    pub(super) rank: u32,
    pub(super) last: u64,
    pub(super) published: f64,
    pub(super) since: u64,
    /// Whoever wrote it hears the engine now.
    pub(super) heard: bool,
    pub(super) blocks: &'a [u8],
}

impl Told<'_> {
    pub(super) fn snapshot(&self) -> EndpointSnapshot {
        EndpointSnapshot {
            last: self.last,
            published: self.published,
            since: self.since,
            blocks: self.blocks.to_vec(),
        }
    }
}

fn probe(keys: &KeySpace) -> u64 {
    let scope = Scope {
        model: "wicketgate",
        domain: Some("probe"),
    };
    let tokens: Vec<u32> = (0..keys.block()).collect();
    keys.next(keys.root(scope), &tokens).0
}

/// What a snapshot begins with.
pub(super) fn head(keys: &KeySpace) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(VERSION.to_le_bytes());
    out.extend(keys.block().to_le_bytes());
    out.extend(probe(keys).to_le_bytes());
    out
}

/// What stands before the blocks of a source, and after them; `None` when a name of it is longer than anybody's.
pub(super) fn source(told: &Told<'_>) -> Option<(Vec<u8>, [u8; 8])> {
    let mut head = Vec::new();
    for text in [
        told.pool,
        told.endpoint,
        told.address,
        engine(told.engine),
        told.model,
    ] {
        head.extend(u16::try_from(text.len()).ok()?.to_le_bytes());
        head.extend(text.as_bytes());
    }
    head.extend(told.rank.to_le_bytes());
    head.extend(told.last.to_le_bytes());
    head.extend(told.published.to_le_bytes());
    head.extend(told.since.to_le_bytes());
    head.push(u8::from(told.heard));
    head.extend((told.blocks.len() as u64).to_le_bytes());
    let mut before = vec![SOURCE];
    before.extend(u32::try_from(head.len()).ok()?.to_le_bytes());
    before.extend(&head);
    Some((before, checksum(&head, told.blocks).to_le_bytes()))
}

/// What a snapshot of so many sources ends with.
pub(super) fn end(sources: u32) -> Vec<u8> {
    let mut out = vec![END];
    out.extend(sources.to_le_bytes());
    out
}

fn checksum(head: &[u8], blocks: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.write(head);
    hash.write(blocks);
    hash.finish()
}

fn engine(kind: EngineKind) -> &'static str {
    match kind {
        EngineKind::Vllm => "vllm",
        EngineKind::Sglang => "sglang",
    }
}

/// Reads and checks the whole of a snapshot with these keys, each source's blocks too.
///
/// # Errors
/// Why it is refused.
pub(super) fn parse<'a>(keys: &KeySpace, bytes: &'a [u8]) -> Result<Vec<Told<'a>>, SnapshotFault> {
    let mut reader = Reader {
        all: bytes.len(),
        rest: bytes,
    };
    if reader.take::<8>().ok().as_ref() != Some(MAGIC) {
        return Err(SnapshotFault::Magic);
    }
    let theirs = reader.u16()?;
    if theirs != VERSION {
        return Err(SnapshotFault::Version { theirs });
    }
    let (theirs, ours) = (reader.u32()?, keys.block());
    if theirs != ours {
        return Err(SnapshotFault::Block { theirs, ours });
    }
    if reader.u64()? != probe(keys) {
        return Err(SnapshotFault::Seed);
    }
    let mut all = Vec::new();
    loop {
        match reader.take()? {
            [SOURCE] if all.len() < MOST_SOURCES => all.push(reader.source()?),
            [END] => break,
            _ => return Err(reader.damaged()),
        }
    }
    let count = reader.u32()?;
    if count as usize != all.len() || !reader.rest.is_empty() {
        return Err(reader.damaged());
    }
    Ok(all)
}

struct Reader<'a> {
    all: usize,
    rest: &'a [u8],
}

type Read<T> = Result<T, SnapshotFault>;

impl<'a> Reader<'a> {
    fn damaged(&self) -> SnapshotFault {
        SnapshotFault::Damaged {
            at: self.all - self.rest.len(),
        }
    }

    fn take<const N: usize>(&mut self) -> Read<[u8; N]> {
        let Some((head, tail)) = self.rest.split_first_chunk::<N>() else {
            return Err(self.damaged());
        };
        self.rest = tail;
        Ok(*head)
    }

    fn u16(&mut self) -> Read<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Read<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Read<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn bytes(&mut self, count: u64) -> Read<&'a [u8]> {
        let count = usize::try_from(count).ok();
        let split = count.and_then(|count| self.rest.split_at_checked(count));
        let (head, tail) = split.ok_or_else(|| self.damaged())?;
        self.rest = tail;
        Ok(head)
    }

    fn text(&mut self) -> Read<&'a str> {
        let length = self.u16()?;
        let bytes = self.bytes(u64::from(length))?;
        std::str::from_utf8(bytes).map_err(|_| self.damaged())
    }

    fn source(&mut self) -> Read<Told<'a>> {
        let length = self.u32()?;
        let head = self.bytes(u64::from(length))?;
        // Positions in messages are those in the whole.
        let mut inner = Reader {
            all: self.all - self.rest.len(),
            rest: head,
        };
        let told = Told {
            pool: inner.text()?,
            endpoint: inner.text()?,
            address: inner.text()?,
            engine: match inner.text()? {
                "vllm" => EngineKind::Vllm,
                "sglang" => EngineKind::Sglang,
                _ => return Err(inner.damaged()),
            },
            model: inner.text()?,
            rank: inner.u32()?,
            last: inner.u64()?,
            published: f64::from_bits(inner.u64()?),
            since: inner.u64()?,
            heard: match inner.take()? {
                [0] => false,
                [1] => true,
                _ => return Err(inner.damaged()),
            },
            blocks: {
                let length = inner.u64()?;
                self.bytes(length)?
            },
        };
        if !inner.rest.is_empty() {
            return Err(inner.damaged());
        }
        let begin = self.all - self.rest.len() - told.blocks.len();
        if self.u64()? != checksum(head, told.blocks) {
            return Err(self.damaged());
        }
        match check_snapshot(told.blocks) {
            Ok(()) => Ok(told),
            Err(SnapshotError::Damaged(at)) => Err(SnapshotFault::Damaged { at: begin + at }),
            Err(SnapshotError::Unknown | SnapshotError::Full) => Err(self.damaged()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};
    use wicketgate_kvindex::{
        events::{Batch, EngineHash, Event, Stored},
        index::{Config, EndpointId, Index},
    };

    use super::*;

    fn keys() -> KeySpace {
        KeySpace::new(4, 9)
    }

    /// An endpoint of some blocks.
    fn blocks() -> EndpointSnapshot {
        let index = Index::new(Config {
            keys: keys(),
            ..Config::default()
        });
        let id = EndpointId::default();
        index.register(id, "m");
        let stored = Stored {
            hashes: (1..6).map(EngineHash).collect(),
            tokens: (0..20).collect(),
            block_size: 4,
            ..Stored::default()
        };
        let batch = Batch {
            events: vec![Event::Stored(stored)],
            sequence: Some(41),
            published: 12.5,
            ..Batch::default()
        };
        index.apply(id, &batch).unwrap();
        index.export(id).unwrap()
    }

    fn told(blocks: &EndpointSnapshot, rank: u32) -> Told<'_> {
        Told {
            pool: "main",
            endpoint: "e0",
            address: "10.0.0.1:8000",
            engine: EngineKind::Sglang,
            model: "m",
            rank,
            last: blocks.last,
            published: blocks.published,
            since: blocks.since,
            heard: true,
            blocks: &blocks.blocks,
        }
    }

    fn write(all: &[Told<'_>]) -> Vec<u8> {
        let mut out = head(&keys());
        for told in all {
            let (before, after) = source(told).unwrap();
            out.extend(before);
            out.extend(told.blocks);
            out.extend(after);
        }
        out.extend(end(all.len() as u32));
        out
    }

    #[test]
    fn what_is_written_is_read() {
        let blocks = blocks();
        let all = [told(&blocks, 0), told(&blocks, 1)];
        let bytes = write(&all);
        assert_eq!(parse(&keys(), &bytes), Ok(all.to_vec()));
        assert_eq!(all[0].snapshot(), blocks);
        assert_eq!(parse(&keys(), &write(&[])), Ok(Vec::new()));
    }

    #[test]
    fn what_is_foreign_is_said_to_be() {
        let bytes = write(&[]);
        let with = |block, seed| parse(&KeySpace::new(block, seed), &bytes);
        let (theirs, ours) = (4, 8);
        assert_eq!(with(8, 9), Err(SnapshotFault::Block { theirs, ours }));
        assert_eq!(with(4, 8), Err(SnapshotFault::Seed));
        let mut old = bytes.clone();
        old[8] -= 1;
        let theirs = VERSION - 1;
        assert_eq!(parse(&keys(), &old), Err(SnapshotFault::Version { theirs }));
        for other in [&b""[..], b"{}", b"WGKVINDX\x01\x00"] {
            assert_eq!(parse(&keys(), other), Err(SnapshotFault::Magic));
        }
        let said = SnapshotFault::Seed.to_string();
        assert!(said.contains("kvIndex.seed"), "{said}");
    }

    proptest! {
        /// Wherever it is cut or changed, it is refused as a whole.
        #[test]
        fn a_changed_or_cut_snapshot_is_refused(at in any::<prop::sample::Index>(), by in 1u8.., cut in any::<bool>()) {
            let blocks = blocks();
            let mut bytes = write(&[told(&blocks, 0), told(&blocks, 3)]);
            let at = at.index(bytes.len());
            if cut {
                bytes.truncate(at);
            } else {
                bytes[at] ^= by;
            }
            prop_assert!(parse(&keys(), &bytes).is_err(), "at {}", at);
        }

        /// Any bytes at all are read without harm.
        #[test]
        fn anything_is_read_without_harm(tail in vec(any::<u8>(), 0..200), headed in any::<bool>()) {
            let mut bytes = if headed { head(&keys()) } else { Vec::new() };
            bytes.extend(tail);
            let _ = parse(&keys(), &bytes);
        }
    }
}
