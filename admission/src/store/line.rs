//! Who is next in one queue: by any key, or, when requests go as they came, plainly in that order.

use std::collections::VecDeque;

use super::{Heap, NIL};

/// The ordering policy's key, then the number in the order of entry.
pub(crate) type LineKey = (u64, u64);

/// More dead places than this, and more than live ones: they are swept.
const SWEEP: usize = 32;
/// A larger room is given back when a line is emptied.
const KEPT_ROOM: usize = 256;

/// A queue's requests. The one that is next is found in O(1) and leaves in O(log n), any other in O(log n).
#[derive(Debug)]
pub(crate) enum Line {
    /// By key.
    Sorted(Heap<LineKey>),
    /// In the order of entry, every policy's key being 0: no heap to keep, and what is next lies beside what went.
    Fifo(Fifo),
}

/// Entries by their number in the order of entry. One that left from the middle stays as a dead place until it is
/// swept; the first one is always alive.
#[derive(Debug, Default)]
pub(crate) struct Fifo {
    entries: VecDeque<(u64, u32)>,
    alive: usize,
}

impl Line {
    pub(crate) fn new(fifo: bool) -> Line {
        match fifo {
            true => Line::Fifo(Fifo::default()),
            false => Line::Sorted(Heap::default()),
        }
    }

    pub(crate) fn is_fifo(&self) -> bool {
        matches!(self, Line::Fifo(_))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Line::Sorted(heap) => heap.len(),
            Line::Fifo(fifo) => fifo.alive,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key that is next, and its slot.
    pub(crate) fn peek(&self) -> Option<(LineKey, u32)> {
        match self {
            Line::Sorted(heap) => heap.peek(),
            Line::Fifo(fifo) => fifo.entries.front().map(|&(seq, slot)| ((0, seq), slot)),
        }
    }

    /// Changes of positions are reported to `place`; a line in order of entry has none.
    pub(crate) fn push(&mut self, key: LineKey, slot: u32, place: impl FnMut(u32, u32)) {
        match self {
            Line::Sorted(heap) => heap.push(key, slot, place),
            Line::Fifo(fifo) => fifo.push(key.1, slot),
        }
    }

    /// The entry of this key, at its last reported position if it has one, leaves. True if it was next.
    pub(crate) fn remove(&mut self, key: LineKey, pos: u32, place: impl FnMut(u32, u32)) -> bool {
        match self {
            Line::Sorted(heap) => {
                heap.remove(pos, place);
                pos == 0
            }
            Line::Fifo(fifo) => fifo.remove(key.1),
        }
    }

    /// True if this entry is in it, at its last reported position if it has one. For checks.
    pub(crate) fn holds(&self, key: LineKey, slot: u32, pos: u32) -> bool {
        match self {
            Line::Sorted(heap) => heap.key_at(pos) == Some(key),
            Line::Fifo(fifo) => {
                let entry = fifo.find(key.1).and_then(|at| fifo.entries.get(at));
                key.0 == 0 && entry == Some(&(key.1, slot))
            }
        }
    }

    /// Empty, for the next queue; a large room is given back.
    pub(crate) fn cleared(mut self) -> Line {
        match &mut self {
            Line::Sorted(heap) => {
                heap.clear();
                heap.shrink(KEPT_ROOM);
            }
            Line::Fifo(fifo) => {
                fifo.entries.clear();
                fifo.entries.shrink_to(KEPT_ROOM);
                fifo.alive = 0;
            }
        }
        self
    }
}

impl Fifo {
    fn push(&mut self, seq: u64, slot: u32) {
        self.alive += 1;
        match self.entries.back() {
            Some((last, _)) if *last > seq => {
                debug_assert!(false, "entered out of order");
                let at = self.entries.partition_point(|(other, _)| *other < seq);
                self.entries.insert(at, (seq, slot));
            }
            _ => self.entries.push_back((seq, slot)),
        }
    }

    fn find(&self, seq: u64) -> Option<usize> {
        self.entries
            .binary_search_by_key(&seq, |(seq, _)| *seq)
            .ok()
    }

    fn remove(&mut self, seq: u64) -> bool {
        let first = self.entries.front().is_some_and(|(next, _)| *next == seq);
        if first {
            self.entries.pop_front();
        } else {
            let Some(entry) = self.find(seq).and_then(|at| self.entries.get_mut(at)) else {
                debug_assert!(false, "removed twice");
                return false;
            };
            entry.1 = NIL;
        }
        self.alive = self.alive.saturating_sub(1);
        while self.entries.front().is_some_and(|(_, slot)| *slot == NIL) {
            self.entries.pop_front();
        }
        if self.entries.len() > SWEEP + 2 * self.alive {
            self.entries.retain(|(_, slot)| *slot != NIL);
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Push(u8),
        Remove(u16),
        Pop,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => any::<u8>().prop_map(Op::Push),
            3 => any::<u16>().prop_map(Op::Remove),
            1 => Just(Op::Pop),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        /// Against a sorted list: the same next one after every step, and every entry is where it says.
        #[test]
        fn agrees_with_a_sorted_list(fifo in any::<bool>(), ops in proptest::collection::vec(op(), 1..400)) {
            let mut line = Line::new(fifo);
            let mut pos: Vec<u32> = Vec::new();
            let mut list: Vec<(LineKey, u32)> = Vec::new();
            for op in ops {
                match op {
                    Op::Push(key) => {
                        let slot = pos.len() as u32;
                        pos.push(NIL);
                        let key = (if fifo { 0 } else { u64::from(key) }, u64::from(slot));
                        line.push(key, slot, |s, p| pos[s as usize] = p);
                        list.push((key, slot));
                    }
                    Op::Remove(at) if !list.is_empty() => {
                        list.sort_unstable();
                        let at = usize::from(at) % list.len();
                        let (key, slot) = list.remove(at);
                        let first = line.remove(key, pos[slot as usize], |s, p| pos[s as usize] = p);
                        prop_assert_eq!(first, at == 0);
                    }
                    Op::Pop if !list.is_empty() => {
                        let (key, slot) = line.peek().unwrap();
                        prop_assert!(line.remove(key, pos[slot as usize], |s, p| pos[s as usize] = p));
                        list.retain(|entry| *entry != (key, slot));
                    }
                    Op::Remove(_) | Op::Pop => {}
                }
                prop_assert_eq!((line.len(), line.is_empty()), (list.len(), list.is_empty()));
                prop_assert_eq!(line.peek(), list.iter().min().copied());
                for &(key, slot) in &list {
                    prop_assert!(line.holds(key, slot, pos[slot as usize]));
                }
                if let Line::Fifo(fifo) = &line {
                    prop_assert!(fifo.entries.len() <= SWEEP + 2 * fifo.alive);
                }
            }
            prop_assert!(line.cleared().is_empty());
        }
    }
}
