//! The floor under an ext_proc picker: the same messages, the same server settings, round robin, nothing parsed.
//!
//! It names an endpoint as soon as it sees the headers and hands every piece of body on. What a picker costs more
//! than this is what it does: holding bodies, reading them, choosing, counting.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_core::Stream;
use http::{Request, Response};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost_types::{Struct, Value, value::Kind};
use tokio::{net::TcpListener, task::JoinSet};
use tonic::{
    Status, Streaming,
    body::Body,
    server::{Grpc, StreamingService},
};
use tonic_prost::ProstCodec;
use wicketgate_epp::extproc::proto::{
    Answer, BodyMutation, CommonAnswer, CommonResponse, HeaderMutation, HeaderValueOption,
    HttpBody, Phase, ProcessingRequest, ProcessingResponse, TrailersAnswer,
};

use super::Running;

const DESTINATION: &str = "x-gateway-destination-endpoint";

/// Endpoints by turn, and how many streams were served.
struct Turns {
    endpoints: Vec<Bytes>,
    next: AtomicUsize,
    ended: AtomicU64,
}

pub(super) async fn start(endpoints: &[SocketAddr]) -> io::Result<Running> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let turns = Arc::new(Turns {
        endpoints: endpoints
            .iter()
            .map(|at| Bytes::from(at.to_string()))
            .collect(),
        next: AtomicUsize::new(0),
        ended: AtomicU64::new(0),
    });
    let shown = Arc::clone(&turns);
    let mut tasks = JoinSet::new();
    tasks.spawn(accept(listener, turns));
    Ok(Running {
        addresses: vec![address],
        counters: Box::new(move || {
            BTreeMap::from([("ended".to_owned(), shown.ended.load(Relaxed))])
        }),
        _part: Box::new(tasks),
    })
}

async fn accept(listener: TcpListener, turns: Arc<Turns>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        // Without it answers wait for acknowledgements.
        if stream.set_nodelay(true).is_err() {
            continue;
        }
        let turns = Arc::clone(&turns);
        let service = service_fn(move |request| answer(Arc::clone(&turns), request));
        // As the real front has them.
        let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        server
            .timer(TokioTimer::new())
            .max_concurrent_streams(10_000)
            .max_local_error_reset_streams(None)
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(16 << 20)
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(10));
        connections.spawn(async move {
            // A client that goes away is how every run ends.
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(
    turns: Arc<Turns>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let mut grpc =
        Grpc::new(ProstCodec::default()).apply_max_message_size_config(Some(16 << 20), None);
    Ok(grpc.streaming(Process(turns), request.map(Body::new)).await)
}

struct Process(Arc<Turns>);

impl StreamingService<ProcessingRequest> for Process {
    type Response = ProcessingResponse;
    type ResponseStream = Echo;
    type Future = std::future::Ready<Result<tonic::Response<Echo>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<ProcessingRequest>>) -> Self::Future {
        std::future::ready(Ok(tonic::Response::new(Echo {
            inbound: request.into_inner(),
            turns: Arc::clone(&self.0),
            over: false,
        })))
    }
}

/// Answers each message as it comes.
struct Echo {
    inbound: Streaming<ProcessingRequest>,
    turns: Arc<Turns>,
    over: bool,
}

impl Stream for Echo {
    type Item = Result<ProcessingResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if self.over {
                return Poll::Ready(None);
            }
            let message = match Pin::new(&mut self.inbound).poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(message))) => message,
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(None),
            };
            if let Some(answer) = self.answer(message.phase) {
                return Poll::Ready(Some(Ok(answer)));
            }
        }
    }
}

impl Echo {
    fn answer(&mut self, phase: Option<Phase>) -> Option<ProcessingResponse> {
        let (answer, end) = match phase? {
            Phase::RequestHeaders(_) => return Some(self.place()),
            Phase::RequestBody(body) => (Answer::RequestBody(streamed(body)), false),
            Phase::RequestTrailers(_) => (Answer::RequestTrailers(TrailersAnswer {}), false),
            Phase::ResponseHeaders(headers) => {
                let answer = Answer::ResponseHeaders(CommonAnswer::default());
                (answer, headers.end_of_stream)
            }
            Phase::ResponseBody(body) => {
                let end = body.end_of_stream;
                (Answer::ResponseBody(streamed(body)), end)
            }
            Phase::ResponseTrailers(_) => (Answer::ResponseTrailers(TrailersAnswer {}), true),
        };
        if end {
            self.over = true;
            self.turns.ended.fetch_add(1, Relaxed);
        }
        Some(ProcessingResponse {
            answer: Some(answer),
            dynamic_metadata: None,
        })
    }

    /// The next endpoint, in header and metadata.
    fn place(&self) -> ProcessingResponse {
        let turn = self.turns.next.fetch_add(1, Relaxed);
        let turn = turn % self.turns.endpoints.len().max(1);
        let endpoint = self.turns.endpoints.get(turn).cloned().unwrap_or_default();
        let text = String::from_utf8_lossy(&endpoint).into_owned();
        let field = |name: &str, kind| {
            let value = Value { kind: Some(kind) };
            Struct {
                fields: BTreeMap::from([(name.to_owned(), value)]),
            }
        };
        let inner = field(DESTINATION, Kind::StringValue(text));
        ProcessingResponse {
            answer: Some(Answer::RequestHeaders(CommonAnswer {
                response: Some(CommonResponse {
                    header_mutation: Some(HeaderMutation {
                        set_headers: vec![HeaderValueOption::set(DESTINATION, endpoint)],
                        remove_headers: Vec::new(),
                    }),
                    body_mutation: None,
                    clear_route_cache: true,
                }),
            })),
            dynamic_metadata: Some(field("envoy.lb", Kind::StructValue(inner))),
        }
    }
}

fn streamed(body: HttpBody) -> CommonAnswer {
    CommonAnswer {
        response: Some(CommonResponse {
            body_mutation: Some(BodyMutation {
                streamed_response: Some(body),
            }),
            ..CommonResponse::default()
        }),
    }
}
