//! Load and measurements.
//!
//! - [`load`]: an open-loop load generator: planned send times, latency from the plan, honest about lateness.
//! - [`client`]: a small HTTP/1.1 client that keeps connections and reads streams.
//! - [`envoy`]: Envoy as a child process, from the configurations in `manifests/envoy`.
//! - [`command`]: `wicketgate bench ...`.

pub mod client;
mod command;
pub mod envoy;
pub mod load;

pub use command::{BenchCommand, bench};
