//! Strict configuration: one YAML file, a superset of llm-d's `EndpointPickerConfig`.
//!
//! ```text
//!  text ──yaml──> nodes with lines ──decode(table)──> value ──serde──> Raw ──build──> Config
//!                                      │                                     │
//!                   unknown keys, wrong types, with line          names, ranges, plugins
//!                   and nearest name; all of them at once
//! ```
//!
//! [`table`] has every key once: the decoder, the JSON Schema and the reference page come from it.

mod build;
mod decode;
mod endpoints;
mod error;
mod llmd;
mod raw;
mod schema;
pub mod table;
pub mod units;
mod write;
mod yaml;

pub use build::{Config, Pool, Tls, TlsFiles};
pub use endpoints::{Endpoint, Engine, parse_endpoints};
pub use error::{Errors, Fault, Warning};
pub use schema::{json_schema, reference_markdown};
