//! Why a pool says no. Closed: every consumer maps every variant.

use serde::{Deserialize, Serialize};

/// Why a request got no place.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash, Serialize, Deserialize)]
pub enum Refusal {
    /// The pool has no endpoint, or all of them are leaving.
    NoEndpoints,
    /// The caller's proxy allows none of the pool's endpoints.
    SubsetEmpty,
    /// Every endpoint that could serve it was ejected after failures.
    AllEjected,
    /// A filter of the profile removed every endpoint.
    AllFiltered,
    /// Its deadline passed before it could be placed.
    DeadlinePassed,
    /// The process is shutting down.
    ShuttingDown,
}

impl Refusal {
    /// Every variant, for tables in metrics and tests.
    pub const ALL: [Refusal; 6] = [
        Refusal::NoEndpoints,
        Refusal::SubsetEmpty,
        Refusal::AllEjected,
        Refusal::AllFiltered,
        Refusal::DeadlinePassed,
        Refusal::ShuttingDown,
    ];
}
