//! Comparisons with an engine that a test holds in its hands, and who makes tokens after them.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::atomic::{AtomicU16, AtomicU32},
};

use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use wicketgate_pool::scheduler::Incarnation;
use wicketgate_wire::{EngineKind, MetricsSample, scan_request};

use super::*;
use crate::{
    clock::Clock,
    prefix::{Life, PrefixSpec, TokenizerSource, TokenizerSpec, Tokens, tests::spec},
};

/// A token for each byte of the texts.
fn bytes_of(body: &[u8]) -> Vec<u32> {
    let body: Value = serde_json::from_slice(body).unwrap();
    let mut text = String::new();
    if let Some(messages) = body["messages"].as_array() {
        for message in messages {
            text += message["role"].as_str().unwrap();
            text += message["content"].as_str().unwrap();
        }
    } else {
        text += body["prompt"].as_str().unwrap();
    }
    text.bytes().map(u32::from).collect()
}

struct Bytewise;

impl Tokens for Bytewise {
    fn tokens(&self, _: Api, body: &[u8]) -> Result<Vec<u32>, TokensError> {
        Ok(bytes_of(body))
    }
}

/// What an engine answers, and what it was asked.
#[derive(Default)]
struct Script {
    skew: AtomicU32,
    /// 0 for an answer.
    status: AtomicU16,
    asked: Mutex<Vec<(String, Value)>>,
}

impl Script {
    fn skew(&self, by: u32) {
        self.skew.store(by, Ordering::SeqCst);
    }

    fn status(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    fn asked(&self) -> usize {
        self.asked.lock().len()
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let skew = self.skew.load(Ordering::SeqCst);
        let tokens: Vec<u32> = bytes_of(&body).iter().map(|token| token + skew).collect();
        let asked = serde_json::from_slice(&body).unwrap();
        self.asked.lock().push((path.clone(), asked));
        let answer = match path.as_str() {
            "/tokenize" => json!({"tokens": tokens, "count": tokens.len()}),
            // A picture of twenty tokens at the end.
            _ => {
                let places = json!([{"offset": tokens.len(), "length": 20}]);
                let all = [tokens, vec![7; 20]].concat();
                json!({"token_ids": all, "features": {
                    "mm_hashes": {"image": ["cat"]}, "mm_placeholders": {"image": places},
                }})
            }
        };
        let status = self.status.load(Ordering::SeqCst);
        Response::builder()
            .status(if status == 0 { 200 } else { status })
            .body(Full::new(answer.to_string().into()))
            .unwrap()
    }
}

async fn engine() -> (SocketAddr, Arc<Script>) {
    let script = Arc::new(Script::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = Arc::clone(&script);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let script = Arc::clone(&served);
            tokio::spawn(async move {
                let service = service_fn(|request| {
                    let script = Arc::clone(&script);
                    async move { Ok::<_, Infallible>(script.answer(request).await) }
                });
                let io = TokioIo::new(stream);
                let _ = http1::Builder::new().serve_connection(io, service).await;
            });
        }
    });
    (address, script)
}

fn start(source: TokenizerSource, change: impl FnOnce(&mut CheckSpec)) -> Arc<Prefixes> {
    let mut spec = PrefixSpec {
        tokenizers: vec![TokenizerSpec {
            model: "m".into(),
            aliases: vec!["latest".to_owned()],
            adapters: Vec::new(),
            source,
        }],
        ..spec()
    };
    // No test is about the time: an engine on a busy machine may take long.
    spec.check.timeout = Duration::from_secs(60);
    change(&mut spec.check);
    let prefixes = Prefixes::start(Clock::start(), spec).unwrap();
    drop(prefixes.tick());
    prefixes
}

fn ready() -> TokenizerSource {
    TokenizerSource::Ready(Arc::new(Bytewise))
}

