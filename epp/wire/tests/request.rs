//! Request bodies: facts on a table, agreement with a tree parser, and no panic for any bytes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, which is its job"
)]

use proptest::prelude::*;
use serde_json::{Value, json};
use wicketgate_wire::{Api, Prompt, RequestFacts, ScanError, scan_request, scan_unknown};

fn chat(body: &str) -> RequestFacts {
    scan_request(Api::ChatCompletions, body.as_bytes()).unwrap()
}

fn model(facts: &RequestFacts, body: &str) -> Option<String> {
    facts
        .model
        .as_ref()
        .map(|model| model.decode(body.as_bytes()).into_owned())
}

/// C04, first input.
#[test]
fn parts_tools_and_nulls() {
    let body = r#"{"model":"m","tools":null,"messages":[{"role":"user","content":[{"type":"text","text":"hi"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}]},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":[]}]}"#;
    let facts = chat(body);
    assert_eq!(model(&facts, body).as_deref(), Some("m"));
    assert_eq!(
        (facts.messages, facts.media_parts, facts.tools.clone()),
        (3, 1, None)
    );
    let calls = r#"[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]"#;
    assert_eq!(facts.text_bytes, 2 + calls.len() as u64);
    assert_eq!(facts.prompt, Prompt::Text);
}

#[test]
fn odd_shapes_are_absent_fields() {
    for body in [
        r#"{"model":7,"messages":"text","stream":"yes","max_tokens":"9","n":-1}"#,
        r#"{"model":null,"messages":null,"stream":null,"max_tokens":1.5,"n":null}"#,
        r#"{"model":{},"messages":{},"stream":1,"max_tokens":-3,"stream_options":[]}"#,
    ] {
        let facts = chat(body);
        assert_eq!(
            (facts.model, facts.stream, facts.max_tokens, facts.n),
            (None, false, None, None)
        );
        assert_eq!((facts.messages, facts.prompt), (0, Prompt::None));
    }
    assert_eq!(chat(r#"{"messages":[7,null,{"content":7}]}"#).messages, 3);
}

#[test]
fn fields() {
    let body = r#"{"model":"a\/b","stream":true,"stream_options":{"include_usage":true},"max_tokens":5,"max_completion_tokens":9,"n":2,"cache_salt":"s","priority":-1,"user":"u","messages":[]}"#;
    let facts = chat(body);
    assert_eq!(model(&facts, body).as_deref(), Some("a/b"));
    assert!(facts.stream && facts.include_usage == Some(true));
    assert_eq!((facts.max_tokens, facts.n), (Some(9), Some(2)));
    assert_eq!(&body[facts.priority.clone().unwrap()], "-1");
    assert_eq!(&body[facts.stream_span.clone().unwrap()], "true");
    assert_eq!(facts.cache_salt.unwrap().decode(body.as_bytes()), "s");
    assert_eq!(facts.user.unwrap().decode(body.as_bytes()), "u");
    assert_eq!(&body[facts.object], body);
}

#[test]
fn the_last_of_duplicate_keys_wins() {
    let body = r#"{"model":"a","stream":true,"m\u006fdel":"b","stream":null,"model":"c"}"#;
    let facts = chat(body);
    assert_eq!(
        (model(&facts, body).as_deref(), facts.stream),
        (Some("c"), false)
    );
}

#[test]
fn prompts() {
    let prompt = |api, body: &str| {
        let facts = scan_request(api, body.as_bytes()).unwrap();
        (facts.prompt, facts.estimated_prompt_tokens())
    };
    let text = |body| prompt(Api::Completions, body);
    assert_eq!(text(r#"{"prompt":"12345678\n"}"#), (Prompt::Text, 3));
    let ids = |tokens, sequences| Prompt::TokenIds { tokens, sequences };
    assert_eq!(text(r#"{"prompt":[1,2,3]}"#), (ids(3, 1), 3));
    assert_eq!(text(r#"{"prompt":[[1,2],[3]]}"#), (ids(3, 2), 3));
    assert_eq!(
        text(r#"{"prompt":["a","b"]}"#),
        (Prompt::Texts { count: 2 }, 1)
    );
    assert_eq!(text(r#"{"prompt":{}}"#), (Prompt::None, 0));
    let mixed = prompt(Api::Embeddings, r#"{"input":["aaaa",[1,2]]}"#);
    let expected = Prompt::Mixed {
        tokens: 2,
        sequences: 2,
    };
    assert_eq!(mixed, (expected, 3));
}

#[test]
fn a_conversation_keeps_its_session() {
    let turn = |user: &str, more: &str, tools: &str| {
        chat(&format!(
            r#"{{"messages":[{{"role":"system","content":"s"}},{{"content":"{user}","role":"user"}}{more}]{tools}}}"#
        ))
    };
    let first = turn("hi", "", "");
    let second = turn(
        "hi",
        r#",{"role":"assistant","content":"x"},{"role":"user","content":"y"}"#,
        "",
    );
    let other = turn("ho", "", "");
    let tooled = turn("hi", "", r#","tools":[{"type":"function"}]"#);
    assert!(first.session_hash.is_some());
    assert_eq!(first.session_hash, second.session_hash);
    assert_eq!(first.system_hash, other.system_hash);
    assert_ne!(first.session_hash, other.session_hash);
    assert_ne!(first.session_hash, tooled.session_hash);
    assert_eq!(chat(r#"{"messages":[]}"#).session_hash, None);
}

#[test]
fn what_is_refused() {
    let scan = |body: &[u8]| scan_request(Api::ChatCompletions, body).unwrap_err();
    assert_eq!(scan(b""), ScanError::Empty);
    assert_eq!(scan(b" \n"), ScanError::Empty);
    assert_eq!(scan(b"[]"), ScanError::NotAnObject);
    assert_eq!(scan(b"null"), ScanError::NotAnObject);
    assert_eq!(scan(b"{\"a\":\"\xff\"}"), ScanError::NotUtf8 { offset: 6 });
    assert_eq!(scan(b"{\"a\":1"), ScanError::Truncated { offset: 6 });
    assert_eq!(scan(b"{\"a\":\"x"), ScanError::Truncated { offset: 7 });
    assert!(matches!(
        scan(b"{\"a\":1}x"),
        ScanError::NotJson { offset: 7, .. }
    ));
    assert!(matches!(
        scan(b"\xef\xbb\xbf{}"),
        ScanError::NotJson { offset: 0, .. }
    ));
    assert!(matches!(
        scan(b"{\"a\":\"\n\"}"),
        ScanError::NotJson { offset: 6, .. }
    ));
    assert!(matches!(scan(b"{\"a\":01}"), ScanError::NotJson { .. }));
    assert!(matches!(scan(b"{'a':1}"), ScanError::NotJson { .. }));
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(200_000), "]".repeat(200_000));
    assert!(matches!(scan(deep.as_bytes()), ScanError::TooDeep { .. }));
    assert!(scan(b"{\"a\":1").to_string().contains("byte 6"));
}

#[test]
fn unknown_bodies_are_never_refused() {
    assert_eq!(scan_unknown(b"not json"), None);
    let body = br#"{"model":"m","query":"q","documents":["a"]}"#;
    assert_eq!(scan_unknown(body).unwrap().model.unwrap().decode(body), "m");
}

/// A large body is read in one pass: 8 MB must not take as long as a pass per message would.
#[test]
fn a_large_body_is_read() {
    let message = json!({"role": "user", "content": "lorem ipsum \u{e9} ".repeat(64)});
    let body = json!({"model": "m", "messages": vec![message; 8000]}).to_string();
    let facts = chat(&body);
    assert_eq!(facts.messages, 8000);
    assert_eq!(facts.text_bytes, 8000 * 64 * 15);
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(".{0,4}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// A body of the shapes that matter, whole, cut, or with a byte changed.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let key = prop_oneof![
        Just("model".to_owned()),
        Just("messages".to_owned()),
        Just("prompt".to_owned()),
        Just("stream_options".to_owned()),
        ".{0,3}",
    ];
    let whole = prop::collection::vec((key, value()), 0..4).prop_map(|members| {
        let members: Vec<String> = members
            .iter()
            .map(|(k, v)| format!("{}:{v}", Value::from(k.as_str())))
            .collect();
        format!("{{{}}}", members.join(",")).into_bytes()
    });
    (whole, any::<prop::sample::Index>(), any::<u8>(), 0..3_u8).prop_map(
        |(mut body, index, byte, how)| {
            let at = index.index(body.len());
            match how {
                0 => {}
                1 => body.truncate(at),
                _ => body[at] = byte,
            }
            body
        },
    )
}

proptest! {
    /// The scanner accepts what a tree parser accepts, but for what `json` declares: escaped lone surrogates.
    #[test]
    fn accepted_as_by_a_tree_parser(body in prop_oneof![body(), prop::collection::vec(any::<u8>(), 0..64)]) {
        let tree: Result<Value, _> = serde_json::from_slice(&body);
        let is_object = tree.as_ref().is_ok_and(Value::is_object);
        for api in [Api::ChatCompletions, Api::Completions, Api::Embeddings, Api::Unknown] {
            let scanned = scan_request(api, &body);
            let lone = body.windows(3).any(|w| w == b"\\ud" || w == b"\\uD");
            prop_assert!(scanned.is_ok() == is_object || lone, "{scanned:?} {tree:?}");
            if let (Ok(facts), Ok(tree)) = (&scanned, &tree) {
                let found = facts.model.as_ref().map(|model| model.decode(&body).into_owned());
                prop_assert_eq!(found.as_deref(), tree.get("model").and_then(Value::as_str));
            }
        }
    }

    #[test]
    fn decoding_agrees_with_a_tree_parser(text in ".*", ascii in any::<bool>()) {
        let mut written = Value::from(text.as_str()).to_string();
        if ascii {
            let escape = |unit: u16| format!("\\u{unit:04x}");
            written = format!("\"{}\"", text.encode_utf16().map(escape).collect::<String>());
        }
        let body = format!("{{\"model\":{written}}}");
        let facts = chat(&body);
        let found = facts.model.as_ref().unwrap();
        prop_assert_eq!(found.decode(body.as_bytes()), text.as_str());
        prop_assert_eq!(found.decoded, text.len());
    }
}
