//! Envoy's side of ext_proc: a gRPC connection, and one stream per request.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Instant,
};

use http::Uri;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpStream, sync::mpsc, task::JoinHandle};
use tonic::{Request, Streaming, body::Body, client::Grpc};
use tonic_prost::ProstCodec;
use wicketgate_epp::extproc::proto::{Answer, CommonAnswer, ProcessingRequest, ProcessingResponse};

use super::script::Script;

const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
const DESTINATION: &[u8] = b"x-gateway-destination-endpoint";
/// Messages of one phase; more than a 16 MiB body in pieces of 16 KiB has.
const MESSAGES: usize = 2048;

/// An HTTP/2 connection as a gRPC transport.
#[derive(Clone)]
struct Transport(http2::SendRequest<Body>);

impl tower_service::Service<http::Request<Body>> for Transport {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = hyper::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// Messages on their way.
struct Outbound(mpsc::Receiver<ProcessingRequest>);

impl futures_core::Stream for Outbound {
    type Item = ProcessingRequest;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<ProcessingRequest>> {
        self.0.poll_recv(context)
    }
}

/// A connection to a picker. Dropping it hangs up.
pub(super) struct Caller {
    transport: Transport,
    origin: Uri,
    driver: JoinHandle<()>,
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Caller {
    pub(super) async fn connect(address: SocketAddr) -> io::Result<Caller> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        // Windows as wide as Envoy's, so that the connection is not what is measured.
        let built = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(16 << 20)
            .initial_connection_window_size(256 << 20)
            .handshake(TokioIo::new(stream))
            .await;
        let (sender, connection) = built.map_err(io::Error::other)?;
        Ok(Caller {
            transport: Transport(sender),
            origin: format!("http://{address}")
                .parse()
                .map_err(io::Error::other)?,
            // How the connection ends shows in the streams on it.
            driver: tokio::spawn(async { drop(connection.await) }),
        })
    }

    /// Plays one request to its end. When its endpoint was named and its body had come back.
    ///
    /// # Errors
    /// What the picker did wrong.
    pub(super) async fn exchange(&self, script: &Script) -> Result<Instant, String> {
        let (to, from) = mpsc::channel(MESSAGES);
        send(&to, &script.request)?;
        let mut grpc = Grpc::with_origin(self.transport.clone(), self.origin.clone());
        grpc.ready().await.map_err(|error| error.to_string())?;
        let codec: ProstCodec<ProcessingRequest, ProcessingResponse> = ProstCodec::default();
        let path = http::uri::PathAndQuery::from_static(PROCESS);
        let call = grpc
            .streaming(Request::new(Outbound(from)), path, codec)
            .await;
        let mut answers = call.map_err(|status| status.to_string())?.into_inner();
        request_phase(&mut answers, script).await?;
        let decided = Instant::now();
        send(&to, &script.response)?;
        // Nothing more to say.
        drop(to);
        response_phase(&mut answers, script).await?;
        match answers.message().await {
            Ok(None) => Ok(decided),
            Ok(Some(answer)) => Err(format!("an answer too many: {:?}", answer.answer)),
            Err(status) => Err(status.to_string()),
        }
    }
}

fn send(
    to: &mpsc::Sender<ProcessingRequest>,
    messages: &[ProcessingRequest],
) -> Result<(), String> {
    for message in messages {
        to.try_send(message.clone())
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}

async fn next(answers: &mut Streaming<ProcessingResponse>) -> Result<Answer, String> {
    let message = answers
        .message()
        .await
        .map_err(|status| status.to_string())?;
    let answer = message.and_then(|message| message.answer);
    answer.ok_or_else(|| "the stream ended too early".to_owned())
}

/// The named endpoint, then the body as it was sent.
async fn request_phase(
    answers: &mut Streaming<ProcessingResponse>,
    script: &Script,
) -> Result<(), String> {
    match next(answers).await? {
        Answer::RequestHeaders(answer) if names_endpoint(&answer) => {}
        other => return Err(format!("no endpoint in {other:?}")),
    }
    let mut bytes = 0;
    loop {
        match next(answers).await? {
            Answer::RequestBody(answer) => {
                if piece(&answer, &mut bytes) {
                    break;
                }
            }
            other => return Err(format!("no request body in {other:?}")),
        }
    }
    same(bytes, script.request_bytes)
}

async fn response_phase(
    answers: &mut Streaming<ProcessingResponse>,
    script: &Script,
) -> Result<(), String> {
    let mut bytes = 0;
    loop {
        match next(answers).await? {
            Answer::ResponseHeaders(_) => {}
            Answer::ResponseBody(answer) => {
                if piece(&answer, &mut bytes) {
                    break;
                }
            }
            other => return Err(format!("no response body in {other:?}")),
        }
    }
    same(bytes, script.response_bytes)
}

fn same(bytes: usize, sent: usize) -> Result<(), String> {
    if bytes == sent {
        Ok(())
    } else {
        Err(format!("{bytes} bytes of {sent} came back"))
    }
}

/// Adds a streamed piece's length; true if it was the last one.
fn piece(answer: &CommonAnswer, bytes: &mut usize) -> bool {
    let mutation = answer
        .response
        .as_ref()
        .and_then(|response| response.body_mutation.as_ref());
    let body = mutation.and_then(|mutation| mutation.streamed_response.as_ref());
    body.is_some_and(|body| {
        *bytes += body.body.len();
        body.end_of_stream
    })
}

fn names_endpoint(answer: &CommonAnswer) -> bool {
    let mutation = answer
        .response
        .as_ref()
        .and_then(|response| response.header_mutation.as_ref());
    mutation.is_some_and(|mutation| {
        mutation.set_headers.iter().any(|option| {
            let header = option.header.as_ref();
            header.is_some_and(|header| header.key == DESTINATION && !header.bytes().is_empty())
        })
    })
}
