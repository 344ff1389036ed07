//! What the others said, for as long as it counts.

use std::{collections::HashMap, sync::Arc};

use super::{Counters, EndpointLoad, Fleet, FleetState, FlowService, Heard, Queued, ReplicaId};
use crate::{
    Admission, Nanos,
    core::{Beside, Usage},
    fault::{Fault, broken},
    headers::MAX_FAIRNESS_BYTES,
};

/// Longest name of an endpoint in bytes.
const MAX_NAME: usize = 512;
/// No row counts for more tokens than this, so sums cannot overflow.
const MAX_TOKENS: u64 = 1 << 44;
/// A silent peer is remembered for so many times `stale_after`: what it served meanwhile counts when it is heard again.
const REMEMBERED: Nanos = 600;

/// A peer's last message.
#[derive(Debug, Default)]
pub(super) struct Peer {
    /// When it came, on our clock.
    at: Nanos,
    number: u64,
    /// It is young enough to count.
    pub(super) fresh: bool,
    /// It hears us.
    hears_us: bool,
    linked: bool,
    lives: u64,
    waiting: Queued,
    endpoints: Vec<EndpointLoad>,
    /// By life, which is one flow's alone.
    flows: HashMap<u64, Known>,
}

/// What a peer last said of a flow's life.
#[derive(Clone, Copy, Debug)]
struct Known {
    service: i64,
    /// In which message.
    number: u64,
}

impl Fleet {
    /// A peer's message came. What it served since its last one counts for the flows of these queues.
    pub fn hear(&mut self, now: Nanos, said: &Counters, queues: &mut Admission) -> Heard {
        self.pass(now, queues);
        let known = self.peers.get(&said.replica).map(|peer| peer.number);
        let again = known.is_some_and(|number| said.number <= number);
        if said.replica == self.me || (again && !broken(Fault::PeersServiceTwice)) {
            self.totals.old += 1;
            return Heard::Old;
        }
        if known.is_none() && !self.make_room() {
            self.totals.refused += 1;
            return Heard::Refused;
        }
        let mut peer = self.peers.remove(&said.replica).unwrap_or_default();
        self.fold(&mut peer, said, known.is_some(), queues);
        // The new ones first: a sum that does not fall to nothing keeps what was there at the last reading.
        let endpoints = self.endpoints(said);
        self.count(&endpoints, u64::saturating_add);
        self.count(&peer.endpoints, u64::saturating_sub);
        let me = self.me;
        peer.at = now;
        peer.number = said.number;
        peer.fresh = true;
        peer.hears_us = said.hears.contains(&me);
        peer.linked = said.linked;
        peer.lives = said.lives;
        peer.waiting = said.waiting;
        peer.endpoints = endpoints;
        self.peers.insert(said.replica, peer);
        self.totals.heard += 1;
        self.settle(queues);
        Heard::New
    }

    /// Time passed: who fell silent counts no more. True if that changed anything: room may have changed.
    pub fn pass(&mut self, now: Nanos, queues: &mut Admission) -> bool {
        let limit = self.config.stale_after;
        let silent = |peer: &Peer| peer.fresh && now.saturating_sub(peer.at) > limit;
        let silent = self
            .peers
            .iter()
            .filter(|(_, peer)| silent(peer) && !broken(Fault::SilentPeersCount));
        let silent: Vec<ReplicaId> = silent.map(|(id, _)| *id).collect();
        let forget = limit.saturating_mul(REMEMBERED);
        self.peers
            .retain(|_, peer| peer.fresh || now.saturating_sub(peer.at) <= forget);
        if silent.is_empty() {
            return false;
        }
        for id in silent {
            self.totals.silenced += 1;
            let Some(mut peer) = self.peers.remove(&id) else {
                continue;
            };
            let endpoints = std::mem::take(&mut peer.endpoints);
            self.count(&endpoints, u64::saturating_sub);
            peer.fresh = false;
            self.peers.insert(id, peer);
        }
        self.settle(queues);
        true
    }

    /// The next instant at which [`Fleet::pass`] has something to do.
    pub fn wake_at(&self) -> Option<Nanos> {
        let fresh = self.peers.values().filter(|peer| peer.fresh);
        let ends = fresh.map(|peer| peer.at.saturating_add(self.config.stale_after));
        ends.min().map(|end| end.saturating_add(1))
    }

    /// Another number of replicas, this one included. At least 1.
    pub fn set_members(&mut self, members: u32, queues: &mut Admission) {
        self.config.members = members.max(1);
        self.config.max_peers = self.config.max_peers.max(members.saturating_sub(1));
        self.settle(queues);
    }

    /// The queues remember from now on what they serve. Once, before the first [`Fleet::tell`].
    pub fn attach(&mut self, queues: &mut Admission) {
        queues.tell_service();
        self.settle(queues);
    }

