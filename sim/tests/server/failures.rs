//! Every failure that can be asked for.

use std::time::Duration;

use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use wicketgate_sim::engine::{EngineConfig, EngineHandle, FailureConfig, UsageFault, start};

use crate::{
    client::{Reply, full, get, post, post_with, read, request, send, send_h2},
    instant, until, until_empty,
};

const PATH: &str = "/v1/chat/completions";

fn chat(stream: bool) -> Value {
    json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 10, "stream": stream,
        "stream_options": {"include_usage": true}})
}

async fn with_failure(engine: &EngineHandle, failure: &str, stream: bool) -> Reply {
    post_with(
        engine.address(),
        PATH,
        &[("x-emulator-failure", failure)],
        &chat(stream),
    )
    .await
}

#[tokio::test]
async fn a_status() {
    let engine = instant().await;
    for status in [400, 401, 404, 429, 500, 502, 503, 504] {
        let reply = with_failure(&engine, &format!("status={status}"), true).await;
        assert_eq!(
            (reply.status, &reply.json()["error"]["code"]),
            (status, &json!(status))
        );
    }
    until_empty(&engine).await;
    assert_eq!((engine.stats().injected, engine.stats().ok), (8, 0));
    assert_eq!(with_failure(&engine, "status=299", true).await.status, 400);
    assert_eq!(with_failure(&engine, "refuse=true", true).await.status, 400);
}

#[tokio::test]
async fn a_share_of_the_requests() {
    let engine = instant().await;
    let failure = json!({"status": 500, "rate": 0.3});
    assert_eq!(
        post(engine.address(), "/emulator/failure", &failure)
            .await
            .status,
        200
    );
    let mut failed = 0;
    for _ in 0..200 {
        failed += u32::from(post(engine.address(), PATH, &chat(false)).await.status == 500);
    }
    // By seed, so always the same number; 60 is expected.
    assert!((40..80).contains(&failed), "{failed}");
    until_empty(&engine).await;
    assert_eq!(u64::from(failed), engine.stats().injected);
    assert_eq!(
        post(engine.address(), "/emulator/failure", &json!({}))
            .await
            .status,
        200
    );
    assert_eq!(post(engine.address(), PATH, &chat(false)).await.status, 200);
}

#[tokio::test]
async fn a_delay_before_the_first_byte() {
    let engine = instant().await;
    let started = std::time::Instant::now();
    assert_eq!(with_failure(&engine, "slow_ms=60", true).await.status, 200);
    assert!(started.elapsed() >= Duration::from_millis(60));
}

#[tokio::test]
async fn a_stall_in_the_middle_of_a_stream() {
    let engine = instant().await;
    for h2 in [false, true] {
        let headers = [
            ("content-type", "application/json"),
            ("x-emulator-failure", "stall_after=3"),
        ];
        let call = request("POST", PATH, &headers, full(chat(true).to_string()));
        let response = if h2 {
            send_h2(engine.address(), call).await
        } else {
            send(engine.address(), call).await
        };
        let mut response = response.unwrap();
        let mut text = Vec::new();
        while text.windows(2).filter(|two| *two == b"\n\n").count() < 3 {
            text.extend(
                response
                    .body_mut()
                    .frame()
                    .await
                    .unwrap()
                    .unwrap()
                    .into_data()
                    .unwrap(),
            );
        }
        // The engine is done with it, but nothing more comes.
        until(&engine, "computed", |stats| {
            stats.running + stats.waiting == 0
        })
        .await;
        assert_eq!(engine.stats().in_flight, 1);
        let more =
            tokio::time::timeout(Duration::from_millis(30), response.body_mut().frame()).await;
        assert!(more.is_err(), "{more:?}");
        drop(response);
        until_empty(&engine).await;
    }
    assert_eq!(engine.stats().aborted, 2);
}

#[tokio::test]
async fn a_cut_in_the_middle() {
    let engine = instant().await;
    let cut = with_failure(&engine, "cut_after=3", true).await;
    assert_eq!((cut.status, cut.events().len(), cut.whole), (200, 3, false));
    let at_once = with_failure(&engine, "cut_after=0", true).await;
    assert_eq!(
        (at_once.status, at_once.body.len(), at_once.whole),
        (200, 0, false)
    );
    let headers = [
        ("content-type", "application/json"),
        ("x-emulator-failure", "cut_after=3"),
    ];
    let call = request("POST", PATH, &headers, full(chat(true).to_string()));
    let cut = read(send_h2(engine.address(), call).await).await;
    assert_eq!((cut.events().len(), cut.whole), (3, false));
    let half = with_failure(&engine, "cut_after=1", false).await;
    assert!(
        half.status == 200 && !half.whole && half.body.starts_with("{\"id\""),
        "{half:?}"
    );
    until_empty(&engine).await;
    assert_eq!((engine.stats().aborted, engine.stats().ok), (4, 0));
}

