//! Faults on purpose.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Faults of an engine or of one request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Failure {
    /// Answer with this status instead of working.
    pub status: Option<u16>,
    /// Share of requests that get `status`; all of them when absent.
    pub rate: Option<f64>,
    /// Milliseconds to wait before the answer's headers.
    pub slow_ms: u64,
    /// Send this many events of a stream, then nothing more, for ever.
    pub stall_after: Option<u32>,
    /// Send this many events of a stream, then cut the connection.
    pub cut_after: Option<u32>,
    /// Report token counts that are no numbers.
    pub wrong_usage: bool,
    /// Close each new connection at once.
    pub refuse: bool,
}

impl Failure {
    /// Reads a header such as `status=500`, `slow=100`, `stall=2`, `cut=2` or `wrong-usage`, comma-separated.
    pub(super) fn parse(text: &str) -> Option<Failure> {
        let mut failure = Failure::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            match name {
                "status" => failure.status = Some(value.parse().ok()?),
                "slow" => failure.slow_ms = value.parse().ok()?,
                "stall" => failure.stall_after = Some(value.parse().ok()?),
                "cut" => failure.cut_after = Some(value.parse().ok()?),
                "wrong-usage" => failure.wrong_usage = true,
                _ => return None,
            }
        }
        Some(failure)
    }

    /// The status to fail with, `draw` being a number from 0 to 1.
    pub(super) fn status(&self, draw: f64) -> Option<u16> {
        self.status.filter(|_| draw < self.rate.unwrap_or(1.0))
    }

    /// The wait before the headers.
    pub(super) fn wait(&self) -> Duration {
        Duration::from_millis(self.slow_ms)
    }
}
