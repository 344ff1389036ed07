//! The plan, and the generator against targets that stall, refuse, break off or are gone (C40).

use std::{
    collections::HashSet,
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;

use super::*;

const ANSWER: &str = concat!(
    "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
    "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n",
    "data: {\"choices\":[{\"delta\":{\"content\":\"y\"}}]}\n\n",
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":2,",
    "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n",
    "data: [DONE]\n\n",
);

/// A server that answers the `n`-th request as `behave` says.
async fn target<F, B>(behave: F) -> SocketAddr
where
    F: Fn(u64, Bytes) -> B + Clone + Send + Sync + 'static,
    B: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicU64::new(0));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (behave, count) = (behave.clone(), Arc::clone(&count));
            let service = service_fn(move |request: Request<Incoming>| {
                let (behave, n) = (behave.clone(), count.fetch_add(1, Ordering::SeqCst));
                async move {
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    Ok::<_, Infallible>(behave(n, body).await)
                }
            });
            let server = hyper::server::conn::http1::Builder::new();
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

fn ok() -> Response<Full<Bytes>> {
    Response::new(Full::from(ANSWER))
}

fn status(code: u16, header: Option<(&'static str, &'static str)>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from("{}"));
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    if let Some((name, value)) = header {
        response.headers_mut().insert(name, value.parse().unwrap());
    }
    response
}

/// Small bodies; lateness of this test machine is forgiven unless a test is about it.
fn spec(rate: f64, ms: u64) -> LoadSpec {
    LoadSpec {
        rate,
        duration: Duration::from_millis(ms),
        arrivals: Arrivals::Even,
        long_words: (10, 10),
        system_words: 10,
        lag_floor: Duration::from_secs(60),
        ..LoadSpec::default()
    }
}

async fn offer(spec: &LoadSpec, address: SocketAddr) -> LoadReport {
    let report = run(spec, &Target::chat(vec![address]), &Silent)
        .await
        .unwrap();
    assert_eq!(
        report.requests.ended(),
        report.requests.offered,
        "{report:?}"
    );
    report
}

fn planned(spec: &LoadSpec) -> Vec<Planned> {
    plan(spec).unwrap().collect()
}

#[test]
fn a_plan_is_the_same_for_the_same_seed() {
    let spec = LoadSpec {
        cancel_share: 0.2,
        stream_share: 0.5,
        ..LoadSpec::default()
    };
    assert_eq!(planned(&spec), planned(&spec));
    let other = LoadSpec {
        seed: 2,
        ..spec.clone()
    };
    let (a, b) = (planned(&spec), planned(&other));
    assert_ne!(a.first().unwrap().body, b.first().unwrap().body);
    // 20 per second for 10 s: 200, give or take four standard deviations.
    assert!((144..256).contains(&a.len()), "{}", a.len());
    assert!(a.is_sorted_by_key(|planned| planned.at));
    for share in [
        a.iter().filter(|planned| planned.stream).count() * 2,
        a.iter().filter(|planned| planned.cancel.is_some()).count() * 5,
    ] {
        assert!((100..320).contains(&share), "{share} of {}", a.len());
    }
}

#[test]
fn times_do_not_hang_on_texts() {
    let short = LoadSpec::default();
    let long = LoadSpec {
        system_words: 1000,
        turn_words: (1, 500),
        long_share: 0.9,
        ..short.clone()
    };
    let times = |spec: &LoadSpec| -> Vec<Duration> { planned(spec).iter().map(|p| p.at).collect() };
    assert_eq!(times(&short), times(&long));
}

#[test]
fn even_arrivals_keep_their_rate_exactly() {
    let times: Vec<Duration> = planned(&spec(3.0, 1000)).iter().map(|p| p.at).collect();
    let expected = [0.0, 1.0 / 3.0, 2.0 / 3.0].map(Duration::from_secs_f64);
    assert_eq!(times, expected);
    assert_eq!(planned(&spec(1000.0 / 7.0, 7000)).len(), 1000);
}

/// Each later turn begins with the whole prompt of the turn before, and groups share their system prompt.
#[test]
fn prompts_share_prefixes() {
    let spec = LoadSpec {
        rate: 50.0,
        groups: 3,
        long_share: 0.0,
        ..LoadSpec::default()
    };
    let mut prompts: HashSet<String> = HashSet::new();
    let mut systems: HashSet<String> = HashSet::new();
    let (mut turns, mut longest) = (0, 0);
    for request in planned(&spec) {
        let value: Value = serde_json::from_slice(&request.body).unwrap();
        let messages = value["messages"].as_array().unwrap();
        systems.insert(messages[0]["content"].as_str().unwrap().to_owned());
        let users = messages.iter().filter(|m| m["role"] == "user").count();
        longest = longest.max(users);
        if users > 1 {
            turns += 1;
            let before = serde_json::to_string(&messages[..messages.len() - 2]).unwrap();
            assert!(prompts.contains(&before));
        }
        prompts.insert(serde_json::to_string(messages).unwrap());
    }
    assert_eq!(systems.len(), 3);
    assert!(turns > 100, "{turns} later turns");
    assert!((3..=spec.turns).contains(&longest), "{longest} turns");
}

