//! Real tokenisers and their templates, against the plain tokeniser and the real Jinja.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that panics has failed, which is its job"
)]

mod chats;
mod media;
mod odd;

use std::{path::PathBuf, sync::LazyLock};

use proptest::{prelude::*, strategy::ValueTree as _};
use wicketgate_kvindex::tokens::{ContentFormat, Memo, Model};

const NAMES: [&str; 3] = ["qwen3", "llama3_1", "deepseek_v3"];

fn environment() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.venv"))
}

struct Known {
    name: &'static str,
    model: Model,
    config: Vec<u8>,
}

/// The tokenisers that are installed. In CI all must be; elsewhere a line says what is skipped.
fn models() -> &'static [Known] {
    static MODELS: LazyLock<Vec<Known>> = LazyLock::new(|| {
        let read = |name: &'static str| -> Option<Known> {
            let folder = environment().join("tokenizers").join(name);
            let files = ["tokenizer.json", "tokenizer_config.json"]
                .map(|file| std::fs::read(folder.join(file)));
            let [Ok(tokenizer), Ok(config)] = files else {
                assert!(
                    std::env::var_os("CI").is_none(),
                    "CI needs tokenizers: scripts/setup-test-env.sh"
                );
                eprintln!("skipped: tokenizer {name} absent, run scripts/setup-test-env.sh");
                return None;
            };
            let model = Model::new(&tokenizer, Some(&config), None, 16 << 20, 1).unwrap();
            Some(Known {
                name,
                model,
                config,
            })
        };
        NAMES.into_iter().filter_map(read).collect()
    });
    &MODELS
}

/// Ids that the tokenisers' own publishers give, so that two equal mistakes do not hide each other.
#[test]
fn known_texts_have_known_ids() {
    for known in models() {
        let tokens = |text: &str, special| known.model.prompt(text, special).unwrap();
        let (hello, framed): (&[u32], &[u32]) = match known.name {
            "qwen3" => (&[9707, 1879, 0], &[9707, 1879, 0]),
            "llama3_1" => (&[9906, 1917, 0], &[128_000, 9906, 1917, 0]),
            _ => (&[19_923, 2058, 3], &[0, 19_923, 2058, 3]),
        };
        assert_eq!(tokens("Hello world!", false), hello, "{}", known.name);
        assert_eq!(tokens("Hello world!", true), framed, "{}", known.name);
        assert_eq!(known.model.content_format(), Some(ContentFormat::String));
    }
}

/// Text with everything in it that could be cut in the wrong place.
fn text(added: Vec<String>) -> impl Strategy<Value = String> {
    let whole = prop::sample::select(added.clone());
    let cut = (prop::sample::select(added), 0.0..1.0f64).prop_map(|(token, share)| {
        let at = (token.chars().count() as f64 * share) as usize;
        token.chars().take(at).collect()
    });
    let plain = prop::sample::select(vec![
        " ",
        "  ",
        "\n",
        "\n\n",
        " \n",
        "\t",
        "a",
        "Word",
        " word",
        "'s",
        "don't",
        "123",
        "4567890",
        ".",
        "!?",
        "<",
        "|>",
        "<|",
        "ä",
        "e\u{301}",
        "日本語",
        "한국어",
        "🙂",
        "\u{200b}",
        "\u{a0}",
        "\r\n",
        "ﬁ",
        "Å",
        "\u{0}",
        "_",
        "▁",
        "｜",
    ]);
    let piece = prop_oneof![
        3 => whole,
        1 => cut,
        6 => plain.prop_map(str::to_owned),
        2 => "\\PC{0,12}",
    ];
    prop::collection::vec(piece, 0..14).prop_map(|pieces| pieces.concat())
}

fn added(known: &Known) -> Vec<String> {
    let mut all = known.model.tokenizer().added_tokens();
    // Hundreds of them differ in a number only.
    all.retain(|token| !token.contains("place") && !token.contains("reserved_special_token_1"));
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// A text that grows byte by byte, and what is left of it: always the same as without memory.
    #[test]
    fn memoised_tokens_are_those_of_the_plain_tokeniser(seed in any::<u64>()) {
        for known in models() {
            let mut runner = proptest::test_runner::TestRunner::new_with_rng(
                ProptestConfig::default(),
                proptest::test_runner::TestRng::from_seed(
                    proptest::test_runner::RngAlgorithm::ChaCha,
                    &[seed.to_le_bytes(); 4].concat(),
                ),
            );
            let text = text(added(known)).new_tree(&mut runner).unwrap().current();
            let tokenizer = known.model.tokenizer();
            let memo = Memo::new(1 << 20, seed);
            for at in 0..=text.len() {
                let (head, tail) = text.as_bytes().split_at(at);
                for part in [head, tail] {
                    let part = String::from_utf8_lossy(part);
                    let memoised = tokenizer.encode(&part, false, &memo).unwrap();
                    prop_assert_eq!(
                        &memoised, &tokenizer.plain(&part, false).unwrap(),
                        "{}: {:?}", known.name, part
                    );
                }
            }
            for special in [false, true] {
                let memoised = tokenizer.encode(&text, special, &memo).unwrap();
                prop_assert_eq!(memoised, tokenizer.plain(&text, special).unwrap(), "{}", known.name);
            }
        }
    }
}

/// A user who writes special tokens gets what the engine makes of them: the tokens themselves.
#[test]
fn special_tokens_in_what_a_user_says_are_special_tokens() {
    for known in models() {
        let tokenizer = known.model.tokenizer();
        for token in added(known) {
            let id = tokenizer.id(&token).unwrap();
            let body = serde_json::json!({"messages": [{"role": "user", "content": format!("say {token} now")}]});
            let chat = chats::parse(&body);
            let tokens = known.model.chat(&chat, 0).unwrap();
            assert!(tokens.contains(&id), "{}: {token}", known.name);
            assert_eq!(tokens, known.model.plain_chat(&chat, 0).unwrap());
        }
    }
}

/// The next turn costs only its new segments.
#[test]
fn turns_share_what_they_have_in_common() {
    for known in models() {
        let mut messages = vec![serde_json::json!({"role": "system", "content": "You are brief."})];
        let mut before: Option<(Vec<u32>, u64)> = None;
        for turn in 0..20 {
            messages.push(serde_json::json!({"role": "user", "content": format!("question {turn}: {}", "why? ".repeat(40))}));
            let chat = chats::parse(&serde_json::json!({"messages": messages}));
            let tokens = known.model.chat(&chat, 0).unwrap();
            assert_eq!(tokens, known.model.plain_chat(&chat, 0).unwrap());
            let misses = known.model.memo().misses;
            if let Some((shorter, missed)) = before {
                assert!(
                    misses - missed <= 4,
                    "{}: {} new segments",
                    known.name,
                    misses - missed
                );
                let same = shorter
                    .iter()
                    .zip(&tokens)
                    .take_while(|(a, b)| a == b)
                    .count();
                assert!(
                    same + 8 >= shorter.len(),
                    "{}: {same} of {}",
                    known.name,
                    shorter.len()
                );
            }
            before = Some((tokens, misses));
            messages.push(serde_json::json!({"role": "assistant", "content": format!("because {turn} {}", "so ".repeat(40))}));
        }
    }
}
