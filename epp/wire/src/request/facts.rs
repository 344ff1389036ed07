//! The facts and the walk over a body's root.

use super::{Api, chat, prompt};
use crate::json::{Cursor, Kind, ScanError, Span, Text};

/// What the prompt is made of.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Prompt {
    /// There is none that we know of.
    #[default]
    None,
    /// One text; for chats, all messages together.
    Text,
    /// Several texts, each a sequence of its own.
    Texts {
        /// How many.
        count: u32,
    },
    /// Token ids.
    TokenIds {
        /// All of them.
        tokens: u64,
        /// In how many sequences.
        sequences: u32,
    },
    /// Texts and token ids.
    Mixed {
        /// Token ids.
        tokens: u64,
        /// Sequences of either kind.
        sequences: u32,
    },
}

/// What matters of a body. Spans count bytes from its start.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RequestFacts {
    /// The dialect it was read as.
    pub api: Api,
    /// The root object, braces included.
    pub object: Span,
    /// Model or adapter.
    pub model: Option<Text>,
    /// The answer is wanted as a stream of events.
    pub stream: bool,
    /// Value of `stream`.
    pub stream_span: Option<Span>,
    /// Value of `stream_options`.
    pub stream_options: Option<Span>,
    /// `stream_options.include_usage`.
    pub include_usage: Option<bool>,
    /// Most output tokens; `max_completion_tokens` wins over `max_tokens`.
    pub max_tokens: Option<u64>,
    /// Answers per prompt.
    pub n: Option<u32>,
    /// Cache domain that the caller asks for.
    pub cache_salt: Option<Text>,
    /// Value of `priority`.
    pub priority: Option<Span>,
    /// End user that the caller names.
    pub user: Option<Text>,
    /// Value of `tools`.
    pub tools: Option<Span>,
    /// What the prompt is made of.
    pub prompt: Prompt,
    /// Length of all prompt text in UTF-8, in bytes.
    pub text_bytes: u64,
    /// Content parts that are not text.
    pub media_parts: u32,
    /// Messages of a chat.
    pub messages: u32,
    /// Hash of the system text and the tools.
    pub system_hash: Option<u64>,
    /// Hash of the system text, the tools and the first user text: stays the same through a conversation.
    pub session_hash: Option<u64>,
}

/// Tokens that a chat template adds to each message, about.
const TOKENS_PER_MESSAGE: u64 = 4;
/// Bytes of text per token, about.
const BYTES_PER_TOKEN: u64 = 4;

impl RequestFacts {
    /// Prompt length in tokens: exact for token ids, else `ceil(bytes / 4)` and 4 per message.
    pub fn estimated_prompt_tokens(&self) -> u64 {
        let text = self.text_bytes.div_ceil(BYTES_PER_TOKEN);
        let tokens = match self.prompt {
            Prompt::None | Prompt::Text | Prompt::Texts { .. } => 0,
            Prompt::TokenIds { tokens, .. } | Prompt::Mixed { tokens, .. } => tokens,
        };
        text + tokens + u64::from(self.messages) * TOKENS_PER_MESSAGE
    }
}

/// Reads a body of a known dialect.
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

/// A walk over the root's members.
struct Walk<'a> {
    body: &'a [u8],
    facts: RequestFacts,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    chat: chat::Chat,
}

impl Walk<'_> {
    fn member(&mut self, cursor: &mut Cursor<'_>, key: &Text) -> Result<(), ScanError> {
        let decoded;
        let name = if key.escaped {
            decoded = key.decode(self.body);
            decoded.as_bytes()
        } else {
            key.raw(self.body)
        };
        let facts = &mut self.facts;
        match (name, facts.api) {
            (b"model", _) => facts.model = cursor.string_or_skip()?,
            (b"stream", _) => {
                let start = cursor.at();
                facts.stream = cursor.bool_or_skip()?.unwrap_or(false);
                facts.stream_span = Some(start..cursor.at());
            }
            (b"stream_options", _) => stream_options(self.body, cursor, facts)?,
            (b"max_tokens", _) => self.max_tokens = cursor.unsigned_or_skip()?,
            (b"max_completion_tokens", _) => {
                self.max_completion_tokens = cursor.unsigned_or_skip()?;
            }
            (b"n", _) => {
                let n = cursor.unsigned_or_skip()?;
                facts.n = n.and_then(|n| u32::try_from(n).ok());
            }
            (b"cache_salt", _) => facts.cache_salt = cursor.string_or_skip()?,
            (b"priority", _) => facts.priority = Some(cursor.skip()?),
            (b"user", _) => facts.user = cursor.string_or_skip()?,
            (b"tools", Api::ChatCompletions) => facts.tools = tools(cursor)?,
            (b"messages", Api::ChatCompletions) => {
                self.chat = chat::messages(self.body, cursor)?;
            }
            (b"prompt", Api::Completions) | (b"input", Api::Embeddings) => {
                (facts.prompt, facts.text_bytes) = prompt::scan(cursor)?;
            }
            _ => cursor.pass()?,
        }
        Ok(())
    }

    fn finish(self, object: Span) -> RequestFacts {
        let mut facts = self.facts;
        facts.object = object;
        facts.max_tokens = self.max_completion_tokens.or(self.max_tokens);
        if facts.api == Api::ChatCompletions {
            let tools = facts.tools.clone().and_then(|span| self.body.get(span));
            self.chat.into_facts(tools.unwrap_or_default(), &mut facts);
        }
        facts
    }
}

/// `null` and `[]` are no tools.
fn tools(cursor: &mut Cursor<'_>) -> Result<Option<Span>, ScanError> {
    let array = cursor.kind()? == Kind::Array;
    let span = cursor.skip()?;
    Ok((array && span.len() > 2).then_some(span))
}

fn stream_options(
    body: &[u8],
    cursor: &mut Cursor<'_>,
    facts: &mut RequestFacts,
) -> Result<(), ScanError> {
    facts.include_usage = None;
    let span = if cursor.kind()? == Kind::Object {
        cursor.object(|cursor, key| {
            if key.raw(body) == b"include_usage" {
                facts.include_usage = cursor.bool_or_skip()?;
                return Ok(());
            }
            cursor.pass()
        })?
    } else {
        cursor.skip()?
    };
    facts.stream_options = Some(span);
    Ok(())
}
