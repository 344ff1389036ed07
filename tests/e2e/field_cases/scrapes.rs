//! Metrics pages: none, renamed, cut, impossible, compressed, too long, with adapters.

use bytes::Bytes;
use wicketgate_epp::extproc::proto::body_mode::FULL_DUPLEX_STREAMED;
use wicketgate_testkit::{
    cluster::Front,
    eventually,
    scripted::{IDLE, Reply, Scripted},
};

use super::{listed, pick, picker, placed};
use crate::extproc_phases::{assert_nothing_left, body, post};

/// Scrapes often enough that tests need not wait; readings never grow old in them.
const OFTEN: &str = "telemetry: {interval: 20ms, staleness: 1h}\n";

fn page(waiting: u32, running: u32, kv: &str) -> String {
    format!(
        "vllm:num_requests_waiting{{model_name=\"m\"}} {waiting}\n\
         vllm:num_requests_running{{model_name=\"m\"}} {running}\n\
         vllm:kv_cache_usage_perc{{model_name=\"m\"}} {kv}\n"
    )
}

/// Waits until this many good scrapes more have come in, at least.
async fn wait_scrapes(front: &Front, server: &Scripted, more: u64) {
    let until = server.scrapes() + more;
    eventually("scrapes", || async {
        (server.scrapes() >= until).then_some(())
    })
    .await;
    // The last of them is taken over when the counter says so.
    let counted = front.metric(&["scrapes_total"]).await;
    eventually("a scrape that is taken over", || async {
        (front.metric(&["scrapes_total"]).await >= counted + 1.0).then_some(())
    })
    .await;
}

/// C09: an endpoint whose page was never seen gets its explore share at most, though zeros would look idle.
#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_never_scraped_is_not_idle() {
    let busy = Scripted::with_page(&page(1, 0, "0.2")).await;
    let idle = Scripted::with_page(&page(0, 0, "0.0")).await;
    let silent = Scripted::start(Reply::new(404, "text/plain", "no page"), |_| {
        Reply::new(200, "application/json", "{}")
    })
    .await;
    let all = [(busy.address, ""), (idle.address, ""), (silent.address, "")];
    for (explore, allowed) in [(0.0, 0), (0.05, 100)] {
        // 50 of 1000 are expected at 5 %; seven standard deviations more are 100.
        let pool = format!("  explore: {explore}\n  {}", listed(&all));
        let (front, proxy) = picker(&pool, &format!("{OFTEN}scheduler: {{seed: 7}}\n")).await;
        front.wait_scraped(2).await;
        let mut unknown = 0;
        for _ in 0..1000 {
            unknown += u32::from(pick(&proxy).await == silent.address.to_string());
        }
        assert!(unknown <= allowed, "{unknown} of 1000 at {explore}");
        assert_eq!(unknown > 0, explore > 0.0);
        assert_nothing_left(&front).await;
    }
}

