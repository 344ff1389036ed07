//! The request path.
//!
//! ```text
//!  Envoy ──gRPC──> extproc ─┐                        ┌─> scheduler
//!                           ├─> exchange ─> pipeline ─> shell ─> pool
//!  client ──HTTP──> http ───┘      (sans I/O)              (one short lock)
//!                     └─> endpoints                discovery, telemetry ─^
//! ```
//!
//! [`exchange`] is one request's life as a state machine; [`extproc`] and [`http`] only move bytes for it.
//! [`shell`] owns the pools and their guards, [`discovery`] and [`telemetry`] feed them, [`admin`] shows them,
//! [`prefix`] knows what they have cached, from what [`kvevents`] takes in, [`engine`] asks them questions, and [`fleet`]
//! talks to other replicas. [`management`] is where state is changed from outside. [`gateway`] wires all of it from a
//! configuration.

pub mod admin;
pub mod clock;
pub mod configure;
pub mod discovery;
pub mod engine;
pub mod exchange;
pub mod extproc;
pub mod fleet;
pub mod gateway;
pub mod headers;
pub mod http;
pub mod kvevents;
pub mod management;
pub mod metrics;
pub mod net;
pub mod outcome;
pub mod pipeline;
pub mod prefix;
mod readiness;
pub mod shell;
mod small;
pub mod telemetry;
pub mod tls;
pub mod trust;
