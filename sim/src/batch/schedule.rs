//! One step: who computes what, and what it brought.

use super::{
    EngineCore, Finished, Policy, Produced, StepOutcome,
    run::{Run, blocks_for},
};
use crate::{Nanos, step::Work};

impl EngineCore {
    /// Starts a step at `now`: fills `out` with its duration, who joined and left the batch, and what changed in the
    /// prefix cache. False if there is nothing to compute, or a step has not been completed yet.
    pub fn schedule(&mut self, now: Nanos, out: &mut StepOutcome) -> bool {
        out.clear();
        if self.in_step {
            return false;
        }
        let mut work = Work::default();
        loop {
            let preempted = self.schedule_once(now, out);
            for run in self.running.iter().filter(|run| run.scheduled > 0) {
                work.add(run.computed, run.scheduled, run.generated > 0);
            }
            // By priority the first request in turn may be the one that had to go: then nothing is scheduled yet,
            // but there is room now.
            if work.tokens > 0 || !preempted {
                break;
            }
        }
        debug_assert!(
            self.pool.balanced(),
            "blocks are lost: {:?}",
            self.pool.counts()
        );
        if work.tokens == 0 {
            return false;
        }
        out.duration = self.config.model.nanos(&work);
        out.tokens = u32::try_from(work.tokens).unwrap_or(u32::MAX);
        self.stats.steps += 1;
        self.in_step = true;
        true
    }

    /// Ends the step at `now`: every request whose tokens are all computed has a new one.
    pub fn complete(&mut self, now: Nanos, out: &mut StepOutcome) {
        self.in_step = false;
        let mut index = 0;
        while let Some(run) = self.running.get_mut(index) {
            run.computed += std::mem::take(&mut run.scheduled);
            if run.computed < run.length() {
                index += 1;
                continue;
            }
            if run.first_token_at.is_none() {
                run.first_token_at = Some(now);
                self.stats.prompt_tokens += u64::from(run.prompt);
                self.stats.cached_prompt_tokens += u64::from(run.cached_tokens);
            }
            if run.generated < run.request.max_tokens {
                run.generated += 1;
                self.stats.generated_tokens += 1;
                out.produced.push(Produced {
                    id: run.request.id,
                    generated: run.generated,
                    cached_tokens: run.cached_tokens,
                });
            }
            if run.generated < run.request.max_tokens {
                index += 1;
                continue;
            }
            let mut run = self.running.remove(index);
            run.release(&mut self.pool);
            self.places.remove(&run.request.id);
            self.stats.finished += 1;
            out.finished.push(finished(&run, now));
        }
        debug_assert!(
            self.pool.balanced(),
            "blocks are lost: {:?}",
            self.pool.counts()
        );
    }

    /// Running requests, then the queue; nobody is admitted after a preemption. True if there was one.
    fn schedule_once(&mut self, now: Nanos, out: &mut StepOutcome) -> bool {
        let mut budget = self.config.max_num_batched_tokens;
        let preempted = self.schedule_running(&mut budget, out);
        self.publish_running(out);
        if !preempted {
            self.admit(now, &mut budget, out);
        }
        preempted
    }

    /// Gives running requests their tokens; true if one had to be preempted.
    fn schedule_running(&mut self, budget: &mut u32, out: &mut StepOutcome) -> bool {
        let (mut index, mut preempted) = (0, false);
        while *budget > 0 && index < self.running.len() {
            let Some(run) = self.running.get_mut(index) else {
                break;
            };
            let tokens = (run.length() - run.computed).min(*budget);
            let events = self.config.events.then_some(&mut out.events);
            if run.reserve(tokens, self.config.block_size, &mut self.pool, events) {
                run.scheduled = tokens;
                *budget -= tokens;
                index += 1;
                continue;
            }
            let victim = self.victim();
            *budget += self.preempt(victim, out);
            preempted = true;
            if victim == index {
                break;
            }
            // The victim may have had its tokens before this one.
            index -= usize::from(victim < index);
        }
        preempted
    }

