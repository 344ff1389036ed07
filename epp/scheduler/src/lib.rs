//! Pure choice of an endpoint: filters remove, scorers rank, a picker chooses.
//!
//! ```text
//!   RequestView ┐
//!   Snapshot    ├─> Scheduler::choose ─> Decision { ordered targets, record }
//!   State       ┘     1 eligible   not draining, inside the subset, not ejected
//!                     2 filters    each removes some; none left ends the search
//!                     3 tiers      weighted before stand-by, able before full, observed before never scraped
//!                     4 scorers    total = ramp(age) x sum of weight x clamp01(score)
//!                     5 picker     draws the target, then each fallback behind it
//! ```
//!
//! No clock, no I/O, no threads. Time is an argument, randomness lives in [`State`], and a
//! [`SchedulerSpec`] is plain data: the same spec, state and inputs give the same decision, bit for bit.
//!
//! - [`endpoint`]: a row of the pool's table: telemetry with its age, own load, health.
//! - [`spec`]: which plugins run with which parameters, under the names of the llm-d dialect.
//! - [`record`]: why a decision fell as it did.
//!
//! # What an endpoint nobody has observed scores
//! *No observation is not zero.* A scorer that lacks its signal for an endpoint (never scraped, older than
//! [`SchedulerPolicy::stale_after`], not a number) abstains there, and the endpoint takes no part in the
//! scorer's minimum and maximum. It then contributes [`Neutral`]: by default the lowest score among the
//! observed candidates. If nobody is observed, the scorer contributes nothing for anybody.
//! Besides, in a profile that reads telemetry an endpoint that was *never* scraped is chosen only when no
//! scraped one is left, or in the share of picks that [`SchedulerPolicy::explore`] gives away.

mod choose;
mod decision;
pub mod endpoint;
mod filter;
mod picker;
mod policy;
pub mod record;
mod request;
mod scorer;
pub mod spec;
mod state;
mod subset;

pub use choose::{Scheduler, Snapshot};
pub use decision::{Decision, NoEndpoint, Target};
pub use endpoint::{
    Adapters, Availability, Endpoint, EndpointSpec, Health, HealthPolicy, Incarnation, Load,
    Missing, Reading, Sample, Telemetry,
};
pub use policy::{Neutral, SchedulerPolicy, SlowStart};
pub use record::DecisionRecord;
pub use request::{NoPrefix, PrefixView, RequestView};
pub use scorer::session::{decode_token, encode_token};
pub use spec::{
    PLUGIN_TYPES, PluginError, PluginErrorKind, PluginSpec, SchedulerSpec, SpecError,
    plugin_from_parameters,
};
pub use state::State;
pub use subset::{Subset, SubsetEntry, parse_subset};

/// An instant in nanoseconds on the caller's monotonic clock; also a length of time.
pub type Nanos = u64;

/// One second.
pub const SECOND: Nanos = 1_000_000_000;

#[cfg(test)]
mod tests;
