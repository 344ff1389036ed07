//! What matters of a request body: one pass, spans instead of copies, never more than the grammar judged.
//!
//! A field of an unexpected type is simply absent: the model server is the judge of shapes. Of duplicate keys
//! the last one wins, as in the engines' own parsers; keys are compared with their escapes resolved.

mod api;
mod chat;
mod facts;
mod identity;
mod prompt;
mod scan;

pub use api::Api;
pub use facts::{Prompt, RequestFacts};
pub use scan::{scan_request, scan_unknown};
