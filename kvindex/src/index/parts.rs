//! Engines whose blocks are a part of ours.
//!
//! One of our blocks is held when all its parts are, on the farthest of their tiers. Chains may branch inside one of our
//! blocks; each branch is an *assembly* of its own that shares the parts before the fork. An assembly that was complete
//! once keeps its home while any of its parts is left, so that a part that comes back makes it whole again.

use std::collections::HashMap;

use super::{
    blocks::Home,
    content::{self, Item},
    holdings::Holdings,
    lane::Ground,
    store::Spot,
};
use crate::{
    events::{EngineHash, Tier},
    keys::Key,
};

/// One engine block.
#[derive(Debug)]
struct Part {
    /// By tier; all 0 for a part that is gone while its assembly is not.
    copies: [u32; 4],
    /// The first assembly that it belongs to, and its position there.
    assembly: u32,
    at: usize,
}

impl Part {
    /// The nearest tier that holds it.
    fn tier(&self) -> Option<Tier> {
        let held = |tier: &Tier| {
            self.copies
                .get(tier.index())
                .is_some_and(|copies| *copies > 0)
        };
        Tier::ALL.into_iter().find(held)
    }
}

/// The parts of one of our blocks, the first ones at least.
#[derive(Debug)]
struct Assembly {
    parts: Vec<EngineHash>,
    tokens: Vec<u32>,
    items: Vec<Item>,
    /// Key before this block.
    before: Key,
    /// The assembly before it, which stays as long as this one.
    previous: Option<u32>,
    /// Parts that are not gone.
    present: usize,
    /// Assemblies that follow this one.
    followers: u32,
    /// Key and home, once it was complete.
    home: Option<(Key, Home)>,
    /// Where it counts as held now.
    tier: Option<Tier>,
}

/// A block that is to be stored.
pub(crate) struct NewPart<'a> {
    pub(crate) hash: EngineHash,
    /// The part before it, or the key of the root.
    pub(crate) parent: Result<EngineHash, Key>,
    pub(crate) tokens: &'a [u32],
    pub(crate) items: &'a [Item],
}

#[derive(Debug)]
pub(crate) struct Parts {
    /// Engine blocks in one of ours.
    whole: usize,
    parts: HashMap<EngineHash, Part>,
    /// Further assemblies of parts that several share.
    shared: HashMap<EngineHash, Vec<u32>>,
    assemblies: Vec<Option<Assembly>>,
    idle: Vec<u32>,
    present: usize,
}

impl Parts {
    pub(crate) fn new(whole: usize) -> Parts {
        Parts {
            whole,
            parts: HashMap::new(),
            shared: HashMap::new(),
            assemblies: Vec::new(),
            idle: Vec::new(),
            present: 0,
        }
    }

    /// Engine blocks held.
    pub(crate) fn len(&self) -> usize {
        self.present
    }

    /// Engine blocks in one of ours.
    pub(crate) fn whole(&self) -> usize {
        self.whole
    }

    pub(crate) fn bytes(&self) -> usize {
        let assembly = size_of::<Option<Assembly>>() + self.whole * (size_of::<EngineHash>() + 4);
        self.parts.capacity() * (size_of::<(EngineHash, Part)>() + 1)
            + self.assemblies.len() * assembly
            + self.shared.len() * 64
    }

    /// Whether a part has its place, although it may be gone.
    pub(crate) fn knows(&self, hash: EngineHash) -> bool {
        self.parts.contains_key(&hash)
    }

    /// Whether a part is held anywhere.
    pub(crate) fn holds(&self, hash: EngineHash) -> bool {
        self.parts
            .get(&hash)
            .is_some_and(|part| part.tier().is_some())
    }

    fn assembly(&self, index: u32) -> Option<&Assembly> {
        self.assemblies.get(index as usize)?.as_ref()
    }

    fn assembly_mut(&mut self, index: u32) -> Option<&mut Assembly> {
        self.assemblies.get_mut(index as usize)?.as_mut()
    }

    fn owners(&self, hash: EngineHash) -> Vec<u32> {
        let first = self.parts.get(&hash).map(|part| part.assembly);
        let more = self.shared.get(&hash).into_iter().flatten().copied();
        first.into_iter().chain(more).collect()
    }

    /// One more copy of a part that is known.
    pub(crate) fn again(
        &mut self,
        ground: Ground<'_>,
        holdings: &mut Holdings,
        hash: EngineHash,
        tier: Tier,
    ) {
        let Some(part) = self.parts.get_mut(&hash) else {
            return;
        };
        let before = part.tier();
        if let Some(copies) = part.copies.get_mut(tier.index()) {
            *copies = copies.saturating_add(1);
        }
        if part.tier() != before {
            self.changed(ground, holdings, hash, before);
        }
    }

