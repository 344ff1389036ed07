//! Hashes of what a conversation keeps from turn to turn.
//!
//! Texts are hashed as they are written, escapes and all: one client writes one text in one way. A plain string
//! counts like an array of one text part, since libraries switch between the two. A part that is not text is
//! hashed whole, so two images never share an identity.

use xxhash_rust::xxh3::xxh3_64;

use super::chat::{Content, Part};
use crate::json::{Cursor, Kind, ScanError, Text};

/// One hash of two, in their order.
pub(super) fn mix(first: u64, second: u64) -> u64 {
    let mut bytes = [0; 16];
    let (a, b) = bytes.split_at_mut(8);
    a.copy_from_slice(&first.to_le_bytes());
    b.copy_from_slice(&second.to_le_bytes());
    xxh3_64(&bytes)
}

/// Takes `bytes` into a hash.
pub(super) fn with_bytes(hash: u64, bytes: &[u8]) -> u64 {
    mix(hash, xxh3_64(bytes))
}

/// Takes a message's content into a hash.
pub(super) fn with_content(mut hash: u64, body: &[u8], content: &Content) -> u64 {
    match content {
        Content::None => {}
        Content::Text(text) => hash = with_text(hash, body, text),
        Content::Parts(span) => {
            let value = body.get(span.clone()).unwrap_or_default();
            // What was validated once reads again; if it did not, the walk would only end early.
            let _ = parts(value, &mut hash);
        }
    }
    hash
}

fn with_text(hash: u64, body: &[u8], text: &Text) -> u64 {
    with_bytes(hash, text.raw(body))
}

fn parts(value: &[u8], hash: &mut u64) -> Result<(), ScanError> {
    Cursor::new(value).array(|cursor| {
        if cursor.kind()? != Kind::Object {
            if let Some(text) = cursor.string_or_skip()? {
                *hash = with_text(*hash, value, &text);
            }
            return Ok(());
        }
        let start = cursor.at();
        let part = Part::read(value, cursor)?;
        *hash = match part.text {
            Some(text) if !part.media => with_text(*hash, value, &text),
            Some(_) | None => {
                let written = value.get(start..cursor.at()).unwrap_or_default();
                // Turned over, so that a part never looks like a text that spells it.
                with_bytes(!*hash, written)
            }
        };
        Ok(())
    })?;
    Ok(())
}
