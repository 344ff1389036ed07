//! Lookups.

use super::{
    EndpointId,
    members::{Members, Owner},
    store::{Pin, Run, lane_of, lengths_of},
};
use crate::{events::Tier, keys::Key};

/// How much of a prompt an endpoint holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Whose cache it is.
    pub endpoint: EndpointId,
    /// Blocks of ours from the first one on without a hole: in `blocks[t]`, those that are on tier `t` or a nearer one.
    /// So they never fall: `blocks[0]` needs no load from elsewhere, `blocks[3]` counts every tier.
    pub blocks: [u32; 4],
}

impl Match {
    /// Blocks on any tier.
    pub fn total(&self) -> u32 {
        let [.., all] = self.blocks;
        all
    }

    /// Blocks that need `tier` and nothing farther.
    pub fn on(&self, tier: Tier) -> u32 {
        let at = |tier: usize| self.blocks.get(tier).copied().unwrap_or(0);
        let nearer = tier.index().checked_sub(1).map_or(0, at);
        at(tier.index()).saturating_sub(nearer)
    }

    /// Blocks, each worth what its tier is worth.
    pub fn weighted(&self, weights: &TierWeights) -> f64 {
        Tier::ALL
            .iter()
            .map(|tier| f64::from(self.on(*tier)) * weights.of(*tier))
            .sum()
    }
}

/// What a cached block is worth by where it is, 1 being a block on the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierWeights(pub [f64; 4]);

impl Default for TierWeights {
    /// Device 1 and host 0.8 as in llm-d; what must be read from farther is worth less.
    fn default() -> TierWeights {
        TierWeights([1.0, 0.8, 0.5, 0.4])
    }
}

impl TierWeights {
    /// The weight of a tier.
    pub fn of(&self, tier: Tier) -> f64 {
        self.0.get(tier.index()).copied().unwrap_or(0.0)
    }
}

/// Answer of a lookup; keep it for the next one, so that nothing is allocated.
#[derive(Clone, Debug, Default)]
pub struct Matches {
    found: Vec<Match>,
    /// Per lane, in engine blocks. All zero between lookups.
    lanes: Vec<[u32; 4]>,
    touched: Vec<u16>,
    /// Per slot of an endpoint: position in `found`, plus one. All zero between lookups.
    positions: Vec<u32>,
    tallies: Vec<Tally>,
}

/// What the lanes of one endpoint say.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    slot: u32,
    endpoint: EndpointId,
    groups: u32,
    seen: u32,
    /// The least over the groups of layers.
    told: [u32; 4],
    predicted: [u32; 4],
}

impl Matches {
    /// Nothing found yet.
    pub fn new() -> Matches {
        Matches::default()
    }

