//! How a request's wait can end: a closed set, mapped exhaustively to HTTP status, OpenAI error, llm-d's drop
//! reason and outcome, and a metric label. Refused means before the queue, evicted means after.

use serde::{Deserialize, Serialize};

/// How a wait ended. Set once per request.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It got its turn.
    Dispatched,
    /// A limit on waiting requests, bytes or tokens is reached.
    RejectedSaturated,
    /// The pool has no endpoint, and its waiting room is full or closed.
    RejectedNoEndpoints,
    /// The caller's proxy allows none of the pool's endpoints.
    RejectedSubsetEmpty,
    /// Every endpoint that could serve it was ejected after failures.
    RejectedAllEjected,
    /// A filter of the profile removed every endpoint.
    RejectedAllFiltered,
    /// `Prefer: if-available`, and the chosen endpoint holds no cached prefix.
    RejectedNotCached,
    /// It came while the process was shutting down.
    RejectedShuttingDown,
    /// Its wait reached the band's, its own or its client's limit.
    EvictedTtl,
    /// Its wait ended while the pool had no endpoint.
    EvictedNoEndpoints,
    /// Its client went away. Nobody reads a status.
    EvictedCancelled,
    /// Its place was lost when limits became smaller.
    EvictedQueuePressure,
    /// Its place was given to a request of a higher band.
    EvictedPriority,
    /// It waited when the process shut down.
    EvictedShuttingDown,
    /// It was running and was ended for a higher band.
    EvictedRunning,
    /// Our own fault.
    Internal,
}

/// Who caused it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Blame {
    /// Nobody: it was dispatched.
    Nobody,
    /// The caller.
    Client,
    /// The pool's capacity.
    Pool,
    /// This process.
    Internal,
}

/// One row of the table.
struct Row {
    status: Option<u16>,
    drop_reason: Option<&'static str>,
    kind: &'static str,
    code: &'static str,
    llm_d: &'static str,
    blame: Blame,
    retry_after: Option<u32>,
    message: &'static str,
}

const SATURATED: &str = "rejected-saturated";
const NO_ENDPOINTS: &str = "rejected-no-endpoints";
const CLOSING: &str = "rejected-shutting-down";

/// 429: the pool is busy, this request may come again.
const fn busy(drop_reason: &'static str, code: &'static str, message: &'static str) -> Row {
    Row {
        status: Some(429),
        drop_reason: Some(drop_reason),
        kind: "rate_limit_error",
        code,
        llm_d: "RejectedCapacity",
        blame: Blame::Pool,
        retry_after: Some(1),
        message,
    }
}

/// 503: nothing is there that could serve it.
const fn absent(drop_reason: &'static str, code: &'static str, message: &'static str) -> Row {
    Row {
        status: Some(503),
        drop_reason: Some(drop_reason),
        kind: "server_error",
        code,
        llm_d: "RejectedNoEndpoints",
        blame: Blame::Pool,
        retry_after: Some(5),
        message,
    }
}

const fn as_llm_d(row: Row, llm_d: &'static str) -> Row {
    Row { llm_d, ..row }
}

const fn retry(row: Row, seconds: u32) -> Row {
    Row {
        retry_after: Some(seconds),
        ..row
    }
}

/// No answer is owed.
const fn silent(
    drop_reason: Option<&'static str>,
    code: &'static str,
    llm_d: &'static str,
    blame: Blame,
    message: &'static str,
) -> Row {
    Row {
        status: None,
        drop_reason,
        kind: "",
        code,
        llm_d,
        blame,
        retry_after: None,
        message,
    }
}

impl Outcome {
    /// Every variant, for tables in metrics and tests. [`Outcome::index`] points into it.
    pub const ALL: [Outcome; 16] = [
        Outcome::Dispatched,
        Outcome::RejectedSaturated,
        Outcome::RejectedNoEndpoints,
        Outcome::RejectedSubsetEmpty,
        Outcome::RejectedAllEjected,
        Outcome::RejectedAllFiltered,
        Outcome::RejectedNotCached,
        Outcome::RejectedShuttingDown,
        Outcome::EvictedTtl,
        Outcome::EvictedNoEndpoints,
        Outcome::EvictedCancelled,
        Outcome::EvictedQueuePressure,
        Outcome::EvictedPriority,
        Outcome::EvictedShuttingDown,
        Outcome::EvictedRunning,
        Outcome::Internal,
    ];

