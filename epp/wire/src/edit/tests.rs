//! Edited text against an edited tree, and every byte that was not asked for.

use proptest::prelude::*;
use serde_json::{Map, Value};

use super::*;
use crate::{Api, ScanError, Span, scan_request};

fn edited(body: &str, edit: &ObjectEdit) -> String {
    let mut splice = Splice::new();
    let whole = 0..body.len();
    edit.splice(body.as_bytes(), whole, &mut splice).unwrap();
    applied(body, &splice)
}

fn applied(body: &str, splice: &Splice) -> String {
    let out = splice.apply(body.as_bytes());
    assert_eq!(out.len(), splice.length(body.as_bytes()));
    String::from_utf8(out).unwrap()
}

fn remove(body: &str, key: &str) -> String {
    edited(body, &ObjectEdit::new().remove(key))
}

fn with_model(body: &str, model: &str) -> String {
    let facts = scan_request(Api::ChatCompletions, body.as_bytes()).unwrap();
    applied(body, &set_model(body.as_bytes(), &facts, model).unwrap())
}

/// C07: only the value changes; numbers, order and a text that looks like the field stay.
#[test]
fn only_the_model_changes() {
    let body = r#"{ "model" : "chat","seed":9007199254740993,"x":1.0,"messages":[{"content":"say \"model\":\"chat\""}]}"#;
    let expected = body.replacen("\"chat\"", "\"base-v1\"", 1);
    assert_eq!(with_model(body, "base-v1"), expected);
    assert_eq!(
        with_model(r#"{"prompt":"hi"}"#, "m"),
        r#"{"prompt":"hi","model":"m"}"#
    );
    assert_eq!(with_model("{ }", "m\""), r#"{"model":"m\"" }"#);
    assert_eq!(with_model(r#"{"model":""}"#, "m"), r#"{"model":"m"}"#);
    assert_eq!(with_model(r#"{"model":null}"#, "m"), r#"{"model":"m"}"#);
    assert_eq!(
        with_model(r#"{"m\u006fdel":"a","n":1,"model":7}"#, "m"),
        r#"{"m\u006fdel":"m","n":1,"model":"m"}"#
    );
}

/// C07, its four bodies: the model is put in or replaced, the rest keeps its bytes.
#[test]
fn a_target_is_put_into_any_body() {
    for (body, expected) in [
        (
            r#"{"model":"chat","seed":9007199254740993,"x":1.0}"#,
            r#"{"model":"base-v1","seed":9007199254740993,"x":1.0}"#,
        ),
        (r#"{"prompt":"hi"}"#, r#"{"prompt":"hi","model":"base-v1"}"#),
        (r#"{"model":""}"#, r#"{"model":"base-v1"}"#),
        (
            r#"{"model":"chat","messages":[{"role":"user","content":"say \"model\":\"chat\""}]}"#,
            r#"{"model":"base-v1","messages":[{"role":"user","content":"say \"model\":\"chat\""}]}"#,
        ),
    ] {
        assert_eq!(with_model(body, "base-v1"), expected);
    }
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

#[test]
fn removing_all_and_adding_leaves_no_stray_comma() {
    let edit = ObjectEdit::new()
        .remove("a")
        .set("m", "1")
        .set("n", "[2]")
        .remove("b");
    assert_eq!(edited(r#"{"a":1}"#, &edit), r#"{"m":1,"n":[2]}"#);
    assert_eq!(edited(r#"{"a":1,"b":2}"#, &edit), r#"{"m":1,"n":[2]}"#);
    assert_eq!(
        edited(r#"{"a":1,"c":0,"b":2}"#, &edit),
        r#"{"c":0,"m":1,"n":[2]}"#
    );
    assert_eq!(edited("{}", &edit), r#"{"m":1,"n":[2]}"#);
}

/// Usage can be asked for inside `stream_options` while the root changes too.
#[test]
fn an_inner_object_and_its_outer_one() {
    let body = r#"{"model":"a","stream_options":{"x":1},"priority":-100}"#;
    let facts = scan_request(Api::ChatCompletions, body.as_bytes()).unwrap();
    let mut splice = Splice::new();
    ObjectEdit::new()
        .set("include_usage", "true")
        .splice(body.as_bytes(), facts.stream_options.unwrap(), &mut splice)
        .unwrap();
    ObjectEdit::new()
        .set("model", "\"b\"")
        .remove("priority")
        .splice(body.as_bytes(), facts.object, &mut splice)
        .unwrap();
    assert_eq!(
        applied(body, &splice),
        r#"{"model":"b","stream_options":{"x":1,"include_usage":true}}"#
    );
}

#[test]
fn overlaps_and_wrong_spans_are_refused() {
    let mut splice = Splice::new();
    splice.replace(2..5, "X").unwrap();
    for span in [2..5, 3..4, 3..3, 0..3, 4..9, 0..9] {
        let refused = splice.replace(span.clone(), "Y").unwrap_err();
        assert_eq!(refused, Overlap { span });
    }
    #[expect(clippy::reversed_empty_ranges, reason = "the case that is refused")]
    let reversed = 8..7;
    assert!(splice.replace(reversed, "Y").is_err());
    splice.replace(2..2, "a").unwrap();
    splice.replace(2..2, "b").unwrap();
    splice.replace(5..5, "c").unwrap();
    splice.replace(5..6, "d").unwrap();
    splice.replace(40..50, "e").unwrap();
    assert_eq!(splice.apply(b"0123456789"), b"01abXcd6789e");
    let pieces: Vec<Piece<'_>> = splice.pieces(b"01234567").collect();
    assert_eq!(
        (&pieces[0], &pieces[1]),
        (&Piece::Kept(0..2), &Piece::New(b"a"))
    );
    let edit = ObjectEdit::new().remove("a");
    let wrong = |body: &[u8], span| edit.splice(body, span, &mut Splice::new()).unwrap_err();
    assert_eq!(wrong(b"[1]", 0..3), EditError::Scan(ScanError::NotAnObject));
    assert!(matches!(
        wrong(b"{}", 0..9),
        EditError::Scan(ScanError::Truncated { .. })
    ));
    assert!(matches!(
        wrong(b"{}{}", 0..4),
        EditError::Scan(ScanError::NotJson { offset: 2, .. })
    ));
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => prop::sample::select(vec!["model", "a", "b", "new"]).prop_map(str::to_owned),
        1 => ".{0,3}",
    ]
}

fn member() -> impl Strategy<Value = (String, String)> {
    let value = prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        Just("9007199254740993".to_owned()),
        Just("1.0".to_owned()),
        Just("-0.10e+300".to_owned()),
        ".{0,6}".prop_map(|text| Value::from(text).to_string()),
        Just(r#"[ 1, {"a": "},"} ]"#.to_owned()),
    ];
    (key(), value)
}

proptest! {
    /// Any mixture of edits equals the same edits of a tree, order of keys included, and untouched members keep
    /// their bytes.
    #[test]
    fn edits_agree_with_a_tree(
        members in prop::collection::vec(member(), 0..7),
        edits in prop::collection::vec((key(), any::<bool>()), 0..4),
        spaces in prop::sample::select(vec!["", " ", "\n  "]),
    ) {
        let text: Vec<String> = members.iter().map(|(k, v)| format!("{}:{spaces}{v}", Value::from(k.as_str()))).collect();
        let body = format!("{{{spaces}{}{spaces}}}", text.join(&format!("{spaces},{spaces}")));
        let mut expected: Map<String, Value> = serde_json::from_str(&body).unwrap();
        let mut edit = ObjectEdit::new();
        // One word per key: of two, the later one counts.
        let mut last: Vec<(String, bool)> = Vec::new();
        for (key, keep) in edits {
            last.retain(|(known, _)| *known != key);
            last.push((key, keep));
        }
        for (key, keep) in &last {
            if *keep {
                edit = edit.set(key, "\"v\"");
                expected.insert(key.clone(), Value::from("v"));
            } else {
                edit = edit.remove(key);
                expected.shift_remove(key);
            }
        }
        let out = edited(&body, &edit);
        let tree: Map<String, Value> = serde_json::from_str(&out).unwrap();
        let order = |map: &Map<String, Value>| map.keys().cloned().collect::<Vec<_>>();
        prop_assert_eq!(order(&tree), order(&expected));
        prop_assert_eq!(&tree, &expected);
        for ((key, _), text) in members.iter().zip(&text) {
            if !last.iter().any(|(edited, _)| edited == key) {
                prop_assert!(out.contains(text));
            }
        }
    }

    #[test]
    fn pieces_are_the_body_with_the_changes(
        body in prop::collection::vec(any::<u8>(), 0..40),
        changes in prop::collection::vec((0..44_usize, 0..4_usize, prop::collection::vec(any::<u8>(), 0..3)), 0..6),
    ) {
        let mut splice = Splice::new();
        let mut taken: Vec<(Span, Vec<u8>)> = Vec::new();
        for (start, length, bytes) in changes {
            let span = start..start + length;
            if splice.replace(span.clone(), bytes.clone()).is_ok() {
                taken.push((span, bytes));
            }
        }
        taken.sort_by_key(|(span, _)| (span.start, span.end));
        let mut expected = body.clone();
        for (span, bytes) in taken.into_iter().rev() {
            let span = span.start.min(body.len())..span.end.min(body.len());
            expected.splice(span, bytes);
        }
        prop_assert_eq!(splice.apply(&body), expected);
    }
}