    /// Endpoints that hold at least the first block, in no particular order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Match> {
        self.found.iter()
    }

    /// Endpoints that hold at least the first block.
    pub fn len(&self) -> usize {
        self.found.len()
    }

    /// Whether nobody holds anything.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// What one endpoint holds. Walks over all of them.
    pub fn get(&self, endpoint: EndpointId) -> Option<&Match> {
        self.found.iter().find(|found| found.endpoint == endpoint)
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        self.found.clear();
    }

    /// Follows a chain: `key(i)` is the i-th of `count` keys.
    #[inline]
    pub(super) fn walk(&mut self, pin: &Pin<'_>, count: usize, key: impl Fn(usize) -> Option<u64>) {
        let mut depth = 0;
        while depth < count
            && let Some(head) = key(depth)
            && let Some(run) = pin.get(head)
        {
            let run: &Run = run.as_ref();
            let matched = agree(run, depth, count - depth, &key);
            if !self.credit(run, depth, matched) {
                return;
            }
            depth += matched;
        }
    }

    /// Adds what lanes hold of the first `matched` blocks of a run to those that hold everything before; false if no
    /// lane holds all of it.
    #[inline]
    fn credit(&mut self, run: &Run, depth: usize, matched: usize) -> bool {
        let (before, most) = (depth as u32, matched as u32);
        let mut all = 0;
        for word in run.holders().filter(|word| *word != 0) {
            let lane = usize::from(lane_of(word));
            let lengths = lengths_of(word).map(|length| u32::from(length).min(most));
            if self.lanes.len() <= lane {
                self.lanes.resize(lane + 1, [0; 4]);
            }
            let Some(known) = self.lanes.get_mut(lane) else {
                continue;
            };
            if before == 0 {
                // The farthest tier holds the most.
                if lengths[3] > 0 && *known == [0; 4] {
                    self.touched.push(lane as u16);
                }
                *known = lengths;
                all = all.max(lengths[3]);
                continue;
            }
            for (known, length) in known.iter_mut().zip(lengths) {
                if *known == before {
                    *known += length;
                    all = all.max(length);
                }
            }
        }
        all == most
    }

    /// Sums up the lanes that the walk touched, for engine blocks of `stride` of ours.
    #[inline]
    pub(super) fn settle(&mut self, members: &Members, stride: u32) {
        self.found.reserve(self.touched.len());
        for lane in self.touched.drain(..) {
            let Some(known) = self.lanes.get_mut(usize::from(lane)) else {
                continue;
            };
            let blocks = std::mem::take(known).map(|blocks| blocks.saturating_mul(stride));
            let Some(owner) = members.owner(lane) else {
                continue;
            };
            if owner.alone {
                self.found.push(Match {
                    endpoint: owner.endpoint,
                    blocks,
                });
                continue;
            }
            let (slot, Owner { predicted, .. }) = (owner.slot as usize, owner);
            if self.positions.len() <= slot {
                self.positions.resize(slot + 1, 0);
            }
            let Some(position) = self.positions.get_mut(slot) else {
                continue;
            };
            if *position == 0 {
                self.tallies.push(Tally {
                    slot: owner.slot,
                    endpoint: owner.endpoint,
                    groups: owner.groups,
                    ..Tally::default()
                });
                *position = self.tallies.len() as u32;
            }
            let Some(tally) = self.tallies.get_mut(*position as usize - 1) else {
                continue;
            };
            if predicted {
                // Before the engine's block size is known, picks are told in ours.
                most(&mut tally.predicted, blocks);
            } else if tally.seen == 0 {
                (tally.seen, tally.told) = (1, blocks);
            } else {
                tally.seen += 1;
                least(&mut tally.told, blocks);
            }
        }
    }

    /// Turns sums into the answer.
    #[inline]
    pub(super) fn finish(&mut self) {
        for tally in self.tallies.drain(..) {
            if let Some(position) = self.positions.get_mut(tally.slot as usize) {
                *position = 0;
            }
            // A group that was not seen holds nothing, and every group is needed.
            let mut blocks = if tally.seen >= tally.groups {
                tally.told
            } else {
                [0; 4]
            };
            most(&mut blocks, tally.predicted);
            if blocks[3] > 0 {
                self.found.push(Match {
                    endpoint: tally.endpoint,
                    blocks,
                });
            }
        }
    }
}

fn most(told: &mut [u32; 4], blocks: [u32; 4]) {
    for (told, blocks) in told.iter_mut().zip(blocks) {
        *told = (*told).max(blocks);
    }
}

fn least(told: &mut [u32; 4], blocks: [u32; 4]) {
    for (told, blocks) in told.iter_mut().zip(blocks) {
        *told = (*told).min(blocks);
    }
}

/// Blocks of a run that agree with the keys from `depth` on, at least the first. One equal key means that all before it
/// are equal, so the last one is asked first, then halves.
#[inline]
fn agree(run: &Run, depth: usize, rest: usize, key: &impl Fn(usize) -> Option<u64>) -> usize {
    let most = run.length().min(rest).max(1);
    let same = |at: usize| run.key(at).is_some() && run.key(at) == key(depth + at);
    if same(most - 1) {
        return most;
    }
    let (mut good, mut bad) = (1, most - 1);
    while good < bad {
        let middle = good + (bad - good) / 2;
        if same(middle) {
            good = middle + 1;
        } else {
            bad = middle;
        }
    }
    good
}

/// The key of our block that ends the i-th engine block.
#[inline]
pub(super) fn strided(keys: &[Key], stride: u32, tweak: u64) -> impl Fn(usize) -> Option<u64> {
    let stride = stride as usize;
    move |at| keys.get(at * stride + stride - 1).map(|key| key.0 ^ tweak)
}