    /// Its place in [`Outcome::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    const fn row(self) -> Row {
        match self {
            Outcome::Dispatched => silent(None, "dispatched", "Dispatched", Blame::Nobody, ""),
            Outcome::RejectedSaturated => busy(
                SATURATED,
                "saturated",
                "The pool is saturated and its queue is full.",
            ),
            Outcome::RejectedNoEndpoints => absent(
                NO_ENDPOINTS,
                "no_endpoints",
                "The pool has no ready model server.",
            ),
            Outcome::RejectedSubsetEmpty => absent(
                NO_ENDPOINTS,
                "subset_empty",
                "None of the model servers that the proxy allows is in the pool.",
            ),
            Outcome::RejectedAllEjected => absent(
                NO_ENDPOINTS,
                "all_ejected",
                "Every model server of the pool is ejected after failures.",
            ),
            Outcome::RejectedAllFiltered => busy(
                SATURATED,
                "all_filtered",
                "Every model server of the pool is saturated or filtered out.",
            ),
            Outcome::RejectedNotCached => not_cached(),
            Outcome::RejectedShuttingDown => retry(
                as_llm_d(
                    absent(CLOSING, "shutting_down", "The gateway is shutting down."),
                    "RejectedOther",
                ),
                1,
            ),
            Outcome::EvictedTtl => as_llm_d(
                busy(
                    "rejected-ttl-expired",
                    "ttl_expired",
                    "The longest wait passed before a model server was free.",
                ),
                "EvictedTTL",
            ),
            Outcome::EvictedNoEndpoints => as_llm_d(
                absent(
                    NO_ENDPOINTS,
                    "no_endpoints_in_time",
                    "The longest wait passed before the pool had a model server.",
                ),
                "EvictedNoEndpoints",
            ),
            Outcome::EvictedCancelled => silent(
                Some("rejected-context-cancelled"),
                "cancelled",
                "EvictedContextCancelled",
                Blame::Client,
                "The caller went away.",
            ),
            Outcome::EvictedQueuePressure => as_llm_d(
                busy(
                    "evicted-queue-pressure",
                    "queue_pressure",
                    "The queue became too small for this request.",
                ),
                "EvictedOther",
            ),
            Outcome::EvictedPriority => as_llm_d(
                busy(
                    "evicted-priority",
                    "displaced",
                    "The place in the queue went to a more urgent request.",
                ),
                "EvictedOther",
            ),
            Outcome::EvictedShuttingDown => retry(
                as_llm_d(
                    absent(
                        CLOSING,
                        "shutting_down_while_waiting",
                        "The gateway is shutting down.",
                    ),
                    "EvictedOther",
                ),
                1,
            ),
            Outcome::EvictedRunning => as_llm_d(
                busy(
                    "evicted",
                    "evicted",
                    "The request was ended for a more urgent one.",
                ),
                "EvictedOther",
            ),
            Outcome::Internal => internal(),
        }
    }

    /// HTTP status, or `None` when no status is sent: it was dispatched, or its client is gone.
    pub const fn status(self) -> Option<u16> {
        self.row().status
    }

    /// Value of the header `x-llm-d-request-dropped-reason`.
    pub const fn drop_reason(self) -> Option<&'static str> {
        self.row().drop_reason
    }

    /// `error.type` of an OpenAI error body; empty when no status is sent.
    pub const fn error_type(self) -> &'static str {
        self.row().kind
    }

    /// `error.code` of an OpenAI error body, and the metric label: one word of a closed set.
    pub const fn code(self) -> &'static str {
        self.row().code
    }

    /// llm-d's name of it, the `outcome` label of `llm_d_epp_flow_control_requests_total`.
    pub const fn llm_d(self) -> &'static str {
        self.row().llm_d
    }

    /// Who caused it.
    pub const fn blame(self) -> Blame {
        self.row().blame
    }

    /// What to tell the caller.
    pub const fn message(self) -> &'static str {
        self.row().message
    }

    /// `Retry-After` in seconds: the estimated wait, when there is one, between 1 and 60; otherwise a fixed hint.
    /// `None` when another try is not advised.
    pub fn retry_after(self, estimate: Option<crate::Nanos>) -> Option<u32> {
        let hint = self.row().retry_after?;
        let Some(estimate) = estimate else {
            return Some(hint);
        };
        let seconds = estimate.div_ceil(crate::SECOND).clamp(1, 60);
        Some(u32::try_from(seconds).unwrap_or(60).max(hint))
    }
}

