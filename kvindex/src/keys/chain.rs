//! The arithmetic of keys.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use super::{Key, Media, Scope, creditable_blocks};

/// Makes a content with media differ from any without.
const WITH_EXTRAS: u64 = 0x5765_7468_4d65_6469;
const ROOT: u64 = 0x526f_6f74_4f66_4b65;
/// Odd constants with well-spread bits: the primes of XXH64.
const PRIME_1: u64 = 0x9e37_79b1_85eb_ca87;
const PRIME_2: u64 = 0xc2b2_ae3d_27d4_eb4f;

/// How keys are made: all replicas that exchange snapshots share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpace {
    block: u32,
    seed: u64,
}

/// Hash of what one block holds, without what comes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Content(u64);

impl KeySpace {
    /// Keys of `block` tokens (at least 1), different for each `seed`.
    pub fn new(block: u32, seed: u64) -> KeySpace {
        KeySpace {
            block: block.max(1),
            seed,
        }
    }

    /// Tokens per block.
    pub fn block(&self) -> u32 {
        self.block
    }

    /// What the keys are seeded with.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The key before the first block. Fields are framed by their lengths, so ("acme", "1x") is not ("acme1", "x").
    pub fn root(&self, scope: Scope<'_>) -> Key {
        let mut hash = Xxh3::with_seed(self.seed ^ ROOT);
        framed(&mut hash, 1, scope.model.as_bytes());
        if let Some(domain) = scope.domain {
            framed(&mut hash, 2, domain.as_bytes());
        }
        Key(hash.digest())
    }

    /// The key after `parent` and one block of plain tokens.
    pub fn next(&self, parent: Key, tokens: &[u32]) -> Key {
        self.chain(parent, self.content(tokens))
    }

