//! A replica that starts knows at once what another one has heard of engines, as far as it is still true.

use std::net::SocketAddr;

use bytes::Bytes;
use serde_json::{Value, json};
use wicketgate_sim::engine::{KvEventsConfig, KvShape};
use wicketgate_testkit::{
    PATIENCE, TempDir,
    certs::Authority,
    client::{Answer, call, chat_call, raw},
    cluster::{Command, Front, addresses, endpoint_lines, engines},
    eventually, free_address,
    scripted::{Reply, Scripted},
};

use crate::{
    prefix::{Engine, loopback},
    wicketgate,
};

const SNAPSHOT: &str = "/v1/index/snapshot";
const TOKEN: &str = "a-token-of-the-fleet";
const BEARER: (&str, &str) = ("authorization", "Bearer a-token-of-the-fleet");
const SEED: &str = "seed-of-the-fleet-by-chance";

/// An engine whose replay, if there is one, has forgotten the beginning: alone it warms nobody up.
async fn engine(replay: bool) -> Engine {
    Engine::publishing(loopback(), publisher(loopback(), replay.then(loopback))).await
}

fn publisher(events: SocketAddr, replay: Option<SocketAddr>) -> KvEventsConfig {
    KvEventsConfig {
        replay,
        shape: KvShape::Map,
        remembered: 4,
        ..KvEventsConfig::at(events, "kv@pod@m".to_owned())
    }
}

/// Another life on the same ports.
async fn restarted(engine: Engine) -> Engine {
    let api = engine.handle.address();
    let (events, replay) = (engine.publisher.events(), engine.publisher.replay());
    engine.handle.stop().await;
    engine.publisher.stop().await;
    Engine::publishing(api, publisher(events, replay)).await
}

/// How a replica differs from the others.
struct How<'a> {
    command: Command,
    seed: &'a str,
    /// More lines of `kvIndex`.
    index: String,
    /// More lines of `server`.
    server: String,
}

impl How<'_> {
    fn plain() -> How<'static> {
        How {
            command: Command::Serve,
            seed: SEED,
            index: String::new(),
            server: String::new(),
        }
    }

    fn warm(peers: &[String]) -> How<'static> {
        let peers: Vec<String> = peers.iter().map(|peer| format!("\"{peer}\"")).collect();
        How {
            index: format!("  warmFrom: {{peers: [{}]}}\n", peers.join(", ")),
            ..How::plain()
        }
    }
}

struct Replica {
    front: Front,
    management: SocketAddr,
    _files: TempDir,
}

impl Replica {
    async fn start(engines: &[Engine], how: How<'_>) -> Replica {
        Replica::start_at(free_address(), engines, how).await
    }

    async fn start_at(management: SocketAddr, engines: &[Engine], how: How<'_>) -> Replica {
        let files = TempDir::new();
        let seed = files.write("seed", how.seed).display().to_string();
        let token = files.write("token", TOKEN).display().to_string();
        let lines = (0..).zip(engines);
        let lines: String = lines
            .map(|(at, engine)| engine.line(&format!("e{at}")))
            .collect();
        let pool = format!("  models: [m, food]\n  default: true\n  endpoints:\n{lines}");
        let server = format!(
            "  managementPort: {}\n  managementTokenFile: \"{token}\"\n{}",
            management.port(),
            how.server
        );
        let extra = format!(
            "kvIndex:\n  approximate: false\n  events: {{mode: connect}}\n  seedFile: \"{seed}\"\n{}",
            how.index
        );
        let front = Front::start_with(wicketgate(), how.command, &pool, &server, &extra, &[]).await;
        Replica {
            front,
            management,
            _files: files,
        }
    }

    fn url(&self) -> String {
        format!("http://{}", self.management)
    }

    async fn ready(&self) {
        eventually("ready", || async {
            let page = call(self.front.admin, "GET", "/readyz", &[], "").await;
            (page.status == 200).then_some(())
        })
        .await;
    }

