//! Endpoints that go away, bursts that no scrape sees, ordered fallbacks.

use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::Semaphore;
use wicketgate_bench::envoy::OVERRIDE_HOST;
use wicketgate_epp::extproc::proto::body_mode::{FULL_DUPLEX_STREAMED, NONE};
use wicketgate_testkit::{
    TempDir,
    client::{Begun, chat_call},
    cluster::{Command, Front, Gateway, addresses, endpoint_lines, engines},
    envoy_binary, eventually, free_address,
    scripted::{IDLE, Reply, Scripted},
    stream::{Exchange, Proxy},
};

use super::{listed, pick, picker, placed, wait_endpoints};
use crate::{
    NO_HOLD,
    extproc_phases::{assert_nothing_left, body, get, ok, request},
    wicketgate,
};

/// Places a request and leaves it open.
async fn hold(proxy: &Proxy) -> (Exchange, String) {
    let mut exchange = proxy.open((NONE, NONE)).await;
    exchange.send(get()).await;
    let to = placed(&mut exchange).await;
    (exchange, to)
}

fn in_flight(rows: &[serde_json::Value], address: &str) -> Option<u64> {
    let row = rows.iter().find(|row| row["address"] == address)?;
    row["in_flight"]["requests"].as_u64()
}

/// C13: an endpoint that is marked as going away, or removed, is in no list from then on; what runs there is counted
/// until it ends; with nobody left the answer is 503.
#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_goes_away_gets_nothing_new() {
    let (one, two) = (
        Scripted::with_page(IDLE).await,
        Scripted::with_page(IDLE).await,
    );
    let (first, second) = (one.address.to_string(), two.address.to_string());
    let files = TempDir::new();
    const GOING: &str = ", draining: true";
    let write = |marks: [&str; 2]| {
        let all = [(one.address, marks[0]), (two.address, marks[1])];
        files.write("endpoints.yaml", &listed(&all))
    };
    let file = write(["", ""]);
    let pool = format!("  endpointsFile: {}\n", file.display());
    let (front, proxy) = picker(&pool, "").await;
    front.wait_scraped(2).await;
    // One request stays on each of them.
    let (mut held, mut at) = (Vec::new(), BTreeSet::new());
    while at.len() < 2 {
        let (exchange, to) = hold(&proxy).await;
        at.insert(to.clone());
        held.push((exchange, to));
    }
    let on_first = held.iter().filter(|(_, to)| *to == first).count() as u64;

    write([GOING, ""]);
    let marked = |rows: &[serde_json::Value], count| {
        let draining = rows.iter().filter(|row| row["draining"] == true).count();
        rows.len() == 2 && draining == count
    };
    let rows = wait_endpoints(&front, "the mark", |rows| marked(rows, 1)).await;
    assert_eq!(in_flight(&rows, &first), Some(on_first));
    for _ in 0..100 {
        let mut exchange = proxy.open((NONE, NONE)).await;
        exchange.send(get()).await;
        // Not as a fallback either.
        let list = exchange.said().await.changes().destination;
        assert_eq!(list.as_deref(), Some(second.as_str()));
        exchange.send(ok(true)).await;
        exchange.said().await;
        exchange.finish().await;
    }

    write([GOING, GOING]);
    wait_endpoints(&front, "both marks", |rows| marked(rows, 2)).await;
    let mut refused = proxy.open((NONE, NONE)).await;
    refused.send(get()).await;
    let said = refused.said().await.to_string();
    assert_eq!(said, "immediate: 503 wicketgate_no_endpoints");
    refused.finish().await;

    // A mark that is taken back: it is the same life, with its counts.
    write(["", GOING]);
    let rows = wait_endpoints(&front, "one mark", |rows| marked(rows, 1)).await;
    assert_eq!(in_flight(&rows, &first), Some(on_first));
    assert_eq!(pick(&proxy).await, first);

    files.write("endpoints.yaml", "endpoints: []\n");
    wait_endpoints(&front, "an empty pool", <[_]>::is_empty).await;
    let open = held.len() as u64;
    let view = front.view("/debug/held").await;
    let counts = (&view["main"]["running"], &view["main"]["orphaned"]);
    assert_eq!(counts, (&open.into(), &open.into()), "{view}");
    let mut refused = proxy.open((NONE, NONE)).await;
    refused.send(get()).await;
    let said = refused.said().await.to_string();
    assert_eq!(said, "immediate: 503 wicketgate_no_endpoints");
    refused.finish().await;
    for (mut exchange, _) in held {
        exchange.send(ok(true)).await;
        exchange.said().await;
        exchange.finish().await;
    }
    assert_nothing_left(&front).await;
    let ok = front.metric(&["requests_total", "outcome=\"ok\""]).await;
    assert_eq!(ok, (101 + open) as f64);
}

