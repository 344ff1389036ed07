//! Chats under way: each turn repeats all turns before it, so its prompt begins with theirs.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::spec::LoadSpec;
use crate::text::words;

/// Chats that wait for their next turn at once. The oldest is given up beyond that.
const OPEN: usize = 4096;

/// One chat; its answers are scripted.
struct Chat {
    /// Messages so far, as the inside of a JSON array.
    messages: String,
    turns_left: usize,
    free_at: Duration,
}

/// The chats of a run and the system prompts that they share.
pub(super) struct Chats {
    systems: Vec<Arc<str>>,
    /// By the time of their next turn, as every turn is followed by the same pause.
    waiting: VecDeque<Chat>,
}

impl Chats {
    pub(super) fn new(spec: &LoadSpec, rng: &mut fastrand::Rng) -> Chats {
        let systems = (0..spec.groups).map(|_| words(rng, spec.system_words).into());
        Chats {
            systems: systems.collect(),
            waiting: VecDeque::new(),
        }
    }

    /// The messages of a request that is sent at `at`: the next turn of a chat, or the first one of a new chat.
    pub(super) fn next(
        &mut self,
        spec: &LoadSpec,
        at: Duration,
        rng: &mut fastrand::Rng,
    ) -> String {
        let new = rng.f64() < spec.new_chat_share;
        let ready = self.waiting.front().is_some_and(|chat| chat.free_at <= at);
        let mut chat = match self.waiting.pop_front_if(|_| ready && !new) {
            Some(mut chat) => {
                let length = count(rng, spec.turn_words);
                let answer = words(rng, length);
                push(&mut chat.messages, "assistant", &answer);
                chat
            }
            None => self.open(spec, rng),
        };
        let length = count(rng, spec.turn_words);
        let question = words(rng, length);
        push(&mut chat.messages, "user", &question);
        let messages = chat.messages.clone();
        chat.turns_left = chat.turns_left.saturating_sub(1);
        chat.free_at = at + spec.think;
        if chat.turns_left > 0 {
            if self.waiting.len() >= OPEN {
                self.waiting.pop_front();
            }
            self.waiting.push_back(chat);
        }
        messages
    }

    fn open(&self, spec: &LoadSpec, rng: &mut fastrand::Rng) -> Chat {
        let mut messages = String::new();
        if let Some(system) = rng.choice(&self.systems) {
            push(&mut messages, "system", system);
        }
        Chat {
            messages,
            turns_left: spec.turns,
            free_at: Duration::ZERO,
        }
    }
}

/// A number of words from a range that rises.
pub(super) fn count(rng: &mut fastrand::Rng, (from, to): (usize, usize)) -> usize {
    rng.usize(from..=to)
}

/// Appends a message; `text` needs no escapes.
pub(super) fn push(messages: &mut String, role: &str, text: &str) {
    if !messages.is_empty() {
        messages.push(',');
    }
    for part in [r#"{"role":""#, role, r#"","content":""#, text, r#""}"#] {
        messages.push_str(part);
    }
}
