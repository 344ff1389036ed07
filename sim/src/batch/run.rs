//! A request inside the engine.

use super::{
    KvEvent, Request, Scratch,
    event::{chain, root_hash},
    output_token,
};
use crate::{
    Nanos,
    kv::{Block, BlockPool},
};

/// Where a request stands in the queue: the smallest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) priority: i64,
    pub(super) arrival: u64,
}

#[derive(Debug)]
pub(super) struct Run {
    pub(super) request: Request,
    pub(super) place: Place,
    pub(super) prompt: u32,
    root: u64,
    /// Hashes of the full blocks of the prompt, and of generated ones once they are full.
    pub(super) hashes: Vec<u64>,
    /// Blocks held, in order.
    pub(super) blocks: Vec<Block>,
    /// Of those, published ones.
    pub(super) published: u32,
    /// Tokens whose KV is computed.
    pub(super) computed: u32,
    /// Tokens being computed in the present step.
    pub(super) scheduled: u32,
    pub(super) generated: u32,
    pub(super) cached_tokens: u32,
    pub(super) preemptions: u32,
    pub(super) arrived_at: Nanos,
    pub(super) admitted_at: Option<Nanos>,
    pub(super) first_token_at: Option<Nanos>,
}

impl Run {
    pub(super) fn new(
        now: Nanos,
        place: Place,
        request: Request,
        block_size: u32,
        caching: bool,
        scratch: &mut Scratch,
    ) -> Run {
        let root = root_hash(request.adapter.as_deref(), request.cache_salt.as_deref());
        let mut hashes = Vec::new();
        if caching {
            hashes.reserve_exact(request.tokens.len() / block_size as usize);
            let mut parent = root;
            for block in request.tokens.chunks_exact(block_size as usize) {
                parent = chain(parent, block, &mut scratch.bytes);
                hashes.push(parent);
            }
        }
        Run {
            prompt: u32::try_from(request.tokens.len()).unwrap_or(u32::MAX),
            request,
            place,
            root,
            hashes,
            blocks: Vec::new(),
            published: 0,
            computed: 0,
            scheduled: 0,
            generated: 0,
            cached_tokens: 0,
            preemptions: 0,
            arrived_at: now,
            admitted_at: None,
            first_token_at: None,
        }
    }

    /// Tokens to compute before the next one can be generated.
    pub(super) fn length(&self) -> u32 {
        self.prompt + self.generated
    }

    /// Hashes that a lookup may use: the last token is always computed.
    pub(super) fn findable(&self, block_size: u32) -> &[u64] {
        let most = (self.length().saturating_sub(1) / block_size) as usize;
        self.hashes.get(..most).unwrap_or(&self.hashes)
    }

    /// Lets all blocks go, the last first, so that the tail is taken first.
    pub(super) fn release(&mut self, pool: &mut BlockPool) {
        while let Some(block) = self.blocks.pop() {
            pool.release(block);
        }
        self.published = 0;
        self.computed = 0;
        self.scheduled = 0;
    }

    /// Takes the blocks that `tokens` more tokens need; false, and nothing happens, if there are not enough.
    pub(super) fn reserve(
        &mut self,
        tokens: u32,
        block_size: u32,
        pool: &mut BlockPool,
        mut events: Option<&mut Vec<KvEvent>>,
    ) -> bool {
        let wanted = blocks_for(u64::from(self.computed) + u64::from(tokens), block_size);
        let missing = wanted.saturating_sub(self.blocks.len() as u64);
        if missing > u64::from(pool.idle()) {
            return false;
        }
        for _ in 0..missing {
            let Some((block, lost)) = pool.take() else {
                break;
            };
            self.blocks.push(block);
            if let (Some(events), Some(hash)) = (events.as_deref_mut(), lost) {
                events.push(KvEvent::Removed { hash });
            }
        }
        true
    }

    /// Publishes the blocks that the present step fills.
    pub(super) fn publish(
        &mut self,
        block_size: u32,
        pool: &mut BlockPool,
        scratch: &mut Scratch,
        events: Option<&mut Vec<KvEvent>>,
    ) {
        let from = self.published;
        let to = (self.computed + self.scheduled) / block_size;
        if from >= to {
            return;
        }
        scratch.tokens.clear();
        for index in from..to {
            let known = self.hashes.get(index as usize).copied();
            if known.is_none() || events.is_some() {
                self.copy_tokens(index, block_size, &mut scratch.tokens);
            }
            let hash = known.unwrap_or_else(|| {
                let start = scratch.tokens.len() - block_size as usize;
                let block = scratch.tokens.get(start..).unwrap_or_default();
                let hash = chain(
                    self.parent(index).unwrap_or(self.root),
                    block,
                    &mut scratch.bytes,
                );
                self.hashes.push(hash);
                hash
            });
            if let Some(block) = self.blocks.get(index as usize) {
                pool.publish(*block, hash);
            }
        }
        self.published = to;
        if let Some(events) = events {
            let hashes = self
                .hashes
                .get(from as usize..to as usize)
                .unwrap_or_default();
            events.push(KvEvent::Stored {
                hashes: hashes.to_vec(),
                parent: self.parent(from),
                tokens: scratch.tokens.clone(),
                salt: self.request.cache_salt.clone(),
                adapter: self.request.adapter.clone(),
            });
        }
    }

    /// Hash of the block before block `index`.
    fn parent(&self, index: u32) -> Option<u64> {
        self.hashes.get(index.checked_sub(1)? as usize).copied()
    }

    fn copy_tokens(&self, block: u32, block_size: u32, into: &mut Vec<u32>) {
        for at in block * block_size..(block + 1) * block_size {
            into.push(match self.request.tokens.get(at as usize) {
                Some(token) => *token,
                None => output_token(self.request.output_key, at.saturating_sub(self.prompt)),
            });
        }
    }
}

pub(super) fn blocks_for(tokens: u64, block_size: u32) -> u64 {
    tokens.div_ceil(u64::from(block_size))
}
