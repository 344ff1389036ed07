//! Writing.

use std::collections::HashMap;

use super::{EndpointSnapshot, NO_PARENT};
use crate::{
    events::{EngineHash, Tier},
    index::{EndpointId, Index, lane::Lane, store::Store},
};

/// A block as it is written: position, tier, copies, name.
type Block = (u16, Tier, u32, EngineHash);

impl Index {
    /// What events told of an endpoint; `None` when it is not known, has told nothing, or cannot be told as a whole
    /// (an engine block of it is less than one of ours).
    ///
    /// Its own events wait meanwhile; lookups and other endpoints do not.
    pub fn export(&self, id: EndpointId) -> Option<EndpointSnapshot> {
        let member = self.members.get(id)?;
        let told = member.told.lock();
        let last = told.sequence?;
        if !told.lanes.iter().all(|(_, lane)| lane.whole()) {
            return None;
        }
        let mut blocks = Vec::new();
        blocks.extend((told.lanes.len() as u32).to_le_bytes());
        for (group, lane) in &told.lanes {
            blocks.extend(group.to_le_bytes());
            blocks.extend(lane.block_size.to_le_bytes());
            parts(&self.store, lane, &mut blocks);
        }
        Some(EndpointSnapshot {
            last,
            published: told.published,
            since: told.since.unwrap_or(last.saturating_add(1)),
            blocks,
        })
    }
}

fn parts(store: &Store, lane: &Lane, out: &mut Vec<u8>) {
    let mut blocks: HashMap<u32, Vec<Block>> = HashMap::new();
    for (hash, spot, tier, copies) in lane.blocks() {
        let here = blocks.entry(spot.run).or_default();
        here.push((spot.at, tier, copies, hash));
    }
    let mut parts: Vec<_> = lane.holdings.iter().map(|(_, holding)| holding).collect();
    parts.sort_unstable_by_key(|holding| (holding.depth, holding.run));
    let mut written: HashMap<u32, (u32, u32)> = HashMap::new();
    let start = out.len();
    out.extend(0u32.to_le_bytes());
    for holding in parts {
        let Some(run) = store.lock(holding.run) else {
            continue;
        };
        let parent = match run.continued() {
            None => NO_PARENT,
            Some(parent) => match written.get(&parent) {
                Some((position, end)) if *end >= holding.depth => *position,
                _ => continue,
            },
        };
        if parent == NO_PARENT && holding.depth > 0 {
            continue;
        }
        // What is beyond the last block that the lane holds is not its own to tell.
        let keys = run.keys(holding.end());
        let position = written.len() as u32;
        written.insert(holding.run, (position, holding.depth + keys.len() as u32));
        let mut here = blocks.remove(&holding.run).unwrap_or_default();
        here.sort_unstable();
        part(holding.depth, parent, &keys, &here, out);
    }
    if let Some(count) = out.get_mut(start..start + 4) {
        count.copy_from_slice(&(written.len() as u32).to_le_bytes());
    }
}

fn part(depth: u32, parent: u32, keys: &[u64], blocks: &[Block], out: &mut Vec<u8>) {
    out.extend(depth.to_le_bytes());
    out.extend(parent.to_le_bytes());
    out.extend((keys.len() as u16).to_le_bytes());
    keys.iter().for_each(|key| out.extend(key.to_le_bytes()));
    out.extend((blocks.len() as u32).to_le_bytes());
    for (at, tier, copies, hash) in blocks {
        out.extend(at.to_le_bytes());
        out.push(tier.index() as u8);
        out.extend(copies.to_le_bytes());
        out.extend(hash.0.to_le_bytes());
    }
}
