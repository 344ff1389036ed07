//! Follows the bytes of an HTTP/1 caller beside the parser, for what the parser does not tell: a request with a length
//! and a transfer coding comes out of it as if it had no length, and a length that no number holds as any other fault.
//!
//! It decides nothing about where a request ends: the parser does. Where the two could disagree, the parser ends the
//! connection.

use std::collections::VecDeque;

use crate::headers;

/// Most of a header line that is looked at: more than any line with a length has in earnest.
const LINE: usize = 256;

/// What a request's head says of its framing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// It has a `content-length`: digits, which `u64` may be too small for.
    pub(super) length: Option<u64>,
    /// It has a `content-length` of any kind.
    has_length: bool,
    /// It has a `transfer-encoding`.
    coded: bool,
}

impl Head {
    /// It says in two ways how long it is.
    pub(super) fn ambiguous(&self) -> bool {
        self.has_length && self.coded
    }
}

/// Where in the stream of requests the next byte belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// In a head; true before its first line has begun.
    Head(bool),
    /// In a body of which so many bytes are left.
    Body(u64),
    /// In the line with a chunk's size.
    Size,
    /// In a chunk of which so many bytes are left, its line end included.
    Chunk(u64),
    /// In the lines after the last chunk.
    Trailers,
    /// Nowhere that means anything: the parser ends the connection here.
    Lost,
}

/// Follows one connection.
#[derive(Debug)]
pub(super) struct Framing {
    at: At,
    line: Vec<u8>,
    head: Head,
    heads: VecDeque<Head>,
}

impl Default for Framing {
    fn default() -> Self {
        Framing {
            at: At::Head(true),
            line: Vec::new(),
            head: Head::default(),
            heads: VecDeque::new(),
        }
    }
}

impl Framing {
    /// Takes bytes as they come in.
    pub(super) fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            bytes = match self.at {
                At::Body(left) => self.skip(bytes, left, At::Body, At::Head(true)),
                At::Chunk(left) => self.skip(bytes, left, At::Chunk, At::Size),
                At::Head(_) | At::Size | At::Trailers => self.take_line(bytes),
                At::Lost => return,
            };
        }
    }

    /// The oldest head that was seen to its end and not asked for.
    pub(super) fn next(&mut self) -> Option<Head> {
        self.heads.pop_front()
    }

    fn skip<'a>(&mut self, bytes: &'a [u8], left: u64, more: fn(u64) -> At, after: At) -> &'a [u8] {
        let there = bytes.len() as u64;
        if there < left {
            self.at = more(left - there);
            return &[];
        }
        self.at = after;
        let end = usize::try_from(left).unwrap_or(bytes.len());
        bytes.get(end..).unwrap_or_default()
    }

    fn take_line<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let (part, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
        let room = LINE.saturating_sub(self.line.len());
        self.line.extend(part.iter().take(room));
        if end.is_some() {
            let line = std::mem::take(&mut self.line);
            self.at = self.after_line(line.trim_ascii());
            self.line = line;
            self.line.clear();
        }
        rest
    }

    fn after_line(&mut self, line: &[u8]) -> At {
        match self.at {
            // Empty lines before a request are skipped.
            At::Head(true) => At::Head(line.is_empty()),
            At::Head(false) if line.is_empty() => self.after_head(),
            At::Head(false) => {
                self.header(line);
                At::Head(false)
            }
            At::Size => match size(line) {
                None => At::Lost,
                Some(0) => At::Trailers,
                Some(size) => At::Chunk(size.saturating_add(2)),
            },
            At::Trailers if line.is_empty() => At::Head(true),
            other @ (At::Trailers | At::Body(_) | At::Chunk(_) | At::Lost) => other,
        }
    }

    fn header(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            return;
        };
        let (name, value) = line.split_at(colon);
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.head.coded = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            self.head.has_length = true;
            let value = value.get(1..).unwrap_or_default().trim_ascii();
            let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
            self.head.length = digits.then(|| headers::parse_length(value).unwrap_or(u64::MAX));
        }
    }

    fn after_head(&mut self) -> At {
        let head = std::mem::take(&mut self.head);
        self.heads.push_back(head);
        match head {
            Head { coded: true, .. } => At::Size,
            Head { length: None, .. }
            | Head {
                length: Some(0), ..
            } => At::Head(true),
            Head {
                length: Some(length),
                ..
            } => At::Body(length),
        }
    }
}

/// The size that a chunk begins with.
fn size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?.trim_ascii();
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn heads(bytes: &[u8]) -> Vec<Head> {
        let mut framing = Framing::default();
        framing.read(bytes);
        std::iter::from_fn(|| framing.next()).collect()
    }

    const STREAM: &[u8] = b"\r\nPOST /a HTTP/1.1\r\nhost: a\r\nContent-Length: 13\r\n\r\nGET / HTTP/1.1\
        PUT /b HTTP/1.1\nTRANSFER-ENCODING: chunked\n\n3;x=y\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\nx-t: 1\r\n\r\n\
        GET /c HTTP/1.1\r\n\r\n\
        POST /d HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n\
        POST /e HTTP/1.1\r\ncontent-length: 99999999999999999999\r\n\r\n";

    fn expected() -> Vec<Head> {
        let with = |length, coded| Head {
            length,
            has_length: length.is_some(),
            coded,
        };
        vec![
            with(Some(14), false),
            with(None, true),
            with(None, false),
            with(Some(5), true),
            with(Some(u64::MAX), false),
        ]
    }

    fn stream() -> Vec<u8> {
        // The first body is 14 bytes long and looks like a head.
        let text = String::from_utf8(STREAM.to_vec()).unwrap();
        text.replace("Length: 13", "Length: 14").into_bytes()
    }

    #[test]
    fn heads_are_found_where_they_are() {
        let found = heads(&stream());
        assert_eq!(found, expected());
        let ambiguous: Vec<bool> = found.iter().map(Head::ambiguous).collect();
        assert_eq!(ambiguous, [false, false, false, true, false]);
    }

    #[test]
    fn what_cannot_be_followed_is_not_followed() {
        let bad = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n";
        assert_eq!(heads(bad).len(), 1);
        let huge = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n";
        assert_eq!(heads(huge).len(), 1);
        assert_eq!(heads(b"nonsense"), []);
    }

    proptest! {
        #[test]
        fn however_it_is_cut(cuts in prop::collection::vec(0..STREAM.len(), 0..9)) {
            let (stream, mut cuts) = (stream(), cuts);
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let mut framing = Framing::default();
            for pair in cuts.windows(2) {
                framing.read(&stream[pair[0]..pair[1]]);
            }
            let found: Vec<Head> = std::iter::from_fn(|| framing.next()).collect();
            prop_assert_eq!(found, expected());
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            heads(&bytes);
        }
    }
}
