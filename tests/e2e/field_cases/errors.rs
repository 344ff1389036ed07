//! S01: whatever goes wrong, clients get JSON in OpenAI's shape.

use serde_json::Value;
use wicketgate_epp::extproc::proto::{Phase, body_mode::FULL_DUPLEX_STREAMED};
use wicketgate_testkit::{
    client::{call, chat, chat_call},
    cluster::{Command, Front, addresses, endpoint_lines, engines},
    free_address,
    raw::{Odd, Then},
    said::Said,
    stream::{Proxy, list},
};

use super::{picker, placed};
use crate::{
    NO_HOLD,
    extproc_phases::{assert_nothing_left, body, post, response},
    wicketgate,
};

/// A filter that leaves nobody.
const NOBODY: &str = "plugins: [{type: label-selector-filter, parameters: {matchLabels: {zone: none}}}, {type: max-score-picker}]\n";
const ONE_FAILURE: &str = "  breaker: {failures: 1}\n";

async fn serve(pool: &str, extra: &str) -> Front {
    let server = "  maxBodyBytes: 1Ki\n";
    let extra = format!("{extra}{NO_HOLD}");
    Front::start_with(wicketgate(), Command::Serve, pool, server, &extra, &[]).await
}

/// Every way to be refused by the HTTP front itself.
#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_of_the_http_front_is_json() {
    let engines = engines(1).await;
    let pool = endpoint_lines(&addresses(&engines));
    let front = serve(
        &format!("{pool}  models: [emulated]\n  default: false\n"),
        "",
    )
    .await;
    let post = async |text: &str| {
        let path = "/v1/chat/completions";
        call(front.data, "POST", path, &[], text.to_owned()).await
    };
    post("[").await.assert_error(400, "invalid_body");
    post(&" ".repeat(2000))
        .await
        .assert_error(413, "request_too_large");
    post(r#"{"model":"other"}"#)
        .await
        .assert_error(404, "model_not_found");
    post("{}").await.assert_error(404, "model_not_found");
    call(front.data, "TRACE", "/", &[], "")
        .await
        .assert_error(405, "method_not_allowed");
    let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
    call(front.data, "GET", "/v1/realtime", &upgrade, "")
        .await
        .assert_error(400, "bad_request");
    front.assert_guards_at_zero().await;

    let filtered = serve(&pool, NOBODY).await;
    let answer = chat_call(filtered.data, &[]).await;
    answer.assert_error(429, "all_filtered");
    assert_eq!(answer.header("retry-after"), "1");

    let empty = serve("  endpoints: []\n", "").await;
    let answer = chat_call(empty.data, &[]).await;
    answer.assert_error(503, "no_endpoints");
    assert_eq!(answer.header("retry-after"), "5");

    let dead = format!("{}{ONE_FAILURE}", endpoint_lines(&[free_address()]));
    let dead = serve(&dead, "upstream: {retryBackoff: []}\n").await;
    let answer = chat_call(dead.data, &[]).await;
    answer.assert_error(503, "upstream_unreachable");
    assert_eq!(answer.header("retry-after"), "1");
    let answer = chat_call(dead.data, &[]).await;
    answer.assert_error(503, "all_ejected");
    assert_eq!(answer.header("retry-after"), "5");

    for (then, status, code) in [
        (Then::HangUp, 502, "upstream_broken"),
        (Then::Gibberish, 502, "upstream_broken"),
        (Then::Silence, 504, "upstream_timeout"),
    ] {
        let odd = Odd::start(then).await;
        let extra = "upstream: {firstByteTimeout: 300ms}\n";
        let front = serve(&endpoint_lines(&[odd.address]), extra).await;
        chat_call(front.data, &[]).await.assert_error(status, code);
        front.assert_guards_at_zero().await;
    }
}

