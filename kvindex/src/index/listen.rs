//! Endpoints come, tell what they cache, and go.

use std::sync::atomic::Ordering;

use super::{
    EndpointId, Index,
    blocks::Blocks,
    lane::{Applied, Ground, Lane},
    member::{Member, Told},
};
use crate::{
    events::{Batch, EngineHash, Event, GroupKind, Removed, Stored, Tier},
    keys::Key,
};

use super::store::Spot;

/// So many names that they fit into a lane that is full.
const MOST_IN_EVENT: usize = Blocks::MOST / 4;

/// Stored blocks whose keys are known: see [`Index::store_keyed`].
#[derive(Clone, Copy, Debug)]
pub struct Keyed<'a> {
    /// Block before the first one; `None` at the start of a prompt.
    pub parent: Option<EngineHash>,
    /// Names that the engine gives to the blocks.
    pub hashes: &'a [EngineHash],
    /// Their keys, as many.
    pub keys: &'a [Key],
    /// Where they are.
    pub tier: Tier,
}

impl Index {
    /// Begins to listen to an endpoint that serves `model`; false if it is known already.
    pub fn register(&self, id: EndpointId, model: &str) -> bool {
        self.members.add(id, |slot| Member::new(id, slot, model))
    }

    /// Whether an endpoint is known.
    pub fn contains(&self, id: EndpointId) -> bool {
        self.members.get(id).is_some()
    }

    /// The model that an endpoint's requests name when they use no adapter.
    pub fn model(&self, id: EndpointId) -> Option<Box<str>> {
        Some(self.members.get(id)?.model.clone())
    }

    /// Number of the first message that counts in what an endpoint told; `None` when nothing does.
    pub fn since(&self, id: EndpointId) -> Option<u64> {
        self.members.get(id)?.told.lock().since
    }

    /// Forgets an endpoint; what comes for it later is ignored. False if it is not known.
    pub fn remove(&self, id: EndpointId) -> bool {
        let Some(member) = self.members.take(id) else {
            return false;
        };
        {
            let mut told = member.told.lock();
            told.dead = true;
            for (_, mut lane) in told.lanes.drain(..) {
                lane.clear(&self.store);
                self.members.free_lane(lane.holdings.lane());
            }
        }
        let mut promised = member.promised.lock();
        promised.dead = true;
        if let Some(mut predictions) = promised.predictions.take() {
            predictions.clear(&self.store);
            self.members.free_lane(predictions.lane());
        }
        self.weigh(&member.told_bytes, 0);
        self.weigh(&member.promised_bytes, 0);
        self.members.free_seat(member.slot);
        true
    }

    /// Forgets what an endpoint holds, predictions included, and goes on listening to it.
    pub fn clear(&self, id: EndpointId) -> bool {
        let Some(member) = self.members.get(id) else {
            return false;
        };
        let mut told = member.told.lock();
        self.clear_told(&mut told);
        told.since = None;
        told.totals.cleared += 1;
        self.count_told(&member, &told);
        self.clear_promised(&member);
        true
    }

    pub(super) fn clear_told(&self, told: &mut Told) {
        for (_, lane) in &mut told.lanes {
            lane.clear(&self.store);
        }
    }

    fn clear_promised(&self, member: &Member) {
        let mut promised = member.promised.lock();
        if let Some(predictions) = &mut promised.predictions {
            predictions.clear(&self.store);
            self.count_promised(member, &promised);
        }
    }

    pub(super) fn ground<'a>(&'a self, member: &'a Member) -> Ground<'a> {
        Ground {
            store: &self.store,
            space: &self.config.keys,
            model: &member.model,
            orphan_bytes: self.config.max_orphan_bytes,
        }
    }

    /// Applies what an engine says; `None` if the endpoint is not known, or not any more.
    ///
    /// Which batches to apply is the matter of a [`crate::cursor::Cursor`].
    pub fn apply(&self, id: EndpointId, batch: &Batch) -> Option<Applied> {
        let member = self.members.get(id)?;
        let mut applied = Applied::default();
        {
            let mut told = member.told.lock();
            if told.dead {
                return None;
            }
            for event in &batch.events {
                match event {
                    Event::Stored(stored) => self.stored(&member, &mut told, stored, &mut applied),
                    Event::Removed(removed) => {
                        self.removed(&member, &mut told, removed, &mut applied)
                    }
                    Event::Cleared => {
                        self.clear_told(&mut told);
                        self.clear_promised(&member);
                        applied.cleared += 1;
                    }
                }
            }
            if let Some(sequence) = batch.sequence {
                told.sequence = Some(sequence);
                told.published = batch.published;
                told.since = told.since.or(Some(sequence));
            }
            self.settle(&member, &mut told, &mut applied);
        }
        self.make_room();
        Some(applied)
    }

    /// After a change by events: bounds and gauges.
    fn settle(&self, member: &Member, told: &mut Told, applied: &mut Applied) {
        told.totals.add(applied);
        self.count_told(member, told);
    }

    fn stored(&self, member: &Member, told: &mut Told, stored: &Stored, applied: &mut Applied) {
        let full = stored.kind == GroupKind::Full && stored.hashes.len() <= MOST_IN_EVENT;
        let Some(lane) = full.then(|| self.lane(member, told, stored)).flatten() else {
            applied.unsupported += stored.hashes.len() as u64;
            return;
        };
        lane.store(self.ground(member), stored, applied);
        applied.evicted += lane.evict(self.ground(member), self.config.max_blocks) as u64;
    }

