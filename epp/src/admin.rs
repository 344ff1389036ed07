//! Metrics and read-only views on their own port.

mod index;
mod queues;

use std::{fmt::Write as _, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use wicketgate_pool::scheduler::{Endpoint, Load, Missing, Nanos};

use crate::{net::Shutdown, pipeline::Pipeline, small};

/// Where a request's body is looked up in the prefix index.
const LOOKUP: &str = "/debug/index/lookup";

/// What the page shows besides the pipeline.
pub struct Views {
    /// The pipeline whose state is shown.
    pub pipeline: Arc<Pipeline>,
    /// The effective configuration, as YAML, without secrets.
    pub config: Box<dyn Fn() -> String + Send + Sync>,
    /// True while the process takes new requests.
    pub ready: Box<dyn Fn() -> bool + Send + Sync>,
}

/// Serves the views until shutdown.
pub async fn serve(listener: TcpListener, views: Arc<Views>, shutdown: Shutdown) {
    small::serve(listener, None, shutdown, move |request| {
        let views = Arc::clone(&views);
        async move { answer(&views, request).await }
    })
    .await;
}

async fn answer(views: &Views, request: Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() == http::Method::POST && request.uri().path() == LOOKUP {
        let (status, found) = index::lookup(&views.pipeline, request.into_body()).await;
        return text(status, "application/json", format!("{found:#}\n"));
    }
    if request.method() == http::Method::GET && request.uri().path() == LOOKUP {
        let query = request.uri().query().unwrap_or_default();
        let (status, found) = index::lookup_text(&views.pipeline, query).await;
        return text(status, "application/json", format!("{found:#}\n"));
    }
    if request.method() != http::Method::GET {
        return text(
            StatusCode::METHOD_NOT_ALLOWED,
            "text/plain",
            "only GET, and POST of /debug/index/lookup\n".into(),
        );
    }
    let json = |value: Value| text(StatusCode::OK, "application/json", format!("{value:#}\n"));
    match request.uri().path() {
        "/metrics" => match page(&views.pipeline) {
            Ok(page) => {
                let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                text(StatusCode::OK, kind, page)
            }
            Err(_) => text(
                StatusCode::INTERNAL_SERVER_ERROR,
                "text/plain",
                String::new(),
            ),
        },
        "/healthz" => text(StatusCode::OK, "text/plain", "ok\n".into()),
        "/readyz" if (views.ready)() => text(StatusCode::OK, "text/plain", "ready\n".into()),
        "/readyz" => text(
            StatusCode::SERVICE_UNAVAILABLE,
            "text/plain",
            "not ready\n".into(),
        ),
        "/debug/config" => text(StatusCode::OK, "application/yaml", (views.config)()),
        "/debug/endpoints" => json(endpoints(&views.pipeline)),
        "/debug/held" => json(held(&views.pipeline)),
        "/debug/queue" => json(queue(&views.pipeline)),
        "/debug/index" => json(index::summary(&views.pipeline)),
        "/debug/decisions" => json(decisions(&views.pipeline)),
        _ => {
            let index = "/metrics\n/healthz\n/readyz\n/debug/config\n/debug/endpoints\n/debug/held\n/debug/queue\n/debug/decisions\n/debug/index\n/debug/index/lookup (?model=&prompt=, or POST of a body)\n";
            text(StatusCode::NOT_FOUND, "text/plain", index.into())
        }
    }
}

fn text(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Requests that each pool holds, and its counts.
fn held(pipeline: &Pipeline) -> Value {
    let routes = pipeline.routes();
    let pools = routes.pools.iter();
    pools
        .map(|(name, shell)| (name.to_string(), json!(shell.held())))
        .collect()
}

/// Each pool's queue.
fn queue(pipeline: &Pipeline) -> Value {
    let routes = pipeline.routes();
    let pools = routes.pools.iter();
    pools
        .map(|(name, shell)| (name.to_string(), json!(shell.queue())))
        .collect()
}

fn decisions(pipeline: &Pipeline) -> Value {
    let routes = pipeline.routes();
    let pools = routes.pools.iter();
    pools
        .map(|(name, shell)| (name.to_string(), json!(shell.records())))
        .collect()
}

fn endpoints(pipeline: &Pipeline) -> Value {
    let routes = pipeline.routes();
    let pools = routes.pools.iter();
    pools
        .map(|(name, shell)| {
            let rows = shell.endpoints(|rows, now| {
                rows.iter()
                    .map(|row| endpoint(row, now))
                    .collect::<Vec<_>>()
            });
            (name.to_string(), json!(rows))
        })
        .collect()
}

/// One endpoint as an operator wants to see it: what is known and how old it is.
fn endpoint(row: &Endpoint, now: Nanos) -> Value {
    let age = |at: Nanos| Duration::from_nanos(now.saturating_sub(at)).as_secs_f64();
    let reading = |reading: Option<wicketgate_pool::scheduler::Reading>| {
        reading.map(|reading| json!({"value": reading.value, "age_s": age(reading.at)}))
    };
    json!({
        "name": row.name,
        "address": row.address,
        "incarnation": row.id.0,
        "weight": row.weight,
        "draining": row.draining,
        "joined_s_ago": age(row.joined),
        "in_flight": {"requests": row.load.requests, "tokens": row.load.tokens},
        "waiting": reading(row.telemetry.waiting),
        "running": reading(row.telemetry.running),
        "kv_usage": reading(row.telemetry.kv_usage),
        "adapters": row.telemetry.adapters.as_ref().map(|(adapters, at)| {
            json!({"running": adapters.running, "waiting": adapters.waiting, "max": adapters.max, "age_s": age(*at)})
        }),
        "scrape_failures": row.telemetry.failures,
        "scrapes_without": row.telemetry.missing,
        "health": row.health,
    })
}

/// What the page says of one endpoint.
struct Row {
    labels: String,
    load: Load,
    failures: u32,
    missing: Missing,
    /// Unless it is too old to count.
    kv_usage: Option<f64>,
}

/// The registry's page with the pools' present state before its end mark.
fn page(pipeline: &Pipeline) -> Result<String, std::fmt::Error> {
    let mut page = pipeline.metrics.page()?;
    let end = page.trim_end().len() - "# EOF".len();
    page.truncate(end);
    let routes = pipeline.routes();
    let mut pools = Vec::new();
    let mut rows = Vec::new();
    for (pool, shell) in &routes.pools {
        pools.push((Arc::clone(pool), shell.held()));
        let now = shell.clock().now();
        shell.view(|pool_state| {
            let stale_after = pool_state.config().policy.stale_after;
            for row in pool_state.endpoints() {
                rows.push(Row {
                    labels: format!("pool=\"{}\",endpoint=\"{}\"", label(pool), label(&row.name)),
                    load: row.load,
                    failures: row.telemetry.failures,
                    missing: row.telemetry.missing,
                    // An old value is no observation here either.
                    kv_usage: row.kv_usage(now, stale_after),
                });
            }
        });
    }
    gauge(
        &mut page,
        "pool_inflight_requests",
        "Requests dispatched and not ended",
    )?;
    for (pool, held) in &pools {
        let pool = label(pool);
        writeln!(
            page,
            "wicketgate_pool_inflight_requests{{pool=\"{pool}\"}} {}",
            held.running
        )?;
    }
    gauge(
        &mut page,
        "pool_waiting_requests",
        "Requests waiting for a place",
    )?;
    for (pool, held) in &pools {
        let pool = label(pool);
        writeln!(
            page,
            "wicketgate_pool_waiting_requests{{pool=\"{pool}\"}} {}",
            held.waiting
        )?;
    }
    gauge(
        &mut page,
        "endpoint_inflight_requests",
        "Requests in flight at an endpoint",
    )?;
    for Row { labels, load, .. } in &rows {
        let requests = load.requests;
        writeln!(
            page,
            "wicketgate_endpoint_inflight_requests{{{labels}}} {requests}"
        )?;
    }
    gauge(
        &mut page,
        "endpoint_inflight_tokens",
        "Prefill tokens in flight at an endpoint",
    )?;
    for Row { labels, load, .. } in &rows {
        let tokens = load.tokens;
        writeln!(
            page,
            "wicketgate_endpoint_inflight_tokens{{{labels}}} {tokens}"
        )?;
    }
    gauge(
        &mut page,
        "endpoint_scrape_failures",
        "Scrapes failed in a row",
    )?;
    for Row {
        labels, failures, ..
    } in &rows
    {
        writeln!(
            page,
            "wicketgate_endpoint_scrape_failures{{{labels}}} {failures}"
        )?;
    }
    gauge(
        &mut page,
        "endpoint_scrapes_without_signal",
        "Good scrapes in a row that did not bring a signal",
    )?;
    for Row {
        labels, missing, ..
    } in &rows
    {
        let signals = [
            ("waiting", missing.waiting),
            ("running", missing.running),
            ("kv_usage", missing.kv_usage),
        ];
        for (signal, count) in signals {
            writeln!(
                page,
                "wicketgate_endpoint_scrapes_without_signal{{{labels},signal=\"{signal}\"}} {count}"
            )?;
        }
    }
    gauge(
        &mut page,
        "endpoint_kv_usage_ratio",
        "KV cache use that the endpoint reports",
    )?;
    for Row {
        labels, kv_usage, ..
    } in &rows
    {
        if let Some(kv) = kv_usage {
            writeln!(page, "wicketgate_endpoint_kv_usage_ratio{{{labels}}} {kv}")?;
        }
    }
    queues::queues(&mut page, pipeline)?;
    if let Some(prefixes) = pipeline.prefixes() {
        index::metrics(&mut page, prefixes)?;
    }
    page.push_str("# EOF\n");
    Ok(page)
}

fn counter(page: &mut String, name: &str, help: &str) -> std::fmt::Result {
    writeln!(
        page,
        "# HELP wicketgate_{name} {help}.\n# TYPE wicketgate_{name} counter"
    )
}

fn gauge(page: &mut String, name: &str, help: &str) -> std::fmt::Result {
    writeln!(
        page,
        "# HELP wicketgate_{name} {help}.\n# TYPE wicketgate_{name} gauge"
    )
}

/// A configured name inside quotes.
fn label(name: &str) -> String {
    name.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