fn join(prefixes: &Arc<Prefixes>, id: u64, address: SocketAddr, models: &[&str]) -> Life {
    let models: Vec<String> = models.iter().map(|name| (*name).to_owned()).collect();
    prefixes.join(LifeSpec {
        id: Incarnation(id),
        pool: "main".into(),
        models: models.into(),
        name: format!("e{id}").into(),
        address: address.to_string().into(),
        engine: EngineKind::Vllm,
        labels: Default::default(),
    })
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let patience = tokio::time::Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(tokio::time::Instant::now() < patience, "no {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn count(prefixes: &Prefixes, of: Checked) -> u64 {
    let mut checks = prefixes.checks();
    checks.find(|(checked, _)| *checked == of).unwrap().1
}

fn trusted(prefixes: &Prefixes) -> bool {
    prefixes.trust().all(|(_, trusted)| trusted)
}

fn chat(text: &str) -> (Api, Content) {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": text}]}).to_string();
    let facts = scan_request(Api::ChatCompletions, body.as_bytes()).unwrap();
    let content = crate::exchange::content(&facts, Bytes::from(body));
    (Api::ChatCompletions, content)
}

/// The way of a request, as the pipeline walks it.
async fn prompt(prefixes: &Arc<Prefixes>, text: &str) -> (How, Prompted) {
    let (api, content) = chat(text);
    let counts = || -> Vec<(How, u64)> { prefixes.counts().prompts().collect() };
    let before = counts();
    let prompted = match prefixes.asks(api, "m", &content) {
        true => {
            let this = Arc::clone(prefixes);
            this.prompt_by_engine(api, "m".into(), content).await
        }
        false => prefixes.prompt(api, "m", &content),
    };
    let mut changed = before.iter().zip(counts()).filter(|(old, new)| *old != new);
    let ((how, _), _) = changed.next().unwrap();
    (*how, prompted)
}

#[tokio::test]
async fn an_engine_that_joins_is_probed_and_again_when_it_comes_back() {
    let (address, script) = engine().await;
    let prefixes = start(ready(), |check| check.sample = 0.0);
    let life = join(&prefixes, 1, address, &["latest", "other"]);
    until("three matches", || count(&prefixes, Checked::Match) == 3).await;
    // By a name that the engine knows.
    let names = || -> Vec<Value> {
        let asked = script.asked.lock();
        asked
            .iter()
            .map(|(_, body)| body["model"].clone())
            .collect()
    };
    assert_eq!(names(), vec![json!("latest"); 3]);
    // Another engine is there: it tokenises differently.
    script.skew(1);
    prefixes.unscraped(Incarnation(1));
    prefixes.scraped(Incarnation(1), &MetricsSample::default());
    until("three mismatches", || {
        count(&prefixes, Checked::Mismatch) == 3
    })
    .await;
    assert!(!trusted(&prefixes));
    script.skew(0);
    // A scrape without one that failed before is no news.
    prefixes.scraped(Incarnation(1), &MetricsSample::default());
    prefixes.unscraped(Incarnation(1));
    prefixes.scraped(Incarnation(1), &MetricsSample::default());
    until("six matches", || count(&prefixes, Checked::Match) == 6).await;
    assert!(trusted(&prefixes));
    assert_eq!(script.asked(), 9);
    // Of a pool that serves other models nobody is asked, and nobody without probes.
    drop(life);
    let _life = join(&prefixes, 2, address, &["other"]);
    let silent = start(ready(), |check| check.probe = false);
    let _other = join(&silent, 1, address, &[]);
    let _last = join(&prefixes, 3, address, &[]);
    until("nine matches", || count(&prefixes, Checked::Match) == 9).await;
    assert_eq!(script.asked(), 12);
}

#[tokio::test]
async fn an_engine_that_is_not_up_is_probed_later_and_one_without_the_page_is_left_alone() {
    let prefixes = start(ready(), |check| check.sample = 0.0);
    let (address, script) = engine().await;
    script.status(503);
    let _life = join(&prefixes, 1, address, &[]);
    until("an error", || count(&prefixes, Checked::Error) == 1).await;
    until("another try", || script.asked() >= 2).await;
    assert_eq!(count(&prefixes, Checked::Error), 1);
    script.status(404);
    until("no page", || count(&prefixes, Checked::Unsupported) == 3).await;
    assert!(trusted(&prefixes));
}

/// The rule, for each of its settings: from the first difference on, until a check finds none.
#[tokio::test]
async fn a_difference_in_live_prompts_changes_who_makes_tokens() {
    for on_mismatch in [OnMismatch::Engine, OnMismatch::Load, OnMismatch::Ignore] {
        let (address, script) = engine().await;
        let prefixes = start(ready(), |check| {
            check.probe = false;
            check.sample = 1.0;
            check.on_mismatch = on_mismatch;
        });
        let _life = join(&prefixes, 1, address, &[]);
        let text = "a prompt of some length, so that it has blocks";
        let (how, own) = prompt(&prefixes, text).await;
        assert_eq!(how, How::Tokenized);
        until("a match", || count(&prefixes, Checked::Match) == 1).await;
        script.skew(1000);
        prompt(&prefixes, text).await;
        until("a mismatch", || !trusted(&prefixes)).await;
        let (how, prompted) = prompt(&prefixes, text).await;
        match on_mismatch {
            OnMismatch::Engine => {
                assert_eq!((how, prompted.tokens), (How::Engine, own.tokens));
                assert_eq!(prompted.keys.len(), own.keys.len());
                assert_ne!(prompted.keys, own.keys, "the engine's tokens are others");
            }
            OnMismatch::Load => assert_eq!((how, prompted), (How::Mismatched, Prompted::default())),
            OnMismatch::Ignore => assert_eq!((how, prompted), (How::Tokenized, own.clone())),
        }
        // What an engine does not tell goes by load too.
        let image = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}]}"#;
        let facts = scan_request(Api::ChatCompletions, image.as_bytes()).unwrap();
        let content = crate::exchange::content(&facts, Bytes::from(image));
        assert!(!prefixes.asks(Api::ChatCompletions, "m", &content));
        let how = prefixes.read(Api::ChatCompletions, "m", &content).0;
        match on_mismatch {
            OnMismatch::Engine | OnMismatch::Load => assert_eq!(how, How::Mismatched),
            OnMismatch::Ignore => assert_eq!(how, How::Unsupported),
        }
        script.skew(0);
        // The checks go on, whoever makes the tokens.
        let matches = count(&prefixes, Checked::Match);
        let mut sent = 0;
        while count(&prefixes, Checked::Match) == matches {
            prompt(&prefixes, text).await;
            sent += 1;
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert!(sent < 10_000);
        }
        until("trust", || trusted(&prefixes)).await;
        assert_eq!(prompt(&prefixes, text).await, (How::Tokenized, own));
    }
}

