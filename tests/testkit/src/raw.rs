//! Callers and servers that speak bytes: what no proper one would send, and hanging up in the middle.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};

use crate::must;

/// A socket. Dropping it hangs up.
pub struct Raw {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Raw {
    /// Connects.
    pub async fn open(address: SocketAddr) -> Raw {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Raw {
            stream,
            read: Vec::new(),
        }
    }

    /// Sends bytes; false when the other side has hung up.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).await.is_ok()
    }

    /// Reads until what was read contains `needle`, or the other side hangs up; all that was read.
    pub async fn until(&mut self, needle: &str) -> String {
        while !contains(&self.read, needle.as_bytes()) && must(needle, self.more()).await > 0 {}
        String::from_utf8_lossy(&self.read).into_owned()
    }

    /// Reads until more than `length` bytes were read, which must come; all that was read.
    pub async fn past(&mut self, length: usize) -> String {
        while self.read.len() <= length {
            assert!(
                must("more bytes", self.more()).await > 0,
                "the other side hung up"
            );
        }
        String::from_utf8_lossy(&self.read).into_owned()
    }

    /// Reads until the other side hangs up; all that was read.
    pub async fn rest(&mut self) -> String {
        while must("the connection's end", self.more()).await > 0 {}
        String::from_utf8_lossy(&self.read).into_owned()
    }

    /// Closes the socket with a reset instead of a goodbye.
    pub fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }

    /// Reads a request whose body, if it has one, has a length; its first line in small letters, `None` at the end.
    async fn request(&mut self) -> Option<String> {
        loop {
            let end = self.read.windows(4).position(|part| part == b"\r\n\r\n");
            if let Some(end) = end {
                let head = String::from_utf8_lossy(&self.read[..end]).to_lowercase();
                let mut lines = head.lines();
                let length = lines.find_map(|line| line.strip_prefix("content-length:"));
                let length: usize = length.map_or(0, |length| length.trim().parse().unwrap());
                if self.read.len() >= end + 4 + length {
                    self.read.drain(..end + 4 + length);
                    return Some(head.lines().next().unwrap_or_default().to_owned());
                }
            }
            if self.more().await == 0 {
                return None;
            }
        }
    }

    /// Reads once; 0 at the end, however it came.
    async fn more(&mut self) -> usize {
        self.stream.read_buf(&mut self.read).await.unwrap_or(0)
    }
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|part| part == needle)
}

/// What an [`Odd`] server does after a request's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Hangs up.
    HangUp,
    /// Says nothing, for ever.
    Silence,
    /// Answers with bytes that are not HTTP.
    Gibberish,
    /// Announces more body than it sends, then hangs up.
    ShortBody,
    /// Answers with these bytes, then hangs up.
    Last(&'static str),
    /// Answers with these bytes and waits for the next request.
    Answer(&'static str),
}

/// What an [`Odd`] server does, by the request's number on its connection, from 0.
type Script = Arc<dyn Fn(u64) -> Then + Send + Sync>;

/// A server that reads a request and then does not do what a server should. Its metrics page is in order and
/// shows an idle vLLM.
pub struct Odd {
    /// Where it listens.
    pub address: SocketAddr,
    task: JoinHandle<()>,
    requests: Arc<AtomicU64>,
}

impl Drop for Odd {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Odd {
    /// Starts one that always does the same.
    pub async fn start(then: Then) -> Odd {
        Odd::scripted(move |_| then).await
    }

    /// Starts one that goes by the request's number on its connection, from 0.
    pub async fn scripted(script: impl Fn(u64) -> Then + Send + Sync + 'static) -> Odd {
        let script: Script = Arc::new(script);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.spawn(odd(stream, Arc::clone(&script), Arc::clone(&count)));
            }
        });
        Odd {
            address,
            task,
            requests,
        }
    }

    /// Requests that it got, scrapes not counted.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

async fn odd(stream: TcpStream, script: Script, requests: Arc<AtomicU64>) {
    const PAGE: &str = "vllm:num_requests_running{model_name=\"m\"} 0\n\
        vllm:num_requests_waiting{model_name=\"m\"} 0\nvllm:kv_cache_usage_perc{model_name=\"m\"} 0\n";
    let mut socket = Raw {
        stream,
        read: Vec::new(),
    };
    let mut number = 0;
    while let Some(line) = socket.request().await {
        if line.starts_with("get /kv_event_sources ") {
            // It publishes nothing.
            let gone = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
            socket.send(gone).await;
            continue;
        }
        if line.starts_with("get /metrics ") {
            let length = PAGE.len();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{PAGE}");
            socket.send(head).await;
            continue;
        }
        requests.fetch_add(1, Ordering::Relaxed);
        let words = match script(number) {
            Then::HangUp => "",
            Then::Silence => std::future::pending().await,
            Then::Gibberish => "what do you mean?\r\n\r\n",
            Then::ShortBody => "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"id\":",
            Then::Last(words) => words,
            Then::Answer(words) => {
                number += 1;
                socket.send(words).await;
                continue;
            }
        };
        socket.send(words).await;
        return;
    }
}
