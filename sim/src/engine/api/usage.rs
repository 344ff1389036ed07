//! `usage`, right or wrong.

use std::fmt::Write as _;

use super::Dialect;
use crate::engine::UsageFault;

/// Counts of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct Usage {
    pub(in crate::engine) prompt: i64,
    pub(in crate::engine) completion: i64,
    pub(in crate::engine) cached: i64,
    /// Prompt tokens in blocks that are cached from now on.
    pub(in crate::engine) created: i64,
}

impl Usage {
    /// The same, or a lie.
    pub(super) fn with(mut self, fault: UsageFault) -> Option<Usage> {
        match fault {
            UsageFault::Right => {}
            UsageFault::Double => {
                self.prompt *= 2;
                self.completion *= 2;
            }
            UsageFault::Zero => self = Usage::default(),
            UsageFault::Negative => self.completion = -self.completion.max(1),
            UsageFault::Missing => return None,
        }
        Some(self)
    }
}

fn write_counts(usage: &Usage, text: &mut String) {
    let Usage {
        prompt, completion, ..
    } = usage;
    let total = prompt + completion;
    let _ = write!(
        text,
        "{{\"prompt_tokens\":{prompt},\"total_tokens\":{total},\"completion_tokens\":{completion}"
    );
}

/// In an answer that is no stream.
pub(super) fn write_whole(usage: &Usage, dialect: Dialect, text: &mut String) {
    write_counts(usage, text);
    let _ = write!(
        text,
        ",\"prompt_tokens_details\":{{\"cached_tokens\":{}",
        usage.cached
    );
    match dialect {
        Dialect::Chat => {
            let _ = write!(text, ",\"created_cache_tokens\":{}", usage.created);
        }
        Dialect::Completion => text.push_str(",\"created_cache_tokens\":null"),
    }
    text.push_str(",\"multimodal_tokens\":null},\"completion_tokens_details\":null}");
}

/// In the last event of a stream.
pub(in crate::engine) fn write_last(usage: &Usage, dialect: Dialect, text: &mut String) {
    write_counts(usage, text);
    let _ = write!(
        text,
        ",\"prompt_tokens_details\":{{\"cached_tokens\":{}",
        usage.cached
    );
    if dialect == Dialect::Chat {
        let _ = write!(text, ",\"created_cache_tokens\":{}", usage.created);
    }
    text.push_str("}}");
}

/// In every event of a stream.
pub(in crate::engine) fn write_running(usage: &Usage, text: &mut String) {
    write_counts(usage, text);
    text.push_str(",\"completion_tokens_details\":null}");
}
