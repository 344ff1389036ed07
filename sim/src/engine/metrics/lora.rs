//! Which adapters have requests: `vllm:lora_requests_info`.
//!
//! As in vLLM the value is the time of the last update and old label sets stay on the page, so a reader takes the
//! sample with the largest value. There is no series before the first request for an adapter, and no engine label.

use std::fmt::Write as _;

use super::write_number;

/// Label sets kept; past that the oldest goes.
const KEPT: usize = 64;

#[derive(Clone, Debug, Default)]
struct Adapter {
    name: String,
    waiting: u32,
    running: u32,
}

#[derive(Debug)]
struct Sample {
    running: u64,
    waiting: u64,
    at: f64,
}

#[derive(Debug)]
pub(super) struct Adapters {
    all: Vec<Adapter>,
    /// One by set of adapters, running and waiting, as bits.
    samples: Vec<Sample>,
    seen: bool,
    /// Time of the newest sample.
    last: f64,
}

impl Adapters {
    pub(super) fn new(names: &[String]) -> Adapters {
        let adapter = |name: &String| Adapter {
            name: name.clone(),
            ..Adapter::default()
        };
        Adapters {
            all: names.iter().map(adapter).collect(),
            samples: Vec::new(),
            seen: false,
            last: 0.0,
        }
    }

    pub(super) fn arrived(&mut self, adapter: Option<usize>) {
        if let Some(adapter) = adapter.and_then(|index| self.all.get_mut(index)) {
            adapter.waiting += 1;
            self.seen = true;
        }
    }

    pub(super) fn moved(&mut self, adapter: Option<usize>, running: bool) {
        if let Some(adapter) = adapter.and_then(|index| self.all.get_mut(index)) {
            let (from, to) = if running {
                (&mut adapter.waiting, &mut adapter.running)
            } else {
                (&mut adapter.running, &mut adapter.waiting)
            };
            *from = from.saturating_sub(1);
            *to += 1;
        }
    }

    pub(super) fn gone(&mut self, adapter: Option<usize>, running: bool) {
        if let Some(adapter) = adapter.and_then(|index| self.all.get_mut(index)) {
            let count = if running {
                &mut adapter.running
            } else {
                &mut adapter.waiting
            };
            *count = count.saturating_sub(1);
        }
    }

    /// Notes the present sets.
    pub(super) fn note(&mut self, now: impl FnOnce() -> f64) {
        if !self.seen {
            return;
        }
        let bits = |of: fn(&Adapter) -> u32| {
            let all = self.all.iter().enumerate();
            all.fold(0, |bits, (index, adapter)| {
                bits | u64::from(of(adapter) > 0) << index
            })
        };
        let (running, waiting) = (
            bits(|adapter| adapter.running),
            bits(|adapter| adapter.waiting),
        );
        // Always later than the one before, as a reader compares them.
        let at = now().max(self.last + 1e-6);
        self.last = at;
        let same = |sample: &&mut Sample| sample.running == running && sample.waiting == waiting;
        if let Some(sample) = self.samples.iter_mut().find(same) {
            sample.at = at;
            return;
        }
        if self.samples.len() >= KEPT {
            let oldest = self
                .samples
                .iter()
                .enumerate()
                .min_by(|(_, a), (_, b)| a.at.total_cmp(&b.at));
            if let Some((index, _)) = oldest {
                self.samples.swap_remove(index);
            }
        }
        self.samples.push(Sample {
            running,
            waiting,
            at,
        });
    }

    pub(super) fn write(&self, text: &mut String) {
        if self.samples.is_empty() {
            return;
        }
        text.push_str("# HELP vllm:lora_requests_info Running stats on lora requests.\n");
        text.push_str("# TYPE vllm:lora_requests_info gauge\n");
        for sample in &self.samples {
            let most = self.all.len();
            let (running, waiting) = (self.names(sample.running), self.names(sample.waiting));
            let _ = write!(
                text,
                "vllm:lora_requests_info{{max_lora=\"{most}\",running_lora_adapters=\"{running}\",\
                 waiting_lora_adapters=\"{waiting}\"}} "
            );
            write_number(sample.at, text);
            text.push('\n');
        }
    }

    fn names(&self, bits: u64) -> String {
        let all = self.all.iter().enumerate();
        let set: Vec<&str> = all
            .filter(|(index, _)| bits >> index & 1 == 1)
            .map(|(_, adapter)| adapter.name.as_str())
            .collect();
        super::page::escape(&set.join(","))
    }
}