    /// Waits until it hears every engine.
    async fn hears(&self, engines: &[Engine]) {
        for (at, engine) in engines.iter().enumerate() {
            let frames = || async { self.source(at).await["frames"].as_u64().unwrap_or(0) };
            let before = frames().await;
            eventually("the first event", || async {
                say(engine, &fresh()).await;
                (frames().await > before).then_some(())
            })
            .await;
        }
    }

    async fn source(&self, at: usize) -> Value {
        let index = self.front.view("/debug/index").await;
        let name = format!("e{at}");
        let sources = index["sources"].as_array().unwrap();
        let found = sources.iter().find(|source| source["endpoint"] == *name);
        found.cloned().unwrap_or_default()
    }

    async fn caught_up(&self, engines: &[Engine]) {
        eventually("all events", || async {
            for (at, engine) in engines.iter().enumerate() {
                let source = self.source(at).await;
                let last = engine.publisher.published().checked_sub(1);
                if source["last"].as_u64() != last || source["waiting"] != 0 {
                    return None;
                }
            }
            Some(())
        })
        .await;
    }

    /// Who holds how much of each prompt.
    async fn lookups(&self, prompts: &[Vec<u32>]) -> Vec<Value> {
        let mut all = Vec::new();
        for prompt in prompts {
            let headers = [("content-type", "application/json")];
            let body = json!({"model": "m", "prompt": prompt}).to_string();
            let path = "/debug/index/lookup";
            let found = call(self.front.admin, "POST", path, &headers, body).await;
            all.push(found.json()["endpoints"].clone());
        }
        all
    }

    async fn snapshot(&self) -> Bytes {
        let answer = call(self.management, "GET", SNAPSHOT, &[BEARER], "").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body
    }

    async fn put(&self, snapshot: Bytes) -> Answer {
        call(self.management, "PUT", SNAPSHOT, &[BEARER], snapshot).await
    }

    async fn engines(&self, result: &str) -> f64 {
        let label = format!("result=\"{result}\"");
        self.front
            .metric(&["kvindex_snapshot_engines_total", &label])
            .await
    }

    async fn snapshots(&self, direction: &str, result: &str) -> f64 {
        let labels = format!("direction=\"{direction}\",result=\"{result}\"");
        self.front
            .metric(&["kvindex_snapshots_total", &labels])
            .await
    }
}

fn fresh() -> Vec<u32> {
    (0..17).map(|_| fastrand::u32(5000..90_000)).collect()
}

/// Prompts that begin alike and go apart.
fn prompts() -> Vec<Vec<u32>> {
    let branch = |number: u32| {
        (0..200 + 16 * number).map(move |at| match at < 100 {
            true => 5000 + at,
            false => 10_000 * (number + 1) + at,
        })
    };
    (0..6).map(|number| branch(number).collect()).collect()
}

/// Prompt tokens that the engine found cached.
async fn say(engine: &Engine, prompt: &[u32]) -> u64 {
    let body = json!({"model": "m", "prompt": prompt, "max_tokens": 1});
    let answer = engine.post("/v1/completions", &body).await;
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    cached.as_u64().unwrap()
}

