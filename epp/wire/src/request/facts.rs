//! What matters of a body.

use super::Api;
use crate::json::{Span, Text};

/// What the prompt is made of.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Prompt {
    /// There is none that we know of.
    #[default]
    None,
    /// One text; for chats, all messages together.
    Text {
        /// Its length in UTF-8, escapes resolved, in bytes.
        bytes: u64,
    },
    /// Token ids.
    TokenIds {
        /// All of them.
        count: u64,
        /// In how many sequences.
        sequences: u32,
    },
    /// Several texts, each a sequence of its own.
    Texts {
        /// How many.
        count: u32,
        /// Their length together in UTF-8, escapes resolved, in bytes.
        bytes: u64,
    },
    /// Texts and token ids; [`RequestFacts::text_bytes`] and [`RequestFacts::token_ids`] tell how many.
    Mixed,
}

/// What matters of a body. Spans count bytes from its start. A field of an unexpected type is absent.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RequestFacts {
    /// The dialect it was read as.
    pub api: Api,
    /// The root object, braces included.
    pub object: Span,
    /// Model or adapter.
    pub model: Option<Text>,
    /// The last value of the key `model`, whatever its type.
    pub model_span: Option<Span>,
    /// How often the key `model` stands in the root object.
    pub model_keys: u32,
    /// The answer is wanted as a stream of events.
    pub stream: bool,
    /// Value of `stream`, whatever its type.
    pub stream_span: Option<Span>,
    /// Value of `stream_options`, an object.
    pub stream_options: Option<Span>,
    /// `stream_options.include_usage`.
    pub include_usage: Option<bool>,
    /// Most output tokens; `max_completion_tokens` wins over `max_tokens`.
    pub max_tokens: Option<u64>,
    /// The value that [`RequestFacts::max_tokens`] was read from.
    pub max_tokens_span: Option<Span>,
    /// Answers per prompt.
    pub n: Option<u32>,
    /// Cache domain that the caller asks for.
    pub cache_salt: Option<Text>,
    /// Value of `priority`, whatever its type.
    pub priority: Option<Span>,
    /// End user that the caller names.
    pub user: Option<Text>,
    /// Value of `tools`, an array that is not empty.
    pub tools: Option<Span>,
    /// What the prompt is made of.
    pub prompt: Prompt,
    /// Length of all prompt text in UTF-8, in bytes, escapes resolved. Of a chat: the texts of all messages, the
    /// names and arguments of their tool calls, and the JSON of `tools`.
    pub text_bytes: u64,
    /// Token ids in the prompt.
    pub token_ids: u64,
    /// Content parts that are not text.
    pub media_parts: u32,
    /// Messages of a chat.
    pub messages: u32,
    /// Hash of a chat's system texts and tools; absent when it has neither.
    pub system_hash: Option<u64>,
    /// Hash of a chat's system texts, tools and first user message: stays the same from turn to turn. Absent while
    /// there is no user message.
    pub session_hash: Option<u64>,
}

/// Tokens that a chat template adds to each message, about.
const TOKENS_PER_MESSAGE: u64 = 4;
/// Bytes of text per token, about.
const BYTES_PER_TOKEN: u64 = 4;

impl RequestFacts {
    /// Prompt length in tokens: exact for token ids, else `ceil(bytes / 4)` and 4 per message. Of a dialect that is
    /// not known, the whole body counts as text.
    pub fn estimated_prompt_tokens(&self) -> u64 {
        if self.api == Api::Unknown {
            return (self.object.len() as u64).div_ceil(BYTES_PER_TOKEN);
        }
        let messages = u64::from(self.messages) * TOKENS_PER_MESSAGE;
        self.text_bytes.div_ceil(BYTES_PER_TOKEN) + self.token_ids + messages
    }
}