    /// The lane of a group, made by its first blocks; a new block size begins it anew.
    pub(super) fn lane<'t>(
        &self,
        member: &Member,
        told: &'t mut Told,
        stored: &Stored,
    ) -> Option<&'t mut Lane> {
        let known = told
            .lanes
            .iter()
            .position(|(group, _)| *group == stored.group);
        let number = match known.and_then(|known| told.lanes.get_mut(known)) {
            Some((_, lane)) if lane.block_size == stored.block_size || stored.tokens.is_empty() => {
                return told.lanes.get_mut(known?).map(|(_, lane)| lane);
            }
            Some((_, lane)) => {
                lane.clear(&self.store);
                lane.holdings.lane()
            }
            None => {
                // Not before it is clear that the size fits.
                Lane::new(0, stored.block_size, &self.config.keys)?;
                self.members.lane(member.slot, false)?
            }
        };
        let lane = Lane::new(number, stored.block_size, &self.config.keys)?;
        let stride = lane.stride();
        member.stride.store(stride, Ordering::Relaxed);
        self.strides.fetch_or(1 << (stride - 1), Ordering::Release);
        let place = known.unwrap_or(told.lanes.len());
        match told.lanes.get_mut(place) {
            Some((_, known)) => *known = lane,
            None => told.lanes.push((stored.group, lane)),
        }
        told.lanes.get_mut(place).map(|(_, lane)| lane)
    }

    /// Applies stored blocks whose keys the caller knows, of our block size and of the first group of layers: what a
    /// simulator has instead of events. Blocks after a parent that is not known are left out.
    pub fn store_keyed(&self, id: EndpointId, stored: &Keyed<'_>) -> Option<Applied> {
        let member = self.members.get(id)?;
        let mut applied = Applied::default();
        if stored.hashes.len() > MOST_IN_EVENT || stored.hashes.len() != stored.keys.len() {
            return None;
        }
        {
            let mut told = member.told.lock();
            if told.dead {
                return None;
            }
            let like = Stored {
                block_size: self.config.keys.block(),
                ..Stored::default()
            };
            let lane = self.lane(&member, &mut told, &like)?;
            let blocks = (stored.hashes, stored.keys);
            let ground = self.ground(&member);
            lane.store_keyed(ground, stored.parent, blocks, stored.tier, &mut applied);
            applied.evicted += lane.evict(ground, self.config.max_blocks) as u64;
            self.settle(&member, &mut told, &mut applied);
        }
        self.make_room();
        Some(applied)
    }

    /// Applies removed blocks of the first group of layers, without an event around them.
    pub fn remove_keyed(
        &self,
        id: EndpointId,
        hashes: &[EngineHash],
        tier: Tier,
    ) -> Option<Applied> {
        let member = self.members.get(id)?;
        let mut applied = Applied::default();
        let mut told = member.told.lock();
        if let Some((_, lane)) = told.lanes.iter_mut().find(|(group, _)| *group == 0) {
            let mut gone = self.promises(&member, tier);
            lane.remove(
                self.ground(&member),
                hashes,
                tier,
                &mut applied,
                gone.as_mut(),
            );
            self.broken(&member, gone);
        }
        self.settle(&member, &mut told, &mut applied);
        Some(applied)
    }

    fn removed(&self, member: &Member, told: &mut Told, removed: &Removed, applied: &mut Applied) {
        let lane = told
            .lanes
            .iter_mut()
            .find(|(group, _)| *group == removed.group);
        match lane {
            Some((_, lane)) => {
                let mut gone = self.promises(member, removed.tier);
                let ground = self.ground(member);
                lane.remove(
                    ground,
                    &removed.hashes,
                    removed.tier,
                    applied,
                    gone.as_mut(),
                );
                self.broken(member, gone);
            }
            None => applied.unknown += removed.hashes.len() as u64,
        }
    }

    /// Room for blocks that may be promised; `None` where none are.
    fn promises(&self, member: &Member, tier: Tier) -> Option<Vec<Spot>> {
        let some = member.predicted.load(Ordering::Relaxed) > 0 && tier == Tier::Device;
        some.then(Vec::new)
    }

    /// An engine that gives up what was just promised has no room for the other promises either: it tells what it
    /// computes.
    fn broken(&self, member: &Member, gone: Option<Vec<Spot>>) {
        let Some(gone) = gone.filter(|gone| !gone.is_empty()) else {
            return;
        };
        let mut promised = member.promised.lock();
        if let Some(predictions) = &mut promised.predictions
            && gone.iter().any(|spot| predictions.has(*spot))
        {
            predictions.clear(&self.store);
            self.count_promised(member, &promised);
        }
    }

    /// Copies of each block that an endpoint has told of, by its own names, for one group of layers: what an operator
    /// compares with the engine. In no particular order.
    pub fn copies(&self, id: EndpointId, group: u32) -> Vec<(EngineHash, Tier, u32)> {
        let Some(member) = self.members.get(id) else {
            return Vec::new();
        };
        let told = member.told.lock();
        let lane = told.lanes.iter().find(|(known, _)| *known == group);
        let blocks = lane.into_iter().flat_map(|(_, lane)| lane.blocks());
        blocks
            .map(|(hash, _, tier, copies)| (hash, tier, copies))
            .collect()
    }

    /// What events of an endpoint did so far.
    pub fn totals(&self, id: EndpointId) -> Option<Applied> {
        Some(self.members.get(id)?.told.lock().totals)
    }
}
