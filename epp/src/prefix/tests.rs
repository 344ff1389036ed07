//! What a request's prompt comes to, and what keeps an index from starting.

use std::{net::TcpListener, sync::Arc, time::Duration};

use bytes::Bytes;
use wicketgate_pool::scheduler::{Incarnation, PrefixView, RequestView};
use wicketgate_wire::{EngineKind, MetricsSample, RankSample, scan_request};

use super::*;

pub(super) fn spec() -> PrefixSpec {
    PrefixSpec {
        block_size: 16,
        max_bytes: 1 << 30,
        prediction_ttl: Duration::from_secs(5),
        approximate: Some(Approximate {
            ttl: Duration::from_secs(60),
            blocks: 8,
        }),
        tokenizers: Vec::new(),
        tokenizer_memory: 1 << 20,
        long_body: 1 << 10,
        events: EventsFrom::Off,
        topic: String::new(),
        hash_check: None,
        seed: 7,
        check: CheckSpec::default(),
        reach: Reach::default(),
    }
}

/// One token for each byte of the body.
struct Bytewise;

impl Tokens for Bytewise {
    fn tokens(&self, _: Api, body: &[u8]) -> Result<Vec<u32>, TokensError> {
        Ok(body.iter().map(|byte| u32::from(*byte)).collect())
    }

    fn tokens_before_media(&self, _: Api, body: &[u8]) -> Result<Vec<u32>, TokensError> {
        let text = String::from_utf8_lossy(body);
        let (before, _) = text.split_once("{\"type\":\"image_url\"").unwrap();
        Ok(before.bytes().map(u32::from).collect())
    }
}

fn bytewise() -> PrefixSpec {
    PrefixSpec {
        tokenizers: vec![TokenizerSpec {
            model: "m".into(),
            aliases: vec!["latest".to_owned()],
            adapters: vec!["food".to_owned()],
            source: TokenizerSource::Ready(Arc::new(Bytewise)),
        }],
        ..spec()
    }
}

fn start(spec: PrefixSpec) -> Arc<Prefixes> {
    Prefixes::start(Clock::start(), spec).unwrap()
}

fn content(api: Api, body: &str) -> Content {
    let facts = scan_request(api, body.as_bytes()).unwrap();
    crate::exchange::content(&facts, Bytes::copy_from_slice(body.as_bytes()))
}

fn read(prefixes: &Prefixes, api: Api, model: &str, body: &str) -> (How, Prompted) {
    prefixes.read(api, model, &content(api, body))
}

fn ids(count: u32) -> String {
    let ids: Vec<String> = (0..count).map(|id| id.to_string()).collect();
    format!(r#"{{"prompt":[{}]}}"#, ids.join(","))
}

fn join(prefixes: &Arc<Prefixes>, id: u64) -> Life {
    prefixes.join(LifeSpec {
        id: Incarnation(id),
        pool: "main".into(),
        models: Vec::new().into(),
        name: format!("e{id}").into(),
        address: "127.0.0.1:9".into(),
        engine: EngineKind::Vllm,
        labels: Default::default(),
    })
}

fn view(id: u64, keys: &[u64], tokens: u64) -> RequestView<'_> {
    RequestView {
        id,
        model: "m",
        prompt_tokens: tokens,
        output_tokens: 1,
        session: None,
        session_hash: None,
        subset: None,
        priority: 0,
        headers: &[],
        keys,
    }
}

#[tokio::test]
async fn every_prompt_comes_to_something() {
    let prefixes = start(bytewise());
    let long = "x".repeat(64);
    let text = format!(r#"{{"prompt":"{long}"}}"#);
    let chat = format!(r#"{{"messages":[{{"role":"user","content":"{long}"}}]}}"#);
    let image = r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}]}"#;
    let two = r#"{"prompt":["a","b"]}"#;
    let cut = r#"{"prompt":[1,2,3],"truncate_prompt_tokens":2}"#;
    let negative = r#"{"prompt":[1,-2,3]}"#;
    let (chats, completions) = (Api::ChatCompletions, Api::Completions);
    for (api, model, body, how) in [
        (completions, "m", text.as_str(), How::Tokenized),
        (chats, "latest", &chat, How::Tokenized),
        (chats, "", &chat, How::Tokenized),
        (completions, "anything", &ids(3), How::Ids),
        (chats, "other", &chat, How::Text),
        (chats, "m", image, How::BeforeMedia),
        (completions, "m", two, How::Unsupported),
        (completions, "m", cut, How::Unsupported),
        (completions, "m", negative, How::Failed),
        (Api::Embeddings, "m", r#"{"input":"a"}"#, How::None),
    ] {
        assert_eq!(read(&prefixes, api, model, body).0, how, "{body}");
    }
    let exact = PrefixSpec {
        approximate: None,
        ..bytewise()
    };
    let (how, prompted) = read(&start(exact), chats, "other", &chat);
    assert_eq!((how, prompted), (How::Unknown, Prompted::default()));
}