#[test]
fn a_spec_without_sense_is_refused() {
    let with = |change: fn(&mut LoadSpec)| {
        let mut spec = LoadSpec::default();
        change(&mut spec);
        plan(&spec)
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    assert_eq!(with(|_| ()), "");
    assert!(with(|spec| spec.rate = f64::NAN).contains("rate is NaN"));
    assert!(with(|spec| spec.rate = 0.0).contains("rate is 0"));
    assert!(with(|spec| spec.long_share = 1.5).contains("long_share is 1.5"));
    assert!(with(|spec| spec.turn_words = (2, 1)).contains("turn_words"));
    assert!(with(|spec| spec.groups = 0).contains("groups"));
}

#[test]
fn steps_rise() {
    assert_eq!(steps(&[0.5, 1.0, 2.0]), Ok(()));
    assert_eq!(steps(&[1.0, 1.0, 2.0]), Err(SpecError::Steps(1.0, 1.0)));
    assert_eq!(steps(&[2.0, 1.0]), Err(SpecError::Steps(1.0, 2.0)));
    assert!(matches!(
        steps(&[1.0, f64::INFINITY]),
        Err(SpecError::Rate(_))
    ));
}

#[tokio::test]
async fn what_is_sent_is_what_was_planned_and_usage_is_read() {
    let got = Arc::new(Mutex::new(Vec::new()));
    let bodies = Arc::clone(&got);
    let address = target(move |_, body| {
        bodies.lock().unwrap().push(body);
        async { ok() }
    })
    .await;
    let spec = spec(200.0, 500);
    let report = offer(&spec, address).await;
    assert_eq!((report.requests.offered, report.requests.ok), (100, 100));
    assert_eq!(report.prefix.hit_ratio, Some(0.4));
    assert_eq!(
        (report.tokens.prompt, report.tokens.completion),
        (1000, 200)
    );
    assert!(
        report.valid && report.rates.offered_rps == 200.0,
        "{report:?}"
    );
    assert!(report.ttft_ms.p50 <= report.e2e_ms.p50 && report.ttft_ms.p50 > 0.0);
    let mut sent = std::mem::take(&mut *got.lock().unwrap());
    let mut wanted: Vec<Bytes> = planned(&spec).into_iter().map(|p| p.body).collect();
    sent.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(sent, wanted);
}

#[tokio::test]
async fn plain_answers_have_an_end_and_no_first_token() {
    let address = target(|_, _| async {
        Response::new(Full::from(
            r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}"#,
        ))
    })
    .await;
    let plain = LoadSpec {
        stream_share: 0.0,
        ..spec(100.0, 300)
    };
    let report = offer(&plain, address).await;
    assert_eq!((report.requests.ok, report.tokens.prompt), (30, 210));
    assert_eq!(report.prefix.hit_ratio, None);
    assert_eq!(report.ttft_ms, Quantiles::default());
    assert!(report.e2e_ms.p50 > 0.0);
}

/// The target stalls once, for everybody: every request that was due meanwhile shows its share of the stall.
#[tokio::test]
async fn a_stall_is_seen_from_the_planned_times() {
    let gate = Arc::new(tokio::sync::Mutex::new(()));
    let address = target(move |n, _| {
        let gate = Arc::clone(&gate);
        async move {
            let held = gate.lock().await;
            if n == 10 {
                tokio::time::sleep(Duration::from_millis(1000)).await;
            }
            drop(held);
            ok()
        }
    })
    .await;
    // 10 before, 100 within the stall, 90 after it: half of all are held up, evenly from 1 s down to nothing.
    let report = offer(&spec(100.0, 2000), address).await;
    assert_eq!(report.requests.ok, 200);
    assert!(report.ttft_ms.p99 >= 950.0, "{report:?}");
    assert!(report.ttft_ms.p90 >= 750.0, "{report:?}");
}

