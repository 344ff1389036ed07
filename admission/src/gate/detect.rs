//! Fullness of an endpoint and of a pool: pure functions over views. 1 is full; values above 1 are legal.

use super::{
    Concurrency, ConcurrencyMode, Detector, EndpointView, GateConfig, Headroom, Reading, Staleness,
    Utilization,
};
use crate::{
    Nanos,
    fault::{Fault, broken},
};

/// What is known of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    /// A reading that is young enough.
    Fresh(Reading),
    /// A reading that is too old, or none that is worth waiting for.
    Stale,
    /// It joined just now and its first reading is on its way.
    New,
}

fn known(config: &GateConfig, now: Nanos, view: &EndpointView) -> Known {
    let Some(reading) = view.reading else {
        let age = now.saturating_sub(view.joined);
        let new = age < config.first_scrape_grace && !view.scrape_failed;
        return if new { Known::New } else { Known::Stale };
    };
    let old = now.saturating_sub(reading.at) > config.stale_after;
    let blank = reading.waiting().is_none() && reading.kv_usage().is_none();
    if (old && !broken(Fault::StaleCountsAsFresh)) || blank {
        Known::Stale
    } else {
        Known::Fresh(reading)
    }
}

/// How full one endpoint is for a request of so many uncached tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fullness {
    /// This full.
    Is(f64),
    /// Left out by policy.
    Ignored,
    /// Starts nothing yet.
    New,
}

pub(super) fn fullness(
    config: &GateConfig,
    now: Nanos,
    view: &EndpointView,
    tokens: u64,
) -> Fullness {
    // Own counts are never old.
    if let Detector::Concurrency(detector) = config.detector {
        return Fullness::Is(concurrency(&detector, view));
    }
    match (known(config, now, view), config.staleness) {
        (Known::Fresh(reading), _) => Fullness::Is(match config.detector {
            Detector::Utilization(detector) => utilization(&detector, view, &reading),
            Detector::Headroom(detector) => {
                headroom(&detector, config.own_limit, view, &reading, tokens)
            }
            Detector::Concurrency(detector) => concurrency(&detector, view),
        }),
        (Known::New, _) => Fullness::New,
        (Known::Stale, Staleness::Saturated) => Fullness::Is(1.0),
        (Known::Stale, Staleness::Ignore) => Fullness::Ignored,
        (Known::Stale, Staleness::OwnCount) => {
            let slots = view.batch_slots.unwrap_or(config.own_limit).max(1);
            Fullness::Is(f64::from(view.own_requests) / f64::from(slots))
        }
    }
}

fn unseen(view: &EndpointView) -> (f64, f64) {
    if broken(Fault::GateForgetsDispatched) {
        return (0.0, 0.0);
    }
    let kv = match view.kv_tokens {
        Some(tokens) if tokens > 0 => view.unseen_tokens as f64 / tokens as f64,
        _ => 0.0,
    };
    (f64::from(view.unseen_requests), kv)
}

/// max(waiting / threshold, KV usage / threshold). With own correction, what was dispatched since the reading waits as
/// far as it finds no batch slot, and holds its tokens.
fn utilization(detector: &Utilization, view: &EndpointView, reading: &Reading) -> f64 {
    let mut waiting = reading.waiting().unwrap_or(0.0);
    let mut kv = reading.kv_usage().unwrap_or(0.0);
    if detector.own_correction {
        let (requests, kv_share) = unseen(view);
        waiting += match (view.batch_slots, reading.running()) {
            (Some(slots), Some(running)) => {
                (running + requests - f64::from(slots)).clamp(0.0, requests)
            }
            _ => requests,
        };
        kv += kv_share;
    }
    (waiting / detector.queue_depth_threshold).max(kv / detector.kv_cache_util_threshold)
}

/// The larger of: taken batch slots, own queue, KV usage with the request in it, each as a share of its limit.
fn headroom(
    detector: &Headroom,
    own_limit: u32,
    view: &EndpointView,
    reading: &Reading,
    tokens: u64,
) -> f64 {
    let (requests, kv_share) = unseen(view);
    let waiting = reading.waiting().unwrap_or(0.0);
    let running = reading
        .running()
        .unwrap_or(f64::from(view.own_requests) - requests)
        .max(0.0);
    let slots = match view.batch_slots {
        Some(slots) => f64::from(slots.max(1)),
        // Without a queue of its own an endpoint shows that its batch is at least this large: probe by one.
        None if waiting == 0.0 => f64::from(own_limit).max(running + 1.0),
        None => f64::from(own_limit),
    };
    let taken = running + requests;
    let own = match view.kv_tokens {
        // An idle endpoint may try what is larger than its cache: the engine is the judge.
        Some(capacity) if capacity > 0 && taken + waiting > 0.0 => tokens as f64 / capacity as f64,
        _ => 0.0,
    };
    let kv = reading.kv_usage().unwrap_or(0.0) + kv_share + own;
    (taken / slots)
        .max(waiting / detector.queue_depth_threshold)
        .max(kv / detector.kv_cache_util_threshold)
}

fn concurrency(detector: &Concurrency, view: &EndpointView) -> f64 {
    let requests = f64::from(view.own_requests) / detector.max_concurrency as f64;
    let tokens = view.own_tokens as f64 / detector.max_token_concurrency as f64;
    match detector.concurrency_mode {
        ConcurrencyMode::Requests => requests,
        ConcurrencyMode::Tokens => tokens,
        ConcurrencyMode::Hybrid => requests.max(tokens),
    }
}

/// How full a pool is, by stage. `None` where no endpoint takes part: an empty pool is neither full nor free.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Saturation {
    /// Mean over endpoints that prefill only or do both.
    pub prefill: Option<f64>,
    /// Mean over endpoints that decode only, do both, or carry no role.
    pub decode: Option<f64>,
    /// Endpoints whose reading is too old or missing.
    pub stale: u32,
}

impl Saturation {
    /// The larger of both stages.
    pub fn effective(&self) -> Option<f64> {
        match (self.prefill, self.decode) {
            (Some(p), Some(d)) => Some(p.max(d)),
            (one, other) => one.or(other),
        }
    }
}

#[derive(Default)]
struct Mean {
    sum: f64,
    counted: u32,
    ignored: u32,
}

impl Mean {
    fn add(&mut self, fullness: Fullness) {
        match fullness {
            Fullness::Is(value) => {
                self.sum += value;
                self.counted += 1;
            }
            Fullness::New => {
                self.sum += 1.0;
                self.counted += 1;
            }
            Fullness::Ignored => self.ignored += 1,
        }
    }

    /// All left out by policy is free; nobody there is nothing.
    fn value(&self) -> Option<f64> {
        match (self.counted, self.ignored) {
            (0, 0) => None,
            (0, _) => Some(0.0),
            (counted, _) => Some(self.sum / f64::from(counted)),
        }
    }
}

/// Mean fullness of the pool's endpoints that are not draining, by stage.
pub fn saturation(config: &GateConfig, now: Nanos, views: &[EndpointView]) -> Saturation {
    let (mut prefill, mut decode, mut stale) = (Mean::default(), Mean::default(), 0);
    for view in views.iter().filter(|view| !view.draining) {
        let fullness = fullness(config, now, view, 0);
        if view.role.prefills() {
            prefill.add(fullness);
        }
        if view.role.decodes() {
            decode.add(fullness);
        }
        stale += u32::from(!matches!(known(config, now, view), Known::Fresh(_)));
    }
    Saturation {
        prefill: prefill.value(),
        decode: decode.value(),
        stale,
    }
}
