//! Token counts in every spelling that engines use.

use super::Seen;
use crate::json::{Cursor, Kind, ScanError};

/// Token counts of an answer. Missing is not zero.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    /// Prompt tokens: `prompt_tokens`, or `input_tokens`.
    pub prompt_tokens: Option<u64>,
    /// Generated tokens: `completion_tokens`, or `output_tokens`.
    pub completion_tokens: Option<u64>,
    /// Prompt tokens that came from the engine's prefix cache: `cached_tokens` of the details, or
    /// `cache_read_input_tokens`.
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

/// Reads a whole event into `seen`; true if it carries content. What is not JSON tells nothing, but somebody
/// wrote it for the client.
pub(super) fn read_event(text: &[u8], seen: &mut Seen) -> bool {
    let mut cursor = Cursor::new(text);
    let mut event = Event::default();
    if cursor.kind() != Ok(Kind::Object) || root(text, &mut cursor, &mut event, 0).is_err() {
        return true;
    }
    seen.usage.merge(event.usage);
    seen.error |= event.error;
    event.choices || !(event.has_usage || event.error)
}

#[derive(Default)]
struct Event {
    usage: Usage,
    has_usage: bool,
    error: bool,
    /// `choices` holds something.
    choices: bool,
}

/// The root, or the `message` (Anthropic) or `response` (Responses API) inside it.
fn root(
    text: &[u8],
    cursor: &mut Cursor<'_>,
    event: &mut Event,
    level: u8,
) -> Result<(), ScanError> {
    cursor.object(|cursor, key| {
        let kind = cursor.kind()?;
        match (key.raw(text), kind) {
            (b"usage", Kind::Object) => {
                event.usage.merge(object(text, cursor)?);
                event.has_usage = true;
                Ok(())
            }
            (b"error", kind) if kind != Kind::Null => {
                event.error |= level == 0;
                cursor.pass()
            }
            (b"choices", Kind::Array) => {
                cursor.array(|cursor| {
                    event.choices = true;
                    cursor.pass()
                })?;
                Ok(())
            }
            (b"message" | b"response", Kind::Object) if level == 0 => root(text, cursor, event, 1),
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
