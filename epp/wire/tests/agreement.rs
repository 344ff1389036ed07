//! Request bodies against a tree parser: what is accepted, what is found, and no panic for any bytes.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, which is its job"
)]

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use wicketgate_wire::{Api, Prompt, RequestFacts, scan_request};

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
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

const KNOWN: [&str; 9] = [
    "model",
    "messages",
    "prompt",
    "input",
    "stream",
    "stream_options",
    "max_tokens",
    "n",
    "tools",
];

/// An object of the keys that matter and others, written compactly or spread out.
fn written() -> impl Strategy<Value = Vec<u8>> {
    let key = prop_oneof![
        3 => prop::sample::select(&KNOWN[..]).prop_map(str::to_owned),
        1 => ".{0,3}",
    ];
    (prop::collection::vec((key, value()), 0..4), any::<bool>()).prop_map(|(members, pretty)| {
        let write = |value: &Value| {
            let text = if pretty {
                serde_json::to_string_pretty(value)
            } else {
                serde_json::to_string(value)
            };
            text.unwrap()
        };
        let members: Vec<String> = members
            .iter()
            .map(|(key, value)| format!("{}:{}", Value::from(key.as_str()), write(value)))
            .collect();
        format!("{{{}}}", members.join(",")).into_bytes()
    })
}

/// A body whole, cut, or with a few bytes changed, put in or taken out.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        2 => any::<u8>(),
        3 => prop::sample::select(&b"\"\\{}[],:0-.eEtfnu \n\xe6\xff"[..]),
    ];
    let change = (any::<prop::sample::Index>(), byte, 0..4_u8);
    (written(), prop::collection::vec(change, 0..4)).prop_map(|(mut body, changes)| {
        for (index, byte, how) in changes {
            let at = index.index(body.len().max(1));
            match how {
                0 => body.truncate(at),
                1 => body.insert(at, byte),
                2 if at < body.len() => drop(body.remove(at)),
                _ if at < body.len() => body[at] = byte,
                _ => {}
            }
        }
        body
    })
}

/// The escapes of surrogates as escapes of another character: the reference parser refuses lone ones.
fn without_surrogates(body: &[u8]) -> Vec<u8> {
    let mut out = body.to_vec();
    for at in 0..out.len() {
        if let Some([b'\\', b'u', d, x, y, z]) = out.get_mut(at..at + 6)
            && matches!(*d, b'd' | b'D')
            && [*x, *y, *z].iter().all(u8::is_ascii_hexdigit)
        {
            *d = b'0';
        }
    }
    out
}

const ALL: [Api; 4] = [
    Api::ChatCompletions,
    Api::Completions,
    Api::Embeddings,
    Api::Unknown,
];

fn text(value: &Value) -> u64 {
    value.as_str().map_or(0, |text| text.len() as u64)
}

/// What a tree parser would say of a chat: text bytes and media parts, `tools` aside.
fn of_messages(messages: &[Value]) -> (u64, u32) {
    let (mut bytes, mut media) = (0, 0);
    for message in messages {
        bytes += text(&message["name"]);
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            bytes += text(&call["function"]["name"]) + text(&call["function"]["arguments"]);
        }
        match &message["content"] {
            Value::Array(parts) => {
                for part in parts {
                    bytes += text(part) + text(&part["text"]);
                    media += u32::from(part["type"].as_str().is_some_and(|kind| kind != "text"));
                }
            }
            other => bytes += text(other),
        }
    }
    (bytes, media)
}

fn part() -> impl Strategy<Value = Value> {
    prop_oneof![
        ".{0,9}".prop_map(|text| json!({"type": "text", "text": text})),
        ".{0,9}"
            .prop_map(|url| json!({"type": "image_url", "image_url": {"url": url, "text": "no"}})),
        ".{0,9}".prop_map(Value::from),
        Just(Value::Null),
        Just(json!({"text": 7})),
    ]
}

fn message() -> impl Strategy<Value = Value> {
    let content = prop_oneof![
        ".{0,20}".prop_map(Value::from),
        prop::collection::vec(part(), 0..4).prop_map(Value::from),
        Just(Value::Null),
        Just(json!(7)),
        Just(json!({"text": "no"})),
    ];
    let role = prop::sample::select(&["system", "user", "assistant", "tool"][..]);
    (role, content, prop::option::of(".{0,5}")).prop_map(|(role, content, call)| {
        let mut message = Map::new();
        message.insert("content".into(), content);
        message.insert("role".into(), role.into());
        if let Some(arguments) = call {
            let function = json!({"arguments": arguments, "name": "f", "x": {"name": "no"}});
            message.insert(
                "tool_calls".into(),
                json!([{"id": "c", "function": function}, 7]),
            );
            message.insert("name".into(), arguments.into());
        }
        message.into()
    })
}

