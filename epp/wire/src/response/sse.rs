//! Server-sent events, cut anywhere.
//!
//! Lines end with `\n`, `\r\n` or `\r`; an event ends with an empty line; its `data` lines are joined by `\n`.

use memchr::{memchr2, memmem};

use super::{Seen, usage};

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
}

impl Parser {
    pub(super) fn new(limit: usize) -> Self {
        Parser {
            limit,
            line: Vec::new(),
            data: Vec::new(),
            has_data: false,
            after_cr: false,
        }
    }

    pub(super) fn feed(&mut self, piece: &[u8], seen: &mut Seen) {
        let mut rest = piece;
        while !rest.is_empty() {
            if std::mem::take(&mut self.after_cr)
                && let Some(after) = rest.strip_prefix(b"\n")
            {
                rest = after;
                continue;
            }
            let Some(end) = memchr2(b'\n', b'\r', rest) else {
                self.line.extend_from_slice(rest);
                break;
            };
            let (line, from) = rest.split_at_checked(end).unwrap_or_default();
            self.after_cr = from.first() == Some(&b'\r');
            rest = from.get(1..).unwrap_or_default();
            if self.line.is_empty() {
                self.take(line, seen);
            } else {
                let mut whole = std::mem::take(&mut self.line);
                whole.extend_from_slice(line);
                self.take(&whole, seen);
                whole.clear();
                self.line = whole;
            }
        }
        if self.line.len() + self.data.len() > self.limit {
            seen.gave_up = true;
            self.line = Vec::new();
            self.data = Vec::new();
        }
    }

    pub(super) fn finish(&mut self, seen: &mut Seen) {
        if !self.line.is_empty() {
            let line = std::mem::take(&mut self.line);
            self.take(&line, seen);
        }
        self.dispatch(seen);
    }

    fn take(&mut self, line: &[u8], seen: &mut Seen) {
        if line.is_empty() {
            return self.dispatch(seen);
        }
        let Some(value) = line.strip_prefix(b"data:") else {
            return;
        };
        if self.has_data {
            self.data.push(b'\n');
        }
        self.has_data = true;
        self.data
            .extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
    }

    fn dispatch(&mut self, seen: &mut Seen) {
        if !std::mem::take(&mut self.has_data) {
            return;
        }
        let data = self.data.trim_ascii();
        if data == b"[DONE]" {
            seen.done = true;
        } else if !data.is_empty() && !seen.done {
            seen.events += 1;
            // Most events carry a token and nothing that we want: they are not parsed.
            let wanted = [&b"\"usage\""[..], b"\"error\""];
            if wanted.iter().any(|word| memmem::find(data, word).is_some()) {
                usage::read(data, seen);
            }
        }
        self.data.clear();
    }
}
