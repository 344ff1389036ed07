//! Ranges that no single key shows: ports against each other, times against each other.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use crate::{
    decode::Decoded,
    raw::{Fleet, Raw, Server, Telemetry, Tls},
    scalar::shown,
    units::Span,
};

/// Shortest time between two scrapes of an endpoint.
const SCRAPE_FLOOR: Duration = Duration::from_millis(10);
/// The HTTP library takes no smaller header block.
const HEADER_FLOOR: u64 = 8 << 10;

/// Checks what stands at the root.
pub(crate) fn all(raw: &Raw, out: &mut Decoded) {
    server(&raw.server, out);
    telemetry(&raw.telemetry, out);
    if let Some(section) = &raw.fleet {
        fleet(section, out);
    }
    if let Some(section) = &raw.kv_index {
        crate::kvindex::check(section, out);
        crate::kvindex::check_warm(section, &raw.server, out);
    }
    let upstream = &raw.upstream;
    positive("upstream.connectTimeout", upstream.connect_timeout, out);
    positive(
        "upstream.firstByteTimeout",
        upstream.first_byte_timeout,
        out,
    );
    positive("upstream.totalTimeout", upstream.total_timeout, out);
    for (path, text) in [
        ("upstream.bearerTokenFile", &upstream.bearer_token_file),
        (
            "upstream.tls.caFile",
            &upstream.tls.as_ref().map(|tls| tls.ca_file.clone()),
        ),
    ] {
        named(path, text.as_deref(), out);
    }
    for (index, pool) in raw.pools.iter().enumerate() {
        let path = format!("pools[{index}]");
        named(
            &format!("{path}.endpointsFile"),
            pool.endpoints_file.as_deref(),
            out,
        );
        let breaker = &pool.breaker;
        let path = format!("{path}.breaker");
        positive(&format!("{path}.window"), breaker.window, out);
        positive(&format!("{path}.cooldown"), breaker.cooldown, out);
        if breaker.cooldown_cap < breaker.cooldown {
            let what = format!(
                "{} is shorter than the cooldown of {}",
                breaker.cooldown_cap, breaker.cooldown
            );
            out.fault(&format!("{path}.cooldownCap"), what);
        }
    }
}

/// How replicas reach each other, and how often they talk.
fn fleet(fleet: &Fleet, out: &mut Decoded) {
    if let Some(listen) = &fleet.listen
        && listen.parse::<SocketAddr>().is_err()
    {
        let what = format!("{} is no address; expected IP:PORT", shown(listen));
        out.fault("fleet.listen", what);
    }
    for (index, peer) in fleet.peers.iter().enumerate() {
        let parts = peer.rsplit_once(':');
        let parts = parts.map(|(host, port)| (host.is_empty(), port.parse::<u16>()));
        if !matches!(parts, Some((false, Ok(1..)))) {
            let what = format!("{} is no peer; expected host:port", shown(peer));
            out.fault(&format!("fleet.peers[{index}]"), what);
        }
    }
    if fleet.listen.is_none() && fleet.peers.is_empty() {
        out.fault("fleet", "needs `listen`, `peers`, or both");
    }
    positive("fleet.interval", fleet.interval, out);
    if fleet.stale_after <= fleet.interval {
        let what = format!(
            "{} is not longer than the interval of {}: every replica would count as gone",
            fleet.stale_after, fleet.interval
        );
        out.fault("fleet.staleAfter", what);
    }
    tls("fleet.tls", fleet.tls.as_ref(), out);
    let certificates = fleet.tls.as_ref();
    if certificates.is_some_and(|tls| tls.client_ca_file.is_none()) {
        let what = "needs `clientCaFile`: replicas know each other by it";
        out.fault("fleet.tls", what);
    }
}

fn positive(path: &str, span: Span, out: &mut Decoded) {
    if span.0.is_zero() {
        out.fault(path, "must be longer than 0s");
    }
}

fn named(path: &str, text: Option<&str>, out: &mut Decoded) {
    if text == Some("") {
        out.fault(path, "an empty text is no file; name one or remove the key");
    }
}