/// An answer instead of an endpoint's, which must be an error in OpenAI's shape.
async fn refusal(
    proxy: &Proxy,
    phases: Vec<Phase>,
    subset: Option<&[&str]>,
) -> (u16, String, String) {
    let mut exchange = proxy
        .open((FULL_DUPLEX_STREAMED, FULL_DUPLEX_STREAMED))
        .await;
    if let Some(subset) = subset {
        let key = "x-gateway-destination-endpoint-subset";
        exchange.metadata("envoy.lb.subset_hint", key, list(subset));
    }
    for phase in phases {
        exchange.send(phase).await;
    }
    let said = exchange.said().await;
    let Said::Immediate {
        status,
        headers,
        body,
        details,
    } = said
    else {
        panic!("{said}")
    };
    let header = |name: &str| {
        let mut found = headers.iter().filter(|(known, _)| known == name);
        let value = found.next().map(|(_, value)| value.clone());
        assert_eq!(found.next(), None, "{name} twice");
        value
    };
    assert_eq!(header("content-type").as_deref(), Some("application/json"));
    let error: Value = serde_json::from_slice(&body).unwrap();
    let error = &error["error"];
    assert!(
        error["message"].is_string() && error["type"].is_string(),
        "{error}"
    );
    let code = error["code"].as_str().unwrap().to_owned();
    assert_eq!(details, format!("wicketgate_{code}"));
    exchange.finish().await;
    (status, code, header("retry-after").unwrap_or_default())
}

/// Every way to be refused by the ext_proc front.
#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_of_the_picker_is_json() {
    let told = |status, code: &str, retry: &str| (status, code.to_owned(), retry.to_owned());
    let chat = || body(chat(5, 3, false), true);
    let pool = format!(
        "{}{ONE_FAILURE}  models: [emulated]\n  default: false\n",
        endpoint_lines(&[free_address()])
    );
    let server = "  maxBodyBytes: 1Ki\n";
    let front = Front::start_with(wicketgate(), Command::Epp, &pool, server, NO_HOLD, &[]).await;
    let proxy = Proxy::connect(front.data).await;
    for (phases, subset, expected) in [
        (
            vec![post(), body("[", true)],
            None,
            told(400, "invalid_body", ""),
        ),
        (
            vec![post(), body("", true)],
            None,
            told(400, "invalid_body", ""),
        ),
        (
            vec![post(), body(vec![b' '; 2000], false)],
            None,
            told(413, "request_too_large", ""),
        ),
        (
            vec![post(), body(r#"{"model":"other"}"#, true)],
            None,
            told(404, "model_not_found", ""),
        ),
        (
            vec![post(), chat()],
            Some(&[][..]),
            told(503, "subset_empty", "5"),
        ),
        (
            vec![post(), chat()],
            Some(&["10.0.0.9:1"][..]),
            told(503, "subset_empty", "5"),
        ),
    ] {
        assert_eq!(refusal(&proxy, phases, subset).await, expected);
    }
    // An endpoint that fails once is out.
    let mut failing = proxy
        .open((FULL_DUPLEX_STREAMED, FULL_DUPLEX_STREAMED))
        .await;
    failing.send(post()).await;
    failing.send(chat()).await;
    placed(&mut failing).await;
    failing.said().await;
    failing
        .send(response("500", "application/json", true))
        .await;
    failing.said().await;
    failing.finish().await;
    let all_out = refusal(&proxy, vec![post(), chat()], None).await;
    assert_eq!(all_out, told(503, "all_ejected", "5"));
    assert_nothing_left(&front).await;

    let (empty, proxy) = picker("  endpoints: []\n", "").await;
    let nobody = refusal(&proxy, vec![post(), chat()], None).await;
    assert_eq!(nobody, told(503, "no_endpoints", "5"));
    assert_nothing_left(&empty).await;
    let (filtered, proxy) = picker(&endpoint_lines(&[free_address()]), NOBODY).await;
    let full = refusal(&proxy, vec![post(), chat()], None).await;
    assert_eq!(full, told(429, "all_filtered", "1"));
    assert_nothing_left(&filtered).await;
}
