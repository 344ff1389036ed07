//! Continuous batching as vLLM's V1 scheduler does it, over the step model.
//!
//! One token budget per step. Running requests come first: one token for a decode, the next chunk for an unfinished
//! prefill. Then the queue in order, while budget, batch slots and blocks last; the first head that does not fit
//! stops admission. When blocks run out, the last running request is preempted (by priority: the least urgent one):
//! its blocks are released and it is computed again later, from the front of the queue. The last token of a prompt
//! is always computed, so a prefix hit covers at most `(n - 1) / block` blocks. Full blocks are published, and can
//! be found, from the step that computes them on.
//!
//! A step has two moments: [`EngineCore::schedule`] at its start says how long it takes, [`EngineCore::complete`]
//! at its end says what it brought. Requests may come and go between the two. [`EngineCore::step`] does both.

mod event;
mod request;
mod run;
mod schedule;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

pub use event::{KvEvent, block_hash, root_hash};
pub use request::{Finished, Policy, Produced, Refused, Request, StepOutcome, output_token};

use crate::{
    Nanos,
    kv::{BlockCounts, BlockPool},
    step::StepModel,
};
use run::{Place, Run, blocks_for};

/// Sizes of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct CoreConfig {
    /// Time per step.
    pub model: StepModel,
    /// Tokens per KV block.
    pub block_size: u32,
    /// KV blocks that requests can use (vLLM's `num_gpu_blocks` less its null block).
    pub num_blocks: u32,
    /// Most requests in the batch.
    pub max_num_seqs: u32,
    /// Most tokens in a step.
    pub max_num_batched_tokens: u32,
    /// Most requests, running and waiting together; further ones are refused.
    pub max_num_queued: Option<u32>,
    /// Order of the queue.
    pub policy: Policy,
    /// Find the blocks of earlier prompts.
    pub prefix_caching: bool,
    /// Report changes of the prefix cache.
    pub events: bool,
}

/// Counts of an engine's life and its present state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreStats {
    /// Requests in the batch.
    pub running: u32,
    /// Requests in the queue.
    pub waiting: u32,
    /// Blocks by state.
    pub blocks: BlockCounts,
    /// All blocks.
    pub total_blocks: u32,
    /// Steps that computed something.
    pub steps: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Prompt tokens looked up in the prefix cache, each request once.
    pub prefix_queries: u64,
    /// Of those, found.
    pub prefix_hits: u64,
    /// Prompt tokens of requests that finished their prefill.
    pub prompt_tokens: u64,
    /// Of those, tokens that came from the cache.
    pub cached_prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Requests completed.
    pub finished: u64,
    /// Requests aborted.
    pub aborted: u64,
    /// Requests refused because the queue was full.
    pub refused: u64,
}

/// Buffers that steps reuse.
#[derive(Debug, Default)]
struct Scratch {
    tokens: Vec<u32>,
    bytes: Vec<u8>,
}

/// An engine.
#[derive(Debug)]
pub struct EngineCore {
    config: CoreConfig,
    pool: BlockPool,
    /// In the order of admission.
    #[expect(
        clippy::vec_box,
        reason = "a run is large, and leaving the batch moves all that follow"
    )]
    running: Vec<Box<Run>>,
    /// By urgency.
    waiting: BTreeMap<Place, Box<Run>>,
    places: HashMap<u64, Place>,
    arrivals: u64,
    in_step: bool,
    scratch: Scratch,
    stats: CoreStats,
}

impl EngineCore {
    /// An idle engine. Sizes of zero count as one.
    pub fn new(mut config: CoreConfig) -> EngineCore {
        config.block_size = config.block_size.max(1);
        config.num_blocks = config.num_blocks.max(1);
        config.max_num_seqs = config.max_num_seqs.max(1);
        config.max_num_batched_tokens = config.max_num_batched_tokens.max(1);
        EngineCore {
            pool: BlockPool::new(config.num_blocks),
            config,
            running: Vec::new(),
            waiting: BTreeMap::new(),
            places: HashMap::new(),
            arrivals: 0,
            in_step: false,
            scratch: Scratch::default(),
            stats: CoreStats::default(),
        }
    }