    /// It hears every other member, and every other member hears it.
    pub(super) fn linked(&self) -> bool {
        let both = self
            .peers
            .values()
            .filter(|peer| peer.fresh && peer.hears_us);
        both.count() >= self.others()
    }

    fn others(&self) -> usize {
        self.config.members.saturating_sub(1) as usize
    }

    /// One more peer may be listened to: a silent one makes room if need be.
    fn make_room(&mut self) -> bool {
        if self.peers.len() < self.config.max_peers as usize {
            return true;
        }
        let silent = self.peers.iter().filter(|(_, peer)| !peer.fresh);
        let Some(oldest) = silent.min_by_key(|(_, peer)| peer.at).map(|(id, _)| *id) else {
            return false;
        };
        self.peers.remove(&oldest).is_some()
    }

    /// Our standing after a change, and what waits elsewhere.
    fn settle(&mut self, queues: &mut Admission) {
        let fresh = || self.peers.values().filter(|peer| peer.fresh);
        // A link that is broken between two others is told by both: then nobody counts on the whole (INV-Q14).
        let whole = fresh().filter(|peer| peer.hears_us && peer.linked).count() >= self.others();
        let state = match (self.others(), whole) {
            (0, _) => FleetState::Alone,
            (_, true) => FleetState::Whole,
            (_, false) => FleetState::Share,
        };
        let mut elsewhere = Usage::default();
        for peer in fresh() {
            elsewhere.requests = elsewhere.requests.saturating_add(peer.waiting.requests);
            elsewhere.bytes = elsewhere.bytes.saturating_add(peer.waiting.bytes);
            elsewhere.tokens = elsewhere.tokens.saturating_add(peer.waiting.tokens);
        }
        if (self.state, state) == (FleetState::Whole, FleetState::Share) {
            self.totals.fallbacks += 1;
        }
        self.state = state;
        queues.set_beside(Beside {
            elsewhere,
            times: self.times(),
        });
    }

    /// The message's endpoints, as far as they keep the bounds.
    fn endpoints(&mut self, said: &Counters) -> Vec<EndpointLoad> {
        let most = self.config.max_endpoints as usize;
        let sound = said
            .endpoints
            .iter()
            .filter(|row| row.endpoint.len() <= MAX_NAME);
        let sound = sound.map(|row| EndpointLoad {
            tokens: row.tokens.min(MAX_TOKENS),
            ..row.clone()
        });
        let rows: Vec<EndpointLoad> = sound.take(most).collect();
        self.totals.rows_dropped += (said.endpoints.len() - rows.len()) as u64;
        rows
    }

    /// Adds rows to the sums by endpoint, or takes them off.
    fn count(&mut self, rows: &[EndpointLoad], with: impl Fn(u64, u64) -> u64) {
        for row in rows {
            let load = self.loads.entry(Arc::clone(&row.endpoint)).or_default();
            load.requests = with(load.requests, u64::from(row.requests));
            load.tokens = with(load.tokens, row.tokens);
            if (load.requests, load.tokens) == (0, 0) {
                self.loads.remove(&row.endpoint);
            }
        }
    }

    /// What the peer served since its last message, or since it was first heard, counts for the flows here.
    fn fold(
        &mut self,
        peer: &mut Peer,
        said: &Counters,
        heard_before: bool,
        queues: &mut Admission,
    ) {
        let most = self.config.max_flows as usize;
        let sound = |row: &&FlowService| row.fairness.as_str().len() <= MAX_FAIRNESS_BYTES;
        let rows: Vec<&FlowService> = said.flows.iter().filter(sound).take(most).collect();
        self.totals.rows_dropped += (said.flows.len() - rows.len()) as u64;
        let mut news: Vec<(&FlowService, i64)> = Vec::new();
        for row in rows {
            let now = Known {
                service: row.service,
                number: said.number,
            };
            let before = match peer.flows.get_mut(&row.life) {
                Some(known) => std::mem::replace(known, now).service,
                None => {
                    if peer.flows.len() >= most {
                        peer.flows.retain(|_, known| known.number == said.number);
                    }
                    peer.flows.insert(row.life, now);
                    // A life that began since the last message is news from its start; of an older one that was not
                    // told before only what comes next is.
                    match heard_before && row.life > peer.lives || broken(Fault::PeersPastCounts) {
                        true => 0,
                        false => row.service,
                    }
                }
            };
            let before = if broken(Fault::PeersServiceTwice) {
                0
            } else {
                before
            };
            if row.service != before {
                news.push((row, row.service.saturating_sub(before)));
            }
        }
        let max_debt = self.config.max_debt;
        self.totals.flows_unplaced += queues.served_elsewhere(news.into_iter(), max_debt);
    }
}
