//! Made-up text: seeded, plain ASCII that needs no escapes in JSON.

const VOCABULARY: [&str; 32] = [
    "gate", "water", "turbine", "river", "field", "press", "stone", "light", "paper", "cloud",
    "engine", "queue", "token", "cache", "block", "model", "batch", "score", "node", "route",
    "shard", "trace", "limit", "band", "window", "lever", "signal", "bridge", "harbor", "valley",
    "meter", "anchor",
];

/// `count` words, a number behind every fourth or so: two texts of different seeds part at once.
pub(crate) fn words(rng: &mut fastrand::Rng, count: usize) -> String {
    let mut text = String::with_capacity(count * 7);
    for index in 0..count {
        if index > 0 {
            text.push(' ');
        }
        push_word(rng, &mut text);
    }
    text
}

/// Words of exactly `bytes` bytes together; the last one may be cut.
pub(crate) fn words_of(rng: &mut fastrand::Rng, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        push_word(rng, &mut text);
        text.push(' ');
    }
    text.truncate(bytes);
    text
}

fn push_word(rng: &mut fastrand::Rng, text: &mut String) {
    text.push_str(rng.choice(VOCABULARY).unwrap_or("word"));
    if rng.u8(..) < 64 {
        text.push_str(&rng.u16(..1000).to_string());
    }
}

/// A streaming chat request of about `bytes` bytes: a system prompt and a question, as clients send them.
pub(crate) fn chat_body(rng: &mut fastrand::Rng, bytes: usize, stream: bool) -> String {
    let options = if stream {
        r#","stream":true,"stream_options":{"include_usage":true}"#
    } else {
        ""
    };
    let head = r#"{"model":"bench","temperature":0.7,"max_tokens":128,"messages":[{"role":"system","content":""#;
    let turn = r#""},{"role":"user","content":""#;
    let tail = format!(r#""}}]{options}}}"#);
    let room = bytes
        .saturating_sub(head.len() + turn.len() + tail.len())
        .max(8);
    let system = words_of(rng, room / 4);
    let user = words_of(rng, room - room / 4);
    format!("{head}{system}{turn}{user}{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_depend_on_the_seed_alone() {
        let text = |seed| words(&mut fastrand::Rng::with_seed(seed), 50);
        assert_eq!(text(1), text(1));
        assert_ne!(text(1), text(2));
        assert_eq!(text(1).split(' ').count(), 50);
    }

    #[test]
    fn bodies_have_their_size_and_are_json() {
        for bytes in [512, 2048, 32 << 10, 128 << 10] {
            for stream in [false, true] {
                let body = chat_body(&mut fastrand::Rng::with_seed(7), bytes, stream);
                assert_eq!(body.len(), bytes);
                let value: serde_json::Value = serde_json::from_str(&body).unwrap();
                assert_eq!(value["messages"][1]["role"], "user");
                assert_eq!(value["stream"].as_bool().unwrap_or(false), stream);
            }
        }
    }
}
