//! Hashes of blocks, and what changes in the prefix cache.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A change of the prefix cache, for whoever mirrors it. An index over these events must count: a hash can be
/// stored twice before it is removed once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// Blocks of one request were filled.
    Stored {
        /// Their hashes, in the order of the prompt.
        hashes: Vec<u64>,
        /// Hash of the block before the first one; absent at the start of a prompt.
        parent: Option<u64>,
        /// Tokens of all these blocks.
        tokens: Vec<u32>,
        /// Cache domain of the request.
        salt: Option<Arc<str>>,
        /// Adapter of the request.
        adapter: Option<Arc<str>>,
    },
    /// A cached block was taken for something else.
    Removed {
        /// Its hash.
        hash: u64,
    },
    /// Everything was dropped.
    Cleared,
}

/// Hash of a block of `tokens` behind the block with hash `parent` (or behind the root): XXH3 of the tokens as
/// little-endian bytes, seeded with the parent.
pub fn block_hash(parent: u64, tokens: &[u32]) -> u64 {
    chain(parent, tokens, &mut Vec::with_capacity(tokens.len() * 4))
}

/// [`block_hash`] with a buffer to reuse.
pub(super) fn chain(parent: u64, tokens: &[u32], bytes: &mut Vec<u8>) -> u64 {
    bytes.clear();
    for token in tokens {
        bytes.extend_from_slice(&token.to_le_bytes());
    }
    xxh3_64_with_seed(bytes, parent)
}

/// Where a chain of hashes starts: nothing is shared between adapters, nor between cache domains.
pub fn root_hash(adapter: Option<&str>, salt: Option<&str>) -> u64 {
    let part = |seed: u64, text: Option<&str>| match text {
        Some(text) => xxh3_64_with_seed(text.as_bytes(), seed),
        None => seed,
    };
    part(part(0x9E37_79B9_7F4A_7C15, adapter).rotate_left(1), salt)
}
