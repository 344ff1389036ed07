//! A live, exact prefix index fed by KV events: which endpoint holds how much of a prompt.
//!
//! ```text
//! engine's messages -> events: decode -> cursor: apply, hold, ask for a replay, forget -> index
//! prompt's tokens   -> keys: names of its blocks that no engine's settings change ------> index: lookup -> Matches
//! ```
//!
//! - [`events`]: what engines say, decoded from bytes, in every shape that they have used.
//! - [`cursor`]: which messages of a source to apply, and when to forget what it said.
//! - [`keys`]: names of blocks that commit to the model, the cache domain, all tokens and the media among them.
//! - `tokens` (feature `tokens`): prompts to tokens, as the engine does it.
//! - [`index`]: the answer, for thousands of endpoints at once, while events go on.
//!
//! No sockets, no clock, no threads of its own: bytes and time are arguments. Writers may be many and lock what they
//! change; lookups take no lock.

pub mod cursor;
pub mod events;
pub mod index;
pub mod keys;
#[cfg(feature = "tokens")]
pub mod tokens;

/// A time: nanoseconds on the caller's monotonic clock.
pub type Nanos = u64;
