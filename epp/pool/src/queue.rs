//! Endpoints as admission's gate sees them, and the queue as an operator sees it.

use serde::Serialize;
use wicketgate_admission::{
    BandStats, Outcome,
    gate::{EndpointView, Reading, Role, Saturation},
};
use wicketgate_scheduler::{Availability, Endpoint, HealthPolicy, Nanos};

use crate::{Pool, fleet::FleetView};

/// Label that names an endpoint's stage, as llm-d has it.
const ROLE: &str = "llm-d.ai/role";

/// Whether an endpoint takes new work now.
pub(crate) fn availability(row: &Endpoint, now: Nanos, health: &HealthPolicy) -> Availability {
    match row.draining {
        true => Availability::No { until: Nanos::MAX },
        false => row.health.available(now, health),
    }
}

/// A row as the gate sees it. `unseen_kv` are the KV tokens that its last scrape could not know.
///
/// Requests of ours that ended since the scrape are taken off its numbers: first from its queue, whose next one went
/// on, then from its batch.
pub(crate) fn view(row: &Endpoint, unseen_kv: u64) -> EndpointView {
    let telemetry = &row.telemetry;
    let unseen = row.unseen();
    let gone = unseen.min(0).unsigned_abs() as f64;
    let waiting = telemetry.waiting.map(|reading| reading.value);
    let running = telemetry.running.map(|reading| reading.value);
    let left_queue = gone.min(waiting.unwrap_or(0.0));
    let readings = [telemetry.waiting, telemetry.running, telemetry.kv_usage];
    let at = readings.iter().flatten().map(|reading| reading.at).max();
    let slots = telemetry
        .max_num_seqs
        .map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    EndpointView {
        role: match row.labels.get(ROLE).map(String::as_str) {
            Some("prefill") => Role::Prefill,
            Some("both" | "prefill-decode" | "interleaved") => Role::Interleaved,
            _ => Role::Decode,
        },
        reading: at.map(|at| Reading {
            at,
            waiting: waiting.map(|value| value - left_queue),
            running: running.map(|value| (value - (gone - left_queue)).max(0.0)),
            kv_usage: telemetry.kv_usage.map(|reading| reading.value),
        }),
        draining: row.draining,
        joined: row.joined,
        scrape_failed: telemetry.failures > 0,
        own_requests: row.load.requests,
        own_tokens: row.load.tokens,
        unseen_requests: u32::try_from(unseen.max(0)).unwrap_or(u32::MAX),
        unseen_tokens: unseen_kv,
        batch_slots: slots,
        kv_tokens: match (telemetry.num_blocks, telemetry.block_size) {
            (Some(blocks), Some(size)) => Some(blocks.saturating_mul(size)),
            _ => None,
        },
    }
}

/// The queue at an instant, for metrics and views.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueueView {
    /// Bands, highest first; listed ones are there with zeros.
    pub bands: Vec<BandStats>,
    /// Waiting requests of all bands.
    pub requests: u64,
    /// Their body bytes.
    pub bytes: u64,
    /// Their tokens.
    pub tokens: u64,
    /// How full the pool is; `None` for a pool without endpoints.
    pub saturation: Option<f64>,
    /// Endpoints whose reading is too old or missing.
    pub stale_endpoints: u32,
    /// How waits ended, by code.
    pub outcomes: Vec<(&'static str, u64)>,
    /// Requests that joined an overflow flow because there were too many flows.
    pub flows_shared: u64,
    /// Requests that joined a lower band because there were too many bands.
    pub bands_shared: u64,
    /// Running requests ended for more urgent ones.
    pub evicted: u64,
    /// Windows in which a band did not get its floor: 0, or there is a bug.
    pub floor_violations: u64,
    /// How it stands to its other replicas, if it has any.
    pub fleet: Option<FleetView>,
}

impl Pool {
    /// The queue now.
    pub fn queue(&self, now: Nanos) -> QueueView {
        let (requests, bytes, tokens) = self.admission.used();
        let totals = self.admission.totals();
        let saturation: Saturation = self.saturation(now);
        let outcomes = Outcome::ALL.into_iter();
        QueueView {
            bands: self.admission.bands(now).collect(),
            requests,
            bytes,
            tokens,
            saturation: saturation.effective(),
            stale_endpoints: saturation.stale,
            outcomes: outcomes.map(|o| (o.code(), totals.of(o))).collect(),
            flows_shared: totals.flows_shared,
            bands_shared: totals.bands_shared,
            evicted: totals.evicted,
            floor_violations: totals.floor_violations,
            fleet: self.fleet(),
        }
    }
}
