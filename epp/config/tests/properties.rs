//! Whatever the text: an answer, never a panic; and an accepted file's effective form is a fixed point.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, which is its job"
)]

use proptest::{collection::vec, prelude::*, sample::select};
use wicketgate_config::{Config, parse_endpoints};

const FILES: [&str; 4] = [
    include_str!("good/ours-full.yaml"),
    include_str!("good/llm-d-queue-kv.yaml"),
    include_str!("good/llm-d-prefix.yaml"),
    include_str!("good/llm-d-sessions-flow-control-off.yaml"),
];

/// Parses, and checks what must hold whatever the outcome.
fn survive(text: &str) {
    let _ = parse_endpoints(text, "f");
    match Config::parse(text, "f") {
        Ok((config, _)) => {
            let effective = config.effective_yaml();
            match Config::parse(&effective, "effective") {
                Ok((again, _)) => assert_eq!(again, config, "{effective}"),
                Err(errors) => panic!("{errors}\n{effective}"),
            }
        }
        Err(errors) => {
            assert!(!errors.faults.is_empty());
            let shown = errors.to_string();
            assert_eq!(shown.lines().count(), errors.faults.len(), "{shown:?}");
            let lines = text.matches(['\n', '\r']).count() + 1;
            assert!(
                errors.faults.iter().all(|fault| fault.line <= lines),
                "{shown}"
            );
        }
    }
}

/// One change to a text.
#[derive(Clone, Debug)]
enum Change {
    Set(usize, char),
    Insert(usize, String),
    Cut(usize, usize),
    Repeat(usize, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let pieces = select(vec![
        "*a", "&a ", "!!str ", "<<: ", "? ", "- ", "---\n", "...\n", "{", "}", "[", "]", "'", "\"",
        "|\n", ">-\n", "# ", "\t", "\r\n", "null", "~", "-1", ".nan", "1e400", "%", "@", "\u{0}",
        "\u{85}", "é", "\n", ": ",
    ]);
    let at = 0..3000_usize;
    prop_oneof![
        (at.clone(), any::<char>()).prop_map(|(at, c)| Change::Set(at, c)),
        (at.clone(), pieces).prop_map(|(at, piece)| Change::Insert(at, piece.to_owned())),
        (at.clone(), 1..40_usize).prop_map(|(at, length)| Change::Cut(at, length)),
        (at, 1..80_usize).prop_map(|(at, length)| Change::Repeat(at, length)),
    ]
}

fn apply(text: &str, change: &Change) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    let within = |at: usize| at % (chars.len() + 1);
    match change {
        Change::Set(at, c) => {
            let at = within(*at);
            if let Some(place) = chars.get_mut(at) {
                *place = *c;
            }
        }
        Change::Insert(at, piece) => {
            let at = within(*at);
            chars.splice(at..at, piece.chars());
        }
        Change::Cut(at, length) => {
            let at = within(*at);
            let end = (at + length).min(chars.len());
            chars.drain(at..end);
        }
        Change::Repeat(at, length) => {
            let at = within(*at);
            let end = (at + length).min(chars.len());
            let again = chars[at..end].to_vec();
            chars.splice(end..end, again);
        }
    }
    chars.into_iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_survived(bytes in vec(any::<u8>(), 0..200)) {
        survive(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_text_of_yaml_signs_is_survived(
        text in "((server|pools|plugins|telemetry|- name|  type|endpoints): ?([a-z0-9\\[\\]{}&*!|>'\"-]{0,6})?\n){0,6}",
        signs in "[\\[\\]{}:,\\-?&*!|>'\"#% \n\ta]{0,120}",
    ) {
        survive(&text);
        survive(&signs);
    }

    #[test]
    fn a_changed_file_is_survived(file in select(&FILES[..]), changes in vec(change(), 1..4)) {
        let mut text = file.to_owned();
        for change in &changes {
            text = apply(&text, change);
        }
        survive(&text);
    }

    /// Texts of every kind come back from the effective file as they were.
    #[test]
    fn texts_come_back(label in any::<String>(), model in "\\PC{1,20}", name in any::<String>()) {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let text = format!(
            "{{\"pools\": [{{\"models\": [{}], \"endpoints\": [{{\"address\": \"a:1\", \"name\": {}, \"labels\": {{\"k\": {}}}}}]}}]}}",
            quoted(&model), quoted(&name), quoted(&label)
        );
        // The parser refuses some characters that JSON allows; what it takes must come back.
        if let Ok((config, _)) = Config::parse(&text, "f") {
            let endpoint = &config.pools[0].endpoints[0];
            prop_assert_eq!(&endpoint.labels["k"], &label);
            prop_assert_eq!(&endpoint.name, &name);
            survive(&text);
        }
    }
}
