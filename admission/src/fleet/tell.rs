//! What this replica says.

use super::{Counters, EndpointLoad, Fleet, Queued};
use crate::{Admission, Nanos};

/// A change of a flow's service is told for so many times `stale_after`: who hears less often than that is stale.
const TOLD_FOR: Nanos = 2;

impl Fleet {
    /// The next message: the queues' waiting requests and service, and our requests in flight by endpoint.
    pub fn tell(
        &mut self,
        now: Nanos,
        queues: &Admission,
        loads: impl IntoIterator<Item = EndpointLoad>,
    ) -> Counters {
        self.number += 1;
        let (requests, bytes, tokens) = queues.used();
        let since = now.saturating_sub(self.config.stale_after.saturating_mul(TOLD_FOR));
        let fresh = self.peers.iter().filter(|(_, peer)| peer.fresh);
        let loads = loads
            .into_iter()
            .filter(|load| load.requests > 0 || load.tokens > 0);
        Counters {
            replica: self.me,
            number: self.number,
            hears: fresh.map(|(id, _)| *id).collect(),
            linked: self.linked(),
            waiting: Queued {
                requests,
                bytes,
                tokens,
            },
            running: queues.running() as u64,
            endpoints: loads.take(self.config.max_endpoints as usize).collect(),
            lives: queues.lives(),
            flows: queues
                .service(since)
                .take(self.config.max_flows as usize)
                .collect(),
        }
    }
}
