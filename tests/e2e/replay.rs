//! A recorded run of the picker, with several workers and endpoints coming and going, replayed by another process.

use wicketgate_epp::extproc::proto::body_mode;
use wicketgate_testkit::{
    TempDir,
    client::chat,
    cluster::{Command, Front, addresses, engines},
    process::Process,
    stream::Proxy,
};

use crate::wicketgate;

const PROFILE: &str = "plugins:\n- type: queue-scorer\n- type: kv-cache-utilization-scorer\n- type: active-request-scorer\n- type: weighted-random-picker\n  parameters: {maxNumOfEndpoints: 2}\nschedulingProfiles:\n- name: default\n  plugins:\n  - {pluginRef: queue-scorer, weight: 2}\n  - {pluginRef: kv-cache-utilization-scorer, weight: 1}\n  - {pluginRef: active-request-scorer, weight: WEIGHT}\n  - {pluginRef: weighted-random-picker}\n";

async fn requests(picker: &Front, count: usize) {
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let address = picker.data;
        tasks.push(tokio::spawn(async move {
            let proxy = Proxy::connect(address).await;
            for round in 0..count {
                let mut exchange = proxy
                    .open((
                        body_mode::FULL_DUPLEX_STREAMED,
                        body_mode::FULL_DUPLEX_STREAMED,
                    ))
                    .await;
                exchange
                    .request_headers("POST", "/v1/chat/completions", false)
                    .await;
                exchange
                    .request_body(chat(round % 40, 3, false), true)
                    .await;
                if exchange.answer().await.unwrap().is_none() || round % 5 == 0 {
                    continue;
                }
                exchange.response_headers("200", false).await;
                exchange.response_body("{}", true).await;
                // The request's body, the answer's headers, its body.
                for _ in 0..3 {
                    assert!(exchange.answer().await.unwrap().is_some());
                }
                exchange.finish().await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

async fn replay(arguments: &[&str]) -> (Option<i32>, String) {
    let mut process = Process::start(wicketgate(), arguments);
    let code = process.wait().await;
    (code, process.words().join("\n"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recorded_run_replays_and_a_changed_weight_diverges() {
    let engines = engines(4).await;
    let all = addresses(&engines);
    let files = TempDir::new();
    let list = |count: usize| {
        let lines: String = all[..count]
            .iter()
            .map(|address| format!("- address: {address}\n"))
            .collect();
        format!("endpoints:\n{lines}")
    };
    let endpoints = files.write("endpoints.yaml", &list(2));
    let log = files.path().join("run.jsonl").display().to_string();
    let pool = format!("  endpointsFile: {}\n", endpoints.display());
    let profile = PROFILE.replace("WEIGHT", "3");
    let mut picker = Front::start_with(
        wicketgate(),
        Command::Epp,
        &pool,
        "",
        &profile,
        &["--record", &log],
    )
    .await;
    picker.wait_scraped(2).await;
    // Requests that stay open make endpoints differ in our own counts all the while, so that their weight matters.
    let proxy = Proxy::connect(picker.data).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut exchange = proxy
            .open((
                body_mode::FULL_DUPLEX_STREAMED,
                body_mode::FULL_DUPLEX_STREAMED,
            ))
            .await;
        exchange.request_headers("GET", "/v1/models", true).await;
        assert!(exchange.answer().await.unwrap().is_some());
        held.push(exchange);
    }
    for count in [4, 1, 3] {
        let (traffic, ()) = tokio::join!(requests(&picker, 40), async {
            files.write("endpoints.yaml", &list(count));
            picker.wait_scraped(count).await;
        });
        let () = traffic;
    }
    drop(held);
    picker.assert_guards_at_zero().await;
    picker.process.terminate().await;
    assert_eq!(
        picker.process.wait().await,
        Some(0),
        "{:?}",
        picker.process.words()
    );

    let text = std::fs::read_to_string(&log).unwrap();
    let count = |what: &str| text.lines().filter(|line| line.contains(what)).count();
    assert_eq!(count("\"Arrive\""), 3 * 8 * 40 + 3);
    assert!(count("\"Endpoints\"") >= 4 && count("\"Telemetry\"") > 0);
    let (code, words) = replay(&["sim", "replay", &log]).await;
    assert_eq!(code, Some(0), "{words}");

    let other = files.write("other.yaml", &PROFILE.replace("WEIGHT", "0.5"));
    let (code, words) = replay(&[
        "sim",
        "replay",
        &log,
        "--config",
        &other.display().to_string(),
    ])
    .await;
    assert_eq!(code, Some(1), "{words}");
    assert!(words.contains("diverged"), "{words}");
}
