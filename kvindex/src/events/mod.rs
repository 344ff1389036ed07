//! What engines say about their caches, decoded from the bytes of one message.
//!
//! - [`parse_frames`]: the three parts of a message.
//! - [`decode_batch`]: a payload, in every shape that vLLM and SGLang have used: arrays of any length, maps, integer
//!   and byte hashes. What is unknown is skipped and counted; only bytes that are not MessagePack lose a batch.

mod decode;
mod frame;
mod msgpack;
#[cfg(test)]
mod tests;

pub use decode::{BatchError, Dialect, Limits, decode_batch};
pub use frame::{Frame, FrameError, REPLAY_END, parse_frames};

/// Name that an engine gives to a block: opaque, unique within one engine, 64 bits of what was published.
///
/// Byte strings keep their last eight bytes, big-endian, which is what vLLM publishes as an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EngineHash(pub u64);

/// Where an engine keeps a block, nearest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// Memory of the accelerator; also what an event without a medium means.
    #[default]
    Device = 0,
    /// Memory of the host.
    Host = 1,
    /// A local disk.
    Disk = 2,
    /// A store outside the machine, or a medium of unknown name.
    External = 3,
}

impl Tier {
    /// All tiers, nearest first.
    pub const ALL: [Tier; 4] = [Tier::Device, Tier::Host, Tier::Disk, Tier::External];

    /// The tier of a published medium; letter case does not matter.
    pub fn of_medium(medium: &str) -> Tier {
        let is = |names: &[&str]| names.iter().any(|name| medium.eq_ignore_ascii_case(name));
        if medium.is_empty() || is(&["gpu", "device", "hbm", "npu", "xpu", "tpu"]) {
            Tier::Device
        } else if is(&["cpu", "cpu_pinned", "host", "dram"]) {
            Tier::Host
        } else if is(&["disk", "nvme", "ssd", "fs"]) {
            Tier::Disk
        } else {
            Tier::External
        }
    }

    /// Position in [`Tier::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

/// What besides tokens makes a block different, as the engine publishes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extra {
    /// A name: the adapter, the cache salt or a digest of prompt embeddings.
    Text(String),
    /// An image, sound or other item, and where it starts relative to the block; below zero when it started earlier.
    Media {
        /// The item's identifier.
        id: String,
        /// Tokens from the start of the block.
        offset: i64,
    },
    /// Anything else, as published.
    Opaque(Vec<u8>),
}

/// The extras of one block of a [`Stored`] event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockExtras {
    /// Position of the block in the event.
    pub block: usize,
    /// In published order, never empty.
    pub extras: Vec<Extra>,
}

/// Which kind of cache a group of layers has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupKind {
    /// Every layer of the group reads all earlier blocks, so a prefix must be complete. Also when nothing is said.
    #[default]
    Full,
    /// Sliding window, state-space or unknown: a complete prefix is not needed, so it tells nothing about one.
    Other,
}

/// Blocks were stored, each following the one before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Published names, in chain order.
    pub hashes: Vec<EngineHash>,
    /// Block before the first one; `None` at the start of a prompt.
    pub parent: Option<EngineHash>,
    /// Tokens of all blocks; empty when the event only tells of a new tier of known blocks.
    pub tokens: Vec<u32>,
    /// Tokens per block.
    pub block_size: u32,
    /// Number of the adapter, when one was used.
    pub adapter_id: Option<i64>,
    /// Name of the adapter, when one was used and the engine says it.
    pub adapter: Option<String>,
    /// Salt that separates tenants, where it is a field of its own (SGLang).
    pub salt: Option<String>,
    /// Where the blocks are.
    pub tier: Tier,
    /// Only blocks that have some.
    pub extras: Vec<BlockExtras>,
    /// Group of layers.
    pub group: u32,
    /// What the group caches.
    pub kind: GroupKind,
}

/// Copies of blocks were dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Published names.
    pub hashes: Vec<EngineHash>,
    /// Where the copies were.
    pub tier: Tier,
    /// Group of layers.
    pub group: u32,
}

/// One thing that an engine says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// See [`Stored`].
    Stored(Stored),
    /// See [`Removed`].
    Removed(Removed),
    /// Nothing is cached any more.
    Cleared,
}

/// What one message holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Number of the message, to be set by who knows it; a snapshot tells the last one.
    pub sequence: Option<u64>,
    /// Wall clock of the engine when it was published, in seconds; not a number when the engine sent none.
    pub published: f64,
    /// In published order.
    pub events: Vec<Event>,
    /// Data-parallel rank, when it is said.
    pub rank: Option<u32>,
    /// Events with a tag that is not known.
    pub unknown: u32,
    /// Events of a known tag whose fields make no sense.
    pub malformed: u32,
    /// Fields that are not known, over all events.
    pub unknown_fields: u32,
}
