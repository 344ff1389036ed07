//! KV events of emulated engines, through the intake into the index: it must say what the engine's usage says.

use std::{net::SocketAddr, path::Path, sync::Arc};

use serde_json::{Value, json};
use tokio::net::TcpListener;
use wicketgate_epp::kvevents::{Intake, IntakeConfig, Source};
use wicketgate_kvindex::{
    index::{Config, EndpointId, Index, Matches},
    keys::Scope,
};
use wicketgate_sim::{
    engine::{EngineConfig, EngineHandle, KvEventsConfig, KvPublisher, KvShape, spawn_with},
    text::tokenize,
};
use wicketgate_testkit::{
    client::{Caller, Version, full, request},
    eventually, free_address,
    process::Process,
};

use crate::wicketgate;

const BLOCK: u32 = 16;

struct Rig {
    intake: Intake,
    index: Arc<Index>,
}

impl Rig {
    fn new() -> Rig {
        let index = Arc::new(Index::new(Config::default()));
        Rig {
            intake: Intake::new(IntakeConfig::default(), Arc::clone(&index)),
            index,
        }
    }

    /// Prompt tokens that the index says an endpoint holds.
    fn credit(&self, incarnation: u64, model: &str, domain: Option<&str>, prompt: &[u32]) -> u64 {
        let (mut keys, mut matches) = (Vec::new(), Matches::new());
        let space = self.index.config().keys;
        space.prompt(Scope { model, domain }, prompt, &[], &mut keys);
        self.index.lookup(&keys, &mut matches);
        let id = EndpointId {
            incarnation,
            rank: 0,
        };
        let found = matches.iter().find(|found| found.endpoint == id);
        found.map_or(0, |found| u64::from(found.blocks[0] * BLOCK))
    }

    /// Waits until everything that was published is in.
    async fn caught_up(&self, publisher: &KvPublisher) {
        let last = publisher.published().checked_sub(1);
        eventually("all events", || async {
            let stats = self.intake.stats();
            let there = self
                .intake
                .sources()
                .iter()
                .all(|source| source.last == last);
            (there && stats.waiting == 0 && stats.catching_up == 0).then_some(())
        })
        .await;
    }
}

struct Engine {
    handle: EngineHandle,
    publisher: Arc<KvPublisher>,
}

