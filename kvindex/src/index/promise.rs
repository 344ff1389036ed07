//! Picks promise what endpoints will hold.

use std::sync::atomic::Ordering;

use super::{
    EndpointId, Index,
    lane::tweak,
    matches::strided,
    member::{Member, Promised},
    predictions::Predictions,
};
use crate::{Nanos, keys::Key};

impl Index {
    /// A pick promises that an endpoint will hold a prompt, until `expires`; false if it is not known.
    pub fn predict(&self, id: EndpointId, keys: &[Key], expires: Nanos) -> bool {
        let Some(member) = self.members.get(id) else {
            return false;
        };
        let stride = member.stride.load(Ordering::Relaxed).max(1);
        let key = strided(keys, stride, tweak(stride));
        let keys: Vec<u64> = (0..keys.len() / stride as usize).filter_map(key).collect();
        {
            let mut promised = member.promised.lock();
            let Some(predictions) = self.predictions(&member, &mut promised) else {
                return false;
            };
            self.strides.fetch_or(1 << (stride - 1), Ordering::Release);
            predictions.add(&self.store, &keys, expires);
            self.count_promised(&member, &promised);
        }
        self.make_room();
        true
    }

    fn predictions<'p>(
        &self,
        member: &Member,
        promised: &'p mut Promised,
    ) -> Option<&'p mut Predictions> {
        if promised.dead {
            return None;
        }
        if promised.predictions.is_none() {
            let lane = self.members.lane(member.slot, true)?;
            let mut predictions = Predictions::new(lane);
            predictions.bound(&self.store, promised.room);
            promised.predictions = Some(predictions);
        }
        promised.predictions.as_mut()
    }

    /// Bounds what predictions of an endpoint hold, in blocks of ours: the cache size that its engine reports. What ends
    /// first goes first. `None` takes the bound away.
    pub fn bound_predictions(&self, id: EndpointId, blocks: Option<usize>) -> bool {
        let Some(member) = self.members.get(id) else {
            return false;
        };
        let mut promised = member.promised.lock();
        promised.room = blocks;
        if let Some(predictions) = &mut promised.predictions {
            predictions.bound(&self.store, blocks);
        }
        self.count_promised(&member, &promised);
        true
    }

    /// Ends predictions that expire at `now` or before. Until this is called they still count.
    ///
    /// Returns when the next one ends.
    pub fn expire(&self, now: Nanos) -> Option<Nanos> {
        let mut next = Nanos::MAX;
        for member in self.members.all() {
            if member.due.load(Ordering::Relaxed) <= now {
                let mut promised = member.promised.lock();
                if let Some(predictions) = &mut promised.predictions {
                    predictions.expire(&self.store, now);
                }
                self.count_promised(&member, &promised);
            }
            next = next.min(member.due.load(Ordering::Relaxed));
        }
        (next != Nanos::MAX).then_some(next)
    }
}
