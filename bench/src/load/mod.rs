//! An open-loop load generator.
//!
//! Send times are planned before the first request and do not wait for answers: a slow server does not slow its
//! load. Latencies count from the planned time, so a stall shows in every request that it held up. Requests that
//! went out late are counted, and a run in which too many did is marked invalid rather than reported as if it had
//! offered what it promised.

mod plan;
mod report;
mod send;

pub use plan::{LoadSpec, Planned, plan};
pub use report::{Latency, LoadReport, Requests};
pub use send::{Progress, Silent, run};

#[cfg(test)]
mod tests;
