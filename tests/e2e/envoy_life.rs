//! Real Envoy over a longer life: a picker that freezes, dies and comes back, an Envoy that dies.

use wicketgate_bench::envoy::{OVERRIDE_HOST, block};
use wicketgate_sim::engine::EngineHandle;
use wicketgate_testkit::{
    TempDir,
    certs::Authority,
    client::{Begun, Caller, Version, call, chat, chat_call, full, request},
    cluster::{Command, Front, Gateway, addresses, endpoint_lines, engines},
    envoy_binary, eventually,
    process::Process,
    raw::Raw,
};

use crate::wicketgate;

const OVERRIDE_HOST_MTLS: &str = include_str!("../../manifests/envoy/override-host-mtls.yaml");

async fn parts(edit: impl FnOnce(String) -> String) -> Option<(Vec<EngineHandle>, Front, Gateway)> {
    let envoy = envoy_binary()?;
    let engines = engines(1).await;
    let endpoints = addresses(&engines);
    let picker = Front::start(wicketgate(), Command::Epp, &endpoints).await;
    let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &endpoints, edit).await;
    Some((engines, picker, gateway))
}

/// Waits until Envoy counts no picker as healthy.
async fn wait_unhealthy(gateway: &Gateway) {
    eventually("an unhealthy picker", || async {
        let stats = gateway
            .envoy
            .admin_get("/stats?filter=cluster.epp.membership_healthy")
            .await;
        stats.unwrap().trim().ends_with(": 0").then_some(())
    })
    .await;
}

/// Sends chats until one is answered with 200, by the picker's choice or without one. Envoy's workers learn of a
/// health check's result a moment after its statistics show it.
async fn wait_answered(gateway: &Gateway, picked: bool) {
    let number = std::sync::atomic::AtomicU32::new(0);
    eventually("a good answer", || async {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = format!("/v1/chat/completions?picked={picked}&number={number}");
        let answer = call(gateway.address, "POST", &path, &[], chat(5, 3, false)).await;
        let line = eventually("its line in the log", || async {
            let lines = gateway.envoy.access_log();
            lines.into_iter().find(|line| line["path"] == path.as_str())
        })
        .await;
        (answer.status == 200 && line["picked"].is_string() == picked).then_some(())
    })
    .await;
}

/// A frozen process is found by the keepalive of Envoy's connection, and is as good as new when it thaws.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_picker_is_found_out() {
    let Some((_engines, picker, gateway)) = parts(|config| config).await else {
        return;
    };
    picker.process.signal("STOP").await;
    assert_eq!(chat_call(gateway.address, &[]).await.status, 500);
    wait_unhealthy(&gateway).await;
    picker.process.signal("CONT").await;
    gateway.envoy.wait_picker_healthy().await.unwrap();
    wait_answered(&gateway, true).await;
    picker.assert_guards_at_zero().await;
}

