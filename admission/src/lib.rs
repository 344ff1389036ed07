//! Who waits, for how long, and who is refused: pure admission for one pool.
//!
//! ```text
//!   Item ──> Admission::enqueue ──> bands by priority
//!                │ refused:           └ fairness between flows: global-strict, round-robin, drr, vtc
//!                │ bounds, TTL           └ ordering inside a flow: fcfs, edf, slo-deadline, sjf
//!   Admission::next(now, gate) ──> Dispatch     starvation: strict, aging, floor
//!                └ Gate: can some eligible endpoint start this one now? (utilization, concurrency, headroom)
//!   Admission::expire / cancel / complete / evict / pool_state
//! ```
//!
//! No clock, no I/O, no threads, no randomness: time is an argument and never goes back, endpoints are views behind
//! the [`gate::Gate`] trait, and the same calls give the same answers.
//!
//! A turn of the caller, on any event: [`Admission::expire`], then [`Admission::next`] until it says `None`, then a
//! timer for [`Admission::wake_at`]. When an endpoint ended something or was read anew, [`Admission::capacity_changed`]
//! comes first: a class that the gate refused is not asked about again before.
//!
//! With several replicas in front of one pool a [`fleet::Fleet`] stands beside the queues: it tells the others what this
//! one does, and folds in what they tell.
//!
//! What holds between calls, with formulas, is in `docs/invariants.md` (INV-Q1 and on); [`Admission::audit`] checks the part
//! that can be seen at one instant.

mod config;
mod core;
mod evict;
mod fairness;
mod fault;
pub mod fleet;
pub mod gate;
pub mod headers;
mod outcome;
mod starvation;
mod store;
#[cfg(test)]
mod tests;
mod types;

pub use config::{
    AdmissionConfig, BandConfig, ConfigError, DEFAULTS, DefaultRow, EvictionConfig, Fairness,
    Limits, NoEndpoints, Ordering, Starvation, UnknownPolicy, Wait, defaults_table,
};
pub use core::{Admission, BandStats, Dispatch, Ended, FlowStats, Totals, Turn};
pub use evict::Pressure;
pub use outcome::{Blame, Outcome};
pub use types::{ClassId, Cost, FairnessId, Item, MAX_COST, MILLISECOND, Nanos, SECOND};
