//! The engine step model, pure, and the emulated engine built on it.
//!
//! - [`step`]: how long one engine step takes, from measured kernel tables.
//! - [`kv`]: KV blocks with a prefix cache: reference counts, least recently used eviction, conservation.
//! - [`core`]: vLLM's scheduler: one token budget per step, running requests first, then the queue.
//! - [`text`]: a small tokeniser and chat template whose prompts share prefixes as real ones do.
//! - `engine` (feature): the same core in real time behind an OpenAI-compatible port.
//!
//! The first four have no clock, no I/O and no threads.

pub mod core;
#[cfg(feature = "engine")]
pub mod engine;
pub mod kv;
pub mod step;
pub mod text;
