//! Clocks, quantiles, and what the allocator has given out.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Half and a hundredth are slower than this, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Quantiles {
    /// Of times in nanoseconds, each of `together` calls, without what reading the clock takes.
    fn of(mut nanos: Vec<u64>, together: u32) -> Quantiles {
        nanos.sort_unstable();
        let clock = clock_nanos();
        let at = |share: f64| {
            let index = (nanos.len() as f64 * share) as usize;
            let nanos = nanos.get(index).copied().unwrap_or(0).saturating_sub(clock);
            nanos as f64 / f64::from(together) / 1e3
        };
        Quantiles {
            p50: at(0.5),
            p99: at(0.99),
        }
    }
}

/// Nanoseconds between two readings of the clock with nothing between them: the median.
fn clock_nanos() -> u64 {
    let mut nanos: Vec<u64> = (0..1001).map(|_| nanos(Instant::now())).collect();
    nanos.sort_unstable();
    nanos.get(500).copied().unwrap_or(0)
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Times `rounds` times what `act` does in `together` calls.
pub(crate) fn timed(rounds: usize, together: u32, mut act: impl FnMut()) -> Quantiles {
    let nanos = (0..rounds).map(|_| {
        let start = Instant::now();
        (0..together).for_each(|_| act());
        nanos(start)
    });
    Quantiles::of(nanos.collect(), together)
}

/// By the clock, and by the processor where the work is on this thread: on a machine that does other things too, the
/// clock tells less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Per second of the clock.
    pub per_s: f64,
    /// Per second that this thread was on a processor.
    pub per_cpu_s: Option<f64>,
}

impl Rate {
    /// How often a second something happened that happened `count` times in `act`.
    pub(crate) fn of(count: usize, on_this_thread: bool, act: impl FnOnce()) -> Rate {
        let (start, cpu) = (Instant::now(), thread_time());
        act();
        let (wall, spent) = (start.elapsed(), thread_time().saturating_sub(cpu));
        let per = |time: Duration| count as f64 / time.as_secs_f64().max(1e-9);
        Rate {
            per_s: per(wall),
            per_cpu_s: on_this_thread.then(|| per(spent)),
        }
    }
}

/// Time that this thread has been on a processor.
fn thread_time() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(spent.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(spent.tv_nsec).unwrap_or(0))
}

/// Bytes that the allocator has given out and not got back, its own headers included; `None` where it does not tell.
///
/// The allocator's own books, so that no build pays for counting.
pub(crate) fn allocated() -> Option<u64> {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[expect(
            unsafe_code,
            reason = "no arguments and a plain value back; no crate wraps it"
        )]
        let info = unsafe { libc::mallinfo2() };
        Some((info.uordblks + info.hblkhd) as u64)
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_single_calls() {
        let nanos = (1..=1000).map(|at| at * 8_000_000).collect();
        let quantiles = Quantiles::of(nanos, 8);
        assert!((quantiles.p50 - 501_000.0).abs() < 100.0, "{quantiles:?}");
        assert!((quantiles.p99 - 991_000.0).abs() < 100.0, "{quantiles:?}");
        assert_eq!(Quantiles::of(Vec::new(), 1), Quantiles::default());
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn the_allocator_tells_what_is_held() {
        // Other tests of this process allocate too, though far less.
        let before = allocated().unwrap();
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        let with = allocated().unwrap();
        drop(block);
        let after = allocated().unwrap();
        assert!(with.abs_diff(before + (64 << 20)) < 4 << 20);
        assert!(after.abs_diff(before) < 4 << 20);
    }
}
