//! Who makes the tokens of a prompt, and what becomes of an engine that changes: our tokens against the engine's, engines
//! and services in our place, media, sleep, other ports.

use serde_json::{Value, json};
use wicketgate_sim::engine::{FailureConfig, KvShape};
use wicketgate_testkit::{
    TempDir,
    cluster::{Command, Front},
    eventually,
};

use crate::{
    prefix::{CHAT, Engine, Rig, Talk, cached, loopback, tokenizer, words},
    wicketgate,
};

/// No test is about the time: an engine on a busy machine may take long.
const PATIENT: &str = "  engineTokens: {timeout: 60s}\n";

async fn engines(count: usize) -> Vec<Engine> {
    let mut engines = Vec::new();
    for _ in 0..count {
        engines.push(Engine::start(false).await);
    }
    engines
}

async fn view(rig: &Rig) -> Value {
    rig.front.view("/debug/index").await
}

async fn prompts(rig: &Rig, how: &str) -> u64 {
    view(rig).await["prompts"][how].as_u64().unwrap()
}

async fn trusted(rig: &Rig, wanted: bool) {
    eventually("another trust", || async {
        (view(rig).await["trusted"]["m"] == wanted).then_some(())
    })
    .await;
}

/// Chats over all engines: the index says before each turn what the engine then reports.
async fn talk(rig: &Rig, turns: u32) -> u64 {
    let mut talks: Vec<Talk> = (0..2).map(|_| Talk::new("m", None)).collect();
    let mut hits = 0;
    for turn in 0..turns {
        let (credits, at, cached) = talks[(turn % 2) as usize].turn(rig).await;
        assert_eq!(credits[at], cached, "turn {turn}: {credits:?} at {at}");
        assert_eq!(credits.iter().max(), Some(&cached), "turn {turn}");
        assert_eq!(cached > 0, turn > 1, "turn {turn}");
        hits += cached;
    }
    hits
}

/// Files that are not the model's: an engine says so at once, and makes the tokens from then on.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_files_are_noticed_and_engines_make_the_tokens() {
    for command in [Command::Serve, Command::Epp] {
        let files = TempDir::new();
        tokenizer(&files);
        files.write(
            "chat_template.jinja",
            "{% for message in messages %}<user>{{ message.content }}<end>{% endfor %}",
        );
        let index = format!(
            "kvIndex:\n  tokenizers:\n  - {{model: m, path: \"{}\"}}\n  events: {{mode: connect}}\n{PATIENT}",
            files.path().display()
        );
        let Some(rig) = Rig::with_index(command, engines(3).await, files, &index, &[]).await else {
            return;
        };
        trusted(&rig, false).await;
        let mismatches = rig
            .front
            .metric(&["kvindex_token_checks_total", "result=\"mismatch\""]);
        assert!(mismatches.await >= 1.0);
        let gauge = rig
            .front
            .metric(&["kvindex_tokenizer_trusted{model=\"m\"}"])
            .await;
        assert_eq!(gauge, 0.0);
        assert!(talk(&rig, 10).await > 0);
        assert_eq!(prompts(&rig, "engine").await, 10);
        // An engine that cannot tell holds nobody up.
        for engine in &rig.engines {
            let failure = FailureConfig {
                tokenize_status: Some(503),
                ..FailureConfig::default()
            };
            engine.handle.set_failure(failure).unwrap();
        }
        rig.send(CHAT, &Talk::new("m", None).body).await;
        assert_eq!(prompts(&rig, "engine_silent").await, 1);
        rig.front.assert_guards_at_zero().await;
    }
}

