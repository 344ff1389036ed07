//! A naive model of the index: maps of whole token sequences, no hashing, no structure.

#![allow(dead_code, reason = "each test uses its part of the model")]

use std::collections::{BTreeMap, HashMap};

use wicketgate_kvindex::{
    Nanos,
    events::{Batch, EngineHash, Event, GroupKind, Removed, Stored, Tier},
    index::{EndpointId, Matches},
};

/// Everything that a block commits to: whose cache, all tokens up to its end.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Path {
    pub(crate) scope: String,
    pub(crate) tokens: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Block {
    path: Path,
    copies: [u32; 4],
}

#[derive(Clone, Debug)]
struct Orphan {
    parent: EngineHash,
    tokens: Vec<u32>,
    copies: [u32; 4],
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    block_size: usize,
    known: HashMap<EngineHash, Block>,
    orphans: BTreeMap<EngineHash, Orphan>,
}

impl Group {
    fn store(&mut self, scope: &str, stored: &Stored) {
        let tier = stored.tier.index();
        if stored.tokens.is_empty() {
            for hash in &stored.hashes {
                if let Some(block) = self.known.get_mut(hash) {
                    block.copies[tier] += 1;
                } else if let Some(orphan) = self.orphans.get_mut(hash) {
                    orphan.copies[tier] += 1;
                }
            }
            return;
        }
        let mut parent = stored.parent;
        let blocks = stored
            .hashes
            .iter()
            .zip(stored.tokens.chunks(stored.block_size as usize));
        for (hash, tokens) in blocks {
            if let Some(block) = self.known.get_mut(hash) {
                block.copies[tier] += 1;
            } else {
                let before = match parent {
                    None => Some(Path {
                        scope: scope.to_owned(),
                        tokens: Vec::new(),
                    }),
                    Some(parent) => self.known.get(&parent).map(|block| block.path.clone()),
                };
                match before {
                    Some(mut path) => {
                        path.tokens.extend(tokens);
                        let mut copies = [0; 4];
                        copies[tier] = 1;
                        self.known.insert(*hash, Block { path, copies });
                        self.join();
                    }
                    None => {
                        let orphan = self.orphans.entry(*hash).or_insert_with(|| Orphan {
                            parent: parent.unwrap(),
                            tokens: tokens.to_vec(),
                            copies: [0; 4],
                        });
                        orphan.copies[tier] += 1;
                    }
                }
            }
            parent = Some(*hash);
        }
    }

    fn join(&mut self) {
        loop {
            let ready = self
                .orphans
                .iter()
                .find(|(_, orphan)| self.known.contains_key(&orphan.parent));
            let Some(hash) = ready.map(|(hash, _)| *hash) else {
                return;
            };
            let orphan = self.orphans.remove(&hash).unwrap();
            let mut path = self.known[&orphan.parent].path.clone();
            path.tokens.extend(orphan.tokens);
            self.known.insert(
                hash,
                Block {
                    path,
                    copies: orphan.copies,
                },
            );
        }
    }

    /// Gives the blocks whose last copy on the tier went.
    fn remove(&mut self, removed: &Removed) -> Vec<Path> {
        let tier = removed.tier.index();
        let mut gone = Vec::new();
        for hash in &removed.hashes {
            let copies = match (self.known.get_mut(hash), self.orphans.get_mut(hash)) {
                (Some(block), _) => {
                    if block.copies[tier] == 1 {
                        gone.push(block.path.clone());
                    }
                    &mut block.copies
                }
                (None, Some(orphan)) => &mut orphan.copies,
                (None, None) => continue,
            };
            copies[tier] = copies[tier].saturating_sub(1);
            if *copies == [0; 4] {
                self.known.remove(hash);
                self.orphans.remove(hash);
            }
        }
        gone
    }

