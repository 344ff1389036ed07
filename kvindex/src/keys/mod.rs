//! Names for blocks that do not depend on how an engine hashes.
//!
//! A [`Key`] commits to everything up to the end of its block: the model or adapter, the cache domain, all tokens and
//! the media among them. So two prompts have the same key at a position only if a cache could serve one for the other,
//! and comparing one key compares a whole prefix.
//!
//! ```text
//! root  = hash(framed model, framed domain)
//! key_0 = chain(root, content(tokens 0..B, media that start there))
//! key_i = chain(key_{i-1}, content(tokens iB..(i+1)B, media that start there))
//! ```
//!
//! Contents are hashed with XXH3-64 and do not depend on each other; the chain is a few multiplications. Neither
//! resists an adversary; a collision would cost a detour, as engines check their own hashes.
//!
//! [`engine`] recomputes the hashes that engines publish, as a check.

mod chain;
pub mod engine;

pub(crate) use chain::Content;
pub use chain::KeySpace;

/// Name of a block and all before it. See the [module](self).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub u64);

/// Whose caches a prompt may share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scope<'a> {
    /// The adapter that is used, else the model.
    pub model: &'a str,
    /// The salt that goes to the engine; prompts of different domains share nothing. `None` is a domain of its own.
    pub domain: Option<&'a str>,
}

/// An image, sound or other item in a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Media<'a> {
    /// Identifier by which the engine knows the item.
    pub id: &'a str,
    /// Token at which it starts.
    pub at: usize,
}

/// Full blocks of a prompt of `tokens` tokens that a cache can serve: `floor((n-1)/B)`, as an engine always computes
/// the last token.
pub fn creditable_blocks(tokens: usize, block: u32) -> usize {
    let block = block.max(1) as usize;
    tokens.saturating_sub(1) / block
}
