//! Queues and fleets as numbers of the metrics page.

use std::{fmt::Write as _, time::Duration};

use wicketgate_pool::{QueueView, admission::BandStats, scheduler::Nanos};

use super::{counter, gauge, label};
use crate::pipeline::Pipeline;

/// One count of a queue.
type OfQueue = fn(&QueueView) -> u64;

/// One number of a band.
type OfBand = fn(&BandStats) -> f64;

/// Gauges of each band. They are there with zeros while a pool has no endpoint: a scaler looks at them.
const BANDS: [(&str, &str, OfBand); 7] = [
    ("queue_requests", "Requests waiting in a band", |band| {
        band.requests as f64
    }),
    (
        "queue_bytes",
        "Body bytes of requests waiting in a band",
        |band| band.bytes as f64,
    ),
    (
        "queue_tokens",
        "Tokens of requests waiting in a band",
        |band| band.tokens as f64,
    ),
    (
        "queue_oldest_seconds",
        "Wait so far of a band's oldest request",
        |band| band.oldest.map_or(0.0, seconds),
    ),
    (
        "queue_longest_wait_seconds",
        "Longest wait in a band that ended in a dispatch",
        |band| seconds(band.longest_wait),
    ),
    (
        "queue_flows",
        "Flows of a band that wait or run, or were seen lately",
        |band| band.flows as f64,
    ),
    (
        "band_running_requests",
        "Running requests of a band",
        |band| band.running as f64,
    ),
];

fn seconds(nanos: Nanos) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64()
}

pub(super) fn queues(page: &mut String, pipeline: &Pipeline) -> std::fmt::Result {
    let routes = pipeline.routes();
    let pools = routes.pools.iter();
    let queues: Vec<_> = pools
        .map(|(name, shell)| (label(name), shell.queue()))
        .collect();
    for (name, help, of) in BANDS {
        gauge(page, name, help)?;
        for (pool, queue) in &queues {
            for band in &queue.bands {
                let priority = band.priority;
                let value = of(band);
                writeln!(
                    page,
                    "wicketgate_{name}{{pool=\"{pool}\",priority=\"{priority}\"}} {value}"
                )?;
            }
        }
    }
    gauge(page, "pool_saturation", "How full a pool is; 1 is full")?;
    for (pool, queue) in &queues {
        if let Some(value) = queue.saturation {
            writeln!(
                page,
                "wicketgate_pool_saturation{{pool=\"{pool}\"}} {value}"
            )?;
        }
    }
    gauge(
        page,
        "pool_stale_endpoints",
        "Endpoints whose reading is too old or missing",
    )?;
    for (pool, queue) in &queues {
        let stale = queue.stale_endpoints;
        writeln!(
            page,
            "wicketgate_pool_stale_endpoints{{pool=\"{pool}\"}} {stale}"
        )?;
    }
    fleets(page, &queues)?;
    counter(page, "queue_dispatched", "Dispatches of a band")?;
    for (pool, queue) in &queues {
        for band in &queue.bands {
            let labels = format!("pool=\"{pool}\",priority=\"{}\"", band.priority);
            let count = band.dispatched;
            writeln!(
                page,
                "wicketgate_queue_dispatched_total{{{labels}}} {count}"
            )?;
        }
    }
    counter(
        page,
        "queue_out_of_turn",
        "Dispatches of a band against starvation",
    )?;
    for (pool, queue) in &queues {
        for band in &queue.bands {
            let labels = format!("pool=\"{pool}\",priority=\"{}\"", band.priority);
            let count = band.out_of_turn;
            writeln!(
                page,
                "wicketgate_queue_out_of_turn_total{{{labels}}} {count}"
            )?;
        }
    }
    counter(page, "queue_outcomes", "How waits ended")?;
    for (pool, queue) in &queues {
        for (outcome, count) in &queue.outcomes {
            let labels = format!("pool=\"{pool}\",outcome=\"{outcome}\"");
            writeln!(page, "wicketgate_queue_outcomes_total{{{labels}}} {count}")?;
        }
    }
    let rest: [(&str, &str, OfQueue); 4] = [
        (
            "queue_flows_shared",
            "Requests in an overflow flow for lack of flows",
            |q| q.flows_shared,
        ),
        (
            "queue_bands_shared",
            "Requests in a lower band for lack of bands",
            |q| q.bands_shared,
        ),
        (
            "evicted_requests",
            "Running requests ended for more urgent ones",
            |q| q.evicted,
        ),
        (
            "queue_floor_violations",
            "Windows in which a band missed its floor",
            |q| q.floor_violations,
        ),
    ];
    for (name, help, of) in rest {
        counter(page, name, help)?;
        for (pool, queue) in &queues {
            let count = of(queue);
            writeln!(page, "wicketgate_{name}_total{{pool=\"{pool}\"}} {count}")?;
        }
    }
    Ok(())
}

/// How pools stand to their other replicas; nothing for a pool that has none.
fn fleets(page: &mut String, queues: &[(String, QueueView)]) -> std::fmt::Result {
    let fleets = || {
        let with = queues.iter();
        with.filter_map(|(pool, queue)| Some((pool, queue.fleet?)))
    };
    if fleets().next().is_none() {
        return Ok(());
    }
    gauge(
        page,
        "fleet_state",
        "1 for how a pool stands to its other replicas",
    )?;
    for (pool, fleet) in fleets() {
        let labels = format!("pool=\"{pool}\",state=\"{}\"", fleet.state.label());
        writeln!(page, "wicketgate_fleet_state{{{labels}}} 1")?;
    }
    gauge(
        page,
        "fleet_members",
        "Replicas of a pool, this one included",
    )?;
    for (pool, fleet) in fleets() {
        let members = fleet.members;
        writeln!(
            page,
            "wicketgate_fleet_members{{pool=\"{pool}\"}} {members}"
        )?;
    }
    gauge(page, "fleet_heard", "Other replicas that are heard")?;
    for (pool, fleet) in fleets() {
        let hearing = fleet.hearing;
        writeln!(page, "wicketgate_fleet_heard{{pool=\"{pool}\"}} {hearing}")?;
    }
    counter(
        page,
        "fleet_fallbacks",
        "Falls from the whole to a share of each limit",
    )?;
    for (pool, fleet) in fleets() {
        let falls = fleet.totals.fallbacks;
        writeln!(
            page,
            "wicketgate_fleet_fallbacks_total{{pool=\"{pool}\"}} {falls}"
        )?;
    }
    Ok(())
}
