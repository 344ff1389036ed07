//! Strict configuration: one YAML file, a superset of llm-d's `EndpointPickerConfig`.
//!
//! ```text
//!  text ──yaml──> nodes with lines ──decode(table)──> value ──serde──> Raw ──build──> Config
//!                                      │                                     │
//!                   unknown keys, wrong types, with line          names, ranges, plugins
//!                   and nearest name                              (check, pools, llmd)
//! ```
//!
//! [`table`] has every key once: the decoder, the JSON Schema and the reference page come from it. All faults of
//! a file are said at once: a faulty part is left out, the checks go on with the rest, and what hangs on the
//! faulty part is not said twice.

mod build;
mod check;
mod decode;
mod endpoints;
mod error;
mod flow;
mod kvindex;
mod llmd;
mod pools;
mod raw;
mod restart;
mod scalar;
mod schema;
mod secret;
pub mod table;
pub mod units;
mod write;
mod yaml;

pub use build::{Config, Fleet, Management, Tls, TlsFiles};
pub use endpoints::{Endpoint, Engine, parse_endpoints};
pub use error::{Errors, Fault, Warning};
pub use flow::{Flow, TrustedProxy};
pub use kvindex::{
    HashCheck, KvEvents, KvIndex, ModelTokens, OnMismatch, Peer, TokenCheck, TokenSource, WarmFrom,
};
pub use pools::Pool;
pub use schema::{json_schema, reference_markdown};
pub use secret::{Secret, SecretError};