const fn not_cached() -> Row {
    Row {
        status: Some(412),
        drop_reason: None,
        kind: "invalid_request_error",
        code: "not_cached",
        llm_d: "RejectedOther",
        blame: Blame::Client,
        retry_after: None,
        message: "No model server holds a cached prefix of this request.",
    }
}

const fn internal() -> Row {
    Row {
        status: Some(500),
        drop_reason: None,
        kind: "server_error",
        code: "internal_error",
        llm_d: "RejectedOther",
        blame: Blame::Internal,
        retry_after: None,
        message: "The gateway failed on this request.",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_lists_every_variant_at_its_index() {
        for (i, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome.index(), i);
        }
        let codes: BTreeSet<_> = Outcome::ALL.into_iter().map(Outcome::code).collect();
        assert_eq!(codes.len(), Outcome::ALL.len());
    }

    /// The table of llm-d, less its faults: a client that went away gets no status, and internal is 500.
    #[test]
    fn statuses_and_drop_reasons() {
        let rows: Vec<_> = Outcome::ALL
            .into_iter()
            .map(|o| (o.status(), o.drop_reason(), o.llm_d()))
            .collect();
        let (none, s) = (None, Some);
        assert_eq!(
            rows,
            [
                (none, None, "Dispatched"),
                (s(429), Some("rejected-saturated"), "RejectedCapacity"),
                (s(503), Some("rejected-no-endpoints"), "RejectedNoEndpoints"),
                (s(503), Some("rejected-no-endpoints"), "RejectedNoEndpoints"),
                (s(503), Some("rejected-no-endpoints"), "RejectedNoEndpoints"),
                (s(429), Some("rejected-saturated"), "RejectedCapacity"),
                (s(412), None, "RejectedOther"),
                (s(503), Some("rejected-shutting-down"), "RejectedOther"),
                (s(429), Some("rejected-ttl-expired"), "EvictedTTL"),
                (s(503), Some("rejected-no-endpoints"), "EvictedNoEndpoints"),
                (
                    none,
                    Some("rejected-context-cancelled"),
                    "EvictedContextCancelled"
                ),
                (s(429), Some("evicted-queue-pressure"), "EvictedOther"),
                (s(429), Some("evicted-priority"), "EvictedOther"),
                (s(503), Some("rejected-shutting-down"), "EvictedOther"),
                (s(429), Some("evicted"), "EvictedOther"),
                (s(500), None, "RejectedOther"),
            ]
        );
    }

    #[test]
    fn what_may_come_again_says_when() {
        for outcome in Outcome::ALL {
            let again = matches!(outcome.status(), Some(429 | 503));
            assert_eq!(outcome.retry_after(None).is_some(), again, "{outcome:?}");
            assert_eq!(
                outcome.status().is_none(),
                outcome.error_type().is_empty(),
                "{outcome:?}"
            );
        }
        let busy = Outcome::RejectedSaturated;
        assert_eq!(busy.retry_after(Some(0)), Some(1));
        assert_eq!(busy.retry_after(Some(2_500_000_000)), Some(3));
        assert_eq!(busy.retry_after(Some(u64::MAX)), Some(60));
        assert_eq!(
            Outcome::RejectedNoEndpoints.retry_after(Some(1)),
            Some(5),
            "an empty pool is never back at once"
        );
    }

    #[test]
    fn only_internal_blames_us() {
        for outcome in Outcome::ALL {
            let ours = outcome.blame() == Blame::Internal;
            assert_eq!(ours, outcome.status() == Some(500), "{outcome:?}");
        }
        assert_eq!(Outcome::EvictedCancelled.blame(), Blame::Client);
    }
}
