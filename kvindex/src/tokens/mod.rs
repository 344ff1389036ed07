//! Prompts to tokens, as the engine does it (feature `tokens`).
//!
//! ```text
//! chat request -> Chat: messages as templates see them -> Template: one text -.
//! text prompt ---------------------------------------------------------------> Tokenizer: segments -> memo -> ids
//! ```
//!
//! - [`Chat`]: an OpenAI chat request, its content parts and tool calls shaped as vLLM shapes them.
//! - [`Template`]: a Hugging Face chat template.
//! - [`Tokenizer`]: a Hugging Face `tokenizer.json`. Special tokens cut a text before anything else looks at it, so what
//!   stands between them is tokenised alone, and [`Memo`] remembers it: the next turn of a conversation costs only what
//!   is new in it. The answer is that of the plain tokeniser for every text.
//! - [`Model`]: the three together.
//!
//! Prompts of token ids need none of this: see [`crate::keys::KeySpace::prompt`]. Tokenising a new long text takes tens
//! of milliseconds, so callers do it on threads that may block.

mod chat;
mod memo;
mod model;
mod split;
mod template;
mod tokenizer;

use thiserror::Error;

pub use chat::Chat;
pub use memo::{Memo, MemoStats};
pub use model::Model;
pub use template::{ContentFormat, Rendering, Template};
pub use tokenizer::Tokenizer;

/// Why a prompt has no tokens here; the engine can still be asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TokensError {
    /// A file of the model makes no sense.
    #[error("{file}: {why}")]
    File {
        /// Which one.
        file: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The request is not one that the engine would take.
    #[error("the request makes no sense: {0}")]
    Request(String),
    /// The request has something whose tokens only the engine knows.
    #[error("tokens of {0} are not known here")]
    Unsupported(&'static str),
    /// The template does not take these messages, and says why.
    #[error("the chat template failed: {0}")]
    Template(String),
    /// The tokeniser failed.
    #[error("the tokenizer failed: {0}")]
    Tokenizer(String),
}