#[tokio::test]
async fn keys_tell_models_adapters_and_domains_apart() {
    let prefixes = start(bytewise());
    let body = ids(49);
    let of = |model: &str, body: &str| {
        let (_, prompted) = read(&prefixes, Api::Completions, model, body);
        assert_eq!(prompted.tokens, Some(49));
        assert_eq!(prompted.keys.len(), 3);
        prompted.keys
    };
    let salted = body.replace("]}", r#"],"cache_salt":"s"}"#);
    assert_eq!(of("m", &body), of("latest", &body));
    assert_eq!(of("m", &body), of("", &body));
    for other in [of("food", &body), of("unknown", &body), of("m", &salted)] {
        assert_ne!(of("m", &body)[0], other[0]);
    }
    // The last token is computed anew.
    let (_, prompted) = read(&prefixes, Api::Completions, "m", &ids(48));
    assert_eq!(prompted.keys.len(), 2);
}

/// A prompt with an image has the keys of all whole blocks before it, and no others.
#[tokio::test]
async fn keys_end_before_the_first_medium() {
    let prefixes = start(bytewise());
    let body = |before: usize, after: &str| {
        let text = "x".repeat(before);
        format!(
            r#"{{"messages":[{{"role":"user","content":[{{"type":"text","text":"{text}"}},{{"type":"image_url","image_url":{{"url":"u"}}}},{{"type":"text","text":"{after}"}}]}}]}}"#
        )
    };
    let read = |body: &str| read(&prefixes, Api::ChatCompletions, "m", body);
    for before in 0..50 {
        let body = body(before, "after");
        let at = body.find(r#"{"type":"image_url""#).unwrap();
        let (how, prompted) = read(&body);
        assert_eq!((how, prompted.tokens), (How::BeforeMedia, None));
        assert_eq!(prompted.keys.len(), at / 16, "{before}");
    }
    let (one, two) = (read(&body(40, "one")).1, read(&body(40, "two, longer")).1);
    assert_eq!(one.keys, two.keys);
    // The same beginning without an image has the same keys as far as both have some.
    let plain = body(40, "").replace(r#"{"type":"image_url","image_url":{"url":"u"}},"#, "");
    let (how, plain) = read(&plain);
    assert_eq!(how, How::Tokenized);
    assert_eq!(one.keys[..], plain.keys[..one.keys.len()]);
}

#[tokio::test]
async fn a_pick_is_known_at_once_and_goes_with_its_endpoint() {
    let prefixes = start(spec());
    let (one, two) = (join(&prefixes, 1), join(&prefixes, 2));
    let live = LiveView::new(Arc::clone(&prefixes));
    let (_, prompted) = read(&prefixes, Api::Completions, "m", &ids(101));
    let keys = &prompted.keys;
    assert!(!live.look(&view(1, keys, 101)));
    live.picked(&view(1, keys, 101), Incarnation(2));
    let cached = |id: u64, keys: &[u64]| {
        live.look(&view(id, keys, 101));
        [1, 2].map(|at| live.cached_tokens(&view(id, keys, 101), Incarnation(at)))
    };
    assert_eq!(cached(2, keys), [0, 96]);
    assert_eq!(cached(3, &keys[..2]), [0, 32]);
    // Room for eight blocks: the older pick gives way, from its end on.
    let (_, other) = read(&prefixes, Api::Completions, "other", &ids(101));
    live.picked(&view(4, &other.keys, 101), Incarnation(2));
    assert_eq!(cached(5, &other.keys), [0, 96]);
    assert_eq!(cached(6, keys), [0, 32]);
    assert_eq!(prefixes.counts().tokens(), (202, 0));
    drop(two);
    assert_eq!(cached(7, &other.keys), [0, 0]);
    live.picked(&view(8, keys, 101), Incarnation(2));
    assert_eq!(cached(9, keys), [0, 0], "nobody is there");
    assert_eq!(prefixes.lives(), (0, 1));
    drop(one);
    assert_eq!((prefixes.lives(), prefixes.stats().endpoints), ((0, 0), 0));
}

/// C35: of a prompt that is longer than a cache the head counts, not nothing.
#[tokio::test]
async fn a_prompt_of_six_blocks_in_a_cache_of_four_counts_for_four() {
    let prefixes = start(PrefixSpec {
        approximate: Some(Approximate {
            ttl: Duration::from_secs(60),
            blocks: 4,
        }),
        ..spec()
    });
    let _life = join(&prefixes, 1);
    let live = LiveView::new(Arc::clone(&prefixes));
    let (_, prompted) = read(&prefixes, Api::Completions, "m", &ids(97));
    assert_eq!(prompted.keys.len(), 6);
    live.picked(&view(1, &prompted.keys, 97), Incarnation(1));
    live.look(&view(2, &prompted.keys, 97));
    assert_eq!(
        live.cached_tokens(&view(2, &prompted.keys, 97), Incarnation(1)),
        64
    );
}

/// C32: an engine that goes to sleep has lost its cache, whether it says so or not; what it caches later counts again.
#[tokio::test]
async fn sleep_purges_and_only_once() {
    let prefixes = start(spec());
    let (_one, _two) = (join(&prefixes, 1), join(&prefixes, 2));
    let live = LiveView::new(Arc::clone(&prefixes));
    let (_, prompted) = read(&prefixes, Api::Completions, "m", &ids(49));
    let scrape = |sleeping: Option<bool>| {
        let mut rank = RankSample::default();
        rank.sleeping = sleeping;
        let mut sample = MetricsSample::default();
        sample.ranks.push(rank);
        prefixes.scraped(Incarnation(1), &sample);
    };
    let pick = |id| {
        for at in [1, 2] {
            live.picked(&view(id, &prompted.keys, 49), Incarnation(at));
        }
    };
    let cached = |id| {
        live.look(&view(id, &prompted.keys, 49));
        [1, 2].map(|at| live.cached_tokens(&view(id, &prompted.keys, 49), Incarnation(at)))
    };
    pick(1);
    for state in [None, Some(false)] {
        scrape(state);
        assert_eq!(cached(2), [48, 48]);
    }
    scrape(Some(true));
    assert_eq!(cached(3), [0, 48]);
    // It wakes up for this one before the next scrape.
    pick(4);
    scrape(Some(true));
    assert_eq!(cached(5), [48, 48]);
    scrape(Some(false));
    scrape(Some(true));
    assert_eq!(cached(6), [0, 48]);
}

/// A text has more pieces than its tokens are thought to be: they are no more than the prompt, and never all of it.
#[tokio::test]
async fn credit_for_a_text_leaves_something_to_compute() {
    let prefixes = start(spec());
    let _life = join(&prefixes, 1);
    let live = LiveView::new(Arc::clone(&prefixes));
    let keys: Vec<u64> = (0..6).collect();
    live.picked(&view(1, &keys, 70), Incarnation(1));
    live.look(&view(2, &keys, 70));
    // 6 of 7 blocks of 16 for 70 tokens.
    assert_eq!(live.cached_tokens(&view(2, &keys, 70), Incarnation(1)), 60);
    live.look(&view(3, &keys[..3], 70));
    assert_eq!(live.cached_tokens(&view(3, &keys, 70), Incarnation(1)), 48);
}

/// Answers are of the moment of the question, whatever happens meanwhile.
#[tokio::test]
async fn answers_do_not_change_between_questions() {
    let prefixes = start(spec());
    let life = join(&prefixes, 1);
    let (live, other) = (
        LiveView::new(Arc::clone(&prefixes)),
        LiveView::new(Arc::clone(&prefixes)),
    );
    let (_, prompted) = read(&prefixes, Api::Completions, "m", &ids(33));
    let asked = view(1, &prompted.keys, 33);
    live.look(&asked);
    other.picked(&view(2, &prompted.keys, 33), Incarnation(1));
    assert_eq!(live.cached_tokens(&asked, Incarnation(1)), 0);
    assert!(live.look(&asked));
    assert_eq!(live.cached_tokens(&asked, Incarnation(1)), 32);
    drop(life);
}

/// Another process than before has nothing of what was promised to the old one, and nothing of what that one said.
#[tokio::test]
async fn a_new_process_holds_nothing() {
    let prefixes = start(spec());
    let _life = join(&prefixes, 1);
    let live = LiveView::new(Arc::clone(&prefixes));
    let (_, prompted) = read(&prefixes, Api::Completions, "m", &ids(101));
    let mut id = 0;
    let mut cached = |started: Option<f64>| {
        let sample = MetricsSample {
            started,
            ..MetricsSample::default()
        };
        prefixes.scraped(Incarnation(1), &sample);
        id += 1;
        let asked = view(id, &prompted.keys, 101);
        live.look(&asked);
        let cached = live.cached_tokens(&asked, Incarnation(1));
        live.picked(&asked, Incarnation(1));
        cached
    };
    assert_eq!(
        [None, Some(100.0)].map(&mut cached),
        [0, 96],
        "it is known for the first time"
    );
    assert_eq!(
        [Some(100.0), None, Some(100.0)].map(&mut cached),
        [96, 96, 96]
    );
    assert_eq!([Some(200.0), Some(200.0)].map(&mut cached), [0, 96]);
}

/// An engine whose publisher a test moves.
struct Moving {
    api: std::net::SocketAddr,
    publisher: Arc<Mutex<std::net::SocketAddr>>,
}

impl Moving {
    async fn start(publisher: std::net::SocketAddr) -> Moving {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = listener.local_addr().unwrap();
        let publisher = Arc::new(Mutex::new(publisher));
        let shared = Arc::clone(&publisher);
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _ = stream.read(&mut [0; 4096]).await;
                let at = *shared.lock();
                let body = format!(
                    r#"{{"0":{{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://{at}"}}}}"#
                );
                let length = body.len();
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}");
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        Moving { api, publisher }
    }
}

/// A publisher that says nothing; its drop closes its port and its connections.
struct Silent {
    at: std::net::SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Silent {
    async fn start() -> Silent {
        use wicketgate_zmtp::{Limits, Role, handshake};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(async move {
                    let (read, write) = stream.into_split();
                    let greeted = handshake(read, write, Role::Pub, Limits::default()).await;
                    if let Ok((mut reader, _writer)) = greeted {
                        while let Ok(Some(_)) = reader.recv().await {}
                    }
                });
            }
        });
        Silent { at, task }
    }
}

