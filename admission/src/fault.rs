//! Deliberate faults, so that tests can show that each rule's check goes red when the rule is broken.
//!
//! Outside of this crate's own tests [`broken`] is a constant `false` and costs nothing.

macro_rules! faults {
    ($($(#[$doc:meta])* $fault:ident,)*) => {
        /// One rule, broken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Fault {
            $($(#[$doc])* $fault,)*
        }

        /// Every fault.
        #[cfg(test)]
        pub(crate) const ALL: &[Fault] = &[$(Fault::$fault,)*];
    };
}

faults! {
    /// Round robin: a flow keeps its turn after it was served.
    TurnIsKept,
    /// Global strict: the newest head goes first.
    StrictByNewest,
    /// DRR: a request costs nothing.
    DrrChargesNothing,
    /// DRR: a flow that left and came back gets its quantum again in the same round.
    DrrRejoinsTheRound,
    /// DRR: weights do not count.
    DrrIgnoresWeight,
    /// DRR: a debt is forgiven when the flow's queue empties.
    DrrForgivesDebt,
    /// VTC: a returning flow keeps its old counter.
    VtcDoesNotLift,
    /// VTC: weights do not count.
    VtcIgnoresWeight,
    /// VTC: requests count, not tokens.
    VtcCountsRequests,
    /// Actual tokens are not reconciled with expected ones.
    NoReconciliation,
    /// First come, last served.
    Lifo,
    /// EDF: deadlines do not count.
    EdfIgnoresDeadlines,
    /// SLO ordering: a request without an aim goes first.
    NoAimGoesFirst,
    /// SJF: the longest goes first.
    LongestFirst,
    /// Aging: old requests are not served out of turn.
    NobodyAges,
    /// Aging: old requests take all they want.
    AgingIsUnbounded,
    /// Floor: no share is kept.
    NoFloor,
    /// Floor: the share is not charged.
    FloorIsUnbounded,
    /// A band's bounds are not looked at.
    BandLimitIgnored,
    /// The global bounds are not looked at.
    GlobalLimitIgnored,
    /// Bytes are not given back on cancel.
    CancelLeaksBytes,
    /// A waiter of the same band is displaced.
    DisplacesEquals,
    /// The oldest waiter is displaced.
    DisplacesOldest,
    /// A waiter is displaced that holds nothing of what there is too much of.
    DisplacesInVain,
    /// Waits end a millisecond late.
    ExpiresLate,
    /// A request may lengthen its band's wait.
    RequestLengthensWait,
    /// A client's deadline is not looked at.
    DeadlineIgnored,
    /// A request whose wait is over may still be dispatched.
    DispatchesExpired,
    /// A cancelled request stays in its queue.
    CancelIsForgotten,
    /// An empty pool dispatches.
    EmptyPoolDispatches,
    /// A wait that ends while the pool is empty says 429.
    EmptyPoolSaysBusy,
    /// The wait for an endpoint runs on the band's budget.
    EmptyPoolSharesBudget,
    /// After an empty pool all go at once.
    ReleaseIsNotPaced,
    /// A refused class is asked about again at once.
    AsksAgain,
    /// A refused class stops its whole band.
    ClassBlocksBand,
    /// A lower band's request of a refused class is tried.
    LowerBypassesRefusal,
    /// A refused class is forgotten when capacity changes.
    NeverAsksAgain,
    /// Lower bands go first.
    LowBandFirst,
    /// The number of flows is not bounded.
    FlowsUnbounded,
    /// Requests of the blocked band itself are evicted.
    EvictsEquals,
    /// The next victims are chosen before the last ones ended.
    EvictsWithoutConfirmation,
    /// The oldest is evicted.
    EvictsOldest,
    /// More victims than a decision allows.
    EvictsWithoutBound,
    /// Fleet: what other replicas served is not counted.
    PeersServiceIgnored,
    /// Fleet: what is given back of tokens that were not charged counts.
    PeersRefundsCountTwice,
    /// Fleet: a message counts again when it comes again.
    PeersServiceTwice,
    /// Fleet: what a peer served before it was first heard is counted.
    PeersPastCounts,
    /// Fleet: requests of other replicas in flight are not counted.
    PeersInFlightIgnored,
    /// Fleet: who is cut off goes on as if it were alone.
    NoShareWhenCutOff,
    /// Fleet: a peer that fell silent counts for ever.
    SilentPeersCount,
    /// Detectors: an old reading counts as fresh.
    StaleCountsAsFresh,
    /// Detectors: what was dispatched since the reading is not counted.
    GateForgetsDispatched,
}

#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn broken(_: Fault) -> bool {
    false
}

#[cfg(test)]
pub(crate) use testing::{broken, with};

#[cfg(test)]
mod testing {
    use std::cell::Cell;

    use super::Fault;

    thread_local! {
        static ACTIVE: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    pub(crate) fn broken(fault: Fault) -> bool {
        ACTIVE.get() == Some(fault)
    }

    /// Runs `check` on this thread with one rule broken.
    pub(crate) fn with<T>(fault: Fault, check: impl FnOnce() -> T) -> T {
        struct Restore;
        impl Drop for Restore {
            fn drop(&mut self) {
                ACTIVE.set(None);
            }
        }
        let _restore = Restore;
        ACTIVE.set(Some(fault));
        check()
    }
}
