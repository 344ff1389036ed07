//! Values for every cut, and no panic for any bytes.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn usage(prompt: u64, completion: u64, cached: u64) -> Usage {
    Usage {
        prompt_tokens: Some(prompt),
        completion_tokens: Some(completion),
        cached_tokens: Some(cached),
    }
}

fn observe(mut observer: UsageObserver, pieces: &[&[u8]]) -> UsageObserver {
    for piece in pieces {
        observer.feed(piece);
    }
    observer.finish();
    observer
}

fn sse(text: &[u8]) -> UsageObserver {
    observe(UsageObserver::sse(), &[text])
}

fn answer(text: &[u8]) -> UsageObserver {
    observe(UsageObserver::json(), &[text])
}

/// C08, input 1, with every line ending.
#[test]
fn usage_is_the_same_for_every_cut() {
    let lines = "data: {\"choices\":[{\"delta\":{\"content\":\"日本🙂\"}}]}\n\n: comment\n\ndata:{\"usage\":{\"completion_tokens\":3}}\n\ndata: {\"usage\":\ndata: {\"prompt_tokens\":7}}\n\ndata: [DONE]\n\nrubbish";
    for ending in ["\n", "\r\n", "\r"] {
        let text = lines.replace('\n', ending);
        let text = text.as_bytes();
        for cut in 0..=text.len() {
            let (a, b) = text.split_at(cut);
            let seen = observe(UsageObserver::sse(), &[a, b]);
            assert_eq!(seen.usage().completion_tokens, Some(3), "{ending:?} {cut}");
            assert_eq!(seen.usage().prompt_tokens, Some(7), "{ending:?} {cut}");
            assert_eq!((seen.events(), seen.done()), (1, true), "{ending:?} {cut}");
        }
    }
}

/// C08, input 1 as it is, cut into three at every pair of offsets.
#[test]
fn usage_is_three_for_every_two_cuts() {
    let text = "data: {\"choices\":[{\"delta\":{\"content\":\"日本🙂\"}}]}\n\ndata: {\"usage\":{\"completion_tokens\":3}}\n\ndata: [DONE]\n\n".as_bytes();
    for first in 0..=text.len() {
        for second in first..=text.len() {
            let (a, rest) = text.split_at(first);
            let (b, c) = rest.split_at(second - first);
            let seen = observe(UsageObserver::sse(), &[a, b, c]);
            assert_eq!(seen.usage().completion_tokens, Some(3), "{first} {second}");
            assert_eq!((seen.events(), seen.done()), (1, true), "{first} {second}");
        }
    }
}

/// C08: prompt tokens in the opening event, output tokens in the closing one, in either spelling.
#[test]
fn usage_split_over_two_events_is_whole() {
    for text in [
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9}}\n\ndata: {\"choices\":[],\"usage\":{\"completion_tokens\":5}}\n\n",
        "data: {\"response\":{\"usage\":{\"input_tokens\":9}}}\n\ndata: {\"usage\":{\"output_tokens\":5}}\n\n",
    ] {
        let usage = sse(text.as_bytes()).usage();
        assert_eq!(
            (usage.prompt_tokens, usage.completion_tokens),
            (Some(9), Some(5)),
            "{text}"
        );
    }
}

/// C08: the bound is 1 MiB of one unfinished event, in one piece or in many.
#[test]
fn an_event_of_a_mebibyte_is_the_longest() {
    for (length, gave_up) in [(1 << 20, false), ((1 << 20) + 1, true)] {
        let text = "a".repeat(length);
        for chunk in [length, 4096] {
            let mut seen = UsageObserver::sse();
            text.as_bytes()
                .chunks(chunk)
                .for_each(|piece| seen.feed(piece));
            assert_eq!(seen.gave_up(), gave_up, "{length} in pieces of {chunk}");
        }
    }
}

#[test]
fn a_later_event_fills_and_never_wipes() {
    let text = b"data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":9,\"cache_read_input_tokens\":4}}}\n\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":5}}\n\ndata: {\"usage\":null}\n\n";
    assert_eq!(sse(text).usage(), usage(9, 5, 4));
}

#[test]
fn several_data_lines_are_one_event() {
    let seen = sse(
        b"event: x\ndata: {\"usage\":\ndata\ndata: {\"prompt_tokens\":2}}\n\ndata: a\ndata: b\n\n",
    );
    assert_eq!((seen.usage().prompt_tokens, seen.events()), (Some(2), 1));
}

#[test]
fn the_final_blank_line_may_be_missing() {
    assert_eq!(
        sse(b"data: {\"usage\":{\"prompt_tokens\":2}}")
            .usage()
            .prompt_tokens,
        Some(2)
    );
    assert!(sse(b"data: [DONE]").done());
}