    /// Blocks of `ours` tokens, by the farthest tier that may be used.
    fn prefix(&self, path: &Path, ours: usize, blocks: usize) -> [u32; 4] {
        let held: HashMap<&Path, [u32; 4]> =
            self.known.values().map(|b| (&b.path, b.copies)).collect();
        let mut lengths = [0; 4];
        for (tier, length) in lengths.iter_mut().enumerate() {
            let mut end = self.block_size;
            while end <= blocks * ours {
                let part = Path {
                    scope: path.scope.clone(),
                    tokens: path.tokens[..end].to_vec(),
                };
                let near = |copies: &[u32; 4]| copies[..=tier].iter().any(|copies| *copies > 0);
                if !held.get(&part).is_some_and(near) {
                    break;
                }
                end += self.block_size;
            }
            *length = ((end - self.block_size) / ours) as u32;
            if self.block_size > ours {
                *length -= *length % (self.block_size / ours) as u32;
            }
        }
        lengths
    }

    pub(crate) fn placements(&self) -> usize {
        let tiers = |block: &Block| block.copies.iter().filter(|copies| **copies > 0).count();
        self.known.values().map(tiers).sum()
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Endpoint {
    pub(crate) model: String,
    pub(crate) groups: BTreeMap<u32, Group>,
    /// With the engine's block in blocks of ours, as it was known then.
    predictions: Vec<(Path, Nanos, u32)>,
}

/// The model.
#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    ours: usize,
    /// A block that an engine gives up ends what was promised to it, if it was promised.
    pub(crate) breaks: bool,
    pub(crate) endpoints: BTreeMap<EndpointId, Endpoint>,
}

impl Oracle {
    pub(crate) fn new(ours: u32) -> Oracle {
        Oracle {
            ours: ours as usize,
            breaks: true,
            endpoints: BTreeMap::new(),
        }
    }

    pub(crate) fn register(&mut self, id: EndpointId, model: &str) {
        let endpoint = Endpoint {
            model: model.to_owned(),
            ..Endpoint::default()
        };
        self.endpoints.entry(id).or_insert(endpoint);
    }

    pub(crate) fn remove(&mut self, id: EndpointId) {
        self.endpoints.remove(&id);
    }

    pub(crate) fn apply(&mut self, id: EndpointId, batch: &Batch) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        for event in &batch.events {
            match event {
                Event::Stored(stored) if stored.kind == GroupKind::Full => {
                    let scope = match (&stored.adapter, stored.extras.first()) {
                        (Some(adapter), _) => adapter.clone(),
                        _ => endpoint.model.clone(),
                    };
                    let scope = match salt(stored) {
                        Some(salt) => format!("{scope}/{salt}"),
                        None => scope,
                    };
                    let group = endpoint.groups.entry(stored.group).or_default();
                    group.block_size = stored.block_size as usize;
                    group.store(&scope, stored);
                }
                Event::Stored(_) => {}
                Event::Removed(removed) => {
                    let Some(group) = endpoint.groups.get_mut(&removed.group) else {
                        continue;
                    };
                    let gone = group.remove(removed);
                    let stride = (group.block_size / self.ours) as u32;
                    // Promises made in other blocks than the engine's are not compared with what it gives up.
                    let broken = |(path, _, made): &(Path, Nanos, u32)| {
                        let held = |gone: &Path| {
                            gone.scope == path.scope && path.tokens.starts_with(&gone.tokens)
                        };
                        *made == stride && gone.iter().any(held)
                    };
                    let device = removed.tier == Tier::Device && self.breaks;
                    if device && endpoint.predictions.iter().any(broken) {
                        endpoint.predictions.clear();
                    }
                }
                Event::Cleared => {
                    for group in endpoint.groups.values_mut() {
                        group.known.clear();
                        group.orphans.clear();
                    }
                    endpoint.predictions.clear();
                }
            }
        }
    }

