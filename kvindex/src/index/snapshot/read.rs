//! Reading. Every byte may be wrong.

use std::sync::atomic::Ordering;

use super::{EndpointSnapshot, NO_PARENT, SnapshotError};
use crate::{
    events::{EngineHash, Stored, Tier},
    index::{
        EndpointId, Index,
        lane::{Piece, PieceBlock},
        member::{Member, Told},
        store::MAX_RUN,
    },
};

struct Bytes<'a> {
    all: usize,
    rest: &'a [u8],
}

type Read<T> = Result<T, SnapshotError>;

impl Bytes<'_> {
    fn damaged(&self) -> SnapshotError {
        SnapshotError::Damaged(self.all - self.rest.len())
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

    /// A number of things of at least `size` bytes each that can still be there.
    fn count(&mut self, size: usize) -> Read<usize> {
        let count = self.u32()? as usize;
        match count.checked_mul(size) {
            Some(bytes) if bytes <= self.rest.len() => Ok(count),
            _ => Err(self.damaged()),
        }
    }
}

/// Whether bytes are the blocks of an endpoint: nothing that passes fails in [`Index::replace`].
///
/// # Errors
/// When they are damaged.
pub fn check(blocks: &[u8]) -> Result<(), SnapshotError> {
    each_group(blocks, |_| Ok(()))
}

/// A group of layers.
struct Group {
    number: u32,
    block_size: u32,
    pieces: Vec<Piece>,
}

fn each_group(blocks: &[u8], mut take: impl FnMut(Group) -> Read<()>) -> Read<()> {
    let mut bytes = Bytes {
        all: blocks.len(),
        rest: blocks,
    };
    for _ in 0..bytes.count(12)? {
        let group = Group {
            number: bytes.u32()?,
            block_size: bytes.u32()?,
            pieces: pieces(&mut bytes)?,
        };
        take(group)?;
    }
    match bytes.rest.is_empty() {
        true => Ok(()),
        false => Err(bytes.damaged()),
    }
}

impl Index {
    /// Takes over an endpoint from another index with the same keys, instead of what it told here; how many blocks it
    /// holds now, each tier counted. What picks promise stays.
    ///
    /// Whether what is told is still true is the caller's to know: see [`crate::cursor::Cursor::resume`].
    ///
    /// # Errors
    /// When the endpoint is not registered; then nothing has changed. When the blocks are damaged (see [`check`]) or have
    /// no room; then everything that it told is forgotten.
    pub fn replace(&self, id: EndpointId, from: &EndpointSnapshot) -> Result<u64, SnapshotError> {
        let member = self.members.get(id).ok_or(SnapshotError::Unknown)?;
        let restored = {
            let mut told = member.told.lock();
            if told.dead {
                return Err(SnapshotError::Unknown);
            }
            self.clear_told(&mut told);
            let restored = each_group(&from.blocks, |group| {
                self.restore(&member, &mut told, &group)
            });
            match restored {
                Ok(()) => {
                    told.sequence = Some(from.last);
                    told.published = from.published;
                    told.since = Some(from.since);
                }
                Err(_) => {
                    self.clear_told(&mut told);
                    told.sequence = None;
                    told.since = None;
                }
            }
            self.count_told(&member, &told);
            restored
        };
        self.make_room();
        restored.map(|()| member.placements.load(Ordering::Relaxed))
    }

    fn restore(&self, member: &Member, told: &mut Told, group: &Group) -> Read<()> {
        let like = Stored {
            group: group.number,
            block_size: group.block_size,
            // Another block size than before is a lane of its own, as with an event that has tokens.
            tokens: vec![0],
            ..Stored::default()
        };
        let ground = self.ground(member);
        let lane = self.lane(member, told, &like);
        let lane = lane.filter(|lane| lane.whole());
        let lane = lane.ok_or(SnapshotError::Full)?;
        lane.restore(ground, &group.pieces);
        lane.evict(ground, self.config.max_blocks);
        Ok(())
    }
}

fn pieces(bytes: &mut Bytes<'_>) -> Read<Vec<Piece>> {
    let count = bytes.count(14)?;
    let mut pieces: Vec<Piece> = Vec::with_capacity(count.min(4096));
    for _ in 0..count {
        let depth = bytes.u32()?;
        let parent = bytes.u32()?;
        let keys = usize::from(bytes.u16()?);
        if keys == 0 || keys > MAX_RUN {
            return Err(bytes.damaged());
        }
        let keys: Vec<u64> = (0..keys).map(|_| bytes.u64()).collect::<Read<_>>()?;
        let parent = match parent {
            NO_PARENT if depth == 0 => None,
            parent => {
                let at = pieces.get(parent as usize).and_then(|before: &Piece| {
                    let at = depth.checked_sub(before.depth)?.checked_sub(1)?;
                    ((at as usize) < before.keys.len()).then_some(at as u16)
                });
                Some((parent as usize, at.ok_or_else(|| bytes.damaged())?))
            }
        };
        let blocks: Vec<PieceBlock> = (0..bytes.count(15)?)
            .map(|_| block(bytes, keys.len()))
            .collect::<Read<_>>()?;
        pieces.push(Piece {
            depth,
            parent,
            keys,
            blocks,
        });
    }
    Ok(pieces)
}

fn block(bytes: &mut Bytes<'_>, keys: usize) -> Read<PieceBlock> {
    let at = bytes.u16()?;
    let [tier] = bytes.take()?;
    let copies = bytes.u32()?;
    let hash = EngineHash(bytes.u64()?);
    let tier = Tier::ALL.get(usize::from(tier)).copied();
    match tier {
        Some(tier) if usize::from(at) < keys && copies > 0 => Ok(PieceBlock {
            at,
            tier,
            copies,
            hash,
        }),
        _ => Err(bytes.damaged()),
    }
}
