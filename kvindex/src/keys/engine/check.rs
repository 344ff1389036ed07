//! Events against the hashes that their tokens should have.

use std::collections::{HashMap, VecDeque};

use super::{Digest, ExtraStyle, Value, VllmHasher, sglang_pages_after, sglang_start};
use crate::events::{EngineHash, Extra, Stored};

/// How an engine hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashScheme {
    /// vLLM, by its `--prefix-caching-hash-algo`, its `PYTHONHASHSEED` and how it writes extras.
    Vllm(VllmHasher),
    /// SGLang.
    Sglang,
}

/// Blocks by what the check found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// The published hash is that of the tokens.
    pub same: u64,
    /// It is another: tokens or scheme are not what they are said to be.
    pub different: u64,
    /// It cannot be told: the block before is not known, the seed is random, or something went into the hash that
    /// events do not publish (the path of an adapter, an embedding).
    pub untold: u64,
}

impl Checked {
    /// Adds another's counts.
    pub fn add(&mut self, other: Checked) {
        self.same += other.same;
        self.different += other.different;
        self.untold += other.untold;
    }
}

/// Checks the events of one source. Remembers the full digests of the last blocks, as events publish 64 bits of them
/// only and the next block's hash is over all.
#[derive(Debug)]
pub struct HashCheck {
    scheme: HashScheme,
    known: HashMap<EngineHash, Digest>,
    /// The known ones, oldest first.
    order: VecDeque<EngineHash>,
    most: usize,
}

impl HashCheck {
    /// A check that remembers up to `most` digests, about 100 bytes each.
    pub fn new(scheme: HashScheme, most: usize) -> HashCheck {
        HashCheck {
            scheme,
            known: HashMap::new(),
            order: VecDeque::new(),
            most: most.max(1),
        }
    }

    /// Forgets all digests: the source starts anew.
    pub fn clear(&mut self) {
        self.known.clear();
        self.order.clear();
    }

    /// Compares what an event publishes with what its tokens give. Blocks after one that differs are not told, except
    /// that a later event may start from the root again.
    pub fn stored(&mut self, event: &Stored) -> Checked {
        let mut found = Checked::default();
        let size = event.block_size as usize;
        // Of a new tier of known blocks no tokens are said: there is nothing to check.
        if event.tokens.is_empty() || size == 0 {
            return found;
        }
        let mut parent = self.before(event);
        let blocks = event.hashes.iter().zip(event.tokens.chunks_exact(size));
        for (block, (published, tokens)) in blocks.enumerate() {
            let first = event.parent.is_none() && block == 0;
            let digest = parent
                .take()
                .and_then(|parent| self.block(&parent, tokens, event, block, first));
            match digest {
                None => found.untold += 1,
                Some(digest) if self.published(&digest) == *published => {
                    found.same += 1;
                    self.remember(*published, digest.clone());
                    parent = Some(digest);
                }
                Some(_) => found.different += 1,
            }
        }
        found
    }

    /// The digest that the event's first block follows.
    fn before(&self, event: &Stored) -> Option<Digest> {
        if let Some(parent) = event.parent {
            return self.known.get(&parent).cloned();
        }
        match &self.scheme {
            HashScheme::Vllm(hasher) => hasher.none_hash(),
            // Adapters get a name space of their own, by a number that is not published.
            HashScheme::Sglang if event.adapter.is_some() || event.adapter_id.is_some() => None,
            HashScheme::Sglang => Some(sglang_start(event.salt.as_deref())),
        }
    }

    fn block(
        &self,
        parent: &Digest,
        tokens: &[u32],
        event: &Stored,
        block: usize,
        first: bool,
    ) -> Option<Digest> {
        match &self.scheme {
            HashScheme::Sglang => sglang_pages_after(parent, tokens, tokens.len()).pop(),
            HashScheme::Vllm(hasher) => {
                let extras = event.extras.iter().find(|extras| extras.block == block);
                let published = extras.map_or(&[][..], |extras| &extras.extras);
                let extras = vllm_extras(hasher.style, event, published, first)?;
                Some(hasher.block(parent, tokens, extras))
            }
        }
    }

    fn published(&self, digest: &Digest) -> EngineHash {
        match self.scheme {
            HashScheme::Vllm(_) => digest.vllm(),
            HashScheme::Sglang => digest.sglang(),
        }
    }

    fn remember(&mut self, published: EngineHash, digest: Digest) {
        if self.known.insert(published, digest).is_none() {
            self.order.push_back(published);
        }
        while self.known.len() > self.most {
            let Some(oldest) = self.order.pop_front() else {
                return;
            };
            self.known.remove(&oldest);
        }
    }
}

/// What went into a block's hash besides tokens, from what is published of it: bare values in the order adapter, media,
/// salt, embeddings. `None` if it cannot be told.
fn vllm_extras<'a>(
    style: ExtraStyle,
    event: &'a Stored,
    published: &'a [Extra],
    first: bool,
) -> Option<Vec<Value<'a>>> {
    let tagged = style == ExtraStyle::Tagged;
    let mut out = Vec::with_capacity(published.len());
    let mut adapter = event.adapter.as_deref();
    if tagged && (adapter.is_some() || event.adapter_id.is_some()) {
        // The adapter's path is hashed and not published.
        return None;
    }
    let mut salted = false;
    for extra in published {
        out.push(match extra {
            Extra::Text(text) if adapter.take().is_some_and(|name| name == text) => {
                Value::Text(text)
            }
            // Embeddings are a text too, but never alone in the first block with a salt; they are not told apart.
            Extra::Text(text) if first && !salted => {
                salted = true;
                match tagged {
                    true => Value::Tuple(vec![Value::Text("cache_salt"), Value::Text(text)]),
                    false => Value::Text(text),
                }
            }
            Extra::Media { id, offset } => {
                let mut fields = vec![Value::Text(id), Value::Int(*offset)];
                if tagged {
                    fields.insert(0, Value::Text("mm"));
                }
                Value::Tuple(fields)
            }
            Extra::Text(_) | Extra::Opaque(_) => return None,
        });
    }
    Some(out)
}
