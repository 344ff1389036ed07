//! The real gateway, as `wicketgate serve --backend` and `wicketgate epp` run it.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use wicketgate_config::Config;
use wicketgate_epp::{
    configure::{Fronts, gateway_spec},
    gateway::Gateway,
    metrics::{ScrapeLabels, TokenLabels},
};

use super::Running;

/// Results that a scrape can have besides `ok`.
const FAILURES: [&str; 6] = [
    "connect",
    "timeout",
    "status",
    "too_long",
    "broken",
    "unrecognised",
];

/// Which front listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Front {
    /// `wicketgate serve`
    Http,
    /// `wicketgate epp`
    ExtProc,
}

/// What differs from the defaults.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) front: Front,
    pub(crate) workers: usize,
    pub(crate) backends: Vec<SocketAddr>,
    /// Time from one scrape to the next, in milliseconds.
    pub(crate) interval_ms: u64,
}

pub(super) async fn start(settings: &Settings) -> Result<Running, String> {
    let gateway = Arc::new(gateway(settings).await?);
    let address = match settings.front {
        Front::Http => gateway.http,
        Front::ExtProc => gateway.ext_proc,
    };
    let shown = Arc::clone(&gateway);
    Ok(Running {
        addresses: address.into_iter().collect(),
        counters: Box::new(move || counters(&shown)),
        _part: Box::new(gateway),
    })
}

/// Requests go through the queue, but the gate never closes: the captured pages say of busy engines that they are busy,
/// for ever. No index: prompts are all alike here, so it would send them to one engine.
const OPEN: &str = "plugins: [{type: concurrency-detector, parameters: {maxConcurrency: 1000000}}]
admission: {saturationDetector: {pluginRef: concurrency-detector}}
kvIndex: {enabled: false}
";

/// The default configuration without an index over these endpoints, on free ports of the loopback.
pub(crate) async fn gateway(settings: &Settings) -> Result<Gateway, String> {
    let backends: Vec<String> = settings
        .backends
        .iter()
        .map(SocketAddr::to_string)
        .collect();
    let config =
        Config::parse(OPEN, "bench").and_then(|(config, _)| config.with_backends(&backends));
    let mut config = config.map_err(|errors| errors.to_string())?;
    config.bind = IpAddr::V4(Ipv4Addr::LOCALHOST);
    config.scrape_interval = Duration::from_millis(settings.interval_ms);
    for port in [
        &mut config.http_port,
        &mut config.ext_proc_port,
        &mut config.health_port,
        &mut config.metrics_port,
        &mut config.management.port,
    ] {
        *port = 0;
    }
    let fronts = match settings.front {
        Front::Http => Fronts::Http,
        Front::ExtProc => Fronts::ExtProc,
    };
    let spec = gateway_spec(&config, fronts, None).map_err(|error| error.to_string())?;
    Gateway::start(spec)
        .await
        .map_err(|error| error.to_string())
}

/// The gateway's own counters, and how many of its endpoints have been observed.
pub(crate) fn counters(gateway: &Gateway) -> BTreeMap<String, u64> {
    let metrics = &gateway.pipeline.metrics;
    let mut counters = BTreeMap::new();
    let mut add = |name: &str, count: u64| {
        *counters.entry(name.to_owned()).or_default() += count;
    };
    // What admission counts for itself, apart from the pool's counts of the same requests.
    for (_, shell) in &gateway.pipeline.routes().pools {
        let bands = shell.queue().bands;
        add("admitted", bands.iter().map(|band| band.dispatched).sum());
    }
    for (_, held) in gateway.held() {
        add("arrived", held.totals.arrived);
        add("dispatched", held.totals.dispatched);
        add("refused", held.totals.refused);
        add("ended", held.totals.ended);
        add("running", held.running);
    }
    for (_, shell) in &gateway.pipeline.routes().pools {
        let observed =
            shell.endpoints(|rows, _| rows.iter().filter(|row| row.telemetry.observed()).count());
        add("observed", observed as u64);
    }
    let scrapes = |result| {
        metrics
            .scrapes
            .get_or_create(&ScrapeLabels { result })
            .get()
    };
    add("scrapes", scrapes("ok"));
    add("scrape_errors", FAILURES.into_iter().map(scrapes).sum());
    for kind in ["prompt", "completion"] {
        let tokens = metrics.tokens.get_or_create(&TokenLabels { kind }).get();
        add(&format!("{kind}_tokens"), tokens);
    }
    counters
}
