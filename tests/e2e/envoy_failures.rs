//! Real Envoy when something breaks: callers, engines, the picker itself.

use std::time::{Duration, Instant};

use wicketgate_bench::envoy::{OVERRIDE_HOST, block};
use wicketgate_testkit::{
    certs::Authority,
    client::{Begun, call, chat_call},
    cluster::{Command, Front, Gateway, addresses, endpoint_lines, engines},
    envoy_binary, eventually,
};

use crate::wicketgate;

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_hangs_up_frees_everything() {
    let Some(envoy) = envoy_binary() else { return };
    let engines = engines(1).await;
    let endpoints = addresses(&engines);
    let picker = Front::start(wicketgate(), Command::Epp, &endpoints).await;
    let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &endpoints, |config| config).await;
    let begun = Begun::start(gateway.address, &[("x-emulator-failure", "stall=4")], 3).await;
    assert_eq!(picker.running().await, 1);
    let hung_up = Instant::now();
    drop(begun);
    picker.assert_guards_at_zero().await;
    eprintln!(
        "a hang-up was counted after {:?} (aim: 100 ms, polled every 10 ms)",
        hung_up.elapsed()
    );
    assert_eq!(picker.metric(&["requests_total", "client_gone"]).await, 1.0);
    eventually("the engine's slot to be free", || async {
        (engines[0].stats().running == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_breaks_off_is_seen() {
    let Some(envoy) = envoy_binary() else { return };
    let engines = engines(1).await;
    let endpoints = addresses(&engines);
    let picker = Front::start(wicketgate(), Command::Epp, &endpoints).await;
    let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &endpoints, |config| config).await;
    let mut begun = Begun::start(gateway.address, &[("x-emulator-failure", "cut=4")], 3).await;
    assert!(!begun.ends_properly().await);
    picker.assert_guards_at_zero().await;
    let answer = chat_call(gateway.address, &[("x-emulator-failure", "status=500")]).await;
    assert_eq!(answer.status, 500);
    assert_eq!(answer.json()["error"]["message"], "Injected failure 500.");
    let answer = chat_call(gateway.address, &[("x-emulator-failure", "wrong-usage")]).await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        picker.metric(&["requests_total", "upstream_5xx"]).await,
        1.0
    );
    picker.assert_guards_at_zero().await;
}

/// What envoy 1.40 does when its picker dies, in full duplex: open streams are cut, whatever the failure mode;
/// new requests fail closed or, once the picker counts as unhealthy, go on without it.
async fn picker_killed(open: bool) {
    let Some(envoy) = envoy_binary() else { return };
    let engines = engines(1).await;
    let endpoints = addresses(&engines);
    let mut picker = Front::start(wicketgate(), Command::Epp, &endpoints).await;
    let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &endpoints, |config| {
        config.replace(
            "failure_mode_allow: false",
            &format!("failure_mode_allow: {open}"),
        )
    })
    .await;
    let mut begun = Begun::start(gateway.address, &[("x-emulator-failure", "stall=4")], 3).await;
    picker.process.kill().await;
    assert!(!begun.ends_properly().await);
    let wanted = if open { 200 } else { 500 };
    eventually("the failure mode", || async {
        let answer = chat_call(gateway.address, &[]).await;
        assert!([200, 500].contains(&answer.status.as_u16()), "{answer:?}");
        (answer.status == wanted).then_some(())
    })
    .await;
    if !open {
        assert_eq!(chat_call(gateway.address, &[]).await.status, 500);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_picker_fails_closed() {
    picker_killed(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_picker_fails_open() {
    picker_killed(true).await;
}

/// A picker that is told to stop says so, serves on, lets open streams end, and goes with code 0.
#[tokio::test(flavor = "multi_thread")]
async fn a_picker_drains() {
    let Some(envoy) = envoy_binary() else { return };
    let engines = engines(1).await;
    let endpoints = addresses(&engines);
    let mut picker = Front::start(wicketgate(), Command::Epp, &endpoints).await;
    let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &endpoints, |config| config).await;
    let mut begun = Begun::start(
        gateway.address,
        &[("x-emulator-failure", "slow=0,stall=1000")],
        1,
    )
    .await;
    picker.process.terminate().await;
    eventually("not ready", || async {
        let answer = call(picker.admin, "GET", "/readyz", &[], "").await;
        (answer.status == 503).then_some(())
    })
    .await;
    assert_eq!(
        call(picker.admin, "GET", "/healthz", &[], "").await.status,
        200
    );
    // The stream goes on to its end under the draining picker.
    assert!(begun.ends_properly().await);
    assert!(begun.seen.ends_with(b"data: [DONE]\n\n"));
    assert_eq!(picker.process.wait().await, Some(0));
    let words = picker.process.words().join("\n");
    assert!(words.contains("stopped clean=true"), "{words}");
}

#[tokio::test(flavor = "multi_thread")]
async fn mutual_tls_to_the_picker() {
    let Some(envoy) = envoy_binary() else { return };
    let engines = engines(1).await;
    let endpoints = addresses(&engines);
    let authority = Authority::new("test CA");
    let stranger = Authority::new("another CA");
    let server = authority.issue(&["epp.local"]);
    let files = wicketgate_testkit::TempDir::new();
    let write = |name: &str, text: &str| files.write(name, text).display().to_string();
    let (ca, cert, key) = (
        write("ca.pem", &authority.certificate),
        write("s.pem", &server.certificate),
        write("s.key", &server.key),
    );
    let section =
        format!("  extProcTls: {{certFile: {cert}, keyFile: {key}, clientCaFile: {ca}}}\n");
    let pool = endpoint_lines(&endpoints);
    let picker = Front::start_with(wicketgate(), Command::Epp, &pool, &section, "", &[]).await;
    let tls = |pair: &wicketgate_testkit::certs::Pair, name: &str| {
        let (cert, key) = (
            write(&format!("{name}.pem"), &pair.certificate),
            write(&format!("{name}.key"), &pair.key),
        );
        format!(
            r#"
    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        sni: epp.local
        common_tls_context:
          alpn_protocols: [h2]
          tls_certificates: [{{ certificate_chain: {{ filename: "{cert}" }}, private_key: {{ filename: "{key}" }} }}]
          validation_context:
            trusted_ca: {{ filename: "{ca}" }}
            match_typed_subject_alt_names: [{{ san_type: DNS, matcher: {{ exact: epp.local }} }}]
"#
        )
    };
    let known = tls(&authority.issue(&["envoy.local"]), "known");
    let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &endpoints, |config| {
        block(&config, "epp tls", &known)
    })
    .await;
    for _ in 0..3 {
        assert_eq!(chat_call(gateway.address, &[]).await.status, 200);
    }
    picker.assert_guards_at_zero().await;
    // A certificate of another authority is refused: Envoy never counts the picker as healthy.
    let unknown = tls(&stranger.issue(&["envoy.local"]), "unknown");
    let ports = wicketgate_bench::envoy::Ports {
        listen: wicketgate_testkit::free_address(),
        admin: wicketgate_testkit::free_address(),
        epp: picker.data,
        endpoints: endpoints.clone(),
    };
    let config = block(
        &wicketgate_bench::envoy::render(OVERRIDE_HOST, &ports),
        "epp tls",
        &unknown,
    );
    let stranger = wicketgate_bench::envoy::Envoy::start(&envoy, &config, ports.admin)
        .await
        .unwrap();
    eventually("failed handshakes", || async {
        let stats = stranger
            .admin_get("/stats?filter=cluster.epp.ssl.connection_error")
            .await
            .unwrap();
        let failed = stats
            .trim()
            .rsplit(' ')
            .next()
            .and_then(|n| n.parse::<u64>().ok())
            .unwrap_or(0);
        let health = stranger
            .admin_get("/stats?filter=cluster.epp.health_check.failure")
            .await
            .unwrap();
        let sick = health
            .trim()
            .rsplit(' ')
            .next()
            .and_then(|n| n.parse::<u64>().ok())
            .unwrap_or(0);
        (failed + sick > 0).then_some(())
    })
    .await;
    assert_eq!(chat_call(ports.listen, &[]).await.status, 500);
}

/// A slow picker is bounded by its own deadline; here nothing waits, so the bound is only configured.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_engine_is_not_mistaken_for_a_dead_one() {
    let Some(envoy) = envoy_binary() else { return };
    let engines = engines(1).await;
    let endpoints = addresses(&engines);
    let picker = Front::start(wicketgate(), Command::Epp, &endpoints).await;
    let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &endpoints, |config| config).await;
    let begun = Instant::now();
    let answer = chat_call(gateway.address, &[("x-emulator-failure", "slow=700")]).await;
    assert_eq!(answer.status, 200);
    assert!(begun.elapsed() >= Duration::from_millis(700));
    picker.assert_guards_at_zero().await;
}
