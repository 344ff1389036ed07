//! Writing a string.

/// A text as a JSON string, quotes included.
pub fn quote(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 2);
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend([b'\\', byte]),
            0..0x20 => out.extend(format!("\\u{byte:04x}").into_bytes()),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::quote;

    proptest! {
        #[test]
        fn a_tree_parser_reads_the_text_back(text in ".*", control in 0..0x20_u8) {
            let text = format!("{text}{}", char::from(control));
            let read: String = serde_json::from_slice(&quote(&text)).unwrap();
            prop_assert_eq!(read, text);
        }
    }
}
