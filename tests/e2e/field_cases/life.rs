//! Starting, serving, draining, dying.

use wicketgate_epp::extproc::proto::body_mode::NONE;
use wicketgate_testkit::{
    TempDir,
    client::{call, chat_call},
    cluster::{Command, Front, endpoint_lines},
    eventually, free_address,
    stream::{Health, Proxy},
};

use super::{listed, placed};
use crate::{
    extproc_phases::{get, ok},
    wicketgate,
};

/// However slow the machine is, a drain lasts until the test is done with it.
const PATIENT: &str = "  drainTimeout: 120s\n";

const NAMES: [&str; 5] = [
    "liveness",
    "readiness",
    "envoy.service.ext_proc.v3.ExternalProcessor",
    "",
    "bogus",
];

/// What a picker says of each name, on its health port and beside ext_proc, and on its page.
async fn said(front: &Front) -> ([[Health; 5]; 2], bool) {
    let mut tables = [[Health::Unknown; 5]; 2];
    for (table, address) in tables.iter_mut().zip([front.health, front.data]) {
        let proxy = Proxy::connect(address).await;
        for (said, name) in table.iter_mut().zip(NAMES) {
            *said = proxy.health(name).await;
        }
    }
    let page = async |path| call(front.admin, "GET", path, &[], "").await.status;
    assert_eq!(page("/healthz").await, 200);
    (tables, page("/readyz").await == 200)
}

fn table(ready: Health) -> ([[Health; 5]; 2], bool) {
    let names = [Health::Serving, ready, ready, ready, Health::Unknown];
    ([names, names], ready == Health::Serving)
}

/// Waits until a picker says this; while it changes its mind, one name may be ahead of another.
async fn comes_to_say(front: &Front, ready: Health) {
    eventually("the table of its new state", || async {
        (said(front).await == table(ready)).then_some(())
    })
    .await;
}

/// C38: each name in each state. C37, as far as there is a file to miss: a picker whose endpoints cannot be had yet is
/// alive, says why, is not ready, and becomes so without a restart.
#[tokio::test(flavor = "multi_thread")]
async fn health_by_name_and_state() {
    let files = TempDir::new();
    let file = files.path().join("endpoints.yaml");
    let pool = format!("  endpointsFile: {}\n", file.display());
    let mut front = Front::start_with(wicketgate(), Command::Epp, &pool, PATIENT, "", &[]).await;
    let word = async |word: &str| {
        eventually(word, || async {
            let words = front.process.words();
            words.iter().any(|line| line.contains(word)).then_some(())
        })
        .await;
    };
    word("a watched file cannot be read").await;
    assert_eq!(said(&front).await, table(Health::NotServing));
    files.write("endpoints.yaml", "endpoints: [{adress: x}]\n");
    word("did you mean `address`").await;
    assert_eq!(said(&front).await, table(Health::NotServing));

    files.write("endpoints.yaml", &listed(&[(free_address(), "")]));
    comes_to_say(&front, Health::Serving).await;
    // What was known once stays known.
    std::fs::remove_file(&file).unwrap();
    let proxy = Proxy::connect(front.data).await;
    let mut exchange = proxy.open((NONE, NONE)).await;
    exchange.send(get()).await;
    placed(&mut exchange).await;
    assert_eq!(said(&front).await, table(Health::Serving));

    front.process.terminate().await;
    comes_to_say(&front, Health::NotServing).await;
    exchange.send(ok(true)).await;
    exchange.said().await;
    exchange.finish().await;
    drop(proxy);
    assert_eq!(front.process.wait().await, Some(0));
}

/// A stop while the endpoints are still unknown is a stop: nothing makes such a process ready again.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_before_the_start_is_done() {
    let files = TempDir::new();
    let pool = format!(
        "  endpointsFile: {}\n",
        files.path().join("endpoints.yaml").display()
    );
    let mut front = Front::start_with(wicketgate(), Command::Serve, &pool, "", "", &[]).await;
    chat_call(front.data, &[])
        .await
        .assert_error(503, "no_endpoints");
    front.process.terminate().await;
    files.write("endpoints.yaml", &listed(&[(free_address(), "")]));
    assert_eq!(front.process.wait().await, Some(0));
    let words = front.process.words().join("\n");
    assert!(!words.contains("ready"), "{words}");
}

/// C38: twenty open streams see a picker's soft end through, and never a clean one at its hard end.
#[tokio::test(flavor = "multi_thread")]
async fn open_streams_at_a_soft_and_a_hard_end() {
    for hard in [false, true] {
        let pool = endpoint_lines(&[free_address(), free_address()]);
        let mut front =
            Front::start_with(wicketgate(), Command::Epp, &pool, PATIENT, "", &[]).await;
        let proxy = Proxy::connect(front.data).await;
        let mut open = Vec::new();
        for _ in 0..20 {
            let mut exchange = proxy.open((NONE, NONE)).await;
            exchange.send(get()).await;
            placed(&mut exchange).await;
            open.push(exchange);
        }
        assert_eq!(front.running().await, 20);
        if hard {
            front.process.kill().await;
            for mut exchange in open {
                let ended = exchange.answer().await;
                assert!(ended.is_err(), "a clean end: {ended:?}");
            }
            continue;
        }
        front.process.terminate().await;
        eventually("a draining picker", || async {
            let page = call(front.admin, "GET", "/readyz", &[], "").await;
            (page.status == 503).then_some(())
        })
        .await;
        // Who has not heard of it yet is still served.
        let mut late = proxy.open((NONE, NONE)).await;
        late.send(get()).await;
        placed(&mut late).await;
        open.push(late);
        for mut exchange in open {
            exchange.send(ok(true)).await;
            exchange.said().await;
            exchange.finish().await;
        }
        drop(proxy);
        assert_eq!(front.process.wait().await, Some(0));
        let words = front.process.words().join("\n");
        assert!(words.contains("stopped clean=true"), "{words}");
    }
}
