//! End-to-end tests on real parts: real Envoy, real processes, emulated engines, the official OpenAI client.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test that panics has failed, which is its job"
)]

mod commands;
mod envoy_failures;
mod envoy_life;
mod envoy_modes;
mod envoy_picks;
mod extproc_faults;
mod extproc_phases;
mod extproc_rules;
mod extproc_stream;
mod field_cases;
mod fleet;
mod kvevents;
mod openai;
mod prefix;
mod queue;
mod replay;
mod serve_answers;
mod serve_bodies;
mod serve_failures;
mod serve_life;
mod serve_slow;
mod serve_wire;
mod soak;
mod tokens;
mod warm;

use std::path::Path;

/// The binary under test.
fn wicketgate() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_wicketgate"))
}

/// A pool without endpoints answers at once.
const NO_HOLD: &str = "admission: {noEndpoints: {hold: false}}\n";
