//! Admission in the path, through both fronts: who waits, what lets them go, and what they are told.

use std::{net::SocketAddr, time::Duration};

use wicketgate_bench::envoy::OVERRIDE_HOST;
use wicketgate_sim::engine::EngineHandle;
use wicketgate_testkit::{
    TempDir,
    client::{Answer, Begun, Caller, Version, call, chat, chat_call, full, request, try_whole},
    cluster::{Command, Front, Gateway, addresses, endpoint_lines, engines},
    envoy_binary, eventually, must,
    process::Process,
};

use crate::{NO_HOLD, wicketgate};

/// One request of ours at a time on each endpoint; a proxy is trusted.
const ONE: &str = "trustedProxy: {priorityHeader: x-priority}
plugins:
- {type: concurrency-detector, parameters: {maxConcurrency: 1}}
admission:
  saturationDetector: {pluginRef: concurrency-detector}
";

/// A front under test, with a real Envoy before it where it is the picker.
struct Path {
    front: Front,
    gateway: Option<Gateway>,
    engines: Vec<EngineHandle>,
}

impl Path {
    async fn start(command: Command, count: usize, server: &str, extra: &str) -> Option<Path> {
        Path::start_with(command, count, server, extra, &[]).await
    }

    async fn start_with(
        command: Command,
        count: usize,
        server: &str,
        extra: &str,
        arguments: &[&str],
    ) -> Option<Path> {
        let envoy = match command {
            Command::Serve => None,
            Command::Epp => Some(envoy_binary()?),
        };
        let engines = engines(count).await;
        let all = addresses(&engines);
        let pool = endpoint_lines(&all);
        let front = Front::start_with(wicketgate(), command, &pool, server, extra, arguments).await;
        front.wait_scraped(count).await;
        let gateway = match &envoy {
            None => None,
            Some(envoy) => Some(Gateway::start(envoy, OVERRIDE_HOST, &front, &all, |c| c).await),
        };
        Some(Path {
            front,
            gateway,
            engines,
        })
    }

    fn address(&self) -> SocketAddr {
        self.gateway
            .as_ref()
            .map_or(self.front.data, |gateway| gateway.address)
    }

    async fn wait_waiting(&self, count: u64) {
        eventually("so many waiting", || async {
            let held = self.front.view("/debug/held").await;
            (held["main"]["waiting"] == count).then_some(())
        })
        .await;
    }

    /// A request that holds a place until it is dropped.
    async fn holds(&self, headers: &[(&str, &str)]) -> Begun {
        let mut all = vec![("x-emulator-failure", "stall=4")];
        all.extend_from_slice(headers);
        Begun::start(self.address(), &all, 3).await
    }

    fn asks(
        &self,
        headers: &'static [(&'static str, &'static str)],
    ) -> tokio::task::JoinHandle<Answer> {
        let address = self.address();
        tokio::spawn(async move { chat_call(address, headers).await })
    }
}

