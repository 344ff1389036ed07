//! The prefix index in the path, through both fronts: chats land where their prefix is, and the index says before a turn
//! what the engine then reports as cached, whatever became of its events meanwhile.

use std::{net::SocketAddr, sync::Arc};

use serde_json::{Value, json};
use tokio::net::TcpListener;
use wicketgate_bench::envoy::OVERRIDE_HOST;
use wicketgate_sim::{
    engine::{EngineConfig, EngineHandle, KvEventsConfig, KvPublisher, KvShape, spawn_with},
    text,
};
use wicketgate_testkit::{
    TempDir,
    client::{Caller, Version, call, full, request},
    cluster::{Command, Front, Gateway},
    envoy_binary, eventually, free_address,
    process::Process,
};

use crate::wicketgate;

pub(crate) const CHAT: &str = "/v1/chat/completions";

/// An engine that says what it caches.
pub(crate) struct Engine {
    pub(crate) handle: EngineHandle,
    pub(crate) publisher: Arc<KvPublisher>,
}

pub(crate) fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

impl Engine {
    pub(crate) async fn start(replay: bool) -> Engine {
        Engine::start_at(loopback(), loopback(), replay.then(loopback), KvShape::Map).await
    }

    pub(crate) async fn start_at(
        api: SocketAddr,
        events: SocketAddr,
        replay: Option<SocketAddr>,
        shape: KvShape,
    ) -> Engine {
        let events = KvEventsConfig {
            replay,
            shape,
            ..KvEventsConfig::at(events, "kv@pod@m".to_owned())
        };
        Engine::publishing(api, events).await
    }

    pub(crate) async fn publishing(api: SocketAddr, events: KvEventsConfig) -> Engine {
        let config = EngineConfig {
            num_blocks: 4000,
            loras: vec!["food".to_owned()],
            ..EngineConfig::instant("m")
        };
        let events = KvEventsConfig {
            loras: config.loras.clone(),
            ..events
        };
        // Whoever dials the ports of an engine that is gone may have one of them for a moment.
        let publisher = eventually("the ports for events", || async {
            KvPublisher::start(events.clone()).await.ok()
        })
        .await;
        let listener = eventually("the port of the API", || async {
            TcpListener::bind(api).await.ok()
        })
        .await;
        let publisher = Arc::new(publisher);
        let handle = spawn_with(listener, config, Some(publisher.clone())).unwrap();
        Engine { handle, publisher }
    }

    pub(crate) fn line(&self, name: &str) -> String {
        let port = |at: SocketAddr| at.port().to_string();
        let mut labels = json!({"kv-events-port": port(self.publisher.events())});
        if let Some(replay) = self.publisher.replay() {
            labels["kv-replay-port"] = port(replay).into();
        }
        let address = self.handle.address();
        format!("  - {{name: {name}, address: \"{address}\", labels: {labels}}}\n")
    }

    /// Ends it and starts another one on its ports.
    async fn restarted(self, shape: KvShape) -> Engine {
        let api = self.handle.address();
        let (events, replay) = (self.publisher.events(), self.publisher.replay());
        self.handle.stop().await;
        self.publisher.stop().await;
        Engine::start_at(api, events, replay, shape).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        post(self.handle.address(), path, body).await
    }
}

pub(crate) async fn post(to: SocketAddr, path: &str, body: &Value) -> Value {
    let mut caller = Caller::connect(to, Version::H1).await;
    let headers = [("content-type", "application/json")];
    let answer = caller
        .call(request("POST", path, &headers, full(body.to_string())))
        .await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// The emulator's tokeniser as files, for texts of words that it generates.
pub(crate) fn tokenizer(folder: &TempDir) {
    let marks = |role: &str| text::chat([(role, "")], false);
    let mut vocabulary = serde_json::Map::new();
    let mut added = Vec::new();
    for token in 0..text::WORDS {
        vocabulary.insert(text::detokenize(&[token]), token.into());
    }
    let roles = ["system", "user", "assistant"].map(|role| (format!("<{role}>"), marks(role)[0]));
    for (content, id) in roles
        .into_iter()
        .chain([("<end>".to_owned(), marks("user")[1])])
    {
        vocabulary.insert(content.clone(), id.into());
        added.push(
            json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}),
        );
    }
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null,
        "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<end>"},
    });
    folder.write("tokenizer.json", &tokenizer.to_string());
    folder.write(
        "chat_template.jinja",
        "{% for message in messages %}<{{ message.role }}>{{ message.content }}<end>{% endfor %}\
         {% if add_generation_prompt %}<assistant>{% endif %}",
    );
}