    /// One copy less; false if there was none.
    pub(crate) fn remove(
        &mut self,
        ground: Ground<'_>,
        holdings: &mut Holdings,
        hash: EngineHash,
        tier: Tier,
    ) -> bool {
        let Some(part) = self.parts.get_mut(&hash) else {
            return false;
        };
        let before = part.tier();
        match part.copies.get_mut(tier.index()) {
            Some(copies) if *copies > 0 => *copies -= 1,
            _ => return false,
        }
        if part.tier() != before {
            self.changed(ground, holdings, hash, before);
        }
        true
    }

    /// After a part's nearest tier changed.
    fn changed(
        &mut self,
        ground: Ground<'_>,
        holdings: &mut Holdings,
        hash: EngineHash,
        before: Option<Tier>,
    ) {
        let now = self.parts.get(&hash).and_then(Part::tier);
        let (came, went) = (before.is_none() && now.is_some(), now.is_none());
        self.present = self.present + usize::from(came) - usize::from(went);
        for owner in self.owners(hash) {
            if let Some(assembly) = self.assembly_mut(owner) {
                assembly.present = assembly.present + usize::from(came) - usize::from(went);
            }
            self.level(ground, holdings, owner);
            self.bury(ground, holdings, owner);
        }
    }

    /// Stores a part that is not known; false if what it follows is not known either.
    pub(crate) fn store(
        &mut self,
        ground: Ground<'_>,
        holdings: &mut Holdings,
        new: &NewPart<'_>,
        tier: Tier,
    ) -> bool {
        let index = match new.parent {
            Err(root) => self.begin(root, None),
            Ok(parent) => {
                let Some(part) = self.parts.get(&parent) else {
                    return false;
                };
                let (owner, at) = (part.assembly, part.at);
                let Some(assembly) = self.assembly(owner) else {
                    return false;
                };
                if at + 1 == self.whole {
                    let Some((key, _)) = assembly.home else {
                        return false;
                    };
                    self.begin(key, Some(owner))
                } else if assembly.parts.len() == at + 1 {
                    owner
                } else {
                    self.fork(owner, at + 1)
                }
            }
        };
        let whole = self.whole;
        let Some(assembly) = self.assembly_mut(index) else {
            return false;
        };
        let at = assembly.parts.len();
        let start = assembly.tokens.len();
        assembly.parts.push(new.hash);
        assembly.tokens.extend_from_slice(new.tokens);
        let here = new.items.iter().map(|item| Item {
            at: start + item.at,
            name: item.name.clone(),
        });
        assembly.items.extend(here);
        let complete = assembly.parts.len() == whole;
        self.parts.insert(
            new.hash,
            Part {
                copies: [0; 4],
                assembly: index,
                at,
            },
        );
        if complete {
            self.complete(ground, holdings, index);
        }
        self.again(ground, holdings, new.hash, tier);
        true
    }

    fn begin(&mut self, before: Key, previous: Option<u32>) -> u32 {
        if let Some(previous) = previous.and_then(|previous| self.assembly_mut(previous)) {
            previous.followers += 1;
        }
        self.add(Assembly {
            parts: Vec::new(),
            tokens: Vec::new(),
            items: Vec::new(),
            before,
            previous,
            present: 0,
            followers: 0,
            home: None,
            tier: None,
        })
    }

    fn add(&mut self, assembly: Assembly) -> u32 {
        if let Some(index) = self.idle.pop()
            && let Some(slot) = self.assemblies.get_mut(index as usize)
        {
            *slot = Some(assembly);
            return index;
        }
        self.assemblies.push(Some(assembly));
        self.assemblies.len() as u32 - 1
    }

    /// A new assembly that shares the first `count` parts of another one.
    fn fork(&mut self, of: u32, count: usize) -> u32 {
        let Some(from) = self.assembly(of) else {
            return u32::MAX;
        };
        let size = from.tokens.len() / from.parts.len().max(1);
        let parts: Vec<EngineHash> = from.parts.iter().take(count).copied().collect();
        let tokens: Vec<u32> = from.tokens.iter().take(count * size).copied().collect();
        let items = from
            .items
            .iter()
            .filter(|item| item.at < count * size)
            .cloned()
            .collect();
        let (before, previous) = (from.before, from.previous);
        let is_present =
            |hash: &&EngineHash| self.parts.get(hash).is_some_and(|p| p.tier().is_some());
        let present = parts.iter().filter(is_present).count();
        let index = self.begin(before, previous);
        for part in &parts {
            self.shared.entry(*part).or_default().push(index);
        }
        if let Some(fork) = self.assembly_mut(index) {
            (fork.parts, fork.tokens, fork.items, fork.present) = (parts, tokens, items, present);
        }
        index
    }

