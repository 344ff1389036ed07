//! `messages`: how much text, how many parts of other kinds, and what a conversation keeps from turn to turn.

use super::identity;
use crate::json::{Cursor, Kind, ScanError, Span, Text};

/// What was seen of the messages.
#[derive(Default)]
pub(super) struct Chat {
    pub(super) array: bool,
    pub(super) messages: u32,
    pub(super) text_bytes: u64,
    pub(super) media_parts: u32,
    /// Of the system and developer messages before the first user message.
    system: Option<u64>,
    first_user: Option<u64>,
}

/// One message as it is read.
#[derive(Default)]
struct Message {
    role: Role,
    content: Content,
    text_bytes: u64,
    media_parts: u32,
    /// Text outside `content`: tool calls, reasoning, names.
    other_bytes: u64,
}

/// Where a message's content stands.
#[derive(Default)]
pub(super) enum Content {
    #[default]
    None,
    Text(Text),
    /// An array.
    Parts(Span),
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
        cursor.pass()?;
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
        match key.name(body).as_ref() {
            b"role" => {
                let role = cursor.string_or_skip()?;
                message.role = match role.as_ref().map(|role| role.name(body)).as_deref() {
                    Some(b"system" | b"developer") => Role::System,
                    Some(b"user") => Role::User,
                    Some(_) | None => Role::Other,
                };
            }
            b"content" => {
                (message.text_bytes, message.media_parts) = (0, 0);
                message.content = content(body, cursor, &mut message)?;
            }
            b"tool_calls" => message.other_bytes += tool_calls(body, cursor)?,
            b"reasoning_content" | b"reasoning" | b"name" => {
                message.other_bytes += text_length(cursor)?;
            }
            _ => cursor.pass()?,
        }
        Ok(())
    })?;
    Ok(message)
}

/// Passes a value; the length of its characters if it is a string, else 0.
fn text_length(cursor: &mut Cursor<'_>) -> Result<u64, ScanError> {
    let text = cursor.string_or_skip()?;
    Ok(text.map_or(0, |text| text.decoded as u64))
}

fn content(
    body: &[u8],
    cursor: &mut Cursor<'_>,
    message: &mut Message,
) -> Result<Content, ScanError> {
    if cursor.kind()? != Kind::Array {
        let text = cursor.string_or_skip()?;
        message.text_bytes += text.as_ref().map_or(0, |text| text.decoded as u64);
        return Ok(text.map_or(Content::None, Content::Text));
    }
    let span = cursor.array(|cursor| {
        if cursor.kind()? != Kind::Object {
            message.text_bytes += text_length(cursor)?;
            return Ok(());
        }
        let part = Part::read(body, cursor)?;
        message.media_parts = message.media_parts.saturating_add(u32::from(part.media));
        message.text_bytes += part.text.map_or(0, |text| text.decoded as u64);
        Ok(())
    })?;
    Ok(Content::Parts(span))
}

/// An element of a `content` array.
#[derive(Default)]
pub(super) struct Part {
    /// It has a type, and one that does not mean text.
    pub(super) media: bool,
    pub(super) text: Option<Text>,
}

impl Part {
    /// Passes a part; the cursor is at its brace.
    pub(super) fn read(body: &[u8], cursor: &mut Cursor<'_>) -> Result<Part, ScanError> {
        let mut part = Part::default();
        cursor.object(|cursor, key| {
            match key.name(body).as_ref() {
                b"type" => {
                    let kind = cursor.string_or_skip()?;
                    let kind = kind.as_ref().map(|kind| kind.name(body));
                    part.media = !matches!(
                        kind.as_deref(),
                        None | Some(
                            b"text" | b"input_text" | b"output_text" | b"refusal" | b"thinking"
                        )
                    );
                }
                b"text" | b"refusal" | b"thinking" => part.text = cursor.string_or_skip()?,
                _ => cursor.pass()?,
            }
            Ok(())
        })?;
        Ok(part)
    }
}

/// Passes the value of `tool_calls`; the length of its functions' names and arguments.
fn tool_calls(body: &[u8], cursor: &mut Cursor<'_>) -> Result<u64, ScanError> {
    if cursor.kind()? != Kind::Array {
        cursor.pass()?;
        return Ok(0);
    }
    let mut bytes = 0;
    cursor.array(|cursor| {
        members(cursor, |cursor, key| match key.name(body).as_ref() {
            b"function" => members(cursor, |cursor, key| {
                match key.name(body).as_ref() {
                    b"name" | b"arguments" => bytes += text_length(cursor)?,
                    _ => cursor.pass()?,
                }
                Ok(())
            }),
            _ => cursor.pass(),
        })
    })?;
    Ok(bytes)
}

/// Passes a value; walks its members if it is an object.
fn members<'a>(
    cursor: &mut Cursor<'a>,
    member: impl FnMut(&mut Cursor<'a>, &Text) -> Result<(), ScanError>,
) -> Result<(), ScanError> {
    if cursor.kind()? == Kind::Object {
        cursor.object(member)?;
        return Ok(());
    }
    cursor.pass()
}

impl Chat {
    fn add(&mut self, body: &[u8], message: &Message) {
        self.text_bytes += message.text_bytes + message.other_bytes;
        self.media_parts = self.media_parts.saturating_add(message.media_parts);
        if self.first_user.is_some() || message.role == Role::Other {
            return;
        }
        let content = &message.content;
        if message.role == Role::User {
            self.first_user = Some(identity::with_content(0, body, content));
        } else {
            let before = self.system.unwrap_or(0);
            self.system = Some(identity::with_content(before, body, content));
        }
    }

    pub(super) fn system_hash(&self, tools: &[u8]) -> Option<u64> {
        if self.system.is_none() && tools.is_empty() {
            return None;
        }
        Some(identity::with_bytes(self.system.unwrap_or(0), tools))
    }

    pub(super) fn session_hash(&self, system: Option<u64>) -> Option<u64> {
        let user = self.first_user?;
        Some(identity::mix(system.unwrap_or(0), user))
    }
}