/// Words that the engine reads back as one token each.
pub(crate) fn words(count: usize) -> String {
    let tokens: Vec<u32> = (0..count).map(|_| fastrand::u32(..text::WORDS)).collect();
    text::detokenize(&tokens)
}

pub(crate) struct Rig {
    pub(crate) front: Front,
    gateway: Option<Gateway>,
    pub(crate) engines: Vec<Engine>,
    _files: TempDir,
}

impl Rig {
    /// `None` where there is no Envoy.
    async fn start(command: Command, engines: Vec<Engine>, long_body: &str) -> Option<Rig> {
        Rig::start_with(command, engines, long_body, "", &[]).await
    }

    /// A front that is there already, in front of these engines.
    pub(crate) fn before(front: Front, engines: Vec<Engine>) -> Rig {
        Rig {
            front,
            gateway: None,
            engines,
            _files: TempDir::new(),
        }
    }

    async fn start_with(
        command: Command,
        engines: Vec<Engine>,
        long_body: &str,
        more: &str,
        arguments: &[&str],
    ) -> Option<Rig> {
        let files = TempDir::new();
        tokenizer(&files);
        // What its files say of other texts than words is not what engines say.
        let index = format!(
            "kvIndex:\n  longBody: {long_body}\n  tokenizers:\n  - {{model: m, path: \"{}\", adapters: [food]}}\n  tokenCheck: {{probe: false}}\n  events: {{mode: connect}}\n{more}",
            files.path().display()
        );
        Rig::with_index(command, engines, files, &index, arguments).await
    }

    /// The same with this section, and `files` that it names; `None` where there is no Envoy.
    pub(crate) async fn with_index(
        command: Command,
        engines: Vec<Engine>,
        files: TempDir,
        index: &str,
        arguments: &[&str],
    ) -> Option<Rig> {
        let envoy = match command {
            Command::Serve => None,
            Command::Epp => Some(envoy_binary()?),
        };
        let lines = (0..)
            .zip(&engines)
            .map(|(at, engine)| engine.line(&format!("e{at}")));
        let pool = format!("  endpoints:\n{}", lines.collect::<String>());
        let front = Front::start_with(wicketgate(), command, &pool, "", index, arguments).await;
        front.wait_scraped(engines.len()).await;
        let all: Vec<SocketAddr> = engines.iter().map(|e| e.handle.address()).collect();
        let gateway = match &envoy {
            None => None,
            Some(envoy) => Some(Gateway::start(envoy, OVERRIDE_HOST, &front, &all, |c| c).await),
        };
        let rig = Rig {
            front,
            gateway,
            engines,
            _files: files,
        };
        for at in 0..rig.engines.len() {
            rig.heard(at).await;
        }
        rig.all_exact().await;
        Some(rig)
    }

    /// Waits until every endpoint is known to speak for itself.
    pub(crate) async fn all_exact(&self) {
        eventually("every endpoint to speak for itself", || async {
            let index = self.front.view("/debug/index").await;
            let all = json!({"exact": self.engines.len(), "approximate": 0});
            (index["endpoints"] == all).then_some(())
        })
        .await;
    }

    fn address(&self) -> SocketAddr {
        let gateway = self.gateway.as_ref();
        gateway.map_or(self.front.data, |gateway| gateway.address)
    }

