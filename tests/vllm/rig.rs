//! `wicketgate serve` in front of the engines, and what the two say of a prompt.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use wicketgate_testkit::{
    PATIENCE,
    client::call,
    cluster::{Command, Front},
    eventually,
};

use crate::{
    engine::{BLOCK, Engine, MODEL, Vllm},
    wicketgate,
};

const CHAT: &str = "/v1/chat/completions";
const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

/// Where `serve` gets the engines' events from.
pub(crate) enum Events {
    Off,
    /// The engines say where they publish.
    Discover,
    /// It connects to these ports, and asks the engines to repeat what it missed.
    Connect([SocketAddr; 2]),
    /// Both come to this port; nothing is repeated.
    Listen(SocketAddr),
}

/// The gateway, and which address is which engine.
pub(crate) struct Rig {
    pub(crate) front: Front,
    engines: Vec<SocketAddr>,
}

/// A request that was served.
pub(crate) struct Done {
    /// Which engine.
    pub(crate) at: usize,
    /// Prompt tokens that it found cached.
    pub(crate) cached: u64,
    /// Everything that it computed: the prompt, and the answer without its last token.
    pub(crate) computed: Vec<u32>,
    /// What it said.
    pub(crate) text: String,
    /// The part of the cache that the request asked for.
    salt: Option<String>,
}

impl Rig {
    /// Starts it with blocks of `block` tokens.
    pub(crate) async fn start(
        vllm: &Arc<Vllm>,
        engines: &[Engine; 2],
        events: &Events,
        block: u64,
    ) -> Rig {
        let mut pool = "  endpoints:\n".to_owned();
        for (at, engine) in engines.iter().enumerate() {
            let labels = match events {
                Events::Connect(ports) => {
                    let (port, replay) = (ports[at].port(), engine.replay.port());
                    json!({"kv-events-port": port.to_string(), "kv-replay-port": replay.to_string()})
                }
                Events::Off | Events::Discover | Events::Listen(_) => json!({}),
            };
            pool += &format!(
                "  - {{name: e{at}, address: \"{}\", labels: {labels}}}\n",
                engine.api
            );
        }
        let events = match events {
            Events::Off => "mode: off".to_owned(),
            Events::Discover => "mode: discover".to_owned(),
            Events::Connect(_) => "mode: connect".to_owned(),
            Events::Listen(at) => format!("mode: listen, listen: \"{at}\""),
        };
        let extra = format!(
            "kvIndex:\n  blockSize: {block}\n  approximate: false\n  tokenizers:\n  - {{model: {MODEL}, path: \"{}\"}}\n  events: {{{events}}}\n",
            vllm.model.display()
        );
        let server = "  exposeServedBy: true\n";
        let front =
            Front::start_with(wicketgate(), Command::Serve, &pool, server, &extra, &[]).await;
        front.wait_scraped(2).await;
        Rig {
            front,
            engines: engines.iter().map(|engine| engine.api).collect(),
        }
    }

    /// Waits until the events of both engines come in.
    pub(crate) async fn listens(&self) {
        eventually("both engines' events", || async {
            let index = self.front.view("/debug/index").await;
            let all = json!({"exact": 2, "approximate": 0});
            (index["endpoints"] == all).then_some(())
        })
        .await;
    }

    /// What the index knows of a request.
    pub(crate) async fn lookup(&self, body: &Value) -> Value {
        let path = "/debug/index/lookup";
        let found = call(self.front.admin, "POST", path, &JSON, body.to_string()).await;
        assert_eq!(found.status, 200, "{found:?}");
        found.json()
    }

    /// Tokens of a request that each engine holds, by the index.
    pub(crate) async fn credits(&self, body: &Value) -> [u64; 2] {
        let found = self.lookup(body).await;
        let holders = found["endpoints"].as_array().unwrap();
        [0, 1].map(|at| {
            let name = format!("e{at}");
            let holder = holders.iter().find(|holder| holder["endpoint"] == *name);
            holder.map_or(0, |holder| holder["tokens"].as_u64().unwrap())
        })
    }

    /// A chat through `serve`: which engine served it, and the answer.
    pub(crate) async fn chat(&self, body: &Value) -> (usize, Value) {
        let answer = call(self.front.data, "POST", CHAT, &JSON, body.to_string()).await;
        assert_eq!(answer.status, 200, "{body}: {answer:?}");
        let by = answer.header("x-wicketgate-served-by");
        let at = |known: &SocketAddr| known.to_string() == by;
        let at = self.engines.iter().position(at);
        (at.unwrap_or_else(|| panic!("{answer:?}")), answer.json())
    }

    /// A chat through `serve`, and its blocks' way into the index.
    pub(crate) async fn turn(&self, body: &Value) -> Done {
        let (at, answer) = self.chat(body).await;
        let mut done = Done::read(at, &answer);
        done.salt = body["cache_salt"].as_str().map(str::to_owned);
        self.told(&done).await;
        done
    }

