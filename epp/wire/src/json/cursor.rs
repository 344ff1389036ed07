//! The scanner itself.

use memchr::memchr2;

use super::{MAX_DEPTH, ScanError, Span, Text, run};

/// What a value is, told by its first byte.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// `{`
    Object,
    /// `[`
    Array,
    /// `"`
    String,
    /// A digit or `-`
    Number,
    /// `true`
    True,
    /// `false`
    False,
    /// `null`
    Null,
}

/// A position in a text. Every step validates what it passes.
#[derive(Debug)]
pub struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
    depth: u32,
}

impl<'a> Cursor<'a> {
    /// At the start of a text.
    pub fn new(text: &'a [u8]) -> Self {
        Cursor {
            text,
            at: 0,
            depth: 0,
        }
    }

    /// Bytes passed.
    pub fn at(&self) -> usize {
        self.at
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn truncated(&self) -> ScanError {
        ScanError::Truncated {
            offset: self.text.len(),
        }
    }

    fn wrong(&self, what: &'static str) -> ScanError {
        if self.at >= self.text.len() {
            return self.truncated();
        }
        ScanError::NotJson {
            offset: self.at,
            what,
        }
    }

    /// Passes white space.
    pub fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    /// Nothing but white space is left.
    ///
    /// # Errors
    /// When something else is.
    pub fn end(&mut self) -> Result<(), ScanError> {
        self.space();
        if self.at == self.text.len() {
            Ok(())
        } else {
            Err(self.wrong("something follows the value"))
        }
    }

    /// What the next value is; white space before it is passed.
    ///
    /// # Errors
    /// When no value begins here.
    pub fn kind(&mut self) -> Result<Kind, ScanError> {
        self.space();
        match self.peek() {
            Some(b'{') => Ok(Kind::Object),
            Some(b'[') => Ok(Kind::Array),
            Some(b'"') => Ok(Kind::String),
            Some(b'-' | b'0'..=b'9') => Ok(Kind::Number),
            Some(b't') => Ok(Kind::True),
            Some(b'f') => Ok(Kind::False),
            Some(b'n') => Ok(Kind::Null),
            Some(_) | None => Err(self.wrong("expected a value")),
        }
    }

    fn enter(&mut self) -> Result<(), ScanError> {
        if self.depth >= MAX_DEPTH {
            return Err(ScanError::TooDeep {
                offset: self.at,
                limit: MAX_DEPTH,
            });
        }
        self.depth += 1;
        self.at += 1;
        Ok(())
    }

    /// Passes an object and gives each member to `member` with the cursor at its value, which `member` must
    /// pass. Returns the object's span.
    ///
    /// # Errors
    /// When the object is not well formed, or `member` fails.
    pub fn object(
        &mut self,
        mut member: impl FnMut(&mut Self, &Text) -> Result<(), ScanError>,
    ) -> Result<Span, ScanError> {
        let start = self.at;
        self.enter()?;
        self.space();
        if self.peek() == Some(b'}') {
            return Ok(self.leave(start));
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return Err(self.wrong("expected a key"));
            }
            let key = self.string()?;
            self.space();
            if self.peek() != Some(b':') {
                return Err(self.wrong("expected `:`"));
            }
            self.at += 1;
            self.space();
            member(self, &key)?;
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => return Ok(self.leave(start)),
                Some(_) | None => return Err(self.wrong("expected `,` or `}`")),
            }
        }
    }

    /// Passes an array and calls `element` at each value, which it must pass. Returns the array's span.
    ///
    /// # Errors
    /// When the array is not well formed, or `element` fails.
    pub fn array(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), ScanError>,
    ) -> Result<Span, ScanError> {
        let start = self.at;
        self.enter()?;
        self.space();
        if self.peek() == Some(b']') {
            return Ok(self.leave(start));
        }
        loop {
            self.space();
            element(self)?;
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => return Ok(self.leave(start)),
                Some(_) | None => return Err(self.wrong("expected `,` or `]`")),
            }
        }
    }

    fn leave(&mut self, start: usize) -> Span {
        self.depth -= 1;
        self.at += 1;
        start..self.at
    }

    /// Passes any value; returns its span.
    ///
    /// # Errors
    /// When it is not well formed.
    pub fn skip(&mut self) -> Result<Span, ScanError> {
        match self.kind()? {
            Kind::Object => self.object(|cursor, _| cursor.pass()),
            Kind::Array => self.array(Self::pass),
            Kind::String => self.string().map(|text| text.span),
            Kind::Number => self.number(),
            Kind::True => self.literal(b"true"),
            Kind::False => self.literal(b"false"),
            Kind::Null => self.literal(b"null"),
        }
    }

    /// Passes any value.
    ///
    /// # Errors
    /// When it is not well formed.
    pub fn pass(&mut self) -> Result<(), ScanError> {
        self.skip()?;
        Ok(())
    }

    /// Passes a string if there is one, else any value.
    ///
    /// # Errors
    /// When it is not well formed.
    pub fn string_or_skip(&mut self) -> Result<Option<Text>, ScanError> {
        if self.kind()? == Kind::String {
            return self.string().map(Some);
        }
        self.skip().map(|_| None)
    }

    /// Passes a number; gives it as an unsigned integer if it is written as one and fits.
    ///
    /// # Errors
    /// When it is not well formed.
    pub fn unsigned_or_skip(&mut self) -> Result<Option<u64>, ScanError> {
        let span = self.skip()?;
        let digits = self.text.get(span).unwrap_or_default();
        Ok(std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| digits.parse().ok()))
    }

    /// Passes a boolean, else any value.
    ///
    /// # Errors
    /// When it is not well formed.
    pub fn bool_or_skip(&mut self) -> Result<Option<bool>, ScanError> {
        let kind = self.kind()?;
        self.skip()?;
        Ok(match kind {
            Kind::True => Some(true),
            Kind::False => Some(false),
            Kind::Object | Kind::Array | Kind::String | Kind::Number | Kind::Null => None,
        })
    }

    fn literal(&mut self, word: &'static [u8]) -> Result<Span, ScanError> {
        let start = self.at;
        for expected in word {
            if self.peek() != Some(*expected) {
                return Err(self.wrong("expected true, false or null"));
            }
            self.at += 1;
        }
        Ok(start..self.at)
    }

    fn digits(&mut self) -> Result<(), ScanError> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let length = rest.iter().position(|byte| !byte.is_ascii_digit());
        match length.unwrap_or(rest.len()) {
            0 => Err(self.wrong("expected a digit")),
            length => {
                self.at += length;
                Ok(())
            }
        }
    }

    fn number(&mut self) -> Result<Span, ScanError> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(start..self.at)
    }

    /// Passes a string; the cursor is at its first quote.
    fn string(&mut self) -> Result<Text, ScanError> {
        let start = self.at;
        self.at += 1;
        let (mut escaped, mut decoded) = (false, 0);
        loop {
            let rest = self.text.get(self.at..).unwrap_or_default();
            let mut length = run::plain(rest);
            // Not at its end yet: a long run, or characters that need a closer look.
            if !matches!(rest.get(length), Some(b'"' | b'\\')) {
                length += self.stretch(length)?;
            }
            decoded += length;
            self.at += length;
            let Some(end) = self.peek() else {
                return Err(self.truncated());
            };
            self.at += 1;
            if end == b'"' {
                let span = start..self.at;
                return Ok(Text {
                    span,
                    escaped,
                    decoded,
                });
            }
            escaped = true;
            decoded += self.escape()?;
        }
    }

    /// Checks the characters from `ahead` bytes ahead to the next quote or escape; returns their length.
    fn stretch(&self, ahead: usize) -> Result<usize, ScanError> {
        let start = self.at + ahead;
        let rest = self.text.get(start..).unwrap_or_default();
        let length = memchr2(b'"', b'\\', rest);
        let bytes = rest.get(..length.unwrap_or(rest.len())).unwrap_or_default();
        // Folding without an early exit lets the compiler look at many bytes at once.
        if bytes.iter().fold(false, |bad, byte| bad | (*byte < 0x20)) {
            let offset = bytes.iter().position(|byte| *byte < 0x20).unwrap_or(0);
            return Err(ScanError::NotJson {
                offset: start + offset,
                what: "a control character in a string",
            });
        }
        if let Err(error) = std::str::from_utf8(bytes) {
            // Cut inside a character: more bytes could have made it whole.
            if error.error_len().is_none() && length.is_none() {
                return Err(self.truncated());
            }
            return Err(ScanError::NotUtf8 {
                offset: start + error.valid_up_to(),
            });
        }
        Ok(bytes.len())
    }

    /// Passes an escape after its backslash; returns the length of its character in UTF-8.
    fn escape(&mut self) -> Result<usize, ScanError> {
        let length = match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 1,
            Some(b'u') => {
                self.at += 1;
                return self.unicode();
            }
            Some(_) | None => return Err(self.wrong("an unknown escape")),
        };
        self.at += 1;
        Ok(length)
    }

    fn unicode(&mut self) -> Result<usize, ScanError> {
        let first = self.hex()?;
        let pair = self.text.get(self.at..self.at + 2) == Some(b"\\u");
        if !(0xd800..0xdc00).contains(&first) || !pair {
            return Ok(char::from_u32(first).map_or(3, char::len_utf8));
        }
        let back = self.at;
        self.at += 2;
        if (0xdc00..0xe000).contains(&self.hex()?) {
            return Ok(4);
        }
        // Two escapes, the first of them a lone surrogate: the second is looked at again.
        self.at = back;
        Ok(3)
    }

    fn hex(&mut self) -> Result<u32, ScanError> {
        let mut value = 0;
        for _ in 0..4 {
            let digit = match self.peek() {
                Some(byte @ b'0'..=b'9') => byte - b'0',
                Some(byte @ b'a'..=b'f') => byte - b'a' + 10,
                Some(byte @ b'A'..=b'F') => byte - b'A' + 10,
                Some(_) | None => return Err(self.wrong("expected four hexadecimal digits")),
            };
            value = value * 16 + u32::from(digit);
            self.at += 1;
        }
        Ok(value)
    }
}
