//! A doubly linked list through a store that keeps the links: push at the end and removal anywhere in O(1).

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

/// Keeps the links of list number `LIST`, by slot.
pub(crate) trait Chain<const LIST: usize> {
    fn link(&mut self, slot: u32) -> &mut Link;
    fn peek(&self, slot: u32) -> Link;
}

/// Where a value keeps its own link of list number `LIST`.
pub(crate) trait Linked<const LIST: usize> {
    fn link(&mut self) -> &mut Link;
    fn peek(&self) -> Link;
}

impl<const LIST: usize, T: Linked<LIST>> Chain<LIST> for Slots<T> {
    fn link(&mut self, slot: u32) -> &mut Link {
        self[slot].link()
    }

    fn peek(&self, slot: u32) -> Link {
        self[slot].peek()
    }
}

/// Links apart from what they link: whoever leaves touches its neighbours' links and nothing else of them.
#[derive(Debug, Default)]
pub(crate) struct Links {
    by_slot: Vec<Link>,
}

impl Links {
    /// Room for this slot, in no list.
    pub(crate) fn start(&mut self, slot: u32) {
        if self.by_slot.len() <= slot as usize {
            self.by_slot.resize(slot as usize + 1, Link::NONE);
        }
    }
}

#[expect(
    clippy::indexing_slicing,
    reason = "slots come from `Slots::insert` and were given room; no outside number gets here"
)]
impl Chain<0> for Links {
    fn link(&mut self, slot: u32) -> &mut Link {
        &mut self.by_slot[slot as usize]
    }

    fn peek(&self, slot: u32) -> Link {
        self.by_slot[slot as usize]
    }
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

    pub(crate) fn tail(&self) -> Option<u32> {
        (self.tail != NIL).then_some(self.tail)
    }

    /// The one before this one.
    pub(crate) fn before(&self, chain: &impl Chain<LIST>, slot: u32) -> Option<u32> {
        let prev = chain.peek(slot).prev;
        (prev != NIL).then_some(prev)
    }

    pub(crate) fn push_back(&mut self, chain: &mut impl Chain<LIST>, slot: u32) {
        *chain.link(slot) = Link {
            prev: self.tail,
            next: NIL,
        };
        if self.tail == NIL {
            self.head = slot;
        } else {
            chain.link(self.tail).next = slot;
        }
        self.tail = slot;
    }

    pub(crate) fn remove(&mut self, chain: &mut impl Chain<LIST>, slot: u32) {
        let Link { prev, next } = std::mem::replace(chain.link(slot), Link::NONE);
        if prev == NIL {
            self.head = next;
        } else {
            chain.link(prev).next = next;
        }
        if next == NIL {
            self.tail = prev;
        } else {
            chain.link(next).prev = prev;
        }
    }

    /// From the last to the first.
    pub(crate) fn newest_first<'a, C: Chain<LIST>>(
        &self,
        chain: &'a C,
    ) -> impl Iterator<Item = u32> + use<'a, C, LIST> {
        std::iter::successors(self.tail(), |&slot| {
            let prev = chain.peek(slot).prev;
            (prev != NIL).then_some(prev)
        })
    }
}
