//! The side that dials: one link per peer of the configuration, for ever.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_rustls::TlsConnector;
use tonic::{Request, Status, Streaming, body::Body, client::Grpc};
use tonic_prost::ProstCodec;

use super::{
    MAX_MESSAGE, Open,
    board::{Board, Outgoing, Taken},
    one_more,
    proto::{EXCHANGE, Told},
};
use crate::tls::{ServerFiles, peer_config};

/// Longest time to connect, TLS included, and to get the stream's first word.
const CONNECT: Duration = Duration::from_secs(2);
/// Pauses between two attempts: the first and the longest, each with up to a quarter more by chance.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The way to one peer.
pub(super) struct Link {
    /// `host:port`
    pub(super) peer: String,
    pub(super) tls: Option<ServerFiles>,
    pub(super) board: Arc<Board>,
    /// A peer that says nothing for so long is dialled anew.
    pub(super) silence: Duration,
    /// One less when the peer turns out to be ourselves.
    pub(super) members: Arc<AtomicU32>,
}

/// How a stream ended.
enum End {
    /// It led to ourselves.
    Ourselves,
    /// It broke off after something was heard, or before.
    Broken { heard: bool },
}

impl Link {
    /// Dials, talks, and dials again. Ends only when the peer is ourselves.
    pub(super) async fn run(self) {
        let mut pause = BACKOFF.0;
        loop {
            match self.talk().await {
                Ok(End::Ourselves) => {
                    tracing::info!(peer = self.peer, "this peer is ourselves");
                    self.members.fetch_sub(1, Ordering::AcqRel);
                    return self.board.wake();
                }
                Ok(End::Broken { heard }) => {
                    one_more(&self.board.counts.broken);
                    if heard {
                        pause = BACKOFF.0;
                    }
                }
                Err(error) => {
                    one_more(&self.board.counts.unreached);
                    tracing::debug!(%error, peer = self.peer, "a replica cannot be reached");
                }
            }
            sleep(pause.mul_f64(1.0 + fastrand::f64() / 4.0)).await;
            pause = pause.saturating_mul(2).min(BACKOFF.1);
        }
    }

    async fn talk(&self) -> io::Result<End> {
        let late = || io::Error::from(io::ErrorKind::TimedOut);
        let opened = timeout(CONNECT, self.open()).await.map_err(|_| late())?;
        // The driver ends with this stream.
        let (mut inbound, _driver) = opened?;
        let _open = Open::new(&self.board);
        let mut heard = false;
        loop {
            let told = match timeout(self.silence, inbound.message()).await {
                Ok(Ok(Some(told))) => told,
                Ok(Ok(None)) => return Ok(End::Broken { heard }),
                Ok(Err(status)) => {
                    tracing::debug!(%status, peer = self.peer, "a replica's stream broke off");
                    return Ok(End::Broken { heard });
                }
                Err(_) => {
                    tracing::debug!(peer = self.peer, "a replica fell silent");
                    return Ok(End::Broken { heard });
                }
            };
            if self.board.take(told) == Taken::Ourselves {
                return Ok(End::Ourselves);
            }
            heard = true;
        }
    }

    async fn open(&self) -> io::Result<(Streaming<Told>, Driver)> {
        let stream = TcpStream::connect(&self.peer).await?;
        stream.set_nodelay(true)?;
        let Some(files) = &self.tls else {
            return self.call("http", stream).await;
        };
        // Read anew each time: certificates are replaced while we run.
        let config = peer_config(files).map_err(io::Error::other)?;
        let host = self
            .peer
            .rsplit_once(':')
            .map_or(self.peer.as_str(), |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let stream = TlsConnector::from(config).connect(name, stream).await?;
        self.call("https", stream).await
    }

    async fn call<S>(&self, scheme: &str, stream: S) -> io::Result<(Streaming<Told>, Driver)>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let built = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(5))
            .handshake(TokioIo::new(stream))
            .await;
        let (sender, connection) = built.map_err(io::Error::other)?;
        // How the connection ends shows in the stream on it.
        let driver = Driver(tokio::spawn(async { drop(connection.await) }));
        let origin = format!("{scheme}://{}", self.peer).parse();
        let mut grpc = Grpc::with_origin(Channel(sender), origin.map_err(io::Error::other)?)
            .max_decoding_message_size(MAX_MESSAGE);
        grpc.ready().await.map_err(io::Error::other)?;
        let codec: ProstCodec<Told, Told> = ProstCodec::default();
        let path = http::uri::PathAndQuery::from_static(EXCHANGE);
        let call = grpc
            .streaming(Request::new(Outgoing::new(&self.board)), path, codec)
            .await;
        let failed = |status: Status| io::Error::other(status);
        Ok((call.map_err(failed)?.into_inner(), driver))
    }
}

/// The task that moves a connection's bytes; dropping it hangs up.
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An HTTP/2 connection as a gRPC channel.
pub(super) struct Channel(pub(super) http2::SendRequest<Body>);

impl tower_service::Service<http::Request<Body>> for Channel {
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
