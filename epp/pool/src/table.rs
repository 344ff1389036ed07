//! Endpoints by incarnation, and what each of them runs for us.

use std::collections::{BTreeMap, HashMap, VecDeque};

use wicketgate_scheduler::{Endpoint, EndpointSpec, Incarnation, Nanos, Sample};

use crate::input::Delta;

/// What an ended life still runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Orphan {
    pub(crate) requests: u32,
    pub(crate) tokens: u64,
}

/// KV tokens of our requests that an endpoint's last scrape could not know.
///
/// A dispatch has a number of its own on its endpoint, so that its end, or a scrape that knows it, takes out what it put
/// in, whichever comes first.
#[derive(Debug, Default)]
pub(crate) struct Unseen {
    /// KV tokens by dispatch, oldest first; 0 once ended.
    kv: VecDeque<u64>,
    /// Number of the first in `kv`.
    first: u64,
    sum: u64,
}

impl Unseen {
    fn push(&mut self, kv: u64) -> u64 {
        self.kv.push_back(kv);
        self.sum = self.sum.saturating_add(kv);
        self.first + self.kv.len() as u64 - 1
    }

    fn end(&mut self, number: u64) {
        let Some(place) = number.checked_sub(self.first) else {
            return;
        };
        let entry = usize::try_from(place)
            .ok()
            .and_then(|at| self.kv.get_mut(at));
        self.sum -= entry.map_or(0, std::mem::take);
        // A long life without a scrape keeps no more than what its oldest request spans.
        while self.kv.front() == Some(&0) {
            self.kv.pop_front();
            self.first += 1;
        }
    }

    /// A scrape knows all but the newest `left`.
    fn seen(&mut self, left: usize) {
        while self.kv.len() > left {
            self.sum -= self.kv.pop_front().unwrap_or(0);
            self.first += 1;
        }
    }
}

/// What a dispatch took, to be given back exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) at: Incarnation,
    /// Prefill tokens still counted; zero once the first token came.
    pub(crate) tokens: u64,
    /// Its number on its endpoint.
    number: u64,
}

/// The endpoint table. Rows keep the order in which they joined, so that a replay sees the same slice.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Endpoint>,
    /// In the order of the rows.
    unseen: Vec<Unseen>,
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

    /// KV tokens that each row's last scrape could not know, in the order of the rows.
    pub(crate) fn unseen_kv(&self) -> impl Iterator<Item = u64> {
        self.unseen.iter().map(|unseen| unseen.sum)
    }

    /// Endpoints that take new work.
    pub(crate) fn serving(&self) -> usize {
        self.rows.iter().filter(|row| !row.draining).count()
    }

    pub(crate) fn place(&self, id: Incarnation) -> Option<usize> {
        self.at.get(&id).copied()
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
        self.unseen.push(Unseen::default());
    }

    fn leave(&mut self, id: Incarnation) {
        let Some(index) = self.at.remove(&id) else {
            return;
        };
        if index >= self.rows.len() {
            return;
        }
        let row = self.rows.remove(index);
        self.unseen.remove(index);
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

    /// Takes a scrape over. False if that life is unknown.
    pub(crate) fn scraped(&mut self, now: Nanos, id: Incarnation, sample: Option<&Sample>) -> bool {
        let Some(row) = self.get_mut(id) else {
            return false;
        };
        let Some(sample) = sample else {
            row.on_scrape_failed(now);
            return true;
        };
        row.on_sample(now, sample);
        let left = usize::try_from(row.unseen()).unwrap_or(0);
        if let Some(unseen) = self.at.get(&id).and_then(|&i| self.unseen.get_mut(i)) {
            unseen.seen(left);
        }
        true
    }

    /// Counts a dispatch of `tokens` to compute that will hold `kv` tokens of cache. If that life has ended meanwhile
    /// it is an orphan from the start.
    pub(crate) fn raise(&mut self, now: Nanos, id: Incarnation, tokens: u64, kv: u64) -> Held {
        let mut number = 0;
        if let Some(place) = self.place(id)
            && let (Some(row), Some(unseen)) =
                (self.rows.get_mut(place), self.unseen.get_mut(place))
        {
            row.on_dispatch(now, tokens);
            number = unseen.push(kv.max(1));
        } else {
            let orphan = self.orphans.entry(id).or_default();
            orphan.requests += 1;
            orphan.tokens += tokens;
        }
        Held {
            at: id,
            tokens,
            number,
        }
    }

    /// Gives back what [`Table::raise`] counted, from the very counter that was raised.
    pub(crate) fn lower(&mut self, now: Nanos, held: Held) {
        let Held {
            at: id,
            tokens,
            number,
        } = held;
        if let Some(place) = self.place(id)
            && let (Some(row), Some(unseen)) =
                (self.rows.get_mut(place), self.unseen.get_mut(place))
        {
            row.on_end(now, tokens);
            unseen.end(number);
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