/// Two engines that hold some of the prompts each, and a replica that has heard all of it.
async fn told(replay: bool) -> (Vec<Engine>, Replica, Vec<Vec<u32>>) {
    let engines = vec![engine(replay).await, engine(replay).await];
    let first = Replica::start(&engines, How::plain()).await;
    first.hears(&engines).await;
    let prompts = prompts();
    for (at, prompt) in prompts.iter().enumerate() {
        say(&engines[at % 2], prompt).await;
    }
    // So much that a replay does not reach back to them.
    for _ in 0..5 {
        for engine in &engines {
            say(engine, &fresh()).await;
        }
    }
    first.caught_up(&engines).await;
    let known = first.lookups(&prompts).await;
    let whole = |found: &Value| found.as_array().is_some_and(|all| !all.is_empty());
    assert!(known.iter().all(whole), "{known:?}");
    (engines, first, prompts)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_replica_starts_warm() {
    for (replay, command) in [
        (true, Command::Serve),
        (false, Command::Serve),
        (true, Command::Epp),
    ] {
        let (engines, first, prompts) = told(replay).await;
        let known = first.lookups(&prompts).await;
        // A peer that is not there, and ourselves, are passed over.
        let own = free_address();
        let peers = [
            format!("http://{}", free_address()),
            format!("http://{own}"),
            first.url(),
        ];
        let how = How {
            command,
            ..How::warm(&peers)
        };
        let second = Replica::start_at(own, &engines, how).await;
        second.ready().await;
        let words = second.front.process.words();
        assert_eq!(second.lookups(&prompts).await, known, "{words:?}");
        assert_eq!(second.engines("taken").await, 2.0);
        assert_eq!(second.snapshots("import", "unreached").await, 2.0);
        assert_eq!(first.snapshots("export", "ok").await, 1.0);
        // And it goes on from there.
        let mut later = prompts.clone();
        for (at, prompt) in later.iter_mut().enumerate() {
            prompt.extend((0..40).map(|at| 80_000 + at));
            say(&engines[(at + 1) % 2], prompt).await;
        }
        for replica in [&first, &second] {
            replica.caught_up(&engines).await;
            let counts = replica.source(0).await;
            assert_eq!(
                (
                    &counts["resets"],
                    &counts["restarts"],
                    &counts["mismatched"]
                ),
                (&json!(0), &json!(0), &json!(0)),
                "{counts}"
            );
        }
        assert_eq!(
            second.lookups(&later).await,
            first.lookups(&later).await,
            "{command:?}, replay {replay}"
        );
    }
}

/// What an engine held in a life that is over counts nowhere, however the snapshot comes and whatever the engine has said
/// since.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_was_restarted_gets_no_stale_credit() {
    for replay in [true, false] {
        for since in [0, 3, 40] {
            let (mut engines, first, prompts) = told(replay).await;
            let old = first.snapshot().await;
            let engine = restarted(engines.remove(0)).await;
            engines.insert(0, engine);
            for _ in 0..since {
                say(&engines[0], &fresh()).await;
            }
            let gone: Vec<Vec<u32>> = prompts.iter().step_by(2).cloned().collect();
            let nobody = |found: &Value| {
                let held = found.as_array().unwrap().iter();
                held.filter(|holder| holder["endpoint"] == "e0").count() == 0
            };
            // A peer that knows no better serves what was true once.
            let bytes = old.clone();
            let reply = move |_| Reply::new(200, "application/octet-stream", bytes.clone());
            let peer = Scripted::start(Reply::page(""), reply).await;
            let peers = [format!("http://{}", peer.address)];
            let second = Replica::start(&engines, How::warm(&peers)).await;
            second.ready().await;
            assert_eq!(peer.requests(), 1);
            let taken = match replay {
                true => [("other_life", 1.0), ("taken", 1.0)],
                // It does not answer what was asked just now, so its word counts for nothing.
                false => [("unsure", 2.0), ("taken", 0.0)],
            };
            for (result, count) in taken {
                assert_eq!(second.engines(result).await, count, "{result}");
            }
            let found = second.lookups(&gone).await;
            assert!(found.iter().all(nobody), "{since}: {found:?}");
            // As an operator's push it is taken no better.
            let third = Replica::start(&engines, How::plain()).await;
            third.ready().await;
            if replay {
                third.caught_up(&engines).await;
            }
            let answer = third.put(old).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            let results: Vec<Value> = answer.json()["engines"]
                .as_array()
                .unwrap()
                .iter()
                .map(|line| line["result"].clone())
                .collect();
            let restarted = match (replay, since) {
                (false, _) => "unsure",
                // All of the new life was repeated already.
                (true, 3) => "known",
                (true, _) => "other_life",
            };
            assert_eq!(results[0], restarted, "{since}: {answer:?}");
            let found = third.lookups(&gone).await;
            assert!(found.iter().all(nobody), "{since}: {found:?}");
            // Once the engine has spoken, nothing of its old life is left anywhere.
            for replica in [&second, &third] {
                replica.hears(&engines).await;
                let found = replica.lookups(&gone).await;
                assert!(found.iter().all(nobody), "{replay}, {since}: {found:?}");
            }
        }
    }
}

