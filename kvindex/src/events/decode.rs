//! Payloads to events.

use thiserror::Error;

use super::{
    Batch, BlockExtras, EngineHash, Event, Extra, GroupKind, Removed, Stored, Tier,
    msgpack::{Broken, Cursor, Head},
};

/// Whose arrays these are: positions after the sixth field differ. Maps say what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// vLLM, and engines that follow it.
    #[default]
    Vllm,
    /// SGLang.
    Sglang,
}

/// Bounds of one payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest payload in bytes.
    pub bytes: usize,
    /// Deepest nesting of arrays and maps.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            bytes: 32 << 20,
            depth: 16,
        }
    }
}

/// Why a payload gave nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BatchError {
    /// Longer than [`Limits::bytes`].
    #[error("a payload of {0} bytes is over the limit")]
    TooLong(usize),
    /// Not MessagePack, cut short, or deeper than [`Limits::depth`].
    #[error("the payload is not MessagePack, is cut short or nests too deep")]
    Broken,
    /// MessagePack, but not `[time, [event, ...], rank]`.
    #[error("the payload is not a batch of events")]
    Shape,
}

impl From<Broken> for BatchError {
    fn from(_: Broken) -> BatchError {
        BatchError::Broken
    }
}

/// Why an event is left out.
enum Left {
    Broken,
    Malformed,
}

impl From<Broken> for Left {
    fn from(_: Broken) -> Left {
        Left::Broken
    }
}

type Read<T> = Result<T, Left>;

/// Elements that are reserved on the word of a length alone.
const RESERVED: usize = 4096;

