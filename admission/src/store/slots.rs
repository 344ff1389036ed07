//! Values under small stable numbers.

use std::ops::{Index, IndexMut};

/// A store that hands out a slot per value and uses free slots again.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    cells: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots {
            cells: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slots<T> {
    pub(crate) fn len(&self) -> usize {
        self.cells.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(slot) = self.free.pop()
            && let Some(cell) = self.cells.get_mut(slot as usize)
        {
            *cell = Some(value);
            return slot;
        }
        self.cells.push(Some(value));
        // Limits keep the number of waiting requests far below 2^32.
        u32::try_from(self.cells.len() - 1).unwrap_or(super::NIL)
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<T> {
        let value = self.cells.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let cells = (0_u32..).zip(&self.cells);
        cells.filter_map(|(slot, cell)| cell.as_ref().map(|value| (slot, value)))
    }
}

#[expect(
    clippy::indexing_slicing,
    clippy::expect_used,
    reason = "slots come from `insert` and are dropped where they are removed; no outside number gets here"
)]
impl<T> Index<u32> for Slots<T> {
    type Output = T;

    fn index(&self, slot: u32) -> &T {
        self.cells[slot as usize].as_ref().expect("a live slot")
    }
}

#[expect(
    clippy::indexing_slicing,
    clippy::expect_used,
    reason = "slots come from `insert` and are dropped where they are removed; no outside number gets here"
)]
impl<T> IndexMut<u32> for Slots<T> {
    fn index_mut(&mut self, slot: u32) -> &mut T {
        self.cells[slot as usize].as_mut().expect("a live slot")
    }
}
