//! The index as bytes, so that a new replica starts with what another one knows.
//!
//! ```text
//! "WGKVINDX"  version u16  block u32  seed u64                            all numbers little-endian
//! endpoints u32, each:  incarnation u64  rank u32  sequence u64 + 1 or 0  groups u32, each:
//!   group u32  block size u32  parts u32, each, those nearer to the root first:
//!     depth u32  parent u32 (position of an earlier part, all ones for none)  keys u16, each: u64
//!     blocks u32, each:  position u16  tier u8  copies u32  hash u64
//! ```
//!
//! It holds what events told, with the number of the last message of each source, so that the reader goes on with the
//! next one. It does not hold predictions, waiting blocks, and engines whose blocks are parts of ours: those warm up by
//! events or a replay. Blocks behind a hole are left out: nothing can be served from them.

mod read;
mod write;

use thiserror::Error;

use super::EndpointId;

const MAGIC: &[u8; 8] = b"WGKVINDX";
const VERSION: u16 = 1;
const NO_PARENT: u32 = u32::MAX;

/// Why bytes are not taken in. Nothing of them is, except what came before the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SnapshotError {
    /// Not written by an index.
    #[error("this is not a snapshot of an index")]
    Magic,
    /// Written by another version.
    #[error("a snapshot of version {0}; this is version {VERSION}")]
    Version(u16),
    /// Its keys mean something else here.
    #[error("keys of {block} tokens and seed {seed}, which are not ours")]
    Keys {
        /// Tokens of a block there.
        block: u32,
        /// Seed there.
        seed: u64,
    },
    /// It ends too early or contradicts itself.
    #[error("the snapshot is cut short or damaged at byte {0}")]
    Damaged(usize),
}

/// What was taken in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Endpoints and the last message that counts in (for [`crate::cursor::Cursor::resumed`]).
    pub endpoints: Vec<(EndpointId, Option<u64>)>,
    /// Endpoints that are not registered here, or that have told something already.
    pub skipped: usize,
    /// Blocks, each tier counted.
    pub placements: u64,
}
