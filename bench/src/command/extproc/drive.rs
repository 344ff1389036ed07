//! Load on a picker: closed loop with so many in flight, or open loop at a rate.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use super::{caller::Caller, script::Script};
use crate::measure::Times;

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Arrivals {
    /// Each of so many callers sends its next request when its last one has ended.
    Closed(usize),
    /// So many per second, whatever has ended.
    Open(f64),
}

/// What came of a round.
pub(super) struct Round {
    pub(super) requests: u64,
    pub(super) wall: Duration,
    /// From the planned time (open loop) or the sending to the named endpoint and the body's return.
    pub(super) latency: Times,
    /// How late requests were sent; open loop only.
    pub(super) lag: Times,
}

/// Connections to one server and what is sent on them.
pub(super) struct Drive {
    callers: Vec<Arc<Caller>>,
    scripts: Arc<Vec<Script>>,
    turn: Arc<AtomicUsize>,
}

/// One request's times.
struct One {
    lag: Duration,
    latency: Duration,
}

impl Drive {
    pub(super) async fn connect(
        address: SocketAddr,
        connections: usize,
        scripts: Arc<Vec<Script>>,
    ) -> io::Result<Drive> {
        let mut callers = Vec::new();
        for _ in 0..connections {
            callers.push(Arc::new(Caller::connect(address).await?));
        }
        Ok(Drive {
            callers,
            scripts,
            turn: Arc::default(),
        })
    }

    /// Sends for `time` and waits for the rest.
    ///
    /// # Errors
    /// When any request is answered wrongly.
    pub(super) async fn round(&self, arrivals: Arrivals, time: Duration) -> io::Result<Round> {
        let mut round = Round {
            requests: 0,
            wall: Duration::ZERO,
            latency: Times::new(),
            lag: Times::new(),
        };
        let mut tasks: JoinSet<Result<Vec<One>, String>> = JoinSet::new();
        let started = Instant::now();
        match arrivals {
            Arrivals::Closed(callers) => {
                for index in 0..callers {
                    let (caller, sender) = (self.caller(index), self.sender());
                    tasks.spawn(async move { sender.loop_until(&caller, started + time).await });
                }
            }
            Arrivals::Open(rate) => self.send_at(rate, time, started, &mut tasks).await,
        }
        while let Some(ended) = tasks.join_next().await {
            let ended = ended.map_err(io::Error::other)?.map_err(io::Error::other)?;
            for one in ended {
                round.requests += 1;
                round.latency.add(one.latency);
                round.lag.add(one.lag);
            }
        }
        round.wall = started.elapsed();
        Ok(round)
    }

    async fn send_at(
        &self,
        rate: f64,
        time: Duration,
        started: Instant,
        tasks: &mut JoinSet<Result<Vec<One>, String>>,
    ) {
        for index in 0u32.. {
            let at = Duration::from_secs_f64(f64::from(index) / rate);
            if at >= time {
                return;
            }
            let due = started + at;
            tokio::time::sleep_until(due.into()).await;
            let (caller, sender) = (self.caller(index as usize), self.sender());
            tasks.spawn(async move { sender.one(&caller, due).await.map(|one| vec![one]) });
        }
    }

    fn caller(&self, index: usize) -> Option<Arc<Caller>> {
        self.callers.get(index % self.callers.len().max(1)).cloned()
    }

    fn sender(&self) -> Sender {
        Sender {
            scripts: Arc::clone(&self.scripts),
            turn: Arc::clone(&self.turn),
        }
    }
}

struct Sender {
    scripts: Arc<Vec<Script>>,
    turn: Arc<AtomicUsize>,
}

impl Sender {
    async fn loop_until(
        &self,
        caller: &Option<Arc<Caller>>,
        until: Instant,
    ) -> Result<Vec<One>, String> {
        let mut all = Vec::new();
        while Instant::now() < until {
            all.push(self.one(caller, Instant::now()).await?);
        }
        Ok(all)
    }

    async fn one(&self, caller: &Option<Arc<Caller>>, due: Instant) -> Result<One, String> {
        let lag = due.elapsed();
        let turn = self.turn.fetch_add(1, Relaxed) % self.scripts.len().max(1);
        let (Some(caller), Some(script)) = (caller, self.scripts.get(turn)) else {
            return Err("nothing to send".to_owned());
        };
        let decided = caller.exchange(script).await?;
        let latency = decided.saturating_duration_since(due);
        Ok(One { lag, latency })
    }
}
