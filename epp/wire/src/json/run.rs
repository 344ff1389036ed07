//! Runs of plain text inside a string, eight bytes at a time.
//!
//! Code and prose escape a line break or a quote every few dozen bytes. Over such distances one test of a whole
//! word is cheaper than a call of a vectorised search, which pays on longer runs only.

/// Bytes looked at before a vectorised search is worth its call.
const REACH: usize = 64;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// Length of the plain ASCII at the start of `text`, at most [`REACH`]: no quote, no backslash, no control
/// character.
pub(super) fn plain(text: &[u8]) -> usize {
    let reach = text.get(..REACH).unwrap_or(text);
    let (words, tail) = reach.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let marks = special(u64::from_le_bytes(*word));
        if marks != 0 {
            return index * 8 + marks.trailing_zeros() as usize / 8;
        }
    }
    let odd = |byte: &u8| !matches!(byte, 0x20..=0x7f) || matches!(byte, b'"' | b'\\');
    let length = tail.iter().position(odd).unwrap_or(tail.len());
    words.len() * 8 + length
}

/// The high bit of the lowest byte that is not plain. Bits above it mean nothing: borrows reach upwards.
fn special(word: u64) -> u64 {
    let zero = |word: u64| word.wrapping_sub(ONES) & !word;
    let quote = zero(word ^ (ONES * b'"' as u64));
    let backslash = zero(word ^ (ONES * b'\\' as u64));
    let control = word.wrapping_sub(ONES * 0x20) & !word;
    (quote | backslash | control | word) & HIGH
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{REACH, plain};

    proptest! {
        #[test]
        fn stops_where_a_look_at_each_byte_does(text in prop::collection::vec(prop_oneof![3 => 0x20..0x7f_u8, 1 => any::<u8>()], 0..90)) {
            let odd = |byte: &u8| *byte < 0x20 || *byte >= 0x80 || *byte == b'"' || *byte == b'\\';
            let expected = text.iter().position(odd).unwrap_or(text.len()).min(REACH);
            prop_assert_eq!(plain(&text), expected);
        }
    }
}