#[test]
fn an_error_inside_a_stream_is_seen_and_a_quoted_one_is_not() {
    assert!(
        sse(b"data: {\"error\":{\"message\":\"x\",\"code\":500}}\n\ndata: [DONE]\n\n").error_seen()
    );
    assert!(!sse(b"data: {\"error\":null}\n\n").error_seen());
    assert!(
        !sse(b"data: {\"choices\":[{\"delta\":{\"content\":\"\\\"error\\\":1\"}}]}\n\n")
            .error_seen()
    );
    assert!(!sse(b"data: {\"choices\":[{\"error\":1}]}\n\n").error_seen());
}

#[test]
fn content_is_told_from_the_rest() {
    let role = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n";
    let running = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":{\"completion_tokens\":1}}\n\n";
    let last = "data: {\"choices\":[],\"usage\":{\"completion_tokens\":9}}\n\n";
    let failed = "data: {\"error\":{\"code\":500}}\n\n";
    for (stream, events, first) in [
        ("", 0, false),
        (": ping\n\nevent: x\n\ndata:\n\ndata: \n\n", 0, false),
        (role, 1, true),
        (running, 1, true),
        (last, 0, false),
        (failed, 0, false),
        ("data: [DONE]\n\ndata: {\"choices\":[{}]}\n\n", 0, false),
        ("data: not json with \"usage\"\n\n", 1, true),
    ] {
        let seen = sse(stream.as_bytes());
        assert_eq!(
            (seen.events(), seen.first_content()),
            (events, first),
            "{stream}"
        );
    }
    let all = [role, running, running, last].concat();
    let seen = sse(all.as_bytes());
    assert_eq!(
        (seen.events(), seen.usage().completion_tokens),
        (3, Some(9))
    );
}

#[test]
fn a_byte_order_mark_is_passed_over() {
    let text = b"\xef\xbb\xbfdata: {\"usage\":{\"prompt_tokens\":2}}\n\n";
    for cut in 0..8 {
        let (a, b) = text.split_at(cut);
        let seen = observe(UsageObserver::sse(), &[a, b]);
        assert_eq!(seen.usage().prompt_tokens, Some(2), "{cut}");
    }
}

#[test]
fn too_long_a_usage_is_given_up() {
    let mut seen = UsageObserver::json();
    seen.feed(b"{\"usage\":{\"x\":\"");
    for _ in 0..17 {
        seen.feed(&[b'a'; 1 << 16]);
    }
    seen.feed(b"\"},\"error\":1}");
    assert!(seen.gave_up() && !seen.error_seen());
    let whole = b"{\"usage\":{\"prompt_tokens\":1},\"error\":1}";
    let mut seen = UsageObserver::json_with_limit(8);
    seen.feed(whole);
    assert!(seen.gave_up() && !seen.error_seen());
    // A long text beside it is no reason: nothing of it is kept.
    let long = format!(
        "{{\"text\":\"{}\",\"usage\":{{\"prompt_tokens\":1}}}}",
        "a".repeat(3 << 20)
    );
    assert_eq!(answer(long.as_bytes()).usage().prompt_tokens, Some(1));
}

#[test]
fn what_was_read_before_giving_up_stays() {
    let text = format!(
        "data: {{\"usage\":{{\"prompt_tokens\":2}}}}\n\ndata: {}\n\ndata: [DONE]\n\n",
        "a".repeat(100)
    );
    let seen = observe(UsageObserver::sse_with_limit(64), &[text.as_bytes()]);
    assert!(seen.gave_up() && !seen.done());
    assert_eq!(seen.usage().prompt_tokens, Some(2));
}

#[test]
fn too_long_an_event_is_given_up() {
    let mut seen = UsageObserver::sse_with_limit(64);
    seen.feed(b"data: ");
    seen.feed(&[b'a'; 100]);
    assert!(seen.gave_up());
    seen.feed(b"\n\ndata: {\"usage\":{\"prompt_tokens\":2}}\n\n");
    assert_eq!(seen.usage(), Usage::default());
}

#[test]
fn a_json_answer_gives_its_root_usage_alone() {
    let text = br#" {"id":"x","choices":[{"message":{"content":"{\"usage\":{\"prompt_tokens\":99}}","usage":{"prompt_tokens":98}}}], "usage" : {"prompt_tokens" : 5, "completion_tokens":3,"prompt_tokens_details":{"cached_tokens":2}},"error":null}"#;
    for cut in 0..=text.len() {
        let (a, b) = text.split_at(cut);
        let seen = observe(UsageObserver::json(), &[a, b]);
        assert_eq!(seen.usage(), usage(5, 3, 2), "{cut}");
        assert!(!seen.error_seen());
    }
}

