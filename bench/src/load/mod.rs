//! An open-loop load generator for OpenAI-compatible chat endpoints.
//!
//! Send times are planned before the run and do not wait for answers: a slow server does not slow its load.
//! Latencies count from the planned time, so a stall shows in every request that it held up. How late each request
//! left the generator is measured; a run in which too many did is marked invalid instead of being reported as if
//! it had offered what it promised.
//!
//! ```text
//!  LoadSpec ─> plan (seeded) ─> run ─> one task per request ─> LoadReport
//!              times, bodies,    │     connection, SSE, usage    ok | shed | failed | cancelled, each for itself
//!              cancels           └> Progress, ten times a second
//! ```

mod chats;
mod plan;
mod report;
mod request;
mod run;
mod spec;
mod sse;
mod totals;

pub use plan::{Plan, Planned, plan};
pub use report::{Failed, Lag, LoadReport, Prefix, Rates, Requests, Shed, Tokens};
pub use run::{Progress, Silent, Snapshot, Target, run};
pub use spec::{Arrivals, LoadSpec, SpecError, steps};

pub use crate::measure::Quantiles;

#[cfg(test)]
mod tests;