impl Engine {
    async fn start(
        events: SocketAddr,
        replay: Option<SocketAddr>,
        shape: KvShape,
        blocks: u32,
    ) -> Engine {
        let config = EngineConfig {
            num_blocks: blocks,
            block_size: BLOCK,
            loras: vec!["food".to_owned()],
            ..EngineConfig::instant("m")
        };
        let events = KvEventsConfig {
            replay,
            shape,
            loras: config.loras.clone(),
            ..KvEventsConfig::at(events, "kv@pod@m".to_owned())
        };
        let publisher = Arc::new(KvPublisher::start(events).await.unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let handle = spawn_with(listener, config, Some(publisher.clone())).unwrap();
        Engine { handle, publisher }
    }

    fn source(&self) -> Source {
        let replay = self.publisher.replay().map(|replay| replay.port());
        Source::at("m", "127.0.0.1", self.publisher.events().port(), replay, 1)
    }

    /// Ends it and waits until its ports are free.
    async fn stop(self) {
        self.handle.stop().await;
        self.publisher.stop().await;
    }
}

async fn post(to: SocketAddr, path: &str, body: &Value) -> Value {
    let mut caller = Caller::connect(to, Version::H1).await;
    let headers = [("content-type", "application/json")];
    let request = request("POST", path, &headers, full(body.to_string()));
    let answer = caller.call(request).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// Completes a prompt of token ids; tokens that the engine found cached, and those that it generated.
async fn complete(
    to: SocketAddr,
    model: &str,
    salt: Option<&str>,
    prompt: &[u32],
) -> (u64, Vec<u32>) {
    let mut body = json!({"model": model, "prompt": prompt, "max_tokens": 24, "ignore_eos": true});
    if let Some(salt) = salt {
        body["cache_salt"] = salt.into();
    }
    let answer = post(to, "/v1/completions", &body).await;
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    let text = answer["choices"][0]["text"].as_str().unwrap();
    (cached.unwrap(), tokenize(text))
}

/// Conversations that grow, in a cache that is too small for them: before each turn the index says what the engine then
/// reports as cached. In `upset` a test breaks something between turns.
async fn follow(rig: &Rig, engine: &Engine, turns: u32, mut upset: impl AsyncFnMut(u32)) -> u64 {
    let scopes = [
        ("m", None),
        ("m", Some("tenant")),
        ("food", None),
        ("food", Some("tenant")),
    ];
    let mut chats: Vec<Vec<u32>> = (0..8)
        .map(|chat| (0..40).map(|at| 5000 + chat / 4 * 100 + at).collect())
        .collect();
    let mut all = 0;
    for turn in 0..turns {
        upset(turn).await;
        let number = fastrand::usize(..chats.len());
        let (model, salt) = scopes[number % 4];
        let chat = &mut chats[number];
        rig.caught_up(&engine.publisher).await;
        let credit = rig.credit(1, model, salt, chat);
        let (cached, generated) = complete(engine.handle.address(), model, salt, chat).await;
        assert_eq!(
            credit,
            cached,
            "turn {turn} of {number}: {} tokens",
            chat.len()
        );
        all += cached;
        chat.extend(generated);
        chat.extend((0..fastrand::u32(1..40)).map(|_| fastrand::u32(5000..90_000)));
        if chat.len() > 600 {
            chat.truncate(fastrand::usize(20..200));
        }
    }
    all
}

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_index_says_what_the_engine_reports_as_cached() {
    for (shape, replay) in [(KvShape::Map, None), (KvShape::Array, Some(loopback()))] {
        let rig = Rig::new();
        let engine = Engine::start(loopback(), replay, shape, 65).await;
        rig.intake.add(1, engine.source()).unwrap();
        heard(&rig, &engine).await;
        let hits = follow(&rig, &engine, 150, async |_| {}).await;
        assert!(hits > 0);
        let counts = rig.intake.stats().counts;
        assert!(
            counts.applied.removed > 0,
            "the cache was too large: {counts:?}"
        );
        assert_eq!(
            (
                counts.skipped(),
                counts.cursor.gaps,
                counts.applied.mismatched
            ),
            (0, 0, 0)
        );
    }
}

/// A subscription is on its way for a while: the first message of a publisher shows that it has come.
async fn heard(rig: &Rig, engine: &Engine) {
    let before = rig.intake.stats().counts.frames;
    eventually("the first event", || async {
        let prompt: Vec<u32> = (0..17).map(|_| fastrand::u32(5000..90_000)).collect();
        complete(engine.handle.address(), "m", None, &prompt).await;
        (rig.intake.stats().counts.frames > before).then_some(())
    })
    .await;
}

/// Lost events: with a replay the index is right at once, without one it forgets and is never ahead of the engine.
#[tokio::test(flavor = "multi_thread")]
async fn a_gap_is_filled_by_a_replay() {
    let rig = Rig::new();
    let engine = Engine::start(loopback(), Some(loopback()), KvShape::Map, 65).await;
    rig.intake.add(1, engine.source()).unwrap();
    let address = engine.handle.address();
    let publisher = Arc::clone(&engine.publisher);
    follow(&rig, &engine, 120, async |turn| {
        if turn % 10 == 9 {
            publisher.lose(2);
            // Nobody learns of a loss before the next message comes.
            for _ in 0..3 {
                let prompt: Vec<u32> = (0..20).map(|_| fastrand::u32(5000..90_000)).collect();
                complete(address, "m", None, &prompt).await;
            }
        }
    })
    .await;
    let counts = rig.intake.stats().counts;
    assert_eq!(
        (counts.cursor.gaps >= 12, counts.cursor.resets),
        (true, 0),
        "{counts:?}"
    );
    assert!(counts.replayed > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_without_a_replay_forgets_and_a_reset_of_the_cache_too() {
    let rig = Rig::new();
    let engine = Engine::start(loopback(), None, KvShape::Map, 2000).await;
    rig.intake.add(1, engine.source()).unwrap();
    heard(&rig, &engine).await;
    let address = engine.handle.address();
    let prompt: Vec<u32> = (0..161).map(|at| 6000 + at).collect();
    let other: Vec<u32> = (0..33).map(|at| 7000 + at).collect();
    let third: Vec<u32> = (0..49).map(|at| 8000 + at).collect();
    complete(address, "m", None, &prompt).await;
    rig.caught_up(&engine.publisher).await;
    assert_eq!(rig.credit(1, "m", None, &prompt), 160);
    engine.publisher.lose(1);
    complete(address, "m", None, &other[..17]).await;
    complete(address, "m", None, &third).await;
    rig.caught_up(&engine.publisher).await;
    // What came before the gap is forgotten, though the engine still has it.
    assert_eq!(rig.credit(1, "m", None, &prompt), 0);
    assert_eq!(rig.credit(1, "m", None, &third), 48);
    assert_eq!(rig.intake.stats().counts.cursor.resets, 1);
    assert_eq!(complete(address, "m", None, &prompt).await.0, 160);

    // vLLM says that the cache was reset with its next step.
    assert_eq!(
        post(address, "/reset_prefix_cache", &json!({})).await["success"],
        true
    );
    complete(address, "m", None, &other).await;
    rig.caught_up(&engine.publisher).await;
    let credit = [&prompt, &third, &other].map(|prompt| rig.credit(1, "m", None, prompt));
    assert_eq!(credit, [0, 0, 32]);
    assert_eq!(complete(address, "m", None, &third).await.0, 0);
}

/// A new engine on the old ports, without anybody saying so: credit is right again after its first words.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_restarts_is_followed() {
    for with_replay in [false, true] {
        let rig = Rig::new();
        let replay = with_replay.then(loopback);
        let engine = Engine::start(loopback(), replay, KvShape::Map, 65).await;
        rig.intake.add(1, engine.source()).unwrap();
        heard(&rig, &engine).await;
        follow(&rig, &engine, 30, async |_| {}).await;
        let (events, replay) = (engine.publisher.events(), engine.publisher.replay());
        engine.stop().await;
        let engine = Engine::start(events, replay, KvShape::Array, 65).await;
        heard(&rig, &engine).await;
        follow(&rig, &engine, 30, async |_| {}).await;
        let cursor = rig.intake.stats().counts.cursor;
        assert_eq!(cursor.restarts, 1, "{cursor:?}");
        assert_eq!(rig.intake.stats().counts.connects, 2);
    }
}

/// The flags of the command.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_publishes() {
    let (address, events, replay) = (free_address(), free_address(), free_address());
    let start = || {
        Process::start(
            Path::new(wicketgate()),
            &[
                "engine",
                "--model",
                "m",
                "--profile",
                "instant",
                "--port",
                &address.port().to_string(),
                "--kv-events",
                &format!("tcp://{events}"),
                "--kv-replay",
                &format!("tcp://{replay}"),
                "--kv-shape",
                "array",
            ],
        )
    };
    let rig = Rig::new();
    let source = Source::at("m", "127.0.0.1", events.port(), Some(replay.port()), 1);
    rig.intake.add(1, source).unwrap();
    let prompt: Vec<u32> = (0..161).map(|at| 6000 + at).collect();
    for life in 0..2 {
        let mut engine = start();
        eventually("the engine", || async {
            tokio::net::TcpStream::connect(address).await.ok()
        })
        .await;
        let (cached, _) = complete(address, "m", None, &prompt).await;
        assert_eq!(cached, 0);
        eventually("credit for this life", || async {
            let restarts = rig.intake.stats().counts.cursor.restarts;
            let credit = rig.credit(1, "m", None, &prompt);
            (restarts == life && credit == 160).then_some(())
        })
        .await;
        engine.kill().await;
    }
}