#[test]
fn responses_spelling_and_errors() {
    let text = br#"{"usage":{"input_tokens":7,"output_tokens":1,"input_tokens_details":{"cached_tokens":6}}}"#;
    assert_eq!(answer(text).usage(), usage(7, 1, 6));
    assert!(answer(br#"{"error":{"message":"no"}}"#).error_seen());
    assert!(answer(br#"{"error":"no"}"#).error_seen());
    assert!(!answer(br#"{"error":null,"x":{"error":1}}"#).error_seen());
}

#[test]
fn wrong_types_are_absent() {
    for value in [
        "\"5\"",
        "-1",
        "1.5",
        "1e3",
        "99999999999999999999999",
        "null",
        "[1]",
        "{}",
    ] {
        let text = format!("{{\"usage\":{{\"prompt_tokens\":{value},\"completion_tokens\":2}}}}");
        for seen in [
            answer(text.as_bytes()),
            sse(format!("data: {text}\n\n").as_bytes()),
        ] {
            assert_eq!(seen.usage().prompt_tokens, None, "{value}");
            assert_eq!(seen.usage().completion_tokens, Some(2), "{value}");
        }
    }
}

fn pieces<'a>(text: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    cuts.windows(2)
        .map(|pair| &text[pair[0]..pair[1]])
        .collect()
}

fn summary(seen: &UsageObserver) -> (Usage, u64, bool, bool, bool) {
    (
        seen.usage(),
        seen.events(),
        seen.done(),
        seen.error_seen(),
        seen.gave_up(),
    )
}

/// A JSON value with keys and words that matter in places where they do not.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z\"\\\\{}:,\\[\\]日]{0,8}".prop_map(Value::from),
        Just(json!("\"usage\":{\"prompt_tokens\":99}")),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let key =
            prop::sample::select(&["usage", "error", "prompt_tokens", "message", "a\"", "\\"][..]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key.prop_map(str::to_owned), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn count(usage: &Value, key: &str) -> Option<u64> {
    usage.get(key)?.as_u64()
}

proptest! {
    #[test]
    fn any_bytes_in_any_pieces_read_the_same(
        text in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            "(data: ?(\\{\"usage\":\\{\"prompt_tokens\":[0-9]{1,3}\\}\\}|\\{\"error\":1\\}|x|\\[DONE\\])?(\r\n|\n|\r){1,2}|: c\n){0,8}".prop_map(String::into_bytes),
            "(\\{|\\}|\"usage\"|:|,|\"error\"|null|[0-9]| |\"\\\\\"\"|\"prompt_tokens\"){0,30}".prop_map(String::into_bytes),
        ],
        cuts in prop::collection::vec(any::<usize>(), 0..8),
        limit in 0..80_usize,
    ) {
        for new in [UsageObserver::sse, UsageObserver::json] {
            let whole = observe(new(), &[&text]);
            let cut = observe(new(), &pieces(&text, &cuts));
            prop_assert_eq!(summary(&whole), summary(&cut));
        }
        for new in [UsageObserver::sse_with_limit, UsageObserver::json_with_limit] {
            let whole = observe(new(limit), &[&text]);
            let cut = observe(new(limit), &pieces(&text, &cuts));
            prop_assert_eq!(summary(&whole), summary(&cut));
        }
    }

    /// The scanner that keeps nothing agrees with a parser that keeps everything, as one answer and as one event.
    #[test]
    fn an_answer_reads_as_its_tree_does(
        members in prop::collection::vec((prop::sample::select(&["usage", "error", "choices", "x"][..]), value()), 0..5),
        usage in prop::option::of((any::<u32>(), any::<u32>(), any::<u32>())),
        place in any::<prop::sample::Index>(),
        pretty in any::<bool>(),
        cuts in prop::collection::vec(any::<usize>(), 0..4),
    ) {
        let mut members: Vec<(&str, Value)> = members;
        if let Some((prompt, completion, cached)) = usage {
            members.retain(|(key, _)| *key != "usage");
            let usage = json!({"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": {"cached_tokens": cached}});
            members.insert(place.index(members.len() + 1), ("usage", usage));
        }
        // One of each: which of two errors counts is not defined.
        members.sort_by_key(|(key, _)| *key);
        members.dedup_by_key(|(key, _)| *key);
        let turn = place.index(members.len().max(1));
        members.rotate_left(turn);
        let tree: serde_json::Map<String, Value> = members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let tree = Value::Object(tree);
        let body = if pretty { serde_json::to_string_pretty(&tree).unwrap() } else { tree.to_string() };
        let expected = Usage {
            prompt_tokens: count(&tree["usage"], "prompt_tokens"),
            completion_tokens: count(&tree["usage"], "completion_tokens"),
            cached_tokens: count(&tree["usage"]["prompt_tokens_details"], "cached_tokens"),
        };
        let seen = observe(UsageObserver::json(), &pieces(body.as_bytes(), &cuts));
        prop_assert_eq!(seen.usage(), expected);
        prop_assert_eq!(seen.error_seen(), !tree["error"].is_null());

        let event = format!("data: {tree}\n\n");
        let seen = observe(UsageObserver::sse(), &pieces(event.as_bytes(), &cuts));
        prop_assert_eq!(seen.usage(), expected);
        prop_assert_eq!(seen.error_seen(), !tree["error"].is_null());
    }
}
