//! A server under measurement: its process, the connections to it, and what its rounds gave.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    drive::{Arrivals, Drive},
    script::Script,
};
use crate::{
    child::{Child, Role, Stats},
    measure::{median, number},
};

/// One round's figures.
#[derive(Clone, Copy)]
pub(super) struct Measured {
    pub(super) rps: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) cores: f64,
    pub(super) core_s_per_request: f64,
    /// With one request in flight.
    pub(super) alone_p50_us: f64,
    pub(super) alone_p99_us: f64,
}

/// How long one caller alone is measured, as a part of a round.
const ALONE: u32 = 4;

/// A server under measurement.
pub(super) struct Server {
    child: Child,
    drive: Drive,
    pub(super) rounds: Vec<Measured>,
    /// Requests sent to it in its life.
    pub(super) sent: u64,
}

impl Server {
    pub(super) async fn start(
        role: &Role,
        connections: usize,
        scripts: &Arc<Vec<Script>>,
    ) -> io::Result<Server> {
        let child = Child::start(role).await?;
        let drive = Drive::connect(child.address()?, connections, Arc::clone(scripts)).await?;
        Ok(Server {
            child,
            drive,
            rounds: Vec::new(),
            sent: 0,
        })
    }

    /// Waits until it has scraped so many endpoints.
    pub(super) async fn observed(&mut self, endpoints: u64) -> io::Result<()> {
        let seen = |stats: &Stats| stats.counter("observed") >= endpoints;
        let waited = self.child.wait("the first scrape of every endpoint", seen);
        waited.await.map(drop)
    }

    /// Cores that it takes while nothing is asked.
    pub(super) async fn idle(&mut self, time: Duration) -> io::Result<f64> {
        let (before, started) = (self.child.stats().await?.cpu_ns, Instant::now());
        tokio::time::sleep(time).await;
        let spent = self.child.stats().await?.cpu_ns - before;
        Ok(Duration::from_nanos(spent).as_secs_f64() / started.elapsed().as_secs_f64())
    }

    pub(super) async fn warm_up(&mut self, arrivals: Arrivals, time: Duration) -> io::Result<()> {
        self.sent += self.drive.round(arrivals, time).await?.requests;
        Ok(())
    }

    /// One round; how late requests were sent, at the 99th percentile.
    pub(super) async fn round(
        &mut self,
        arrivals: Arrivals,
        time: Duration,
    ) -> io::Result<Duration> {
        let before = self.child.stats().await?.cpu_ns;
        let came = self.drive.round(arrivals, time).await?;
        let spent = self.child.stats().await?.cpu_ns - before;
        let alone = self.drive.round(Arrivals::Closed(1), time / ALONE).await?;
        let (cpu, wall) = (number(spent) / 1e9, came.wall.as_secs_f64());
        let us = came.latency.us();
        self.sent += came.requests + alone.requests;
        let alone = alone.latency.us();
        self.rounds.push(Measured {
            rps: number(came.requests) / wall,
            p50_us: us.p50,
            p99_us: us.p99,
            cores: cpu / wall,
            core_s_per_request: cpu / number(came.requests.max(1)),
            alone_p50_us: alone.p50,
            alone_p99_us: alone.p99,
        });
        Ok(came.lag.at(0.99))
    }

    pub(super) async fn stats(&mut self) -> io::Result<Stats> {
        self.child.stats().await
    }

    /// The middle of the rounds.
    pub(super) fn median(&self, of: fn(&Measured) -> f64) -> f64 {
        median(self.rounds.iter().map(of).collect())
    }
}
