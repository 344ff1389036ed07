//! A scripted Envoy: speaks ext_proc to a picker, message by message.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use prost_types::{ListValue, Struct, Value, value::Kind};
use tokio::{net::TcpStream, sync::mpsc, task::JoinHandle};
use tonic::{Status, Streaming, body::Body, client::Grpc};
use tonic_prost::ProstCodec;
use wicketgate_epp::extproc::proto::{
    HeaderMap, HeaderValue, HttpBody, HttpHeaders, HttpTrailers, Metadata, Phase,
    ProcessingRequest, ProcessingResponse, ProtocolConfiguration,
};

use crate::said::Said;

const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// An HTTP/2 connection as a gRPC channel.
#[derive(Clone)]
struct Channel(http2::SendRequest<Body>);

impl tower_service::Service<http::Request<Body>> for Channel {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// A connection to a picker.
pub struct Proxy {
    channel: Channel,
    address: SocketAddr,
    driver: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Proxy {
    /// Connects to a picker.
    pub async fn connect(address: SocketAddr) -> Proxy {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (sender, connection) = handshake.unwrap();
        let driver = tokio::spawn(async move { drop(connection.await) });
        Proxy {
            channel: Channel(sender),
            address,
            driver,
        }
    }

    /// Opens a stream for one request.
    pub async fn open(&self, modes: (i32, i32)) -> Exchange {
        let (to, from) = mpsc::channel(64);
        Exchange {
            to: Some(to),
            answers: self.process(from).await,
            modes: Some(ProtocolConfiguration {
                request_body_mode: modes.0,
                response_body_mode: modes.1,
            }),
            metadata: Bytes::new(),
            observe: false,
        }
    }

    /// Sends one message that cannot be decoded; how the picker ends the stream.
    pub async fn garbage(&self) -> Result<Option<ProcessingResponse>, Status> {
        let (to, from) = mpsc::channel(1);
        let mut answers = self.process(from).await;
        to.send(Garbage { request_headers: 7 }).await.unwrap();
        crate::must("the stream's end", answers.message()).await
    }

    /// Asks for a service's health, as the gRPC health protocol has it.
    pub async fn health(&self, service: &str) -> Health {
        let origin = format!("http://{}", self.address).parse().unwrap();
        let mut grpc = Grpc::with_origin(self.channel.clone(), origin);
        grpc.ready().await.unwrap();
        let codec = ProstCodec::<HealthRequest, HealthResponse>::default();
        let path = http::uri::PathAndQuery::from_static("/grpc.health.v1.Health/Check");
        let service = service.to_owned();
        let asked = grpc.unary(tonic::Request::new(HealthRequest { service }), path, codec);
        match crate::must("a health answer", asked).await {
            Ok(answer) => match answer.into_inner().status {
                1 => Health::Serving,
                2 => Health::NotServing,
                other => panic!("health status {other}"),
            },
            Err(status) if status.code() == tonic::Code::NotFound => Health::Unknown,
            Err(status) => panic!("{status}"),
        }
    }

    async fn process<T>(&self, messages: mpsc::Receiver<T>) -> Streaming<ProcessingResponse>
    where
        T: prost::Message + Send + Sync + 'static,
    {
        let origin = format!("http://{}", self.address).parse().unwrap();
        let mut grpc = Grpc::with_origin(self.channel.clone(), origin);
        grpc.ready().await.unwrap();
        let codec = ProstCodec::<T, ProcessingResponse>::default();
        let path = http::uri::PathAndQuery::from_static(PROCESS);
        let request = tonic::Request::new(Outbound(messages));
        let answers = grpc.streaming(request, path, codec).await;
        answers.unwrap().into_inner()
    }
}

/// What a health check says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It works.
    Serving,
    /// It does not.
    NotServing,
    /// There is no such service.
    Unknown,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct HealthResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// A number where [`ProcessingRequest`] has a message.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Garbage {
    #[prost(uint32, tag = "2")]
    request_headers: u32,
}

struct Outbound<T>(mpsc::Receiver<T>);

impl<T> futures_core::Stream for Outbound<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_recv(context)
    }
}

/// One request's stream.
pub struct Exchange {
    to: Option<mpsc::Sender<ProcessingRequest>>,
    answers: Streaming<ProcessingResponse>,
    modes: Option<ProtocolConfiguration>,
    metadata: Bytes,
    observe: bool,
}