const BOTH: [Command; 2] = [Command::Serve, Command::Epp];

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_start_waits_and_goes_by_priority() {
    for command in BOTH {
        let Some(path) = Path::start(command, 1, "", ONE).await else {
            return;
        };
        let first = path.holds(&[]).await;
        let low = path.asks(&[("x-priority", "0"), ("x-request-id", "low")]);
        path.wait_waiting(1).await;
        let high = path.asks(&[("x-priority", "5"), ("x-request-id", "high")]);
        path.wait_waiting(2).await;
        assert_eq!(
            path.engines[0].stats().in_flight,
            1,
            "nothing waits in the engine"
        );
        let queue = path.front.view("/debug/queue").await;
        assert_eq!(queue["main"]["requests"], 2, "{queue}");
        let depth = ["wicketgate_queue_requests{", "priority=\"5\""];
        assert_eq!(path.front.metric(&depth).await, 1.0);
        drop(first);
        assert_eq!(must("the urgent one", high).await.unwrap().status, 200);
        assert_eq!(must("the other one", low).await.unwrap().status, 200);
        let served = path.engines[0].stats().served;
        let place = |id: &str| served.iter().position(|served| served == id).unwrap();
        assert!(place("high") < place("low"), "{served:?}");
        path.front.assert_guards_at_zero().await;
        let waited = path.front.metric(&["queue_duration_seconds_count"]).await;
        assert_eq!(waited, 3.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_hangs_up_while_waiting_leaves_at_once() {
    for command in BOTH {
        let Some(path) = Path::start(command, 1, "", ONE).await else {
            return;
        };
        let first = path.holds(&[]).await;
        for version in [Version::H1, Version::H2] {
            let mut caller = Caller::connect(path.address(), version).await;
            let asking = tokio::spawn(async move {
                let body = full(chat(5, 3, false));
                let request = request("POST", "/v1/chat/completions", &[], body);
                caller.call(request).await
            });
            path.wait_waiting(1).await;
            asking.abort();
            path.wait_waiting(0).await;
        }
        let held = path.front.view("/debug/held").await;
        assert_eq!(held["main"]["totals"]["cancelled"], 2, "{held}");
        assert_eq!(
            path.front.metric(&["requests_total", "client_gone"]).await,
            2.0
        );
        assert_eq!(
            path.engines[0].stats().requests,
            1,
            "none of them reached the engine"
        );
        drop(first);
        path.front.assert_guards_at_zero().await;
    }
}

/// The header only shortens, and only a trusted proxy's counts.
#[tokio::test(flavor = "multi_thread")]
async fn waits_end_with_429_and_the_reason() {
    for command in BOTH {
        let extra = format!("{ONE}  defaultRequestTTL: 1500ms\n");
        let Some(path) = Path::start(command, 1, "", &extra).await else {
            return;
        };
        let first = path.holds(&[]).await;
        for ttl in ["100ms", "1h", "-1s", "abc"] {
            let answer = must(
                "an answer",
                chat_call(path.address(), &[("x-llm-d-inference-ttl", ttl)]),
            )
            .await;
            answer.assert_error(429, "ttl_expired");
            assert_eq!(
                answer.header("x-llm-d-request-dropped-reason"),
                "rejected-ttl-expired"
            );
            assert!(!answer.header("retry-after").is_empty());
        }
        let ignored = path.front.metric(&["ignored_headers_total", "ttl"]).await;
        assert_eq!(ignored, 2.0);
        drop(first);
        path.front.assert_guards_at_zero().await;
    }
}

/// Without a declaration nobody's headers count: all are one flow of priority 0.
#[tokio::test(flavor = "multi_thread")]
async fn untrusted_headers_change_nothing() {
    let extra = ONE.replace("trustedProxy: {priorityHeader: x-priority}\n", "");
    let extra = format!("{extra}  defaultRequestTTL: 500ms\n");
    for command in BOTH {
        let Some(path) = Path::start(command, 1, "", &extra).await else {
            return;
        };
        let first = path.holds(&[]).await;
        let one = path.asks(&[("x-priority", "9"), ("x-llm-d-inference-fairness-id", "a")]);
        let two = path.asks(&[
            ("x-llm-d-inference-objective", "gold"),
            ("x-llm-d-inference-ttl", "1ms"),
        ]);
        path.wait_waiting(2).await;
        let queue = path.front.view("/debug/queue").await;
        let bands = queue["main"]["bands"].as_array().unwrap();
        assert_eq!(bands.len(), 1, "{queue}");
        assert_eq!(bands[0]["priority"], 0);
        assert_eq!(bands[0]["flows"], 1);
        must("an end", one)
            .await
            .unwrap()
            .assert_error(429, "ttl_expired");
        must("an end", two)
            .await
            .unwrap()
            .assert_error(429, "ttl_expired");
        drop(first);
        path.front.assert_guards_at_zero().await;
    }
}

/// The picker's own deadline holds whatever admission allows.
#[tokio::test(flavor = "multi_thread")]
async fn the_decision_deadline_is_503() {
    for command in BOTH {
        let server = "  decisionTimeout: 200ms\n";
        let Some(path) = Path::start(command, 1, server, ONE).await else {
            return;
        };
        let first = path.holds(&[]).await;
        let answer = must("an answer", chat_call(path.address(), &[])).await;
        answer.assert_error(503, "decision_timeout");
        assert_eq!(
            answer.header("x-llm-d-request-dropped-reason"),
            "rejected-ttl-expired"
        );
        path.wait_waiting(0).await;
        drop(first);
        path.front.assert_guards_at_zero().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_429_and_a_more_urgent_request_displaces() {
    for command in BOTH {
        let extra = format!("{ONE}  maxRequests: 1\n");
        let Some(path) = Path::start(command, 1, "", &extra).await else {
            return;
        };
        let first = path.holds(&[]).await;
        let waiting = path.asks(&[]);
        path.wait_waiting(1).await;
        let refused = must("an answer", chat_call(path.address(), &[])).await;
        refused.assert_error(429, "saturated");
        assert_eq!(
            refused.header("x-llm-d-request-dropped-reason"),
            "rejected-saturated"
        );
        let urgent = path.asks(&[("x-priority", "1")]);
        let displaced = must("an answer", waiting).await.unwrap();
        displaced.assert_error(429, "displaced");
        assert_eq!(
            displaced.header("x-llm-d-request-dropped-reason"),
            "evicted-priority"
        );
        drop(first);
        assert_eq!(must("an answer", urgent).await.unwrap().status, 200);
        path.front.assert_guards_at_zero().await;
    }
}

/// C23: an empty pool holds, says so on its gauges, and lets go when the first endpoint is there.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_pool_holds_until_an_endpoint_comes() {
    let engines = engines(1).await;
    let files = TempDir::new();
    let file = files.write("endpoints.yaml", "endpoints: []\n");
    let pool = format!("  endpointsFile: {}\n", file.display());
    let extra = "trustedProxy: {priorityHeader: x-priority}\n";
    let front = Front::start_with(wicketgate(), Command::Serve, &pool, "", extra, &[]).await;
    assert_eq!(front.metric(&["wicketgate_queue_requests{"]).await, 0.0);
    let address = front.data;
    let mut asking = Vec::new();
    for priority in ["0", "10"] {
        asking.push(tokio::spawn(async move {
            chat_call(address, &[("x-priority", priority)]).await
        }));
    }
    eventually("two waiting", || async {
        let depth = front
            .metric(&["wicketgate_queue_requests{pool=\"main\""])
            .await;
        (depth == 2.0).then_some(())
    })
    .await;
    let list = format!("endpoints:\n- address: {}\n", engines[0].address());
    files.write("endpoints.yaml", &list);
    for asked in asking {
        assert_eq!(must("an answer", asked).await.unwrap().status, 200);
    }
    front.assert_guards_at_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_pool_that_does_not_hold_is_503() {
    let none = endpoint_lines(&[]);
    let front = Front::start_with(wicketgate(), Command::Serve, &none, "", NO_HOLD, &[]).await;
    let answer = chat_call(front.data, &[]).await;
    answer.assert_error(503, "no_endpoints");
    assert_eq!(answer.header("retry-after"), "5");
}

/// A running request of negative priority is ended for a blocked higher band: 429 if its answer had not begun, else cut.
#[tokio::test(flavor = "multi_thread")]
async fn a_sheddable_request_gives_its_place() {
    for command in BOTH {
        let extra = format!("{ONE}  enableEviction: true\n");
        let Some(path) = Path::start(command, 1, "", &extra).await else {
            return;
        };
        let sleeping = path.asks(&[("x-priority", "-1"), ("x-emulator-failure", "slow=3600000")]);
        eventually("the request at the engine", || async {
            (path.engines[0].stats().in_flight == 1).then_some(())
        })
        .await;
        let urgent = path.asks(&[("x-priority", "1")]);
        let evicted = must("an answer", sleeping).await.unwrap();
        evicted.assert_error(429, "evicted");
        assert_eq!(evicted.header("x-llm-d-request-dropped-reason"), "evicted");
        assert_eq!(must("an answer", urgent).await.unwrap().status, 200);

        let mut streaming = path.holds(&[("x-priority", "-1")]).await;
        let urgent = path.asks(&[("x-priority", "1")]);
        assert!(
            !streaming.ends_properly().await,
            "a part must not look whole"
        );
        assert_eq!(must("an answer", urgent).await.unwrap().status, 200);
        let evicted = path.front.metric(&["evicted_requests_total"]).await;
        assert_eq!(evicted, 2.0);
        path.front.assert_guards_at_zero().await;
    }
}

/// At shutdown those that wait get their turn, or are told; none is cut.
#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_drains_or_refuses_who_waits() {
    for shutdown in ["drain", "refuse"] {
        let extra = format!("{ONE}  shutdown: {shutdown}\n");
        let Some(mut path) = Path::start(Command::Serve, 1, "", &extra).await else {
            return;
        };
        let first = path.holds(&[]).await;
        let waiting = path.asks(&[]);
        path.wait_waiting(1).await;
        path.front.process.terminate().await;
        if shutdown == "drain" {
            // It has begun to stop, and still serves who waits.
            let admin = path.front.admin;
            eventually("not ready", || async {
                let ready = call(admin, "GET", "/readyz", &[], "").await;
                (ready.status == 503).then_some(())
            })
            .await;
            drop(first);
            assert_eq!(must("an answer", waiting).await.unwrap().status, 200);
        } else {
            let answer = must("an answer", waiting).await.unwrap();
            answer.assert_error(503, "shutting_down_while_waiting");
            assert_eq!(
                answer.header("x-llm-d-request-dropped-reason"),
                "rejected-shutting-down"
            );
            drop(first);
        }
        assert_eq!(path.front.process.wait().await, Some(0));
    }
}

/// One chat; `None` when its answer broke off.
async fn try_chat(address: SocketAddr, headers: &[(&str, &str)]) -> Option<Answer> {
    let mut caller = Caller::connect(address, Version::H1).await;
    let body = full(chat(5, 3, false));
    let request = request("POST", "/v1/chat/completions", headers, body);
    try_whole(caller.send(request).await.ok()?).await.ok()
}

/// One caller of a crowd: how many of its requests were answered, refused, given up, and cut.
async fn one_of_a_crowd(address: SocketAddr, caller: u32) -> [u32; 4] {
    let mut ends = [0; 4];
    for round in 0..6 {
        let priority = (i64::from((caller + round) % 4) - 1).to_string();
        let headers = [
            ("x-priority", priority.as_str()),
            ("x-emulator-failure", "slow=20"),
        ];
        let asked = try_chat(address, &headers);
        let patience = match (caller + round) % 5 {
            0 => Duration::from_millis(u64::from(caller * 3 % 40)),
            _ => wicketgate_testkit::PATIENCE,
        };
        let end = match tokio::time::timeout(patience, asked).await {
            Err(_) => 2,
            // Only what may be shed is cut.
            Ok(None) if priority == "-1" => 3,
            Ok(None) => panic!("cut at priority {priority}"),
            Ok(Some(answer)) if answer.status == 200 => 0,
            Ok(Some(answer)) => {
                assert_eq!(answer.status, 429, "{answer:?}");
                assert!(!answer.header("x-llm-d-request-dropped-reason").is_empty());
                1
            }
        };
        ends[end] += 1;
    }
    ends
}

/// Many callers at more than the pool takes, some of whom hang up: everyone gets one answer and nothing is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_leaves_nothing_behind() {
    for command in BOTH {
        let extra = ONE.replace("maxConcurrency: 1", "maxConcurrency: 2");
        let extra = format!("{extra}  maxRequests: 12\n  enableEviction: true\n");
        let files = TempDir::new();
        let log = files.path().join("run.jsonl").display().to_string();
        let record = ["--record", log.as_str()];
        let Some(mut path) = Path::start_with(command, 2, "", &extra, &record).await else {
            return;
        };
        let address = path.address();
        let crowd: Vec<_> = (0..24)
            .map(|caller| tokio::spawn(one_of_a_crowd(address, caller)))
            .collect();
        let mut sum = [0; 4];
        for caller in crowd {
            let ends = must("an end", caller).await.unwrap();
            sum.iter_mut().zip(ends).for_each(|(sum, end)| *sum += end);
        }
        assert_eq!(sum.iter().sum::<u32>(), 24 * 6);
        assert!(sum[0] > 0 && sum[1] > 0, "{sum:?}");
        path.front.assert_guards_at_zero().await;
        let held = path.front.view("/debug/held").await;
        let totals = &held["main"]["totals"];
        let of = |key: &str| totals[key].as_u64().unwrap();
        let ended = of("dispatched") + of("refused") + of("cancelled");
        assert_eq!(of("arrived"), ended, "{held}");
        // The run, its queue included, plays again to the same outputs in another process.
        path.front.process.terminate().await;
        assert_eq!(path.front.process.wait().await, Some(0));
        let mut replay = Process::start(wicketgate(), &["sim", "replay", &log]);
        assert_eq!(replay.wait().await, Some(0), "{:?}", replay.words());
    }
}