/// C11: of several lists of adapters the newest counts; an adapter that runs and waits takes one slot; servers that tell
/// of none are no fault.
#[tokio::test(flavor = "multi_thread")]
async fn adapters_are_read_and_used() {
    let lists = "vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"a\",waiting_lora_adapters=\"a\"} 1.7e9\n\
        vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} 1.6e9\n";
    let odd = "vllm:lora_requests_info{max_lora=\"\",running_lora_adapters=\"b c,,d\",waiting_lora_adapters=\"\"} 1\n";
    let warm = Scripted::with_page(&format!("{}{lists}", page(0, 3, "0.5"))).await;
    let other = Scripted::with_page(&format!("{}{odd}", page(0, 0, "0.0"))).await;
    let full = "vllm:lora_requests_info{max_lora=\"1\",running_lora_adapters=\"x\",waiting_lora_adapters=\"\"} 1\n";
    let full = Scripted::with_page(&format!("{}{full}", page(0, 0, "0.0"))).await;
    let plain = Scripted::with_page(IDLE).await;
    let all = [&warm, &other, &full, &plain].map(|server| (server.address, ""));
    let plugins = "plugins: [{type: lora-affinity-scorer}, {type: max-score-picker}]\n";
    let pool = format!("  {}", listed(&all));
    let (front, proxy) = picker(&pool, &format!("{OFTEN}{plugins}")).await;
    front.wait_scraped(4).await;
    let rows = front.view("/debug/endpoints").await;
    let adapters = |server: &Scripted| {
        let address = server.address.to_string();
        let rows = rows["main"].as_array().unwrap();
        let row = rows.iter().find(|row| row["address"] == address).unwrap();
        let adapters = &row["adapters"];
        (
            adapters["running"].clone(),
            adapters["waiting"].clone(),
            adapters["max"].clone(),
        )
    };
    let none = serde_json::Value::Null;
    assert_eq!(
        adapters(&warm),
        (["a"][..].into(), ["a"][..].into(), 2.into())
    );
    let empty: &[&str] = &[];
    assert_eq!(
        adapters(&other),
        (["b c", "d"][..].into(), empty.into(), none.clone())
    );
    assert_eq!(adapters(&plain), (none.clone(), none.clone(), none));
    // `a` runs on the first, and a new adapter finds one of its two slots free. Who says nothing of an adapter scores
    // like the worst that is known: the one whose only slot is taken.
    for (model, server) in [("a", &warm), ("new", &warm), ("b c", &other)] {
        for _ in 0..20 {
            let mut exchange = proxy
                .open((FULL_DUPLEX_STREAMED, FULL_DUPLEX_STREAMED))
                .await;
            exchange.send(post()).await;
            let text = format!(r#"{{"model":"{model}","messages":[]}}"#);
            exchange.send(body(text, true)).await;
            assert_eq!(
                placed(&mut exchange).await,
                server.address.to_string(),
                "{model}"
            );
        }
    }
    assert_nothing_left(&front).await;
    // The family goes: one line, and the next pages say nothing more of it.
    warm.set_page(Reply::page(IDLE));
    let words = || {
        let words = front.process.words();
        let of =
            |word: &String| word.contains("adapters") && word.contains(&warm.address.to_string());
        words.into_iter().filter(of).count()
    };
    eventually("a word about it", || async { (words() == 2).then_some(()) }).await;
    wait_scrapes(&front, &warm, 5).await;
    assert_eq!(words(), 2, "{:?}", front.process.words());
}

/// C12: what a page says of KV usage, and what of it is taken.
#[tokio::test(flavor = "multi_thread")]
async fn kv_usage_by_every_name_and_value() {
    let others = "vllm:num_requests_running 1\n";
    let old = "vllm:gpu_cache_usage_perc{model_name=\"m\"} 0.4\n";
    let new = "vllm:kv_cache_usage_perc{model_name=\"m\"} 0.9\n";
    let with =
        |value: &str| format!("{others}vllm:kv_cache_usage_perc{{model_name=\"m\"}} {value}\n");
    let cases = [
        (old.to_owned(), Some(0.4)),
        (format!("{old}{new}"), Some(0.9)),
        (with("0.0"), Some(0.0)),
        (with("NaN"), None),
        (with("+Inf"), None),
        (with("-1"), None),
        (with("1.5"), None),
        (format!("{others}vllm:num_requests_wai"), None),
        (format!("{new}# EOF"), Some(0.9)),
        (format!("{new}# EOF\n"), Some(0.9)),
    ];
    let mut servers = Vec::new();
    for (page, _) in &cases {
        servers.push(Scripted::with_page(page).await);
    }
    let sglang = Scripted::with_page("sglang:token_usage{model_name=\"m\"} 0.7\n").await;
    let mut all: Vec<_> = servers.iter().map(|server| (server.address, "")).collect();
    all.push((sglang.address, ", engine: sglang"));
    let (front, _) = picker(&format!("  {}", listed(&all)), OFTEN).await;
    for server in servers.iter().chain([&sglang]) {
        wait_scrapes(&front, server, 3).await;
    }
    let rows = front.view("/debug/endpoints").await;
    let pages = cases.iter().map(|(page, kv)| (page.as_str(), *kv));
    let expected = pages.chain([("sglang", Some(0.7))]);
    for ((page, kv), (address, _)) in expected.zip(&all) {
        let rows = rows["main"].as_array().unwrap();
        let row = rows
            .iter()
            .find(|row| row["address"] == address.to_string());
        let row = row.unwrap();
        assert_eq!(row["kv_usage"]["value"].as_f64(), kv, "{page}");
        assert_eq!(row["scrape_failures"], 0, "{page}");
        let metric = front
            .metric(&["endpoint_kv_usage_ratio", &address.to_string()])
            .await;
        assert_eq!(metric, kv.unwrap_or(0.0), "{page}");
        // What is missing is seen to be missing: a condition of its own, while the rest goes on.
        let without = front
            .metric(&[
                "endpoint_scrapes_without_signal",
                &address.to_string(),
                "kv_usage",
            ])
            .await;
        assert_eq!(without >= 3.0, kv.is_none(), "{page}: {without}");
        let said = || {
            front.process.words().iter().any(|word| {
                word.contains("scrapes do not bring a signal")
                    && word.contains("kv_usage")
                    && word.contains(&address.to_string())
            })
        };
        if kv.is_none() {
            eventually("a word about it", || async { said().then_some(()) }).await;
        }
        assert_eq!(said(), kv.is_none(), "{page}");
    }
}

/// C12: an engine whose upgrade renames its cache signal: seen, counted, and over when it comes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_that_goes_is_seen_to_go() {
    let engine = Scripted::with_page(&page(0, 0, "0.3")).await;
    let pool = format!("  {}", listed(&[(engine.address, "")]));
    let telemetry = "telemetry: {interval: 20ms, timeout: 1s, staleness: 100ms}\n";
    let (front, _) = picker(&pool, telemetry).await;
    let ratio = async || {
        let page = front.metrics().await;
        page.contains("wicketgate_endpoint_kv_usage_ratio{")
    };
    eventually("the ratio", || async { ratio().await.then_some(()) }).await;
    engine.set_page(Reply::page(
        &page(0, 0, "0.3").replace("kv_cache_usage_perc", "kv_cache_use"),
    ));
    eventually("the signal's absence", || async {
        let without = ["endpoint_scrapes_without_signal", "signal=\"kv_usage\""];
        let gone = front.metric(&without).await >= 3.0;
        // The old value does not stay on the page as if it were new.
        (gone && !ratio().await).then_some(())
    })
    .await;
    assert_eq!(front.metric(&["endpoint_scrape_failures"]).await, 0.0);
    engine.set_page(Reply::page(&page(0, 0, "0.3")));
    eventually("the signal again", || async {
        let without = front.metric(&["endpoint_scrapes_without_signal"]).await;
        (without == 0.0 && ratio().await).then_some(())
    })
    .await;
}

