//! vLLM's scheduler over the step model: which tokens are computed in the next step, and what that brings.
//!
//! One token budget per step. Running requests come first: one token for a decode, the next chunk for an unfinished
//! prefill. Then the queue in order, while budget, batch slots and blocks last; the first head that does not fit
//! stops admission. When blocks run out, the last running request is preempted: its blocks are freed and it goes to
//! the front of the queue to be computed again. The last prompt token is always computed, so a prefix hit covers at
//! most `(n - 1) / block` blocks.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use crate::{
    kv::{Block, KvCache, KvEvent, block_hash, root_hash},
    step::{StepModel, Work},
};

/// Sizes of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct CoreConfig {
    /// Time per step.
    pub model: StepModel,
    /// Tokens per KV block.
    pub block_size: usize,
    /// KV blocks.
    pub num_blocks: u32,
    /// Most requests in the batch.
    pub max_num_seqs: usize,
    /// Most tokens in a step.
    pub max_num_batched_tokens: u64,
    /// Most requests, running and waiting; further ones are refused.
    pub max_num_queued: Option<usize>,
    /// Start of the generated tokens.
    pub seed: u64,
}

/// A request for an engine.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its number.
    pub id: u64,
    /// Prompt.
    pub tokens: Arc<[u32]>,
    /// Tokens to generate.
    pub max_tokens: u32,
    /// Cache domain.
    pub salt: String,
}

/// Why an engine does not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Its queue is full.
    QueueFull,
    /// Prompt and answer need more blocks than there are: it could never end.
    TooLong,
}

/// Something that a step brought to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Produced {
    /// Which request.
    pub id: u64,
    /// Tokens generated so far.
    pub generated: u32,
    /// It is complete.
    pub finished: bool,
    /// Prompt tokens that came from the cache.
    pub cached_tokens: u32,
}

/// What a step brought.
#[derive(Clone, Debug, Default)]
pub struct StepOutcome {
    /// How long it took.
    pub nanos: u64,
    /// Requests with a new token, in batch order.
    pub produced: Vec<Produced>,
    /// Changes of the prefix cache, in order.
    pub events: Vec<KvEvent>,
}

/// Counts of an engine's life and its present state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreStats {
    /// Requests in the batch.
    pub running: usize,
    /// Requests in the queue.
    pub waiting: usize,
    /// Blocks held by requests.
    pub held_blocks: u32,
    /// All blocks.
    pub total_blocks: u32,
    /// Steps.
    pub steps: u64,
    /// Requests preempted.
    pub preemptions: u64,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Of those, found.
    pub prefix_hits: u64,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Requests completed.
    pub finished: u64,
    /// Requests aborted.
    pub aborted: u64,
}

/// A request inside the engine.
#[derive(Debug)]
struct Run {
    job: Job,
    /// Hashes of the full blocks of prompt and generated tokens known so far.
    hashes: Vec<u64>,
    blocks: Vec<Block>,
    /// Blocks whose hash is published.
    filled: usize,
    /// Tokens whose KV is computed.
    computed: u64,
    generated: u32,
    cached_tokens: u32,
    /// Counted in the prefix statistics already: not again after a preemption.
    counted: bool,
}

impl Run {
    /// Tokens to compute before the next one can be generated.
    fn length(&self) -> u64 {
        self.job.tokens.len() as u64 + u64::from(self.generated)
    }
}

/// An engine.
#[derive(Debug)]
pub struct EngineCore {
    config: CoreConfig,
    cache: KvCache,
    runs: HashMap<u64, Run>,
    running: Vec<u64>,
    waiting: VecDeque<u64>,
    stats: CoreStats,
}

/// The `index`-th generated token of a request: by seed and prompt alone.
pub fn generated_token(seed: u64, prompt: u64, index: u32) -> u32 {
    let mixed = block_hash(seed ^ prompt, &[index]);
    u32::try_from(mixed % u64::from(crate::text::WORDS)).unwrap_or(0)
}

