//! From a page to the values that routing reads.

use std::collections::BTreeSet;

use super::{
    EngineKind,
    exposition::{Labels, Series, lines, parse},
};

/// What one scrape said. Reused between scrapes: [`scan_into`] clears it first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricsSample {
    /// By data-parallel rank, in rising order.
    pub ranks: Vec<RankSample>,
    /// Adapters, where the page tells of them.
    pub lora: Option<LoraSample>,
    /// At least one wanted series was there.
    pub recognised: bool,
    /// The page's last line was cut.
    pub truncated: bool,
}

/// Values of one data-parallel rank. A value that is no number, or out of its range, is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankSample {
    /// The rank; 0 when the page names none.
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
    /// Preemptions since the start.
    pub preemptions: Option<f64>,
    /// Prompt tokens looked up in the prefix cache since the start.
    pub prefix_queries: Option<f64>,
    /// Prompt tokens found there since the start.
    pub prefix_hits: Option<f64>,
    /// The engine sleeps.
    pub sleeping: Option<bool>,
    /// The newer of two names of the KV signal was there.
    kv_is_new: bool,
}

/// Adapters of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoraSample {
    /// Adapters of running requests.
    pub running: BTreeSet<String>,
    /// Adapters of waiting requests.
    pub waiting: BTreeSet<String>,
    /// Most adapters at once; absent when the page does not say a number.
    pub max: Option<u32>,
}

impl LoraSample {
    /// Adapters of either kind: what counts against `max`.
    pub fn loaded(&self) -> BTreeSet<&str> {
        self.running
            .union(&self.waiting)
            .map(String::as_str)
            .collect()
    }
}

/// A signal of a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Signal {
    Waiting,
    Running,
    Kv {
        new: bool,
    },
    CacheConfig {
        size: &'static str,
        blocks: &'static str,
    },
    Preemptions,
    PrefixQueries,
    PrefixHits,
    Sleep,
    Lora,
}

/// The signal of a name without its engine's prefix.
type Names = fn(&[u8]) -> Option<Signal>;

fn vllm(name: &[u8]) -> Option<Signal> {
    Some(match name {
        b"num_requests_waiting" => Signal::Waiting,
        b"num_requests_running" => Signal::Running,
        b"kv_cache_usage_perc" => Signal::Kv { new: true },
        b"gpu_cache_usage_perc" => Signal::Kv { new: false },
        b"cache_config_info" => Signal::CacheConfig {
            size: "block_size",
            blocks: "num_gpu_blocks",
        },
        b"num_preemptions_total" => Signal::Preemptions,
        b"prefix_cache_queries_total" => Signal::PrefixQueries,
        b"prefix_cache_hits_total" => Signal::PrefixHits,
        b"engine_sleep_state" => Signal::Sleep,
        b"lora_requests_info" => Signal::Lora,
        _ => return None,
    })
}

fn sglang(name: &[u8]) -> Option<Signal> {
    Some(match name {
        b"num_queue_reqs" => Signal::Waiting,
        b"num_running_reqs" => Signal::Running,
        b"token_usage" => Signal::Kv { new: true },
        b"cache_config_info" => Signal::CacheConfig {
            size: "page_size",
            blocks: "num_pages",
        },
        b"num_retracted_reqs" => Signal::Preemptions,
        _ => return None,
    })
}

/// Reads a page.
pub fn scan_metrics(kind: EngineKind, text: &[u8]) -> MetricsSample {
    let mut sample = MetricsSample::default();
    scan_into(kind, text, &mut sample);
    sample
}