/// A difference in live prompts, and its end.
#[tokio::test(flavor = "multi_thread")]
async fn prompts_go_by_load_until_tokens_are_the_engines_again() {
    let files = TempDir::new();
    tokenizer(&files);
    let index = format!(
        "kvIndex:\n  tokenizers:\n  - {{model: m, path: \"{}\"}}\n  tokenCheck: {{probe: false, sample: 1, onMismatch: load}}\n  events: {{mode: connect}}\n{PATIENT}",
        files.path().display()
    );
    let rig = Rig::with_index(Command::Serve, engines(2).await, files, &index, &[]).await;
    let rig = rig.unwrap();
    assert!(talk(&rig, 4).await > 0);
    let skew = |by| {
        for engine in &rig.engines {
            let failure = FailureConfig {
                tokenize_skew: by,
                ..FailureConfig::default()
            };
            engine.handle.set_failure(failure).unwrap();
        }
    };
    let any = Talk::new("m", None).body;
    skew(3);
    eventually("a difference", || async {
        rig.send(CHAT, &any).await;
        (view(&rig).await["trusted"]["m"] == false).then_some(())
    })
    .await;
    let before = prompts(&rig, "mismatch").await;
    rig.send(CHAT, &any).await;
    assert_eq!(prompts(&rig, "mismatch").await, before + 1);
    assert_eq!(rig.credits(&any).await, [0, 0]);
    skew(0);
    eventually("trust", || async {
        rig.send(CHAT, &any).await;
        (view(&rig).await["trusted"]["m"] == true).then_some(())
    })
    .await;
    assert!(talk(&rig, 4).await > 0);
    rig.front.assert_guards_at_zero().await;
}

/// A model without files: its engines are asked, or a service that renders.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_needs_no_files() {
    for (command, service) in [
        (Command::Serve, false),
        (Command::Serve, true),
        (Command::Epp, false),
    ] {
        let engines = engines(3).await;
        let source = match service {
            true => format!("renderUrl: \"http://{}\"", engines[0].handle.address()),
            false => "engine: true".to_owned(),
        };
        let index = format!(
            "kvIndex:\n  tokenizers:\n  - {{model: m, {source}}}\n  events: {{mode: connect}}\n{PATIENT}"
        );
        let rig = Rig::with_index(command, engines, TempDir::new(), &index, &[]).await;
        let Some(rig) = rig else { return };
        assert!(talk(&rig, 8).await > 0);
        assert_eq!(prompts(&rig, "engine").await, 8);
        assert_eq!(view(&rig).await["trusted"], json!({}));
        rig.front.assert_guards_at_zero().await;
    }
}

