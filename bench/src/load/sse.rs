//! When the first text comes: reads an event stream as it passes, cut anywhere.

/// Longest unfinished line that is looked at; the text of a longer one is not seen.
const LONGEST: usize = 64 << 10;

/// Fields of a delta that carry something for the reader.
const TEXTS: [&[u8]; 5] = [
    b"\"content\"",
    b"\"text\"",
    b"\"reasoning_content\"",
    b"\"reasoning\"",
    b"\"arguments\"",
];

/// Looks for events with text. An opening event that names the role alone has none.
#[derive(Default)]
pub(super) struct TextWatch {
    line: Vec<u8>,
}

impl TextWatch {
    /// Takes the next piece; true if an event with text ended in it.
    pub(super) fn feed(&mut self, mut piece: &[u8]) -> bool {
        let mut seen = false;
        while let Some(end) = memchr::memchr(b'\n', piece) {
            let (line, rest) = piece.split_at_checked(end).unwrap_or_default();
            if self.line.is_empty() {
                seen |= has_text(line);
            } else {
                self.line.extend_from_slice(line);
                seen |= has_text(&self.line);
                self.line.clear();
            }
            piece = rest.get(1..).unwrap_or_default();
        }
        if self.line.len() + piece.len() <= LONGEST {
            self.line.extend_from_slice(piece);
        }
        seen
    }
}

/// True for a `data:` line in which a text field holds a string that is not empty.
fn has_text(line: &[u8]) -> bool {
    line.starts_with(b"data:") && TEXTS.iter().any(|name| field_has_text(line, name))
}

fn field_has_text(line: &[u8], name: &[u8]) -> bool {
    memchr::memmem::find_iter(line, name).any(|at| {
        let value = line
            .get(at + name.len()..)
            .unwrap_or_default()
            .trim_ascii_start();
        let value = value
            .strip_prefix(b":")
            .unwrap_or_default()
            .trim_ascii_start();
        let inside = value.strip_prefix(b"\"").unwrap_or_default();
        inside.first().is_some_and(|byte| *byte != b'"')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLE: &str =
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
    const TOKEN: &str = "data: {\"choices\":[{\"delta\":{\"content\":\" river\"}}]}\n\n";

    /// How many pieces had text, and in which byte's piece the first one ended.
    fn first(text: &str, step: usize) -> Option<usize> {
        let mut watch = TextWatch::default();
        let mut at = 0;
        for piece in text.as_bytes().chunks(step) {
            at += piece.len();
            if watch.feed(piece) {
                return Some(at);
            }
        }
        None
    }

    #[test]
    fn the_role_is_no_text_and_the_token_is_for_every_cut() {
        let text = format!("{ROLE}{TOKEN}");
        let end = text.len() - 1;
        assert_eq!(first(&text, 1), Some(end));
        for step in 2..text.len() {
            let at = first(&text, step).unwrap();
            assert!(at >= end && at < end + step, "{step}: {at}");
        }
        assert_eq!(first(ROLE, 7), None);
        assert_eq!(first("data: [DONE]\n\n", 3), None);
    }

    #[test]
    fn other_spellings_are_text_too() {
        for text in [
            "data:{\"choices\":[{\"text\": \"x\"}]}\n",
            "data: {\"choices\":[{\"delta\":{\"content\" : null,\"reasoning_content\":\"a\"}}]}\r\n",
            "data: {\"delta\":{\"tool_calls\":[{\"function\":{\"arguments\":\"{\"}}]}}\n",
        ] {
            assert!(first(text, 5).is_some(), "{text}");
        }
        for text in [
            ": content\n",
            "event: \"content\":\"x\"\n",
            "data: {\"content\":null}\n",
            "data: {\"content\":[\"x\"]}\n",
            "data: {\"content\"\n",
        ] {
            assert_eq!(first(text, 5), None, "{text}");
        }
    }

    #[test]
    fn a_line_without_end_is_bounded() {
        let mut watch = TextWatch::default();
        for _ in 0..100 {
            assert!(!watch.feed(&[b'a'; 4096]));
        }
        assert!(watch.line.len() <= LONGEST);
    }
}
