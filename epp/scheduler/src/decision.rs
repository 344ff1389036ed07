//! What a choice answers.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{DecisionRecord, Incarnation};

/// One endpoint to send a request to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Which life of which endpoint.
    pub id: Incarnation,
    /// `ip:port`.
    pub address: Arc<str>,
}

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The profile that chose.
    pub profile: Arc<str>,
    /// The endpoint chosen, then those to fall back to, in this order. Never empty, never the same one twice,
    /// never an ineligible one.
    pub targets: SmallVec<[Target; 4]>,
    /// Why, while the state records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Box<DecisionRecord>>,
}

/// Why there is nowhere to go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NoEndpoint {
    /// The pool has no endpoint, or all of them are draining.
    #[error("the pool has no endpoint")]
    Empty,
    /// The request may be served by a subset only, and it names no endpoint of the pool.
    #[error("the subset names no endpoint of the pool")]
    Subset,
    /// Every endpoint that may serve it is ejected or has its one probe under way.
    #[error("every endpoint is ejected")]
    Ejected,
    /// A filter removed every endpoint that was left.
    #[error("filter {by} removed every endpoint")]
    Filtered {
        /// The filter's name in the configuration.
        by: Arc<str>,
    },
}
