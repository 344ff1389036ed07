//! The official OpenAI client through both fronts.

use std::net::SocketAddr;

use wicketgate_bench::envoy::OVERRIDE_HOST;
use wicketgate_testkit::{
    cluster::{Command, Front, Gateway, addresses, endpoint_lines, engines},
    envoy_binary, root,
};

use crate::{NO_HOLD, wicketgate};

/// Runs the script against a gateway, and against one without endpoints.
async fn run_script(gateway: SocketAddr, empty: SocketAddr) {
    let python = root().join(".venv/bin/python");
    let script = root().join("tests/e2e/openai_client.py");
    let run = tokio::process::Command::new(python)
        .arg(script)
        .arg(format!("http://{gateway}/v1"))
        .arg(format!("http://{empty}/v1"))
        .output()
        .await
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr),
    );
    assert!(run.status.success(), "{out}\n{err}");
    assert!(out.trim().ends_with("7 passed, 0 failed"), "{out}");
}

fn client_there() -> bool {
    let there = root().join(".venv/bin/python").is_file();
    if !there {
        assert!(
            std::env::var_os("CI").is_none(),
            "CI needs the OpenAI client: scripts/setup-test-env.sh"
        );
        eprintln!("skipped: OpenAI client absent, run scripts/setup-test-env.sh");
    }
    there
}

#[tokio::test(flavor = "multi_thread")]
async fn through_serve() {
    if !client_there() {
        return;
    }
    let engines = engines(2).await;
    let limit = "  maxBodyBytes: 64Ki\n";
    let pool = endpoint_lines(&addresses(&engines));
    let front = Front::start_with(wicketgate(), Command::Serve, &pool, limit, "", &[]).await;
    let none = endpoint_lines(&[]);
    let empty = Front::start_with(wicketgate(), Command::Serve, &none, "", NO_HOLD, &[]).await;
    run_script(front.data, empty.data).await;
    front.assert_guards_at_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn through_envoy_and_epp() {
    let (Some(envoy), true) = (envoy_binary(), client_there()) else {
        return;
    };
    let engines = engines(2).await;
    let endpoints = addresses(&engines);
    let limit = "  maxBodyBytes: 64Ki\n";
    let picker = Front::start_with(
        wicketgate(),
        Command::Epp,
        &endpoint_lines(&endpoints),
        limit,
        "",
        &[],
    )
    .await;
    let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &endpoints, |config| config).await;
    let none = endpoint_lines(&[]);
    let nobody = Front::start_with(wicketgate(), Command::Epp, &none, "", NO_HOLD, &[]).await;
    let empty = Gateway::start(&envoy, OVERRIDE_HOST, &nobody, &endpoints, |config| config).await;
    run_script(gateway.address, empty.address).await;
    picker.assert_guards_at_zero().await;
}
