//! The side that is dialled.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_core::Stream;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    server::{Grpc, StreamingService},
};
use tonic_prost::ProstCodec;

use super::{
    MAX_MESSAGE, Open,
    board::{Board, Outgoing, Taken},
    one_more,
    proto::{EXCHANGE, Told},
};
use crate::{
    net::{Connection, Shutdown, accept},
    tls::Acceptor,
};

/// Connections at once: every replica's, and room for those that are about to be noticed as dead.
const CONNECTIONS: usize = 256;
/// Streams on one of them.
const STREAMS: u32 = 4;

/// Accepts the other replicas' streams until shutdown.
pub(super) async fn serve(
    listener: TcpListener,
    tls: Option<Acceptor>,
    board: Arc<Board>,
    shutdown: Shutdown,
) {
    let stop = shutdown.clone();
    accept(
        listener,
        tls,
        CONNECTIONS,
        shutdown,
        move |connection, peer| {
            let (board, stop) = (Arc::clone(&board), stop.clone());
            async move {
                tokio::select! {
                    () = stop.wait() => {}
                    served = serve_one(connection, board) => {
                        if let Err(error) = served {
                            tracing::debug!(%error, %peer, "a replica's connection ended");
                        }
                    }
                }
            }
        },
    )
    .await;
}

async fn serve_one(connection: Connection, board: Arc<Board>) -> hyper::Result<()> {
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(5));
    builder
        .serve_connection(TokioIo::new(connection), Router(board))
        .await
}

/// Routes a call by its path.
struct Router(Arc<Board>);

type Answer = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

impl hyper::service::Service<http::Request<Incoming>> for Router {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: http::Request<Incoming>) -> Answer {
        let request = request.map(Body::new);
        if request.uri().path() != EXCHANGE {
            return Box::pin(async { Ok(Status::unimplemented("no such method").into_http()) });
        }
        let exchange = Exchange(Arc::clone(&self.0));
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::default())
                .apply_max_message_size_config(Some(MAX_MESSAGE), None);
            Ok(grpc.streaming(exchange, request).await)
        })
    }
}

/// Starts a session for each call.
struct Exchange(Arc<Board>);

impl StreamingService<Told> for Exchange {
    type Response = Told;
    type ResponseStream = Session;
    type Future = std::future::Ready<Result<Response<Session>, Status>>;

    fn call(&mut self, request: Request<Streaming<Told>>) -> Self::Future {
        std::future::ready(Ok(Response::new(Session {
            inbound: request.into_inner(),
            outgoing: Outgoing::new(&self.0),
            over: false,
            open: Open::new(&self.0),
        })))
    }
}

/// One stream, polled by the gRPC server: what comes is taken before anything is said.
struct Session {
    inbound: Streaming<Told>,
    outgoing: Outgoing,
    over: bool,
    open: Open,
}

impl Stream for Session {
    type Item = Result<Told, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        while !this.over {
            let board = &this.open.0;
            match Pin::new(&mut this.inbound).poll_next(context) {
                Poll::Pending => {
                    let said = Pin::new(&mut this.outgoing).poll_next(context);
                    return said.map(|said| said.map(Ok));
                }
                // Who dials itself learns so from the greeting, and hangs up.
                Poll::Ready(Some(Ok(told))) => match board.take(told) {
                    Taken::Fine | Taken::Ourselves => {}
                },
                Poll::Ready(None) => this.over = true,
                Poll::Ready(Some(Err(status))) => {
                    one_more(&board.counts.broken);
                    this.over = true;
                    return Poll::Ready(Some(Err(status)));
                }
            }
        }
        Poll::Ready(None)
    }
}
