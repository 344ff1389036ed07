//! The fields of events.

use super::{Left, RESERVED, Read, Room, Tag};
use crate::events::{
    BlockExtras, EngineHash, Event, Extra, GroupKind, Removed, Stored, Tier,
    msgpack::{Cursor, Head},
};

pub(super) const VLLM_STORED: [Field; 11] = [
    Field::Hashes,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    Field::AdapterId,
    Field::Medium,
    Field::Adapter,
    Field::Extras,
    Field::Group,
    Field::Kind,
    Field::Ignored,
];
pub(super) const SGLANG_STORED: [Field; 9] = [
    Field::Hashes,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    Field::AdapterId,
    Field::Medium,
    Field::Salt,
    Field::Ignored,
    Field::Adapter,
];
pub(super) const REMOVED: [Field; 3] = [Field::Hashes, Field::Medium, Field::Group];

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    AdapterId,
    Adapter,
    Salt,
    Medium,
    Extras,
    Group,
    Kind,
    /// Known, and of no use here.
    Ignored,
}

impl Field {
    pub(super) fn named(name: &[u8]) -> Option<Field> {
        Some(match name {
            b"block_hashes" => Field::Hashes,
            b"parent_block_hash" => Field::Parent,
            b"token_ids" => Field::Tokens,
            b"block_size" => Field::BlockSize,
            b"lora_id" => Field::AdapterId,
            b"lora_name" => Field::Adapter,
            b"cache_salt" => Field::Salt,
            b"medium" => Field::Medium,
            b"extra_keys" => Field::Extras,
            b"group_idx" => Field::Group,
            b"kv_cache_spec_kind" => Field::Kind,
            b"type"
            | b"kv_cache_spec_sliding_window"
            | b"locality"
            | b"ownership"
            | b"session_id"
            | b"lookahead_token_ids" => Field::Ignored,
            _ => return None,
        })
    }
}

/// Fields of either event, as they come.
#[derive(Default)]
pub(super) struct Fields {
    stored: Stored,
    hashes: bool,
    sized: bool,
}

impl Fields {
    pub(super) fn read(
        &mut self,
        field: Field,
        at: &mut Cursor<'_>,
        (depth, room): Room<'_>,
    ) -> Read<()> {
        let stored = &mut self.stored;
        match field {
            Field::Hashes => {
                self.hashes = true;
                stored.hashes = hashes(at)?;
            }
            Field::Parent => stored.parent = hash(at.head()?)?,
            Field::Tokens => stored.tokens = tokens(at)?,
            Field::BlockSize => {
                self.sized = true;
                stored.block_size = unsigned(at.head()?)?.unwrap_or(0);
            }
            Field::AdapterId => stored.adapter_id = integer(at.head()?)?,
            Field::Adapter => stored.adapter = text(at.head()?)?,
            Field::Salt => stored.salt = text(at.head()?)?,
            Field::Medium => {
                stored.tier = Tier::of_medium(&text(at.head()?)?.unwrap_or_default());
            }
            Field::Extras => stored.extras = extras(at, (depth, room))?,
            Field::Group => stored.group = unsigned(at.head()?)?.unwrap_or(0),
            Field::Kind => stored.kind = kind(at.head()?)?,
            Field::Ignored => at.skip(depth)?,
        }
        Ok(())
    }

    pub(super) fn finish(self, tag: Tag) -> Read<Event> {
        let stored = self.stored;
        match tag {
            Tag::Cleared => Ok(Event::Cleared),
            Tag::Removed if self.hashes => Ok(Event::Removed(Removed {
                hashes: stored.hashes,
                tier: stored.tier,
                group: stored.group,
            })),
            Tag::Stored if self.hashes && self.sized && dense(&stored) => Ok(Event::Stored(stored)),
            _ => Err(Left::Malformed),
        }
    }
}

/// Whether each block has its tokens, or none has any.
fn dense(stored: &Stored) -> bool {
    let size = stored.block_size as usize;
    stored.tokens.is_empty()
        || (size > 0 && stored.hashes.len().checked_mul(size) == Some(stored.tokens.len()))
}

fn hashes(at: &mut Cursor<'_>) -> Read<Vec<EngineHash>> {
    let Head::Array(count) = at.head()? else {
        return Err(Left::Malformed);
    };
    let mut out = Vec::with_capacity(count.min(RESERVED));
    for _ in 0..count {
        out.push(hash(at.head()?)?.ok_or(Left::Malformed)?);
    }
    Ok(out)
}

