//! The block hashes that engines publish, recomputed: a check of what events say, never a need.
//!
//! vLLM: `hash[i] = H(enc((parent, tokens_i, extra_i)))` with `parent` the digest before it and, for the first block,
//! `H(enc(seed))`; SGLang: `page[i] = SHA-256(page[i-1] ++ tokens as u32 LE)`. Both read in the engines' sources.

mod check;
mod encode;
#[cfg(test)]
mod tests;

pub use check::{Checked, HashCheck, HashScheme};

use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::xxh3_128;

use crate::events::EngineHash;
use encode::{Encoding, Value};

/// vLLM's `--prefix-caching-hash-algo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// SHA-256 over a Python pickle; the default.
    Sha256,
    /// SHA-256 over canonical CBOR.
    Sha256Cbor,
    /// XXH3-128 over a Python pickle.
    Xxhash,
    /// XXH3-128 over canonical CBOR.
    XxhashCbor,
}

impl Algorithm {
    /// By the name that vLLM uses on its command line and in `vllm:cache_config_info`.
    pub fn named(name: &str) -> Option<Algorithm> {
        Some(match name {
            "sha256" => Algorithm::Sha256,
            "sha256_cbor" => Algorithm::Sha256Cbor,
            "xxhash" => Algorithm::Xxhash,
            "xxhash_cbor" => Algorithm::XxhashCbor,
            _ => return None,
        })
    }

    fn encoding(self) -> Encoding {
        match self {
            Algorithm::Sha256 | Algorithm::Xxhash => Encoding::Pickle,
            Algorithm::Sha256Cbor | Algorithm::XxhashCbor => Encoding::Cbor,
        }
    }

    fn digest(self, bytes: &[u8]) -> Digest {
        match self {
            Algorithm::Sha256 | Algorithm::Sha256Cbor => Digest(Sha256::digest(bytes).to_vec()),
            Algorithm::Xxhash | Algorithm::XxhashCbor => {
                Digest(xxh3_128(bytes).to_be_bytes().to_vec())
            }
        }
    }
}

/// How extras are written into the hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExtraStyle {
    /// vLLM 0.31 and later: each extra says what it is.
    #[default]
    Tagged,
    /// Earlier: bare values.
    Plain,
}

/// A full digest: 32 bytes of SHA-256 or 16 of XXH3-128.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest(pub Vec<u8>);

impl Digest {
    /// What vLLM publishes: the low 64 bits.
    pub fn vllm(&self) -> EngineHash {
        EngineHash(
            self.0
                .iter()
                .fold(0, |value, byte| value << 8 | u64::from(*byte)),
        )
    }

    /// What SGLang publishes: the first 64 bits.
    pub fn sglang(&self) -> EngineHash {
        EngineHash(
            self.0
                .iter()
                .take(8)
                .fold(0, |value, byte| value << 8 | u64::from(*byte)),
        )
    }
}

/// What makes one engine's hashes its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VllmHasher {
    /// Hash and encoding.
    pub algorithm: Algorithm,
    /// `PYTHONHASHSEED` of the engine. Unset, vLLM 0.29 and later use `vllm-none-hash` with SHA-256, and a random
    /// seed with XXH3: those cannot be predicted.
    pub seed: Option<String>,
    /// How extras are written.
    pub style: ExtraStyle,
}

/// What vLLM adds to the tokens of a prompt.
#[derive(Clone, Copy, Debug, Default)]
pub struct PromptExtras<'a> {
    /// Name and path of the adapter; the path counts since 0.31.
    pub adapter: Option<(&'a str, &'a str)>,
    /// The request's `cache_salt`.
    pub salt: Option<&'a str>,
}

impl VllmHasher {
    /// The digest before the first block; `None` when the engine's seed is random.
    pub fn none_hash(&self) -> Option<Digest> {
        let seed = match (self.seed.as_deref(), self.algorithm) {
            (Some(seed), _) => seed,
            (None, Algorithm::Sha256 | Algorithm::Sha256Cbor) => "vllm-none-hash",
            (None, Algorithm::Xxhash | Algorithm::XxhashCbor) => return None,
        };
        Some(self.hash(&Value::Text(seed)))
    }

    fn hash(&self, value: &Value<'_>) -> Digest {
        self.algorithm
            .digest(&self.algorithm.encoding().encode(value))
    }

    /// Digests of the full blocks of a prompt; `None` when the engine's seed is random.
    pub fn blocks(
        &self,
        tokens: &[u32],
        block_size: usize,
        extras: PromptExtras<'_>,
    ) -> Option<Vec<Digest>> {
        let mut parent = self.none_hash()?;
        let blocks = tokens.chunks_exact(block_size.max(1)).enumerate();
        let digests = blocks.map(|(position, tokens)| {
            let digest = self.block(&parent, tokens, self.extras(extras, position == 0));
            parent = digest.clone();
            digest
        });
        Some(digests.collect())
    }

    fn extras<'v>(&self, extras: PromptExtras<'v>, first: bool) -> Vec<Value<'v>> {
        let tagged = |fields: Vec<Value<'v>>| Value::Tuple(fields);
        let mut out = Vec::new();
        if let Some((name, path)) = extras.adapter {
            out.push(match self.style {
                ExtraStyle::Tagged => tagged(vec![
                    Value::Text("lora"),
                    Value::Text(name),
                    Value::Text(path),
                ]),
                ExtraStyle::Plain => Value::Text(name),
            });
        }
        if let Some(salt) = extras.salt.filter(|_| first) {
            out.push(match self.style {
                ExtraStyle::Tagged => tagged(vec![Value::Text("cache_salt"), Value::Text(salt)]),
                ExtraStyle::Plain => Value::Text(salt),
            });
        }
        out
    }

    fn block(&self, parent: &Digest, tokens: &[u32], extras: Vec<Value<'_>>) -> Digest {
        let extras = if extras.is_empty() {
            Value::None
        } else {
            Value::Tuple(extras)
        };
        let tokens = tokens
            .iter()
            .map(|token| Value::Int(i64::from(*token)))
            .collect();
        self.hash(&Value::Tuple(vec![
            Value::Bytes(&parent.0),
            Value::Tuple(tokens),
            extras,
        ]))
    }
}

/// SGLang's digests of the full pages of a prompt.
pub fn sglang_pages(tokens: &[u32], page_size: usize, salt: Option<&str>) -> Vec<Digest> {
    sglang_pages_after(&sglang_start(salt), tokens, page_size)
}

/// What SGLang's first page follows: nothing, or a digest of the salt.
fn sglang_start(salt: Option<&str>) -> Digest {
    Digest(salt.map_or_else(Vec::new, |salt| {
        let mut hash = Sha256::new();
        hash.update(b"sglang-cache-salt-v1\0");
        hash.update(salt.as_bytes());
        hash.finalize().to_vec()
    }))
}

fn sglang_pages_after(before: &Digest, tokens: &[u32], page_size: usize) -> Vec<Digest> {
    let mut before = before.clone();
    let pages = tokens.chunks_exact(page_size.max(1)).map(|page| {
        let mut hash = Sha256::new();
        hash.update(&before.0);
        for token in page {
            hash.update(token.to_le_bytes());
        }
        before = Digest(hash.finalize().to_vec());
        before.clone()
    });
    pages.collect()
}