#[tokio::test]
async fn a_model_without_files_is_tokenised_by_its_engines_or_goes_by_load() {
    let (address, script) = engine().await;
    let prefixes = start(TokenizerSource::Engine, |check| check.concurrency = 1);
    let text = "a prompt of some length, so that it has blocks";
    // Nobody is there yet.
    assert_eq!(
        prompt(&prefixes, text).await,
        (How::Unanswered, Prompted::default())
    );
    let _life = join(&prefixes, 1, address, &[]);
    let (how, told) = prompt(&prefixes, text).await;
    let own = start(ready(), |_| {});
    assert_eq!((how, &told), (How::Engine, &prompt(&own, text).await.1));
    // What is not told is not asked: media, and nothing of what the page does not take.
    let image = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}]}"#;
    let facts = scan_request(Api::ChatCompletions, image.as_bytes()).unwrap();
    let content = crate::exchange::content(&facts, Bytes::from(image));
    assert!(!prefixes.asks(Api::ChatCompletions, "m", &content));
    assert_eq!(
        prefixes.read(Api::ChatCompletions, "m", &content).0,
        How::Unsupported
    );
    let ids = r#"{"prompt":[1,2,3]}"#;
    let facts = scan_request(Api::Completions, ids.as_bytes()).unwrap();
    let content = crate::exchange::content(&facts, Bytes::from(ids));
    assert!(!prefixes.asks(Api::Completions, "m", &content));
    // Too many at once.
    let turn = prefixes.askers.try_acquire().unwrap();
    assert_eq!(prompt(&prefixes, text).await.0, How::Unanswered);
    drop(turn);
    // One that fails rests; another one is asked.
    script.status(500);
    assert_eq!(prompt(&prefixes, text).await.0, How::Unanswered);
    let asked = script.asked();
    assert_eq!(prompt(&prefixes, text).await.0, How::Unanswered);
    assert_eq!(script.asked(), asked, "it rests");
    let (other, _) = engine().await;
    let _other = join(&prefixes, 2, other, &[]);
    assert_eq!(prompt(&prefixes, text).await, (How::Engine, told));
}

#[tokio::test]
async fn an_engine_of_a_pool_that_names_the_model_is_asked_first() {
    let (named, by_name) = engine().await;
    let (any, by_chance) = engine().await;
    let prefixes = start(TokenizerSource::Engine, |_| {});
    let _lives = [
        join(&prefixes, 1, any, &[]),
        join(&prefixes, 2, any, &["other"]),
    ];
    assert_eq!(prompt(&prefixes, "x").await.0, How::Engine);
    assert_eq!(by_chance.asked(), 1);
    let _named = join(&prefixes, 3, named, &["m"]);
    for _ in 0..20 {
        assert_eq!(prompt(&prefixes, "x").await.0, How::Engine);
    }
    assert_eq!((by_chance.asked(), by_name.asked()), (1, 20));
}

/// A service tells of media too: their names are in the keys from where they start.
#[tokio::test]
async fn a_service_renders_prompts_with_their_media() {
    let (address, script) = engine().await;
    let service = TokenizerSource::Service(address.to_string().into());
    let prefixes = start(service, |_| {});
    let text = "012345678901";
    let (how, prompted) = prompt(&prefixes, text).await;
    assert_eq!((how, prompted.tokens), (How::Engine, Some(36)));
    let (path, body) = script.asked.lock().pop().unwrap();
    assert_eq!(path, "/v1/chat/completions/render");
    assert_eq!(body["messages"][0]["content"], text);
    let tokens = [bytes_of(body.to_string().as_bytes()), vec![7; 20]].concat();
    let scope = wicketgate_kvindex::keys::Scope {
        model: "m",
        domain: None,
    };
    let keys = |media: &str| prefixes.keys(scope, &tokens, [(media, 16)].into_iter(), false);
    assert_eq!((prompted.keys.len(), &prompted.keys), (2, &keys("cat")));
    assert_eq!(prompted.keys[0], keys("dog")[0]);
    assert_ne!(prompted.keys[1], keys("dog")[1]);
}