/// C13 through the HTTP front: a stream on an endpoint that is removed goes on to its own end.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_outlives_its_endpoints_place_in_the_list() {
    let gate = Arc::new(Semaphore::new(0));
    let hold = Arc::clone(&gate);
    let leaving = Scripted::start(Reply::page(IDLE), move |_| Reply {
        hold: Some(Arc::clone(&hold)),
        ..Reply::events(vec![
            "data: {\"choices\":[{}]}\n\n".into(),
            "data: [DONE]\n\n".into(),
        ])
    })
    .await;
    let files = TempDir::new();
    let file = files.write("endpoints.yaml", &listed(&[(leaving.address, "")]));
    let pool = format!("  endpointsFile: {}\n", file.display());
    let front = Front::start_with(wicketgate(), Command::Serve, &pool, "", NO_HOLD, &[]).await;
    front.wait_scraped(1).await;
    let mut begun = Begun::start(front.data, &[], 1).await;
    files.write("endpoints.yaml", "endpoints: []\n");
    wait_endpoints(&front, "an empty pool", <[_]>::is_empty).await;
    assert_eq!(front.view("/debug/held").await["main"]["orphaned"], 1);
    chat_call(front.data, &[])
        .await
        .assert_error(503, "no_endpoints");
    gate.add_permits(1);
    assert!(begun.ends_properly().await);
    assert!(begun.seen.ends_with(b"data: [DONE]\n\n"));
    front.assert_guards_at_zero().await;
    let ok = front.metric(&["requests_total", "outcome=\"ok\""]).await;
    assert_eq!((ok, leaving.requests()), (1.0, 1));
}

/// C15: requests that are open count at once, whatever their path and body, so a burst that no scrape sees is spread.
#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_every_kind_is_spread() {
    // Nobody listens there: no page is ever read.
    let silent: Vec<_> = (0..8).map(|_| free_address()).collect();
    let (front, proxy) = picker(&endpoint_lines(&silent), "admission: {enabled: false}\n").await;
    let prefix = "word ".repeat(3300);
    let chat = format!(
        r#"{{"model":"m","messages":[{{"role":"system","content":"{prefix}"}},{{"role":"user","content":"u"}}]}}"#
    );
    let text = format!(r#"{{"model":"m","prompt":"{prefix}"}}"#);
    let kinds: [(&str, &str, &str); 6] = [
        ("POST", "/v1/chat/completions", &chat),
        ("POST", "/v1/completions", &text),
        ("POST", "/v1/embeddings", r#"{"input":"a"}"#),
        ("POST", "/v1/rerank", r#"{"query":"q"}"#),
        ("GET", "/v1/models", ""),
        ("OPTIONS", "/v1/chat/completions", ""),
    ];
    let mut open = Vec::new();
    for number in 0..480 {
        let (method, path, text) = kinds[number % kinds.len()];
        let mut exchange = proxy.open((FULL_DUPLEX_STREAMED, NONE)).await;
        exchange
            .send(request(method, path, &[], text.is_empty()))
            .await;
        if !text.is_empty() {
            exchange.send(body(text.to_owned(), true)).await;
        }
        placed(&mut exchange).await;
        open.push(exchange);
    }
    let view = front.view("/debug/endpoints").await;
    let rows = view["main"].as_array().unwrap();
    let loads: Vec<u64> = silent
        .iter()
        .map(|address| in_flight(rows, &address.to_string()).unwrap())
        .collect();
    assert_eq!(loads.iter().sum::<u64>(), 480);
    assert!(loads.iter().all(|load| *load <= 120), "{loads:?}");
    drop(open);
    assert_nothing_left(&front).await;
}

/// C15: endpoints that look the same have no fixed first winner.
#[tokio::test(flavor = "multi_thread")]
async fn ties_have_no_fixed_winner() {
    let silent: Vec<_> = (0..8).map(|_| free_address()).collect();
    let mut firsts = BTreeSet::new();
    for seed in 1..=6 {
        let seed = format!("scheduler: {{seed: {seed}}}\n");
        let (front, proxy) = picker(&endpoint_lines(&silent), &seed).await;
        firsts.insert(pick(&proxy).await);
        let mut picks = BTreeSet::new();
        for _ in 0..100 {
            picks.insert(pick(&proxy).await);
        }
        assert_eq!(picks.len(), 8, "one at a time, all eight get work");
        assert_nothing_left(&front).await;
    }
    assert!(firsts.len() > 1, "{firsts:?}");
}

/// S06: a list of two with the first one down: header and metadata are the same list, in its order, and the second one
/// serves.
#[tokio::test(flavor = "multi_thread")]
async fn a_fallback_list_is_one_list() {
    let Some(envoy) = envoy_binary() else { return };
    let alive = engines(1).await;
    let (dead, up) = (free_address(), alive[0].address());
    let pool = endpoint_lines(&[dead, up]);
    let profile = "plugins:\n- type: random-picker\n  parameters: {maxNumOfEndpoints: 2}\nscheduler: {seed: 3}\n";
    let picker = Front::start_with(wicketgate(), Command::Epp, &pool, "", profile, &[]).await;
    let endpoints = [vec![dead], addresses(&alive)].concat();
    let gateway = Gateway::start(&envoy, OVERRIDE_HOST, &picker, &endpoints, |config| config).await;
    let down_first = format!("{dead},{up}");
    let sent = std::sync::atomic::AtomicUsize::new(0);
    let line = eventually("a list with the dead one first", || async {
        let number = sent.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        assert_eq!(chat_call(gateway.address, &[]).await.status, 200);
        let lines = gateway.log(number).await;
        lines
            .into_iter()
            .find(|line| line["picked"] == down_first.as_str())
    })
    .await;
    assert_eq!(line["header"], line["picked"], "{line}");
    assert_eq!(line["attempts"], 2, "{line}");
    assert_eq!(line["served"], up.to_string(), "{line}");
    picker.assert_guards_at_zero().await;
}
