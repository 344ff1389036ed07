//! Callers.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::BoxBody};
use hyper::{
    body::{Frame, Incoming},
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinHandle,
};

/// A request's body.
pub type Body = BoxBody<Bytes, std::io::Error>;

/// Which HTTP a caller speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.1
    H1,
    /// HTTP/2 without TLS, by prior knowledge
    H2,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Status.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
    /// Trailers.
    pub trailers: HeaderMap,
}

impl Answer {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// A header as text; empty when absent.
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    /// The answer is an error of ours: OpenAI-shaped JSON with this status and code.
    pub fn assert_error(&self, status: u16, code: &str) {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        assert_eq!(self.header("content-type"), "application/json");
        let error = &self.json()["error"];
        assert_eq!(error["code"], code, "{self:?}");
        assert!(error["message"].is_string() && error["type"].is_string());
    }
}

enum Sender {
    H1(http1::SendRequest<Body>),
    H2(http2::SendRequest<Body>),
}

/// A connection; dropping it hangs up.
pub struct Caller {
    sender: Sender,
    driver: JoinHandle<()>,
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Caller {
    /// Connects.
    pub async fn connect(address: SocketAddr, version: Version) -> Caller {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let io = TokioIo::new(stream);
        match version {
            Version::H1 => {
                let (sender, connection) = http1::handshake(io).await.unwrap();
                let driver = tokio::spawn(async move { drop(connection.await) });
                let sender = Sender::H1(sender);
                Caller { sender, driver }
            }
            Version::H2 => {
                let handshake = http2::handshake(TokioExecutor::new(), io).await;
                let (sender, connection) = handshake.unwrap();
                let driver = tokio::spawn(async move { drop(connection.await) });
                let sender = Sender::H2(sender);
                Caller { sender, driver }
            }
        }
    }

    /// Sends a request; the answer's body is still to come.
    pub async fn send(
        &mut self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, hyper::Error> {
        match &mut self.sender {
            Sender::H1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Sender::H2(sender) => {
                sender.ready().await?;
                let (mut parts, body) = request.into_parts();
                let target = parts.uri.path_and_query().unwrap().as_str();
                parts.uri = format!("http://gateway{target}").parse().unwrap();
                parts.headers.remove(http::header::HOST);
                sender.send_request(Request::from_parts(parts, body)).await
            }
        }
    }

    /// Sends a request and reads the whole answer.
    pub async fn call(&mut self, request: Request<Body>) -> Answer {
        whole(self.send(request).await.unwrap()).await
    }
}

/// Reads an answer to its end.
pub async fn whole(response: Response<Incoming>) -> Answer {
    try_whole(response).await.unwrap()
}

/// Reads an answer to its end, if it has a proper one.
pub async fn try_whole(response: Response<Incoming>) -> Result<Answer, hyper::Error> {
    let (parts, body) = response.into_parts();
    let collected = body.collect().await?;
    Ok(Answer {
        status: parts.status,
        headers: parts.headers,
        trailers: collected.trailers().cloned().unwrap_or_default(),
        body: collected.to_bytes(),
    })
}

/// A body that is all there.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed()
}

/// A body in these pieces, without a length, with trailers if there are any.
pub fn pieces(pieces: Vec<Bytes>, trailers: Option<HeaderMap>) -> Body {
    struct Frames(std::vec::IntoIter<Frame<Bytes>>);
    impl futures_core::Stream for Frames {
        type Item = Result<Frame<Bytes>, std::io::Error>;
        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Self::Item>> {
            std::task::Poll::Ready(self.0.next().map(Ok))
        }
    }
    let mut frames: Vec<Frame<Bytes>> = pieces.into_iter().map(Frame::data).collect();
    frames.extend(trailers.map(Frame::trailers));
    StreamBody::new(Frames(frames.into_iter())).boxed()
}

/// A request with headers and a body.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: Body) -> Request<Body> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "gateway");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body).unwrap()
}

/// One request on a connection of its own.
pub async fn call(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Answer {
    let mut caller = Caller::connect(address, Version::H1).await;
    caller
        .call(request(method, path, headers, full(body)))
        .await
}

/// A chat request of `words` words.
pub fn chat(words: usize, max_tokens: u32, stream: bool) -> Bytes {
    let text = "word ".repeat(words);
    let mut body = json!({
        "model": "emulated", "max_tokens": max_tokens, "stream": stream,
        "messages": [{"role": "user", "content": text}],
    });
    if stream {
        body["stream_options"] = json!({"include_usage": true});
    }
    body.to_string().into()
}

/// A chat on a connection of its own.
pub async fn chat_call(address: SocketAddr, headers: &[(&str, &str)]) -> Answer {
    let mut all = vec![("content-type", "application/json")];
    all.extend_from_slice(headers);
    call(
        address,
        "POST",
        "/v1/chat/completions",
        &all,
        chat(5, 3, false),
    )
    .await
}

/// A stream that was begun: its connection, and the bytes read so far. Dropping it hangs up.
pub struct Begun {
    /// The connection.
    pub caller: Caller,
    /// What is still to come.
    pub body: Incoming,
    /// What came.
    pub seen: Vec<u8>,
}

impl Begun {
    /// Starts a chat stream and reads until `events` events are there.
    pub async fn start(address: SocketAddr, headers: &[(&str, &str)], events: usize) -> Begun {
        let mut caller = Caller::connect(address, Version::H1).await;
        let mut all = vec![("content-type", "application/json")];
        all.extend_from_slice(headers);
        let request = request(
            "POST",
            "/v1/chat/completions",
            &all,
            full(chat(5, 50, true)),
        );
        let response = caller.send(request).await.unwrap();
        assert_eq!(response.status(), 200);
        let mut begun = Begun {
            caller,
            body: response.into_body(),
            seen: Vec::new(),
        };
        while begun.events() < events {
            begun.read().await.expect("an event").unwrap();
        }
        begun
    }

    /// Events seen so far.
    pub fn events(&self) -> usize {
        self.seen.windows(2).filter(|pair| *pair == b"\n\n").count()
    }

    /// Reads a piece; `None` at a proper end.
    pub async fn read(&mut self) -> Option<Result<(), hyper::Error>> {
        let frame = tokio::time::timeout(crate::PATIENCE, self.body.frame()).await;
        match frame.expect("no piece in time")? {
            Ok(frame) => {
                if let Ok(data) = frame.into_data() {
                    self.seen.extend_from_slice(&data);
                }
                Some(Ok(()))
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// Reads to the end; true if it is a proper one.
    pub async fn ends_properly(&mut self) -> bool {
        loop {
            match self.read().await {
                None => return true,
                Some(Ok(())) => {}
                Some(Err(_)) => return false,
            }
        }
    }
}

/// Sends raw bytes and reads until the other side closes or `wait` is over.
pub async fn raw(address: SocketAddr, bytes: &[u8], wait: Duration) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(wait, stream.read_to_end(&mut answer)).await;
    drop(read);
    String::from_utf8_lossy(&answer).into_owned()
}
