//! Splices: change spans of a body, leave every other byte alone.

use std::collections::BTreeMap;

use crate::json::{Cursor, Kind, ScanError, Span};

/// Changes to one body. Spans must not overlap; a later change of the same span replaces the earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Splice {
    changes: BTreeMap<(usize, usize), Vec<u8>>,
}

impl Splice {
    /// No change.
    pub fn new() -> Self {
        Self::default()
    }

    /// True if it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Puts `bytes` where `span` is; an empty span inserts.
    pub fn replace(&mut self, span: Span, bytes: impl Into<Vec<u8>>) {
        self.changes.insert((span.start, span.end), bytes.into());
    }

    /// Sets a member of the root object: every occurrence of the key is given the value, or one is added in
    /// front. `value` is JSON.
    ///
    /// # Errors
    /// When the body is not a JSON object.
    pub fn set_member(&mut self, body: &[u8], key: &str, value: &[u8]) -> Result<(), ScanError> {
        let members = members(body)?;
        let mut found = false;
        for member in members.list.iter().filter(|member| member.key == key) {
            self.replace(member.value.clone(), value);
            found = true;
        }
        if !found {
            let mut text = string(key);
            text.push(b':');
            text.extend_from_slice(value);
            if !members.list.is_empty() {
                text.push(b',');
            }
            self.replace(members.first..members.first, text);
        }
        Ok(())
    }

    /// Takes every occurrence of a key out of the root object, with the comma that goes with it.
    ///
    /// # Errors
    /// When the body is not a JSON object.
    pub fn remove_member(&mut self, body: &[u8], key: &str) -> Result<(), ScanError> {
        let members = members(body)?;
        let mut kept_before = false;
        for (index, member) in members.list.iter().enumerate() {
            if member.key != key {
                kept_before = true;
                continue;
            }
            let previous = index
                .checked_sub(1)
                .and_then(|index| members.list.get(index));
            let next = members.list.get(index + 1);
            let span = match (kept_before, previous, next) {
                // The comma before goes too.
                (true, Some(previous), _) => previous.value.end..member.value.end,
                // Nothing stands before: the comma behind goes.
                (_, _, Some(next)) => member.start..next.start,
                (_, _, None) => member.start..member.value.end,
            };
            self.replace(span, Vec::new());
        }
        Ok(())
    }

    /// Length of the body after the changes.
    pub fn length(&self, body: &[u8]) -> usize {
        let change =
            |((start, end), bytes): (&(usize, usize), &Vec<u8>)| (end - start, bytes.len());
        let (out, new) = self
            .changes
            .iter()
            .map(change)
            .fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
        (body.len() + new).saturating_sub(out)
    }

    /// The body after the changes.
    pub fn apply(&self, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.length(body));
        let mut at = 0;
        for ((start, end), bytes) in &self.changes {
            out.extend_from_slice(body.get(at..*start).unwrap_or_default());
            out.extend_from_slice(bytes);
            at = *end;
        }
        out.extend_from_slice(body.get(at..).unwrap_or_default());
        out
    }
}

