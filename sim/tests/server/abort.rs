//! Clients that leave, and engines that are full.

use http_body_util::BodyExt;
use serde_json::{Value, json};
use wicketgate_sim::engine::{EngineConfig, start};

use crate::{
    client::{Reply, full, get, post, read, request, send, send_h2},
    frozen, until, until_empty,
};

fn chat(stream: bool) -> String {
    let body = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 100, "stream": stream});
    body.to_string()
}

fn call(stream: bool) -> http::Request<crate::client::Body> {
    request(
        "POST",
        "/v1/chat/completions",
        &[("content-type", "application/json")],
        full(chat(stream)),
    )
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_slot_at_once() {
    let engine = start(frozen()).await.unwrap();
    let address = engine.address();
    // Streams: their heads come at once, their tokens in hours.
    let h1 = send(address, call(true)).await.unwrap();
    let h2 = send_h2(address, call(true)).await.unwrap();
    assert_eq!((h1.status().as_u16(), h2.status().as_u16()), (200, 200));
    until(&engine, "two requests", |stats| {
        stats.running + stats.waiting == 2
    })
    .await;
    drop((h1, h2));
    until_empty(&engine).await;
    // Not streamed: the client goes before any answer.
    let waiting = tokio::spawn(send(address, call(false)));
    let waiting_h2 = tokio::spawn(send_h2(address, call(false)));
    until(&engine, "two requests", |stats| {
        stats.running + stats.waiting == 2
    })
    .await;
    waiting.abort();
    waiting_h2.abort();
    until_empty(&engine).await;
    let stats = engine.stats();
    assert_eq!((stats.requests, stats.aborted, stats.ok), (4, 4, 0));
}

#[tokio::test]
async fn a_full_queue_answers_503_as_vllm_does() {
    let config = EngineConfig {
        max_num_queued: Some(2),
        max_num_seqs: 1,
        ..frozen()
    };
    let engine = start(config).await.unwrap();
    let address = engine.address();
    let first = send(address, call(true)).await.unwrap();
    let second = send(address, call(true)).await.unwrap();
    until(&engine, "one running, one waiting", |stats| {
        (stats.running, stats.waiting) == (1, 1)
    })
    .await;
    let reply: Reply = read(send(address, call(true)).await).await;
    assert_eq!(reply.status, 503);
    assert!(reply.headers.get("retry-after").is_none());
    let expected = json!({"error": {
        "message": "The engine is currently busy and cannot accept new requests. Please try again later or on a \
                    different instance.",
        "type": "Service Unavailable", "param": null, "code": 503,
    }});
    assert_eq!(reply.json(), expected);
    // Two choices take two places.
    let two = json!({"prompt": "x", "n": 2});
    drop(second);
    until(&engine, "one request", |stats| {
        stats.running + stats.waiting == 1
    })
    .await;
    assert_eq!(post(address, "/v1/completions", &two).await.status, 503);
    let page = get(address, "/metrics").await.body;
    let rejected =
        r#"vllm:admission_rejections_total{model_name="m",reason="max_num_queued_reqs"} 2.0"#;
    assert!(page.contains(rejected), "{page}");
    // It is neither slower nor unhealthy.
    assert_eq!(get(address, "/health").await.status, 200);
    drop(first);
    until_empty(&engine).await;
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_a_stream() {
    // Fast enough to produce many tokens, slow enough not to be done: 20,000 steps of about 1.4 ms.
    let config = EngineConfig {
        time_scale: 10.0,
        ..frozen()
    };
    let engine = start(config).await.unwrap();
    let body = json!({"prompt": "hello", "max_tokens": 20_000, "stream": true}).to_string();
    let call = request(
        "POST",
        "/v1/completions",
        &[("content-type", "application/json")],
        full(body),
    );
    let mut response = send(engine.address(), call).await.unwrap();
    for _ in 0..5 {
        let frame = response.body_mut().frame().await.unwrap().unwrap();
        assert!(frame.data_ref().unwrap().starts_with(b"data: {"));
    }
    drop(response);
    until_empty(&engine).await;
    let stats = engine.stats();
    assert_eq!((stats.aborted, stats.finished), (1, 0));
    assert!(stats.generated_tokens >= 5 && stats.generated_tokens < 20_000);
    let load: Value = get(engine.address(), "/load").await.json();
    assert_eq!(load["server_load"], 0);
}

#[tokio::test]
async fn a_stopped_engine_closes_its_port_and_its_streams() {
    let engine = start(frozen()).await.unwrap();
    let address = engine.address();
    let open = send(address, call(true)).await;
    engine.stop().await;
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
    assert!(!read(open).await.whole);
    // The address is free again.
    let again = EngineConfig {
        port: address.port(),
        ..EngineConfig::instant("m")
    };
    let again = start(again).await.unwrap();
    assert_eq!(get(again.address(), "/health").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_leaks_under_load_with_clients_that_leave() {
    // Few blocks, so that requests are preempted; fast steps, so that all states are met.
    let config = EngineConfig {
        num_blocks: 80,
        max_num_seqs: 16,
        max_num_queued: Some(40),
        time_scale: 200.0,
        ..frozen()
    };
    let engine = start(config).await.unwrap();
    let address = engine.address();
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..300_u32 {
        clients.spawn(async move {
            let stream = number % 2 == 0;
            let prompt: Vec<u32> = (0..20 + number % 60).map(|at| at + number % 5).collect();
            let body = json!({"prompt": prompt, "max_tokens": 1 + number % 90, "stream": stream, "n": 1 + number % 2});
            let headers = [("content-type", "application/json")];
            let call = request("POST", "/v1/completions", &headers, full(body.to_string()));
            // A third of the clients leave while the engine works for them.
            let patience = if number % 3 == 0 { 3 + u64::from(number % 10) } else { 60_000 };
            let whole = async { read(send(address, call).await).await };
            let reply = tokio::time::timeout(std::time::Duration::from_millis(patience), whole).await;
            reply.ok().map(|reply| {
                assert!(reply.whole && matches!(reply.status, 200 | 503), "{reply:?}");
                reply.status
            })
        });
    }
    let answers = clients.join_all().await;
    until_empty(&engine).await;
    let stats = engine.stats();
    let of = |status| {
        answers
            .iter()
            .filter(|answer| **answer == Some(status))
            .count() as u64
    };
    assert!(of(200) > 0);
    // A client that gave up may have been answered all the same.
    assert!(stats.ok >= of(200) && stats.refused >= of(503), "{stats:?}");
    assert_eq!(stats.requests, stats.ok + stats.refused + stats.aborted);
    assert!(stats.cached_blocks <= stats.total_blocks);
}
