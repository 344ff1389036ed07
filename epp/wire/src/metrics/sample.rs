//! What one scrape said.

use std::collections::BTreeSet;

use super::names::Signal;

/// What one scrape said. Reused between scrapes: [`scan_into`](super::scan_into) clears it first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricsSample {
    /// By data-parallel rank, in rising order.
    pub ranks: Vec<RankSample>,
    /// Adapters, where the page tells of them.
    pub lora: Option<LoraSample>,
    /// When the engine's process started, in Unix seconds, where the page tells.
    pub started: Option<f64>,
    /// At least one wanted series was there.
    pub recognised: bool,
    /// The page's last line was cut, and not read.
    pub truncated: bool,
}

/// Values of one data-parallel rank. A value that is no number, or out of its range, is absent: no observation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankSample {
    /// The rank, from the label `engine` or `dp_rank`; 0 when the page names none.
    pub rank: u32,
    /// Model that the series name.
    pub model: Option<String>,
    /// Requests in the engine's queue.
    pub waiting: Option<f64>,
    /// Requests in the running batch.
    pub running: Option<f64>,
    /// Share of the KV blocks that requests hold, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Tokens per KV block.
    pub block_size: Option<u64>,
    /// KV blocks, the null block included.
    pub num_blocks: Option<u64>,
    /// Tokens that the KV cache holds.
    pub capacity_tokens: Option<u64>,
    /// Preemptions since the start.
    pub preemptions: Option<f64>,
    /// Prompt tokens looked up in the prefix cache since the start.
    pub prefix_queries: Option<f64>,
    /// Prompt tokens found there since the start.
    pub prefix_hits: Option<f64>,
    /// The engine sleeps.
    pub sleeping: Option<bool>,
    /// By signal: one more than the age of the name that its value has.
    ages: [u8; Signal::COUNT],
}

/// Adapters of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoraSample {
    /// Adapters of running or waiting requests: what counts against `max`.
    pub loaded: BTreeSet<String>,
    /// Adapters of running requests.
    pub running: BTreeSet<String>,
    /// Adapters of waiting requests.
    pub waiting: BTreeSet<String>,
    /// Most adapters at once; absent when the page gives no number.
    pub max: Option<u32>,
}

impl RankSample {
    pub(super) fn new(rank: u32) -> Self {
        RankSample {
            rank,
            ..RankSample::default()
        }
    }

    /// Takes the value of a signal under a name of this age. The newest name wins, even when it says nothing
    /// usable; under one name (an engine's several processes repeat a rank's value) the largest counts.
    pub(super) fn observe(&mut self, signal: Signal, age: u8, value: f64) {
        let usable = value.is_finite() && value >= 0.0 && (!signal.is_ratio() || value <= 1.0);
        let value = usable.then_some(value);
        let Some(known) = self.ages.get_mut(signal as usize) else {
            return;
        };
        let is_new = *known == 0 || age + 1 < *known;
        if !is_new && age + 1 != *known {
            return;
        }
        *known = age + 1;
        let slot = match signal {
            Signal::Waiting => &mut self.waiting,
            Signal::Running => &mut self.running,
            Signal::KvUsage => &mut self.kv_usage,
            Signal::Preemptions => &mut self.preemptions,
            Signal::PrefixQueries => &mut self.prefix_queries,
            Signal::PrefixHits => &mut self.prefix_hits,
            Signal::CapacityTokens => {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "finite and not negative; a larger number is as good as the largest"
                )]
                let tokens = value.map(|value| value as u64);
                self.capacity_tokens = tokens.max(self.capacity_tokens);
                return;
            }
        };
        *slot = match (*slot, value) {
            (Some(old), Some(new)) if !is_new => Some(old.max(new)),
            (Some(old), None) if !is_new => Some(old),
            (_, new) => new,
        };
    }
}
