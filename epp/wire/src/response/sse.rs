//! Server-sent events, cut anywhere.
//!
//! Lines end with `\n`, `\r\n` or `\r`; an event ends with an empty line; its `data` lines are joined by `\n`. A
//! byte order mark at the start is passed over.

use std::sync::LazyLock;

use memchr::{memchr2, memmem::Finder};

use super::{Seen, usage};

const BOM: &[u8] = b"\xef\xbb\xbf";

/// What an event that is worth parsing holds.
static WANTED: LazyLock<[Finder<'static>; 2]> =
    LazyLock::new(|| [Finder::new(b"\"usage\""), Finder::new(b"\"error\"")]);

/// An event stream under way.
#[derive(Debug)]
pub(super) struct Parser {
    limit: usize,
    /// The unfinished line of earlier pieces.
    line: Vec<u8>,
    /// The unfinished event's data.
    data: Vec<u8>,
    has_data: bool,
    /// The last piece ended with `\r`: a `\n` that follows belongs to it.
    after_cr: bool,
    /// No line was read yet.
    first: bool,
}

impl Parser {
    pub(super) fn new(limit: usize) -> Self {
        Parser {
            limit,
            line: Vec::new(),
            data: Vec::new(),
            has_data: false,
            after_cr: false,
            first: true,
        }
    }

    pub(super) fn feed(&mut self, piece: &[u8], seen: &mut Seen) {
        let mut rest = piece;
        if self.after_cr && !rest.is_empty() {
            self.after_cr = false;
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        while let Some(end) = memchr2(b'\n', b'\r', rest) {
            let (line, from) = rest.split_at_checked(end).unwrap_or_default();
            rest = match from {
                [b'\r', b'\n', after @ ..] | [_, after @ ..] => after,
                [] => from,
            };
            self.after_cr = from == b"\r";
            if self.line.is_empty() {
                self.take(line, seen);
            } else {
                let mut whole = std::mem::take(&mut self.line);
                whole.extend_from_slice(line);
                self.take(&whole, seen);
                whole.clear();
                self.line = whole;
            }
            if seen.gave_up {
                return;
            }
        }
        if self.fits(self.line.len() + rest.len(), seen) {
            self.line.extend_from_slice(rest);
        }
    }

    /// The same bound holds for a line in one piece and in many, so that what is read does not depend on the cuts.
    fn fits(&mut self, line: usize, seen: &mut Seen) -> bool {
        if line + self.data.len() <= self.limit {
            return true;
        }
        seen.gave_up = true;
        self.line = Vec::new();
        self.data = Vec::new();
        false
    }

    pub(super) fn finish(&mut self, seen: &mut Seen) {
        if !self.line.is_empty() {
            let line = std::mem::take(&mut self.line);
            self.take(&line, seen);
        }
        if !seen.gave_up {
            self.dispatch(seen);
        }
    }

    fn take(&mut self, line: &[u8], seen: &mut Seen) {
        if !self.fits(line.len(), seen) {
            return;
        }
        let line = if std::mem::take(&mut self.first) {
            line.strip_prefix(BOM).unwrap_or(line)
        } else {
            line
        };
        if line.is_empty() {
            return self.dispatch(seen);
        }
        let value = match line.strip_prefix(b"data") {
            Some([b':', b' ', value @ ..] | [b':', value @ ..] | value @ []) => value,
            Some(_) | None => return,
        };
        if self.has_data {
            self.data.push(b'\n');
        }
        self.has_data = true;
        self.data.extend_from_slice(value);
    }

    fn dispatch(&mut self, seen: &mut Seen) {
        if !std::mem::take(&mut self.has_data) {
            return;
        }
        let data = self.data.trim_ascii();
        if data == b"[DONE]" {
            seen.done = true;
        } else if !data.is_empty() && !seen.done {
            // Most events carry a token and nothing that we want: they are not parsed.
            let worth = WANTED.iter().any(|word| word.find(data).is_some());
            let content = !worth || usage::read_event(data, seen);
            seen.events += u64::from(content);
        }
        self.data.clear();
    }
}
