//! Prompts by their text: four bytes stand for a token.
//!
//! The JSON of a chat's messages begins with that of the turn before, as clients only append to it. So its bytes serve
//! as well as tokens to find a prefix again that was sent somewhere.

use wicketgate_wire::{
    Api,
    json::{Cursor, ScanError, Span},
};

/// Bytes of a piece.
const PIECE: usize = 4;

/// The pieces of a prompt; none if the body is no JSON object.
pub(super) fn pieces(api: Api, body: &[u8]) -> Vec<u32> {
    let Ok(found) = spans(api, body) else {
        return Vec::new();
    };
    let mut pieces = Vec::new();
    for span in found.into_iter().flatten() {
        let text = body.get(span).unwrap_or_default();
        // The end of a list moves when something is appended.
        let text = text.strip_suffix(b"]").unwrap_or(text);
        pieces.extend(text.chunks(PIECE).map(|piece| {
            let mut bytes = [0; PIECE];
            for (to, from) in bytes.iter_mut().zip(piece) {
                *to = *from;
            }
            u32::from_le_bytes(bytes)
        }));
    }
    pieces
}

/// The values that a prompt is made of, in the order of a template: tools before messages. Of a key that comes twice
/// the last one counts.
fn spans(api: Api, body: &[u8]) -> Result<[Option<Span>; 2], ScanError> {
    let mut spans = [None, None];
    let [tools, messages] = &mut spans;
    let mut cursor = Cursor::new(body);
    cursor.space();
    cursor.object(|cursor, key| {
        let value = match (api, key.decode(body).as_ref()) {
            (Api::ChatCompletions, "tools") => &mut *tools,
            (Api::ChatCompletions, "messages") | (Api::Completions, "prompt") => &mut *messages,
            _ => return cursor.pass(),
        };
        *value = Some(cursor.skip()?);
        Ok(())
    })?;
    Ok(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_turn_begins_with_the_last_one() {
        let first =
            br#"{"model":"m","messages":[{"role":"user","content":"Hello there, how are you?"}]}"#;
        let second = br#"{"messages":[{"role":"user","content":"Hello there, how are you?"},{"role":"assistant","content":"Fine"}],"stream":true}"#;
        let (first, second) = (
            pieces(Api::ChatCompletions, first),
            pieces(Api::ChatCompletions, second),
        );
        // But for the last piece, which may be a part of one.
        let whole = first.len() - 1;
        assert_eq!(first[..whole], second[..whole]);
        assert!(second.len() > first.len());
    }

    #[test]
    fn tools_come_first_and_other_fields_do_not_count() {
        let body = br#"{"messages":[1],"user":"x","tools":[{"a":1}]}"#;
        let other = br#"{"tools":[{"a":1}],"messages":[1]}"#;
        let both = [body.as_slice(), other].map(|body| pieces(Api::ChatCompletions, body));
        assert_eq!(both[0], both[1]);
        assert_eq!(both[0].len(), 3);
        assert!(pieces(Api::Completions, b"[]").is_empty());
        assert_eq!(pieces(Api::Completions, br#"{"prompt":"abcdef"}"#).len(), 2);
    }
}