fn hash(head: Head<'_>) -> Read<Option<EngineHash>> {
    Ok(Some(EngineHash(match head {
        Head::Nil => return Ok(None),
        Head::Unsigned(value) => value,
        Head::Negative(value) => u64::from_be_bytes(value.to_be_bytes()),
        Head::Bytes(bytes) => low_bytes(bytes).ok_or(Left::Malformed)?,
        _ => return Err(Left::Malformed),
    })))
}

/// The last eight bytes as a big-endian number; shorter strings are padded on the left.
fn low_bytes(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() {
        return None;
    }
    let tail = bytes.iter().skip(bytes.len().saturating_sub(8));
    Some(tail.fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

fn tokens(at: &mut Cursor<'_>) -> Read<Vec<u32>> {
    let count = match at.head()? {
        Head::Array(count) => count,
        Head::Nil => return Ok(Vec::new()),
        _ => return Err(Left::Malformed),
    };
    let mut out = Vec::with_capacity(count.min(RESERVED));
    for _ in 0..count {
        let Head::Unsigned(token) = at.head()? else {
            return Err(Left::Malformed);
        };
        out.push(u32::try_from(token).map_err(|_| Left::Malformed)?);
    }
    Ok(out)
}

fn unsigned(head: Head<'_>) -> Read<Option<u32>> {
    match head {
        Head::Nil => Ok(None),
        Head::Unsigned(value) => u32::try_from(value).map(Some).map_err(|_| Left::Malformed),
        _ => Err(Left::Malformed),
    }
}

fn integer(head: Head<'_>) -> Read<Option<i64>> {
    match head {
        Head::Nil => Ok(None),
        Head::Negative(value) => Ok(Some(value)),
        Head::Unsigned(value) => i64::try_from(value).map(Some).map_err(|_| Left::Malformed),
        _ => Err(Left::Malformed),
    }
}

fn text(head: Head<'_>) -> Read<Option<String>> {
    match head {
        Head::Nil => Ok(None),
        Head::Text(bytes) => match str::from_utf8(bytes) {
            Ok(text) => Ok(Some(text.to_owned())),
            Err(_) => Err(Left::Malformed),
        },
        _ => Err(Left::Malformed),
    }
}

fn kind(head: Head<'_>) -> Read<GroupKind> {
    Ok(match head {
        Head::Nil | Head::Text(b"full_attention" | b"mla_attention" | b"sink_full_attention") => {
            GroupKind::Full
        }
        Head::Text(_) => GroupKind::Other,
        _ => return Err(Left::Malformed),
    })
}

fn extras(at: &mut Cursor<'_>, (depth, room): Room<'_>) -> Read<Vec<BlockExtras>> {
    let blocks = match at.head()? {
        Head::Array(blocks) => blocks,
        Head::Nil => return Ok(Vec::new()),
        _ => return Err(Left::Malformed),
    };
    let depth = depth.checked_sub(2).ok_or(Left::Broken)?;
    let mut out = Vec::new();
    for block in 0..blocks {
        let count = match at.head()? {
            Head::Nil => continue,
            Head::Array(count) => count,
            _ => return Err(Left::Malformed),
        };
        *room = room.checked_sub(count).ok_or(Left::Malformed)?;
        let mut extras = Vec::with_capacity(count.min(RESERVED));
        for _ in 0..count {
            extras.push(extra(at, depth)?);
        }
        if !extras.is_empty() {
            out.push(BlockExtras { block, extras });
        }
    }
    Ok(out)
}

fn extra(at: &mut Cursor<'_>, depth: usize) -> Read<Extra> {
    let start = *at;
    at.skip(depth)?;
    let length = start.rest().len() - at.rest().len();
    let raw = start.rest().get(..length).unwrap_or_default();
    let mut inside = start;
    Ok(match inside.head()? {
        Head::Text(bytes) => match str::from_utf8(bytes) {
            Ok(text) => Extra::Text(text.to_owned()),
            Err(_) => Extra::Opaque(raw.to_vec()),
        },
        Head::Array(2) => media(&mut inside).unwrap_or_else(|| Extra::Opaque(raw.to_vec())),
        _ => Extra::Opaque(raw.to_vec()),
    })
}

fn media(inside: &mut Cursor<'_>) -> Option<Extra> {
    let id = match inside.head().ok()? {
        Head::Text(bytes) => str::from_utf8(bytes).ok()?.to_owned(),
        // Early engines name an item by a number.
        Head::Unsigned(id) => id.to_string(),
        _ => return None,
    };
    let offset = integer(inside.head().ok()?).ok()??;
    Some(Extra::Media { id, offset })
}