    /// Finds the home of an assembly whose last part came.
    fn complete(&mut self, ground: Ground<'_>, holdings: &mut Holdings, index: u32) {
        let Some(assembly) = self.assembly(index) else {
            return;
        };
        let key = content::after(
            ground.space,
            assembly.before,
            &assembly.tokens,
            &assembly.items,
        );
        let previous = assembly.previous;
        let spot = previous.and_then(|previous| {
            let (_, home) = self.assembly(previous)?.home?;
            Some(Spot {
                run: holdings.get(home.holding)?.run,
                at: home.at,
            })
        });
        let mut found = None;
        ground.store.place(spot, &[key.0], |run, span| {
            if let Some(holding) = holdings.enter(run) {
                holdings.pin(holding, run);
                found = Some((
                    key,
                    Home {
                        holding,
                        at: span.at as u16,
                    },
                ));
            }
        });
        if let Some(assembly) = self.assembly_mut(index) {
            assembly.home = found;
        }
    }

    /// Holds an assembly where its farthest part is, if all are there.
    fn level(&mut self, ground: Ground<'_>, holdings: &mut Holdings, index: u32) {
        let Some(assembly) = self.assembly(index) else {
            return;
        };
        let Some((_, home)) = assembly.home else {
            return;
        };
        let tier_of = |hash: &EngineHash| self.parts.get(hash).and_then(Part::tier);
        let tiers: Option<Vec<Tier>> = assembly.parts.iter().map(tier_of).collect();
        let (before, now) = (
            assembly.tier,
            tiers.and_then(|tiers| tiers.into_iter().max()),
        );
        if before == now {
            return;
        }
        let at = usize::from(home.at);
        let run = holdings.get(home.holding).map(|holding| holding.run);
        let lock = || run.and_then(|run| ground.store.lock(run));
        if let (Some(tier), Some(mut run)) = (now, lock()) {
            holdings.hold(home.holding, &mut run, at, at + 1, tier);
        }
        if let (Some(tier), Some(run)) = (before, lock()) {
            holdings.release(home.holding, run, at, at + 1, tier);
        }
        if let Some(assembly) = self.assembly_mut(index) {
            assembly.tier = now;
        }
    }

    /// Gives an assembly up that has no part left and that no other follows, and then those before it.
    fn bury(&mut self, ground: Ground<'_>, holdings: &mut Holdings, index: u32) {
        let done = |assembly: &Assembly| {
            assembly.present == 0 && assembly.followers == 0 && !assembly.parts.is_empty()
        };
        let mut next = Some(index);
        while let Some(index) = next.filter(|index| self.assembly(*index).is_some_and(done)) {
            let slot = self.assemblies.get_mut(index as usize);
            let Some(assembly) = slot.and_then(Option::take) else {
                return;
            };
            self.idle.push(index);
            for hash in &assembly.parts {
                self.disown(*hash, index);
            }
            if let Some((_, home)) = assembly.home {
                let run = holdings.get(home.holding).map(|holding| holding.run);
                if let Some(run) = run.and_then(|run| ground.store.lock(run)) {
                    holdings.unpin(home.holding, run);
                }
            }
            next = assembly.previous;
            if let Some(previous) = next.and_then(|previous| self.assembly_mut(previous)) {
                previous.followers = previous.followers.saturating_sub(1);
            }
        }
    }

    fn disown(&mut self, hash: EngineHash, index: u32) {
        let heir = match self.shared.get_mut(&hash) {
            Some(others) => {
                let known = others.len();
                others.retain(|other| *other != index);
                let heir = if others.len() == known {
                    others.pop()
                } else {
                    None
                };
                if others.is_empty() {
                    self.shared.remove(&hash);
                }
                heir
            }
            None => None,
        };
        match (self.parts.get_mut(&hash), heir) {
            (Some(part), Some(heir)) if part.assembly == index => part.assembly = heir,
            (Some(part), None) if part.assembly == index => {
                self.parts.remove(&hash);
            }
            _ => {}
        }
    }

    /// Forgets the blocks whose homes do not stay.
    pub(crate) fn retain(
        &mut self,
        ground: Ground<'_>,
        holdings: &mut Holdings,
        stays: impl Fn(Home) -> bool,
    ) {
        let gone = |assembly: &Option<Assembly>| {
            assembly
                .as_ref()
                .is_some_and(|a| a.home.is_some_and(|(_, home)| !stays(home)))
        };
        let gone: Vec<u32> = (0..)
            .zip(&self.assemblies)
            .filter(|(_, a)| gone(a))
            .map(|(index, _)| index)
            .collect();
        let mut parts: Vec<EngineHash> = gone
            .iter()
            .filter_map(|index| self.assembly(*index))
            .flat_map(|a| a.parts.clone())
            .collect();
        // Parts that a block that stays shares with one that goes stay with it.
        parts.retain(|hash| {
            self.owners(*hash)
                .iter()
                .all(|owner| gone.binary_search(owner).is_ok())
        });
        for hash in parts {
            for tier in Tier::ALL {
                while self.remove(ground, holdings, hash, tier) {}
            }
        }
    }
}
