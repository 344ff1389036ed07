//! What one lane holds, by run.

use std::{collections::HashMap, hash::BuildHasherDefault};

use super::{
    mixer::Mixer,
    shape::Shape,
    store::{Locked, Store},
};
use crate::events::Tier;

/// A lane's part of one run.
#[derive(Clone, Debug)]
pub(crate) struct Holding {
    pub(crate) run: u32,
    /// The run before it in its chain, if it is still that one; a hint.
    pub(crate) parent: u32,
    /// Blocks before the run in its chain.
    pub(crate) depth: u32,
    /// When it was last of use: the least recent go first.
    pub(crate) stamp: u32,
    /// When what stands on its first `rooted` blocks was last of use.
    pub(crate) root_stamp: u32,
    pub(crate) rooted: u16,
    slot: u16,
    /// Without a shape: the first blocks, on the device.
    end: u16,
    shape: Option<Box<Shape>>,
}

impl Holding {
    /// Blocks held, each tier counted.
    pub(crate) fn count(&self) -> usize {
        self.shape
            .as_ref()
            .map_or(usize::from(self.end), |shape| shape.count())
    }

    /// Whether the run may be left.
    fn empty(&self) -> bool {
        self.count() == 0 && self.shape.as_ref().is_none_or(|shape| shape.pins == 0)
    }

    /// Highest block held, plus one.
    pub(crate) fn end(&self) -> usize {
        self.shape
            .as_ref()
            .map_or(usize::from(self.end), |shape| shape.end())
    }

    /// Whether a block is held on a tier.
    pub(crate) fn has(&self, at: usize, tier: Tier) -> bool {
        match &self.shape {
            Some(shape) => shape.has(at, tier),
            None => tier == Tier::Device && at < usize::from(self.end),
        }
    }
}

/// All parts that one lane holds. Every block held is counted in the words of the runs.
#[derive(Debug)]
pub(crate) struct Holdings {
    lane: u16,
    list: Vec<Holding>,
    /// Positions in the list that are not in use.
    idle: Vec<u32>,
    by_run: HashMap<u32, u32, BuildHasherDefault<Mixer>>,
    shapes: usize,
}

impl Holdings {
    pub(crate) fn new(lane: u16) -> Holdings {
        Holdings {
            lane,
            list: Vec::new(),
            idle: Vec::new(),
            by_run: HashMap::default(),
            shapes: 0,
        }
    }

    pub(crate) fn lane(&self) -> u16 {
        self.lane
    }

