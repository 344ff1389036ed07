//! The few series of an engine's metrics page that routing needs, found in one pass over its lines.
//!
//! A page is 50 to 80 KB and is read twenty times a second per endpoint, so lines that cannot matter are told
//! apart by their first bytes. [`series`] reads every line; tests compare it with a reference parser.

mod exposition;
mod names;
mod sample;
mod scan;

pub use exposition::{Labels, Series, series};
pub use sample::{LoraSample, MetricsSample, RankSample};
pub use scan::{MAX_RANKS, scan_into, scan_metrics};

/// Whose names a page uses.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash)]
pub enum EngineKind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

/// Tells the engine by the first series that only one of them has.
pub fn detect(text: &[u8]) -> Option<EngineKind> {
    memchr::memchr_iter(b'\n', text)
        .map(|at| at + 1)
        .chain(std::iter::once(0))
        .filter_map(|at| text.get(at..))
        .find_map(|line| {
            if line.starts_with(b"vllm:") {
                Some(EngineKind::Vllm)
            } else if line.starts_with(b"sglang:") {
                Some(EngineKind::Sglang)
            } else {
                None
            }
        })
}

#[cfg(test)]
mod tests;
