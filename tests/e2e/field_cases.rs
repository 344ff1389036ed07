//! Inputs that broke systems like this one, through the fronts as a whole; docs/invariants.md ("Field cases") lists
//! what must hold for each.

mod bodies;
mod endpoints;
mod errors;
mod life;
mod load;
mod reload;
mod scrapes;
mod streams;

use wicketgate_testkit::{
    cluster::{Command, Front},
    eventually,
    stream::{Exchange, Proxy},
};

use crate::{
    NO_HOLD,
    extproc_phases::{get, ok},
    wicketgate,
};

/// A picker over a pool, with further keys of the root, and a connection to it.
///
/// Without an `admission` section a pool without endpoints answers at once.
async fn picker(pool: &str, extra: &str) -> (Front, Proxy) {
    let extra = match extra.contains("admission:") {
        true => extra.to_owned(),
        false => format!("{extra}{NO_HOLD}"),
    };
    let front = Front::start_with(wicketgate(), Command::Epp, pool, "", &extra, &[]).await;
    let proxy = Proxy::connect(front.data).await;
    (front, proxy)
}

/// Endpoints as a file or a configuration lists them, each with more keys.
fn listed(endpoints: &[(std::net::SocketAddr, &str)]) -> String {
    let lines: Vec<String> = endpoints
        .iter()
        .map(|(address, more)| format!("{{address: \"{address}\"{more}}}"))
        .collect();
    format!("endpoints: [{}]\n", lines.join(", "))
}

/// The first destination of an answer that must be a placement, equal in header and metadata.
async fn placed(exchange: &mut Exchange) -> String {
    let said = exchange.said().await;
    let changes = said.changes();
    assert_eq!(changes.destination, changes.metadata, "{said}");
    let list = changes.destination.unwrap_or_else(|| panic!("{said}"));
    list.split(',').next().unwrap().to_owned()
}

/// Places a request of headers alone and ends it; where it went.
async fn pick(proxy: &Proxy) -> String {
    use wicketgate_epp::extproc::proto::body_mode::NONE;
    let mut exchange = proxy.open((NONE, NONE)).await;
    exchange.send(get()).await;
    let to = placed(&mut exchange).await;
    exchange.send(ok(true)).await;
    exchange.said().await;
    exchange.finish().await;
    to
}

/// Waits until the picker's endpoint list satisfies `holds`.
async fn wait_endpoints(
    front: &Front,
    what: &str,
    holds: impl Fn(&[serde_json::Value]) -> bool,
) -> Vec<serde_json::Value> {
    eventually(what, || async {
        let view = front.view("/debug/endpoints").await;
        let rows = view["main"].as_array().unwrap().clone();
        holds(&rows).then_some(rows)
    })
    .await
}
