//! The emulated engine: the step model in real time behind vLLM's HTTP surface.
//!
//! ```text
//!  server   accepts, HTTP/1.1 and h2c on one port
//!    router   paths, failures to inject
//!      api/     requests and answers shaped as vLLM's
//!        state    the engine core, the requests in it, counts and histograms, behind one short lock
//!        driver   one task that runs the steps in time and hands tokens to the answers
//!  kvevents/  publishes what the prefix cache holds, over ZMQ
//! ```
//! An answer holds an `InFlight` guard: dropping it (client gone) aborts its requests at once. Answers render
//! the tokens that are there when the connection takes more, so a slow client costs no memory.
//!
//! In a process: [`start`] or [`spawn`], and [`EngineHandle`]. On the command line: [`EngineArgs`] and [`serve`].

mod api;
mod args;
mod body;
mod config;
mod driver;
mod echo;
mod failure;
mod histogram;
mod kvevents;
mod metrics;
mod router;
mod server;
mod sse;
mod state;
mod stats;
mod ticket;

pub use args::EngineArgs;
pub use config::EngineConfig;
pub use failure::{FailureConfig, UsageFault};
pub use kvevents::{KvEventsConfig, KvPublisher, KvShape};
pub use server::{EngineHandle, serve, serve_with, spawn, spawn_with, start};
pub use state::KvEventSink;
pub use stats::EmulatorStats;
