//! A real engine as a child process.

use std::{
    fmt::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    process::{Child, Command},
};
use wicketgate_testkit::{
    TempDir,
    client::{Answer, call},
    eventually, free_address, root,
};

use crate::say;

/// What the engine calls its model.
pub(crate) const MODEL: &str = "tiny";
/// Tokens per block; the CPU build takes multiples of 32 only.
pub(crate) const BLOCK: u64 = 32;
/// Blocks of its cache, one of which it never uses: few, so that what is old has to go.
pub(crate) const BLOCKS: u64 = 140;
/// Longest prompt and answer together, in tokens.
const LONGEST: u64 = 4096;
/// Longest wait for a start: three processes import half a gigabyte each, one after the other, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// Ends with the test, however that ends: the shell waits on a pipe from it, and ends its process group when the pipe
/// or the engine is gone.
const GUARD: &str =
    r#"exec 3<&0; { "$@" </dev/null 3<&-; kill -KILL 0; } & read -r _ <&3; kill -KILL 0"#;

/// An installation of vLLM and a model that it can serve.
pub(crate) struct Vllm {
    program: PathBuf,
    /// Files of the model.
    pub(crate) model: PathBuf,
    logs: TempDir,
}

/// How an engine publishes its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publishes {
    /// It listens on a port of its choice, another one after each start.
    AnyPort,
    /// It connects to whoever listens there.
    To(SocketAddr),
}

impl Vllm {
    /// Finds the installation and makes the model. Where it is missing, a visible line says so.
    pub(crate) async fn find() -> Option<Vllm> {
        let environment = root().join(".venv-vllm");
        if !environment.join(".wicketgate-vllm").exists() {
            say(
                "skipped: vLLM is not installed: run `make test-vllm`, which installs it (3 GB) and runs this",
            );
            return None;
        }
        let tokenizer = root().join(".venv/tokenizers/qwen3");
        assert!(
            tokenizer.join("tokenizer.json").exists(),
            "the tokenizer is absent: scripts/setup-test-env.sh"
        );
        let logs = TempDir::new();
        let model = logs.path().join("model");
        let made = Command::new(environment.join("bin/python"))
            .arg(root().join("tests/vllm/tiny_model.py"))
            .args([&model, &tokenizer])
            .output()
            .await
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        Some(Vllm {
            program: environment.join("bin/vllm"),
            model,
            logs,
        })
    }
}

/// A running engine. Its drop ends it.
pub(crate) struct Engine {
    vllm: Arc<Vllm>,
    publishes: Publishes,
    /// `None` when it was ended.
    guard: Option<Child>,
    starts: u32,
    /// Its API.
    pub(crate) api: SocketAddr,
    /// Where it repeats events.
    pub(crate) replay: SocketAddr,
}

impl Engine {
    /// Begins to start.
    pub(crate) fn start(vllm: &Arc<Vllm>, publishes: Publishes) -> Engine {
        let mut engine = Engine {
            vllm: Arc::clone(vllm),
            publishes,
            guard: None,
            starts: 0,
            api: free_address(),
            replay: free_address(),
        };
        engine.begin();
        engine
    }

    /// Begins to start with the same ports and an empty cache.
    pub(crate) fn begin(&mut self) {
        self.starts += 1;
        let log = std::fs::File::create(self.log()).unwrap();
        let guard = Command::new("/bin/sh")
            .args(["-c", GUARD, "sh"])
            .arg(&self.vllm.program)
            .args(self.arguments())
            .envs([
                ("HF_HUB_OFFLINE", "1"),
                ("TRANSFORMERS_OFFLINE", "1"),
                ("VLLM_NO_USAGE_STATS", "1"),
                ("DO_NOT_TRACK", "1"),
                // Nothing of it is reachable from elsewhere.
                ("VLLM_HOST_IP", "127.0.0.1"),
                ("VLLM_LOOPBACK_IP", "127.0.0.1"),
                ("VLLM_CPU_KVCACHE_SPACE", "1"),
                ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
                ("OMP_NUM_THREADS", "1"),
                // For `/reset_prefix_cache`.
                ("VLLM_SERVER_DEV_MODE", "1"),
            ])
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .process_group(0)
            .spawn()
            .unwrap();
        self.guard = Some(guard);
    }

    fn arguments(&self) -> Vec<String> {
        let endpoint = match self.publishes {
            Publishes::AnyPort => "tcp://*:0".to_owned(),
            Publishes::To(at) => format!("tcp://{at}"),
        };
        let events = json!({
            "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": endpoint,
            "replay_endpoint": format!("tcp://{}", self.replay),
            "topic": format!("kv@{}@{MODEL}", self.api),
        });
        let (port, model) = (self.api.port(), self.vllm.model.display());
        let mut line = format!(
            "serve {model} --host 127.0.0.1 --port {port} --served-model-name {MODEL} --dtype bfloat16 --enforce-eager"
        );
        write!(
            line,
            " --max-model-len {LONGEST} --block-size {BLOCK} --num-gpu-blocks-override {BLOCKS} --enable-prefix-caching \
             --enable-prompt-tokens-details --enable-auto-tool-choice --tool-call-parser hermes"
        )
        .unwrap();
        let mut all: Vec<String> = line.split(' ').map(str::to_owned).collect();
        all.extend(["--kv-events-config".to_owned(), events.to_string()]);
        all
    }

    fn log(&self) -> PathBuf {
        let name = format!("{}-{}.log", self.api.port(), self.starts);
        self.vllm.logs.path().join(name)
    }

    /// Waits until it serves.
    pub(crate) async fn ready(&mut self) {
        let until = std::time::Instant::now() + PATIENCE;
        loop {
            if TcpStream::connect(self.api).await.is_ok()
                && call(self.api, "GET", "/health", &[], "").await.status == 200
            {
                return;
            }
            let guard = self.guard.as_mut().unwrap();
            let gone = guard.try_wait().unwrap();
            assert!(
                gone.is_none() && std::time::Instant::now() < until,
                "the engine does not start: {}",
                last_lines(&self.log())
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Ends it at once, with all its processes, and waits until they are gone.
    pub(crate) async fn kill(&mut self) {
        let mut guard = self.guard.take().unwrap();
        drop(guard.stdin.take());
        guard.wait().await.unwrap();
        for port in [self.api, self.replay] {
            eventually("a port of a killed engine to close", || async move {
                TcpStream::connect(port).await.err()
            })
            .await;
        }
    }

    /// Where it listens for who wants its events, or whom it connects to.
    pub(crate) async fn listens(&self) -> Result<SocketAddr, SocketAddr> {
        if let Publishes::To(at) = self.publishes {
            return Err(at);
        }
        let said = call(self.api, "GET", "/kv_event_sources", &[], "").await;
        let said = said.json();
        let endpoint = said["0"]["endpoint"].as_str().unwrap();
        Ok(endpoint.strip_prefix("tcp://").unwrap().parse().unwrap())
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        let headers = [("content-type", "application/json")];
        call(self.api, "POST", path, &headers, body.to_string()).await
    }

    /// A completion of a prompt of token ids: what came, as [`crate::rig::Done`] reads it.
    pub(crate) async fn complete(&self, body: &Value) -> Value {
        let answer = self.post("/v1/completions", body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }
}

fn last_lines(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}
