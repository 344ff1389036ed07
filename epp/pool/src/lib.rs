//! The core of one pool: admission, scheduler and endpoint table behind one pure step.
//!
//! ```text
//!   Input ──> Pool::step(now, input, prefix, out) ──> Output*
//!              │ admission   who waits, whose turn it is, who is refused
//!              │ scheduler   which endpoint, in which order to fall back
//!              └ table       endpoints by incarnation, what each one runs for us
//! ```
//!
//! No clock, no I/O, no threads: whoever owns a [`Pool`] passes time in and carries outputs out.
//! The same log of inputs gives the same outputs, byte for byte; [`replay`] shows it.

mod core;
mod fleet;
mod flow;
pub mod input;
mod queue;
pub mod replay;
mod table;
mod turn;

pub use core::{ConfigFault, Pool, PoolConfig, Totals};
pub use fleet::FleetView;
pub use flow::FlowControl;
pub use input::{Delta, Ended, Input, Output, Outputs, Request, RequestId, Usage};
pub use queue::QueueView;
pub use wicketgate_admission as admission;
pub use wicketgate_scheduler as scheduler;
