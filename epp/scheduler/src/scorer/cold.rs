//! New prompts go where new prompts went least recently, so that caches fill evenly.

use std::sync::Arc;

use super::{Dispatch, Scorer};
use crate::{
    Incarnation,
    choose::{Candidate, Context, Reads},
    spec,
    state::{Sessions, sessions::Limits},
};

/// If anybody holds a part of the prompt everybody scores 0.5. Else `1 - rank / (n - 1)`: first those that never got a
/// new prompt, then by how long ago the last one was.
#[derive(Debug)]
pub(super) struct Cold {
    /// The plugin's name, under which its order is kept.
    name: Arc<str>,
    limits: Limits,
}

impl Cold {
    pub(super) fn new(name: &Arc<str>, spec: &spec::NoHitLru) -> Cold {
        Cold {
            name: Arc::clone(name),
            limits: Limits {
                ttl: u64::MAX,
                most: spec.lru_size as usize,
            },
        }
    }
}

fn key(id: Incarnation) -> String {
    id.0.to_string()
}

impl Scorer for Cold {
    fn score(&self, context: &Context<'_>, candidates: &[Candidate<'_>], scores: &mut Vec<f64>) {
        if candidates.iter().any(|candidate| candidate.cached > 0) {
            return scores.extend(candidates.iter().map(|_| 0.5));
        }
        let turn = |c: &Candidate<'_>| context.sessions.turn(&self.name, &key(c.endpoint.id));
        let turns: Vec<Option<u64>> = candidates.iter().map(turn).collect();
        let last = candidates.len().saturating_sub(1).max(1) as f64;
        scores.extend((0..).zip(&turns).map(|(at, turn)| {
            // Of those that never got one the first in the list comes first.
            let before = |(other, its): &(usize, &Option<u64>)| (**its, *other) < (*turn, at);
            let rank = (0..).zip(&turns).filter(before).count();
            1.0 - rank as f64 / last
        }));
    }

    fn reads(&self) -> Reads {
        Reads::PREFIX
    }

    fn dispatched(&self, dispatch: &Dispatch<'_>, sessions: &mut Sessions) {
        if dispatch.cold {
            let (target, now) = (dispatch.target, dispatch.now);
            sessions.bind(&self.name, &key(target), target, now, self.limits);
        }
    }
}
