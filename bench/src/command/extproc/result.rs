//! What came of all rounds, and whether it counts.

use serde_json::{Value, json};

use super::{
    ExtprocArgs,
    drive::Arrivals,
    server::{Measured, Server},
};
use crate::{
    child::Stats,
    measure::{median, round},
    report::Outcome,
};

/// Both servers after the last round.
pub(super) struct Result<'a> {
    pub(super) args: &'a ExtprocArgs,
    pub(super) prompt_tokens: u64,
    pub(super) arrivals: Arrivals,
    /// Cores that the picker takes while nothing is asked: scrapes.
    pub(super) idle: f64,
    pub(super) ours: Server,
    pub(super) our_stats: Stats,
    pub(super) floor: Server,
    pub(super) floor_stats: Stats,
}

impl Result<'_> {
    pub(super) fn tell(&self, outcome: &mut Outcome) {
        // Each round compares with its own neighbour: the machine's mood is the same for both.
        let ratios = self.ours.rounds.iter().zip(&self.floor.rounds);
        let ratios = ratios.map(|(ours, floor)| ours.core_s_per_request / floor.core_s_per_request);
        let ratio = median(ratios.collect());
        let (ours, floor) = (&self.ours, &self.floor);
        let added = ours.median(|m| m.alone_p50_us) - floor.median(|m| m.alone_p50_us);
        // Only the picker scrapes; at a low rate that outweighs the requests.
        let busy = |m: &Measured| m.core_s_per_request - self.idle / m.rps;
        let ratios = ours.rounds.iter().zip(&floor.rounds);
        let ratios = ratios.map(|(ours, floor)| busy(ours) / floor.core_s_per_request);
        let less_idle = median(ratios.collect());
        let (args, mode) = (self.args, self.mode());
        let load = format!("{} bytes, {} endpoints", args.prompt_bytes, args.endpoints);
        outcome.row("load", format!("{mode}, {load}"));
        outcome.row("picker", line(&self.ours, &self.our_stats));
        outcome.row("floor", line(&self.floor, &self.floor_stats));
        let without = format!("{ratio:.2} x, without scrapes {less_idle:.2} x");
        outcome.row("CPU over the floor", without);
        let alone = "p50 over the floor, one in flight";
        outcome.row(alone, format!("{added:+.0} us"));
        outcome.row("picker while idle", format!("{:.3} cores", self.idle));
        let mut value = self.json(&self.ours, &self.our_stats);
        if let Value::Object(map) = &mut value {
            let more = [
                ("floor", self.json(&self.floor, &self.floor_stats)),
                ("ratio", json!(round(ratio, 3))),
                ("ratio_less_idle", json!(round(less_idle, 3))),
                ("added_us", json!({"p50": round(added, 1)})),
                ("idle_cores", json!(round(self.idle, 4))),
            ];
            map.extend(more.map(|(key, value)| (key.to_owned(), value)));
        }
        outcome.json = value;
        self.check(outcome);
    }

    fn mode(&self) -> String {
        match self.arrivals {
            Arrivals::Closed(callers) => {
                format!("full duplex both ways, closed loop, {callers} in flight")
            }
            Arrivals::Open(_) => "full duplex both ways, open loop".to_owned(),
        }
    }

    fn json(&self, server: &Server, stats: &Stats) -> Value {
        let achieved = round(server.median(|m| m.rps), 1);
        let offered = match self.arrivals {
            Arrivals::Open(rate) => rate,
            // A closed loop offers what is achieved.
            Arrivals::Closed(_) => achieved,
        };
        let (p50, p99) = (server.median(|m| m.p50_us), server.median(|m| m.p99_us));
        let alone_p50 = server.median(|m| m.alone_p50_us);
        let alone_p99 = server.median(|m| m.alone_p99_us);
        json!({
            "engine": "emulated",
            "mode": self.mode(),
            "offered_rps": offered,
            "achieved_rps": achieved,
            "prompt_tokens": self.prompt_tokens,
            "prompt_bytes": self.args.prompt_bytes,
            "events": self.args.events,
            "endpoints": self.args.endpoints,
            "workers": self.args.workers,
            "latency_us": {"p50": round(p50, 1), "p99": round(p99, 1)},
            "alone_us": {"p50": round(alone_p50, 1), "p99": round(alone_p99, 1)},
            "cores": round(server.median(|m| m.cores), 4),
            "core_s_per_request": round(server.median(|m| m.core_s_per_request), 9),
            "rss_mb": round(stats.rss_mb, 1),
            "requests": server.sent,
        })
    }

    /// Nothing may be counted that the server did not do, and the load must have been the one that was asked for.
    fn check(&self, outcome: &mut Outcome) {
        let sent = self.ours.sent;
        for counter in ["arrived", "admitted", "dispatched", "ended"] {
            let counted = self.our_stats.counter(counter);
            outcome.require(counted == sent, || {
                format!("{sent} requests sent, {counted} {counter}")
            });
        }
        let read = self.our_stats.counter("prompt_tokens");
        let wanted = sent * self.prompt_tokens;
        outcome.require(read == wanted, || {
            format!("usage of {read} prompt tokens was read instead of {wanted}")
        });
        let (sent, counted) = (self.floor.sent, self.floor_stats.counter("ended"));
        outcome.require(counted == sent, || {
            format!("{sent} requests sent to the floor, {counted} ended")
        });
        if let Arrivals::Open(rate) = self.arrivals {
            let achieved = self.ours.median(|m| m.rps);
            outcome.require(achieved >= 0.95 * rate, || {
                format!("{achieved:.0} requests per second instead of {rate:.0}")
            });
        }
    }
}

fn line(server: &Server, stats: &Stats) -> String {
    let us = server.median(|m| m.core_s_per_request) * 1e6;
    let (rps, cores) = (server.median(|m| m.rps), server.median(|m| m.cores));
    let (p50, p99) = (server.median(|m| m.p50_us), server.median(|m| m.p99_us));
    format!(
        "{rps:.0} requests/s  {us:.1} us CPU each  {cores:.2} cores  p50 {p50:.0} us  p99 {p99:.0} us  {:.0} MiB",
        stats.rss_mb
    )
}
