//! What a lane does with removed blocks.

use super::{Applied, Ground, Lane};
use crate::{
    events::{EngineHash, Tier},
    index::{
        blocks::{Blocks, Dropped, FETCH, Home},
        store::Spot,
    },
};

impl Lane {
    /// Forgets one copy of each block. Where whole blocks of ours were whose last copy went is put into `gone`.
    pub(crate) fn remove(
        &mut self,
        ground: Ground<'_>,
        hashes: &[EngineHash],
        tier: Tier,
        applied: &mut Applied,
        mut gone: Option<&mut Vec<Spot>>,
    ) {
        applied.removed += hashes.len() as u64;
        if let Some(parts) = &mut self.parts {
            for hash in hashes {
                if !parts.remove(ground, &mut self.holdings, *hash, tier) {
                    let orphan = self.orphans.remove(*hash, tier);
                    applied.unknown += u64::from(orphan == Dropped::Unknown);
                }
            }
            return;
        }
        Blocks::fetch_lines(hashes);
        let mut pending = None;
        for hashes in hashes.chunks(FETCH) {
            if let Some(blocks) = self.tiers.get(tier.index()) {
                blocks.fetch(hashes);
            }
            for hash in hashes {
                let Some(home) = self.drop_copy(*hash, tier, applied) else {
                    continue;
                };
                if let Some(gone) = &mut gone {
                    gone.extend(self.spot(home));
                }
                pending = self.joined(ground, pending, home, tier);
            }
        }
        if let Some((holding, from, to)) = pending {
            self.release(ground, holding, from, to, tier);
        }
    }

    /// Forgets one copy; the home, if it was the last.
    #[inline]
    fn drop_copy(&mut self, hash: EngineHash, tier: Tier, applied: &mut Applied) -> Option<Home> {
        match self.tiers.get_mut(tier.index())?.remove(hash) {
            Dropped::Gone(home) => Some(home),
            Dropped::Fewer => None,
            Dropped::Unknown => {
                let orphan = self.orphans.remove(hash, tier);
                applied.unknown += u64::from(orphan == Dropped::Unknown);
                None
            }
        }
    }

    /// Engines evict from the tail, in one event or many: neighbours are released together.
    #[inline]
    fn joined(
        &mut self,
        ground: Ground<'_>,
        pending: Option<(u32, usize, usize)>,
        home: Home,
        tier: Tier,
    ) -> Option<(u32, usize, usize)> {
        let at = usize::from(home.at);
        match pending {
            Some((holding, from, to)) if holding == home.holding && at + 1 == from => {
                return Some((holding, at, to));
            }
            Some((holding, from, to)) if holding == home.holding && at == to => {
                return Some((holding, from, at + 1));
            }
            Some((holding, from, to)) => self.release(ground, holding, from, to, tier),
            None => {}
        }
        Some((home.holding, at, at + 1))
    }

    pub(super) fn release(
        &mut self,
        ground: Ground<'_>,
        holding: u32,
        from: usize,
        to: usize,
        tier: Tier,
    ) {
        let run = self
            .holdings
            .get(holding)
            .and_then(|holding| ground.store.lock(holding.run));
        if let Some(run) = run {
            self.holdings.release(holding, run, from, to, tier);
        }
    }
}
