//! The one place that reads the clock. Everything below takes instants as arguments.

use std::time::{Duration, Instant};

use wicketgate_pool::scheduler::Nanos;

/// Nanoseconds since the process's pipeline was built; never goes back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock at zero.
    pub fn start() -> Self {
        Clock {
            start: Instant::now(),
        }
    }

    /// Now, in nanoseconds since the start.
    pub fn now(&self) -> Nanos {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The instant `after` from now, in nanoseconds since the start.
    pub fn after(&self, after: Duration) -> Nanos {
        self.now().saturating_add(nanos(after))
    }
}

/// A duration in nanoseconds, saturating.
pub fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