    /// Keys of the blocks of a prompt that a cache can serve (see [`creditable_blocks`]), in order, into `out`.
    ///
    /// `media` is in order of position.
    pub fn prompt(
        &self,
        scope: Scope<'_>,
        tokens: &[u32],
        media: &[Media<'_>],
        out: &mut Vec<Key>,
    ) {
        out.clear();
        let blocks = creditable_blocks(tokens.len(), self.block);
        out.reserve(blocks);
        let mut key = self.root(scope);
        let mut start = 0;
        let mut media = media;
        for tokens in tokens.chunks_exact(self.block as usize).take(blocks) {
            let end = start + tokens.len();
            let here = media.partition_point(|item| item.at < end);
            let (here, later) = media.split_at_checked(here).unwrap_or((media, &[]));
            media = later;
            let content = if here.is_empty() {
                self.content(tokens)
            } else {
                self.content_with(
                    tokens,
                    here.iter()
                        .map(|item| (item.at - start, item.id.as_bytes())),
                )
            };
            key = self.chain(key, content);
            out.push(key);
            start = end;
        }
    }

    /// The key after `parent` and a block of this content.
    ///
    /// One-to-one in either argument, and every bit of both reaches every bit of the result.
    #[inline]
    pub(crate) fn chain(&self, parent: Key, content: Content) -> Key {
        let mut bits = parent.0.rotate_left(27).wrapping_mul(PRIME_1) ^ content.0;
        bits ^= bits >> 32;
        bits = bits.wrapping_mul(PRIME_2);
        Key(bits ^ (bits >> 29))
    }

    #[inline]
    pub(crate) fn content(&self, tokens: &[u32]) -> Content {
        match <[u32; 16]>::try_from(tokens) {
            // The usual size: one call on a buffer whose length the compiler knows.
            Ok(tokens) => {
                let mut bytes = [0; 64];
                pack(&tokens, &mut bytes);
                Content(xxh3_64_with_seed(&bytes, self.seed))
            }
            Err(_) => self.any_content(tokens),
        }
    }

    fn any_content(&self, tokens: &[u32]) -> Content {
        let mut bytes = [0; 1024];
        if tokens.len() <= bytes.len() / 4 {
            let used = bytes
                .split_at_mut_checked(tokens.len() * 4)
                .map(|(used, _)| used);
            let used = used.unwrap_or_default();
            pack(tokens, used);
            return Content(xxh3_64_with_seed(used, self.seed));
        }
        let mut hash = Xxh3::with_seed(self.seed);
        stream(&mut hash, tokens);
        Content(hash.digest())
    }

    /// Content of a block in which something starts that is no token: pairs of a position in the block and a name.
    pub(crate) fn content_with<'a>(
        &self,
        tokens: &[u32],
        extras: impl Iterator<Item = (usize, &'a [u8])>,
    ) -> Content {
        let mut hash = Xxh3::with_seed(self.seed ^ WITH_EXTRAS);
        stream(&mut hash, tokens);
        for (at, name) in extras {
            hash.update(&(at as u64).to_le_bytes());
            framed(&mut hash, 3, name);
        }
        Content(hash.digest())
    }
}

fn framed(hash: &mut Xxh3, tag: u8, bytes: &[u8]) {
    hash.update(&[tag]);
    hash.update(&(bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

#[inline]
fn pack(tokens: &[u32], bytes: &mut [u8]) {
    for (token, bytes) in tokens.iter().zip(bytes.chunks_exact_mut(4)) {
        bytes.copy_from_slice(&token.to_le_bytes());
    }
}

fn stream(hash: &mut Xxh3, tokens: &[u32]) {
    for tokens in tokens.chunks(64) {
        let mut bytes = [0; 256];
        pack(tokens, &mut bytes);
        hash.update(bytes.get(..tokens.len() * 4).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const SPACE: KeySpace = KeySpace { block: 16, seed: 7 };

    fn keys(scope: Scope<'_>, tokens: &[u32], media: &[Media<'_>]) -> Vec<Key> {
        let mut out = Vec::new();
        SPACE.prompt(scope, tokens, media, &mut out);
        out
    }

    fn of(model: &str) -> Scope<'_> {
        Scope {
            model,
            domain: None,
        }
    }

    #[test]
    fn fields_are_framed() {
        let scope = |model, domain| Scope { model, domain };
        let scopes = [
            scope("acme", Some("1x")),
            scope("acme1", Some("x")),
            scope("acme1x", None),
            scope("acme1x", Some("")),
            scope("", Some("acme1x")),
            scope("acme\0", Some("1x")),
            scope("acme", Some("\x001x")),
            scope("acme:1x", None),
            scope("acme", Some(":1x")),
            scope("a", Some("")),
            scope("", Some("a")),
        ];
        let roots: HashSet<Key> = scopes.iter().map(|scope| SPACE.root(*scope)).collect();
        assert_eq!(roots.len(), scopes.len());
        let tokens: Vec<u32> = (0..33).collect();
        let first: HashSet<Key> = scopes
            .iter()
            .filter_map(|scope| keys(*scope, &tokens, &[]).first().copied())
            .collect();
        assert_eq!(first.len(), scopes.len());
    }

    #[test]
    fn the_last_token_is_never_credited() {
        for (tokens, blocks) in [(0, 0), (1, 0), (15, 0), (16, 0), (17, 1), (32, 1), (33, 2)] {
            let prompt: Vec<u32> = (0..tokens).collect();
            assert_eq!(keys(of("m"), &prompt, &[]).len(), blocks, "{tokens} tokens");
            assert_eq!(creditable_blocks(tokens as usize, 16), blocks);
        }
    }

    #[test]
    fn a_key_commits_to_all_before_it_and_to_nothing_after() {
        let tokens: Vec<u32> = (0..129).collect();
        let plain = keys(of("m"), &tokens, &[]);
        for changed in 0..128 {
            let mut other = tokens.clone();
            other[changed] += 1000;
            let other = keys(of("m"), &other, &[]);
            let same = plain.iter().zip(&other).take_while(|(a, b)| a == b).count();
            assert_eq!(same, changed / 16);
            assert!(plain.iter().zip(&other).skip(same).all(|(a, b)| a != b));
        }
    }

    #[test]
    fn prompts_are_chains_of_blocks() {
        let tokens: Vec<u32> = (0..49).collect();
        let mut key = SPACE.root(of("m"));
        let chained: Vec<Key> = tokens
            .chunks_exact(16)
            .map(|tokens| {
                key = SPACE.next(key, tokens);
                key
            })
            .collect();
        assert_eq!(chained, keys(of("m"), &tokens, &[]));
    }

    #[test]
    fn media_count_where_they_start() {
        let tokens: Vec<u32> = vec![9; 65];
        let image = |at, id| Media { id, at };
        let variants = [
            keys(of("m"), &tokens, &[]),
            keys(of("m"), &tokens, &[image(16, "cat")]),
            keys(of("m"), &tokens, &[image(17, "cat")]),
            keys(of("m"), &tokens, &[image(16, "dog")]),
            keys(of("m"), &tokens, &[image(16, "cat"), image(16, "dog")]),
            keys(of("m"), &tokens, &[image(16, "catdog")]),
            keys(of("m"), &tokens, &[image(16, "cat"), image(40, "cat")]),
        ];
        let last: HashSet<Key> = variants.iter().map(|keys| keys[3]).collect();
        assert_eq!(last.len(), variants.len());
        assert!(variants.iter().all(|keys| keys[0] == variants[0][0]));
        assert_eq!(variants[1][1], variants[6][1]);
        assert_ne!(variants[1][2], variants[6][2]);
    }

    #[test]
    fn blocks_of_any_size_have_contents_and_seeds_separate_them() {
        let mut seen = HashSet::new();
        for size in [1usize, 2, 15, 16, 17, 32, 64, 65, 255, 256, 257, 1024] {
            let tokens: Vec<u32> = (0..=size as u32).collect();
            for seed in [0, 1] {
                let space = KeySpace::new(size as u32, seed);
                let mut out = Vec::new();
                space.prompt(of("m"), &tokens, &[], &mut out);
                assert_eq!(out.len(), 1);
                assert!(seen.insert(out[0]));
            }
        }
        let (short, long) = (vec![5; 256], vec![5; 257]);
        let space = KeySpace::new(256, 0);
        assert_ne!(space.content(&short), space.content(&long));
    }
}
