//! What an answer says besides its tokens.

use std::{fmt::Write as _, sync::Arc};

use super::{FINGERPRINT, usage::Usage};
use crate::{
    batch::output_token,
    engine::{failure::Fault, failure::UsageFault, ticket::Progress},
    text::push_word,
};

/// Which API is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Dialect {
    Chat,
    Completion,
}

/// An answer to a generation request.
#[derive(Debug)]
pub(in crate::engine) struct Answer {
    pub(in crate::engine) dialect: Dialect,
    /// `{"id":...,"object":...,"created":...,"model":...,`
    pub(in crate::engine) head: String,
    pub(in crate::engine) include_usage: bool,
    pub(in crate::engine) continuous_usage: bool,
    pub(in crate::engine) return_token_ids: bool,
    /// It ends by itself.
    pub(in crate::engine) stops: bool,
    pub(super) prompts: Vec<Arc<[u32]>>,
    /// By choice; every prompt has as many.
    pub(super) output_keys: Vec<u64>,
    pub(super) block_size: u32,
}

impl Answer {
    pub(in crate::engine) fn choices(&self) -> usize {
        self.output_keys.len()
    }

    fn choices_per_prompt(&self) -> usize {
        (self.choices() / self.prompts.len().max(1)).max(1)
    }

    pub(in crate::engine) fn output_key(&self, choice: usize) -> u64 {
        self.output_keys.get(choice).copied().unwrap_or_default()
    }

    pub(in crate::engine) fn finish_reason(&self) -> &'static str {
        if self.stops { "stop" } else { "length" }
    }

    pub(in crate::engine) fn write_fingerprint(&self, text: &mut String) {
        let _ = write!(text, ",\"system_fingerprint\":\"{FINGERPRINT}\"");
    }

    /// Token ids of the prompt of a choice, if they are asked for.
    pub(in crate::engine) fn write_prompt_ids(&self, choice: usize, text: &mut String) {
        match self.prompts.get(choice / self.choices_per_prompt()) {
            Some(prompt) if self.return_token_ids => write_ids(prompt.iter().copied(), text),
            _ => text.push_str("null"),
        }
    }

    /// The counts; none if they are to be left out.
    pub(in crate::engine) fn usage(
        &self,
        progress: &[Progress],
        fault: UsageFault,
    ) -> Option<Usage> {
        let size = self.block_size.max(1) as usize;
        let tokens = |of: fn(usize, usize) -> usize| {
            let all = self.prompts.iter().map(|prompt| of(prompt.len(), size));
            i64::try_from(all.sum::<usize>()).unwrap_or(i64::MAX)
        };
        // Choices of one prompt share it: it counts once, with what its first choice found.
        let firsts = progress.iter().step_by(self.choices_per_prompt());
        let cached = firsts.map(|first| i64::from(first.cached_tokens)).sum();
        let usage = Usage {
            prompt: tokens(|length, _| length),
            completion: progress
                .iter()
                .map(|progress| i64::from(progress.generated))
                .sum(),
            cached,
            created: (tokens(|length, size| length / size * size) - cached).max(0),
        };
        usage.with(fault)
    }

    /// The counts of one choice so far; none if they are to be left out.
    pub(in crate::engine) fn running_usage(
        &self,
        choice: usize,
        generated: u32,
        fault: UsageFault,
    ) -> Option<Usage> {
        let prompt = self.prompts.get(choice / self.choices_per_prompt());
        let usage = Usage {
            prompt: prompt.map_or(0, |prompt| i64::try_from(prompt.len()).unwrap_or(i64::MAX)),
            completion: i64::from(generated),
            ..Usage::default()
        };
        usage.with(fault)
    }

    /// The answer when it is no stream.
    pub(super) fn whole(&self, progress: &[Progress], fault: Fault) -> String {
        let mut text = String::with_capacity(1024);
        text.push_str(&self.head);
        text.push_str("\"choices\":[");
        for (choice, now) in progress.iter().enumerate() {
            if choice > 0 {
                text.push(',');
            }
            self.write_choice(choice, now.generated, &mut text);
        }
        text.push_str("],\"service_tier\":null");
        self.write_fingerprint(&mut text);
        if let Some(counts) = self.usage(progress, fault.usage) {
            text.push_str(",\"usage\":");
            super::usage::write_whole(&counts, self.dialect, &mut text);
        }
        if self.dialect == Dialect::Chat {
            text.push_str(",\"prompt_logprobs\":null,\"prompt_token_ids\":");
            self.write_prompt_ids(0, &mut text);
            text.push_str(",\"prompt_text\":null");
        }
        text.push_str(",\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}");
        text
    }

    fn write_choice(&self, choice: usize, generated: u32, text: &mut String) {
        let key = self.output_key(choice);
        let tokens = (0..generated).map(|index| output_token(key, index));
        let _ = write!(text, "{{\"index\":{choice},");
        text.push_str(match self.dialect {
            Dialect::Chat => "\"message\":{\"role\":\"assistant\",\"content\":\"",
            Dialect::Completion => "\"text\":\"",
        });
        for (index, token) in tokens.clone().enumerate() {
            if index > 0 {
                text.push(' ');
            }
            push_word(token, text);
        }
        text.push_str(match self.dialect {
            Dialect::Chat => {
                "\",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\"reasoning\":null}"
            }
            Dialect::Completion => "\"",
        });
        let reason = self.finish_reason();
        let _ = write!(
            text,
            ",\"logprobs\":null,\"finish_reason\":\"{reason}\",\"stop_reason\":null,\"token_ids\":"
        );
        if self.return_token_ids {
            write_ids(tokens, text);
        } else {
            text.push_str("null");
        }
        if self.dialect == Dialect::Completion {
            text.push_str(",\"prompt_logprobs\":null,\"prompt_token_ids\":");
            self.write_prompt_ids(choice, text);
        }
        text.push_str(",\"routed_experts\":null}");
    }
}

fn write_ids(ids: impl Iterator<Item = u32>, text: &mut String) {
    text.push('[');
    for (index, id) in ids.enumerate() {
        if index > 0 {
            text.push(',');
        }
        let _ = write!(text, "{id}");
    }
    text.push(']');
}
