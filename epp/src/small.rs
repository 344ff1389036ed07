//! A small HTTP server: for scrapers, operators and other replicas, who are few. With bounds on connections, headers and
//! the time that anybody may keep it waiting.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::net::TcpListener;

use crate::{
    net::{Patience, Patient, Shutdown, accept},
    tls::Acceptor,
};

/// Connections at once.
const CONNECTIONS: usize = 256;
/// Requests at once on one HTTP/2 connection.
const STREAMS: u32 = 32;
/// Bytes of a request's header block.
const HEADER_BYTES: usize = 64 << 10;
/// Longest wait for a request's header block, the next one on a connection too: a scraper that comes back more rarely
/// opens a new one.
const NEXT_REQUEST: Duration = Duration::from_secs(30);
/// Longest wait for a connection's first bytes, and for a reader.
const PATIENCE: Patience = Patience {
    first: Duration::from_secs(10),
    stall: Duration::from_secs(30),
};

/// Serves until shutdown.
pub(crate) async fn serve<F, B>(
    listener: TcpListener,
    tls: Option<Acceptor>,
    shutdown: Shutdown,
    answer: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
) where
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    accept(
        listener,
        tls,
        CONNECTIONS,
        shutdown,
        move |connection, _| {
            let answer = answer.clone();
            async move {
                let service = service_fn(move |request| {
                    let answered = answer(request);
                    async move { Ok::<_, Infallible>(answered.await) }
                });
                let mut builder = auto::Builder::new(TokioExecutor::new());
                builder
                    .http1()
                    .timer(TokioTimer::new())
                    .header_read_timeout(NEXT_REQUEST)
                    .max_buf_size(HEADER_BYTES);
                builder
                    .http2()
                    .timer(TokioTimer::new())
                    .max_concurrent_streams(STREAMS)
                    .max_header_list_size(HEADER_BYTES as u32)
                    .keep_alive_interval(Some(NEXT_REQUEST))
                    .keep_alive_timeout(PATIENCE.first);
                let connection = Patient::new(connection, PATIENCE);
                // A reader that goes away in the middle of a page is its own business.
                let _ = builder
                    .serve_connection(TokioIo::new(connection), service)
                    .await;
            }
        },
    )
    .await;
}