/// A text as a JSON string, quotes included.
pub fn string(text: &str) -> Vec<u8> {
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

struct Member {
    key: String,
    start: usize,
    value: Span,
}

struct Members {
    /// Just behind the opening brace.
    first: usize,
    list: Vec<Member>,
}

fn members(body: &[u8]) -> Result<Members, ScanError> {
    let mut cursor = Cursor::new(body);
    if cursor.kind()? != Kind::Object {
        return Err(ScanError::NotAnObject);
    }
    let first = cursor.at() + 1;
    let mut list = Vec::new();
    cursor.object(|cursor, key| {
        list.push(Member {
            key: key.decode(body).into_owned(),
            start: key.span.start,
            value: cursor.skip()?,
        });
        Ok(())
    })?;
    cursor.end()?;
    Ok(Members { first, list })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value};

    use super::*;

    fn set(body: &str, key: &str, value: &str) -> String {
        let mut splice = Splice::new();
        splice
            .set_member(body.as_bytes(), key, value.as_bytes())
            .unwrap();
        let out = splice.apply(body.as_bytes());
        assert_eq!(out.len(), splice.length(body.as_bytes()));
        String::from_utf8(out).unwrap()
    }

    fn remove(body: &str, key: &str) -> String {
        let mut splice = Splice::new();
        splice.remove_member(body.as_bytes(), key).unwrap();
        String::from_utf8(splice.apply(body.as_bytes())).unwrap()
    }

    /// C07: only the value changes; numbers, order and a text that looks like the field stay.
    #[test]
    fn only_the_value_changes() {
        let body = r#"{ "model" : "chat","seed":9007199254740993,"x":1.0,"messages":[{"content":"say \"model\":\"chat\""}]}"#;
        let expected = body.replacen("\"chat\"", "\"base-v1\"", 1);
        assert_eq!(set(body, "model", "\"base-v1\""), expected);
        assert_eq!(
            set(r#"{"prompt":"hi"}"#, "model", "\"m\""),
            r#"{"model":"m","prompt":"hi"}"#
        );
        assert_eq!(set("{}", "model", "\"m\""), r#"{"model":"m"}"#);
        assert_eq!(
            set(r#"{"m\u006fdel":"a","model":"b"}"#, "model", "1"),
            r#"{"m\u006fdel":1,"model":1}"#
        );
    }

    #[test]
    fn one_comma_goes_with_a_member() {
        assert_eq!(remove(r#"{"a":1,"b":2,"c":3}"#, "a"), r#"{"b":2,"c":3}"#);
        assert_eq!(remove(r#"{"a":1,"b":2,"c":3}"#, "b"), r#"{"a":1,"c":3}"#);
        assert_eq!(remove(r#"{"a":1,"b":2 }"#, "b"), r#"{"a":1 }"#);
        assert_eq!(remove(r#"{"a":1}"#, "a"), "{}");
        assert_eq!(remove(r#"{"a":1,"a":2,"b":3,"a":4}"#, "a"), r#"{"b":3}"#);
        assert_eq!(remove(r#"{"a":1,"a":2}"#, "a"), "{}");
        assert_eq!(remove(r#"{"b":0,"a":1,"a":2}"#, "a"), r#"{"b":0}"#);
    }

    fn member() -> impl Strategy<Value = (String, Value)> {
        let value = prop_oneof![
            any::<i64>().prop_map(Value::from),
            ".{0,6}".prop_map(Value::from),
            Just(serde_json::json!([1, {"a": "}"}])),
        ];
        (
            prop_oneof![Just("model".to_owned()), Just("a".to_owned()), ".{0,3}"],
            value,
        )
    }

    proptest! {
        #[test]
        fn edits_agree_with_a_tree(members in prop::collection::vec(member(), 0..6), key in prop_oneof![Just("model"), Just("a"), Just("new")]) {
            let text: Vec<String> = members.iter().map(|(k, v)| format!("{} : {v}", Value::from(k.as_str()))).collect();
            let body = format!("{{ {} }}", text.join(" , "));
            let tree: Map<String, Value> = serde_json::from_str(&body).unwrap();

            let mut expected = tree.clone();
            expected.insert(key.to_owned(), Value::from("v"));
            let edited: Map<String, Value> = serde_json::from_str(&set(&body, key, "\"v\"")).unwrap();
            prop_assert_eq!(edited, expected);

            let mut expected = tree;
            expected.remove(key);
            let removed = remove(&body, key);
            let edited: Map<String, Value> = serde_json::from_str(&removed).unwrap();
            prop_assert_eq!(edited, expected);
            for (k, v) in members.iter().filter(|(k, _)| k != key) {
                let untouched = format!("{} : {v}", Value::from(k.as_str()));
                prop_assert!(removed.contains(&untouched));
            }
        }

        #[test]
        fn strings_are_written_as_json(text in ".*") {
            let read: String = serde_json::from_slice(&string(&text)).unwrap();
            prop_assert_eq!(read, text);
        }
    }
}