/// An operator's push into a replica that knows less, and the answer says what became of each engine.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_pushed_at_run_time() {
    let (engines, first, prompts) = told(true).await;
    let known = first.lookups(&prompts).await;
    let second = Replica::start(&engines, How::plain()).await;
    second.ready().await;
    second.caught_up(&engines).await;
    assert_ne!(second.lookups(&prompts).await, known);
    let answer = second.put(first.snapshot().await).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.json()["taken"]),
        (200, &json!(2))
    );
    assert_eq!(second.lookups(&prompts).await, known);
    let again = second.put(first.snapshot().await).await.json();
    assert_eq!(
        (&again["taken"], &again["engines"][0]["result"]),
        (&json!(0), &json!("known")),
        "{again}"
    );
    // Of another fleet's engines nothing is taken.
    let other = [engine(true).await];
    let stranger = Replica::start(&other, How::plain()).await;
    stranger.ready().await;
    let answer = stranger.put(first.snapshot().await).await.json();
    assert_eq!(answer["engines"][1]["result"], "absent", "{answer}");
    assert_eq!(stranger.engines("absent").await, 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_is_none_changes_nothing() {
    let (engines, first, prompts) = told(true).await;
    let good = first.snapshot().await;
    let known = first.lookups(&prompts).await;
    let refuse = |answer: &Answer, status: u16, code: &str, words: &str| {
        let body = answer.json();
        assert_eq!(
            (answer.status.as_u16(), &body["error"]["code"]),
            (status, &json!(code)),
            "{body}"
        );
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
    };
    let changed = |at: usize| {
        let mut bytes = good.to_vec();
        bytes[at] ^= 1;
        Bytes::from(bytes)
    };
    for (bytes, code, words) in [
        (Bytes::new(), "no_snapshot", "no snapshot"),
        (Bytes::from_static(b"{}"), "no_snapshot", "no snapshot"),
        (good.slice(..good.len() - 1), "damaged", "at byte"),
        (changed(8), "other_version", "one version"),
        (changed(good.len() / 2), "damaged", "at byte"),
        (changed(good.len() - 1), "damaged", "at byte"),
    ] {
        refuse(&first.put(bytes).await, 422, code, words);
    }
    assert_eq!(first.snapshots("import", "refused").await, 6.0);
    assert_eq!(first.lookups(&prompts).await, known);

    let how = |seed, index: &str| How {
        seed,
        index: index.to_owned(),
        ..How::plain()
    };
    let replica = Replica::start(&engines, how("another-seed-by-chance", "")).await;
    let answer = replica.put(good.clone()).await;
    refuse(&answer, 422, "other_seed", "kvIndex.seed");
    let replica = Replica::start(&engines, how(SEED, "  blockSize: 32\n")).await;
    let answer = replica.put(good.clone()).await;
    refuse(&answer, 422, "other_block_size", "kvIndex.blockSize");
    let replica = Replica::start(&engines, how(SEED, "  maxSnapshotBytes: 1Ki\n")).await;
    let answer = replica.put(good.clone()).await;
    refuse(&answer, 413, "too_large", "kvIndex.maxSnapshotBytes");
    assert_eq!(replica.snapshots("import", "cut").await, 1.0);
    // Nor does a replica start from one; it is ready all the same.
    let how = How {
        seed: "another-seed-by-chance",
        ..How::warm(&[first.url()])
    };
    let cold = Replica::start(&engines, how).await;
    cold.ready().await;
    assert_eq!(cold.snapshots("import", "refused").await, 1.0);

    // Who may, and what there is.
    let path = |method, path, headers| call(first.management, method, path, headers, "");
    let wrong = [("authorization", "Bearer a-token-of-the-flees")];
    for headers in [&[][..], &wrong] {
        let answer = path("GET", SNAPSHOT, headers).await;
        refuse(&answer, 401, "unauthorized", "server.managementToken");
        assert_eq!(answer.header("www-authenticate"), "Bearer");
    }
    refuse(
        &path("GET", "/", &[BEARER]).await,
        404,
        "no_such_path",
        SNAPSHOT,
    );
    let answer = path("DELETE", SNAPSHOT, &[BEARER]).await;
    refuse(&answer, 405, "method_not_allowed", "PUT");
    // The metrics port has none of it.
    let answer = call(first.front.admin, "GET", SNAPSHOT, &[BEARER], "").await;
    assert_eq!(answer.status, 404);
}

/// Without a token the loopback is open to operators, and not to pages in their browsers; without an index there is none.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_token_no_page_of_a_browser_gets_in() {
    let management = free_address();
    let server = format!("  managementPort: {}\n", management.port());
    let front = Front::start_with(
        wicketgate(),
        Command::Serve,
        "  endpoints: []\n",
        &server,
        "kvIndex: {enabled: false}\n",
        &[],
    )
    .await;
    for (host, origin, status, code) in [
        ("127.0.0.1", "", "404", "no_index"),
        ("evil.example", "", "403", "forbidden"),
        (
            "127.0.0.1",
            "Origin: http://evil.example\r\n",
            "403",
            "forbidden",
        ),
    ] {
        let request = format!(
            "POST {SNAPSHOT} HTTP/1.1\r\nHost: {host}\r\n{origin}Connection: close\r\nContent-Length: 1\r\n\r\nx"
        );
        eventually("the management port", || async {
            tokio::net::TcpStream::connect(management).await.ok()
        })
        .await;
        let answer = raw(management, request.as_bytes(), PATIENCE).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(code),
            "{answer}"
        );
    }
    drop(front);
}

