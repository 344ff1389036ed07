//! A small tokeniser and chat template.
//!
//! Words that the engine generates are one token each, whether generated or read back, so the answer of one turn
//! is the prefix of the next one's prompt, as with a real tokeniser. Other text is cut into pieces of at most four
//! characters at word borders, about as long as real tokens are.

use std::fmt::Write as _;

use xxhash_rust::xxh3::xxh3_64;

/// Words that the engine generates: token ids below this.
pub const WORDS: u32 = 4096;
/// Ids of pieces of other text begin here.
const PIECES: u32 = 8192;
/// Ids of the template's marks.
const ROLE: u32 = 5000;
const END: u32 = 6000;

const HEADS: [&str; 16] = [
    "ba", "co", "de", "fi", "gu", "ha", "jo", "ka", "li", "mo", "nu", "pa", "ro", "se", "ti", "vu",
];

/// Appends the text of a token: three syllables for a generated word, `<|id|>` for anything else, whose text is
/// not known any more.
pub fn push_word(token: u32, text: &mut String) {
    if token >= WORDS {
        let _ = write!(text, "<|{token}|>");
        return;
    }
    for shift in [8, 4, 0] {
        let index = (token >> shift) & 15;
        text.push_str(HEADS.get(index as usize).copied().unwrap_or_default());
    }
}

/// The token of a text that [`push_word`] made.
fn known(piece: &str) -> Option<u32> {
    if let Some(rest) = piece.strip_prefix("<|") {
        return rest.strip_suffix("|>")?.parse().ok();
    }
    if piece.len() != 6 || !piece.is_ascii() {
        return None;
    }
    let syllable = |at: usize| {
        let part = piece.get(at..at + 2)?;
        let index = HEADS.iter().position(|head| *head == part)?;
        u32::try_from(index).ok()
    };
    Some(syllable(0)? << 8 | syllable(2)? << 4 | syllable(4)?)
}

/// The text of tokens, each but the first after a space. [`tokenize`] reads it back to the same tokens.
pub fn detokenize(tokens: &[u32]) -> String {
    let mut text = String::with_capacity(tokens.len() * 7);
    for (index, token) in tokens.iter().enumerate() {
        if index > 0 {
            text.push(' ');
        }
        push_word(*token, &mut text);
    }
    text
}

/// The tokens of a text.
pub fn tokenize(text: &str) -> Vec<u32> {
    let mut tokens = Vec::with_capacity(text.len() / 4 + 1);
    push_text(text, &mut tokens);
    tokens
}

fn push_text(text: &str, tokens: &mut Vec<u32>) {
    for piece in text.split(' ').filter(|piece| !piece.is_empty()) {
        match known(piece) {
            Some(token) => tokens.push(token),
            None => push_pieces(piece, tokens),
        }
    }
}

fn push_pieces(piece: &str, tokens: &mut Vec<u32>) {
    let mut rest = piece;
    while !rest.is_empty() {
        let end = rest.char_indices().nth(4).map_or(rest.len(), |(at, _)| at);
        let (head, after) = rest.split_at_checked(end).unwrap_or((rest, ""));
        let hash = u32::try_from(xxh3_64(head.as_bytes()) % 100_000).unwrap_or(0);
        tokens.push(PIECES + hash);
        rest = after;
    }
}

/// The prompt of a chat: for each message a mark of its role, its text, an end mark; then, with `generation`, the
/// mark of the assistant, whose answer comes next. A chat's prompt and its answer are the head of the next turn's
/// prompt.
pub fn chat<'a>(
    messages: impl IntoIterator<Item = (&'a str, &'a str)>,
    generation: bool,
) -> Vec<u32> {
    let mut tokens = Vec::new();
    for (role, text) in messages {
        tokens.push(mark(role));
        push_text(text, &mut tokens);
        tokens.push(END);
    }
    if generation {
        tokens.push(mark("assistant"));
    }
    tokens
}

fn mark(role: &str) -> u32 {
    ROLE + u32::try_from(xxh3_64(role.as_bytes()) % 1000).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_words_read_back_as_their_tokens() {
        let mut tokens: Vec<u32> = (0..WORDS).collect();
        tokens.extend([WORDS, PIECES, u32::MAX]);
        assert_eq!(tokenize(&detokenize(&tokens)), tokens);
    }

    #[test]
    fn the_next_turn_begins_with_the_last_one() {
        let first = chat([("system", "Be brief."), ("user", "Hello there")], true);
        let answer = detokenize(&[7, 99, 4095]);
        let second = chat(
            [
                ("system", "Be brief."),
                ("user", "Hello there"),
                ("assistant", &answer),
                ("user", "More"),
            ],
            true,
        );
        let mut expected = first;
        expected.extend([7, 99, 4095]);
        assert_eq!(&second[..expected.len()], expected);
    }

    #[test]
    fn other_text_has_about_four_characters_a_token() {
        let tokens =
            tokenize("The gateway receives a request and decides which replica answers it");
        assert_eq!(tokens.len(), 18);
        assert!(tokens.iter().all(|token| *token >= PIECES));
        assert_eq!(tokenize("日本語🙂テスト").len(), 2);
        assert!(tokenize("").is_empty());
    }
}
