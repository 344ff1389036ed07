//! Takes over what another replica heard of an engine, if it is the same life of its publisher.
//!
//! A number and a time of the engine's clock name a message of one life: a publisher counts anew when it restarts, and
//! what it says under the same number then has another time. There are three ways to be sure:
//!
//! - the engine repeats the last message that the other one counts in, and then all that came since;
//! - that message is the last one that we have heard ourselves;
//! - the other one hears the engine right now, and our own connection stood before it was asked: then neither a message
//!   nor a restart can lie between. What waits on our connection goes on from there.
//!
//! Otherwise nothing is taken over, and nothing changes.

use std::sync::Arc;

use tokio::sync::oneshot;
use wicketgate_kvindex::index::{EndpointSnapshot, SnapshotError};

use super::{
    replay::{self, Ended},
    source::{Position, Task},
};

/// What another replica heard.
#[derive(Clone, Debug)]
pub struct Heard {
    /// What it holds of the engine.
    pub snapshot: Arc<EndpointSnapshot>,
    /// Connections that our source had when the other one was asked, if that one hears the engine on a connection that
    /// stands.
    pub vouched: Option<u64>,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adopted {
    /// It is in the index now: so many blocks.
    Taken(u64),
    /// We know as much ourselves.
    Known,
    /// The engine has another life by now.
    OtherLife,
    /// Nobody can say whether it is the same life.
    Unsure,
    /// Nobody listens to this engine.
    Silent,
    /// The index does not take it.
    Refused(SnapshotError),
}

/// What is handed to a source's task, and where the answer goes.
#[derive(Debug)]
pub(super) struct Adoption {
    pub(super) heard: Heard,
    pub(super) done: oneshot::Sender<Adopted>,
}

impl Task {
    /// Takes over what another replica heard, or leaves everything as it is.
    pub(super) async fn adopt(&self, position: &mut Position, heard: &Heard) -> Adopted {
        let snapshot = &heard.snapshot;
        let own = self.index.since(self.id);
        if own.is_some_and(|own| own <= snapshot.since) && position.cursor.last().is_some() {
            return Adopted::Known;
        }
        let (last, published) = (snapshot.last, snapshot.published);
        if position.cursor.stands_at(last, published) {
            return self.take_over(position, snapshot).await;
        }
        if let Some(address) = &self.replay {
            return self.adopt_repeated(position, snapshot, address).await;
        }
        let stats = self.shared.stats();
        let stood = stats.connected && heard.vouched == Some(stats.counts.connects);
        if !stood || position.cursor.last().is_some() {
            return Adopted::Unsure;
        }
        let taken = self.take_over(position, snapshot).await;
        if matches!(taken, Adopted::Taken(_)) {
            position.vouched = heard.vouched;
            position.overlap = true;
        }
        taken
    }

    /// Lets the engine repeat the last message that counts in and what came since.
    async fn adopt_repeated(
        &self,
        position: &mut Position,
        snapshot: &Arc<EndpointSnapshot>,
        address: &str,
    ) -> Adopted {
        self.shared.note(|state| state.catching_up = true);
        let mut trial = replay::Trial::of(snapshot);
        let ended = replay::replay(self, address, position, snapshot.last, Some(&mut trial)).await;
        self.shared.note(|state| {
            state.catching_up = false;
            let failed = !matches!(ended, Ended::Done | Ended::OtherLife);
            state.counts.replay_failures += u64::from(failed);
        });
        match trial.taken {
            Some(taken) => {
                position.cursor.replay_over();
                position.overlap = true;
                taken
            }
            None if ended == Ended::OtherLife => Adopted::OtherLife,
            None => Adopted::Unsure,
        }
    }

    /// Puts it into the index and goes on behind it.
    pub(super) async fn take_over(
        &self,
        position: &mut Position,
        snapshot: &Arc<EndpointSnapshot>,
    ) -> Adopted {
        let (index, id, from) = (Arc::clone(&self.index), self.id, Arc::clone(snapshot));
        // It takes a while for a large one, and this thread hears other engines too.
        let replaced = tokio::task::spawn_blocking(move || index.replace(id, &from)).await;
        match replaced {
            Ok(Ok(blocks)) => {
                position.cursor.resume(snapshot.last, snapshot.published);
                position.vouched = None;
                Adopted::Taken(blocks)
            }
            Ok(Err(SnapshotError::Unknown)) => Adopted::Silent,
            failed => {
                // Everything is forgotten in the index; the next message begins anew.
                position.cursor.lost();
                self.index.clear(self.id);
                Adopted::Refused(match failed {
                    Ok(Err(error)) => error,
                    _ => SnapshotError::Full,
                })
            }
        }
    }
}
