//! Prompts to tokens in process: a conversation when it is new, and its next turn.

use std::{
    fs, io,
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::{Value, json};
use wicketgate_kvindex::tokens::{Chat, Model};

use super::Output;
use crate::{
    measure::{Times, number, round},
    report::Outcome,
    text::words,
};

/// Flags of `bench tokenize`.
#[derive(Clone, Debug, Args)]
pub struct TokenizeArgs {
    /// Folder with tokenizer.json and tokenizer_config.json
    #[arg(long, value_name = "FOLDER", default_value = ".venv/tokenizers/qwen3")]
    tokenizer: PathBuf,
    /// Length of the conversation
    #[arg(long, value_name = "TOKENS", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(100..=2_000_000))]
    tokens: u64,
    /// Conversations that are new
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    cold: u64,
    /// Next turns, each of another conversation
    #[arg(long, value_name = "COUNT", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    turns: u64,
    /// Start of the randomness
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    pub(super) output: Output,
}

/// Words of a message of the conversation, and of what is new in the next turn: an answer and a question.
const MESSAGE: usize = 300;
const NEW: usize = 60;
/// Unix time that templates tell.
const NOW: i64 = 1_796_072_969;

pub(super) fn run(args: &TokenizeArgs) -> io::Result<Outcome> {
    let read = |file: &str| {
        let path = args.tokenizer.join(file);
        fs::read(&path).map_err(|error| {
            let hint = "scripts/setup-test-env.sh installs some";
            io::Error::new(error.kind(), format!("{}: {error}; {hint}", path.display()))
        })
    };
    let (tokenizer, config) = (read("tokenizer.json")?, read("tokenizer_config.json")?);
    let model = || Model::new(&tokenizer, Some(&config), None, 256 << 20, args.seed);
    let warm = model().map_err(io::Error::other)?;
    let mut rng = fastrand::Rng::with_seed(args.seed);
    let messages = conversation(&mut rng, &warm, args.tokens)?;
    let mut run = Run {
        equal: true,
        tokens: 0,
    };
    let mut cold = Times::new();
    for _ in 0..args.cold {
        let fresh = model().map_err(io::Error::other)?;
        cold.add(run.chat(&fresh, &messages)?);
    }
    let prompt_tokens = run.tokens;
    run.chat(&warm, &messages)?;
    let mut next = Times::new();
    for _ in 0..args.turns {
        let mut messages = messages.clone();
        messages.push(message("assistant", words(&mut rng, NEW)));
        messages.push(message("user", words(&mut rng, NEW)));
        next.add(run.chat(&warm, &messages)?);
    }
    // After the measurements: the plain tokeniser's answer to the last turn.
    let mut last = messages.clone();
    last.push(message("user", words(&mut rng, NEW)));
    run.check(&warm, &last)?;
    let (cold_us, next_us) = (cold.us(), next.us());
    let per_s = number(prompt_tokens) / cold.at(0.5).as_secs_f64().max(1e-9);
    let mut outcome = Outcome::new();
    outcome.row("prompt", format!("{prompt_tokens} tokens"));
    outcome.row("new conversation", format!("{:.0} us", cold_us.p50));
    outcome.row("tokens per second", format!("{per_s:.0} on one core"));
    outcome.row(
        "next turn p50 / p99",
        format!("{:.0} / {:.0} us", next_us.p50, next_us.p99),
    );
    outcome.json = json!({
        "tokens_per_s": round(per_s, 0),
        "cold_us": cold_us.p50,
        "next_turn_us": next_us.p50,
        "next_turn_p99_us": next_us.p99,
        "prompt_tokens": prompt_tokens,
        "tokenizer": args.tokenizer.display().to_string(),
        "mode": "one thread; request parsed, rendered and tokenised",
    });
    outcome.require(run.equal, || {
        "the tokens are not those of the plain tokeniser".to_owned()
    });
    Ok(outcome)
}

fn message(role: &str, content: String) -> Value {
    json!({"role": role, "content": content})
}

/// Turns of a user and an assistant until they have so many tokens.
fn conversation(rng: &mut fastrand::Rng, model: &Model, tokens: u64) -> io::Result<Vec<Value>> {
    let mut messages = vec![message("system", words(rng, MESSAGE.min(40)))];
    let mut length = 0;
    while length < tokens {
        let role = match messages.len() % 2 {
            1 => "user",
            _ => "assistant",
        };
        let text = words(rng, MESSAGE);
        let more = model
            .tokenizer()
            .plain(&text, false)
            .map_err(io::Error::other)?;
        length += more.len() as u64;
        messages.push(message(role, text));
    }
    if messages.len() % 2 == 1 {
        messages.push(message("user", words(rng, NEW)));
    }
    Ok(messages)
}

struct Run {
    equal: bool,
    /// Of the last prompt.
    tokens: u64,
}

impl Run {
    /// Time from a request's bytes to its tokens.
    fn chat(&mut self, model: &Model, messages: &[Value]) -> io::Result<Duration> {
        let body = json!({"model": "bench", "messages": messages}).to_string();
        let start = Instant::now();
        let chat = Chat::parse(body.as_bytes()).map_err(io::Error::other)?;
        let tokens = model.chat(&chat, NOW).map_err(io::Error::other)?;
        let took = start.elapsed();
        self.tokens = tokens.len() as u64;
        Ok(took)
    }

    fn check(&mut self, model: &Model, messages: &[Value]) -> io::Result<()> {
        let body = json!({"messages": messages}).to_string();
        let chat = Chat::parse(body.as_bytes()).map_err(io::Error::other)?;
        let ours = model.chat(&chat, NOW).map_err(io::Error::other)?;
        self.equal &= ours == model.plain_chat(&chat, NOW).map_err(io::Error::other)?;
        Ok(())
    }
}