/// Reads the events of a payload.
///
/// Events of unknown tag or with fields that make no sense are left out and counted in the batch.
///
/// # Errors
/// When the payload as a whole cannot be read; then nothing of it counts.
pub fn decode_batch(payload: &[u8], dialect: Dialect, limits: Limits) -> Result<Batch, BatchError> {
    if payload.len() > limits.bytes {
        return Err(BatchError::TooLong(payload.len()));
    }
    let mut at = Cursor::new(payload);
    let Head::Array(fields) = at.head()? else {
        return Err(BatchError::Shape);
    };
    let mut batch = Batch {
        published: f64::NAN,
        ..Batch::default()
    };
    if fields < 2 {
        return Err(BatchError::Shape);
    }
    batch.published = match at.head()? {
        Head::Float(time) => time,
        Head::Unsigned(time) => time as f64,
        Head::Nil => f64::NAN,
        _ => return Err(BatchError::Shape),
    };
    let Head::Array(events) = at.head()? else {
        return Err(BatchError::Shape);
    };
    let depth = limits.depth.saturating_sub(2);
    for _ in 0..events {
        let start = at;
        match event(&mut at, dialect, depth, &mut batch) {
            Ok(()) => {}
            Err(Left::Broken) => return Err(BatchError::Broken),
            Err(Left::Malformed) => {
                batch.malformed = batch.malformed.saturating_add(1);
                at = start;
                at.skip(depth)?;
            }
        }
    }
    if fields > 2
        && let Head::Unsigned(rank) = {
            let mut ahead = at;
            ahead.head()?
        }
    {
        batch.rank = u32::try_from(rank).ok();
    }
    Ok(batch)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tag {
    Stored,
    Removed,
    Cleared,
}

fn tag(name: &[u8]) -> Option<Tag> {
    match name {
        b"BlockStored" => Some(Tag::Stored),
        b"BlockRemoved" => Some(Tag::Removed),
        b"AllBlocksCleared" => Some(Tag::Cleared),
        _ => None,
    }
}

fn event(at: &mut Cursor<'_>, dialect: Dialect, depth: usize, batch: &mut Batch) -> Read<()> {
    let depth = depth.checked_sub(1).ok_or(Left::Broken)?;
    match at.head()? {
        Head::Array(count) => array_event(at, count, dialect, depth, batch),
        Head::Map(count) => map_event(at, count, depth, batch),
        _ => Err(Left::Malformed),
    }
}

const VLLM_STORED: [Field; 11] = [
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
const SGLANG_STORED: [Field; 9] = [
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
const REMOVED: [Field; 3] = [Field::Hashes, Field::Medium, Field::Group];

fn array_event(
    at: &mut Cursor<'_>,
    count: usize,
    dialect: Dialect,
    depth: usize,
    batch: &mut Batch,
) -> Read<()> {
    if count == 0 {
        return Err(Left::Malformed);
    }
    let Head::Text(name) = at.head()? else {
        return Err(Left::Malformed);
    };
    let Some(tag) = tag(name) else {
        batch.unknown = batch.unknown.saturating_add(1);
        return skip_all(at, count - 1, depth);
    };
    let order: &[Field] = match (tag, dialect) {
        (Tag::Stored, Dialect::Vllm) => &VLLM_STORED,
        (Tag::Stored, Dialect::Sglang) => &SGLANG_STORED,
        (Tag::Removed, _) => &REMOVED,
        (Tag::Cleared, _) => &[],
    };
    let mut fields = Fields::default();
    for position in 0..count - 1 {
        match order.get(position) {
            Some(field) => fields.read(*field, at, depth)?,
            None => {
                batch.unknown_fields = batch.unknown_fields.saturating_add(1);
                at.skip(depth)?;
            }
        }
    }
    batch.events.push(fields.finish(tag)?);
    Ok(())
}

fn map_event(at: &mut Cursor<'_>, count: usize, depth: usize, batch: &mut Batch) -> Read<()> {
    let start = *at;
    let mut kind = None;
    // The tag comes first in every engine; it may come anywhere in a map.
    for _ in 0..count {
        let key = at.head()?;
        if key == Head::Text(b"type") {
            let Head::Text(name) = at.head()? else {
                return Err(Left::Malformed);
            };
            kind = Some(name);
            break;
        }
        skip_rest(key, at, depth)?;
        at.skip(depth)?;
    }
    let known = tag(kind.ok_or(Left::Malformed)?);
    *at = start;
    let mut fields = Fields::default();
    let mut unknown = 0u32;
    for _ in 0..count {
        let key = at.head()?;
        let field = match key {
            Head::Text(name) => Field::named(name),
            _ => None,
        };
        match (known, field) {
            (Some(_), Some(field)) => fields.read(field, at, depth)?,
            (_, field) => {
                unknown = unknown.saturating_add(u32::from(field.is_none()));
                skip_rest(key, at, depth)?;
                at.skip(depth)?;
            }
        }
    }
    match known {
        Some(tag) => {
            batch.unknown_fields = batch.unknown_fields.saturating_add(unknown);
            batch.events.push(fields.finish(tag)?);
        }
        None => batch.unknown = batch.unknown.saturating_add(1),
    }
    Ok(())
}

/// Steps over what is left of a value whose head is read.
fn skip_rest(head: Head<'_>, at: &mut Cursor<'_>, depth: usize) -> Read<()> {
    match head {
        Head::Array(count) => skip_all(at, count, depth.checked_sub(1).ok_or(Left::Broken)?),
        Head::Map(count) => skip_all(
            at,
            count.saturating_mul(2),
            depth.checked_sub(1).ok_or(Left::Broken)?,
        ),
        _ => Ok(()),
    }
}

fn skip_all(at: &mut Cursor<'_>, count: usize, depth: usize) -> Read<()> {
    for _ in 0..count {
        at.skip(depth)?;
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Field {
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
    fn named(name: &[u8]) -> Option<Field> {
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
struct Fields {
    stored: Stored,
    hashes: bool,
    sized: bool,
}

impl Fields {
    fn read(&mut self, field: Field, at: &mut Cursor<'_>, depth: usize) -> Read<()> {
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
            Field::Extras => stored.extras = extras(at, depth)?,
            Field::Group => stored.group = unsigned(at.head()?)?.unwrap_or(0),
            Field::Kind => stored.kind = kind(at.head()?)?,
            Field::Ignored => at.skip(depth)?,
        }
        Ok(())
    }

    fn finish(self, tag: Tag) -> Read<Event> {
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

fn extras(at: &mut Cursor<'_>, depth: usize) -> Read<Vec<BlockExtras>> {
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
        let extras: Vec<Extra> = (0..count).map(|_| extra(at, depth)).collect::<Read<_>>()?;
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
