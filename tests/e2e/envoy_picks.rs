//! Real Envoy: the choice is honoured, restricted, and never the caller's.

use bytes::Bytes;
use wicketgate_bench::envoy::{ORIGINAL_DST, OVERRIDE_HOST, block};
use wicketgate_testkit::{
    TempDir,
    client::{Begun, Caller, Version, call, chat, chat_call, full, request},
    cluster::{Command, Front, Gateway, addresses, endpoint_lines, engine, engines},
    envoy_binary, eventually, free_address,
};

use crate::{NO_HOLD, wicketgate};

const ONE: &str = "plugins:\n- type: active-request-scorer\n- type: max-score-picker\n";

#[tokio::test(flavor = "multi_thread")]
async fn picks_are_honoured_and_spread() {
    let Some(envoy) = envoy_binary() else { return };
    let engines = engines(3).await;
    let endpoints = addresses(&engines);
    let picker = Front::start(wicketgate(), Command::Epp, &endpoints).await;
    picker.wait_scraped(3).await;
    let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &endpoints, |config| config).await;
    for version in [Version::H1, Version::H2] {
        let mut caller = Caller::connect(gateway.address, version).await;
        for _ in 0..10 {
            let body = full(chat(5, 3, false));
            let answer = caller
                .call(request("POST", "/v1/chat/completions", &[], body))
                .await;
            assert_eq!(answer.status, 200, "{answer:?}");
            assert_eq!(answer.json()["usage"]["completion_tokens"], 3);
        }
    }
    for line in gateway.log(20).await {
        // S06: an ordered list of three; header and metadata are equal, and its first entry served.
        let picked = line["picked"].as_str().unwrap();
        assert_eq!(line["header"], picked, "{line}");
        assert_eq!(picked.split(',').count(), 3, "{line}");
        assert_eq!(line["served"].as_str(), picked.split(',').next(), "{line}");
        assert_eq!(line["upstream"], line["served"], "{line}");
    }
    assert!(engines.iter().all(|engine| engine.stats().requests > 0));
    picker.assert_guards_at_zero().await;
    assert_eq!(
        picker.metric(&["requests_total", "outcome=\"ok\""]).await,
        20.0
    );
    assert_eq!(picker.metric(&["tokens_total", "completion"]).await, 60.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_endpoint_is_passed_over() {
    let Some(envoy) = envoy_binary() else { return };
    let alive = engines(1).await;
    let dead = free_address();
    let endpoints = vec![dead, alive[0].address()];
    let only_dead_first = format!(
        "  endpoints:\n  - {{address: \"{dead}\", weight: 1000}}\n  - {{address: \"{}\"}}\n",
        alive[0].address()
    );
    // Without telemetry in the profile the dead endpoint's silence does not hide it: it is really tried.
    let profile = "plugins:\n- type: random-picker\n  parameters: {maxNumOfEndpoints: 2}\n";
    let picker = Front::start_with(
        wicketgate(),
        Command::Epp,
        &only_dead_first,
        "",
        profile,
        &[],
    )
    .await;
    let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &endpoints, |config| config).await;
    for _ in 0..10 {
        let answer = chat_call(gateway.address, &[]).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert_eq!(alive[0].stats().requests, 10);
    let lines = gateway.log(10).await;
    let passed_over = lines.iter().filter(|line| line["attempts"] == 2).count();
    assert!(passed_over > 0, "{lines:?}");
    for line in &lines {
        assert_eq!(line["served"], alive[0].address().to_string(), "{line}");
    }
    picker.assert_guards_at_zero().await;
    let elsewhere = picker.metric(&["wicketgate_served_elsewhere_total"]).await;
    assert_eq!(elsewhere, passed_over as f64);
}

#[tokio::test(flavor = "multi_thread")]
async fn original_dst_dials_the_pick() {
    let Some(envoy) = envoy_binary() else { return };
    let engines = engines(2).await;
    let endpoints = addresses(&engines);
    let pool = endpoint_lines(&endpoints);
    let picker = Front::start_with(wicketgate(), Command::Epp, &pool, "", ONE, &[]).await;
    let gateway = Gateway::start(&envoy, ORIGINAL_DST, &picker, &[], |config| config).await;
    for _ in 0..6 {
        assert_eq!(chat_call(gateway.address, &[]).await.status, 200);
    }
    let body = Bytes::from(vec![b'x'; 10 << 20]);
    let headers = [
        ("x-emulator-echo", "1"),
        ("x-gateway-destination-endpoint", "127.0.0.1:9"),
    ];
    let echoed = call(gateway.address, "POST", "/v1/other", &headers, body.clone())
        .await
        .json();
    assert_eq!(echoed["body_len"], body.len());
    for line in gateway.log(7).await {
        assert_eq!(line["upstream"], line["header"], "{line}");
        assert!(
            endpoints
                .iter()
                .any(|endpoint| line["upstream"] == endpoint.to_string()),
            "{line}"
        );
    }
    let begun = Begun::start(gateway.address, &[("x-emulator-failure", "stall=4")], 3).await;
    assert_eq!(picker.running().await, 1);
    drop(begun);
    picker.assert_guards_at_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_callers_own_destination_is_ignored() {
    let Some(envoy) = envoy_binary() else { return };
    let inside = engines(1).await;
    let outside = engine().await;
    let endpoints = addresses(&inside);
    let picker = Front::start(wicketgate(), Command::Epp, &endpoints).await;
    // Even where Envoy itself would not strip it, and knows the other endpoint.
    let all = vec![endpoints[0], outside.address()];
    let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &all, |config| {
        config.replace(
            "mutations: [{ remove: x-gateway-destination-endpoint }]",
            "mutations: [{ remove: x-none }]",
        )
    })
    .await;
    let forged = outside.address().to_string();
    let headers = [
        ("x-gateway-destination-endpoint", forged.as_str()),
        ("X-Gateway-Destination-Endpoint-Subset", forged.as_str()),
        ("x-prefiller-host-port", "10.0.0.9:1"),
        ("x-emulator-echo", "1"),
    ];
    let echoed = call(gateway.address, "POST", "/v1/x", &headers, "{}")
        .await
        .json();
    assert_eq!(outside.stats().requests, 0);
    let names: Vec<&str> = echoed["headers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| pair[0].as_str().unwrap())
        .collect();
    assert!(
        !names.contains(&"x-prefiller-host-port")
            && !names.contains(&"x-gateway-destination-endpoint-subset"),
        "{names:?}"
    );
    let destination = echoed["headers"]
        .as_array()
        .unwrap()
        .iter()
        .find(|pair| pair[0] == "x-gateway-destination-endpoint");
    assert_eq!(destination.unwrap()[1], endpoints[0].to_string());
}

/// Envoy's filter that sets the subset hint to a value.
fn subset(value: &str) -> String {
    format!(
        r#"
          - name: envoy.filters.http.set_metadata
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
              metadata:
              - metadata_namespace: envoy.lb.subset_hint
                allow_overwrite: true
                value: {{ x-gateway-destination-endpoint-subset: {value} }}
"#
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn the_subset_hint_restricts_by_address_and_port() {
    let Some(envoy) = envoy_binary() else { return };
    let engines = engines(2).await;
    let endpoints = addresses(&engines);
    let picker = Front::start(wicketgate(), Command::Epp, &endpoints).await;
    let last = endpoints[1];
    // Both endpoints have one IP: only the port tells them apart.
    for value in [format!("[\"{last}\"]"), format!("\"{last}, 10.0.0.9:1\"")] {
        let before = engines[0].stats().requests;
        let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &endpoints, |config| {
            block(&config, "subset", &subset(&value))
        })
        .await;
        for _ in 0..4 {
            assert_eq!(chat_call(gateway.address, &[]).await.status, 200);
            assert_eq!(
                call(gateway.address, "GET", "/v1/models", &[], "")
                    .await
                    .status,
                200
            );
        }
        assert_eq!(engines[0].stats().requests, before, "{value}");
        assert!(
            gateway
                .log(8)
                .await
                .iter()
                .all(|line| line["upstream"] == last.to_string())
        );
    }
    // S07: a subset that names nobody of the pool is 503, not anybody.
    for value in ["[]".to_owned(), "[\"10.0.0.9:8000\"]".to_owned()] {
        let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &endpoints, |config| {
            block(&config, "subset", &subset(&value))
        })
        .await;
        let answer = chat_call(gateway.address, &[]).await;
        answer.assert_error(503, "subset_empty");
        assert_eq!(
            answer.header("x-llm-d-request-dropped-reason"),
            "rejected-no-endpoints"
        );
        assert!(!answer.header("retry-after").is_empty());
        call(gateway.address, "GET", "/v1/models", &[], "")
            .await
            .assert_error(503, "subset_empty");
    }
    picker.assert_guards_at_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_come_and_go_by_file() {
    let Some(envoy) = envoy_binary() else { return };
    let engines = engines(2).await;
    let endpoints = addresses(&engines);
    let files = TempDir::new();
    let list = |of: &[std::net::SocketAddr]| {
        let lines: String = of.iter().map(|a| format!("- address: {a}\n")).collect();
        if of.is_empty() {
            "endpoints: []\n".to_owned()
        } else {
            format!("endpoints:\n{lines}")
        }
    };
    let file = files.write("endpoints.yaml", &list(&endpoints[..1]));
    let pool = format!("  endpointsFile: {}\n", file.display());
    let picker = Front::start_with(wicketgate(), Command::Epp, &pool, "", NO_HOLD, &[]).await;
    picker.wait_scraped(1).await;
    let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &endpoints, |config| config).await;
    assert_eq!(chat_call(gateway.address, &[]).await.status, 200);
    assert_eq!(
        (engines[0].stats().requests, engines[1].stats().requests),
        (1, 0)
    );

    let begun = Begun::start(gateway.address, &[("x-emulator-failure", "stall=4")], 3).await;
    files.write("endpoints.yaml", &list(&endpoints[1..]));
    eventually("the other endpoint alone", || async {
        let view = picker.view("/debug/endpoints").await;
        let rows = view["main"].as_array().unwrap();
        (rows.len() == 1 && rows[0]["address"] == endpoints[1].to_string()).then_some(())
    })
    .await;
    // What runs on the one that left stays counted until it ends.
    assert_eq!(picker.view("/debug/held").await["main"]["orphaned"], 1);
    picker.wait_scraped(1).await;
    assert_eq!(chat_call(gateway.address, &[]).await.status, 200);
    assert_eq!(engines[1].stats().requests, 1);
    drop(begun);
    picker.assert_guards_at_zero().await;

    files.write("endpoints.yaml", "endpoints:\n- adress: x\n");
    eventually("a refusal of the faulty file", || async {
        picker
            .process
            .words()
            .iter()
            .any(|line| line.contains("did you mean `address`"))
            .then_some(())
    })
    .await;
    assert_eq!(chat_call(gateway.address, &[]).await.status, 200);

    files.write("endpoints.yaml", &list(&[]));
    eventually("an empty pool", || async {
        picker.view("/debug/endpoints").await["main"]
            .as_array()
            .unwrap()
            .is_empty()
            .then_some(())
    })
    .await;
    let answer = chat_call(gateway.address, &[]).await;
    answer.assert_error(503, "no_endpoints");
    assert_eq!(answer.header("retry-after"), "5");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_filtered_is_429() {
    let Some(envoy) = envoy_binary() else { return };
    let engines = engines(1).await;
    let endpoints = addresses(&engines);
    let profile = "plugins:\n- type: label-selector-filter\n  parameters: {matchLabels: {zone: none}}\n- type: max-score-picker\n";
    let picker = Front::start_with(
        wicketgate(),
        Command::Epp,
        &endpoint_lines(&endpoints),
        "",
        profile,
        &[],
    )
    .await;
    let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &endpoints, |config| config).await;
    let answer = chat_call(gateway.address, &[]).await;
    answer.assert_error(429, "all_filtered");
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(
        answer.header("x-llm-d-request-dropped-reason"),
        "rejected-saturated"
    );
    assert_eq!(
        gateway.log(1).await[0]["details"],
        "wicketgate_all_filtered"
    );
}

/// Envoy keeps few connections to the picker and opens a stream on them for each request: they must last.
#[tokio::test(flavor = "multi_thread")]
async fn the_pickers_connection_lasts() {
    let Some(envoy) = envoy_binary() else { return };
    let engines = engines(1).await;
    let endpoints = addresses(&engines);
    let picker = Front::start(wicketgate(), Command::Epp, &endpoints).await;
    let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &endpoints, |config| config).await;
    let mut caller = Caller::connect(gateway.address, Version::H1).await;
    for _ in 0..1500 {
        let answer = caller
            .call(request(
                "POST",
                "/v1/embeddings",
                &[],
                full(r#"{"input":"a"}"#),
            ))
            .await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    picker.assert_guards_at_zero().await;
    for counter in [
        "upstream_cx_protocol_error",
        "upstream_cx_destroy_remote_with_active_rq",
    ] {
        let stats = gateway
            .envoy
            .admin_get(&format!("/stats?filter=cluster.epp.{counter}"))
            .await
            .unwrap();
        assert!(stats.trim().ends_with(": 0"), "{stats}");
    }
}
