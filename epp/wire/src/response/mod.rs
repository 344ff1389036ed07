//! Reads an answer as it passes: usage, errors, the first token. Any chunk borders, bounded memory, no copy of
//! what does not matter. The bytes themselves go on untouched, whatever is found here.

mod json;
mod sse;
mod usage;

pub use usage::Usage;

/// Longest event or value that is kept for reading, in bytes. Beyond it observation is given up; relay goes on.
pub const TAIL_LIMIT: usize = 1 << 20;

/// Observes one answer.
#[derive(Debug)]
pub struct UsageObserver {
    seen: Seen,
    format: Format,
}

/// What was found.
#[derive(Debug, Default)]
struct Seen {
    usage: Usage,
    events: u64,
    done: bool,
    error: bool,
    gave_up: bool,
}

#[derive(Debug)]
enum Format {
    Json(json::Scanner),
    Sse(sse::Parser),
}

impl UsageObserver {
    /// For `application/json`: reads the root's `usage` and `error`.
    pub fn json() -> Self {
        Self::json_with_limit(TAIL_LIMIT)
    }

    /// Like [`UsageObserver::json`], keeping at most `limit` bytes of the value of `usage`.
    pub fn json_with_limit(limit: usize) -> Self {
        UsageObserver {
            seen: Seen::default(),
            format: Format::Json(json::Scanner::new(limit)),
        }
    }

    /// For `text/event-stream`.
    pub fn sse() -> Self {
        Self::sse_with_limit(TAIL_LIMIT)
    }

    /// Like [`UsageObserver::sse`], keeping at most `limit` bytes of an unfinished event.
    pub fn sse_with_limit(limit: usize) -> Self {
        UsageObserver {
            seen: Seen::default(),
            format: Format::Sse(sse::Parser::new(limit)),
        }
    }

    /// Takes the next piece.
    pub fn feed(&mut self, piece: &[u8]) {
        if self.seen.gave_up {
            return;
        }
        match &mut self.format {
            Format::Json(scanner) => scanner.feed(piece, &mut self.seen),
            Format::Sse(parser) => parser.feed(piece, &mut self.seen),
        }
    }

    /// Nothing more comes. An event without its final blank line still counts.
    pub fn finish(&mut self) {
        if let (Format::Sse(parser), false) = (&mut self.format, self.seen.gave_up) {
            parser.finish(&mut self.seen);
        }
    }

    /// The counts found so far.
    pub fn usage(&self) -> Usage {
        self.seen.usage
    }

    /// True once an event with content was seen.
    pub fn first_content(&self) -> bool {
        self.seen.events > 0
    }

    /// Events with content. `[DONE]`, errors, and events that bring `usage` without `choices` have none.
    pub fn events(&self) -> u64 {
        self.seen.events
    }

    /// True once `[DONE]` was seen.
    pub fn done(&self) -> bool {
        self.seen.done
    }

    /// True once an event, or the root of a JSON answer, had an `error` that is not null.
    pub fn error_seen(&self) -> bool {
        self.seen.error
    }

    /// True if something was too long to be read; what was found before stays.
    pub fn gave_up(&self) -> bool {
        self.seen.gave_up
    }
}

#[cfg(test)]
mod tests;