/// Field case: `tcp://*:0` gives an engine another port after each start.
#[tokio::test]
async fn an_engine_that_publishes_elsewhere_after_a_restart_is_found() {
    let first = Silent::start().await;
    let engine = Moving::start(first.at).await;
    let prefixes = start(PrefixSpec {
        events: EventsFrom::Discover,
        ..bytewise()
    });
    let life = prefixes.join(LifeSpec {
        id: Incarnation(1),
        pool: "main".into(),
        models: Vec::new().into(),
        name: "e1".into(),
        address: engine.api.to_string().into(),
        engine: EngineKind::Vllm,
        labels: Default::default(),
    });
    let until_connected = async |connected: bool| {
        while prefixes.intake.sources().iter().any(|it| it.connected) != connected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    until_connected(true).await;
    drop(first);
    until_connected(false).await;
    let second = Silent::start().await;
    *engine.publisher.lock() = second.at;
    until_connected(true).await;
    assert_eq!(prefixes.stats().endpoints, 1);
    drop(life);
    assert_eq!(
        (prefixes.sources().len(), prefixes.stats().endpoints),
        (0, 0)
    );
}

#[tokio::test]
async fn what_keeps_it_from_starting_is_said() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = PrefixSpec {
        events: EventsFrom::Listen(taken.local_addr().unwrap()),
        ..spec()
    };
    let mut missing = bytewise();
    missing.tokenizers[0].source = TokenizerSource::Folder("/does/not/exist".into());
    for (spec, says) in [
        (listen, "KV events: "),
        (
            missing,
            "tokenizer of m: /does/not/exist/tokenizer.json: entity not found",
        ),
    ] {
        let error = Prefixes::start(Clock::start(), spec);
        let error = error.err().unwrap().to_string();
        assert!(error.starts_with(says), "{error}");
    }
}
