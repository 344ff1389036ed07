//! Blocks whose predecessor is not known yet: after a late join, a gap or an eviction of ours.
//!
//! They wait, bounded in bytes, oldest first out, until the predecessor is stored.

use std::collections::{HashMap, VecDeque};

use super::{blocks::Dropped, blocks::Home, content::Item};
use crate::events::{EngineHash, Tier};

/// A block that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Orphan {
    pub(crate) hash: EngineHash,
    pub(crate) parent: EngineHash,
    pub(crate) tokens: Box<[u32]>,
    pub(crate) items: Box<[Item]>,
    /// By tier.
    pub(crate) copies: [u32; 4],
    age: u64,
}

impl Orphan {
    fn bytes(&self) -> usize {
        let items: usize = self
            .items
            .iter()
            .map(|item| size_of::<Item>() + item.name.len())
            .sum();
        // Its entries in both maps and in the queue, about.
        size_of::<Orphan>() + 96 + self.tokens.len() * 4 + items
    }
}

#[derive(Debug, Default)]
pub(crate) struct Orphans {
    waiting: HashMap<EngineHash, Orphan>,
    children: HashMap<EngineHash, Vec<EngineHash>>,
    oldest: VecDeque<(u64, EngineHash)>,
    next_age: u64,
    bytes: usize,
    /// Blocks that were given up for room.
    pub(crate) given_up: u64,
}

impl Orphans {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Nothing waits any more.
    pub(crate) fn clear(&mut self) {
        *self = Orphans {
            given_up: self.given_up,
            ..Orphans::default()
        };
    }

    /// One more copy of a block that waits; false if it does not.
    pub(crate) fn again(&mut self, hash: EngineHash, tier: Tier) -> bool {
        let copies = self
            .waiting
            .get_mut(&hash)
            .and_then(|o| o.copies.get_mut(tier.index()));
        copies.map(|copies| *copies += 1).is_some()
    }

    /// A block begins to wait.
    pub(crate) fn add(
        &mut self,
        (hash, parent): (EngineHash, EngineHash),
        tokens: &[u32],
        items: &[Item],
        tier: Tier,
        room: usize,
    ) {
        if self.again(hash, tier) {
            return;
        }
        let mut copies = [0; 4];
        if let Some(copies) = copies.get_mut(tier.index()) {
            *copies = 1;
        }
        let age = self.next_age;
        self.next_age += 1;
        let orphan = Orphan {
            hash,
            parent,
            tokens: tokens.into(),
            items: items.into(),
            copies,
            age,
        };
        self.bytes += orphan.bytes();
        self.waiting.insert(hash, orphan);
        self.children.entry(parent).or_default().push(hash);
        self.oldest.push_back((age, hash));
        while self.bytes > room
            && let Some((age, hash)) = self.oldest.pop_front()
        {
            if self
                .waiting
                .get(&hash)
                .is_some_and(|orphan| orphan.age == age)
            {
                self.take(hash);
                self.given_up += 1;
            }
        }
        if self.oldest.len() > 64 + 2 * self.waiting.len() {
            let waiting = &self.waiting;
            self.oldest
                .retain(|(age, hash)| waiting.get(hash).is_some_and(|o| o.age == *age));
        }
    }

    fn take(&mut self, hash: EngineHash) -> Option<Orphan> {
        let orphan = self.waiting.remove(&hash)?;
        self.bytes = self.bytes.saturating_sub(orphan.bytes());
        if let Some(children) = self.children.get_mut(&orphan.parent) {
            children.retain(|child| *child != hash);
            if children.is_empty() {
                self.children.remove(&orphan.parent);
            }
        }
        Some(orphan)
    }

    /// One copy less. `Gone` has no home that means anything.
    pub(crate) fn remove(&mut self, hash: EngineHash, tier: Tier) -> Dropped {
        let Some(orphan) = self.waiting.get_mut(&hash) else {
            return Dropped::Unknown;
        };
        match orphan.copies.get_mut(tier.index()) {
            Some(copies) if *copies > 0 => *copies -= 1,
            _ => return Dropped::Unknown,
        }
        if orphan.copies != [0; 4] {
            return Dropped::Fewer;
        }
        self.take(hash);
        Dropped::Gone(Home { holding: 0, at: 0 })
    }

    /// The blocks that waited for `parent`, in the order in which they came.
    pub(crate) fn children(&mut self, parent: EngineHash) -> Vec<Orphan> {
        let hashes = self.children.get(&parent).cloned().unwrap_or_default();
        hashes
            .into_iter()
            .filter_map(|hash| self.take(hash))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(orphans: &mut Orphans, hash: u64, parent: u64, room: usize) {
        let ids = (EngineHash(hash), EngineHash(parent));
        orphans.add(ids, &[1; 16], &[], Tier::Device, room);
    }

    #[test]
    fn they_are_counted_taken_and_bounded() {
        let mut orphans = Orphans::default();
        add(&mut orphans, 2, 1, 10_000);
        add(&mut orphans, 3, 1, 10_000);
        add(&mut orphans, 2, 1, 10_000);
        let device = Tier::Device;
        assert_eq!(orphans.remove(EngineHash(2), device), Dropped::Fewer);
        assert_eq!(orphans.remove(EngineHash(2), Tier::Host), Dropped::Unknown);
        assert!(matches!(
            orphans.remove(EngineHash(3), device),
            Dropped::Gone(_)
        ));
        assert_eq!(orphans.remove(EngineHash(3), device), Dropped::Unknown);
        let children = orphans.children(EngineHash(1));
        assert_eq!(
            children
                .iter()
                .map(|o| (o.hash.0, o.copies))
                .collect::<Vec<_>>(),
            [(2, [1, 0, 0, 0])]
        );
        assert_eq!((orphans.len(), orphans.bytes()), (0, 0));
        for hash in 0..1000 {
            add(&mut orphans, hash, 5000 + hash, 10_000);
            assert!(orphans.bytes() <= 10_000);
        }
        assert_eq!(orphans.len() as u64 + orphans.given_up, 1000);
        assert_eq!(orphans.children(EngineHash(5999)).len(), 1);
        assert!(orphans.children(EngineHash(5000)).is_empty());
        assert!(orphans.oldest.len() <= 64 + 2 * orphans.len());
    }
}