/// Metadata: a list of texts.
pub fn list(entries: &[&str]) -> Kind {
    let entry = |text: &&str| Value {
        kind: Some(Kind::StringValue((*text).to_owned())),
    };
    Kind::ListValue(ListValue {
        values: entries.iter().map(entry).collect(),
    })
}

/// Headers as Envoy sends them.
pub fn headers(lines: &[(&str, &str)]) -> Option<HeaderMap> {
    let header = |(key, value): &(&str, &str)| HeaderValue {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Bytes::new(),
        raw_value: Bytes::copy_from_slice(value.as_bytes()),
    };
    Some(HeaderMap {
        headers: lines.iter().map(header).collect(),
    })
}

impl Exchange {
    /// Envoy goes on without waiting for answers.
    #[must_use]
    pub fn observing(mut self) -> Exchange {
        self.observe = true;
        self
    }

    /// An Envoy that does not announce its modes, as before 1.31.
    #[must_use]
    pub fn unannounced(mut self) -> Exchange {
        self.modes = None;
        self
    }

    /// Sets the metadata that goes along with every further message: one value in one namespace.
    pub fn metadata(&mut self, namespace: &str, key: &str, value: Kind) {
        let value = Value { kind: Some(value) };
        let fields = BTreeMap::from([(key.to_owned(), value)]);
        let metadata = Metadata {
            filter_metadata: BTreeMap::from([(namespace.to_owned(), Struct { fields })]),
        };
        self.metadata = metadata.encode_to_vec().into();
    }

    /// Sends a phase.
    pub async fn send(&mut self, phase: Phase) {
        assert!(self.try_send(phase).await, "the picker ended the stream");
    }

    /// Sends a phase; false when the picker has ended the stream.
    pub async fn try_send(&mut self, phase: Phase) -> bool {
        let message = ProcessingRequest {
            phase: Some(phase),
            metadata_context: self.metadata.clone(),
            observability_mode: self.observe,
            protocol_config: self.modes.take(),
        };
        match &self.to {
            Some(to) => to.send(message).await.is_ok(),
            None => false,
        }
    }

    /// Ends our side.
    pub fn half_close(&mut self) {
        self.to = None;
    }

    /// The next answer, which must come, in words.
    pub async fn said(&mut self) -> Said {
        let answer = self.answer().await.unwrap();
        answer.expect("the picker ended the stream").into()
    }

    /// Sends the caller's headers.
    pub async fn request_headers(&mut self, method: &str, path: &str, end: bool) {
        let headers = headers(&[
            (":method", method),
            (":path", path),
            (":authority", "gateway"),
        ]);
        self.send(Phase::RequestHeaders(HttpHeaders {
            headers,
            end_of_stream: end,
        }))
        .await;
    }

    /// Sends a piece of the caller's body.
    pub async fn request_body(&mut self, data: impl Into<Bytes>, end: bool) {
        self.send(Phase::RequestBody(HttpBody {
            body: data.into(),
            end_of_stream: end,
        }))
        .await;
    }

    /// Sends the caller's trailers.
    pub async fn request_trailers(&mut self) {
        self.send(Phase::RequestTrailers(HttpTrailers {})).await;
    }

    /// Sends the endpoint's headers.
    pub async fn response_headers(&mut self, status: &str, end: bool) {
        let headers = headers(&[(":status", status), ("content-type", "application/json")]);
        self.send(Phase::ResponseHeaders(HttpHeaders {
            headers,
            end_of_stream: end,
        }))
        .await;
    }

    /// Sends a piece of the endpoint's body.
    pub async fn response_body(&mut self, data: impl Into<Bytes>, end: bool) {
        self.send(Phase::ResponseBody(HttpBody {
            body: data.into(),
            end_of_stream: end,
        }))
        .await;
    }

    /// Ends our side, as a proxy does when the request is over; the picker then ends its own, without more answers.
    pub async fn finish(mut self) {
        self.half_close();
        let waited = tokio::time::timeout(crate::PATIENCE, self.answers.message()).await;
        let last = waited.expect("the picker does not end its side");
        assert!(matches!(last, Ok(None)), "{last:?}");
    }

    /// The next answer; `None` when the picker has closed its side properly.
    pub async fn answer(&mut self) -> Result<Option<ProcessingResponse>, Status> {
        let waited = tokio::time::timeout(crate::PATIENCE, self.answers.message()).await;
        waited.expect("no answer in time")
    }
}