fn server(server: &Server, out: &mut Decoded) {
    if server.bind.parse::<IpAddr>().is_err() {
        let what = format!("{} is no IP address", shown(&server.bind));
        out.fault("server.bind", what);
    }
    let ports = [
        ("httpPort", server.http_port),
        ("extProcPort", server.ext_proc_port),
        ("healthPort", server.health_port),
        ("metricsPort", server.metrics_port),
        ("managementPort", server.management_port),
    ];
    for (index, (key, port)) in ports.iter().enumerate().filter(|(_, (_, port))| *port != 0) {
        let earlier = ports.iter().take(index).find(|(_, other)| other == port);
        if let Some((other, _)) = earlier {
            // Said at the one that the file has: the other may be a default.
            let path = format!("server.{key}");
            let path = if out.has(&path) {
                path
            } else {
                format!("server.{other}")
            };
            out.fault(
                &path,
                format!("`{port}` is both {other} and {key}; ports must differ"),
            );
        }
    }
    if server.max_header_bytes.0 < HEADER_FLOOR {
        out.fault("server.maxHeaderBytes", "too small; at least 8Ki");
    }
    positive("server.headerTimeout", server.header_timeout, out);
    positive("server.bodyTimeout", server.body_timeout, out);
    positive("server.decisionTimeout", server.decision_timeout, out);
    tls("server.tls", server.tls.as_ref(), out);
    tls("server.extProcTls", server.ext_proc_tls.as_ref(), out);
    management(server, out);
}

/// Whoever reaches the management port may change what this process does.
fn management(server: &Server, out: &mut Decoded) {
    tls("server.managementTls", server.management_tls.as_ref(), out);
    named(
        "server.managementTokenFile",
        server.management_token_file.as_deref(),
        out,
    );
    let has_token = server.management_token.is_some() || server.management_token_file.is_some();
    if server.management_token.is_some() && server.management_token_file.is_some() {
        let what = "`managementTokenFile` and `managementToken` are both set; keep one";
        out.fault("server.managementToken", what);
    }
    let Ok(bind) = server.management_bind.parse::<IpAddr>() else {
        let what = format!("{} is no IP address", shown(&server.management_bind));
        return out.fault("server.managementBind", what);
    };
    let certificates = server.management_tls.as_ref();
    let knows_callers = certificates.is_some_and(|tls| tls.client_ca_file.is_some());
    if !bind.is_loopback() && !has_token && !knows_callers {
        let what = format!(
            "`{bind}` can be reached from elsewhere, and nobody would be asked who they are; expected a loopback address, \
             or with another one `managementToken: ${{env:NAME}}`, `managementTokenFile`, or `managementTls` with \
             `clientCaFile`"
        );
        out.fault("server.managementBind", what);
    }
}

fn tls(path: &str, tls: Option<&Tls>, out: &mut Decoded) {
    let Some(tls) = tls else { return };
    named(&format!("{path}.certFile"), Some(&tls.cert_file), out);
    named(&format!("{path}.keyFile"), Some(&tls.key_file), out);
    named(
        &format!("{path}.clientCaFile"),
        tls.client_ca_file.as_deref(),
        out,
    );
}

fn telemetry(telemetry: &Telemetry, out: &mut Decoded) {
    if telemetry.interval.0 < SCRAPE_FLOOR {
        let what = format!("{} is too short; at least 10ms", telemetry.interval);
        out.fault("telemetry.interval", what);
    }
    if telemetry.staleness.0 <= telemetry.interval.0 {
        let what = format!(
            "a staleness of {} is not longer than the interval of {}: every value would count as stale",
            telemetry.staleness, telemetry.interval
        );
        // Said at the key that the file has: the other may be a default.
        let there = out.has("telemetry.staleness") || !out.has("telemetry.interval");
        let key = if there { "staleness" } else { "interval" };
        out.fault(&format!("telemetry.{key}"), what);
    }
    positive("telemetry.timeout", telemetry.timeout, out);
    if telemetry.max_page_bytes.0 == 0 {
        out.fault("telemetry.maxPageBytes", "must be more than 0");
    }
    let token = |c: char| c.is_ascii_graphic() && c != '#';
    if !telemetry.path.starts_with('/') || !telemetry.path.chars().all(token) {
        let what = format!(
            "{} is no path; expected one like /metrics",
            shown(&telemetry.path)
        );
        out.fault("telemetry.path", what);
    }
}