impl EngineCore {
    /// An idle engine.
    pub fn new(config: CoreConfig) -> EngineCore {
        EngineCore {
            cache: KvCache::new(config.num_blocks, config.block_size),
            config,
            runs: HashMap::new(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            stats: CoreStats::default(),
        }
    }

    /// Queues a request.
    ///
    /// # Errors
    /// When the queue is full, or the request could never fit.
    pub fn submit(&mut self, job: Job) -> Result<(), Refused> {
        let most = self.config.max_num_queued.unwrap_or(usize::MAX);
        if self.runs.len() >= most {
            return Err(Refused::QueueFull);
        }
        let longest = job.tokens.len() as u64 + u64::from(job.max_tokens);
        if blocks_for(longest, self.cache.block_size()) > self.cache.total() as usize {
            return Err(Refused::TooLong);
        }
        let mut hashes = Vec::with_capacity(job.tokens.len() / self.cache.block_size());
        let mut parent = root_hash(&job.salt);
        for block in job.tokens.chunks_exact(self.cache.block_size()) {
            parent = block_hash(parent, block);
            hashes.push(parent);
        }
        let id = job.id;
        let run = Run {
            job,
            hashes,
            blocks: Vec::new(),
            filled: 0,
            computed: 0,
            generated: 0,
            cached_tokens: 0,
            counted: false,
        };
        self.runs.insert(id, run);
        self.waiting.push_back(id);
        Ok(())
    }

    /// Drops a request; its full blocks stay cached. False if it is not here.
    pub fn abort(&mut self, id: u64) -> bool {
        let Some(mut run) = self.runs.remove(&id) else {
            return false;
        };
        self.running.retain(|other| *other != id);
        self.waiting.retain(|other| *other != id);
        self.free(&mut run);
        self.stats.aborted += 1;
        true
    }

    /// True if there is nothing to compute.
    pub fn idle(&self) -> bool {
        self.runs.is_empty()
    }

    /// Forgets the prefix cache; false while requests hold blocks.
    pub fn reset_prefix_cache(&mut self, events: &mut Vec<KvEvent>) -> bool {
        self.cache.clear(events)
    }

    /// Counts and present state.
    pub fn stats(&self) -> CoreStats {
        CoreStats {
            running: self.running.len(),
            waiting: self.waiting.len(),
            held_blocks: self.cache.total() - self.cache.free(),
            total_blocks: self.cache.total(),
            ..self.stats
        }
    }

    /// Computes one step.
    pub fn step(&mut self) -> StepOutcome {
        let mut out = StepOutcome::default();
        let mut work = Work::default();
        let mut budget = self.config.max_num_batched_tokens;
        let preempted = self.schedule_running(&mut budget, &mut work, &mut out);
        if !preempted {
            self.admit(&mut budget, &mut work, &mut out);
        }
        out.nanos = self.config.model.nanos(&work);
        if work.tokens > 0 {
            self.stats.steps += 1;
        }
        self.finish_step(&mut out);
        debug_assert_eq!(self.cache.check(), Ok(()));
        out
    }

    /// Gives running requests their tokens; true if one had to be preempted.
    fn schedule_running(
        &mut self,
        budget: &mut u64,
        work: &mut Work,
        out: &mut StepOutcome,
    ) -> bool {
        let mut preempted = false;
        let mut index = 0;
        while let Some(&id) = self.running.get(index) {
            if *budget == 0 {
                break;
            }
            let Some(run) = self.runs.get(&id) else {
                index += 1;
                continue;
            };
            let tokens = (run.length() - run.computed).min(*budget);
            while !self.reserve(id, tokens, out) {
                preempted = true;
                let Some(victim) = self.running.pop() else { break };
                self.preempt(victim);
                if victim == id {
                    return true;
                }
            }
            self.compute(id, tokens, work, out);
            *budget -= tokens;
            index += 1;
        }
        preempted
    }

    /// Admits requests from the queue while there is room.
    fn admit(&mut self, budget: &mut u64, work: &mut Work, out: &mut StepOutcome) {
        while *budget > 0 && self.running.len() < self.config.max_num_seqs {
            let Some(&id) = self.waiting.front() else { return };
            let Some(run) = self.runs.get(&id) else {
                self.waiting.pop_front();
                continue;
            };
            let size = self.cache.block_size();
            let most = usize::try_from(run.length().saturating_sub(1)).unwrap_or(0) / size;
            let hit = self.cache.lookup(run.hashes.get(..most.min(run.hashes.len())).unwrap_or_default());
            let found = (hit * size) as u64;
            let tokens = (run.length() - found).min(*budget);
            let needed = blocks_for(found + tokens, size).saturating_sub(hit);
            let idle = self.cache.idle_among(&run.hashes, hit);
            if needed as u64 + u64::from(idle) > u64::from(self.cache.free()) {
                return;
            }
            self.waiting.pop_front();
            self.running.push(id);
            self.attach(id, hit);
            if self.reserve(id, tokens, out) {
                self.compute(id, tokens, work, out);
                *budget -= tokens;
            }
        }
    }

    /// Gives a request the cached blocks of its prefix.
    fn attach(&mut self, id: u64, hit: usize) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        for hash in run.hashes.iter().take(hit) {
            if let Some(block) = self.cache.share(*hash) {
                run.blocks.push(block);
            }
        }
        let found = (run.blocks.len() * self.cache.block_size()) as u64;
        run.filled = run.blocks.len();
        run.computed = found;
        if !std::mem::replace(&mut run.counted, true) {
            run.cached_tokens = u32::try_from(found).unwrap_or(u32::MAX);
            self.stats.prefix_queries += run.job.tokens.len() as u64;
            self.stats.prompt_tokens += run.job.tokens.len() as u64;
            self.stats.prefix_hits += found;
        }
    }

