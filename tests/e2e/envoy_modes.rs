//! Real Envoy in every body mode, with large bodies, trailers, streams, and requests without a body.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use serde_json::Value;
use wicketgate_bench::envoy::{OVERRIDE_HOST, block};
use wicketgate_testkit::{
    client::{Begun, Caller, Version, call, chat, chat_call, full, pieces, request},
    cluster::{Command, Front, Gateway, addresses, engines},
    envoy_binary,
};

use crate::wicketgate;

/// The manifest with other body modes.
fn with_modes(config: &str, request: &str, response: &str) -> String {
    config
        .replace(
            "request_body_mode: FULL_DUPLEX_STREAMED",
            &format!("request_body_mode: {request}"),
        )
        .replace(
            "response_body_mode: FULL_DUPLEX_STREAMED",
            &format!("response_body_mode: {response}"),
        )
}

fn hash(body: &[u8]) -> String {
    format!("{:016x}", xxhash_rust::xxh3::xxh3_64(body))
}

/// A body of this size whose bytes all differ from their neighbours'.
fn large(size: usize) -> Bytes {
    (0..size)
        .map(|at| (at * 31 % 251) as u8)
        .collect::<Vec<u8>>()
        .into()
}

async fn echo(gateway: &Gateway, path: &str, body: Bytes) -> Value {
    let headers = [
        ("x-emulator-echo", "1"),
        ("content-type", "application/json"),
    ];
    let answer = call(gateway.address, "POST", path, &headers, body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mode_carries_bodies_unchanged() {
    let Some(envoy) = envoy_binary() else { return };
    let engines = engines(2).await;
    let endpoints = addresses(&engines);
    let picker = Front::start(wicketgate(), Command::Epp, &endpoints).await;
    let modes = [
        ("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"),
        ("FULL_DUPLEX_STREAMED", "NONE"),
        ("BUFFERED", "STREAMED"),
        ("BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED"),
        ("STREAMED", "STREAMED"),
        ("NONE", "NONE"),
        ("BUFFERED", "BUFFERED"),
    ];
    for (request_mode, response_mode) in modes {
        let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &endpoints, |config| {
            with_modes(&config, request_mode, response_mode)
        })
        .await;
        let name = format!("{request_mode}/{response_mode}");
        let answer = chat_call(gateway.address, &[]).await;
        assert_eq!(answer.status, 200, "{name}: {answer:?}");
        let body = chat(50, 3, false);
        let echoed = echo(&gateway, "/v1/chat/completions", body.clone()).await;
        assert_eq!(echoed["body_xxh3_hex"], hash(&body), "{name}");
        // 0.5 MB fits into Envoy's buffer of 1 MiB in every mode.
        let body = large(500_000);
        let echoed = echo(&gateway, "/v1/files", body.clone()).await;
        assert_eq!(echoed["body_xxh3_hex"], hash(&body), "{name}");
        assert_eq!(
            call(gateway.address, "GET", "/v1/models", &[], "")
                .await
                .status,
            200,
            "{name}"
        );
        for line in gateway.log(4).await {
            assert_eq!(
                line["served"].as_str(),
                line["picked"].as_str().unwrap().split(',').next(),
                "{name}: {line}"
            );
            assert_eq!(line["header"], line["picked"], "{name}: {line}");
        }
        // A stream arrives while the engine still holds back its end, unless Envoy itself was told to buffer.
        if response_mode != "BUFFERED" {
            let begun =
                Begun::start(gateway.address, &[("x-emulator-failure", "stall=4")], 3).await;
            assert!(begun.seen.ends_with(b"\n\n"), "{name}");
        }
        picker.assert_guards_at_zero().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_pass_and_too_large_ones_are_413() {
    let Some(envoy) = envoy_binary() else { return };
    let engines = engines(1).await;
    let endpoints = addresses(&engines);
    let picker = Front::start(wicketgate(), Command::Epp, &endpoints).await;
    let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &endpoints, |config| config).await;
    for size in [1_000_000, 10_000_000] {
        for version in [Version::H1, Version::H2] {
            let body = large(size);
            let mut caller = Caller::connect(gateway.address, version).await;
            let sent = request(
                "POST",
                "/v1/files",
                &[("x-emulator-echo", "1")],
                full(body.clone()),
            );
            let echoed = caller.call(sent).await.json();
            assert_eq!(echoed["body_xxh3_hex"], hash(&body), "{size} {version:?}");
        }
        let text = "x".repeat(size);
        let body = Bytes::from(format!("{{\"model\":\"emulated\",\"prompt\":\"{text}\"}}"));
        let echoed = echo(&gateway, "/v1/completions", body.clone()).await;
        assert_eq!(echoed["body_xxh3_hex"], hash(&body));
    }
    // The limit is 16 MiB: told before the body by its length, and on the way without one.
    let body = large((16 << 20) + 1);
    let answer = call(gateway.address, "POST", "/v1/files", &[], body.clone()).await;
    answer.assert_error(413, "request_too_large");
    let chunks: Vec<Bytes> = body.chunks(1 << 20).map(Bytes::copy_from_slice).collect();
    let mut caller = Caller::connect(gateway.address, Version::H2).await;
    let answer = caller
        .call(request("POST", "/v1/files", &[], pieces(chunks, None)))
        .await;
    answer.assert_error(413, "request_too_large");
    picker.assert_guards_at_zero().await;
}

/// Envoy's own 413, for a body beyond its buffer, passes through our response phase.
#[tokio::test(flavor = "multi_thread")]
async fn the_proxys_own_answers_pass() {
    let Some(envoy) = envoy_binary() else { return };
    let engines = engines(1).await;
    let endpoints = addresses(&engines);
    let picker = Front::start(wicketgate(), Command::Epp, &endpoints).await;
    let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &endpoints, |config| {
        with_modes(&config, "BUFFERED", "STREAMED")
    })
    .await;
    let answer = call(gateway.address, "POST", "/v1/files", &[], large(3_000_000)).await;
    assert_eq!(answer.status, 413);
    assert_eq!(
        gateway.log(1).await[0]["details"],
        "request_payload_too_large"
    );
    assert_eq!(chat_call(gateway.address, &[]).await.status, 200);
    picker.assert_guards_at_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_pass_both_ways() {
    let Some(envoy) = envoy_binary() else { return };
    let engines = engines(1).await;
    let endpoints = addresses(&engines);
    let picker = Front::start(wicketgate(), Command::Epp, &endpoints).await;
    let upstream = r#"
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: { http_protocol_options: { enable_trailers: true } }
"#;
    for request_mode in ["FULL_DUPLEX_STREAMED", "BUFFERED", "STREAMED"] {
        let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &endpoints, |config| {
            // Envoy 1.40 sends the body twice when it retries requests with trailers.
            let config = block(&config, "retry", "");
            with_modes(
                &block(&config, "upstream options", upstream),
                request_mode,
                "FULL_DUPLEX_STREAMED",
            )
        })
        .await;
        let mut trailers = HeaderMap::new();
        trailers.insert("x-checksum", HeaderValue::from_static("abc"));
        let sent = pieces(vec![chat(5, 3, false), Bytes::new()], Some(trailers));
        let headers = [
            ("x-emulator-echo", "1"),
            ("x-emulator-trailers", "1"),
            ("te", "trailers"),
            ("trailer", "x-checksum"),
        ];
        let mut caller = Caller::connect(gateway.address, Version::H2).await;
        let answer = caller
            .call(request("POST", "/v1/chat/completions", &headers, sent))
            .await;
        assert_eq!(answer.status, 200, "{request_mode}: {answer:?}");
        let echoed = answer.json();
        assert_eq!(
            echoed["body_len"],
            chat(5, 3, false).len(),
            "{request_mode}"
        );
        assert_eq!(echoed["trailers"][0][1], "abc", "{request_mode}: {echoed}");
        assert!(
            answer.trailers.contains_key("x-emulator-body-xxh3"),
            "{request_mode}"
        );
        picker.assert_guards_at_zero().await;
    }
}

/// C03: requests without a body walk the whole path.
#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_body_are_scheduled_too() {
    let Some(envoy) = envoy_binary() else { return };
    let engines = engines(2).await;
    let endpoints = addresses(&engines);
    let picker = Front::start(wicketgate(), Command::Epp, &endpoints).await;
    let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &endpoints, |config| config).await;
    let cases = [
        ("GET", "/v1/models", 200),
        ("HEAD", "/health", 200),
        ("OPTIONS", "/v1/chat/completions", 405),
        ("POST", "/v1/chat/completions", 400),
    ];
    for (method, path, status) in cases {
        let answer = call(
            gateway.address,
            method,
            path,
            &[("content-length", "0")],
            "",
        )
        .await;
        assert_eq!(answer.status, status, "{method} {path} {answer:?}");
    }
    for line in gateway.log(cases.len()).await {
        assert_eq!(
            line["served"].as_str(),
            line["picked"].as_str().unwrap().split(',').next(),
            "{line}"
        );
    }
    picker.assert_guards_at_zero().await;
    assert_eq!(
        picker.metric(&["requests_total", "api=\"unknown\""]).await,
        cases.len() as f64
    );
}

/// C04 and C06: what we do not know, or find odd, is the model server's to judge, and goes through unchanged.
#[tokio::test(flavor = "multi_thread")]
async fn odd_bodies_and_unknown_paths_pass_and_bad_json_does_not() {
    let Some(envoy) = envoy_binary() else { return };
    let engines = engines(1).await;
    let endpoints = addresses(&engines);
    let picker = Front::start(wicketgate(), Command::Epp, &endpoints).await;
    let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &endpoints, |config| config).await;
    for (path, body) in crate::serve_bodies::ACCEPTED {
        let echoed = echo(&gateway, path, Bytes::from_static(body.as_bytes())).await;
        assert_eq!(
            echoed["body_xxh3_hex"],
            hash(body.as_bytes()),
            "{path} {body}"
        );
        assert_eq!(echoed["path"], *path);
    }
    for body in crate::serve_bodies::REFUSED {
        let answer = call(
            gateway.address,
            "POST",
            "/v1/chat/completions",
            &[],
            Bytes::from_static(body),
        )
        .await;
        answer.assert_error(400, "invalid_body");
    }
    picker.assert_guards_at_zero().await;
}
