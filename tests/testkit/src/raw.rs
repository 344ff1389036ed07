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

    /// Reads until the other side hangs up; all that was read.
    pub async fn rest(&mut self) -> String {
        while must("the connection's end", self.more()).await > 0 {}
        String::from_utf8_lossy(&self.read).into_owned()
    }

    /// Closes the socket with a reset instead of a goodbye.
    pub fn reset(self) {
        self.stream.set_zero_linger().unwrap();
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
}

/// A server that reads a request's head and then does not do what a server should. Its metrics page is in order and
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
    /// Starts it.
    pub async fn start(then: Then) -> Odd {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.spawn(odd(stream, then, Arc::clone(&count)));
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

async fn odd(stream: TcpStream, then: Then, requests: Arc<AtomicU64>) {
    const PAGE: &str = "vllm:num_requests_running{model_name=\"m\"} 0\n\
        vllm:num_requests_waiting{model_name=\"m\"} 0\nvllm:kv_cache_usage_perc{model_name=\"m\"} 0\n";
    let mut socket = Raw {
        stream,
        read: Vec::new(),
    };
    loop {
        socket.read.clear();
        while !contains(&socket.read, b"\r\n\r\n") {
            if socket.more().await == 0 {
                return;
            }
        }
        if socket.read.starts_with(b"GET /metrics") {
            let length = PAGE.len();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{PAGE}");
            socket.send(head).await;
            continue;
        }
        requests.fetch_add(1, Ordering::Relaxed);
        let words = match then {
            Then::HangUp => "",
            Then::Silence => std::future::pending().await,
            Then::Gibberish => "what do you mean?\r\n\r\n",
            Then::ShortBody => "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"id\":",
        };
        socket.send(words).await;
        return;
    }
}