/// C12: pages that cannot be read are failed scrapes, each with its reason; what was read before grows old.
#[tokio::test(flavor = "multi_thread")]
async fn unreadable_pages_are_failed_scrapes() {
    let text = |status, body: &str| Reply::new(status, "text/plain", body.to_owned());
    let mut gzip = text(200, "");
    gzip.headers.push(("content-encoding", "gzip".to_owned()));
    gzip.pieces = vec![Bytes::from_static(b"\x1f\x8b\x08\x00")];
    let mut long = text(200, "");
    let line = format!("vllm:x{{y=\"{}\"}} 1\n", "z".repeat(1000));
    long.pieces = vec![Bytes::from(line.repeat(1000)); 11];
    let cases = [
        (gzip, "encoded"),
        (long, "too_long"),
        (text(401, IDLE), "status"),
        (text(500, IDLE), "status"),
        (text(200, "<html>not found</html>\n"), "unrecognised"),
        (text(200, ""), "unrecognised"),
        (text(200, "vllm:num_requests_wai"), "unrecognised"),
        (text(200, "sglang:token_usage 0.1\n"), "unrecognised"),
    ];
    for (reply, reason) in cases {
        let engine = Scripted::start(reply, move |_| text(200, "{}")).await;
        let pool = format!("  {}", listed(&[(engine.address, "")]));
        let (front, proxy) = picker(&pool, OFTEN).await;
        let label = format!("result=\"{reason}\"");
        eventually(reason, || async {
            (front.metric(&["scrapes_total", &label]).await >= 3.0).then_some(())
        })
        .await;
        let all = front.metric(&["scrapes_total"]).await;
        assert!(
            front.metric(&["scrapes_total", &label]).await >= all,
            "{reason}"
        );
        let row = &front.view("/debug/endpoints").await["main"][0];
        assert!(row["scrape_failures"].as_u64() >= Some(3), "{row}");
        assert!(
            row["kv_usage"].is_null() && row["running"].is_null(),
            "{row}"
        );
        let said = || {
            let words = front.process.words();
            let of = |word: &&String| word.contains("scrape failed") && word.contains(reason);
            words.iter().filter(of).count()
        };
        eventually("a word about it", || async { (said() > 0).then_some(()) }).await;
        assert_eq!(said(), 1, "said once");
        // It is the only endpoint, so it is used all the same; and when its page is well, it is read.
        assert_eq!(pick(&proxy).await, engine.address.to_string());
        engine.set_page(Reply::page(IDLE));
        front.wait_scraped(1).await;
        assert_nothing_left(&front).await;
    }
}
