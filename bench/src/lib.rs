//! Load generator, benchmarks, and Envoy as a child process.
//!
//! ```text
//!  BenchCommand ─> command/   schedule  scrape  extproc  serve  load
//!                     │      admission     └──────┴───────┤        │
//!                     │           │                     child      load ─> any OpenAI-compatible target
//!                     │      the crates            gateway, floor,
//!                     └ report: table, JSON,       upstream, pages
//!                       exit code 3 if invalid    (one process each)
//! ```
//!
//! [`load`] is the open-loop generator, a plain library; the demo uses it too. The benchmarks measure what the
//! binary runs: the real gateway, in a process of its own, so that its CPU time and memory are its own.
//! [`envoy`] starts a real Envoy with the manifests of this repository. Nothing here listens on anything but the
//! loopback.
//!
//! `index` compares prefix indexes: each in a process of its own, under one workload that the crate
//! `wicketgate-bench-index` makes, times and checks. Others' are in `bench/peers`, which is no part of the workspace.

mod child;
mod client;
mod command;
pub mod envoy;
pub mod load;
mod measure;
mod pages;
mod raw;
mod report;
mod text;

pub use command::{BenchCommand, bench};
