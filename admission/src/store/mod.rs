//! Small containers with stable slots: what is inside knows its own place, so it leaves in O(log n) or O(1).

mod heap;
mod line;
mod list;
mod slots;

pub(crate) use heap::Heap;
pub(crate) use line::Line;
pub(crate) use list::{Link, Linked, Links, List};
pub(crate) use slots::Slots;

/// No slot, no position.
pub(crate) const NIL: u32 = u32::MAX;
