//! A JSON answer, cut anywhere: the root's `usage` and `error` without the rest.

use memchr::memchr2;

use super::{Seen, usage};

/// Longest key of the root that is kept: longer than any that is wanted.
const KEY_LIMIT: usize = 16;

/// What is going on at the root.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    /// Before a key, or outside the root.
    Key,
    /// After the key that was read last.
    Value(Wanted),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Wanted {
    Usage,
    Error,
    Nothing,
}

/// An answer under way. Follows strings and depth; validates nothing.
#[derive(Debug)]
pub(super) struct Scanner {
    limit: usize,
    depth: u32,
    in_string: bool,
    escaped: bool,
    at: At,
    /// The string at the root that is being read: a key, perhaps.
    key: Vec<u8>,
    /// The value of `usage` so far.
    value: Vec<u8>,
}

impl Scanner {
    pub(super) fn new(limit: usize) -> Self {
        Scanner {
            limit,
            depth: 0,
            in_string: false,
            escaped: false,
            at: At::Key,
            key: Vec::new(),
            value: Vec::new(),
        }
    }

    pub(super) fn feed(&mut self, piece: &[u8], seen: &mut Seen) {
        let mut rest = piece;
        while !rest.is_empty() && !seen.gave_up {
            let passed = self.passed(rest);
            let (text, from) = rest.split_at_checked(passed).unwrap_or_default();
            self.keep(text, seen);
            let Some((byte, after)) = from.split_first() else {
                break;
            };
            self.step(*byte, seen);
            rest = after;
        }
    }

    /// How many bytes need no look at each.
    fn passed(&self, rest: &[u8]) -> usize {
        let next = if self.in_string {
            if self.escaped {
                return 0;
            }
            memchr2(b'"', b'\\', rest)
        } else if self.depth > 1 && self.at == At::Value(Wanted::Nothing) {
            // Inside a value that does not matter: an embedding is many numbers long.
            let structure = |byte: &u8| matches!(byte, b'"' | b'[' | b']' | b'{' | b'}');
            rest.iter().position(structure)
        } else {
            return 0;
        };
        next.unwrap_or(rest.len())
    }

    /// Keeps bytes that belong to a key or to the wanted value.
    fn keep(&mut self, bytes: &[u8], seen: &mut Seen) {
        match self.at {
            At::Key if self.in_string && self.depth == 1 => {
                let room = KEY_LIMIT.saturating_sub(self.key.len());
                self.key.extend(bytes.iter().take(room));
            }
            At::Value(Wanted::Usage) if self.value.len() + bytes.len() > self.limit => {
                seen.gave_up = true;
                self.value = Vec::new();
            }
            At::Value(Wanted::Usage) => self.value.extend_from_slice(bytes),
            At::Key | At::Value(Wanted::Error | Wanted::Nothing) => {}
        }
    }

    fn step(&mut self, byte: u8, seen: &mut Seen) {
        if self.in_string {
            self.keep(&[byte], seen);
            if std::mem::take(&mut self.escaped) {
                return;
            }
            match byte {
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                if self.at == At::Key {
                    self.key.clear();
                } else {
                    self.error(seen);
                    self.keep(&[byte], seen);
                }
            }
            b':' if self.depth == 1 && self.at == At::Key => self.begin_value(),
            b',' if self.depth == 1 => self.end_value(seen),
            b'{' | b'[' => {
                self.error(seen);
                self.keep(&[byte], seen);
                self.depth = self.depth.saturating_add(1);
            }
            b'}' | b']' => {
                if self.depth == 1 {
                    self.end_value(seen);
                } else {
                    self.keep(&[byte], seen);
                }
                self.depth = self.depth.saturating_sub(1);
            }
            b' ' | b'\n' | b'\r' | b'\t' => {}
            b'n' => self.null(byte, seen),
            _ => {
                self.error(seen);
                self.keep(&[byte], seen);
            }
        }
    }

    fn begin_value(&mut self) {
        // The quote that ends the key was kept with it.
        let wanted = match self.key.as_slice() {
            b"usage\"" => Wanted::Usage,
            b"error\"" => Wanted::Error,
            _ => Wanted::Nothing,
        };
        self.at = At::Value(wanted);
        self.value.clear();
    }

    fn end_value(&mut self, seen: &mut Seen) {
        if self.at == At::Value(Wanted::Usage) {
            let mut cursor = crate::json::Cursor::new(&self.value);
            if self.value.first() == Some(&b'{')
                && let Ok(usage) = usage::object(&self.value, &mut cursor)
            {
                seen.usage.merge(usage);
            }
        }
        self.at = At::Key;
        self.key.clear();
    }

    /// Any value but `null` means that there is an error.
    fn error(&mut self, seen: &mut Seen) {
        if self.depth == 1 && self.at == At::Value(Wanted::Error) {
            seen.error = true;
            self.at = At::Value(Wanted::Nothing);
        }
    }

    /// The first letter of `null`: the value tells nothing, nor do its other letters.
    fn null(&mut self, byte: u8, seen: &mut Seen) {
        self.keep(&[byte], seen);
        if self.depth == 1 && self.at == At::Value(Wanted::Error) {
            self.at = At::Value(Wanted::Nothing);
        }
    }
}