fn decoded(facts: &RequestFacts, body: &[u8]) -> Option<String> {
    Some(facts.model.as_ref()?.decode(body).into_owned())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    /// The scanner accepts what the reference accepts and nothing else, but for what `json` declares: nesting
    /// (not reached here) and escaped lone surrogates. Duplicate keys give the last value to both.
    #[test]
    fn accepted_as_by_a_tree_parser(body in prop_oneof![4 => mutated(), 1 => prop::collection::vec(any::<u8>(), 0..64)]) {
        let tree: Result<Value, _> = serde_json::from_slice(&without_surrogates(&body));
        // The reference makes a float of each number and refuses what no float holds; a scanner makes none of them.
        let too_large = |error: &serde_json::Error| error.to_string().starts_with("number out of range");
        prop_assume!(!tree.as_ref().is_err_and(too_large));
        let is_object = tree.as_ref().is_ok_and(Value::is_object);
        for api in ALL {
            let scanned = scan_request(api, &body);
            prop_assert_eq!(scanned.is_ok(), is_object, "{:?} {:?}", scanned, tree);
            if let (Ok(facts), Ok(tree)) = (&scanned, serde_json::from_slice::<Value>(&body)) {
                let model = decoded(facts, &body);
                prop_assert_eq!(model.as_deref(), tree["model"].as_str());
                prop_assert_eq!(facts.stream, tree["stream"].as_bool().unwrap_or(false));
                prop_assert_eq!(facts.max_tokens, tree["max_tokens"].as_u64());
                prop_assert_eq!(facts.include_usage, tree["stream_options"]["include_usage"].as_bool());
            }
        }
    }

    #[test]
    fn a_chat_measures_as_its_tree_does(messages in prop::collection::vec(message(), 0..5), tools in any::<bool>()) {
        let mut body = json!({"messages": messages});
        let mut extra = 0;
        if tools {
            body["tools"] = json!([{"type": "function"}]);
            extra = body["tools"].to_string().len() as u64;
        }
        let facts = scan_request(Api::ChatCompletions, body.to_string().as_bytes()).unwrap();
        let (bytes, media) = of_messages(&messages);
        prop_assert_eq!((facts.text_bytes, facts.media_parts), (bytes + extra, media));
        prop_assert_eq!(facts.prompt, Prompt::Text { bytes: bytes + extra });
        prop_assert_eq!(facts.messages as usize, messages.len());
        let tokens = (bytes + extra).div_ceil(4) + 4 * messages.len() as u64;
        prop_assert_eq!(facts.estimated_prompt_tokens(), tokens);
        let has = |role| messages.iter().any(|message| message["role"] == role);
        prop_assert_eq!(facts.session_hash.is_some(), has("user"));
    }

    /// More turns never change who a conversation is.
    #[test]
    fn turns_keep_the_session(messages in prop::collection::vec(message(), 1..5), more in prop::collection::vec(message(), 0..4)) {
        let scan = |messages: &[&[Value]]| {
            let body = json!({"messages": messages.concat()});
            scan_request(Api::ChatCompletions, body.to_string().as_bytes()).unwrap()
        };
        let (first, later) = (scan(&[&messages]), scan(&[&messages, &more]));
        if first.session_hash.is_some() {
            prop_assert_eq!(first.session_hash, later.session_hash);
            prop_assert_eq!(first.system_hash, later.system_hash);
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
        let facts = scan_request(Api::ChatCompletions, body.as_bytes()).unwrap();
        let found = facts.model.as_ref().unwrap();
        prop_assert_eq!(found.decode(body.as_bytes()), text.as_str());
        prop_assert_eq!(found.decoded, text.len());
        prop_assert!(found.is(body.as_bytes(), &text));
    }
}

/// Valid JSON, and the model server's to judge.
#[test]
fn numbers_that_no_float_holds_pass() {
    for number in ["-0.10e+400", "1e999999999", "9007199254740993.5e-7000"] {
        let body = format!(r#"{{"model":"m","x":{number}}}"#);
        for api in ALL {
            let facts = scan_request(api, body.as_bytes()).unwrap();
            assert_eq!(facts.model.unwrap().decode(body.as_bytes()), "m");
        }
    }
}
