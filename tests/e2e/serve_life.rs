//! The HTTP front over a longer life: engines that do odd things, connections that are kept, certificates that change,
//! an end in order.

use std::time::{Duration, Instant};

use wicketgate_testkit::{
    TempDir,
    certs::Authority,
    client::{Begun, Body, Caller, Version, call, chat, full, request, try_whole},
    cluster::{Command, Front, addresses, endpoint_lines, engines},
    eventually, free_address, must,
    raw::{Odd, Then},
};

use crate::wicketgate;

fn chat_request(headers: &[(&str, &str)]) -> http::Request<Body> {
    request(
        "POST",
        "/v1/chat/completions",
        headers,
        full(chat(5, 3, false)),
    )
}

/// A request that went out may have been begun: it is not sent to anybody else.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_went_out_is_not_sent_twice() {
    let extra = "upstream: {firstByteTimeout: 300ms, retryBackoff: [10ms, 10ms]}\n";
    for (then, status, code) in [
        (Then::HangUp, 502, "upstream_broken"),
        (Then::Gibberish, 502, "upstream_broken"),
        (Then::Silence, 504, "upstream_timeout"),
    ] {
        let (one, two) = (Odd::start(then).await, Odd::start(then).await);
        let pool = endpoint_lines(&[one.address, two.address]);
        let front = Front::start_with(wicketgate(), Command::Serve, &pool, "", extra, &[]).await;
        front.wait_scraped(2).await;
        for (number, version) in [Version::H1, Version::H2].into_iter().enumerate() {
            let mut caller = Caller::connect(front.data, version).await;
            let answer = must("an answer", caller.call(chat_request(&[]))).await;
            answer.assert_error(status, code);
            assert_eq!(
                one.requests() + two.requests(),
                number as u64 + 1,
                "{then:?}"
            );
        }
        front.assert_guards_at_zero().await;
        assert_eq!(front.metric(&["requests_total", code]).await, 2.0);
    }
}

/// A request that changes nothing is, though: the next of the list has it before its caller notices.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_changes_nothing_is_sent_on() {
    let extra = "upstream: {retryBackoff: []}\nplugins:\n- type: random-picker\n  parameters: {maxNumOfEndpoints: 2}\n";
    let (broken, well) = (
        Odd::start(Then::HangUp).await,
        Odd::start(Then::Answer("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")).await,
    );
    let lines = endpoint_lines(&[broken.address, well.address]);
    let pool = format!("{lines}  breaker: {{failures: 0}}\n");
    let front = Front::start_with(wicketgate(), Command::Serve, &pool, "", extra, &[]).await;
    front.wait_scraped(2).await;
    let mut asked = 0;
    while broken.requests() < 6 {
        for method in ["GET", "HEAD", "OPTIONS"] {
            let answer = must("an answer", call(front.data, method, "/v1/models", &[], "")).await;
            assert_eq!(answer.status, 200, "{method}");
            asked += 1;
        }
    }
    assert_eq!(well.requests(), asked);
    front.assert_guards_at_zero().await;
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// An engine closes kept connections when it likes. A request that changes nothing is sent again, another one is not,
/// and the engine is none the worse for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_kept_connection_that_ends_is_no_failure() {
    let aging = Odd::scripted(|number| match number {
        0 => Then::Answer(OK),
        _ => Then::HangUp,
    })
    .await;
    let front = Front::start(wicketgate(), Command::Serve, &[aging.address]).await;
    front.wait_scraped(1).await;
    for _ in 0..8 {
        let answer = must("an answer", call(front.data, "GET", "/v1/models", &[], "")).await;
        assert_eq!((answer.status.as_u16(), &*answer.body), (200, &b"ok"[..]));
    }
    let mut broken = 0;
    for _ in 0..16 {
        let mut caller = Caller::connect(front.data, Version::H1).await;
        let answer = must("an answer", caller.call(chat_request(&[]))).await;
        if answer.status != 200 {
            answer.assert_error(502, "upstream_broken");
            broken += 1;
        }
    }
    assert_eq!(broken, 8, "each kept connection serves once");
    let view = front.view("/debug/endpoints").await;
    let health = &view["main"][0]["health"];
    assert_eq!(health["phase"], "Closed", "{health}");
    assert_eq!(
        health["failures"].as_array().map_or(0, Vec::len),
        0,
        "{health}"
    );
    front.assert_guards_at_zero().await;
}

/// At most two further rounds, each over the whole list.
#[tokio::test(flavor = "multi_thread")]
async fn tries_are_bounded() {
    let dead: Vec<_> = (0..3).map(|_| free_address()).collect();
    let extra = "upstream: {retryBackoff: [10ms, 10ms]}\nplugins:\n- type: random-picker\n  parameters: {maxNumOfEndpoints: 3}\n";
    let pool = format!("{}  breaker: {{failures: 0}}\n", endpoint_lines(&dead));
    let front = Front::start_with(wicketgate(), Command::Serve, &pool, "", extra, &[]).await;
    let mut caller = Caller::connect(front.data, Version::H1).await;
    let answer = must("an answer", caller.call(chat_request(&[]))).await;
    answer.assert_error(503, "upstream_unreachable");
    // Two steps down the list in each of three rounds.
    assert_eq!(front.metric(&["wicketgate_retries_total"]).await, 6.0);
    assert_eq!(
        front.view("/debug/held").await["main"]["totals"]["dispatched"],
        3
    );
    front.assert_guards_at_zero().await;
}

