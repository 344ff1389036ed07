//! A model server whose metrics page and answers a test writes, down to the pieces in which they are sent.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
};

/// What is sent back.
#[derive(Clone, Debug)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Header lines, `content-type` among them.
    pub headers: Vec<(&'static str, String)>,
    /// The body: each piece is an HTTP chunk of its own.
    pub pieces: Vec<Bytes>,
    /// How long it takes to begin.
    pub after: Duration,
    /// The last piece waits for a permit.
    pub hold: Option<Arc<Semaphore>>,
}

impl Reply {
    /// A whole answer of this status and type.
    pub fn new(status: u16, kind: &str, body: impl Into<Bytes>) -> Reply {
        Reply {
            status,
            headers: vec![("content-type", kind.to_owned())],
            pieces: vec![body.into()],
            after: Duration::ZERO,
            hold: None,
        }
    }

    /// A metrics page.
    pub fn page(text: &str) -> Reply {
        Reply::new(200, "text/plain; version=0.0.4", text.to_owned())
    }

    /// A stream of events in these pieces.
    pub fn events(pieces: Vec<Bytes>) -> Reply {
        Reply {
            pieces,
            ..Reply::new(200, "text/event-stream", "")
        }
    }
}

/// The metrics page of an idle vLLM.
pub const IDLE: &str = "vllm:num_requests_running{model_name=\"m\"} 0\n\
    vllm:num_requests_waiting{model_name=\"m\"} 0\n\
    vllm:kv_cache_usage_perc{model_name=\"m\"} 0\n";

type Script = Arc<dyn Fn(u64) -> Reply + Send + Sync>;

struct Shared {
    page: Mutex<Reply>,
    scrapes: AtomicU64,
    answer: Script,
    requests: AtomicU64,
}

/// The server. Dropping it closes everything.
pub struct Scripted {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Scripted {
    /// Starts one with this metrics page; `answer` is what its requests get, by their number from 0.
    pub async fn start(
        page: Reply,
        answer: impl Fn(u64) -> Reply + Send + Sync + 'static,
    ) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            page: Mutex::new(page),
            scrapes: AtomicU64::new(0),
            answer: Arc::new(answer),
            requests: AtomicU64::new(0),
        });
        let served = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.spawn(connection(stream, Arc::clone(&served)));
            }
        });
        Scripted {
            address,
            shared,
            task,
        }
    }

    /// One that answers `{}` to everything, with this metrics page.
    pub async fn with_page(page: &str) -> Scripted {
        Scripted::start(Reply::page(page), |_| {
            Reply::new(200, "application/json", "{}")
        })
        .await
    }

    /// Another metrics page from now on.
    pub fn set_page(&self, page: Reply) {
        *self.shared.page.lock().unwrap() = page;
    }

    /// Scrapes that it answered.
    pub fn scrapes(&self) -> u64 {
        self.shared.scrapes.load(Ordering::SeqCst)
    }

    /// Requests that it got, scrapes not counted.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::SeqCst)
    }
}

async fn connection(mut stream: TcpStream, shared: Arc<Shared>) {
    stream.set_nodelay(true).unwrap();
    let mut read = Vec::new();
    while let Some(asked) = request(&mut stream, &mut read).await {
        let reply = match asked {
            Asked::Scrape => {
                shared.scrapes.fetch_add(1, Ordering::SeqCst);
                shared.page.lock().unwrap().clone()
            }
            Asked::Sources => Reply::new(404, "application/json", "{}"),
            Asked::Other => (shared.answer)(shared.requests.fetch_add(1, Ordering::SeqCst)),
        };
        tokio::time::sleep(reply.after).await;
        if send(&mut stream, &reply).await.is_err() {
            return;
        }
    }
}

/// What a connection asks for.
enum Asked {
    Scrape,
    /// Where it publishes KV events: nowhere.
    Sources,
    Other,
}

/// Reads a request away; what it was, or nothing at the connection's end. Bodies have a length.
async fn request(stream: &mut TcpStream, read: &mut Vec<u8>) -> Option<Asked> {
    loop {
        if let Some(end) = find(read, b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&read[..end]).to_lowercase();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length:"));
            let length: usize = length.map_or(0, |length| length.trim().parse().unwrap());
            if read.len() >= end + 4 + length {
                read.drain(..end + 4 + length);
                return Some(if head.starts_with("get /metrics ") {
                    Asked::Scrape
                } else if head.starts_with("get /kv_event_sources ") {
                    Asked::Sources
                } else {
                    Asked::Other
                });
            }
        }
        if stream.read_buf(read).await.unwrap_or(0) == 0 {
            return None;
        }
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|part| part == wanted)
}

async fn send(stream: &mut TcpStream, reply: &Reply) -> std::io::Result<()> {
    let mut head = format!(
        "HTTP/1.1 {} X\r\ntransfer-encoding: chunked\r\n",
        reply.status
    );
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).await?;
    for (number, piece) in reply.pieces.iter().enumerate() {
        if let (true, Some(hold)) = (number + 1 == reply.pieces.len(), &reply.hold) {
            hold.acquire().await.unwrap().forget();
        }
        // An empty chunk would be the end.
        if piece.is_empty() {
            continue;
        }
        let mut chunk = format!("{:x}\r\n", piece.len()).into_bytes();
        chunk.extend_from_slice(piece);
        chunk.extend_from_slice(b"\r\n");
        stream.write_all(&chunk).await?;
    }
    stream.write_all(b"0\r\n\r\n").await
}