/// Reads a page into a sample that is reused.
///
/// Where an engine has several processes per rank (SGLang's tensor ranks), their series repeat the same value;
/// the largest counts.
pub fn scan_into(kind: EngineKind, text: &[u8], sample: &mut MetricsSample) {
    sample.ranks.clear();
    sample.lora = None;
    sample.recognised = false;
    sample.truncated = !text.is_empty() && !text.ends_with(b"\n") && !text.ends_with(b"# EOF");
    let (prefix, signal): (&[u8], Names) = match kind {
        EngineKind::Vllm => (b"vllm:", vllm),
        EngineKind::Sglang => (b"sglang:", sglang),
    };
    let mut newest_lora = f64::NEG_INFINITY;
    for line in lines(text) {
        let Some(rest) = line.strip_prefix(prefix) else {
            continue;
        };
        let end = rest
            .iter()
            .position(|byte| matches!(byte, b'{' | b' ' | b'\t'));
        let Some(signal) = end.and_then(|end| rest.get(..end)).and_then(signal) else {
            continue;
        };
        let Some(series) = parse(line) else {
            continue;
        };
        sample.recognised = true;
        if signal == Signal::Lora {
            // Old label sets stay on the page with their old time stamps.
            if series.value > newest_lora {
                newest_lora = series.value;
                sample.lora = Some(lora(series.labels));
            }
            continue;
        }
        let rank = rank(series.labels);
        apply(signal, &series, at(&mut sample.ranks, rank));
    }
}

fn rank(labels: Labels<'_>) -> u32 {
    let rank = labels.get("engine").or_else(|| labels.get("dp_rank"));
    rank.and_then(|rank| rank.parse().ok()).unwrap_or(0)
}

fn at(ranks: &mut Vec<RankSample>, rank: u32) -> &mut RankSample {
    let index = match ranks.binary_search_by_key(&rank, |sample| sample.rank) {
        Ok(index) => index,
        Err(index) => {
            let new = RankSample {
                rank,
                ..RankSample::default()
            };
            ranks.insert(index, new);
            index
        }
    };
    #[expect(clippy::indexing_slicing, reason = "found or inserted just above")]
    &mut ranks[index]
}

/// A count: finite and not negative, else no observation.
fn count(value: f64) -> Option<f64> {
    (value.is_finite() && value >= 0.0).then_some(value)
}

fn ratio(value: f64) -> Option<f64> {
    count(value).filter(|value| *value <= 1.0)
}

fn largest(slot: &mut Option<f64>, value: Option<f64>) {
    *slot = match (*slot, value) {
        (Some(old), Some(new)) => Some(old.max(new)),
        (old, new) => new.or(old),
    };
}

fn apply(signal: Signal, series: &Series<'_>, rank: &mut RankSample) {
    let value = series.value;
    match signal {
        Signal::Waiting => largest(&mut rank.waiting, count(value)),
        Signal::Running => largest(&mut rank.running, count(value)),
        Signal::Kv { new } => kv(rank, value, new),
        Signal::CacheConfig { size, blocks } => {
            let read = |name| series.labels.get(name)?.parse().ok();
            rank.block_size = read(size).or(rank.block_size);
            rank.num_blocks = read(blocks).or(rank.num_blocks);
        }
        Signal::Preemptions => largest(&mut rank.preemptions, count(value)),
        Signal::PrefixQueries => largest(&mut rank.prefix_queries, count(value)),
        Signal::PrefixHits => largest(&mut rank.prefix_hits, count(value)),
        Signal::Sleep => sleep(rank, series),
        Signal::Lora => {}
    }
    if rank.model.is_none()
        && let Some(model) = series.labels.get("model_name")
    {
        rank.model = Some(model.into_owned());
    }
}

/// Both names present: the new one wins, even when it says nothing usable.
fn kv(rank: &mut RankSample, value: f64, new: bool) {
    if new && !rank.kv_is_new {
        rank.kv_is_new = true;
        rank.kv_usage = ratio(value);
    } else if new == rank.kv_is_new {
        largest(&mut rank.kv_usage, ratio(value));
    }
}

/// One series per state, 1 for the state that holds; `awake` is the state in which it works.
fn sleep(rank: &mut RankSample, series: &Series<'_>) {
    #[expect(clippy::float_cmp, reason = "a flag that is written as exactly 1")]
    let holds = series.value == 1.0;
    match series.labels.get("sleep_state") {
        Some(state) if holds => rank.sleeping = Some(state != "awake"),
        Some(_) => {}
        None => rank.sleeping = Some(holds),
    }
}

fn lora(labels: Labels<'_>) -> LoraSample {
    let names = |label: &str| {
        let list = labels.get(label).unwrap_or_default();
        let names = list
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty());
        names.map(str::to_owned).collect()
    };
    LoraSample {
        running: names("running_lora_adapters"),
        waiting: names("waiting_lora_adapters"),
        max: labels.get("max_lora").and_then(|max| max.parse().ok()),
    }
}
