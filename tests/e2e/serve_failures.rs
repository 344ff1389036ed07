//! The HTTP front when engines or callers fail.

use std::time::{Duration, Instant};

use wicketgate_sim::engine::FailureConfig;
use wicketgate_testkit::{
    client::{Begun, Caller, Version, call, chat, chat_call, full, request, try_whole},
    cluster::{Command, Front, addresses, endpoint_lines, engines},
    eventually, free_address,
};

use crate::{NO_HOLD, wicketgate};

const UPSTREAM: &str = "upstream: {connectTimeout: 500ms, firstByteTimeout: 1s, totalTimeout: 4s, retryBackoff: [50ms]}\n";
/// Tries the first endpoint first, whatever its load, so that its failure is met.
const BLIND: &str = "plugins:\n- type: random-picker\n  parameters: {maxNumOfEndpoints: 2}\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_endpoint_is_passed_over() {
    let engines = engines(1).await;
    let dead = free_address();
    let pool = format!(
        "  endpoints:\n  - {{address: \"{dead}\", weight: 1000}}\n  - {{address: \"{}\"}}\n",
        engines[0].address()
    );
    let front = Front::start_with(
        wicketgate(),
        Command::Serve,
        &pool,
        "",
        &format!("{UPSTREAM}{BLIND}"),
        &[],
    )
    .await;
    for _ in 0..10 {
        assert_eq!(chat_call(front.data, &[]).await.status, 200);
    }
    assert_eq!(engines[0].stats().requests, 10);
    front.assert_guards_at_zero().await;
    // After five failures the dead one is ejected: it is not tried by each request.
    let retries = front.metric(&["wicketgate_retries_total"]).await;
    assert!((1.0..=6.0).contains(&retries), "{retries}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_sends_the_request_on() {
    let engines = engines(2).await;
    let pool = endpoint_lines(&addresses(&engines));
    let front = Front::start_with(
        wicketgate(),
        Command::Serve,
        &pool,
        "",
        &format!("{UPSTREAM}{BLIND}"),
        &[],
    )
    .await;
    let full_queue = FailureConfig {
        status: Some(503),
        ..FailureConfig::default()
    };
    engines[0].set_failure(full_queue.clone()).unwrap();
    for _ in 0..10 {
        assert_eq!(chat_call(front.data, &[]).await.status, 200);
    }
    engines[1].set_failure(full_queue).unwrap();
    // All full: the caller hears what the last engine said.
    let answer = chat_call(front.data, &[]).await;
    assert_eq!(
        (
            answer.status.as_u16(),
            answer.json()["error"]["message"].clone()
        ),
        (503, "Injected failure 503.".into())
    );
    front.assert_guards_at_zero().await;
    // A full queue is no fault: nobody was ejected.
    let view = front.view("/debug/endpoints").await;
    assert!(
        view["main"]
            .as_array()
            .unwrap()
            .iter()
            .all(|row| row["health"]["phase"] == "Closed"),
        "{view}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_to_reach_is_503_and_nobody_at_all_too() {
    let pool = endpoint_lines(&[free_address()]);
    let front = Front::start_with(wicketgate(), Command::Serve, &pool, "", UPSTREAM, &[]).await;
    let answer = chat_call(front.data, &[]).await;
    answer.assert_error(503, "upstream_unreachable");
    assert_eq!(answer.header("retry-after"), "1");
    let empty = Front::start_with(
        wicketgate(),
        Command::Serve,
        &endpoint_lines(&[]),
        "",
        NO_HOLD,
        &[],
    )
    .await;
    let answer = chat_call(empty.data, &[]).await;
    answer.assert_error(503, "no_endpoints");
    assert_eq!(
        answer.header("x-llm-d-request-dropped-reason"),
        "rejected-no-endpoints"
    );
    call(empty.data, "GET", "/v1/models", &[], "")
        .await
        .assert_error(503, "no_endpoints");
    front.assert_guards_at_zero().await;
    empty.assert_guards_at_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_an_engine_reach_the_caller_as_they_are() {
    let engines = engines(1).await;
    let front = Front::start_with(
        wicketgate(),
        Command::Serve,
        &endpoint_lines(&addresses(&engines)),
        "",
        UPSTREAM,
        &[],
    )
    .await;
    let answer = chat_call(front.data, &[("x-emulator-failure", "status=500")]).await;
    assert_eq!(
        (
            answer.status.as_u16(),
            answer.json()["error"]["code"].clone()
        ),
        (500, 500.into())
    );
    let answer = chat_call(front.data, &[("x-emulator-failure", "wrong-usage")]).await;
    assert_eq!(
        (
            answer.status.as_u16(),
            answer.json()["usage"]["completion_tokens"].clone()
        ),
        (200, 6.into())
    );
    // A stream that is cut must not look whole.
    let mut begun = Begun::start(front.data, &[("x-emulator-failure", "cut=4")], 3).await;
    assert!(!begun.ends_properly().await);
    // Too slow to begin: 504, and not tried again, as it may have begun.
    let answer = chat_call(front.data, &[("x-emulator-failure", "slow=3000")]).await;
    answer.assert_error(504, "upstream_timeout");
    // A stall is cut by the total time.
    let mut begun = Begun::start(front.data, &[("x-emulator-failure", "stall=4")], 3).await;
    assert!(!begun.ends_properly().await);
    front.assert_guards_at_zero().await;
    assert_eq!(front.metric(&["requests_total", "timed_out"]).await, 1.0);
    assert_eq!(
        front.metric(&["requests_total", "upstream_failed"]).await,
        1.0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_hangs_up_frees_everything() {
    let engines = engines(1).await;
    let front = Front::start(wicketgate(), Command::Serve, &addresses(&engines)).await;
    // In the middle of a stream.
    let begun = Begun::start(front.data, &[("x-emulator-failure", "stall=4")], 3).await;
    let hung_up = Instant::now();
    drop(begun);
    front.assert_guards_at_zero().await;
    eprintln!(
        "a hang-up was counted after {:?} (aim: 100 ms, polled every 10 ms)",
        hung_up.elapsed()
    );
    // While the engine has not begun to answer.
    let mut caller = Caller::connect(front.data, Version::H1).await;
    let slow = request(
        "POST",
        "/v1/chat/completions",
        &[("x-emulator-failure", "slow=30000")],
        full(chat(5, 3, false)),
    );
    let waiting = tokio::spawn(async move { caller.send(slow).await.map(drop) });
    eventually("the request to run", || async {
        (front.running().await == 1).then_some(())
    })
    .await;
    waiting.abort();
    front.assert_guards_at_zero().await;
    // In the middle of its own body.
    let partial =
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 100\r\n\r\n{\"model\"";
    wicketgate_testkit::client::raw(front.data, partial, Duration::from_millis(100)).await;
    front.assert_guards_at_zero().await;
    eventually("the engine's slots to be free", || async {
        (engines[0].stats().running == 0).then_some(())
    })
    .await;
    // The last one broke off its own body: said or unsaid, as the server hears of it in either way.
    let gone = front.metric(&["requests_total", "client_gone"]).await;
    let incomplete = front.metric(&["requests_total", "incomplete_body"]).await;
    assert!(
        gone >= 2.0 && gone + incomplete == 3.0,
        "{gone} {incomplete}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_front_drains() {
    let engines = engines(1).await;
    let mut front = Front::start(wicketgate(), Command::Serve, &addresses(&engines)).await;
    let mut caller = Caller::connect(front.data, Version::H1).await;
    let slow = request(
        "POST",
        "/v1/chat/completions",
        &[("x-emulator-failure", "slow=1500")],
        full(chat(5, 3, true)),
    );
    let answering = tokio::spawn(async move {
        let response = caller.send(slow).await.unwrap();
        try_whole(response).await
    });
    eventually("the request to run", || async {
        (front.running().await == 1).then_some(())
    })
    .await;
    front.process.terminate().await;
    let answer = answering.await.unwrap().unwrap();
    assert!(answer.body.ends_with(b"data: [DONE]\n\n"));
    assert_eq!(front.process.wait().await, Some(0));
    assert!(
        front
            .process
            .words()
            .join("\n")
            .contains("stopped clean=true")
    );
}

/// Sixty requests at once over eight equal endpoints: own counts spread them before any scrape could (C15).
#[tokio::test(flavor = "multi_thread")]
async fn a_burst_is_spread_without_scrapes() {
    let engines = engines(8).await;
    let telemetry = "telemetry: {interval: 1h, staleness: 2h}\n";
    let front = Front::start_with(
        wicketgate(),
        Command::Serve,
        &endpoint_lines(&addresses(&engines)),
        "",
        telemetry,
        &[],
    )
    .await;
    front.wait_scraped(8).await;
    let mut streams = Vec::new();
    for _ in 0..64 {
        streams.push(tokio::spawn(Begun::start(
            front.data,
            &[("x-emulator-failure", "stall=4")],
            3,
        )));
    }
    let mut held = Vec::new();
    for stream in streams {
        held.push(stream.await.unwrap());
    }
    let most = engines
        .iter()
        .map(|engine| engine.stats().requests)
        .max()
        .unwrap();
    assert!(most <= 16, "{most} of 64 on one of 8");
    drop(held);
    front.assert_guards_at_zero().await;
}
