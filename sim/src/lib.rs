//! The engine step model, pure, and the emulated engine built on it.
//!
//! ```text
//!   step   how long one engine step takes, from measured kernel tables
//!   kv     KV blocks with a prefix cache
//!     \     /
//!      batch     continuous batching as vLLM does it: who computes what in the next step
//!        |
//!      text      a small tokeniser and chat template
//!        |
//!      engine    (feature `engine`) all that in real time behind an OpenAI-compatible port
//! ```
//!
//! Everything but `engine` has no clock, no I/O, no threads and no randomness: the same calls bring the same bytes.

pub mod batch;
#[cfg(feature = "engine")]
pub mod engine;
pub mod kv;
pub mod step;
pub mod text;

/// Nanoseconds on a monotonic clock.
pub type Nanos = u64;
