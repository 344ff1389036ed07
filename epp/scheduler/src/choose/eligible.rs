//! Who may serve a request at all: not draining, inside its subset, not ejected.

use std::sync::Arc;

use super::{Candidate, profile::Cycle};
use crate::{
    Endpoint, NoEndpoint,
    endpoint::Availability,
    record::{Removal, Removed},
    subset,
};

/// The eligible endpoints, or the first condition that left none.
pub(super) fn eligible<'a>(cycle: &mut Cycle<'a>) -> Result<Vec<Candidate<'a>>, NoEndpoint> {
    let endpoints = cycle.endpoints;
    let hint = cycle.context.request.subset;
    subset::sort_into(hint.unwrap_or_default(), &mut cycle.scratch.subset);
    let (mut serving, mut inside) = (false, false);
    let mut candidates = Vec::with_capacity(endpoints.len());
    for (at, endpoint) in endpoints.iter().enumerate() {
        if endpoint.draining {
            cycle.remove(endpoint, || Removal::Draining);
            continue;
        }
        serving = true;
        if hint.is_some() && !subset::allows(&cycle.scratch.subset, endpoint.socket()) {
            cycle.remove(endpoint, || Removal::Subset);
            continue;
        }
        inside = true;
        let context = &cycle.context;
        match endpoint
            .health
            .available(context.now, &context.policy.health)
        {
            Availability::No { until } => cycle.remove(endpoint, || Removal::Ejected { until }),
            ready => {
                let probe = ready == Availability::Probe;
                let mut candidate = Candidate::new(endpoint, probe, context);
                candidate.full = cycle.full.get(at).copied().unwrap_or(false);
                candidates.push(candidate);
            }
        }
    }
    if !serving {
        Err(NoEndpoint::Empty)
    } else if !inside {
        Err(NoEndpoint::Subset)
    } else if candidates.is_empty() {
        Err(NoEndpoint::Ejected)
    } else {
        Ok(candidates)
    }
}

impl Cycle<'_> {
    /// Writes down why an endpoint is out, while recording.
    pub(super) fn remove(&mut self, endpoint: &Endpoint, why: impl FnOnce() -> Removal) {
        if let Some(record) = &mut self.record {
            record.removed.push(Removed {
                id: endpoint.id,
                name: Arc::clone(&endpoint.name),
                why: why(),
            });
        }
    }
}
