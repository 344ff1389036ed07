//! Writing.

use std::collections::HashMap;

use super::{EndpointSnapshot, NO_PARENT};
use crate::{
    events::{EngineHash, Tier},
    index::{EndpointId, Index, lane::Lane, store::Store},
};

/// A block as it is written: position, tier, copies, name.
type Block = (u16, Tier, u32, EngineHash);

/// A group of layers as it is at one moment, before it is put into order.
struct Copied {
    group: u32,
    block_size: u32,
    parts: Vec<Part>,
    /// Each with the run that it is in.
    blocks: Vec<(u32, Block)>,
}

/// A run, as far as it is held.
struct Part {
    depth: u32,
    run: u32,
    /// The run that it continues.
    parent: Option<u32>,
    keys: Vec<u64>,
}

impl Index {
    /// What events told of an endpoint; `None` when it is not known, has told nothing, or cannot be told as a whole
    /// (an engine block of it is less than one of ours).
    ///
    /// Its own events wait while it is copied; lookups and other endpoints do not.
    pub fn export(&self, id: EndpointId) -> Option<EndpointSnapshot> {
        let member = self.members.get(id)?;
        let (mut snapshot, copied) = {
            let told = member.told.lock();
            let last = told.sequence?;
            if !told.lanes.iter().all(|(_, lane)| lane.whole()) {
                return None;
            }
            let lanes = told.lanes.iter();
            let copied = lanes.map(|(group, lane)| copy(&self.store, *group, lane));
            let copied: Vec<Copied> = copied.collect();
            let snapshot = EndpointSnapshot {
                last,
                published: told.published,
                since: told.since.unwrap_or(last.saturating_add(1)),
                blocks: Vec::new(),
            };
            (snapshot, copied)
        };
        let out = &mut snapshot.blocks;
        out.extend((copied.len() as u32).to_le_bytes());
        for group in copied {
            write(group, out);
        }
        Some(snapshot)
    }
}

/// Copies what a lane holds, while its endpoint is locked.
fn copy(store: &Store, group: u32, lane: &Lane) -> Copied {
    let blocks = lane.blocks();
    let blocks = blocks.map(|(hash, spot, tier, copies)| (spot.run, (spot.at, tier, copies, hash)));
    let parts = lane.holdings.iter().filter_map(|(_, holding)| {
        let run = store.lock(holding.run)?;
        Some(Part {
            depth: holding.depth,
            run: holding.run,
            parent: run.continued(),
            // What is beyond the last block that the lane holds is not its own to tell.
            keys: run.keys(holding.end()),
        })
    });
    Copied {
        group,
        block_size: lane.block_size,
        parts: parts.collect(),
        blocks: blocks.collect(),
    }
}

fn write(mut copied: Copied, out: &mut Vec<u8>) {
    out.extend(copied.group.to_le_bytes());
    out.extend(copied.block_size.to_le_bytes());
    copied
        .parts
        .sort_unstable_by_key(|part| (part.depth, part.run));
    copied.blocks.sort_unstable();
    let mut written: HashMap<u32, (u32, u32)> = HashMap::new();
    let start = out.len();
    out.extend(0u32.to_le_bytes());
    for own in &copied.parts {
        let parent = match own.parent {
            None => NO_PARENT,
            Some(parent) => match written.get(&parent) {
                Some((position, end)) if *end >= own.depth => *position,
                _ => continue,
            },
        };
        if parent == NO_PARENT && own.depth > 0 {
            continue;
        }
        let position = written.len() as u32;
        written.insert(own.run, (position, own.depth + own.keys.len() as u32));
        let from = copied.blocks.partition_point(|(run, _)| *run < own.run);
        let here = copied.blocks.get(from..).unwrap_or_default();
        let here = here.iter().take_while(|(run, _)| *run == own.run);
        part(
            own,
            parent,
            here.clone().count(),
            here.map(|(_, block)| block),
            out,
        );
    }
    if let Some(count) = out.get_mut(start..start + 4) {
        count.copy_from_slice(&(written.len() as u32).to_le_bytes());
    }
}

fn part<'a>(
    own: &Part,
    parent: u32,
    count: usize,
    blocks: impl Iterator<Item = &'a Block>,
    out: &mut Vec<u8>,
) {
    out.extend(own.depth.to_le_bytes());
    out.extend(parent.to_le_bytes());
    out.extend((own.keys.len() as u16).to_le_bytes());
    own.keys
        .iter()
        .for_each(|key| out.extend(key.to_le_bytes()));
    out.extend((count as u32).to_le_bytes());
    for (at, tier, copies, hash) in blocks {
        out.extend(at.to_le_bytes());
        out.push(tier.index() as u8);
        out.extend(copies.to_le_bytes());
        out.extend(hash.0.to_le_bytes());
    }
}