/// Endpoints come and go by hand, with the checks of an endpoints file, and stay so over a reload.
#[tokio::test(flavor = "multi_thread")]
async fn endpoints_are_managed_at_run_time() {
    let engines = engines(2).await;
    let at = addresses(&engines);
    let management = free_address();
    let server = format!("  managementPort: {}\n", management.port());
    let pool = endpoint_lines(&at[..1]);
    let front = Front::start_with(wicketgate(), Command::Serve, &pool, &server, "", &[]).await;
    let ask = async |method: &str, path: &str, body: String| {
        let host = management.to_string();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        eventually("the management port", || async {
            tokio::net::TcpStream::connect(management).await.ok()
        })
        .await;
        let answer = raw(management, request.as_bytes(), PATIENCE).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"));
        (head[9..12].to_owned(), body)
    };
    let names = async || {
        let (_, listed) = ask("GET", "/v1/endpoints", String::new()).await;
        let all = listed["pools"]["main"].as_array().unwrap().iter();
        all.map(|entry| {
            (
                entry["name"].as_str().unwrap().to_owned(),
                entry["added"] == true,
            )
        })
        .collect::<Vec<_>>()
    };
    let first = (at[0].to_string(), false);
    assert_eq!(names().await, std::slice::from_ref(&first));
    let second = json!({"name": "second", "address": at[1].to_string(), "labels": {"zone": "b"}});
    let (status, added) = ask("POST", "/v1/endpoints", second.to_string()).await;
    assert_eq!(
        (status.as_str(), &added["labels"]["zone"]),
        ("201", &json!("b")),
        "{added}"
    );
    assert_eq!(names().await, [first.clone(), ("second".to_owned(), true)]);
    for (body, status, code, words) in [
        (second.to_string(), "409", "endpoint_exists", "second"),
        (
            json!({"address": "nowhere"}).to_string(),
            "400",
            "invalid_body",
            "port is missing",
        ),
        (
            json!({"adress": "a:1"}).to_string(),
            "400",
            "invalid_body",
            "adress",
        ),
        ("[]".to_owned(), "400", "invalid_body", "JSON"),
        (
            json!({"pool": "x", "address": "a:1"}).to_string(),
            "404",
            "no_such_pool",
            "main",
        ),
        ("x".repeat(65 << 10), "413", "too_large", "bytes"),
    ] {
        let (said, answer) = ask("POST", "/v1/endpoints", body).await;
        let error = &answer["error"];
        let message = error["message"].as_str().unwrap();
        assert_eq!(
            (said.as_str(), &error["code"]),
            (status, &json!(code)),
            "{answer}"
        );
        assert!(message.contains(words), "{message}");
    }
    front.wait_scraped(2).await;
    // The first one goes: everything goes to the second, over a reload too.
    let path = format!("/v1/endpoints/{}?pool=main", at[0]);
    assert_eq!(ask("DELETE", &path, String::new()).await.0, "200");
    assert_eq!(
        ask("DELETE", &path, String::new()).await.1["error"]["code"],
        "no_such_endpoint"
    );
    let text = std::fs::read_to_string(&front.config).unwrap();
    std::fs::write(
        &front.config,
        format!("{text}observability: {{accessLog: true}}\n"),
    )
    .unwrap();
    eventually("the reload", || async {
        let config = call(front.admin, "GET", "/debug/config", &[], "").await;
        let config = String::from_utf8_lossy(&config.body).into_owned();
        config.contains("accessLog: true").then_some(())
    })
    .await;
    assert_eq!(names().await, [("second".to_owned(), true)]);
    let before = engines[1].stats().ok;
    for _ in 0..4 {
        assert_eq!(chat_call(front.data, &[]).await.status, 200);
    }
    assert_eq!(
        (engines[1].stats().ok - before, engines[0].stats().ok),
        (4, 0)
    );
    assert_eq!(
        ask("DELETE", "/v1/endpoints/second", String::new()).await.0,
        "200"
    );
    assert_eq!(names().await, []);
    front.assert_guards_at_zero().await;
}

