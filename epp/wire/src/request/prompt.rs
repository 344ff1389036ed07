//! `prompt` and `input`: a text, texts, token ids, or a mixture.

use super::Prompt;
use crate::json::{Cursor, Kind, ScanError};

/// What the value holds.
#[derive(Default)]
pub(super) struct Found {
    pub(super) text_bytes: u64,
    pub(super) token_ids: u64,
    texts: u32,
    id_sequences: u32,
    /// Numbers stand in the outer array itself: one sequence together.
    loose: bool,
    /// It is one text, not an array of one.
    single: bool,
}

/// Passes the value.
pub(super) fn scan(cursor: &mut Cursor<'_>) -> Result<Found, ScanError> {
    let mut found = Found::default();
    match cursor.kind()? {
        Kind::String => {
            found.single = true;
            element(cursor, &mut found)?;
        }
        Kind::Array => {
            cursor.array(|cursor| element(cursor, &mut found))?;
        }
        Kind::Object | Kind::Number | Kind::True | Kind::False | Kind::Null => cursor.pass()?,
    }
    Ok(found)
}

fn element(cursor: &mut Cursor<'_>, found: &mut Found) -> Result<(), ScanError> {
    match cursor.kind()? {
        Kind::String => {
            if let Some(text) = cursor.string_or_skip()? {
                found.texts = found.texts.saturating_add(1);
                found.text_bytes += text.decoded as u64;
            }
        }
        Kind::Number => {
            cursor.pass()?;
            found.token_ids += 1;
            found.loose = true;
        }
        Kind::Array => {
            cursor.array(|cursor| {
                found.token_ids += u64::from(cursor.kind()? == Kind::Number);
                cursor.pass()
            })?;
            found.id_sequences = found.id_sequences.saturating_add(1);
        }
        Kind::Object | Kind::True | Kind::False | Kind::Null => cursor.pass()?,
    }
    Ok(())
}

impl Found {
    pub(super) fn prompt(&self) -> Prompt {
        let sequences = self.id_sequences.saturating_add(u32::from(self.loose));
        match (self.texts, sequences) {
            (0, 0) => Prompt::None,
            (_, 0) if self.single => Prompt::Text {
                bytes: self.text_bytes,
            },
            (count, 0) => Prompt::Texts {
                count,
                bytes: self.text_bytes,
            },
            (0, sequences) => Prompt::TokenIds {
                count: self.token_ids,
                sequences,
            },
            (_, _) => Prompt::Mixed,
        }
    }
}
