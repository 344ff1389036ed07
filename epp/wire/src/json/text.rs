//! A string that stays where it is until somebody needs its characters.

use std::borrow::Cow;

use super::Span;

/// Longer than any name that is looked for, in bytes: what is copied to resolve escapes stays small.
const NAME_LIMIT: usize = 64;

/// A JSON string, found and validated.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Text {
    /// Where it stands, quotes included.
    pub span: Span,
    /// It has escapes, so its characters are not its bytes.
    pub escaped: bool,
    /// Length of its characters in UTF-8, in bytes.
    pub decoded: usize,
}

impl Text {
    /// The bytes between the quotes.
    pub fn raw<'a>(&self, body: &'a [u8]) -> &'a [u8] {
        let end = self.span.end.saturating_sub(1);
        body.get(self.span.start + 1..end).unwrap_or_default()
    }

    /// The characters. A lone surrogate becomes U+FFFD.
    pub fn decode<'a>(&self, body: &'a [u8]) -> Cow<'a, str> {
        let raw = String::from_utf8_lossy(self.raw(body));
        if !self.escaped {
            return raw;
        }
        Cow::Owned(unescape(&raw))
    }

    /// The characters' bytes, to match a known name; empty when longer than any name.
    pub(crate) fn name<'a>(&self, body: &'a [u8]) -> Cow<'a, [u8]> {
        if !self.escaped {
            return Cow::Borrowed(self.raw(body));
        }
        if self.decoded > NAME_LIMIT {
            return Cow::Borrowed(b"");
        }
        Cow::Owned(self.decode(body).into_owned().into_bytes())
    }

    /// True if its characters are these.
    pub fn is(&self, body: &[u8], text: &str) -> bool {
        self.decoded == text.len() && *self.decode(body) == *text
    }
}

/// Resolves the escapes of a validated string.
fn unescape(raw: &str) -> String {
    let mut text = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((plain, after)) = rest.split_once('\\') {
        text.push_str(plain);
        let mut chars = after.chars();
        text.push(match chars.next() {
            Some('u') => {
                let (character, used) = unicode(chars.as_str());
                chars = chars.as_str().get(used..).unwrap_or_default().chars();
                character
            }
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some(other) => other,
            None => return text,
        });
        rest = chars.as_str();
    }
    text.push_str(rest);
    text
}

/// The character of `XXXX` or `XXXX\uYYYY`, and how many bytes it took.
fn unicode(digits: &str) -> (char, usize) {
    let unit = |at: usize| {
        let digits = digits.get(at..at + 4)?;
        u32::from_str_radix(digits, 16).ok()
    };
    let Some(first) = unit(0) else {
        return (char::REPLACEMENT_CHARACTER, digits.len().min(4));
    };
    if let Some(character) = char::from_u32(first) {
        return (character, 4);
    }
    let paired = (0xd800..0xdc00).contains(&first) && digits.get(4..6) == Some("\\u");
    if let Some(second) = unit(6).filter(|second| paired && (0xdc00..0xe000).contains(second)) {
        let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
        return (character, 10);
    }
    (char::REPLACEMENT_CHARACTER, 4)
}