    pub(crate) fn predict(&mut self, id: EndpointId, path: Path, expires: Nanos) {
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            let stride = endpoint.stride(self.ours);
            endpoint.predictions.push((path, expires, stride));
        }
    }

    pub(crate) fn expire(&mut self, now: Nanos) {
        for endpoint in self.endpoints.values_mut() {
            endpoint
                .predictions
                .retain(|(_, expires, _)| *expires > now);
        }
    }

    /// What each endpoint holds of the first `blocks` blocks of a prompt, where it holds any.
    pub(crate) fn lookup(&self, path: &Path, blocks: usize) -> BTreeMap<EndpointId, [u32; 4]> {
        let mut found = BTreeMap::new();
        for (id, endpoint) in &self.endpoints {
            let groups = endpoint
                .groups
                .values()
                .map(|group| group.prefix(path, self.ours, blocks));
            let least = |a: [u32; 4], b: [u32; 4]| std::array::from_fn(|tier| a[tier].min(b[tier]));
            let mut lengths = groups.reduce(least).unwrap_or_default();
            for (predicted, _, stride) in &endpoint.predictions {
                if predicted.scope == path.scope {
                    let same = predicted
                        .tokens
                        .iter()
                        .zip(&path.tokens)
                        .take_while(|(a, b)| a == b);
                    let shared = (same.count() / self.ours).min(blocks) as u32;
                    let shared = shared - shared % stride;
                    lengths = lengths.map(|length: u32| length.max(shared));
                }
            }
            if lengths[3] > 0 {
                found.insert(*id, lengths);
            }
        }
        found
    }

    /// Everything that is held anywhere.
    pub(crate) fn paths(&self) -> Vec<Path> {
        let groups = self
            .endpoints
            .values()
            .flat_map(|endpoint| endpoint.groups.values());
        let known = groups.flat_map(|group| group.known.values());
        known.map(|block| block.path.clone()).collect()
    }

    pub(crate) fn placements(&self) -> usize {
        let groups = self
            .endpoints
            .values()
            .flat_map(|endpoint| endpoint.groups.values());
        groups.map(Group::placements).sum()
    }
}

impl Endpoint {
    fn stride(&self, ours: usize) -> u32 {
        let sizes = self
            .groups
            .values()
            .map(|group| (group.block_size / ours).max(1));
        sizes.max().unwrap_or(1) as u32
    }
}

fn salt(stored: &Stored) -> Option<String> {
    use wicketgate_kvindex::events::Extra;
    if stored.parent.is_some() {
        return None;
    }
    let first = stored.extras.first().filter(|extras| extras.block == 0)?;
    first.extras.iter().find_map(|extra| match extra {
        Extra::Text(text) if Some(text) != stored.adapter.as_ref() => Some(text.clone()),
        _ => None,
    })
}

/// The answer of the index in the form of the model's.
pub(crate) fn answer(matches: &Matches) -> BTreeMap<EndpointId, [u32; 4]> {
    let found: BTreeMap<EndpointId, [u32; 4]> = matches
        .iter()
        .map(|found| (found.endpoint, found.blocks))
        .collect();
    assert_eq!(found.len(), matches.len(), "an endpoint is named twice");
    found
}

/// Messages of a capture: for each, its parts. `None`, and a line that says so, where captures are not at hand.
pub(crate) fn capture(name: &str) -> Option<Vec<Vec<Vec<u8>>>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/fixtures/vllm/");
    let path = format!("{folder}{name}");
    let Ok(bytes) = std::fs::read(&path) else {
        eprintln!("skipped: {path} absent");
        return None;
    };
    let mut rest = bytes.as_slice();
    let mut messages = Vec::new();
    while !rest.is_empty() {
        let count = number(&mut rest);
        let parts = (0..count).map(|_| {
            let length = number(&mut rest);
            take(&mut rest, length).to_vec()
        });
        messages.push(parts.collect());
    }
    Some(messages)
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (head, tail) = rest.split_at(count);
    *rest = tail;
    head
}

fn number(rest: &mut &[u8]) -> usize {
    u32::from_be_bytes(take(rest, 4).try_into().unwrap()) as usize
}

/// The captures that there are.
pub(crate) const CAPTURES: [&str; 12] = [
    "kv_events",
    "kv_events_dp2",
    "kv_events_duplicate_last_block",
    "kv_events_pd",
    "kv_events_small_cache",
    "kv_events_v020_array",
    "kv_events_vectors_sha256_cbor_default",
    "kv_events_vectors_sha256_cbor_seed0_bytes",
    "kv_events_vectors_sha256_default",
    "kv_events_vectors_v020_sha256_cbor_seed0",
    "kv_events_vectors_xxhash_cbor_seed42_bytes",
    "kv_events_vectors_xxhash_seed42",
];