/// An answer that is shorter than it said must not look whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_answer_does_not_look_whole() {
    let odd = Odd::start(Then::ShortBody).await;
    let front = Front::start(wicketgate(), Command::Serve, &[odd.address]).await;
    for version in [Version::H1, Version::H2] {
        let mut caller = Caller::connect(front.data, version).await;
        // Whether the break is known before the head went out is a matter of moments; a whole answer it never is.
        if let Ok(response) = must("a head", caller.send(chat_request(&[]))).await {
            let status = response.status();
            let whole = must("the answer's end", try_whole(response)).await;
            assert!(status.is_server_error() || whole.is_err(), "{whole:?}");
        }
    }
    front.assert_guards_at_zero().await;
}

/// The other streams of an HTTP/2 connection go on when one is given up before its first byte.
#[tokio::test(flavor = "multi_thread")]
async fn one_stream_of_a_connection_can_be_given_up() {
    let engines = engines(1).await;
    let front = Front::start(wicketgate(), Command::Serve, &addresses(&engines)).await;
    let mut caller = Caller::connect(front.data, Version::H2).await;
    {
        let asking = caller.send(chat_request(&[("x-emulator-failure", "slow=3600000")]));
        tokio::pin!(asking);
        tokio::select! {
            answer = &mut asking => panic!("an answer from a sleeping engine: {answer:?}"),
            () = eventually("the request at the engine", || async {
                (engines[0].stats().in_flight == 1).then_some(())
            }) => {}
        }
    }
    eventually("a free engine", || async {
        (engines[0].stats().in_flight == 0).then_some(())
    })
    .await;
    front.assert_guards_at_zero().await;
    assert_eq!(caller.call(chat_request(&[])).await.status, 200);
}

/// Many requests on a connection need few connections to the engine.
#[tokio::test(flavor = "multi_thread")]
async fn connections_to_engines_are_kept() {
    let engines = engines(1).await;
    let front = Front::start(wicketgate(), Command::Serve, &addresses(&engines)).await;
    front.wait_scraped(1).await;
    let before = engines[0].stats().connections;
    for version in [Version::H1, Version::H2] {
        let mut caller = Caller::connect(front.data, version).await;
        for _ in 0..20 {
            assert_eq!(caller.call(chat_request(&[])).await.status, 200);
            let stream = request("POST", "/v1/chat/completions", &[], full(chat(5, 3, true)));
            assert!(
                caller
                    .call(stream)
                    .await
                    .body
                    .ends_with(b"data: [DONE]\n\n")
            );
        }
    }
    let opened = engines[0].stats().connections - before;
    assert!(
        opened <= 2,
        "{opened} new connections for 80 requests one after the other"
    );
    front.assert_guards_at_zero().await;
}

/// A stream that never ends is cut when the drain time is over; the process ends in order all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_has_an_end() {
    let engines = engines(1).await;
    let pool = endpoint_lines(&addresses(&engines));
    // The section's `drainTimeout` is 10 s; a flag on top would be a duplicate key.
    let mut front = Front::start_with(wicketgate(), Command::Serve, &pool, "", "", &[]).await;
    let mut begun = Begun::start(front.data, &[("x-emulator-failure", "stall=4")], 3).await;
    let told = Instant::now();
    front.process.terminate().await;
    assert_eq!(front.process.wait().await, Some(0));
    assert!(
        told.elapsed() < Duration::from_secs(20),
        "{:?}",
        told.elapsed()
    );
    assert!(!begun.ends_properly().await);
    assert!(
        front
            .process
            .words()
            .join("\n")
            .contains("stopped clean=false")
    );
    eventually("a free engine", || async {
        (engines[0].stats().in_flight == 0).then_some(())
    })
    .await;
}

/// Connections that are kept without a request on them do not hold it until the drain time is over.
#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_do_not_hold_it() {
    let engines = engines(1).await;
    let mut front = Front::start(wicketgate(), Command::Serve, &addresses(&engines)).await;
    let mut kept = Vec::new();
    for version in [Version::H1, Version::H2] {
        let mut caller = Caller::connect(front.data, version).await;
        assert_eq!(caller.call(chat_request(&[])).await.status, 200);
        kept.push(caller);
    }
    front.process.terminate().await;
    assert_eq!(front.process.wait().await, Some(0));
    let words = front.process.words().join("\n");
    assert!(words.contains("stopped clean=true"), "{words}");
}

/// C39: certificates are read again when they change, and half a change is none.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_taken_over() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let (before, after) = (old.issue(&["localhost"]), new.issue(&["localhost"]));
    let files = TempDir::new();
    let write = |name: &str, text: &str| files.write(name, text).display().to_string();
    let (cert, key) = (
        write("tls.crt", &before.certificate),
        write("tls.key", &before.key),
    );
    let roots = [
        write("old.pem", &old.certificate),
        write("new.pem", &new.certificate),
    ];
    let engines = engines(1).await;
    let pool = endpoint_lines(&addresses(&engines));
    let section = format!("  tls: {{certFile: {cert}, keyFile: {key}}}\n");
    let front = Front::start_with(wicketgate(), Command::Serve, &pool, &section, "", &[]).await;
    let url = format!("https://localhost:{}/v1/models", front.data.port());
    let works = async |root: &str| {
        let mut curl = tokio::process::Command::new("curl");
        curl.args([
            "-s",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "--cacert",
            root,
            &url,
        ]);
        curl.output().await.unwrap().stdout == b"200"
    };
    assert_eq!(
        (works(&roots[0]).await, works(&roots[1]).await),
        (true, false)
    );
    write("tls.crt", &after.certificate);
    eventually("a word about the pair", || async {
        let words = front.process.words().join("\n");
        words
            .contains("certificates on disk cannot be used")
            .then_some(())
    })
    .await;
    assert_eq!(
        (works(&roots[0]).await, works(&roots[1]).await),
        (true, false)
    );
    write("tls.key", &after.key);
    eventually("the new certificate", || async {
        works(&roots[1]).await.then_some(())
    })
    .await;
    assert!(!works(&roots[0]).await);
}
