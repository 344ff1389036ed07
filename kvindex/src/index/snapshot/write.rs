//! Writing.

use std::collections::HashMap;

use super::{MAGIC, NO_PARENT, VERSION};
use crate::{
    events::{EngineHash, Tier},
    index::{Index, lane::Lane, member::Told, store::Store},
};

/// A block as it is written: position, tier, copies, name.
type Block = (u16, Tier, u32, EngineHash);

impl Index {
    /// The whole index as bytes; each endpoint as it is at one moment.
    pub fn export(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_le_bytes());
        out.extend(self.config.keys.block().to_le_bytes());
        out.extend(self.config.keys.seed().to_le_bytes());
        let members = self.members.all();
        out.extend((members.len() as u32).to_le_bytes());
        for member in members {
            out.extend(member.id.incarnation.to_le_bytes());
            out.extend(member.id.rank.to_le_bytes());
            endpoint(&self.store, &member.told.lock(), &mut out);
        }
        out
    }
}

fn endpoint(store: &Store, told: &Told, out: &mut Vec<u8>) {
    let next = told.sequence.and_then(|last| last.checked_add(1));
    out.extend(next.unwrap_or(0).to_le_bytes());
    let lanes = told.lanes.iter().filter(|(_, lane)| lane.whole());
    out.extend((lanes.clone().count() as u32).to_le_bytes());
    for (group, lane) in lanes {
        out.extend(group.to_le_bytes());
        out.extend(lane.block_size.to_le_bytes());
        parts(store, lane, out);
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
