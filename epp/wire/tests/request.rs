//! Request bodies: each shape's facts, each refusal's place.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, which is its job"
)]

use serde_json::json;
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
    assert_eq!(
        facts.text_bytes,
        ("hi".len() + "f".len() + "{}".len()) as u64
    );
    assert_eq!(facts.prompt, Prompt::Text { bytes: 5 });
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
    assert_eq!(&body[facts.max_tokens_span.clone().unwrap()], "9");
    assert_eq!(&body[facts.model_span.clone().unwrap()], r#""a\/b""#);
    assert_eq!(
        &body[facts.stream_options.clone().unwrap()],
        r#"{"include_usage":true}"#
    );
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
    assert_eq!(facts.model_keys, 3);
    let facts = chat(r#"{"stream_options":{"include_usage":true},"stream_options":null}"#);
    assert_eq!((facts.stream_options, facts.include_usage), (None, None));
    let facts = chat(r#"{"messages":[{"content":["long",{"type":"x"}],"content":"hi"}]}"#);
    assert_eq!((facts.text_bytes, facts.media_parts), (2, 0));
    let facts = chat(r#"{"max_tokens":7,"max_completion_tokens":null,"model":"a","model":7}"#);
    assert_eq!((facts.max_tokens, facts.model), (Some(7), None));
}

#[test]
fn prompts() {
    let prompt = |api, body: &str| {
        let facts = scan_request(api, body.as_bytes()).unwrap();
        (facts.prompt, facts.estimated_prompt_tokens())
    };
    let text = |body| prompt(Api::Completions, body);
    assert_eq!(
        text(r#"{"prompt":"12345678\n"}"#),
        (Prompt::Text { bytes: 9 }, 3)
    );
    let ids = |count, sequences| Prompt::TokenIds { count, sequences };
    assert_eq!(text(r#"{"prompt":[1,2,3]}"#), (ids(3, 1), 3));
    assert_eq!(text(r#"{"prompt":[[1,2],[3]]}"#), (ids(3, 2), 3));
    assert_eq!(
        text(r#"{"prompt":["a","b\u00e9"]}"#),
        (Prompt::Texts { count: 2, bytes: 4 }, 1)
    );
    assert_eq!(text(r#"{"prompt":{}}"#), (Prompt::None, 0));
    assert_eq!(text(r#"{"prompt":[1,2],"prompt":null}"#), (Prompt::None, 0));
    let mixed = prompt(Api::Embeddings, r#"{"input":["aaaa",[1,2]]}"#);
    assert_eq!(mixed, (Prompt::Mixed, 3));
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
    assert_eq!(chat(r#"{"messages":[]}"#).system_hash, None);
    assert_eq!(chat(r#"{"messages":[],"tools":[ ]}"#).system_hash, None);
}

#[test]
fn a_text_is_the_same_as_one_part_and_an_image_is_its_own() {
    let session = |content: &str| {
        let body = format!(r#"{{"messages":[{{"role":"user","content":{content}}}]}}"#);
        chat(&body).session_hash.unwrap()
    };
    let text = session(r#""hi""#);
    assert_eq!(text, session(r#"[{"type":"text","text":"hi"}]"#));
    assert_eq!(text, session(r#"["hi"]"#));
    let image = |data: &str| {
        session(&format!(
            r#"[{{"type":"text","text":"hi"}},{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}"}}}}]"#
        ))
    };
    assert_ne!(image("AA=="), image("AB=="));
    assert_ne!(text, image("AA=="));
    // Texts are framed: two parts are not the one that joins them.
    assert_ne!(session(r#"["a","b"]"#), session(r#"["ab"]"#));
    assert_ne!(session("null"), text);
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

/// A character that is cut by the body's end is a cut body; one that a quote cuts is not UTF-8.
#[test]
fn a_cut_character_and_a_broken_one() {
    let scan = |body: &[u8]| scan_request(Api::ChatCompletions, body).unwrap_err();
    assert_eq!(
        scan(b"{\"a\":\"\xe6\x97"),
        ScanError::Truncated { offset: 8 }
    );
    assert_eq!(
        scan(b"{\"a\":\"\xe6\x97\"}"),
        ScanError::NotUtf8 { offset: 6 }
    );
}

#[test]
fn every_cut_of_a_body_is_a_cut_body() {
    let body =
        r#"{"model":"日本\n\u00e9","stream":true,"max_tokens":12,"x":[null,-1.5e3,{"a":false}]} "#;
    assert!(scan_request(Api::Completions, body.as_bytes()).is_ok());
    for cut in 1..body.len() - 1 {
        let cut = &body.as_bytes()[..cut];
        let error = scan_request(Api::Completions, cut).unwrap_err();
        assert_eq!(error, ScanError::Truncated { offset: cut.len() });
    }
}

#[test]
fn depth_is_counted_from_the_root() {
    let nested = |levels: usize| {
        let body = format!(
            "{{\"a\":{}{}}}",
            "[".repeat(levels - 1),
            "]".repeat(levels - 1)
        );
        scan_request(Api::ChatCompletions, body.as_bytes())
    };
    assert!(nested(128).is_ok());
    assert_eq!(
        nested(129).unwrap_err(),
        ScanError::TooDeep {
            offset: 5 + 127,
            limit: 128
        }
    );
}

/// C04: the model server is the judge of a lone surrogate.
#[test]
fn lone_surrogates_are_accepted() {
    for (written, text) in [
        (r"\ud800", "\u{fffd}"),
        (r"\udc00x", "\u{fffd}x"),
        (r"\ud800\ud83d\ude00", "\u{fffd}\u{1f600}"),
        (r"\ud800\n", "\u{fffd}\n"),
    ] {
        let body = format!(r#"{{"model":"{written}"}}"#);
        let facts = chat(&body);
        assert_eq!(model(&facts, &body).as_deref(), Some(text));
        assert_eq!(facts.model.unwrap().decoded, text.len());
    }
}

#[test]
fn keys_and_roles_may_be_escaped() {
    let body = r#"{"m\u0065ssages":[{"r\u006fle":"us\u0065r","c\u006fntent":"hi"}],"stream_options":{"include\u005fusage":true}}"#;
    let plain =
        r#"{"messages":[{"role":"user","content":"hi"}],"stream_options":{"include_usage":true}}"#;
    let (escaped, plain) = (chat(body), chat(plain));
    assert_eq!(escaped.text_bytes, 2);
    assert_eq!(escaped.include_usage, Some(true));
    assert!(escaped.session_hash.is_some());
    assert_eq!(escaped.session_hash, plain.session_hash);
}

#[test]
fn unknown_bodies_are_never_refused() {
    assert_eq!(scan_unknown(b"not json"), None);
    let body = br#"{"model":"m","query":"q","documents":["a"]}"#;
    let facts = scan_unknown(body).unwrap();
    assert_eq!(facts.model.as_ref().unwrap().decode(body), "m");
    assert_eq!(facts.estimated_prompt_tokens(), 11);
}

/// C06: sub-paths and other dialects are read as far as any body is.
#[test]
fn unclaimed_paths() {
    for (path, body) in [
        (
            "/v1/rerank",
            r#"{"model":"m","query":"q","documents":["a","b"]}"#,
        ),
        (
            "/v1/chat/completions/render",
            r#"{"model":"m","messages":[{"role":"user","content":"u"}]}"#,
        ),
        (
            "/v1/messages",
            r#"{"model":"m","system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":"u"}]}"#,
        ),
        (
            "/v1/responses",
            r#"{"model":"m","input":[{"role":"user","content":"u"}]}"#,
        ),
    ] {
        assert_eq!(Api::from_path(path), Api::Unknown);
        let facts = scan_unknown(body.as_bytes()).unwrap();
        assert_eq!(model(&facts, body).as_deref(), Some("m"));
        assert_eq!((facts.prompt, facts.session_hash), (Prompt::None, None));
    }
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
