//! `messages`: how much text, how many parts of other kinds, and what a conversation keeps from turn to turn.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::{Prompt, RequestFacts};
use crate::json::{Cursor, Kind, ScanError, Span};

/// What was seen of the messages.
#[derive(Default)]
pub(super) struct Chat {
    messages: u32,
    text_bytes: u64,
    media_parts: u32,
    /// Hash over the contents of leading system and developer messages.
    system: Option<u64>,
    /// Hash of the first user message's content.
    first_user: Option<u64>,
    array: bool,
}

/// One message as it is read.
#[derive(Default)]
struct Message {
    role: Role,
    content: Option<Span>,
    text_bytes: u64,
    media_parts: u32,
    /// Text outside `content`: tool calls, reasoning, names.
    other_bytes: u64,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Role {
    System,
    User,
    #[default]
    Other,
}

/// Passes the value of `messages`.
pub(super) fn messages(body: &[u8], cursor: &mut Cursor<'_>) -> Result<Chat, ScanError> {
    let mut chat = Chat::default();
    if cursor.kind()? != Kind::Array {
        cursor.skip()?;
        return Ok(chat);
    }
    chat.array = true;
    cursor.array(|cursor| {
        chat.messages = chat.messages.saturating_add(1);
        if cursor.kind()? != Kind::Object {
            return cursor.pass();
        }
        let message = message(body, cursor)?;
        chat.add(body, &message);
        Ok(())
    })?;
    Ok(chat)
}

fn message(body: &[u8], cursor: &mut Cursor<'_>) -> Result<Message, ScanError> {
    let mut message = Message::default();
    cursor.object(|cursor, key| {
        match key.raw(body) {
            b"role" => {
                let role = cursor.string_or_skip()?;
                message.role = match role.as_ref().map(|role| role.raw(body)) {
                    Some(b"system" | b"developer") => Role::System,
                    Some(b"user") => Role::User,
                    Some(_) | None => Role::Other,
                };
            }
            b"content" => {
                (message.text_bytes, message.media_parts) = (0, 0);
                message.content = Some(content(body, cursor, &mut message)?);
            }
            b"tool_calls" | b"reasoning_content" | b"name" => {
                message.other_bytes += cursor.skip()?.len() as u64;
            }
            _ => cursor.pass()?,
        }
        Ok(())
    })?;
    Ok(message)
}

fn content(body: &[u8], cursor: &mut Cursor<'_>, message: &mut Message) -> Result<Span, ScanError> {
    let start = cursor.at();
    match cursor.kind()? {
        Kind::String => {
            let text = cursor.string_or_skip()?;
            message.text_bytes += text.map_or(0, |text| text.decoded as u64);
        }
        Kind::Array => {
            cursor.array(|cursor| part(body, cursor, message))?;
        }
        Kind::Object | Kind::Number | Kind::True | Kind::False | Kind::Null => {
            cursor.skip()?;
        }
    }
    Ok(start..cursor.at())
}

fn part(body: &[u8], cursor: &mut Cursor<'_>, message: &mut Message) -> Result<(), ScanError> {
    if cursor.kind()? != Kind::Object {
        let text = cursor.string_or_skip()?;
        message.text_bytes += text.map_or(0, |text| text.decoded as u64);
        return Ok(());
    }
    let mut is_text = true;
    cursor.object(|cursor, key| {
        match key.raw(body) {
            b"type" => {
                let kind = cursor.string_or_skip()?;
                let kind = kind.as_ref().map(|kind| kind.raw(body));
                is_text = matches!(
                    kind,
                    None | Some(b"text" | b"input_text" | b"output_text" | b"refusal")
                );
            }
            b"text" | b"refusal" => {
                let text = cursor.string_or_skip()?;
                message.text_bytes += text.map_or(0, |text| text.decoded as u64);
            }
            _ => cursor.pass()?,
        }
        Ok(())
    })?;
    message.media_parts += u32::from(!is_text);
    Ok(())
}

impl Chat {
    fn add(&mut self, body: &[u8], message: &Message) {
        self.text_bytes += message.text_bytes + message.other_bytes;
        self.media_parts = self.media_parts.saturating_add(message.media_parts);
        let content = message.content.clone().and_then(|span| body.get(span));
        let Some(content) = content else {
            return;
        };
        if self.first_user.is_some() {
            return;
        }
        match message.role {
            Role::System => {
                let hash = xxh3_64(content);
                self.system = Some(self.system.map_or(hash, |before| mix(&[before, hash])));
            }
            Role::User => self.first_user = Some(xxh3_64(content)),
            Role::Other => {}
        }
    }

    pub(super) fn into_facts(self, tools: &[u8], facts: &mut RequestFacts) {
        facts.messages = self.messages;
        facts.text_bytes = self.text_bytes + tools.len() as u64;
        facts.media_parts = self.media_parts;
        facts.prompt = if self.array {
            Prompt::Text
        } else {
            Prompt::None
        };
        if self.system.is_some() || !tools.is_empty() {
            let system = self.system.unwrap_or(0);
            facts.system_hash = Some(mix(&[system, xxh3_64(tools)]));
        }
        if let Some(user) = self.first_user {
            facts.session_hash = Some(mix(&[facts.system_hash.unwrap_or(0), user]));
        }
    }
}

/// One hash of several.
fn mix(parts: &[u64]) -> u64 {
    let mut hasher = Xxh3::new();
    for part in parts {
        hasher.update(&part.to_le_bytes());
    }
    hasher.digest()
}
