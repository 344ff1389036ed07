//! The walk over a body's root.

use super::{Api, Prompt, RequestFacts, chat, prompt};
use crate::json::{Cursor, Kind, ScanError, Span, Text};

/// Reads a body of a known dialect: validates all of it and gathers the facts in one pass.
///
/// # Errors
/// When it is not one well-formed JSON object.
pub fn scan_request(api: Api, body: &[u8]) -> Result<RequestFacts, ScanError> {
    let mut cursor = Cursor::new(body);
    cursor.space();
    if cursor.at() == body.len() {
        return Err(ScanError::Empty);
    }
    if cursor.kind()? != Kind::Object {
        cursor.skip()?;
        cursor.end()?;
        return Err(ScanError::NotAnObject);
    }
    let mut walk = Walk {
        body,
        facts: RequestFacts {
            api,
            ..RequestFacts::default()
        },
        max_tokens: None,
        max_completion_tokens: None,
        chat: chat::Chat::default(),
    };
    let object = cursor.object(|cursor, key| walk.member(cursor, key))?;
    cursor.end()?;
    Ok(walk.finish(object))
}

/// Reads what it can of a body whose dialect is not known; `None` if it is no JSON object.
pub fn scan_unknown(body: &[u8]) -> Option<RequestFacts> {
    scan_request(Api::Unknown, body).ok()
}

/// A whole number and where it stands.
type Number = Option<(u64, Span)>;

struct Walk<'a> {
    body: &'a [u8],
    facts: RequestFacts,
    max_tokens: Number,
    max_completion_tokens: Number,
    chat: chat::Chat,
}

impl Walk<'_> {
    fn member(&mut self, cursor: &mut Cursor<'_>, key: &Text) -> Result<(), ScanError> {
        let facts = &mut self.facts;
        match (key.name(self.body).as_ref(), facts.api) {
            (b"model", _) => {
                let start = cursor.at();
                facts.model = cursor.string_or_skip()?;
                facts.model_span = Some(start..cursor.at());
                facts.model_keys = facts.model_keys.saturating_add(1);
            }
            (b"stream", _) => {
                let start = cursor.at();
                facts.stream = cursor.bool_or_skip()?.unwrap_or(false);
                facts.stream_span = Some(start..cursor.at());
            }
            (b"stream_options", _) => stream_options(self.body, cursor, facts)?,
            (b"max_tokens", _) => self.max_tokens = number(cursor)?,
            (b"max_completion_tokens", _) => self.max_completion_tokens = number(cursor)?,
            (b"n", _) => {
                let n = cursor.unsigned_or_skip()?;
                facts.n = n.and_then(|n| u32::try_from(n).ok());
            }
            (b"cache_salt", _) => facts.cache_salt = cursor.string_or_skip()?,
            (b"priority", _) => facts.priority = Some(cursor.skip()?),
            (b"user", _) => facts.user = cursor.string_or_skip()?,
            (b"tools", Api::ChatCompletions) => facts.tools = tools(cursor)?,
            (b"messages", Api::ChatCompletions) => self.chat = chat::messages(self.body, cursor)?,
            (b"prompt", Api::Completions) | (b"input", Api::Embeddings) => {
                let found = prompt::scan(cursor)?;
                facts.prompt = found.prompt();
                facts.text_bytes = found.text_bytes;
                facts.token_ids = found.token_ids;
            }
            _ => cursor.pass()?,
        }
        Ok(())
    }

    fn finish(self, object: Span) -> RequestFacts {
        let mut facts = self.facts;
        facts.object = object;
        if let Some((limit, span)) = self.max_completion_tokens.or(self.max_tokens) {
            facts.max_tokens = Some(limit);
            facts.max_tokens_span = Some(span);
        }
        if facts.api == Api::ChatCompletions {
            let tools = facts.tools.clone().and_then(|span| self.body.get(span));
            let tools = tools.unwrap_or_default();
            facts.messages = self.chat.messages;
            facts.media_parts = self.chat.media_parts;
            facts.text_bytes = self.chat.text_bytes + tools.len() as u64;
            if self.chat.array {
                let bytes = facts.text_bytes;
                facts.prompt = Prompt::Text { bytes };
            }
            facts.system_hash = self.chat.system_hash(tools);
            facts.session_hash = self.chat.session_hash(facts.system_hash);
        }
        facts
    }
}

fn number(cursor: &mut Cursor<'_>) -> Result<Number, ScanError> {
    let start = cursor.at();
    let value = cursor.unsigned_or_skip()?;
    Ok(value.map(|value| (value, start..cursor.at())))
}

/// `null` and an empty array are no tools.
fn tools(cursor: &mut Cursor<'_>) -> Result<Option<Span>, ScanError> {
    if cursor.kind()? != Kind::Array {
        cursor.pass()?;
        return Ok(None);
    }
    let mut any = false;
    let span = cursor.array(|cursor| {
        any = true;
        cursor.pass()
    })?;
    Ok(any.then_some(span))
}

fn stream_options(
    body: &[u8],
    cursor: &mut Cursor<'_>,
    facts: &mut RequestFacts,
) -> Result<(), ScanError> {
    (facts.stream_options, facts.include_usage) = (None, None);
    if cursor.kind()? != Kind::Object {
        return cursor.pass();
    }
    let span = cursor.object(|cursor, key| {
        if key.name(body).as_ref() != b"include_usage" {
            return cursor.pass();
        }
        facts.include_usage = cursor.bool_or_skip()?;
        Ok(())
    })?;
    facts.stream_options = Some(span);
    Ok(())
}
