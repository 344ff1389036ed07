//! Reading. Every byte may be wrong.

use std::sync::atomic::Ordering;

use super::{Imported, MAGIC, NO_PARENT, SnapshotError, VERSION};
use crate::{
    events::{EngineHash, Stored, Tier},
    index::{
        EndpointId, Index,
        lane::{Piece, PieceBlock},
        member::Member,
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

impl Index {
    /// Takes in what another index wrote, for the endpoints that are registered here and have told nothing yet.
    ///
    /// # Errors
    /// When the bytes are not a snapshot of our version and kind of keys, or are damaged.
    pub fn import(&self, bytes: &[u8]) -> Result<Imported, SnapshotError> {
        let mut bytes = Bytes {
            all: bytes.len(),
            rest: bytes,
        };
        if bytes.take().ok().as_ref() != Some(MAGIC) {
            return Err(SnapshotError::Magic);
        }
        let version = bytes.u16()?;
        if version != VERSION {
            return Err(SnapshotError::Version(version));
        }
        let (block, seed) = (bytes.u32()?, bytes.u64()?);
        if (block, seed) != (self.config.keys.block(), self.config.keys.seed()) {
            return Err(SnapshotError::Keys { block, seed });
        }
        let mut imported = Imported::default();
        for _ in 0..bytes.count(24)? {
            self.endpoint(&mut bytes, &mut imported)?;
        }
        if !bytes.rest.is_empty() {
            return Err(bytes.damaged());
        }
        Ok(imported)
    }

    fn endpoint(&self, bytes: &mut Bytes<'_>, imported: &mut Imported) -> Read<()> {
        let id = EndpointId {
            incarnation: bytes.u64()?,
            rank: bytes.u32()?,
        };
        let last = bytes.u64()?.checked_sub(1);
        let member = self.members.get(id).filter(|member| {
            let told = member.told.lock();
            !told.dead && told.lanes.is_empty() && told.sequence.is_none()
        });
        for _ in 0..bytes.count(12)? {
            let (group, block_size) = (bytes.u32()?, bytes.u32()?);
            let pieces = pieces(bytes)?;
            if let Some(member) = &member {
                self.restore(member, group, block_size, &pieces);
            }
        }
        match member {
            Some(member) => {
                member.told.lock().sequence = last;
                self.make_room();
                imported.placements += member.placements.load(Ordering::Relaxed);
                imported.endpoints.push((id, last));
            }
            None => imported.skipped += 1,
        }
        Ok(())
    }

    fn restore(&self, member: &Member, group: u32, block_size: u32, pieces: &[Piece]) {
        let mut told = member.told.lock();
        let like = Stored {
            group,
            block_size,
            ..Stored::default()
        };
        let ground = self.ground(member);
        if let Some(lane) = self
            .lane(member, &mut told, &like)
            .filter(|lane| lane.whole())
        {
            lane.restore(ground, pieces);
            lane.evict(ground, self.config.max_blocks);
        }
        self.count_told(member, &told);
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
