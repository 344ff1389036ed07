//! Endpoints by incarnation, and what each of them runs for us.

use std::collections::{BTreeMap, HashMap};

use wicketgate_scheduler::{Endpoint, EndpointSpec, Incarnation, Nanos};

use crate::input::Delta;

/// What an ended life still runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Orphan {
    pub(crate) requests: u32,
    pub(crate) tokens: u64,
}

/// The endpoint table. Rows keep the order in which they joined, so that a replay sees the same slice.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Endpoint>,
    at: HashMap<Incarnation, usize>,
    orphans: BTreeMap<Incarnation, Orphan>,
}

impl Table {
    pub(crate) fn rows(&self) -> &[Endpoint] {
        &self.rows
    }

    pub(crate) fn orphans(&self) -> &BTreeMap<Incarnation, Orphan> {
        &self.orphans
    }

    pub(crate) fn get(&self, id: Incarnation) -> Option<&Endpoint> {
        self.at.get(&id).and_then(|&i| self.rows.get(i))
    }

    pub(crate) fn get_mut(&mut self, id: Incarnation) -> Option<&mut Endpoint> {
        self.at.get(&id).and_then(|&i| self.rows.get_mut(i))
    }

    pub(crate) fn apply(&mut self, now: Nanos, delta: &Delta) {
        for id in &delta.leave {
            self.leave(*id);
        }
        for (id, spec) in &delta.change {
            if let Some(row) = self.get_mut(*id) {
                row.update(spec);
            }
        }
        for (id, spec) in &delta.join {
            self.join(now, *id, spec);
        }
    }

    /// An incarnation joins once; a second join of the same one is a change.
    fn join(&mut self, now: Nanos, id: Incarnation, spec: &EndpointSpec) {
        if let Some(row) = self.get_mut(id) {
            row.update(spec);
            return;
        }
        self.at.insert(id, self.rows.len());
        self.rows.push(Endpoint::new(id, spec, now));
    }

    fn leave(&mut self, id: Incarnation) {
        let Some(index) = self.at.remove(&id) else {
            return;
        };
        if index >= self.rows.len() {
            return;
        }
        let row = self.rows.remove(index);
        for place in self.at.values_mut() {
            if *place > index {
                *place -= 1;
            }
        }
        if row.load.requests > 0 || row.load.tokens > 0 {
            let left = Orphan {
                requests: row.load.requests,
                tokens: row.load.tokens,
            };
            self.orphans.insert(id, left);
        }
    }

    /// Counts a dispatch. False if that life has ended meanwhile: then it is an orphan from the start.
    pub(crate) fn raise(&mut self, now: Nanos, id: Incarnation, tokens: u64) {
        if let Some(row) = self.get_mut(id) {
            row.on_dispatch(now, tokens);
        } else {
            let orphan = self.orphans.entry(id).or_default();
            orphan.requests += 1;
            orphan.tokens += tokens;
        }
    }

    /// Gives back what [`Table::raise`] counted, from the very counter that was raised.
    pub(crate) fn lower(&mut self, now: Nanos, id: Incarnation, tokens: u64) {
        if let Some(row) = self.get_mut(id) {
            row.on_end(now, tokens);
            return;
        }
        if let Some(orphan) = self.orphans.get_mut(&id) {
            orphan.requests = orphan.requests.saturating_sub(1);
            orphan.tokens = orphan.tokens.saturating_sub(tokens);
            if orphan.requests == 0 {
                self.orphans.remove(&id);
            }
        }
    }

    /// Gives back tokens only: the prefill they stood for is over.
    pub(crate) fn release_tokens(&mut self, id: Incarnation, tokens: u64) {
        if let Some(row) = self.get_mut(id) {
            row.load.tokens = row.load.tokens.saturating_sub(tokens);
        } else if let Some(orphan) = self.orphans.get_mut(&id) {
            orphan.tokens = orphan.tokens.saturating_sub(tokens);
        }
    }
}
