//! Which series carry which signal, by engine, and which of several names for one signal wins.

use super::EngineKind;

/// A value of a rank that is a plain number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Signal {
    Waiting,
    Running,
    KvUsage,
    CapacityTokens,
    Preemptions,
    PrefixQueries,
    PrefixHits,
}

impl Signal {
    pub(super) const COUNT: usize = 7;

    /// A share from 0 to 1, not a count.
    pub(super) fn is_ratio(self) -> bool {
        self == Signal::KvUsage
    }
}

/// What a series says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Meaning {
    /// Its value is the signal. Of several names for one signal the one with the lowest age wins: 0 is what engines
    /// of today write, higher ages are what it was called before.
    Value { signal: Signal, age: u8 },
    /// Its labels describe the KV cache.
    CacheConfig(CacheLabels),
    /// Its label `sleep_state` names a state, its value is 1 for the state that holds.
    Sleep,
    /// Its labels list adapters, its value is the time of the list.
    Lora,
}

/// Label names of a cache description.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct CacheLabels {
    /// Tokens per block.
    pub(super) block_size: &'static str,
    /// Number of blocks.
    pub(super) blocks: &'static str,
    /// Tokens that fit.
    pub(super) tokens: &'static str,
}

/// An engine's names.
#[derive(Clone, Copy)]
pub(super) struct Names {
    pub(super) prefix: &'static [u8],
    /// First bytes of the wanted names, after the prefix: few others share them, so most lines go no further.
    pub(super) first: &'static [u8],
    /// The meaning of a name without its prefix.
    pub(super) meaning: fn(&[u8]) -> Option<Meaning>,
}

pub(super) fn names(kind: EngineKind) -> Names {
    match kind {
        EngineKind::Vllm => Names {
            prefix: b"vllm:",
            first: b"nkgpcel",
            meaning: vllm,
        },
        EngineKind::Sglang => Names {
            prefix: b"sglang:",
            first: b"ntmc",
            meaning: sglang,
        },
    }
}

fn value(signal: Signal, age: u8) -> Meaning {
    Meaning::Value { signal, age }
}

fn vllm(name: &[u8]) -> Option<Meaning> {
    Some(match name {
        b"num_requests_waiting" => value(Signal::Waiting, 0),
        b"num_requests_running" => value(Signal::Running, 0),
        b"kv_cache_usage_perc" => value(Signal::KvUsage, 0),
        b"gpu_cache_usage_perc" => value(Signal::KvUsage, 1),
        b"num_preemptions_total" => value(Signal::Preemptions, 0),
        b"prefix_cache_queries_total" => value(Signal::PrefixQueries, 0),
        b"gpu_prefix_cache_queries_total" => value(Signal::PrefixQueries, 1),
        b"prefix_cache_hits_total" => value(Signal::PrefixHits, 0),
        b"gpu_prefix_cache_hits_total" => value(Signal::PrefixHits, 1),
        b"cache_config_info" => Meaning::CacheConfig(CacheLabels {
            block_size: "block_size",
            blocks: "num_gpu_blocks",
            tokens: "kv_cache_size_tokens",
        }),
        b"engine_sleep_state" => Meaning::Sleep,
        b"lora_requests_info" => Meaning::Lora,
        _ => return None,
    })
}

fn sglang(name: &[u8]) -> Option<Meaning> {
    Some(match name {
        b"num_queue_reqs" => value(Signal::Waiting, 0),
        b"num_running_reqs" => value(Signal::Running, 0),
        b"token_usage" => value(Signal::KvUsage, 0),
        b"max_total_num_tokens" => value(Signal::CapacityTokens, 0),
        b"cache_config_info" => Meaning::CacheConfig(CacheLabels {
            block_size: "page_size",
            blocks: "num_pages",
            tokens: "max_total_num_tokens",
        }),
        _ => return None,
    })
}
