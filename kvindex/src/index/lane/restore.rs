//! A lane as a snapshot tells it.

use std::collections::HashMap;

use super::{Ground, Lane};
use crate::{
    events::{EngineHash, Tier},
    index::{
        blocks::{Added, Home},
        store::{MAX_RUN, Spot},
    },
};

/// Consecutive blocks of a chain, and what the lane holds of them.
pub(crate) struct Piece {
    /// Blocks before it in its chain.
    pub(crate) depth: u32,
    /// An earlier piece and the block in it that this one follows.
    pub(crate) parent: Option<(usize, u16)>,
    pub(crate) keys: Vec<u64>,
    pub(crate) blocks: Vec<PieceBlock>,
}

pub(crate) struct PieceBlock {
    pub(crate) at: u16,
    pub(crate) tier: Tier,
    pub(crate) copies: u32,
    pub(crate) hash: EngineHash,
}

impl Lane {
    /// Takes in pieces, each after the one that it follows.
    pub(crate) fn restore(&mut self, ground: Ground<'_>, pieces: &[Piece]) {
        let mut homes: Vec<HashMap<u16, Spot>> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let before = piece
                .parent
                .map(|(before, at)| homes.get(before)?.get(&at).copied());
            homes.push(match before {
                None => self.restore_piece(ground, None, piece),
                Some(Some(spot)) => self.restore_piece(ground, Some(spot), piece),
                // Behind a hole: its home cannot be found.
                Some(None) => HashMap::new(),
            });
        }
    }

    fn restore_piece(
        &mut self,
        ground: Ground<'_>,
        parent: Option<Spot>,
        piece: &Piece,
    ) -> HashMap<u16, Spot> {
        let mut homes = HashMap::new();
        let mut entered = Vec::new();
        let (holdings, tiers, moved) = (&mut self.holdings, &mut self.tiers, &mut self.moved);
        ground.store.place(parent, &piece.keys, |run, span| {
            let Some(holding) = holdings.enter(run) else {
                return;
            };
            entered.push(holding);
            let span_of = span.from..span.from + span.count;
            let blocks = piece
                .blocks
                .iter()
                .filter(|block| span_of.contains(&usize::from(block.at)));
            for block in blocks {
                let at = span.at + usize::from(block.at) - span.from;
                let home = Home {
                    holding,
                    at: at as u16,
                };
                let Some(names) = tiers.get_mut(block.tier.index()) else {
                    continue;
                };
                if let Added::Instead(old) = names.add_copies(block.hash, home, block.copies) {
                    moved.push((old, block.tier));
                }
                holdings.hold(holding, run, at, at + 1, block.tier);
                homes.insert(
                    block.at,
                    Spot {
                        run: run.id,
                        at: at as u16,
                    },
                );
            }
        });
        for (old, tier) in std::mem::take(&mut self.moved) {
            let at = usize::from(old.at);
            self.release(ground, old.holding, at, at + 1, tier);
        }
        // A stretch of which nothing is held was only passed through.
        for holding in entered {
            self.release(ground, holding, MAX_RUN, MAX_RUN, Tier::Device);
        }
        homes
    }
}
