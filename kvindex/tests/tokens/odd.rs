//! Made-up tokenisers that do what real ones rarely do, but may: tokens that swallow white space, ask for word borders or
//! are normalised, and pre-tokenisers that treat the start of a text differently.

use proptest::prelude::*;
use serde_json::{Value, json};
use wicketgate_kvindex::tokens::{Memo, Tokenizer};

fn added(id: u32, content: &str, change: &[&str]) -> Value {
    let has = |flag: &str| change.contains(&flag);
    json!({"id": id, "content": content, "special": has("special"), "normalized": has("normalized"),
        "lstrip": has("lstrip"), "rstrip": has("rstrip"), "single_word": has("single_word")})
}

/// Letters, with a few merges across the mark of a word.
fn model() -> Value {
    let letters = [
        "<unk>", "▁", "a", "b", "A", "<", ">", "h", ".", "ab", "▁a", "▁ab", "▁▁",
    ];
    let vocab: serde_json::Map<String, Value> = letters
        .iter()
        .enumerate()
        .map(|(id, letter)| ((*letter).to_owned(), json!(id)))
        .collect();
    json!({"type": "BPE", "vocab": vocab, "merges": [["a", "b"], ["▁", "a"], ["▁", "ab"], ["▁", "▁"]],
        "unk_token": "<unk>", "fuse_unk": true, "dropout": null, "byte_fallback": false,
        "continuing_subword_prefix": null, "end_of_word_suffix": null})
}

fn tokenizer(normalizer: Value, before: Value, added: Vec<Value>, post: Value) -> Tokenizer {
    let all = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": normalizer, "pre_tokenizer": before, "post_processor": post, "decoder": null, "model": model()});
    Tokenizer::new(all.to_string().as_bytes(), None).unwrap()
}

fn metaspace(scheme: &str) -> Value {
    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true})
}

fn tokenizers() -> Vec<Tokenizer> {
    let hard = added(20, "<h>", &["special"]);
    let second = added(21, "<h><n>", &["special"]);
    let normalized = added(22, "<N>", &["normalized"]);
    let word = added(23, "ab", &["single_word"]);
    let left = added(24, "<l>", &["lstrip", "special"]);
    let right = added(25, "<r>", &["rstrip", "special"]);
    let letter = added(26, "b", &["normalized", "single_word"]);
    let overlap = added(27, "><h", &["rstrip"]);
    let lettered = added(28, "bA", &["special"]);
    let spaced = added(29, " >", &["special"]);
    let none = Value::Null;
    let frame = json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<h>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<r>", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<h>": {"id": "<h>", "ids": [20], "tokens": ["<h>"]}, "<r>": {"id": "<r>", "ids": [25], "tokens": ["<r>"]}}});
    let lower = json!({"type": "Lowercase"});
    let prepend = json!({"type": "Prepend", "prepend": "▁"});
    let nothing = json!({"type": "Sequence", "normalizers": []});
    let few = || {
        vec![
            hard.clone(),
            second.clone(),
            normalized.clone(),
            letter.clone(),
        ]
    };
    let all = || {
        vec![
            hard.clone(),
            second.clone(),
            normalized.clone(),
            word.clone(),
            left.clone(),
            right.clone(),
            letter.clone(),
            overlap.clone(),
            lettered.clone(),
            spaced.clone(),
        ]
    };
    vec![
        tokenizer(none.clone(), metaspace("first"), few(), none.clone()),
        tokenizer(nothing, metaspace("always"), few(), none.clone()),
        tokenizer(lower.clone(), metaspace("first"), few(), none.clone()),
        tokenizer(prepend, none.clone(), few(), none.clone()),
        tokenizer(none.clone(), metaspace("first"), all(), frame),
        tokenizer(lower, metaspace("never"), all(), none.clone()),
        tokenizer(none.clone(), none.clone(), Vec::new(), none),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn the_plain_tokeniser_is_always_right(
        pieces in prop::collection::vec(
            prop::sample::select(vec![
                "bA", " >", "<h>", "<h><n>", "<N>", "<n>", "ab", "<l>", "<r>", "b", "a", "A", " ", "  ", "\n", "<", ">", "><h", "h>", ".",
                "é", "▁", "_",
            ]),
            0..16,
        ),
    ) {
        let text = pieces.concat();
        for (number, tokenizer) in tokenizers().iter().enumerate() {
            let memo = Memo::new(1 << 20, 1);
            for at in (0..=text.len()).filter(|at| text.is_char_boundary(*at)) {
                for part in [&text[..at], &text[at..]] {
                    for special in [false, true] {
                        prop_assert_eq!(
                            tokenizer.encode(part, special, &memo).unwrap(),
                            tokenizer.plain(part, special).unwrap(),
                            "{}: {:?}", number, part
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_no_tokeniser_is_refused() {
    for broken in [
        &b""[..],
        b"{}",
        b"[1]",
        b"\xff",
        br#"{"version":"1.0","model":{"type":"Nothing"}}"#,
    ] {
        assert!(Tokenizer::new(broken, None).is_err());
    }
    let whole = json!({"version": "1.0", "added_tokens": [], "model": model()}).to_string();
    assert!(Tokenizer::new(whole.as_bytes(), Some(b"7")).is_err());
}