    /// Index of the running request to preempt.
    fn victim(&self) -> usize {
        let last = self.running.len().saturating_sub(1);
        match self.config.policy {
            Policy::Fcfs => last,
            Policy::Priority => {
                let places = self.running.iter().map(|run| run.place).enumerate();
                places
                    .max_by_key(|(_, place)| *place)
                    .map_or(last, |(index, _)| index)
            }
        }
    }

    /// Puts a running request back into the queue; returns the tokens it had in this step.
    fn preempt(&mut self, index: usize, out: &mut StepOutcome) -> u32 {
        if index >= self.running.len() {
            return 0;
        }
        let mut run = self.running.remove(index);
        let scheduled = run.scheduled;
        run.release(&mut self.pool);
        run.preemptions += 1;
        self.stats.preemptions += 1;
        out.preempted.push(run.request.id);
        self.waiting.insert(run.place, run);
        scheduled
    }

    /// Publishes only now: a request that was preempted after it got its tokens computes nothing.
    fn publish_running(&mut self, out: &mut StepOutcome) {
        if !self.config.prefix_caching {
            return;
        }
        for run in &mut self.running {
            let events = self.config.events.then_some(&mut out.events);
            run.publish(
                self.config.block_size,
                &mut self.pool,
                &mut self.scratch,
                events,
            );
        }
    }

    /// Admits requests from the queue while there is room.
    fn admit(&mut self, now: Nanos, budget: &mut u32, out: &mut StepOutcome) {
        let size = self.config.block_size;
        while *budget > 0 && self.running.len() < self.config.max_num_seqs as usize {
            let Some(head) = self.waiting.first_entry() else {
                return;
            };
            let run = head.get();
            let findable = run.findable(size);
            let hit = self.pool.lookup(findable);
            let shared = findable.get(..hit).unwrap_or_default();
            let found = u32::try_from(hit).unwrap_or(u32::MAX) * size;
            let tokens = (run.length() - found).min(*budget);
            let total = blocks_for(u64::from(found) + u64::from(tokens), size);
            let taken = total - hit as u64 + u64::from(self.pool.idle_among(shared));
            if taken > u64::from(self.pool.idle()) {
                return;
            }
            let mut run = head.remove();
            for index in 0..hit {
                let block = run
                    .hashes
                    .get(index)
                    .and_then(|hash| self.pool.share(*hash));
                run.blocks.extend(block);
            }
            run.published = found / size;
            run.computed = found;
            self.note_admission(&mut run, now, found);
            let events = &mut out.events;
            let wanted = self.config.events;
            run.reserve(tokens, size, &mut self.pool, wanted.then_some(&mut *events));
            run.scheduled = tokens;
            *budget -= tokens;
            if self.config.prefix_caching {
                run.publish(
                    size,
                    &mut self.pool,
                    &mut self.scratch,
                    wanted.then_some(events),
                );
            }
            out.admitted.push(run.request.id);
            self.running.push(run);
        }
    }

    /// Counts a lookup, each request once: not again after a preemption.
    fn note_admission(&mut self, run: &mut Run, now: Nanos, found: u32) {
        if run.admitted_at.is_some() {
            return;
        }
        run.admitted_at = Some(now);
        run.cached_tokens = found;
        if self.config.prefix_caching {
            self.stats.prefix_queries += u64::from(run.prompt);
            self.stats.prefix_hits += u64::from(found);
        }
    }
}

fn finished(run: &Run, now: Nanos) -> Finished {
    let admitted_at = run.admitted_at.unwrap_or(now);
    Finished {
        id: run.request.id,
        prompt_tokens: run.prompt,
        cached_tokens: run.cached_tokens,
        generated: run.generated,
        preemptions: run.preemptions,
        arrived_at: run.arrived_at,
        admitted_at,
        first_token_at: run.first_token_at.unwrap_or(now),
        finished_at: now,
    }
}
