//! A client that sees everything: frames, trailers, and how a body ends.

use std::{convert::Infallible, net::SocketAddr};

use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::TcpStream;

pub(crate) type Body = BoxBody<Bytes, Infallible>;

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
    pub(crate) trailers: HeaderMap,
    /// The body ended as it should.
    pub(crate) whole: bool,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|wrong| panic!("{wrong}: {}", self.body))
    }

    /// Data of the events of a stream.
    pub(crate) fn events(&self) -> Vec<Value> {
        let data = self.body.split("\n\n").filter(|event| !event.is_empty());
        data.map(|event| {
            let data = event.strip_prefix("data: ").expect("an event has data");
            serde_json::from_str(data).unwrap_or_else(|_| Value::from(data))
        })
        .collect()
    }
}

pub(crate) fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).boxed()
}

pub(crate) fn request(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Body,
) -> Request<Body> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "engine");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body).unwrap()
}

/// Sends on a connection of its own, HTTP/1.1; the answer's head.
pub(crate) async fn send(
    to: SocketAddr,
    request: Request<Body>,
) -> hyper::Result<Response<Incoming>> {
    let stream = TcpStream::connect(to).await.expect("connects");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    sender.send_request(request).await
}

/// The same with HTTP/2.
pub(crate) async fn send_h2(
    to: SocketAddr,
    mut request: Request<Body>,
) -> hyper::Result<Response<Incoming>> {
    let stream = TcpStream::connect(to).await.expect("connects");
    let executor = TokioExecutor::new();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(executor, TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    request.headers_mut().remove("host");
    let uri = format!("http://engine{}", request.uri());
    *request.uri_mut() = uri.parse().unwrap();
    sender.send_request(request).await
}

/// Reads an answer to its end.
pub(crate) async fn read(response: hyper::Result<Response<Incoming>>) -> Reply {
    let (parts, mut body) = response.expect("an answer").into_parts();
    let (mut bytes, mut trailers, mut whole) = (Vec::new(), HeaderMap::new(), true);
    while let Some(frame) = body.frame().await {
        match frame.map(http_body::Frame::into_data) {
            Ok(Ok(data)) => bytes.extend_from_slice(&data),
            Ok(Err(frame)) => trailers = frame.into_trailers().unwrap_or_default(),
            Err(_) => {
                whole = false;
                break;
            }
        }
    }
    Reply {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: String::from_utf8(bytes).unwrap(),
        trailers,
        whole,
    }
}

pub(crate) async fn get(to: SocketAddr, path: &str) -> Reply {
    read(send(to, request("GET", path, &[], full(""))).await).await
}

pub(crate) async fn post(to: SocketAddr, path: &str, body: &Value) -> Reply {
    post_with(to, path, &[], body).await
}

pub(crate) async fn post_with(
    to: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: &Value,
) -> Reply {
    let mut all = vec![("content-type", "application/json")];
    all.extend(headers);
    read(send(to, request("POST", path, &all, full(body.to_string()))).await).await
}
