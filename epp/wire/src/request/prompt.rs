//! `prompt` and `input`: a text, texts, token ids, or a mixture.

use super::Prompt;
use crate::json::{Cursor, Kind, ScanError};

#[derive(Default)]
struct Count {
    texts: u32,
    text_bytes: u64,
    tokens: u64,
    id_sequences: u32,
    /// Numbers that stand in the outer array itself: one sequence together.
    loose: bool,
}

/// Passes the value; returns what it is and the length of its text in bytes.
pub(super) fn scan(cursor: &mut Cursor<'_>) -> Result<(Prompt, u64), ScanError> {
    match cursor.kind()? {
        Kind::String => {
            let text = cursor.string_or_skip()?;
            let bytes = text.map_or(0, |text| text.decoded as u64);
            Ok((Prompt::Text, bytes))
        }
        Kind::Array => {
            let mut count = Count::default();
            cursor.array(|cursor| element(cursor, &mut count))?;
            Ok((count.prompt(), count.text_bytes))
        }
        Kind::Object | Kind::Number | Kind::True | Kind::False | Kind::Null => {
            cursor.skip()?;
            Ok((Prompt::None, 0))
        }
    }
}

fn element(cursor: &mut Cursor<'_>, count: &mut Count) -> Result<(), ScanError> {
    match cursor.kind()? {
        Kind::String => {
            if let Some(text) = cursor.string_or_skip()? {
                count.texts = count.texts.saturating_add(1);
                count.text_bytes += text.decoded as u64;
            }
        }
        Kind::Number => {
            cursor.skip()?;
            count.tokens += 1;
            count.loose = true;
        }
        Kind::Array => {
            cursor.array(|cursor| {
                count.tokens += u64::from(cursor.kind()? == Kind::Number);
                cursor.pass()
            })?;
            count.id_sequences = count.id_sequences.saturating_add(1);
        }
        Kind::Object | Kind::True | Kind::False | Kind::Null => cursor.pass()?,
    }
    Ok(())
}

impl Count {
    fn prompt(&self) -> Prompt {
        let sequences = self.id_sequences.saturating_add(u32::from(self.loose));
        match (self.texts, sequences) {
            (0, 0) => Prompt::None,
            (count, 0) => Prompt::Texts { count },
            (0, sequences) => Prompt::TokenIds {
                tokens: self.tokens,
                sequences,
            },
            (texts, sequences) => Prompt::Mixed {
                tokens: self.tokens,
                sequences: sequences.saturating_add(texts),
            },
        }
    }
}