    /// Gets the blocks for `tokens` more tokens; false if there are not enough.
    fn reserve(&mut self, id: u64, tokens: u64, out: &mut StepOutcome) -> bool {
        let Some(run) = self.runs.get_mut(&id) else {
            return true;
        };
        let wanted = blocks_for(run.computed + tokens, self.cache.block_size());
        let missing = wanted.saturating_sub(run.blocks.len());
        if missing as u64 > u64::from(self.cache.free()) {
            return false;
        }
        for _ in 0..missing {
            if let Some(block) = self.cache.take(&mut out.events) {
                run.blocks.push(block);
            }
        }
        true
    }

    fn compute(&mut self, id: u64, tokens: u64, work: &mut Work, out: &mut StepOutcome) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        if tokens == 1 && run.generated > 0 {
            work.decode(run.computed + 1);
        } else {
            work.prefill(run.computed, tokens);
        }
        run.computed += tokens;
        publish(run, &mut self.cache, self.config.seed, out);
    }

    fn preempt(&mut self, id: u64) {
        if let Some(mut run) = self.runs.remove(&id) {
            self.free(&mut run);
            run.computed = 0;
            run.filled = 0;
            self.stats.preemptions += 1;
            self.waiting.push_front(id);
            self.runs.insert(id, run);
        }
    }

    /// Frees a request's blocks, its tail first, so that the tail is evicted first.
    fn free(&mut self, run: &mut Run) {
        while let Some(block) = run.blocks.pop() {
            self.cache.release(block);
        }
    }

    /// Every running request whose tokens are all computed has a new one.
    fn finish_step(&mut self, out: &mut StepOutcome) {
        let mut done = Vec::new();
        for id in &self.running {
            let Some(run) = self.runs.get_mut(id) else { continue };
            if run.computed < run.length() {
                continue;
            }
            run.generated += 1;
            self.stats.generated_tokens += 1;
            let finished = run.generated >= run.job.max_tokens.max(1);
            out.produced.push(Produced {
                id: *id,
                generated: run.generated,
                finished,
                cached_tokens: run.cached_tokens,
            });
            if finished {
                done.push(*id);
            }
        }
        for id in done {
            self.running.retain(|other| *other != id);
            if let Some(mut run) = self.runs.remove(&id) {
                self.free(&mut run);
                self.stats.finished += 1;
            }
        }
    }

    /// Conservation of blocks and of requests.
    ///
    /// # Errors
    /// Says what does not add up.
    pub fn check(&self) -> Result<(), String> {
        self.cache.check()?;
        if self.runs.len() != self.running.len() + self.waiting.len() {
            return Err(format!("{} requests, {} running, {} waiting", self.runs.len(), self.running.len(), self.waiting.len()));
        }
        if self.runs.is_empty() && self.cache.free() != self.cache.total() {
            return Err("no request, but blocks are held".to_owned());
        }
        Ok(())
    }
}

fn blocks_for(tokens: u64, size: usize) -> usize {
    usize::try_from(tokens).unwrap_or(usize::MAX).div_ceil(size)
}

/// Publishes the hashes of blocks that are full now.
fn publish(run: &mut Run, cache: &mut KvCache, seed: u64, out: &mut StepOutcome) {
    let size = cache.block_size();
    let full = usize::try_from(run.computed).unwrap_or(usize::MAX) / size;
    let prompt = root_hash(&run.job.salt) ^ run.hashes.first().copied().unwrap_or(0);
    while run.filled < full {
        let index = run.filled;
        let tokens: Vec<u32> = (index * size..(index + 1) * size)
            .map(|at| match run.job.tokens.get(at) {
                Some(token) => *token,
                None => {
                    let index = u32::try_from(at - run.job.tokens.len()).unwrap_or(u32::MAX);
                    generated_token(seed, prompt_key(&run.job), index)
                }
            })
            .collect();
        let parent = index.checked_sub(1).and_then(|before| run.hashes.get(before).copied());
        let hash = match run.hashes.get(index) {
            Some(hash) => *hash,
            None => {
                let hash = block_hash(parent.unwrap_or(prompt), &tokens);
                run.hashes.push(hash);
                hash
            }
        };
        if let Some(block) = run.blocks.get(index) {
            cache.fill(*block, hash, parent, &tokens, &mut out.events);
        }
        run.filled += 1;
    }
}

/// What the generated text depends on besides the seed.
pub fn prompt_key(job: &Job) -> u64 {
    block_hash(job.tokens.len() as u64, &job.tokens)
}

#[cfg(test)]
mod tests;