/// Replicas that know each other by their certificates.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_may_speak_tls() {
    let authority = Authority::new("fleet");
    let pair = authority.issue(&["127.0.0.1"]);
    let dir = TempDir::new();
    let file = |name: &str, text: &str| dir.write(name, text).display().to_string();
    let files = [
        file("cert", &pair.certificate),
        file("key", &pair.key),
        file("ca", &authority.certificate),
    ];
    let server = format!(
        "  managementTls: {{certFile: \"{}\", keyFile: \"{}\", clientCaFile: \"{}\"}}\n",
        files[0], files[1], files[2]
    );
    let engines = [engine(true).await];
    let how = How {
        server: server.clone(),
        ..How::plain()
    };
    let first = Replica::start(&engines, how).await;
    first.hears(&engines).await;
    let prompts = prompts();
    say(&engines[0], &prompts[0]).await;
    first.caught_up(&engines).await;
    let how = How {
        server,
        ..How::warm(&[first.url().replace("http://", "https://")])
    };
    let second = Replica::start(&engines, how).await;
    second.ready().await;
    assert_eq!(second.engines("taken").await, 1.0);
    assert_eq!(
        second.lookups(&prompts[..1]).await,
        first.lookups(&prompts[..1]).await
    );
    // Without a certificate nobody gets that far.
    let plain = Replica::start(&engines, How::warm(&[first.url()])).await;
    plain.ready().await;
    assert_eq!(plain.snapshots("import", "unreached").await, 1.0);
}
