//! What is sent when: seeded, so two runs offer the same load.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::{Value, json};

/// A mixture of multi-turn chats with shared system prompts and single long prompts.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadSpec {
    /// Model to ask for.
    pub model: String,
    /// Requests per second, Poisson.
    pub rate: f64,
    /// How long requests are sent.
    pub duration: Duration,
    /// Groups of chats; each group shares a system prompt.
    pub groups: usize,
    /// Words of a system prompt.
    pub system_words: usize,
    /// Words of a user's turn.
    pub turn_words: usize,
    /// Words of a long prompt.
    pub long_words: usize,
    /// Share of requests that are long single prompts.
    pub long_share: f64,
    /// Share of the other requests that go on with an earlier chat.
    pub follow_share: f64,
    /// Tokens to generate, from and to.
    pub output: (u32, u32),
    /// Share of requests whose caller hangs up half-way through a typical answer.
    pub cancel_share: f64,
    /// How long such a caller waits.
    pub cancel_after: Duration,
    /// Start of the randomness.
    pub seed: u64,
}

impl Default for LoadSpec {
    fn default() -> Self {
        LoadSpec {
            model: "emulated".to_owned(),
            rate: 20.0,
            duration: Duration::from_secs(10),
            groups: 8,
            system_words: 300,
            turn_words: 40,
            long_words: 2000,
            long_share: 0.1,
            follow_share: 0.6,
            output: (16, 96),
            cancel_share: 0.02,
            cancel_after: Duration::from_millis(300),
            seed: 1,
        }
    }
}

/// One request.
#[derive(Clone, Debug)]
pub struct Planned {
    /// When it is sent, from the start of the run.
    pub at: Duration,
    /// The body.
    pub body: Bytes,
    /// When its caller hangs up, from its sending.
    pub cancel: Option<Duration>,
}

/// A chat under way; its answers are scripted, so that a turn does not wait for the one before.
struct Chat {
    messages: Vec<Value>,
    free_at: Duration,
}

/// The requests of a run, by time.
pub fn plan(spec: &LoadSpec) -> Vec<Planned> {
    let mut rng = fastrand::Rng::with_seed(spec.seed);
    let systems: Vec<Arc<str>> = (0..spec.groups.max(1))
        .map(|_| words(&mut rng, spec.system_words).into())
        .collect();
    let mut chats: Vec<Chat> = Vec::new();
    let mut planned = Vec::new();
    let mut at = Duration::ZERO;
    loop {
        // Exponential gaps make Poisson arrivals.
        let gap = -(1.0 - rng.f64()).ln() / spec.rate.max(1e-9);
        at += Duration::from_secs_f64(gap.min(3600.0));
        if at >= spec.duration {
            return planned;
        }
        let messages = messages(spec, &systems, &mut chats, at, &mut rng);
        let body = json!({
            "model": spec.model,
            "messages": messages,
            "max_tokens": rng.u32(spec.output.0..=spec.output.1.max(spec.output.0)),
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        let cancel = (rng.f64() < spec.cancel_share).then_some(spec.cancel_after);
        planned.push(Planned {
            at,
            body: Bytes::from(body.to_string()),
            cancel,
        });
    }
}

fn messages(
    spec: &LoadSpec,
    systems: &[Arc<str>],
    chats: &mut Vec<Chat>,
    at: Duration,
    rng: &mut fastrand::Rng,
) -> Vec<Value> {
    let user =
        |rng: &mut fastrand::Rng, count| json!({"role": "user", "content": words(rng, count)});
    if rng.f64() < spec.long_share {
        return vec![user(rng, spec.long_words)];
    }
    let think = Duration::from_secs(2);
    let ready: Vec<usize> = (0..chats.len())
        .filter(|index| chats.get(*index).is_some_and(|chat| chat.free_at <= at))
        .collect();
    let follows = !ready.is_empty() && rng.f64() < spec.follow_share;
    let chosen = if follows {
        ready.get(rng.usize(..ready.len())).copied()
    } else {
        None
    };
    if let Some(chat) = chosen.and_then(|index| chats.get_mut(index)) {
        chat.messages
            .push(json!({"role": "assistant", "content": words(rng, spec.turn_words)}));
        chat.messages.push(user(rng, spec.turn_words));
        chat.free_at = at + think;
        return chat.messages.clone();
    }
    let system = systems
        .get(rng.usize(..systems.len()))
        .map_or("", |system| system.as_ref());
    let messages = vec![
        json!({"role": "system", "content": system}),
        user(rng, spec.turn_words),
    ];
    chats.push(Chat {
        messages: messages.clone(),
        free_at: at + think,
    });
    messages
}

const VOCABULARY: [&str; 24] = [
    "gate", "water", "turbine", "river", "field", "press", "stone", "light", "paper", "cloud",
    "engine", "queue", "token", "cache", "block", "model", "batch", "score", "node", "route",
    "shard", "trace", "limit", "band",
];

/// Made-up text: words with a number now and then, so that texts differ.
fn words(rng: &mut fastrand::Rng, count: usize) -> String {
    let mut text = String::with_capacity(count * 7);
    for index in 0..count {
        if index > 0 {
            text.push(' ');
        }
        let word = VOCABULARY
            .get(rng.usize(..VOCABULARY.len()))
            .copied()
            .unwrap_or_default();
        text.push_str(word);
        if rng.u8(..) < 64 {
            text.push_str(&rng.u16(..1000).to_string());
        }
    }
    text
}
