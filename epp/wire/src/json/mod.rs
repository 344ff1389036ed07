//! A validating JSON scanner: one pass, no allocation, bounded depth.
//!
//! Accepts exactly RFC 8259 texts in UTF-8, with these decisions: nesting deeper than [`MAX_DEPTH`] is refused;
//! an escaped lone surrogate is accepted (the model server judges it) and decodes to U+FFFD; a byte order mark
//! is refused; duplicate keys are the caller's to resolve, and every caller here lets the last one win.

mod cursor;
mod quote;
mod run;
mod text;

pub use cursor::{Cursor, Kind};
pub use quote::quote;
pub use text::Text;

/// Byte offsets into a body.
pub type Span = std::ops::Range<usize>;

/// Deepest nesting of arrays and objects.
pub const MAX_DEPTH: u32 = 128;

/// Why a body is not what its path promises. Offsets count bytes from 0.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ScanError {
    /// There is nothing but white space.
    #[error("it is empty, expected a JSON object")]
    Empty,
    /// The text is JSON, but not an object.
    #[error("it is not a JSON object")]
    NotAnObject,
    /// The text breaks the grammar.
    #[error("invalid JSON at byte {offset}: {what}")]
    NotJson {
        /// Where.
        offset: usize,
        /// What was expected or found.
        what: &'static str,
    },
    /// The text ends in the middle of something.
    #[error("the JSON ends early, at byte {offset}")]
    Truncated {
        /// Its length.
        offset: usize,
    },
    /// A string is not UTF-8.
    #[error("a string is not UTF-8 at byte {offset}")]
    NotUtf8 {
        /// The first bad byte.
        offset: usize,
    },
    /// Arrays and objects are nested deeper than the limit.
    #[error("nested deeper than {limit} levels at byte {offset}")]
    TooDeep {
        /// Where it goes too deep.
        offset: usize,
        /// [`MAX_DEPTH`].
        limit: u32,
    },
}