#[tokio::test]
async fn an_error_in_the_stream() {
    let engine = instant().await;
    let reply = with_failure(&engine, "error_after=2", true).await;
    let events = reply.events();
    assert_eq!((events.len(), reply.whole), (4, true));
    assert_eq!(events[2]["error"]["code"], 500);
    assert_eq!(events[3], "[DONE]");
}

#[tokio::test]
async fn a_usage_that_lies() {
    let engine = instant().await;
    let usage = async |failure: &str, stream: bool| {
        let reply = with_failure(&engine, failure, stream).await;
        if stream {
            let events = reply.events();
            events[events.len() - 2]["usage"].clone()
        } else {
            reply.json()["usage"].clone()
        }
    };
    for stream in [false, true] {
        let right = usage("", stream).await;
        assert_eq!(right["completion_tokens"], 10);
        let double = usage("usage=double", stream).await;
        assert_eq!(double["completion_tokens"], 20);
        assert_eq!(
            double["prompt_tokens"],
            right["prompt_tokens"].as_u64().unwrap() * 2
        );
        assert_eq!(usage("usage=zero", stream).await["total_tokens"], 0);
        assert_eq!(
            usage("usage=negative", stream).await["completion_tokens"],
            -10
        );
        assert_eq!(usage("usage=missing", stream).await, Value::Null);
    }
}

#[tokio::test]
async fn refused_connections() {
    let engine = instant().await;
    let address = engine.address();
    let refuse = FailureConfig {
        refuse: true,
        ..FailureConfig::default()
    };
    engine.set_failure(refuse).unwrap();
    let mut refused = false;
    for _ in 0..2000 {
        refused = TcpStream::connect(address).await.is_err();
        if refused {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(refused);
    engine.set_failure(FailureConfig::default()).unwrap();
    healthy_again(&engine).await;
    // Over HTTP, with a limit; the answer to the order itself still comes.
    let failure = json!({"refuse": true, "refuse_ms": 50});
    assert_eq!(
        post(address, "/emulator/failure", &failure).await.status,
        200
    );
    healthy_again(&engine).await;
}

async fn healthy_again(engine: &EngineHandle) {
    for _ in 0..2000 {
        if let Ok(stream) = TcpStream::connect(engine.address()).await {
            drop(stream);
            if get(engine.address(), "/health").await.status == 200 {
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("refuses for ever");
}

#[tokio::test]
async fn probes_that_fail() {
    let engine = instant().await;
    let failure = FailureConfig {
        probe_status: Some(500),
        ..FailureConfig::default()
    };
    engine.set_failure(failure).unwrap();
    assert_eq!(get(engine.address(), "/metrics").await.status, 500);
    assert_eq!(get(engine.address(), "/health").await.status, 500);
    assert_eq!(post(engine.address(), PATH, &chat(false)).await.status, 200);
    let odd = FailureConfig {
        slow_factor: 0.0,
        ..FailureConfig::default()
    };
    assert!(engine.set_failure(odd).is_err());
}

#[tokio::test]
async fn without_permission_nothing_fails() {
    let config = EngineConfig {
        allow_failure_injection: false,
        ..EngineConfig::instant("m")
    };
    let engine = start(config).await.unwrap();
    assert_eq!(with_failure(&engine, "status=503", false).await.status, 200);
    let failure = json!({"status": 503});
    assert_eq!(
        post(engine.address(), "/emulator/failure", &failure)
            .await
            .status,
        403
    );
    // Settings from the start count all the same.
    let failure = FailureConfig {
        usage: UsageFault::Zero,
        ..FailureConfig::default()
    };
    let config = EngineConfig {
        failure,
        allow_failure_injection: false,
        ..EngineConfig::instant("m")
    };
    let engine = start(config).await.unwrap();
    assert_eq!(
        post(engine.address(), PATH, &chat(false)).await.json()["usage"]["total_tokens"],
        0
    );
}
