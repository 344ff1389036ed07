//! What goes into an engine and what comes out.

use std::sync::Arc;

use super::KvEvent;
use crate::Nanos;

/// Order of the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// First come, first served; priorities are ignored.
    #[default]
    Fcfs,
    /// The smallest priority first, then first come, first served.
    Priority,
}

/// A request for an engine.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its number, unique among the requests in the engine.
    pub id: u64,
    /// Prompt.
    pub tokens: Arc<[u32]>,
    /// Tokens to generate; with 0 only the prompt is computed, as for an embedding.
    pub max_tokens: u32,
    /// What the generated tokens depend on: see [`output_token`].
    pub output_key: u64,
    /// Cache domain: prompts of different domains share no blocks.
    pub cache_salt: Option<Arc<str>>,
    /// LoRA adapter: prompts of different adapters share no blocks.
    pub adapter: Option<Arc<str>>,
    /// Urgency under [`Policy::Priority`], the smallest first.
    pub priority: i64,
}

/// Why an engine does not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// As many requests are in the engine as it takes.
    QueueFull,
    /// Prompt and answer need more blocks than there are.
    TooLong,
    /// The prompt is empty.
    Empty,
    /// A request with this number is in the engine.
    Duplicate,
}

/// A new token of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Produced {
    /// Which request.
    pub id: u64,
    /// Tokens generated so far, this one included: 1 with the first.
    pub generated: u32,
    /// Prompt tokens that came from the cache.
    pub cached_tokens: u32,
}

/// A request that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Which request.
    pub id: u64,
    /// Length of its prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens that came from the cache.
    pub cached_tokens: u32,
    /// Tokens generated.
    pub generated: u32,
    /// Times it was preempted.
    pub preemptions: u32,
    /// When it was submitted.
    pub arrived_at: Nanos,
    /// When it first joined the batch.
    pub admitted_at: Nanos,
    /// When its first token (or its computed prompt) was there.
    pub first_token_at: Nanos,
    /// When its last token was there.
    pub finished_at: Nanos,
}

/// What a step brought. Reused from step to step: scheduling empties it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepOutcome {
    /// How long the step takes.
    pub duration: Nanos,
    /// Tokens computed in it.
    pub tokens: u32,
    /// Requests that joined the batch, resumed ones included.
    pub admitted: Vec<u64>,
    /// Requests that had to leave it again.
    pub preempted: Vec<u64>,
    /// New tokens, in the order of the batch.
    pub produced: Vec<Produced>,
    /// Requests that are complete.
    pub finished: Vec<Finished>,
    /// Changes of the prefix cache, in order.
    pub events: Vec<KvEvent>,
}

impl StepOutcome {
    pub(super) fn clear(&mut self) {
        self.duration = 0;
        self.tokens = 0;
        self.admitted.clear();
        self.preempted.clear();
        self.produced.clear();
        self.finished.clear();
        self.events.clear();
    }
}

/// The `index`-th generated token of a request, by its output key alone: a word of [`crate::text`].
pub fn output_token(output_key: u64, index: u32) -> u32 {
    // SplitMix64: every index gets an independent value without keeping state.
    let mut mixed = output_key.wrapping_add(u64::from(index).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^= mixed >> 31;
    u32::try_from(mixed % u64::from(crate::text::WORDS)).unwrap_or(0)
}