#[tokio::test]
async fn refusals_are_apart_from_latencies() {
    let address = target(|n, _| async move {
        if n % 6 == 0 {
            return status(429, Some(("retry-after", "1")));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        ok()
    })
    .await;
    let report = offer(&spec(120.0, 1000), address).await;
    assert_eq!((report.requests.shed, report.requests.ok), (20, 100));
    assert_eq!(report.shed.share, 0.1667);
    assert_eq!(report.shed.by_reason["429 retry-after"], 20);
    assert!(report.e2e_ms.p50 >= 50.0 && report.valid, "{report:?}");
    assert_eq!(report.failed.by_cause.len(), 0);
}

#[tokio::test]
async fn what_breaks_is_told_apart() {
    let address = target(|n, _| async move {
        match n % 5 {
            0 => Response::new(Full::from("data: {\"choices\":[]}\n\n")),
            1 => Response::new(Full::from(
                "data: {\"error\":{\"code\":500}}\n\ndata: [DONE]\n\n",
            )),
            2 => status(500, None),
            3 => status(503, None),
            _ => ok(),
        }
    })
    .await;
    let report = offer(&spec(100.0, 500), address).await;
    assert_eq!((report.requests.failed, report.requests.ok), (40, 10));
    for cause in ["cut", "error_in_stream", "status_500", "status_503"] {
        assert_eq!(report.failed.by_cause[cause], 10, "{cause}");
    }
    assert_eq!(report.failed.share, 0.8);
}

#[tokio::test]
async fn nobody_there_fails_and_adds_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let report = offer(&spec(100.0, 200), address).await;
    assert_eq!(report.failed.by_cause["connect"], 20);
    assert!(matches!(
        run(&spec(1.0, 1), &Target::chat(vec![]), &Silent).await,
        Err(SpecError::Zero(_))
    ));
}

#[tokio::test]
async fn callers_hang_up_and_late_answers_fail() {
    let address = target(|_, _| std::future::pending()).await;
    let impatient = LoadSpec {
        cancel_share: 1.0,
        cancel_after: (Duration::from_millis(5), Duration::from_millis(50)),
        ..spec(100.0, 200)
    };
    let report = offer(&impatient, address).await;
    assert_eq!(report.requests.cancelled, 20);
    let limited = LoadSpec {
        timeout: Duration::from_millis(50),
        ..spec(100.0, 200)
    };
    let report = offer(&limited, address).await;
    assert_eq!(report.failed.by_cause["timeout"], 20);
}

/// One request at a time of 20 ms each is 50 per second at most: asked for 100, the tool must not claim them.
#[tokio::test]
async fn a_tool_that_cannot_keep_up_says_so() {
    let address = target(|_, _| async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        ok()
    })
    .await;
    let capped = LoadSpec {
        max_in_flight: 1,
        lag_floor: Duration::from_millis(10),
        ..spec(100.0, 1000)
    };
    let report = offer(&capped, address).await;
    assert_eq!(report.requests.ok, 100);
    assert!(!report.valid, "{report:?}");
    assert!(
        report.lag_ms.p99 > 500.0 && report.lag_ms.late > 50,
        "{report:?}"
    );
    assert!(report.rates.sent_rps < 60.0 && report.rates.offered_rps == 100.0);
}

/// However far behind the tool is, every request ends a timeout after its planned time.
#[tokio::test]
async fn a_hopeless_run_ends() {
    let address = target(|_, _| std::future::pending()).await;
    let hopeless = LoadSpec {
        max_in_flight: 1,
        timeout: Duration::from_millis(100),
        lag_floor: Duration::from_millis(10),
        ..spec(100.0, 300)
    };
    let report = offer(&hopeless, address).await;
    assert_eq!(report.failed.by_cause["timeout"], 30);
    assert!(!report.valid && report.duration_s >= 0.39, "{report:?}");
}

#[tokio::test]
async fn progress_ends_with_all_of_it() {
    let address = target(|_, _| async { ok() }).await;
    let heard = Mutex::new(Vec::new());
    let hear = |snapshot: &Snapshot| heard.lock().unwrap().push(*snapshot);
    let spec = spec(100.0, 300);
    run(&spec, &Target::chat(vec![address]), &hear)
        .await
        .unwrap();
    let heard = heard.into_inner().unwrap();
    let last = heard.last().unwrap();
    assert_eq!((last.requests.offered, last.requests.ok), (30, 30));
    assert_eq!((last.in_flight, last.duration), (0, spec.duration));
    assert!(heard.is_sorted_by_key(|snapshot| snapshot.requests.ended()));
    for snapshot in &heard {
        let requests = snapshot.requests;
        assert_eq!(
            requests.offered,
            requests.ended() + snapshot.in_flight as u64
        );
    }
}

/// A server may close a kept connection at any time; the request that finds out is sent again, not failed.
#[tokio::test]
async fn closed_connections_are_replaced() {
    let address = target(|_, _| async {
        let mut response = ok();
        response
            .headers_mut()
            .insert("connection", "close".parse().unwrap());
        response
    })
    .await;
    let report = offer(&spec(200.0, 500), address).await;
    assert_eq!(report.requests.ok, 100);
}