    /// Waits until the index knows what an engine computed, the answer's blocks too, which no pick promises. They come
    /// last, so everything before has come then.
    pub(crate) async fn told(&self, done: &Done) {
        let until = Instant::now() + PATIENCE;
        while !self.knows(done).await {
            assert!(
                Instant::now() < until,
                "not all of {} tokens at {}: {}",
                done.computed.len(),
                done.at,
                self.front.view("/debug/index").await
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Whether the index knows all that an engine computed; more it must never know.
    pub(crate) async fn knows(&self, done: &Done) -> bool {
        // One token more, as a cache never serves the last one.
        let ids = [&done.computed, &[0][..]].concat();
        let mut body = json!({"model": MODEL, "prompt": ids, "max_tokens": 1});
        if let Some(salt) = &done.salt {
            body["cache_salt"] = salt.as_str().into();
        }
        let credit = self.credits(&body).await[done.at];
        let whole = done.computed.len() as u64 / BLOCK * BLOCK;
        assert!(credit <= whole, "{credit} of {whole} tokens at {}", done.at);
        credit == whole
    }

    /// Of both sources of events together: a count of `/debug/index`.
    pub(crate) async fn count(&self, name: &str) -> u64 {
        let index = self.front.view("/debug/index").await;
        let sources = index["sources"].as_array().unwrap().iter();
        sources.map(|source| source[name].as_u64().unwrap()).sum()
    }

    /// Nothing that the engines said was unreadable or contradicted itself.
    pub(crate) async fn assert_understood(&self) {
        let counts = [self.count("skipped").await, self.count("mismatched").await];
        assert_eq!(counts, [0, 0]);
        self.front.assert_guards_at_zero().await;
    }
}

impl Done {
    /// Reads the answer to a chat or a completion that asked for token ids.
    pub(crate) fn read(at: usize, answer: &Value) -> Done {
        let choice = &answer["choices"][0];
        let prompt = match &answer["prompt_token_ids"] {
            Value::Null => &choice["prompt_token_ids"],
            of_a_chat => of_a_chat,
        };
        let mut computed = ids(prompt);
        computed.extend(ids(&choice["token_ids"]));
        computed.pop();
        let text = choice["message"]["content"].as_str();
        let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
        Done {
            at,
            cached: cached.as_u64().unwrap_or_else(|| panic!("{answer}")),
            computed,
            text: text.or(choice["text"].as_str()).unwrap().to_owned(),
            salt: None,
        }
    }
}

/// Token ids of an answer.
pub(crate) fn ids(list: &Value) -> Vec<u32> {
    let list = list.as_array().unwrap_or_else(|| panic!("{list}"));
    list.iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// A conversation that grows.
pub(crate) struct Talk {
    pub(crate) body: Value,
    pub(crate) turns: u64,
    random: fastrand::Rng,
}

impl Talk {
    /// Talks of the same `seed` say the same.
    pub(crate) fn new(seed: u64, salt: Option<&str>) -> Talk {
        let mut random = fastrand::Rng::with_seed(seed);
        let system = json!({"role": "system", "content": words(&mut random, 60)});
        let mut body = json!({
            "model": MODEL, "messages": [system], "max_tokens": 48, "ignore_eos": true, "return_token_ids": true,
            "seed": seed, "temperature": 1.0,
        });
        if let Some(salt) = salt {
            body["cache_salt"] = salt.into();
        }
        Talk {
            body,
            turns: 0,
            random,
        }
    }

    fn say(&mut self, role: &str, content: &str) {
        let message = json!({"role": role, "content": content});
        self.body["messages"].as_array_mut().unwrap().push(message);
    }

    /// The next question.
    pub(crate) fn ask(&mut self) {
        let count = self.random.usize(1..90);
        let question = words(&mut self.random, count);
        self.say("user", &question);
    }

    /// One turn: what the index says before it, and what became of it.
    pub(crate) async fn turn(&mut self, rig: &Rig) -> ([u64; 2], Done) {
        self.ask();
        let credits = rig.credits(&self.body).await;
        let done = rig.turn(&self.body).await;
        self.say("assistant", &done.text);
        self.turns += 1;
        (credits, done)
    }

    /// One turn, for which the index says what the engine then reports; how much that was.
    pub(crate) async fn exact_turn(&mut self, rig: &Rig, when: &str) -> u64 {
        let (credits, done) = self.turn(rig).await;
        assert_eq!(
            credits[done.at], done.cached,
            "{when}, turn {} at {}: {credits:?}",
            self.turns, done.at
        );
        done.cached
    }
}

/// A text of so many words, now and then with what is hard to tokenise.
pub(crate) fn words(random: &mut fastrand::Rng, count: usize) -> String {
    const WORDS: [&str; 16] = [
        "river",
        "bridge",
        "market",
        "Größe",
        "日本",
        "🙂",
        "3.14",
        "<think>",
        "counts\n",
        "\n\n",
        "the",
        "of",
        "is",
        "(x)",
        "{\"a\":1}",
        "<|im_end|>",
    ];
    let word = |_| WORDS[random.usize(..WORDS.len())];
    (0..count).map(word).collect::<Vec<_>>().join(" ")
}
