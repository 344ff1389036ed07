//! Token counts in every spelling that engines use.

use super::Seen;
use crate::json::{Cursor, Kind, ScanError};

/// Token counts of an answer. Missing is not zero.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt_tokens: Option<u64>,
    /// Generated tokens.
    pub completion_tokens: Option<u64>,
    /// Prompt tokens that came from the engine's prefix cache.
    pub cached_tokens: Option<u64>,
}

impl Usage {
    /// Takes over what `later` knows; it never wipes what was known.
    pub(super) fn merge(&mut self, later: Usage) {
        self.prompt_tokens = later.prompt_tokens.or(self.prompt_tokens);
        self.completion_tokens = later.completion_tokens.or(self.completion_tokens);
        self.cached_tokens = later.cached_tokens.or(self.cached_tokens);
    }
}

/// Reads a whole event or answer into `seen`. What is not JSON tells nothing.
pub(super) fn read(text: &[u8], seen: &mut Seen) {
    let mut cursor = Cursor::new(text);
    let mut found = Found::default();
    let read = match cursor.kind() {
        Ok(Kind::Object) => root(text, &mut cursor, &mut found, 0),
        Ok(_) | Err(_) => return,
    };
    if read.is_ok() {
        seen.usage.merge(found.usage);
        seen.error |= found.error;
    }
}

#[derive(Default)]
struct Found {
    usage: Usage,
    error: bool,
}

/// The root, or the `message` (Anthropic) or `response` (Responses API) inside it.
fn root(
    text: &[u8],
    cursor: &mut Cursor<'_>,
    found: &mut Found,
    level: u8,
) -> Result<(), ScanError> {
    cursor.object(|cursor, key| {
        let kind = cursor.kind()?;
        match (key.raw(text), kind) {
            (b"usage", Kind::Object) => {
                let usage = object(text, cursor)?;
                found.usage.merge(usage);
                Ok(())
            }
            (b"error", kind) if kind != Kind::Null => {
                found.error |= level == 0;
                cursor.pass()
            }
            (b"message" | b"response", Kind::Object) if level == 0 => root(text, cursor, found, 1),
            _ => cursor.pass(),
        }
    })?;
    Ok(())
}

/// A `usage` object; the cursor is at its brace.
pub(super) fn object(text: &[u8], cursor: &mut Cursor<'_>) -> Result<Usage, ScanError> {
    let mut usage = Usage::default();
    cursor.object(|cursor, key| {
        match (key.raw(text), cursor.kind()?) {
            (b"prompt_tokens" | b"input_tokens", Kind::Number) => {
                usage.prompt_tokens = cursor.unsigned_or_skip()?;
            }
            (b"completion_tokens" | b"output_tokens", Kind::Number) => {
                usage.completion_tokens = cursor.unsigned_or_skip()?;
            }
            (b"cache_read_input_tokens", Kind::Number) => {
                usage.cached_tokens = cursor.unsigned_or_skip()?;
            }
            (b"prompt_tokens_details" | b"input_tokens_details", Kind::Object) => {
                cursor.object(|cursor, key| {
                    if key.raw(text) == b"cached_tokens" && cursor.kind()? == Kind::Number {
                        usage.cached_tokens = cursor.unsigned_or_skip()?;
                        return Ok(());
                    }
                    cursor.pass()
                })?;
            }
            _ => cursor.pass()?,
        }
        Ok(())
    })?;
    Ok(usage)
}
