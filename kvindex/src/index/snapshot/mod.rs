//! What an endpoint holds as bytes, so that a new replica starts with what another one knows.
//!
//! ```text
//! groups u32, each:                                                      all numbers little-endian
//!   group u32  block size u32  parts u32, each, those nearer to the root first:
//!     depth u32  parent u32 (position of an earlier part, all ones for none)  keys u16, each: u64
//!     blocks u32, each:  position u16  tier u8  copies u32  hash u64
//! ```
//!
//! It holds what events told, with the number of the last message that counts in, so that the reader goes on with the
//! next one. It does not hold predictions and blocks that wait for their predecessor. Blocks behind a hole are left out:
//! nothing can be served from them. An endpoint is told as a whole or not at all: a group of layers that is missing would
//! make the others' blocks look usable.
//!
//! The bytes say nothing of who they are about and how keys are made: that is the matter of what carries them.

mod read;
mod write;

use thiserror::Error;

pub use read::check;

const NO_PARENT: u32 = u32::MAX;

/// Version of the bytes of an [`EndpointSnapshot`] and of the arithmetic of keys. What is of another one says something
/// else here.
pub const SNAPSHOT_VERSION: u16 = 1;

/// Why an endpoint is not taken over from bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SnapshotError {
    /// They end too early or contradict themselves.
    #[error("cut short or damaged at byte {0}")]
    Damaged(usize),
    /// The endpoint is not registered here.
    #[error("the endpoint is not known")]
    Unknown,
    /// There is no room for its groups of layers.
    #[error("the index takes no more groups of layers")]
    Full,
}

/// What events told of one endpoint, at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndpointSnapshot {
    /// Number of the last message that counts in.
    pub last: u64,
    /// When that one was published, by the engine's clock in seconds; not a number when it did not say.
    pub published: f64,
    /// Number of the first message that counts in: the lower, the more is known.
    pub since: u64,
    /// Its blocks; see the module.
    pub blocks: Vec<u8>,
}
