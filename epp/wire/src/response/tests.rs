//! Values for every cut, and no panic for any bytes.

use proptest::prelude::*;

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

fn json(text: &[u8]) -> UsageObserver {
    observe(UsageObserver::json(), &[text])
}

/// C08, input 1, with every line ending.
#[test]
fn usage_is_the_same_for_every_cut() {
    let lines = "data: {\"choices\":[{\"delta\":{\"content\":\"日本🙂\"}}]}\n\n: comment\n\ndata:{\"usage\":{\"completion_tokens\":3}}\n\ndata: [DONE]\n\nrubbish";
    for ending in ["\n", "\r\n", "\r"] {
        let text = lines.replace('\n', ending);
        let text = text.as_bytes();
        for cut in 0..=text.len() {
            let (a, b) = text.split_at(cut);
            let seen = observe(UsageObserver::sse(), &[a, b]);
            assert_eq!(seen.usage().completion_tokens, Some(3), "{ending:?} {cut}");
            assert_eq!((seen.events(), seen.done()), (2, true), "{ending:?} {cut}");
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
    let seen = sse(b"event: x\ndata: {\"usage\":\ndata: {\"prompt_tokens\":2}}\n\n");
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
    assert_eq!(json(text).usage(), usage(7, 1, 6));
    assert!(json(br#"{"error":{"message":"no"}}"#).error_seen());
    assert!(json(br#"{"error":"no"}"#).error_seen());
    assert!(!json(br#"{"error":null,"x":{"error":1}}"#).error_seen());
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
            json(text.as_bytes()),
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

proptest! {
    #[test]
    fn any_bytes_in_any_pieces_read_the_same(
        text in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            "(data: ?(\\{\"usage\":\\{\"prompt_tokens\":[0-9]{1,3}\\}\\}|\\{\"error\":1\\}|x|\\[DONE\\])?(\r\n|\n|\r){1,2}|: c\n){0,8}".prop_map(String::into_bytes),
            "(\\{|\\}|\"usage\"|:|,|\"error\"|null|[0-9]| |\"\\\\\"\"|\"prompt_tokens\"){0,30}".prop_map(String::into_bytes),
        ],
        cuts in prop::collection::vec(any::<usize>(), 0..8),
    ) {
        for new in [UsageObserver::sse, UsageObserver::json] {
            let whole = observe(new(), &[&text]);
            let cut = observe(new(), &pieces(&text, &cuts));
            prop_assert_eq!(summary(&whole), summary(&cut));
        }
    }

    /// The scanner that keeps nothing agrees with a parser that keeps everything.
    #[test]
    fn a_json_answer_reads_as_a_tree_does(prompt in any::<u32>(), text in ".{0,40}", first in any::<bool>()) {
        let usage = serde_json::json!({"prompt_tokens": prompt});
        let choices = serde_json::json!([{"text": text, "usage": {"prompt_tokens": 1}}]);
        let body = if first {
            format!("{{\"usage\":{usage},\"choices\":{choices}}}")
        } else {
            format!("{{\"choices\":{choices},\"usage\":{usage}}}")
        };
        prop_assert_eq!(json(body.as_bytes()).usage().prompt_tokens, Some(u64::from(prompt)));
    }
}
