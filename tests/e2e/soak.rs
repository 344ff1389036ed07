//! Load with everything going wrong at once. Short by default; `make soak` runs it for five minutes.

use std::{sync::Arc, time::Duration};

use wicketgate_bench::load::{LoadSpec, Silent, Target, run};
use wicketgate_sim::engine::FailureConfig;
use wicketgate_testkit::{
    TempDir,
    client::{Caller, Version, chat, full, request},
    cluster::{Command, Front, addresses, engines},
};

use crate::wicketgate;

/// More requests at once than the faults can make stall: a rate of 150 for the 3 s that a stalled one has.
const CROWD: usize = 450;

fn seconds() -> u64 {
    std::env::var("WICKETGATE_SOAK_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(8)
}

#[tokio::test(flavor = "multi_thread")]
async fn soak_ends_with_nothing_held() {
    let engines = Arc::new(engines(5).await);
    let all = addresses(&engines);
    let files = TempDir::new();
    let list = |of: &[std::net::SocketAddr]| {
        let lines: String = of
            .iter()
            .map(|address| format!("- address: {address}\n"))
            .collect();
        format!("endpoints:\n{lines}")
    };
    let file = files.write("endpoints.yaml", &list(&all));
    let pool = format!("  endpointsFile: {}\n", file.display());
    let upstream = "upstream: {firstByteTimeout: 2s, totalTimeout: 3s}\n";
    let front = Front::start_with(wicketgate(), Command::Serve, &pool, "", upstream, &[]).await;
    front.wait_scraped(5).await;
    // Memory keeps its highest mark, and how many requests are open at once varies with the faults: all that there may
    // be are open here once.
    let crowd = (0..CROWD).map(|_| {
        let stall = [("x-emulator-failure", "stall=4")];
        let sent = request(
            "POST",
            "/v1/chat/completions",
            &stall,
            full(chat(5, 50, true)),
        );
        let address = front.data;
        tokio::spawn(async move {
            let mut caller = Caller::connect(address, Version::H1).await;
            let response = caller.send(sent).await;
            (caller, response)
        })
    });
    let mut open = Vec::new();
    for begun in crowd.collect::<Vec<_>>() {
        open.push(begun.await.unwrap());
    }
    drop(open);
    front.assert_guards_at_zero().await;
    let spec = |seed, duration| LoadSpec {
        rate: 150.0,
        duration,
        cancel_share: 0.1,
        cancel_after: (Duration::from_millis(1), Duration::from_millis(40)),
        seed,
        ..LoadSpec::default()
    };
    let target = Target::chat(vec![front.data]);
    let faults = {
        let engines = Arc::clone(&engines);
        let all = all.clone();
        let (file, list) = (file.clone(), list);
        tokio::spawn(async move {
            let mut rng = fastrand::Rng::with_seed(7);
            for round in 0_usize.. {
                let index = rng.usize(..engines.len());
                let failure = match round % 5 {
                    0 => FailureConfig {
                        status: Some(500),
                        rate: 0.5,
                        ..FailureConfig::default()
                    },
                    1 => FailureConfig {
                        cut_after: Some(3),
                        ..FailureConfig::default()
                    },
                    2 => FailureConfig {
                        stall_after: Some(3),
                        ..FailureConfig::default()
                    },
                    3 => FailureConfig {
                        slow_ms: 300,
                        ..FailureConfig::default()
                    },
                    _ => FailureConfig {
                        status: Some(503),
                        ..FailureConfig::default()
                    },
                };
                engines[index].set_failure(failure).unwrap();
                let keep = 2 + rng.usize(..all.len() - 1);
                std::fs::write(&file, list(&all[..keep.min(all.len())])).unwrap();
                tokio::time::sleep(Duration::from_millis(700)).await;
                engines[index]
                    .set_failure(FailureConfig::default())
                    .unwrap();
            }
        })
    };
    // Warm-up, with the same faults: buffers, connections and metric series come to their full number.
    let warm_up = Duration::from_secs(seconds() / 4 + 2);
    run(&spec(1, warm_up), &target, &Silent).await.unwrap();
    let before = front.process.resident();
    let report = run(&spec(2, Duration::from_secs(seconds())), &target, &Silent)
        .await
        .unwrap();
    faults.abort();
    let requests = report.requests;
    assert_eq!(
        requests.offered,
        requests.ok + requests.shed + requests.failed + requests.cancelled
    );
    assert!(requests.ok > requests.offered / 2, "{requests:?}");
    front.assert_guards_at_zero().await;
    for engine in engines.iter() {
        wicketgate_testkit::eventually("no request in an engine", || async {
            (engine.stats().running + engine.stats().waiting == 0).then_some(())
        })
        .await;
    }
    let after = front.process.resident();
    eprintln!(
        "soak: {requests:?}; resident {} KiB before, {} KiB after",
        before >> 10,
        after >> 10
    );
    assert!(
        after <= before + before / 10 + (4 << 20),
        "{before} to {after} bytes"
    );
    // A start, endpoints that come and go, and scrapes of engines that are broken: nothing else, and no error.
    let explained = |line: &str| {
        let words = ["scrape", " endpoints ", "listening", "ready", "descriptors"];
        !line.contains(" ERROR ") && words.iter().any(|word| line.contains(word))
    };
    let odd: Vec<String> = front
        .process
        .words()
        .into_iter()
        .filter(|line| !explained(line))
        .collect();
    assert!(odd.is_empty(), "log lines that nothing explains: {odd:?}");
}