    /// Queues a request.
    ///
    /// # Errors
    /// When the queue is full, the prompt is empty, the number is in use, or prompt and answer need more blocks
    /// than there are: such a request could never end.
    pub fn submit(&mut self, now: Nanos, request: Request) -> Result<(), Refused> {
        if !self.has_room_for(1) {
            self.stats.refused += 1;
            return Err(Refused::QueueFull);
        }
        if request.tokens.is_empty() {
            return Err(Refused::Empty);
        }
        if self.places.contains_key(&request.id) {
            return Err(Refused::Duplicate);
        }
        let longest = request.tokens.len() as u64 + u64::from(request.max_tokens);
        if blocks_for(longest, self.config.block_size) > u64::from(self.pool.total()) {
            return Err(Refused::TooLong);
        }
        let priority = match self.config.policy {
            Policy::Fcfs => 0,
            Policy::Priority => request.priority,
        };
        let place = Place {
            priority,
            arrival: self.arrivals,
        };
        self.arrivals += 1;
        let caching = self.config.prefix_caching;
        let run = Run::new(
            now,
            place,
            request,
            self.config.block_size,
            caching,
            &mut self.scratch,
        );
        self.places.insert(run.request.id, place);
        self.waiting.insert(place, Box::new(run));
        Ok(())
    }

    /// True if `more` requests would be taken now.
    pub fn has_room_for(&self, more: usize) -> bool {
        let most = self
            .config
            .max_num_queued
            .map_or(usize::MAX, |most| most as usize);
        self.places.len().saturating_add(more) <= most
    }

    /// Drops a request at once; its full blocks stay cached. False if it is not here.
    pub fn abort(&mut self, id: u64) -> bool {
        let Some(place) = self.places.remove(&id) else {
            return false;
        };
        let run = self.waiting.remove(&place).or_else(|| {
            let index = self.running.iter().position(|run| run.place == place)?;
            Some(self.running.remove(index))
        });
        if let Some(mut run) = run {
            run.release(&mut self.pool);
        }
        self.stats.aborted += 1;
        true
    }

    /// True if there is nothing to compute.
    pub fn is_idle(&self) -> bool {
        self.places.is_empty()
    }

    /// Forgets the prefix cache; false while requests hold blocks. The event is part of `events`, for the caller
    /// to pass on when the engine would.
    pub fn reset_prefix_cache(&mut self, events: &mut Vec<KvEvent>) -> bool {
        let done = self.pool.clear();
        if done && self.config.events {
            events.push(KvEvent::Cleared);
        }
        done
    }

    /// Counts and present state.
    pub fn stats(&self) -> CoreStats {
        CoreStats {
            running: u32::try_from(self.running.len()).unwrap_or(u32::MAX),
            waiting: u32::try_from(self.waiting.len()).unwrap_or(u32::MAX),
            blocks: self.pool.counts(),
            total_blocks: self.pool.total(),
            ..self.stats
        }
    }

    /// One whole step that starts at `now`; false if there was nothing to compute.
    pub fn step(&mut self, now: Nanos, out: &mut StepOutcome) -> bool {
        let computed = self.schedule(now, out);
        self.complete(now + out.duration, out);
        computed
    }

    /// Recounts blocks and requests: slow, for tests.
    ///
    /// # Errors
    /// Says what does not add up.
    pub fn check(&self) -> Result<(), String> {
        self.pool.check()?;
        let (running, waiting) = (self.running.len(), self.waiting.len());
        if self.places.len() != running + waiting {
            return Err(format!(
                "{} requests, {running} running, {waiting} waiting",
                self.places.len()
            ));
        }
        if self.waiting.values().any(|run| !run.blocks.is_empty()) {
            return Err("a waiting request holds blocks".to_owned());
        }
        if running == 0 && self.pool.counts().held > 0 {
            return Err(format!(
                "nothing runs, {} blocks held",
                self.pool.counts().held
            ));
        }
        Ok(())
    }
}
