//! From a request's text to tokens.

use std::{borrow::Cow, sync::Arc};

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::{ApiError, fields::Fields};
use crate::text;

/// Tokens that stand for an image, a sound or a film.
const MEDIA_TOKENS: usize = 64;

/// Prompts of a completion or an embedding: a text, texts, token ids, or lists of token ids.
pub(super) fn prompts(name: &str, value: &Value) -> Result<Vec<Arc<[u32]>>, ApiError> {
    let wrong = |wanted: &str| ApiError::validation("prompt_type", name, wanted, "'?'");
    let prompts: Vec<Arc<[u32]>> = match value {
        Value::String(text) => vec![text::tokenize(text).into()],
        Value::Array(items) => match items.first() {
            None => return Err(wrong("Input should not be empty")),
            Some(Value::Number(_)) => vec![token_ids(name, items)?],
            Some(_) => {
                let each = items.iter().map(|item| match item {
                    Value::String(text) => Ok(text::tokenize(text).into()),
                    Value::Array(ids) => token_ids(name, ids),
                    _ => Err(wrong("Input should be strings or lists of token ids")),
                });
                each.collect::<Result<_, _>>()?
            }
        },
        _ => return Err(wrong("Input should be a string, strings or token ids")),
    };
    match prompts.iter().any(|prompt| prompt.is_empty()) {
        true => Err(ApiError::bad_value(
            name,
            "The decoder prompt cannot be empty",
        )),
        false => Ok(prompts),
    }
}

pub(super) fn token_ids(name: &str, items: &[Value]) -> Result<Arc<[u32]>, ApiError> {
    let id = |item: &Value| {
        let id = item.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| ApiError::validation("int_type", name, "Input should be token ids", "'?'"))
    };
    items.iter().map(id).collect()
}

/// The prompt of a chat. Tools come first, so that they are part of the prefix that turns share.
pub(super) fn chat(fields: &Fields<'_>, generation: bool) -> Result<Arc<[u32]>, ApiError> {
    let messages = fields.need("messages")?;
    let wrong = |wanted: &str| ApiError::validation("list_type", "messages", wanted, "'?'");
    let messages = messages
        .as_array()
        .ok_or_else(|| wrong("Input should be a valid list"))?;
    if messages.is_empty() {
        return Err(wrong("Input should not be empty"));
    }
    let mut turns: Vec<(&str, Cow<'_, str>)> = Vec::with_capacity(messages.len() + 1);
    if let Some(tools) = fields.get("tools") {
        turns.push(("tools", Cow::Owned(tools.to_string())));
    }
    for message in messages {
        let role = message.get("role").and_then(Value::as_str);
        let role = role.ok_or_else(|| ApiError::missing("messages.role", messages.len()))?;
        let content = content(message.get("content").unwrap_or(&Value::Null))?;
        turns.push((
            role,
            match message.get("tool_calls") {
                Some(calls) if !calls.is_null() => Cow::Owned(format!("{content} {calls}")),
                _ => content,
            },
        ));
    }
    let turns = turns.iter().map(|(role, text)| (*role, text.as_ref()));
    Ok(text::chat(turns, generation).into())
}

/// Text of a message: a string, or parts.
fn content(value: &Value) -> Result<Cow<'_, str>, ApiError> {
    match value {
        Value::Null => Ok(Cow::Borrowed("")),
        Value::String(text) => Ok(Cow::Borrowed(text)),
        Value::Array(parts) => {
            let mut all = String::new();
            for part in parts {
                if !all.is_empty() {
                    all.push(' ');
                }
                match part.get("text").and_then(Value::as_str).or(part.as_str()) {
                    Some(text) => all.push_str(text),
                    None => push_media(part, &mut all),
                }
            }
            Ok(Cow::Owned(all))
        }
        _ => Err(ApiError::validation(
            "string_type",
            "messages.content",
            "Input should be a valid string",
            "'?'",
        )),
    }
}

/// Text whose tokens depend on the medium alone.
fn push_media(part: &Value, text: &mut String) {
    let hash = xxh3_64(part.to_string().as_bytes());
    let tokens: Vec<u32> = (0..MEDIA_TOKENS as u32)
        .map(|index| crate::batch::output_token(hash, index))
        .collect();
    text.push_str(&text::detokenize(&tokens));
}
