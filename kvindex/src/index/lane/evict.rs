//! Which blocks a lane gives up for room.

use std::collections::HashMap;

use super::{Ground, Lane};
use crate::{
    events::Tier,
    index::{blocks::Home, holdings::Holding, parts::Parts},
};

impl Lane {
    /// Gives up blocks until `most` are left, or a little fewer: tails of the least recent chains first.
    ///
    /// Returns how many were given up.
    pub(crate) fn evict(&mut self, ground: Ground<'_>, most: usize) -> usize {
        let before = self.len();
        if before <= most {
            return 0;
        }
        // One pass over all names is worth it for many blocks at once.
        let cuts = self.cuts(before - (most - most / 8));
        let stays = |home: Home| {
            cuts.get(&home.holding)
                .is_none_or(|cut| usize::from(home.at) < *cut)
        };
        if let Some(parts) = &mut self.parts {
            parts.retain(ground, &mut self.holdings, stays);
            if self.len() > most {
                // What is left is no whole block of ours.
                self.clear(ground.store);
            }
            return before - self.len();
        }
        for blocks in self.tiers.iter_mut().filter(|blocks| blocks.len() > 0) {
            blocks.retain(|_, home| stays(home));
        }
        let mut cuts: Vec<(u32, usize)> = cuts.into_iter().collect();
        cuts.sort_unstable();
        for (index, cut) in cuts {
            for tier in Tier::ALL {
                let end = self.holdings.get(index).map_or(0, Holding::end);
                if end > cut {
                    self.release(ground, index, cut, end, tier);
                }
            }
        }
        before - self.len()
    }

    /// Where to cut parts of chains so that at least `excess` blocks are cut off.
    fn cuts(&self, mut excess: usize) -> HashMap<u32, usize> {
        let now = self.stamp();
        let each = self.parts.as_ref().map_or(1, Parts::whole);
        // What others stand on goes when they do, and the rest of a part by its own use.
        let ages = |(index, holding): (u32, &Holding)| {
            let own = now.wrapping_sub(holding.stamp);
            let root = now.wrapping_sub(holding.root_stamp).min(own);
            let rooted = u32::from(holding.rooted);
            [
                (own, holding.depth + rooted, index, rooted),
                (root, holding.depth, index, 0),
            ]
        };
        let mut order: Vec<(u32, u32, u32, u32)> = self.holdings.iter().flat_map(ages).collect();
        order.sort_unstable_by(|a, b| b.cmp(a));
        let mut cuts = HashMap::new();
        for (_, _, index, floor) in order {
            let Some(holding) = self.holdings.get(index).filter(|_| excess > 0) else {
                break;
            };
            let cut = cuts.entry(index).or_insert_with(|| holding.end());
            while *cut > floor as usize && excess > 0 {
                *cut -= 1;
                let held = Tier::ALL.iter().filter(|tier| holding.has(*cut, **tier));
                excess = excess.saturating_sub(held.count() * each);
            }
        }
        cuts
    }
}
