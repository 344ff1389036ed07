//! One workload for every prefix index that is compared: the same blocks in the same order, measured by the same code.
//!
//! ```text
//! bench index ──line: Task──> child: serve::<ours>        workload: blocks, events
//!             <─line: Report─         │                   tasks: what is done with them, and timed
//!             ──line: Task──> bench/peers: serve::<theirs>   measure: clocks, quantiles, bytes of the allocator
//! ```
//!
//! Every index runs in a process of its own, so that memory and threads are its own; the parent asks them in turn, so
//! that what else the machine does falls on all of them. An index is a [`Subject`]; it prepares its own form of events
//! and queries before any clock starts.
//!
//! This crate knows no index, so that those it is built with need nothing of ours but this.

mod measure;
mod serve;
mod tasks;
mod workload;

pub use measure::{Quantiles, Rate};
pub use serve::serve;
pub use tasks::{Busy, Report, Shape, Task, busy};
pub use workload::Block;

/// An index under test. Endpoints are numbered from 0.
pub trait Subject {
    /// What an engine says once, in the form that this index takes.
    type Event;
    /// A prompt, in the form that this index takes.
    type Query;
    /// What lookups go through.
    type Reader: Reader<Query = Self::Query>;

    /// The work of [`Subject::apply`] is done on the calling thread, so that its CPU time is that thread's.
    const ON_THIS_THREAD: bool = true;

    /// An empty index that listens to so many endpoints.
    fn new(endpoints: usize) -> Self;

    /// Blocks that `endpoint` has stored, in order; `parent` is the one before the first.
    fn stored(endpoint: usize, parent: Option<&Block>, blocks: &[Block]) -> Self::Event;

    /// Blocks that `endpoint` has removed, in this order.
    fn removed(endpoint: usize, blocks: &[Block]) -> Self::Event;

    /// Applies all events in order and returns when that is done. It may take them or leave them.
    fn apply(&mut self, events: &mut Vec<Self::Event>);

    /// Takes one event, which may be applied a little later.
    fn send(&mut self, event: Self::Event) {
        self.apply(&mut vec![event]);
    }

    /// A view for lookups.
    fn reader(&self) -> Self::Reader;

    /// A prompt of these blocks.
    fn query(blocks: &[Block]) -> Self::Query;

    /// From a prompt's tokens, in blocks of [`BLOCK_TOKENS`], to a query.
    fn hashed(tokens: &[u32]) -> Self::Query;
}

/// Lookups in an index.
pub trait Reader {
    /// A prompt.
    type Query;

    /// Endpoints that hold at least the first block. This is what is timed.
    fn lookup(&mut self, query: &Self::Query) -> usize;

    /// Blocks of the prompt that endpoints hold without a hole, summed over all of them.
    fn blocks(&mut self, query: &Self::Query) -> u64;
}

/// Tokens of a block.
pub const BLOCK_TOKENS: usize = 16;
