//! The HTTP front: an OpenAI-compatible gateway that also carries the bytes.
//!
//! [`server`] accepts and parses, [`proxy`] walks one request through the pipeline and down its fallback list,
//! [`upstream`] keeps connections to endpoints, [`relay`] streams the answer back, [`head`] edits headers. [`edge`]
//! and [`framing`] see what the parser does not tell.

mod edge;
mod framing;
mod head;
mod proxy;
mod relay;
mod server;
mod upstream;

pub use server::{Limits, serve};
pub use upstream::{UpstreamPolicy, Upstreams};