    /// A subscription is on its way for a while: the first message that comes in shows that it has come.
    pub(crate) async fn heard(&self, at: usize) {
        let frames = || async { self.source(at).await["frames"].as_u64().unwrap_or(0) };
        let before = frames().await;
        eventually("the first event", || async {
            let ids: Vec<u32> = (0..17).map(|_| fastrand::u32(5000..90_000)).collect();
            let body = json!({"model": "m", "prompt": ids, "max_tokens": 1});
            self.engines[at].post("/v1/completions", &body).await;
            (frames().await > before).then_some(())
        })
        .await;
    }

    pub(crate) async fn source(&self, at: usize) -> Value {
        let index = self.front.view("/debug/index").await;
        let name = format!("e{at}");
        let sources = index["sources"].as_array().unwrap();
        let found = sources.iter().find(|source| source["endpoint"] == *name);
        found.cloned().unwrap_or_default()
    }

    /// Waits until everything that engines published is in.
    pub(crate) async fn caught_up(&self) {
        eventually("all events", || async {
            for (at, engine) in self.engines.iter().enumerate() {
                let source = self.source(at).await;
                let last = engine.publisher.published().checked_sub(1);
                if source["last"].as_u64() != last
                    || source["catching_up"] != false
                    || source["waiting"] != 0
                {
                    return None;
                }
            }
            Some(())
        })
        .await;
    }

    /// Tokens of a request that each engine holds, by the index.
    pub(crate) async fn credits(&self, body: &Value) -> Vec<u64> {
        let headers = [("content-type", "application/json")];
        let body = body.to_string();
        let found = call(
            self.front.admin,
            "POST",
            "/debug/index/lookup",
            &headers,
            body,
        )
        .await;
        let found = found.json();
        let holders = found["endpoints"]
            .as_array()
            .unwrap_or_else(|| panic!("{found}"));
        let credit = |at: usize| {
            let name = format!("e{at}");
            let holder = holders.iter().find(|holder| holder["endpoint"] == *name);
            holder.map_or(0, |holder| holder["tokens"].as_u64().unwrap())
        };
        (0..self.engines.len()).map(credit).collect()
    }

    /// Sends a request that nobody competes with; where it went, and the answer.
    pub(crate) async fn send(&self, path: &str, body: &Value) -> (usize, Value) {
        let seen = || self.engines.iter().map(|engine| engine.handle.stats().ok);
        let before: Vec<u64> = seen().collect();
        let answer = post(self.address(), path, body).await;
        let served = seen().zip(&before).position(|(now, before)| now > *before);
        (served.unwrap(), answer)
    }
}

pub(crate) fn cached(answer: &Value) -> u64 {
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    cached.as_u64().unwrap_or_else(|| panic!("{answer}"))
}

/// A conversation that grows.
pub(crate) struct Talk {
    pub(crate) body: Value,
    turns: u32,
}

impl Talk {
    pub(crate) fn new(model: &str, salt: Option<&str>) -> Talk {
        let system = json!({"role": "system", "content": words(70)});
        let mut body =
            json!({"model": model, "messages": [system], "max_tokens": 24, "ignore_eos": true});
        if let Some(salt) = salt {
            body["cache_salt"] = salt.into();
        }
        Talk { body, turns: 0 }
    }

    pub(crate) fn say(&mut self, role: &str, content: String) {
        let message = json!({"role": role, "content": content});
        self.body["messages"].as_array_mut().unwrap().push(message);
    }

    /// One turn: credit before it, where it went, and what was cached there.
    pub(crate) async fn turn(&mut self, rig: &Rig) -> (Vec<u64>, usize, u64) {
        self.say("user", words(fastrand::usize(1..60)));
        self.turns += 1;
        rig.caught_up().await;
        let credits = rig.credits(&self.body).await;
        let (at, answer) = rig.send(CHAT, &self.body).await;
        let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
        self.say("assistant", content.to_owned());
        (credits, at, cached(&answer))
    }
}

