//! A 4-ary min-heap whose entries know their position, so that any of them can leave or move in O(log n).
#![expect(
    clippy::indexing_slicing,
    reason = "positions come from the heap itself through `place`; no outside number gets here"
)]

/// Children per node: shallower than 2, and siblings share cache lines.
const ARITY: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Entry<K> {
    key: K,
    slot: u32,
}

/// Keys with the slot each belongs to. Every change of a slot's position is reported to the `place` argument.
#[derive(Debug)]
pub(crate) struct Heap<K> {
    entries: Vec<Entry<K>>,
}

impl<K> Default for Heap<K> {
    fn default() -> Self {
        Heap {
            entries: Vec::new(),
        }
    }
}

impl<K: Copy + Ord> Heap<K> {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Smallest key and its slot.
    pub(crate) fn peek(&self) -> Option<(K, u32)> {
        self.entries.first().map(|e| (e.key, e.slot))
    }

    /// Smallest keys first, for a walk from the top: the entry at a position, `None` past the end, and the positions of
    /// those below it, none of which is smaller.
    pub(crate) fn at(&self, pos: usize) -> Option<(K, u32)> {
        self.entries.get(pos).map(|e| (e.key, e.slot))
    }

    pub(crate) fn below(pos: usize) -> std::ops::RangeInclusive<usize> {
        pos * ARITY + 1..=pos * ARITY + ARITY
    }

    pub(crate) fn key_at(&self, pos: u32) -> Option<K> {
        self.entries.get(pos as usize).map(|e| e.key)
    }

    pub(crate) fn push(&mut self, key: K, slot: u32, place: impl FnMut(u32, u32)) {
        self.entries.push(Entry { key, slot });
        self.up(self.entries.len() - 1, place);
    }

    pub(crate) fn remove(&mut self, pos: u32, mut place: impl FnMut(u32, u32)) {
        let pos = pos as usize;
        if pos >= self.entries.len() {
            debug_assert!(false, "removed twice");
            return;
        }
        self.entries.swap_remove(pos);
        if pos < self.entries.len() {
            self.settle(pos, &mut place);
        }
    }

    pub(crate) fn update(&mut self, pos: u32, key: K, mut place: impl FnMut(u32, u32)) {
        let pos = pos as usize;
        if let Some(entry) = self.entries.get_mut(pos) {
            entry.key = key;
            self.settle(pos, &mut place);
        }
    }

    /// Drops all entries and keeps the room.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Gives back the room for more entries than `most`.
    pub(crate) fn shrink(&mut self, most: usize) {
        self.entries.shrink_to(most);
    }

    fn settle(&mut self, pos: usize, place: &mut impl FnMut(u32, u32)) {
        if pos > 0 && self.entries[pos].key < self.entries[(pos - 1) / ARITY].key {
            self.up(pos, place);
        } else {
            self.down(pos, place);
        }
    }

    fn up(&mut self, mut pos: usize, mut place: impl FnMut(u32, u32)) {
        let moving = self.entries[pos];
        while pos > 0 {
            let parent = (pos - 1) / ARITY;
            if self.entries[parent].key <= moving.key {
                break;
            }
            self.put(pos, self.entries[parent], &mut place);
            pos = parent;
        }
        self.put(pos, moving, &mut place);
    }

    fn down(&mut self, mut pos: usize, place: &mut impl FnMut(u32, u32)) {
        let moving = self.entries[pos];
        loop {
            let first = pos * ARITY + 1;
            let end = (first + ARITY).min(self.entries.len());
            let Some(child) = (first..end).min_by_key(|&c| self.entries[c].key) else {
                break;
            };
            if moving.key <= self.entries[child].key {
                break;
            }
            self.put(pos, self.entries[child], place);
            pos = child;
        }
        self.put(pos, moving, place);
    }

    fn put(&mut self, pos: usize, entry: Entry<K>, place: &mut impl FnMut(u32, u32)) {
        self.entries[pos] = entry;
        place(entry.slot, u32::try_from(pos).unwrap_or(super::NIL));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Push(u8),
        Remove(u8),
        Update(u8, u8),
        Pop,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => any::<u8>().prop_map(Op::Push),
            1 => any::<u8>().prop_map(Op::Remove),
            1 => (any::<u8>(), any::<u8>()).prop_map(|(a, b)| Op::Update(a, b)),
            1 => Just(Op::Pop),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        /// Against a sorted list: the same smallest key after every step, and each slot at its reported position.
        #[test]
        fn agrees_with_a_sorted_list(ops in proptest::collection::vec(op(), 1..200)) {
            let mut heap = Heap::default();
            let mut pos: Vec<u32> = Vec::new();
            let mut list: Vec<(u8, u32)> = Vec::new();
            for op in ops {
                match op {
                    Op::Push(key) => {
                        let slot = pos.len() as u32;
                        pos.push(0);
                        heap.push((key, slot), slot, |s, p| pos[s as usize] = p);
                        list.push((key, slot));
                    }
                    Op::Remove(at) if !list.is_empty() => {
                        let (_, slot) = list.swap_remove(at as usize % list.len());
                        heap.remove(pos[slot as usize], |s, p| pos[s as usize] = p);
                    }
                    Op::Update(at, key) if !list.is_empty() => {
                        let at = at as usize % list.len();
                        list[at].0 = key;
                        let slot = list[at].1;
                        heap.update(pos[slot as usize], (key, slot), |s, p| pos[s as usize] = p);
                    }
                    Op::Pop if !list.is_empty() => {
                        list.sort_unstable();
                        let (key, slot) = list.remove(0);
                        prop_assert_eq!(heap.peek(), Some(((key, slot), slot)));
                        heap.remove(0, |s, p| pos[s as usize] = p);
                    }
                    Op::Remove(_) | Op::Update(..) | Op::Pop => {}
                }
                prop_assert_eq!(heap.len(), list.len());
                prop_assert_eq!(heap.peek().map(|(key, _)| key), list.iter().copied().min());
                for &(key, slot) in &list {
                    prop_assert_eq!(heap.key_at(pos[slot as usize]), Some((key, slot)));
                }
            }
        }
    }
}
