//! C40: the load tool offers what it reports, or says that it did not.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde_json::Value;
use wicketgate_testkit::scripted::{IDLE, Reply, Scripted};

use crate::wicketgate;

const EVENTS: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n\
    data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n";

fn events(after: Duration) -> Reply {
    Reply {
        after,
        ..Reply::events(vec![EVENTS.into()])
    }
}

/// Exit code and report of a run of equal gaps and short texts.
async fn offered(target: &Scripted, flags: &[&str]) -> (Option<i32>, Value) {
    let url = format!("http://{}", target.address);
    let output = tokio::process::Command::new(wicketgate())
        .args(["bench", "load", "--json", "--target", &url])
        .args([
            "--arrivals",
            "even",
            "--system-words",
            "5",
            "--long-share",
            "0",
        ])
        .args(flags)
        .output()
        .await
        .unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let last = text.lines().last().unwrap_or_default();
    let report = serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output.status.code(), report)
}

/// A target that stalls once for 5 s, at 100 requests per second for 30 s: the requests that were due meanwhile show
/// their share of the stall.
#[tokio::test(flavor = "multi_thread")]
async fn a_stall_shows_in_the_latencies() {
    let until: Arc<Mutex<Option<Instant>>> = Arc::default();
    let target = Scripted::start(Reply::page(IDLE), move |number| {
        let mut until = until.lock().unwrap();
        if number >= 1000 {
            until.get_or_insert_with(|| Instant::now() + Duration::from_secs(5));
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        events(left.unwrap_or_default())
    })
    .await;
    let flags = ["--rate", "100", "--seconds", "30", "--lag-floor", "60s"];
    let (code, report) = offered(&target, &flags).await;
    assert_eq!(code, Some(0), "{report}");
    assert_eq!(report["requests"]["offered"], 3000, "{report}");
    assert_eq!(report["requests"]["ok"], 3000, "{report}");
    for latency in ["ttft_ms", "e2e_ms"] {
        let p99 = report[latency]["p99"].as_f64().unwrap();
        assert!(p99 >= 4000.0, "{latency}: {report}");
    }
}

/// Every sixth request is refused at once: refusals are counted apart and are no latencies.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_a_table_of_their_own() {
    let target = Scripted::start(Reply::page(IDLE), |number| {
        if number % 6 == 0 {
            let mut refused = Reply::new(429, "application/json", "{}");
            refused.headers.push(("retry-after", "1".to_owned()));
            return refused;
        }
        events(Duration::from_millis(100))
    })
    .await;
    let flags = ["--rate", "60", "--seconds", "4", "--lag-floor", "60s"];
    let (code, report) = offered(&target, &flags).await;
    assert_eq!(code, Some(0), "{report}");
    let requests = &report["requests"];
    assert_eq!(
        (&requests["ok"], &requests["shed"], &requests["failed"]),
        (&200.into(), &40.into(), &0.into()),
        "{report}"
    );
    assert_eq!(report["shed"]["share"], 0.1667, "{report}");
    assert!(report["e2e_ms"]["p50"].as_f64() >= Some(100.0), "{report}");
    assert_eq!(report["offered_rps"], 60.0, "{report}");
}

/// A tool that may have one request of 20 ms under way does 50 per second; asked for 100 it must not claim them.
#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_cannot_keep_up_fails() {
    let target = Scripted::start(Reply::page(IDLE), |_| events(Duration::from_millis(20))).await;
    let flags = ["--rate", "100", "--seconds", "4", "--max-in-flight", "1"];
    let (code, report) = offered(&target, &flags).await;
    assert_eq!(code, Some(3), "{report}");
    assert_eq!(report["valid"], false);
    assert_eq!(report["offered_rps"], 100.0, "{report}");
    assert!(report["sent_rps"].as_f64() <= Some(51.0), "{report}");
}