/// With buffered requests and streamed answers, failing open means that not even an open stream notices; failing
/// closed cuts it. When the picker is back, it chooses again.
async fn killed_and_back(open: bool) {
    let edit = |config: String| {
        config
            .replace(
                "failure_mode_allow: false",
                &format!("failure_mode_allow: {open}"),
            )
            .replace(
                "request_body_mode: FULL_DUPLEX_STREAMED",
                "request_body_mode: BUFFERED",
            )
            .replace(
                "response_body_mode: FULL_DUPLEX_STREAMED",
                "response_body_mode: STREAMED",
            )
    };
    let Some((_engines, mut picker, gateway)) = parts(edit).await else {
        return;
    };
    let mut begun = Begun::start(gateway.address, &[("x-emulator-failure", "stall=4")], 3).await;
    picker.process.kill().await;
    wait_unhealthy(&gateway).await;
    if open {
        // The stalled stream is still open; the next request goes by Envoy's own balancing.
        let more = tokio::time::timeout(std::time::Duration::from_millis(1), begun.read()).await;
        assert!(more.is_err(), "{more:?}");
        wait_answered(&gateway, false).await;
    } else {
        assert!(!begun.ends_properly().await);
        assert_eq!(chat_call(gateway.address, &[]).await.status, 500);
    }
    drop(begun);
    picker.process = Process::start(
        wicketgate(),
        &["epp", "--config", &picker.config.display().to_string()],
    );
    gateway.envoy.wait_picker_healthy().await.unwrap();
    wait_answered(&gateway, true).await;
    picker.assert_guards_at_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_picker_comes_back_after_failing_open() {
    killed_and_back(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_picker_comes_back_after_failing_closed() {
    killed_and_back(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_envoy_that_dies_leaves_nothing() {
    let Some((engines, picker, gateway)) = parts(|config| config).await else {
        return;
    };
    let mut streams = Vec::new();
    for _ in 0..5 {
        streams.push(Begun::start(gateway.address, &[("x-emulator-failure", "stall=4")], 3).await);
    }
    assert_eq!(picker.running().await, 5);
    drop(gateway);
    picker.assert_guards_at_zero().await;
    eventually("a free engine", || async {
        (engines[0].stats().in_flight == 0).then_some(())
    })
    .await;
}

/// A caller that hangs up in the middle of its own body, by either protocol, leaves no stream at the picker.
#[tokio::test(flavor = "multi_thread")]
async fn a_hang_up_during_the_upload_leaves_nothing() {
    let Some((engines, picker, gateway)) = parts(|config| config).await else {
        return;
    };
    let streams = async |count: f64| {
        eventually("the number of open streams", || async {
            (picker.metric(&["wicketgate_extproc_streams"]).await == count).then_some(())
        })
        .await;
    };
    let mut caller = Raw::open(gateway.address).await;
    caller.send("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n{\"model\"").await;
    streams(1.0).await;
    drop(caller);
    streams(0.0).await;
    assert_eq!(engines[0].stats().requests, 0);
    picker.assert_guards_at_zero().await;
}

/// Without Envoy's own protection the picker's is enough, for requests with a body and without.
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_destination_is_overwritten_by_the_picker_itself() {
    let edit = |config: String| {
        let unprotected = config.replace(
            "{ remove: x-gateway-destination-endpoint }",
            "{ remove: x-nothing }",
        );
        assert_ne!(unprotected, config);
        unprotected
    };
    let Some((engines, picker, gateway)) = parts(edit).await else {
        return;
    };
    let ours = engines[0].address().to_string();
    let forged = [
        ("x-emulator-echo", "1"),
        ("x-gateway-destination-endpoint", "127.0.0.1:9"),
        ("x-gateway-destination-endpoint", "127.0.0.1:10"),
        ("x-gateway-destination-endpoint-served", "127.0.0.1:9"),
        ("x-gateway-destination-endpoint-subset", "127.0.0.1:9"),
        ("x-prefiller-host-port", "127.0.0.1:9"),
    ];
    for version in [Version::H1, Version::H2] {
        for (method, path, body) in [
            ("POST", "/v1/chat/completions", chat(5, 3, false)),
            ("GET", "/v1/models", "".into()),
        ] {
            let mut caller = Caller::connect(gateway.address, version).await;
            let answer = caller
                .call(request(method, path, &forged, full(body)))
                .await;
            assert_eq!(answer.status, 200, "{answer:?}");
            let echo = answer.json();
            let steering: Vec<(&str, &str)> = echo["headers"]
                .as_array()
                .unwrap()
                .iter()
                .map(|pair| (pair[0].as_str().unwrap(), pair[1].as_str().unwrap()))
                .filter(|pair| pair.0.contains("destination") || pair.0.contains("prefiller"))
                .collect();
            assert_eq!(
                steering,
                [("x-gateway-destination-endpoint", ours.as_str())],
                "{method} {version:?}"
            );
        }
    }
    picker.assert_guards_at_zero().await;
}

/// The manifest with mutual TLS is the plain one but for its head and the transport socket.
#[test]
fn the_mtls_manifest_differs_only_in_tls() {
    let bare = |text: &str| {
        let lines = text.lines().skip_while(|line| line.starts_with('#'));
        block(&lines.collect::<Vec<_>>().join("\n"), "epp tls", "")
    };
    assert_eq!(bare(OVERRIDE_HOST_MTLS), bare(OVERRIDE_HOST));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mtls_manifest_works() {
    let Some(envoy) = envoy_binary() else { return };
    let authority = Authority::new("test CA");
    let (server, client) = (
        authority.issue(&["epp.local"]),
        authority.issue(&["envoy.local"]),
    );
    let files = TempDir::new();
    let write = |name: &str, text: &str| files.write(name, text).display().to_string();
    let ca = write("ca.crt", &authority.certificate);
    let (cert, key) = (
        write("s.crt", &server.certificate),
        write("s.key", &server.key),
    );
    let section =
        format!("  extProcTls: {{certFile: {cert}, keyFile: {key}, clientCaFile: {ca}}}\n");
    let (cert, key) = (
        write("c.crt", &client.certificate),
        write("c.key", &client.key),
    );
    let engines = engines(1).await;
    let endpoints = addresses(&engines);
    let pool = endpoint_lines(&endpoints);
    let picker = Front::start_with(wicketgate(), Command::Epp, &pool, &section, "", &[]).await;
    let edit = |config: String| {
        config
            .replace("/etc/envoy/tls/ca.crt", &ca)
            .replace("/etc/envoy/tls/tls.crt", &cert)
            .replace("/etc/envoy/tls/tls.key", &key)
    };
    let gateway = Gateway::start(&envoy, OVERRIDE_HOST_MTLS, &picker, &endpoints, edit).await;
    assert_eq!(chat_call(gateway.address, &[]).await.status, 200);
    let ours = endpoints[0].to_string();
    let line = &gateway.log(1).await[0];
    assert_eq!(
        (&line["picked"], &line["served"]),
        (&ours.as_str().into(), &ours.as_str().into())
    );
    picker.assert_guards_at_zero().await;
}
