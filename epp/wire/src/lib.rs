//! Total parsers and byte editors. Every function gives an answer for every input; none panics, none copies a
//! body, none builds a tree.
//!
//! - [`json`]: a validating scanner that walks a text once.
//! - [`request`]: what matters of a request body, as spans into it.
//! - [`edit`]: splices that change those spans and leave every other byte alone.
//! - [`response`]: usage, errors and the first token, read from bytes that pass by in any pieces.
//! - [`metrics`]: the few series of an engine's metrics page that routing needs.

pub mod edit;
pub mod json;
pub mod metrics;
pub mod request;
pub mod response;

pub use edit::{ObjectEdit, Splice};
pub use json::{ScanError, Span, Text};
pub use metrics::{
    EngineKind, LoraSample, MetricsSample, RankSample, detect, scan_into, scan_metrics,
};
pub use request::{Api, Prompt, RequestFacts, scan_request, scan_unknown};
pub use response::{Usage, UsageObserver};