    pub(crate) fn bytes(&self) -> usize {
        self.list.capacity() * size_of::<Holding>()
            + self.idle.capacity() * 4
            + self.by_run.capacity() * 10
            + self.shapes
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Holding> {
        self.list.get(index as usize)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Holding> {
        self.list.get_mut(index as usize)
    }

    /// The part of a run.
    pub(crate) fn of_run(&self, run: u32) -> Option<u32> {
        self.by_run.get(&run).copied()
    }

    /// The parts in use, with their positions.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Holding)> {
        let used = |(index, holding): &(usize, &Holding)| {
            self.by_run.get(&holding.run) == Some(&(*index as u32))
        };
        self.list
            .iter()
            .enumerate()
            .filter(used)
            .map(|(index, holding)| (index as u32, holding))
    }

    /// The lane's part of a run, empty if it is new; `None` when the run can take no more lanes.
    pub(crate) fn enter(&mut self, run: &mut Locked<'_>) -> Option<u32> {
        if let Some(index) = self.of_run(run.id) {
            if let Some(holding) = self.get_mut(index) {
                holding.parent = run.parent();
            }
            return Some(index);
        }
        let holding = Holding {
            run: run.id,
            parent: run.parent(),
            depth: run.depth(),
            stamp: 0,
            root_stamp: 0,
            rooted: 0,
            slot: run.join(self.lane)?,
            end: 0,
            shape: None,
        };
        let index = match self.idle.pop() {
            Some(index) => {
                *self.list.get_mut(index as usize)? = holding;
                index
            }
            None => {
                let index = u32::try_from(self.list.len()).ok()?;
                self.list.push(holding);
                index
            }
        };
        self.by_run.insert(run.id, index);
        Some(index)
    }

    /// Holds the blocks `from..to` on a tier.
    #[inline]
    pub(crate) fn hold(
        &mut self,
        index: u32,
        run: &mut Locked<'_>,
        from: usize,
        to: usize,
        tier: Tier,
    ) {
        let lane = self.lane;
        let Some(holding) = self.get_mut(index) else {
            return;
        };
        let end = usize::from(holding.end);
        if holding.shape.is_none() && tier == Tier::Device && from <= end {
            holding.end = end.max(to) as u16;
            run.hold(lane, holding.slot, [holding.end; 4], end);
            return;
        }
        self.reshape(index, run, |shape| shape.set(from, to, tier, true));
    }

    /// Holds the blocks `from..to` on a tier no more. A run of which nothing is held is left.
    pub(crate) fn release(
        &mut self,
        index: u32,
        mut run: Locked<'_>,
        from: usize,
        to: usize,
        tier: Tier,
    ) {
        let lane = self.lane;
        let Some(holding) = self.get_mut(index) else {
            return;
        };
        let end = usize::from(holding.end);
        if holding.shape.is_none() && tier == Tier::Device && to >= end {
            holding.end = end.min(from) as u16;
            if holding.end > 0 {
                run.hold(lane, holding.slot, [holding.end; 4], end);
            }
        } else {
            self.reshape(index, &mut run, |shape| shape.set(from, to, tier, false));
        }
        if self.get(index).is_some_and(Holding::empty) {
            self.leave(index, run);
        }
    }

    /// Keeps a block's home although it may not be held.
    pub(crate) fn pin(&mut self, index: u32, run: &mut Locked<'_>) {
        self.reshape(index, run, |shape| shape.pins += 1);
    }

    /// Ends a [`Holdings::pin`].
    pub(crate) fn unpin(&mut self, index: u32, mut run: Locked<'_>) {
        self.reshape(index, &mut run, |shape| {
            shape.pins = shape.pins.saturating_sub(1)
        });
        if self.get(index).is_some_and(Holding::empty) {
            self.leave(index, run);
        }
    }

    fn reshape(&mut self, index: u32, run: &mut Locked<'_>, change: impl FnOnce(&mut Shape)) {
        let lane = self.lane;
        let Some(holding) = self.list.get_mut(index as usize) else {
            return;
        };
        let before = usize::from(holding.end);
        let mut shape = match holding.shape.take() {
            Some(shape) => {
                self.shapes = self.shapes.saturating_sub(shape.bytes());
                shape
            }
            None => {
                run.uneven(true);
                Box::new(Shape::even(before))
            }
        };
        change(&mut shape);
        let lengths = shape.lengths();
        match shape.evened() {
            Some(length) => {
                run.uneven(false);
                holding.end = length as u16;
            }
            None => {
                self.shapes += shape.bytes();
                holding.end = 0;
                holding.shape = Some(shape);
            }
        }
        run.hold(lane, holding.slot, lengths, before);
    }

    fn leave(&mut self, index: u32, mut run: Locked<'_>) {
        let Some(holding) = self.list.get_mut(index as usize) else {
            return;
        };
        if let Some(shape) = holding.shape.take() {
            run.uneven(false);
            self.shapes = self.shapes.saturating_sub(shape.bytes());
        }
        holding.end = 0;
        self.by_run.remove(&holding.run);
        run.leave(holding.slot);
        self.idle.push(index);
        if self.by_run.is_empty() {
            *self = Holdings::new(self.lane);
        }
    }

    /// Leaves every run.
    pub(crate) fn clear(&mut self, store: &Store) {
        let held: Vec<(u32, u32)> = self
            .iter()
            .map(|(index, holding)| (index, holding.run))
            .collect();
        for (index, run) in held {
            if let Some(run) = store.lock(run) {
                self.leave(index, run);
            }
        }
        *self = Holdings::new(self.lane);
    }
}
