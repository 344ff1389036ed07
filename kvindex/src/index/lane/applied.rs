//! What events did.

/// Counts of what events did, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Blocks stored, copies included.
    pub stored: u64,
    /// Blocks removed, copies included.
    pub removed: u64,
    /// Blocks that wait for their predecessor.
    pub orphaned: u64,
    /// Waiting blocks whose predecessor came.
    pub joined: u64,
    /// Removed blocks, or stored ones without tokens, that are not known.
    pub unknown: u64,
    /// Hashes that named another block before.
    pub mismatched: u64,
    /// Blocks that cannot be indexed: not of full attention, or of a size that does not fit ours.
    pub unsupported: u64,
    /// Times that everything was cleared.
    pub cleared: u64,
    /// Blocks given up for room.
    pub evicted: u64,
}

impl Applied {
    /// Adds other counts.
    pub fn add(&mut self, other: &Applied) {
        self.stored += other.stored;
        self.removed += other.removed;
        self.orphaned += other.orphaned;
        self.joined += other.joined;
        self.unknown += other.unknown;
        self.mismatched += other.mismatched;
        self.unsupported += other.unsupported;
        self.cleared += other.cleared;
        self.evicted += other.evicted;
    }
}
