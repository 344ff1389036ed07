//! The gate: can some eligible endpoint start this request now?
//!
//! [`Admission`](crate::Admission) asks through the [`Gate`] trait and knows nothing of endpoints. [`PoolGate`] is the
//! gate over endpoint views: a detector says how full each is, a usage limit how full each band may make it.

mod config;
mod detect;
mod pool;
#[cfg(test)]
mod tests;
mod usage;
mod view;

pub use config::{Concurrency, ConcurrencyMode};
pub use config::{Detector, GateConfig, Headroom, Scope, Staleness, Utilization};
pub use detect::{Saturation, saturation};
pub use pool::PoolGate;
pub use usage::{CeilingDomain, Shape, UsageLimit, UsageLimitState, without_queues};
pub use view::{EndpointView, Reading, Role};

use crate::{ClassId, Cost, Nanos};

/// What the gate is told about the request whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Its number.
    pub id: u64,
    /// Which endpoints may serve it.
    pub class: ClassId,
    /// Its own band.
    pub priority: i32,
    /// The band whose ceiling counts: a higher one when the request goes out of turn against starvation.
    pub ceiling_of: i32,
    /// What it is expected to cost.
    pub cost: Cost,
    /// When it entered the queue.
    pub since: Nanos,
}

/// What the gate says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// An endpoint can start it; the caller dispatches it now.
    Start,
    /// None of its class can. The class is not asked about again, in its band and below, before
    /// [`Admission::capacity_changed`](crate::Admission::capacity_changed).
    NotNow,
    /// No class can start at this ceiling.
    Closed,
}

/// Who knows the endpoints.
pub trait Gate {
    /// Can some eligible endpoint start this request now? `Start` is followed by its dispatch, so a gate may count it.
    fn can_start(&mut self, ask: &Ask) -> Answer;
}

impl<F: FnMut(&Ask) -> Answer> Gate for F {
    fn can_start(&mut self, ask: &Ask) -> Answer {
        self(ask)
    }
}
