//! A doubly linked list through the values of a [`Slots`]: push at the end and removal anywhere in O(1).

use super::{NIL, Slots};

/// A value's neighbours in one list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    prev: u32,
    next: u32,
}

impl Link {
    pub(crate) const NONE: Link = Link {
        prev: NIL,
        next: NIL,
    };
}

/// Where a value keeps its link of list number `LIST`.
pub(crate) trait Linked<const LIST: usize> {
    fn link(&mut self) -> &mut Link;
    fn peek(&self) -> Link;
}

/// The ends of list number `LIST`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List<const LIST: usize> {
    head: u32,
    tail: u32,
}

impl<const LIST: usize> Default for List<LIST> {
    fn default() -> Self {
        List {
            head: NIL,
            tail: NIL,
        }
    }
}

impl<const LIST: usize> List<LIST> {
    pub(crate) fn head(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }

    pub(crate) fn push_back<T: Linked<LIST>>(&mut self, store: &mut Slots<T>, slot: u32) {
        *store[slot].link() = Link {
            prev: self.tail,
            next: NIL,
        };
        if self.tail == NIL {
            self.head = slot;
        } else {
            store[self.tail].link().next = slot;
        }
        self.tail = slot;
    }

    pub(crate) fn remove<T: Linked<LIST>>(&mut self, store: &mut Slots<T>, slot: u32) {
        let Link { prev, next } = std::mem::replace(store[slot].link(), Link::NONE);
        if prev == NIL {
            self.head = next;
        } else {
            store[prev].link().next = next;
        }
        if next == NIL {
            self.tail = prev;
        } else {
            store[next].link().prev = prev;
        }
    }

    /// From the last to the first.
    pub(crate) fn newest_first<'a, T: Linked<LIST>>(
        &self,
        store: &'a Slots<T>,
    ) -> impl Iterator<Item = u32> + use<'a, T, LIST> {
        let last = (self.tail != NIL).then_some(self.tail);
        std::iter::successors(last, |&slot| {
            let prev = store[slot].peek().prev;
            (prev != NIL).then_some(prev)
        })
    }
}
