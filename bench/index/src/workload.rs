//! Blocks and events that depend on nothing but their numbers.

use crate::{Shape, Subject};

/// A block, by every name that some index wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Hash of what is in it, wherever it stands.
    pub content: u64,
    /// Hash of it and all before it.
    pub prefix: u64,
    /// The engine's name for it and all before it.
    pub engine: u64,
}

/// A value whose bits look random.
fn scrambled(value: u64) -> u64 {
    let mut bits = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// A number by chance, the same each time.
pub(crate) fn chance(number: usize) -> u64 {
    scrambled(UNKNOWN as u64 ^ number as u64)
}

/// The first `length` blocks of the `number`-th chain. Chains share nothing.
pub(crate) fn chain(number: usize, length: usize) -> Vec<Block> {
    let block = |at: usize| {
        let seed = scrambled((number as u64) << 24 | at as u64);
        Block {
            content: scrambled(seed ^ 1),
            prefix: scrambled(seed ^ 2),
            engine: scrambled(seed ^ 3),
        }
    };
    (0..length).map(block).collect()
}

/// A chain that no endpoint stores.
pub(crate) const UNKNOWN: usize = 1 << 38;

/// Tokens of a prompt of so many blocks, and one more.
pub(crate) fn tokens(blocks: usize) -> Vec<u32> {
    (0..blocks * crate::BLOCK_TOKENS + 1)
        .map(|at| scrambled(at as u64) as u32 % 128_000)
        .collect()
}

/// Events that store `blocks` after `before`, a few at a time.
pub(crate) fn store<S: Subject>(
    shape: &Shape,
    endpoint: usize,
    before: Option<&Block>,
    blocks: &[Block],
    out: &mut Vec<S::Event>,
) {
    let mut parent = before;
    for blocks in blocks.chunks(shape.event) {
        out.push(S::stored(endpoint, parent, blocks));
        parent = blocks.last();
    }
}

/// Events that remove `blocks`, the last ones first, as engines do.
pub(crate) fn remove<S: Subject>(
    shape: &Shape,
    endpoint: usize,
    blocks: &[Block],
    out: &mut Vec<S::Event>,
) {
    let mut backwards = blocks.to_vec();
    backwards.reverse();
    out.extend(
        backwards
            .chunks(shape.event)
            .map(|blocks| S::removed(endpoint, blocks)),
    );
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_blocks_have_a_name_in_common() {
        let mut seen = HashSet::new();
        for number in [0, 1, 2, 1000, UNKNOWN] {
            for block in chain(number, 2000) {
                assert!(seen.insert(block.content));
                assert!(seen.insert(block.prefix));
                assert!(seen.insert(block.engine));
            }
        }
        assert_eq!(chain(7, 10), chain(7, 20)[..10]);
    }
}
