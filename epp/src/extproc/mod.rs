//! The ext_proc front: Envoy carries the bytes, we answer its questions.
//!
//! [`proto`] has the messages, [`translate`] turns them into events and commands into answers, [`session`]
//! drives one stream, [`service`] is the gRPC server around them.

pub mod proto;
mod service;
mod session;
mod translate;

pub use service::{SERVICE_NAME, serve};
