//! Connections to endpoints: kept alive, reused last-in first-out, cut at once when a request is given up.

use std::{
    collections::HashMap,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::{net::TcpStream, task::JoinHandle};

use crate::{net::Connection, tls::Connector};

/// Idle connections kept per endpoint.
const MAX_IDLE: usize = 256;

/// Patience with endpoints, and how to talk to them.
#[derive(Clone)]
pub struct UpstreamPolicy {
    /// Longest time to a connection, TLS included.
    pub connect_timeout: Duration,
    /// Longest time to the answer's headers.
    pub first_byte_timeout: Duration,
    /// Longest time of a whole request.
    pub total_timeout: Duration,
    /// Pauses before each further round of tries; their number bounds the rounds.
    pub retry_backoff: Vec<Duration>,
    /// Talk TLS to endpoints, trusting these CAs.
    pub tls: Option<Connector>,
    /// `authorization` for endpoints, instead of the caller's.
    pub authorization: Option<http::HeaderValue>,
}

/// A request body that can be sent again: the pieces as they came in.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldBody {
    pub(super) pieces: SmallVec<[Bytes; 4]>,
    pub(super) trailers: Option<HeaderMap>,
    next: usize,
}

impl HeldBody {
    pub(super) fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }
}

impl Body for HeldBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let next = self.next;
        if let Some(piece) = self.pieces.get(next).cloned() {
            self.next += 1;
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        Poll::Ready(self.trailers.take().map(|map| Ok(Frame::trailers(map))))
    }

    fn is_end_stream(&self) -> bool {
        self.next >= self.pieces.len() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let left = self.pieces.iter().skip(self.next);
        SizeHint::with_exact(left.map(|piece| piece.len() as u64).sum())
    }
}

/// A connection and the task that drives it; dropping it closes the socket at once.
pub(super) struct Link {
    sender: http1::SendRequest<HeldBody>,
    driver: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Why an endpoint gave no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// No connection: nothing was sent.
    #[error("no connection: {0}")]
    Connect(std::io::Error),
    /// The connection took too long: nothing was sent.
    #[error("no connection in time")]
    ConnectTimeout,
    /// The connection closed before the request was written.
    #[error("the connection closed before the request was written")]
    NotSent,
    /// The endpoint broke off after the request went out.
    #[error("broken off: {0}")]
    Broken(hyper::Error),
    /// No headers in time.
    #[error("no answer in time")]
    FirstByteTimeout,
}

impl Failure {
    /// True if the endpoint cannot have begun to work on the request.
    pub(super) fn safe_to_retry(&self) -> bool {
        match self {
            Failure::Connect(_) | Failure::ConnectTimeout | Failure::NotSent => true,
            Failure::Broken(_) | Failure::FirstByteTimeout => false,
        }
    }
}

/// Idle connections by endpoint address.
#[derive(Default)]
pub struct Upstreams {
    idle: Mutex<HashMap<Box<str>, Vec<Link>>>,
}

impl Upstreams {
    /// Closes idle connections to an endpoint that has left.
    pub fn forget(&self, address: &str) {
        self.idle.lock().remove(address);
    }

    fn take(&self, address: &str) -> Option<Link> {
        self.idle.lock().get_mut(address)?.pop()
    }

    /// Keeps a connection whose answer was read to its end.
    pub(super) fn put(&self, address: &str, link: Link) {
        if link.sender.is_closed() {
            return;
        }
        let mut idle = self.idle.lock();
        if let Some(links) = idle.get_mut(address) {
            if links.len() < MAX_IDLE {
                links.push(link);
            }
        } else {
            idle.insert(address.into(), vec![link]);
        }
    }

    /// Sends a request and waits for the headers of its answer.
    pub(super) async fn send(
        &self,
        address: &str,
        policy: &UpstreamPolicy,
        mut request: http::Request<HeldBody>,
    ) -> Result<(http::Response<Incoming>, Link), Failure> {
        let wait = policy.first_byte_timeout;
        loop {
            let reused = self.take(address);
            let fresh = reused.is_none();
            let mut link = match reused {
                Some(link) => link,
                None => connect(address, policy).await?,
            };
            if link.sender.ready().await.is_err() {
                if fresh {
                    return Err(Failure::NotSent);
                }
                continue;
            }
            let answer = tokio::time::timeout(wait, link.sender.try_send_request(request)).await;
            let mut error = match answer {
                Err(_) => return Err(Failure::FirstByteTimeout),
                Ok(Ok(response)) => return Ok((response, link)),
                Ok(Err(error)) => error,
            };
            match error.take_message() {
                // The endpoint closed an idle connection as we took it: nothing was sent.
                Some(unsent) if !fresh => request = unsent,
                Some(_) => return Err(Failure::NotSent),
                None => return Err(Failure::Broken(error.into_error())),
            }
        }
    }
}

async fn connect(address: &str, policy: &UpstreamPolicy) -> Result<Link, Failure> {
    let dial = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let connection = match &policy.tls {
            None => Connection::Plain(stream),
            Some(tls) => {
                let stream = tls.connect(address, stream).await?;
                return Ok(Dialled::Tls(Box::new(stream)));
            }
        };
        Ok(Dialled::Plain(connection))
    };
    let dialled = match tokio::time::timeout(policy.connect_timeout, dial).await {
        Err(_) => return Err(Failure::ConnectTimeout),
        Ok(Err(error)) => return Err(Failure::Connect(error)),
        Ok(Ok(dialled)) => dialled,
    };
    match dialled {
        Dialled::Plain(connection) => drive(TokioIo::new(connection)).await,
        Dialled::Tls(stream) => drive(TokioIo::new(stream)).await,
    }
}

enum Dialled {
    Plain(Connection),
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

async fn drive<T>(io: T) -> Result<Link, Failure>
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let built = http1::Builder::new().handshake(io).await;
    let (sender, connection) = built.map_err(Failure::Broken)?;
    let driver = tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection to an endpoint ended");
        }
    });
    Ok(Link { sender, driver })
}