async fn three(replay: bool) -> Vec<Engine> {
    let mut engines = Vec::new();
    for _ in 0..3 {
        engines.push(Engine::start(replay).await);
    }
    engines
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_land_where_their_prefix_is() {
    // Once tokenised on the spot, once on threads of their own.
    for (command, long_body) in [
        (Command::Serve, "1Mi"),
        (Command::Serve, "1"),
        (Command::Epp, "1Ki"),
    ] {
        let Some(rig) = Rig::start(command, three(false).await, long_body).await else {
            return;
        };
        let scopes = [
            ("m", None),
            ("m", Some("tenant")),
            ("food", None),
            ("m", None),
        ];
        let mut talks: Vec<Talk> = scopes.map(|(model, salt)| Talk::new(model, salt)).into();
        let (mut follow_ups, mut hits) = (0, 0);
        for _ in 0..24 {
            let talk = &mut talks[fastrand::usize(..4)];
            let (credits, at, cached) = talk.turn(&rig).await;
            let best = credits.iter().copied().max().unwrap();
            assert_eq!(
                credits[at], cached,
                "{command:?}, turn {}: {credits:?} at {at}",
                talk.turns
            );
            if talk.turns > 1 {
                assert!(best >= 64, "{credits:?}");
                assert_eq!(cached, best, "turn {}: {credits:?} at {at}", talk.turns);
                follow_ups += 1;
            } else {
                assert_eq!(best, 0, "another domain's prompt was credited");
            }
            hits += cached;
        }
        let index = rig.front.view("/debug/index").await;
        assert!(follow_ups > 15, "{follow_ups}");
        assert_eq!(index["hit_tokens"], hits, "{index}");
        assert_eq!(index["prompts"]["tokenized"], 24, "{index}");
        assert_eq!(index["endpoints"]["exact"], 3, "{index}");
        assert!(index["blocks"].as_u64().unwrap() > 50, "{index}");
        assert_eq!(
            rig.front.metric(&["kvindex_hit_tokens_total"]).await,
            hits as f64
        );
        assert_eq!(rig.front.metric(&["kvevents_connected"]).await, 3.0);
        rig.front.assert_guards_at_zero().await;
    }
}

/// Prompts of token ids need no tokeniser; what only the engine can tokenise goes by load, and is counted.
#[tokio::test(flavor = "multi_thread")]
async fn every_prompt_goes_on() {
    let rig = Rig::start(Command::Serve, three(false).await, "8Ki")
        .await
        .unwrap();
    let ids: Vec<u32> = (0..161).map(|at| 6000 + at).collect();
    let body = json!({"model": "m", "prompt": ids, "max_tokens": 4});
    let (first, answer) = rig.send("/v1/completions", &body).await;
    assert_eq!(cached(&answer), 0);
    rig.caught_up().await;
    let mut expected = vec![0; 3];
    expected[first] = 160;
    assert_eq!(rig.credits(&body).await, expected);
    let (second, answer) = rig.send("/v1/completions", &body).await;
    assert_eq!((second, cached(&answer)), (first, 160));
    let page = rig.front.metrics().await;
    assert!(
        !page.lines().any(
            |line| line.starts_with("wicketgate_kvindex_hash_checks_total")
                && !line.ends_with(" 0")
        ),
        "nobody asked for a check of hashes"
    );
    // A plain text can be asked about by its address; anything else in it is refused.
    let found = rig
        .front
        .view("/debug/index/lookup?model=m&prompt=a+b%C3%A9")
        .await;
    assert_eq!(
        (&found["prompt"], found["blocks"].as_u64()),
        (&json!("tokenized"), Some(0)),
        "{found}"
    );
    for odd in [
        "",
        "?model=m",
        "?model=m&prompt=a&salt=b",
        "?model=m&prompt=%ff",
    ] {
        let refused = call(
            rig.front.admin,
            "GET",
            &format!("/debug/index/lookup{odd}"),
            &[],
            "",
        )
        .await;
        assert_eq!(refused.status, 400, "{odd}");
    }
    let text = |content: Value| json!({"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 4});
    let image = json!([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]);
    for (body, how) in [
        (text(image), "before_media"),
        (
            json!({"model": "m", "prompt": [ids, ids], "max_tokens": 4}),
            "unsupported",
        ),
        (
            json!({"model": "m", "prompt": words(40), "max_tokens": 4}),
            "tokenized",
        ),
    ] {
        let path = if body.get("prompt").is_some() {
            "/v1/completions"
        } else {
            CHAT
        };
        let before = rig.front.view("/debug/index").await["prompts"][how].as_u64();
        rig.send(path, &body).await;
        let after = rig.front.view("/debug/index").await["prompts"][how].as_u64();
        assert_eq!(after, before.map(|count| count + 1), "{how}: {body}");
    }
    rig.front.assert_guards_at_zero().await;
}

/// A reset of the cache, lost events, a new engine on the old ports: credit is right again without a word from anybody.
#[tokio::test(flavor = "multi_thread")]
async fn credit_is_right_again_after_what_happens_to_engines() {
    for replay in [false, true] {
        let mut rig = Rig::start(Command::Serve, vec![Engine::start(replay).await], "8Ki")
            .await
            .unwrap();
        let mut talk = Talk::new("m", None);
        for _ in 0..3 {
            talk.turn(&rig).await;
        }
        // Of a reset vLLM tells with its next step.
        assert_eq!(
            rig.engines[0].post("/reset_prefix_cache", &json!({})).await["success"],
            true
        );
        rig.heard(0).await;
        assert_eq!(talk.turn(&rig).await, (vec![0], 0, 0));
        let (credits, _, cached) = talk.turn(&rig).await;
        assert!(cached > 0 && credits == [cached]);
        // Lost events: with a replay nothing is missing, without one all is forgotten, and never too much known.
        rig.engines[0].publisher.lose(1);
        rig.send(CHAT, &Talk::new("m", None).body).await;
        rig.heard(0).await;
        let (credits, _, cached) = talk.turn(&rig).await;
        match replay {
            true => assert_eq!(credits, [cached]),
            false => assert!(credits == [0] && cached > 0, "{credits:?}, {cached}"),
        }
        let mut fresh = Talk::new("m", None);
        fresh.turn(&rig).await;
        let (credits, _, cached) = fresh.turn(&rig).await;
        assert!(cached > 0 && credits == [cached], "{credits:?}, {cached}");
        // A new engine on the old ports. Nothing of the old one's may still be on its way: it would pass for the new one's.
        rig.caught_up().await;
        let engine = rig.engines.remove(0);
        rig.engines.push(engine.restarted(KvShape::Array).await);
        rig.heard(0).await;
        assert_eq!(talk.turn(&rig).await, (vec![0], 0, 0));
        let (credits, _, cached) = talk.turn(&rig).await;
        assert!(cached > 0 && credits == [cached], "{credits:?}, {cached}");
        let source = rig.source(0).await;
        assert_eq!(
            (
                &source["restarts"],
                &source["skipped"],
                &source["mismatched"]
            ),
            (&json!(1), &json!(0), &json!(0)),
            "{source}"
        );
        rig.front.assert_guards_at_zero().await;
    }
}

/// Without events an endpoint is credited with what it was sent, by the text where there is no tokeniser.
#[tokio::test(flavor = "multi_thread")]
async fn without_events_picks_are_remembered() {
    let engines = three(false).await;
    let lines = engines
        .iter()
        .map(|engine| format!("  - address: \"{}\"\n", engine.handle.address()));
    let pool = format!("  endpoints:\n{}", lines.collect::<String>());
    let front = Front::start_with(
        wicketgate(),
        Command::Serve,
        &pool,
        "",
        "kvIndex: {}\n",
        &[],
    )
    .await;
    front.wait_scraped(3).await;
    let rig = Rig {
        front,
        gateway: None,
        engines,
        _files: TempDir::new(),
    };
    let mut talks: Vec<Talk> = (0..4).map(|_| Talk::new("m", None)).collect();
    let mut homes = [None; 4];
    for _ in 0..20 {
        let number = fastrand::usize(..4);
        let talk = &mut talks[number];
        talk.say("user", words(20));
        let (at, answer) = rig.send(CHAT, &talk.body).await;
        assert_eq!(*homes[number].get_or_insert(at), at, "a talk moved");
        let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
        talk.say("assistant", content.to_owned());
    }
    let index = rig.front.view("/debug/index").await;
    assert_eq!(index["prompts"]["text"], 20, "{index}");
    assert_eq!(index["endpoints"], json!({"exact": 0, "approximate": 3}));
    assert!(index["predicted"].as_u64().unwrap() > 0, "{index}");
    rig.front.assert_guards_at_zero().await;
}

/// Many chats at once over few places, so that steps ask for several requests: the log replays without the index.
#[tokio::test(flavor = "multi_thread")]
async fn a_recorded_run_replays_without_the_index() {
    let files = TempDir::new();
    let log = files.path().join("run.jsonl").display().to_string();
    let few = "plugins:\n- {type: concurrency-detector, parameters: {maxConcurrency: 2}}\nadmission:\n  saturationDetector: {pluginRef: concurrency-detector}\n";
    let arguments = ["--record", log.as_str()];
    let engines = three(false).await;
    let rig = Rig::start_with(Command::Serve, engines, "1Ki", few, &arguments).await;
    let mut rig = rig.unwrap();
    let address = rig.address();
    let talks = (0..16).map(|_| {
        tokio::spawn(async move {
            let mut talk = Talk::new("m", None);
            for _ in 0..8 {
                talk.say("user", words(20));
                let answer = post(address, CHAT, &talk.body).await;
                let content = answer["choices"][0]["message"]["content"].as_str();
                talk.say("assistant", content.unwrap().to_owned());
            }
        })
    });
    for talk in talks.collect::<Vec<_>>() {
        talk.await.unwrap();
    }
    rig.front.assert_guards_at_zero().await;
    let index = rig.front.view("/debug/index").await;
    assert!(index["hit_tokens"].as_u64() > Some(0), "{index}");
    rig.front.process.terminate().await;
    assert_eq!(rig.front.process.wait().await, Some(0));
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(
        text.contains("\"prefix\":[[["),
        "no answer of the index was written down"
    );
    let mut replay = Process::start(wicketgate(), &["sim", "replay", &log]);
    assert_eq!(replay.wait().await, Some(0), "{:?}", replay.words());
}

/// Engines that connect to us are told apart by their topics; without a tokeniser they say themselves what their model is.
#[tokio::test(flavor = "multi_thread")]
async fn engines_may_come_to_us() {
    let port = free_address();
    let mut engines = Vec::new();
    let mut pool = "  endpoints:\n".to_owned();
    for name in ["e0", "e1"] {
        let events = KvEventsConfig {
            connect: true,
            ..KvEventsConfig::at(port, format!("kv@{name}@m"))
        };
        let engine = Engine::publishing(loopback(), events).await;
        let address = engine.handle.address();
        pool += &format!(
            "  - {{name: {name}, address: \"{address}\", labels: {{kv-events-topic: {name}}}}}\n"
        );
        engines.push(engine);
    }
    let extra =
        format!("kvIndex:\n  approximate: false\n  events: {{mode: listen, listen: \"{port}\"}}\n");
    let front = Front::start_with(wicketgate(), Command::Serve, &pool, "", &extra, &[]).await;
    front.wait_scraped(2).await;
    let rig = Rig {
        front,
        gateway: None,
        engines,
        _files: TempDir::new(),
    };
    for at in 0..2 {
        rig.heard(at).await;
    }
    rig.all_exact().await;
    for (model, first) in [("m", 6000), ("food", 6000), ("m", 8000)] {
        let ids: Vec<u32> = (0..161).map(|at| first + at).collect();
        let body = json!({"model": model, "prompt": ids, "max_tokens": 4});
        let (home, answer) = rig.send("/v1/completions", &body).await;
        assert_eq!(cached(&answer), 0, "{model}");
        rig.caught_up().await;
        let mut expected = vec![0; 2];
        expected[home] = 160;
        assert_eq!(rig.credits(&body).await, expected, "{model}");
        let (again, answer) = rig.send("/v1/completions", &body).await;
        assert_eq!((again, cached(&answer)), (home, 160), "{model}");
    }
    rig.front.assert_guards_at_zero().await;
}
