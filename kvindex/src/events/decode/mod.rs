//! Payloads to events.

mod fields;

use thiserror::Error;

use super::{
    Batch,
    msgpack::{Broken, Cursor, Head},
};

use fields::{Field, Fields, REMOVED, SGLANG_STORED, VLLM_STORED};

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
    /// Extras of blocks, over all events: a single byte of a payload can be one, and takes fifty here. An event with more
    /// is left out.
    pub extras: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            bytes: 32 << 20,
            depth: 16,
            extras: 1 << 18,
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
    let mut extras = limits.extras;
    for _ in 0..events {
        let start = at;
        match event(&mut at, dialect, (depth, &mut extras), &mut batch) {
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

/// Nesting that is left, and extras.
type Room<'a> = (usize, &'a mut usize);

fn event(
    at: &mut Cursor<'_>,
    dialect: Dialect,
    (depth, extras): Room<'_>,
    batch: &mut Batch,
) -> Read<()> {
    let depth = depth.checked_sub(1).ok_or(Left::Broken)?;
    match at.head()? {
        Head::Array(count) => array_event(at, count, dialect, (depth, extras), batch),
        Head::Map(count) => map_event(at, count, (depth, extras), batch),
        _ => Err(Left::Malformed),
    }
}

fn array_event(
    at: &mut Cursor<'_>,
    count: usize,
    dialect: Dialect,
    (depth, extras): Room<'_>,
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
            Some(field) => fields.read(*field, at, (depth, &mut *extras))?,
            None => {
                batch.unknown_fields = batch.unknown_fields.saturating_add(1);
                at.skip(depth)?;
            }
        }
    }
    batch.events.push(fields.finish(tag)?);
    Ok(())
}

fn map_event(
    at: &mut Cursor<'_>,
    count: usize,
    (depth, extras): Room<'_>,
    batch: &mut Batch,
) -> Read<()> {
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
            (Some(_), Some(field)) => fields.read(field, at, (depth, &mut *extras))?,
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
