//! The core of one pool: admission, scheduler and endpoint table behind one pure step.
//!
//! ```text
//!   Input ──> Pool::step(now, input, prefix, out) ──> Output*
//!              │ admission   dispatch at once, or refuse
//!              │ scheduler   which endpoint, in which order to fall back
//!              └ table       endpoints by incarnation, what each one runs for us
//! ```
//!
//! No clock, no I/O, no threads: whoever owns a [`Pool`] passes time in and carries outputs out.
//! The same log of inputs gives the same outputs, byte for byte; [`replay`] shows it.

mod core;
pub mod input;
pub mod outcome;
pub mod replay;
mod table;

pub use core::{Pool, PoolConfig, Totals};
pub use input::{Delta, Ended, Input, Output, Outputs, Request, RequestId, Usage};
pub use outcome::Refusal;
pub use wicketgate_scheduler as scheduler;
