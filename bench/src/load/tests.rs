//! The generator against targets that stall, refuse, or break off (C40).

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, sync::Mutex};

use super::*;

const ANSWER: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":1,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n";

/// A server that answers the `n`-th request as `behave` says.
async fn target<F, B>(behave: F) -> SocketAddr
where
    F: Fn(u64) -> B + Clone + Send + Sync + 'static,
    B: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(std::sync::atomic::AtomicU64::new(0));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (behave, count) = (behave.clone(), Arc::clone(&count));
            tokio::spawn(async move {
                let service = service_fn(move |_: Request<Incoming>| {
                    let n = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    let answer = behave(n);
                    async move { Ok::<_, Infallible>(answer.await) }
                });
                let served = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                let _ = served.await;
            });
        }
    });
    address
}

fn ok() -> Response<Full<Bytes>> {
    Response::new(Full::from(ANSWER))
}

fn spec(rate: f64, seconds: u64) -> LoadSpec {
    LoadSpec {
        rate,
        duration: Duration::from_secs(seconds),
        cancel_share: 0.0,
        long_words: 10,
        system_words: 10,
        ..LoadSpec::default()
    }
}

async fn offer(spec: &LoadSpec, address: SocketAddr) -> LoadReport {
    run(
        plan(spec),
        Arc::from([address]),
        "/v1/chat/completions",
        &Silent,
    )
    .await
}

#[test]
fn a_plan_is_the_same_for_the_same_seed_and_shares_prefixes() {
    let spec = LoadSpec::default();
    let bodies = |spec: &LoadSpec| -> Vec<Bytes> {
        plan(spec).into_iter().map(|planned| planned.body).collect()
    };
    assert_eq!(bodies(&spec), bodies(&spec));
    let other = LoadSpec {
        seed: 2,
        ..spec.clone()
    };
    assert_ne!(bodies(&spec), bodies(&other));
    let count = plan(&spec).len();
    assert!(
        (150..250).contains(&count),
        "{count} requests at 20/s in 10 s"
    );
    let times: Vec<Duration> = plan(&spec).iter().map(|planned| planned.at).collect();
    assert!(times.is_sorted());
}

#[tokio::test]
async fn usage_and_counts_are_read() {
    let address = target(|_| async { ok() }).await;
    let report = offer(&spec(100.0, 1), address).await;
    assert_eq!(report.requests.ok, report.requests.offered);
    assert_eq!(report.engine_cached_share, Some(0.4));
}

/// A target that stalls once must show it, for every request that was due meanwhile.
#[tokio::test]
async fn a_stall_is_seen_from_the_planned_times() {
    let gate = Arc::new(Mutex::new(()));
    let address = target(move |n| {
        let gate = Arc::clone(&gate);
        async move {
            let held = gate.lock().await;
            if n == 20 {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            drop(held);
            ok()
        }
    })
    .await;
    let report = offer(&spec(100.0, 2), address).await;
    assert_eq!(report.requests.ok, report.requests.offered);
    assert!(report.ttft_ms.p90 >= 500.0, "{report:?}");
}

#[tokio::test]
async fn refusals_are_apart_from_latencies() {
    let address = target(|n| async move {
        let mut answer = ok();
        if n % 6 == 0 {
            *answer.body_mut() = Full::from("{}");
            *answer.status_mut() = http::StatusCode::TOO_MANY_REQUESTS;
        }
        answer
    })
    .await;
    let report = offer(&spec(120.0, 1), address).await;
    let requests = report.requests;
    assert_eq!(requests.shed, requests.offered.div_ceil(6));
    assert_eq!(requests.ok + requests.shed, requests.offered);
}

#[tokio::test]
async fn cut_answers_and_errors_fail() {
    let address = target(|n| async move {
        match n % 3 {
            0 => Response::new(Full::from("data: {\"choices\":[]}\n\n")),
            1 => Response::new(Full::from(
                "data: {\"error\":{\"code\":500}}\n\ndata: [DONE]\n\n",
            )),
            _ => {
                let mut answer = ok();
                *answer.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
                answer
            }
        }
    })
    .await;
    let report = offer(&spec(60.0, 1), address).await;
    assert_eq!(
        (report.requests.failed, report.requests.ok),
        (report.requests.offered, 0)
    );
}

#[tokio::test]
async fn nobody_there_fails_and_adds_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let report = offer(&spec(50.0, 1), address).await;
    assert_eq!(report.requests.failed, report.requests.offered);
}

/// A generator that cannot keep its plan says so: here its thread is blocked for a while.
#[tokio::test]
async fn a_load_that_was_not_offered_is_invalid() {
    let address = target(|n| async move {
        if n == 5 {
            let until = std::time::Instant::now() + Duration::from_millis(600);
            while std::time::Instant::now() < until {
                std::hint::spin_loop();
            }
        }
        ok()
    })
    .await;
    let report = offer(&spec(50.0, 1), address).await;
    assert!(!report.valid && report.late_p99_ms > 100.0, "{report:?}");
}
