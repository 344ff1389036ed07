//! Requests and answers shaped as vLLM's.

mod answer;
mod embeddings;
mod error;
mod fields;
mod generate;
mod prompt;
mod tokens;
pub(super) mod usage;

pub(super) use answer::{Answer, Dialect};
pub(super) use embeddings::embeddings;
pub(super) use error::ApiError;
pub(super) use generate::generate;
pub(super) use tokens::{detokenize, models, render, tokenize};

/// What every answer says of who made it.
pub(super) const FINGERPRINT: &str = "wicketgate-emulated";
