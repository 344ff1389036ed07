//! Events and queries as `dynamo-kv-router` takes them.

use dynamo_kv_router::protocols::{
    BlockHashOptions, ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData,
    KvCacheStoreData, KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent,
    compute_block_hash_for_seq,
};
use wicketgate_bench_index::{BLOCK_TOKENS, Block};

fn event(endpoint: usize, data: KvCacheEventData) -> RouterEvent {
    let event = KvCacheEvent {
        event_id: 0,
        data,
        dp_rank: 0,
    };
    RouterEvent::new(endpoint as u64, event)
}

pub(crate) fn stored(endpoint: usize, parent: Option<&Block>, blocks: &[Block]) -> RouterEvent {
    let block = |block: &Block| KvCacheStoredBlockData {
        block_hash: ExternalSequenceBlockHash(block.engine),
        tokens_hash: LocalBlockHash(block.content),
        mm_extra_info: None,
    };
    let data = KvCacheStoreData {
        parent_hash: parent.map(|block| ExternalSequenceBlockHash(block.engine)),
        start_position: None,
        blocks: blocks.iter().map(block).collect(),
    };
    event(endpoint, KvCacheEventData::Stored(data))
}

pub(crate) fn removed(endpoint: usize, blocks: &[Block]) -> RouterEvent {
    let hashes = blocks
        .iter()
        .map(|block| ExternalSequenceBlockHash(block.engine));
    let data = KvCacheRemoveData {
        block_hashes: hashes.collect(),
    };
    event(endpoint, KvCacheEventData::Removed(data))
}

pub(crate) fn query(blocks: &[Block]) -> Vec<LocalBlockHash> {
    blocks
        .iter()
        .map(|block| LocalBlockHash(block.content))
        .collect()
}

pub(crate) fn hashed(tokens: &[u32]) -> Vec<LocalBlockHash> {
    compute_block_hash_for_seq(tokens, BLOCK_TOKENS as u32, BlockHashOptions::default())
}

pub(crate) fn blocks(scores: OverlapScores) -> u64 {
    scores.scores.into_values().map(u64::from).sum()
}
