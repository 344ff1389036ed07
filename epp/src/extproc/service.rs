//! The gRPC server: ext_proc and health on one port, health alone on another.

use std::{convert::Infallible, pin::Pin, sync::Arc, time::Duration};

use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::graceful::{GracefulShutdown, Watcher},
};
use tokio::net::TcpListener;
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    server::{Grpc, StreamingService},
};
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_prost::ProstCodec;
use tower_service::Service as _;

use super::{
    proto::{ProcessingRequest, ProcessingResponse},
    session::Session,
};
use crate::{
    net::{Patience, Patient, Shutdown, accept},
    pipeline::Pipeline,
    tls::Acceptor,
};

/// Full name of the gRPC service; also a health service name.
pub const SERVICE_NAME: &str = "envoy.service.ext_proc.v3.ExternalProcessor";
const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
const HEALTH: &str = "/grpc.health.v1.Health/";
/// Envoy opens one stream per request: a low limit would queue requests inside Envoy.
const MAX_STREAMS: u32 = 10_000;
/// Room for a whole body in flight per stream and for many per connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Longest wait for HTTP/2's first words, and for a proxy that does not read: then keep-alive watches it.
const PATIENCE: Patience = Patience {
    first: Duration::from_secs(10),
    stall: Duration::from_secs(60),
};
/// A piece may be as large as Envoy's buffer limit plus its envelope.
const MESSAGE_ROOM: u64 = 64 << 10;

/// Starts a session for each `Process` call.
#[derive(Clone)]
struct Process {
    pipeline: Arc<Pipeline>,
}

impl StreamingService<ProcessingRequest> for Process {
    type Response = ProcessingResponse;
    type ResponseStream = Session;
    type Future = std::future::Ready<Result<Response<Session>, Status>>;

    fn call(&mut self, request: Request<Streaming<ProcessingRequest>>) -> Self::Future {
        let session = Session::new(request.into_inner(), Arc::clone(&self.pipeline));
        std::future::ready(Ok(Response::new(session)))
    }
}

/// Routes a call by its path.
struct Router<H: Health> {
    pipeline: Option<Arc<Pipeline>>,
    health: HealthServer<H>,
}

impl<H: Health> Clone for Router<H> {
    fn clone(&self) -> Self {
        Router {
            pipeline: self.pipeline.clone(),
            health: self.health.clone(),
        }
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

impl<H: Health> hyper::service::Service<http::Request<Incoming>> for Router<H> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: http::Request<Incoming>) -> Answer {
        let request = request.map(Body::new);
        if let (PROCESS, Some(pipeline)) = (request.uri().path(), &self.pipeline) {
            let pipeline = Arc::clone(pipeline);
            return Box::pin(async move {
                let limit = pipeline.settings().max_body.saturating_add(MESSAGE_ROOM);
                let limit = usize::try_from(limit).unwrap_or(usize::MAX);
                let mut grpc = Grpc::new(ProstCodec::default())
                    .apply_max_message_size_config(Some(limit), None);
                Ok(grpc.streaming(Process { pipeline }, request).await)
            });
        }
        if request.uri().path().starts_with(HEALTH) {
            let mut health = self.health.clone();
            return Box::pin(async move { health.call(request).await });
        }
        Box::pin(async { Ok(Status::unimplemented("no such method").into_http()) })
    }
}

/// Serves until shutdown, then lets open streams end.
///
/// Without a pipeline only health is served. Resolves when every connection is closed or `grace` has passed.
pub async fn serve<H: Health>(
    listener: TcpListener,
    tls: Option<Acceptor>,
    limit: usize,
    pipeline: Option<Arc<Pipeline>>,
    health: HealthServer<H>,
    shutdown: Shutdown,
    grace: Duration,
) {
    let router = Router { pipeline, health };
    let graceful = Arc::new(GracefulShutdown::new());
    let watch = Arc::clone(&graceful);
    accept(listener, tls, limit, shutdown, move |connection, peer| {
        let (router, watcher) = (router.clone(), watch.watcher());
        async move { serve_one(connection, router, watcher, peer).await }
    })
    .await;
    if let Some(graceful) = Arc::into_inner(graceful) {
        // Streams that outlive the grace are cut by the exit of the process.
        let _ = tokio::time::timeout(grace, graceful.shutdown()).await;
    }
}

async fn serve_one<H: Health>(
    connection: crate::net::Connection,
    router: Router<H>,
    watcher: Watcher,
    peer: std::net::SocketAddr,
) {
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        // The limit counts over a connection's whole life, and the peer is our own proxy: cutting its connection
        // would fail every request on it.
        .max_local_error_reset_streams(None)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(10));
    let connection = Patient::new(connection, PATIENCE);
    let served = builder.serve_connection(TokioIo::new(connection), router);
    if let Err(error) = watcher.watch(served).await {
        tracing::debug!(%error, %peer, "gRPC connection ended");
    }
}