/// An exact prefix set-up in llm-d's words.
#[tokio::test(flavor = "multi_thread")]
async fn an_llm_d_file_with_exact_prefixes_runs_unchanged() {
    let engine = Engine::start(true).await;
    let (api, events) = (engine.handle.address(), engine.publisher.events().port());
    let replay = engine.publisher.replay().unwrap().port();
    let file = format!(
        "kind: EndpointPickerConfig\napiVersion: llm-d.ai/v1alpha1\nplugins:
- {{type: token-producer, parameters: {{modelName: m, vllm: {{url: \"http://{api}\", timeout: 60s}}}}}}
- {{type: endpoint-notification-source}}
- type: precise-prefix-cache-producer
  parameters:
    tokenProcessorConfig: {{blockSizeTokens: 16, hashSeed: \"42\"}}
    speculativeIndexing: true
    kvEventsConfig:
      topicFilter: \"kv@\"
      discoverPods: true
      podDiscoveryConfig: {{socketPort: {events}, replaySocketPort: {replay}}}
- {{type: prefix-cache-scorer, parameters: {{prefixMatchInfoProducerName: precise-prefix-cache-producer}}}}
- {{type: token-load-scorer}}
- {{type: max-score-picker}}
dataLayer:
  sources:
  - pluginRef: endpoint-notification-source
    extractors:
    - {{pluginRef: precise-prefix-cache-producer}}
schedulingProfiles:
- name: default
  plugins:
  - {{pluginRef: prefix-cache-scorer, weight: 2}}
  - {{pluginRef: token-load-scorer}}
  - {{pluginRef: max-score-picker}}
"
    );
    let pool = format!("  endpoints:\n  - {{name: e0, address: \"{api}\"}}\n");
    let front = Front::start_with(wicketgate(), Command::Serve, &pool, "", &file, &[]).await;
    front.wait_scraped(1).await;
    let rig = Rig::before(front, vec![engine]);
    rig.heard(0).await;
    rig.all_exact().await;
    assert!(talk(&rig, 6).await > 0);
    assert_eq!(prompts(&rig, "engine").await, 6);
}

/// Of a chat with an image the blocks before the image are known, on both fronts: it goes where they are.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_does_not_hide_what_comes_before_it() {
    for command in [Command::Serve, Command::Epp] {
        let files = TempDir::new();
        tokenizer(&files);
        let index = format!(
            "kvIndex:\n  tokenizers:\n  - {{model: m, path: \"{}\"}}\n  tokenCheck: {{probe: false}}\n  events: {{mode: connect}}\n",
            files.path().display()
        );
        let Some(rig) = Rig::with_index(command, engines(3).await, files, &index, &[]).await else {
            return;
        };
        let mut talk = Talk::new("m", None);
        let (_, home, _) = talk.turn(&rig).await;
        let image = |data: &str| json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{data}")}});
        let mut chat = Talk::new("m", None).body;
        chat["messages"][0] = talk.body["messages"][0].clone();
        let parts = json!([{"type": "text", "text": words(40)}, image("AAAA")]);
        chat["messages"]
            .as_array_mut()
            .unwrap()
            .push(json!({"role": "user", "content": parts}));
        rig.caught_up().await;
        let mut expected = vec![0; 3];
        // The mark of its role, 70 words, its end, and the mark of the user's.
        expected[home] = 73 / 16 * 16;
        assert_eq!(rig.credits(&chat).await, expected);
        let (at, answer) = rig.send(CHAT, &chat).await;
        assert_eq!((at, cached(&answer)), (home, expected[home]));
        // The same again: all of it is cached there now, but only what comes before the image is known to be.
        rig.caught_up().await;
        assert_eq!(rig.credits(&chat).await, expected);
        let (at, answer) = rig.send(CHAT, &chat).await;
        assert_eq!(at, home);
        assert!(cached(&answer) > expected[home]);
        assert_eq!(prompts(&rig, "before_media").await, 2);
        rig.front.assert_guards_at_zero().await;
    }
}

/// C32: a sleeping engine says nothing of its cache, but its metrics say that it sleeps.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_sleeps_is_not_credited() {
    let index = "kvIndex:\n  events: {mode: connect}\n";
    let rig = Rig::with_index(Command::Serve, engines(1).await, TempDir::new(), index, &[]).await;
    let rig = rig.unwrap();
    let ids: Vec<u32> = (0..161).map(|at| 6000 + at).collect();
    let body = json!({"model": "m", "prompt": ids, "max_tokens": 4});
    rig.send("/v1/completions", &body).await;
    rig.caught_up().await;
    assert_eq!(rig.credits(&body).await, [160]);
    let told = rig.engines[0].publisher.published();
    let state = |path: &'static str| {
        let to = rig.engines[0].handle.address();
        wicketgate_testkit::client::call(to, "POST", path, &[], "")
    };
    assert_eq!(state("/sleep?level=1").await.status, 200);
    eventually("nothing credited", || async {
        (rig.credits(&body).await == [0]).then_some(())
    })
    .await;
    assert_eq!(
        rig.engines[0].publisher.published(),
        told,
        "no event said so"
    );
    assert_eq!(state("/wake_up").await.status, 200);
    let (_, answer) = rig.send("/v1/completions", &body).await;
    assert_eq!(cached(&answer), 0);
    rig.caught_up().await;
    eventually("credit again", || async {
        (rig.credits(&body).await == [160]).then_some(())
    })
    .await;
    rig.front.assert_guards_at_zero().await;
}

/// An engine that says where it publishes comes back with other ports, under the same address.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_comes_back_is_asked_anew_where_it_publishes() {
    let engine = Engine::start(true).await;
    let api = engine.handle.address();
    let pool = format!("  endpoints:\n  - {{name: e0, address: \"{api}\"}}\n");
    let index = "kvIndex:\n  approximate: false\n  events: {mode: discover}\n";
    let front = Front::start_with(wicketgate(), Command::Serve, &pool, "", index, &[]).await;
    front.wait_scraped(1).await;
    let mut rig = Rig::before(front, vec![engine]);
    let ids: Vec<u32> = (0..161).map(|at| 6000 + at).collect();
    let body = json!({"model": "m", "prompt": ids, "max_tokens": 4});
    for life in 0..3 {
        if life > 0 {
            let engine = rig.engines.remove(0);
            engine.handle.stop().await;
            engine.publisher.stop().await;
            let replay = (life == 1).then(loopback);
            let again = Engine::start_at(api, loopback(), replay, KvShape::Map).await;
            rig.engines.push(again);
        }
        eventually("a source of this life", || async {
            let source = rig.source(0).await;
            let last = rig.engines[0].publisher.published().checked_sub(1);
            if last.is_some() && source["connected"] == true && source["last"].as_u64() == last {
                return Some(());
            }
            // Something new each time, so that there is something to say.
            let some: Vec<u32> = (0..17).map(|_| fastrand::u32(7000..90_000)).collect();
            let some = json!({"model": "m", "prompt": some, "max_tokens": 1});
            rig.engines[0].post("/v1/completions", &some).await;
            None
        })
        .await;
        assert_eq!(rig.credits(&body).await, [0], "life {life}");
        let (_, answer) = rig.send("/v1/completions", &body).await;
        assert_eq!(cached(&answer), 0, "life {life}");
        rig.caught_up().await;
        assert_eq!(rig.credits(&body).await, [160], "life {life}");
        let (_, answer) = rig.send("/v1/completions", &body).await;
        assert_eq!(cached(&answer), 160, "life {life}");
    }
    rig.front.assert_guards_at_zero().await;
}

/// Nothing is said of events: where prompts have tokens, engines that publish are found; elsewhere picks are remembered.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_word_engines_that_publish_are_listened_to_if_that_is_of_use() {
    let engines = engines(2).await;
    let lines = (0..).zip(&engines).map(|(at, engine)| {
        let address = engine.handle.address();
        format!("  - {{name: e{at}, address: \"{address}\"}}\n")
    });
    let pool = format!("  endpoints:\n{}", lines.collect::<String>());
    let index = "kvIndex: {tokenizers: [{model: m, engine: true}]}\n";
    let front = Front::start_with(wicketgate(), Command::Serve, &pool, "", index, &[]).await;
    front.wait_scraped(2).await;
    let rig = Rig::before(front, engines);
    for at in 0..2 {
        rig.heard(at).await;
    }
    rig.all_exact().await;
    let ids: Vec<u32> = (0..161).map(|at| 6000 + at).collect();
    let body = json!({"model": "m", "prompt": ids, "max_tokens": 4});
    let (home, _) = rig.send("/v1/completions", &body).await;
    rig.caught_up().await;
    let mut expected = vec![0; 2];
    expected[home] = 160;
    assert_eq!(rig.credits(&body).await, expected);
    let (at, answer) = rig.send("/v1/completions", &body).await;
    assert_eq!((at, cached(&answer)), (home, 160));
    let other = Front::start_with(wicketgate(), Command::Serve, &pool, "", "", &[]).await;
    other.wait_scraped(2).await;
    let view = other.view("/debug/index").await;
    let none = json!({"exact": 0, "approximate": 2});
    assert_eq!((&view["endpoints"], &view["sources"]), (&none, &json!([])));
    let off = "kvIndex: {enabled: false}\n";
    let without = Front::start_with(wicketgate(), Command::Serve, &pool, "", off, &[]).await;
    assert_eq!(without.view("/debug/index").await, Value::Null);
}
