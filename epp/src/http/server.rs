//! Accepts callers: HTTP/1.1 and HTTP/2 on one port, with or without TLS.

use std::{convert::Infallible, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use http::{HeaderValue, Request, Response};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
};
use tokio::net::TcpListener;
use wicketgate_wire::Api;

use super::{
    edge::{Edge, Ledger},
    proxy::{Front, own_answer},
    relay::RelayBody,
    upstream::{UpstreamPolicy, Upstreams},
};
use crate::{
    net::{Connection, Patience, Patient, Shutdown, accept},
    outcome::Outcome,
    pipeline::Pipeline,
    tls::Acceptor,
};

/// Bounds of the HTTP front.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections open at once.
    pub connections: usize,
    /// Bytes of one request's header block.
    pub header_bytes: usize,
    /// Requests at once on one HTTP/2 connection.
    pub streams: u32,
    /// Longest time for a request's header block to come in.
    pub header_timeout: Duration,
    /// Time that open requests get at shutdown.
    pub grace: Duration,
    /// Tell callers which endpoint served.
    pub expose_served_by: bool,
}

/// Serves until shutdown, then lets open requests end.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Acceptor>,
    limits: Limits,
    pipeline: Arc<Pipeline>,
    upstreams: Arc<Upstreams>,
    policy: UpstreamPolicy,
    shutdown: Shutdown,
) {
    let front = Arc::new(Front {
        pipeline,
        upstreams,
        policy,
        expose_served_by: limits.expose_served_by,
    });
    let builder = Arc::new(builder(&limits));
    let patience = Patience {
        first: limits.header_timeout,
        stall: front.policy.total_timeout,
    };
    let graceful = Arc::new(GracefulShutdown::new());
    let watch = Arc::clone(&graceful);
    accept(
        listener,
        tls,
        limits.connections,
        shutdown,
        move |connection, peer| {
            let (front, builder, watcher) =
                (Arc::clone(&front), Arc::clone(&builder), watch.watcher());
            async move {
                let connections = front.pipeline.metrics.connections.clone();
                connections.inc();
                let ledger = Ledger::default();
                let edge = edge(&front, connection, patience, ledger.clone());
                let service =
                    service_fn(move |request| answer(Arc::clone(&front), ledger.clone(), request));
                let served = builder.serve_connection(TokioIo::new(edge), service);
                if let Err(error) = watcher.watch(served.into_owned()).await {
                    tracing::debug!(error = %error, %peer, "connection ended");
                }
                connections.dec();
            }
        },
    )
    .await;
    if let Some(graceful) = Arc::into_inner(graceful) {
        // Requests that outlive the grace are cut by the exit of the process.
        let _ = tokio::time::timeout(limits.grace, graceful.shutdown()).await;
    }
}

fn builder(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        // No pipeline_flush: it holds answers back while the caller's next bytes are unread.
        .max_buf_size(limits.header_bytes.max(8192));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(16 << 20)
        .keep_alive_interval(Some(Duration::from_secs(20)))
        .keep_alive_timeout(Duration::from_secs(10));
    builder
}

/// A caller's connection; what the parser refuses on it is counted like every other request.
fn edge(
    front: &Arc<Front>,
    connection: Connection,
    patience: Patience,
    ledger: Ledger,
) -> Edge<Patient<Connection>, impl Fn(u16, Option<u64>) -> Outcome + Unpin + use<>> {
    let pipeline = Arc::clone(&front.pipeline);
    let refuse = move |status, length: Option<u64>| {
        let limit = pipeline.settings().max_body;
        let outcome = match status {
            _ if length.is_some_and(|length| length > limit) => Outcome::BodyTooLarge { limit },
            431 => Outcome::HeadersTooLarge,
            414 => Outcome::TargetTooLong,
            _ => Outcome::BadRequest("The request is not valid HTTP."),
        };
        let pool = pipeline.only_pool();
        let metrics = &pipeline.metrics;
        metrics.count(Api::Unknown, &pool, outcome.reason());
        outcome
    };
    Edge::new(Patient::new(connection, patience), ledger, refuse)
}

/// Answers one request; a panic ends it with 500 and leaves the connection's other requests alone.
async fn answer(
    front: Arc<Front>,
    ledger: Ledger,
    request: Request<Incoming>,
) -> Result<Response<RelayBody>, Infallible> {
    // HTTP/2 has no transfer codings, and nothing is kept of its bytes.
    let ambiguous = ledger.next().is_some_and(|head| head.ambiguous());
    if request.uri().path() == "/health" && request.method() == http::Method::GET {
        return Ok(Response::new(RelayBody::Whole(None)));
    }
    let handled = CatchUnwind(Box::pin(front.handle(request, ambiguous)));
    Ok(handled.await.unwrap_or_else(|| {
        tracing::error!("a request's handler panicked; it is answered with 500");
        own_answer(&Outcome::Internal, &HeaderValue::from_static("unknown"))
    }))
}

/// Resolves to `None` when the future panics.
struct CatchUnwind<F>(std::pin::Pin<Box<F>>);

impl<F: Future> Future for CatchUnwind<F> {
    type Output = Option<F::Output>;

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        use std::task::Poll;
        let polled = AssertUnwindSafe(|| self.0.as_mut().poll(context));
        match std::panic::catch_unwind(polled) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Some(output)),
            Err(_) => Poll::Ready(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CatchUnwind;

    /// C03: a panic ends its own request.
    #[tokio::test]
    async fn a_panic_is_caught_wherever_it_comes() {
        let late = Box::pin(async {
            tokio::task::yield_now().await;
            panic!("as planned");
        });
        assert_eq!(
            CatchUnwind::<std::pin::Pin<Box<dyn Future<Output = ()>>>>(Box::pin(late)).await,
            None
        );
        assert_eq!(CatchUnwind(Box::pin(async { 7 })).await, Some(7));
    }
}
