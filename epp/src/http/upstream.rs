//! Connections to endpoints: kept alive, reused last-in first-out, cut at once when a request is given up.

use std::{
    collections::HashMap,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body::{Body, Frame, SizeHint};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
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

/// A request body that can be sent again.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldBody {
    /// What is still to be sent.
    pub(super) bytes: Bytes,
    pub(super) trailers: Option<HeaderMap>,
}

impl Body for HeldBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let bytes = std::mem::take(&mut self.bytes);
        if !bytes.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        Poll::Ready(self.trailers.take().map(|map| Ok(Frame::trailers(map))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
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
    /// A connection that had served before ended after the request went out. The endpoint most likely closed it for
    /// its age, and is well.
    #[error("a kept connection ended: {0}")]
    Stale(hyper::Error),
    /// Its answer cannot be passed on.
    #[error("its answer cannot be passed on: {0}")]
    BadAnswer(&'static str),
    /// No headers in time.
    #[error("no answer in time")]
    FirstByteTimeout,
}

impl Failure {
    /// True if another try does no harm: the endpoint cannot have begun to work on the request, or it broke off and
    /// the request is one that changes nothing.
    pub(super) fn safe_to_retry(&self, changes_nothing: bool) -> bool {
        match self {
            Failure::Connect(_) | Failure::ConnectTimeout | Failure::NotSent => true,
            Failure::Broken(_) | Failure::Stale(_) => changes_nothing,
            Failure::BadAnswer(_) | Failure::FirstByteTimeout => false,
        }
    }

    /// What it says against the endpoint: nothing, something if nothing else speaks for it, or something for certain.
    pub(super) fn fault(&self) -> Option<bool> {
        match self {
            Failure::Stale(_) => None,
            // A long answer is no broken endpoint, as long as it speaks otherwise.
            Failure::FirstByteTimeout => Some(false),
            Failure::Connect(_)
            | Failure::ConnectTimeout
            | Failure::NotSent
            | Failure::Broken(_)
            | Failure::BadAnswer(_) => Some(true),
        }
    }
}

/// True for requests that may be made again whatever became of the first try.
pub(super) fn changes_nothing(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Connections to one address that wait for work.
#[derive(Default)]
struct Kept {
    /// Endpoints with this address.
    members: usize,
    idle: Vec<Link>,
}

/// Idle connections by endpoint address.
#[derive(Default)]
pub struct Upstreams {
    kept: Mutex<HashMap<Box<str>, Kept>>,
}

impl Upstreams {
    /// Keeps connections to an endpoint that joins; [`Upstreams::forget`] ends it.
    pub fn admit(&self, address: &str) {
        let mut kept = self.kept.lock();
        kept.entry(address.into()).or_default().members += 1;
    }

    /// Closes idle connections to an endpoint that has left. Those that are at work are closed when they are done,
    /// unless another endpoint has the same address.
    pub fn forget(&self, address: &str) {
        let mut kept = self.kept.lock();
        if let Some(entry) = kept.get_mut(address) {
            entry.members = entry.members.saturating_sub(1);
            entry.idle.clear();
            if entry.members == 0 {
                kept.remove(address);
            }
        }
    }

    fn take(&self, address: &str) -> Option<Link> {
        self.kept.lock().get_mut(address)?.idle.pop()
    }

    /// Keeps a connection whose answer was read to its end, if its endpoint is still there.
    pub(super) fn put(&self, address: &str, link: Link) {
        if link.sender.is_closed() {
            return;
        }
        if let Some(entry) = self.kept.lock().get_mut(address)
            && entry.idle.len() < MAX_IDLE
        {
            entry.idle.push(link);
        }
    }

    /// Sends a request and waits for the headers of its answer.
    ///
    /// A kept connection that turns out to be closed is no try: while nothing was sent, or the request is one that
    /// changes nothing, it goes over another one.
    pub(super) async fn send(
        &self,
        address: &str,
        policy: &UpstreamPolicy,
        mut request: http::Request<HeldBody>,
    ) -> Result<(http::Response<Incoming>, Link), Failure> {
        let wait = policy.first_byte_timeout;
        let repeatable = changes_nothing(request.method());
        let mut only_fresh = false;
        loop {
            let reused = if only_fresh { None } else { self.take(address) };
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
            let again = (repeatable && !fresh).then(|| request.clone());
            let answer = tokio::time::timeout(wait, link.sender.try_send_request(request)).await;
            let mut error = match answer {
                Err(_) => return Err(Failure::FirstByteTimeout),
                Ok(Ok(response)) => return Ok((response, link)),
                Ok(Err(error)) => error,
            };
            request = match (error.take_message(), again) {
                // The endpoint closed an idle connection as we took it: nothing was sent.
                (Some(unsent), _) if !fresh => unsent,
                (Some(_), _) => return Err(Failure::NotSent),
                (None, again) => {
                    let error = error.into_error();
                    if fresh || !ended_early(&error) {
                        return Err(Failure::Broken(error));
                    }
                    only_fresh = true;
                    again.ok_or(Failure::Stale(error))?
                }
            };
        }
    }
}

/// True if the connection ended before an answer was there, rather than brought a bad one.
fn ended_early(error: &hyper::Error) -> bool {
    use std::io::ErrorKind;
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        if let Some(inner) = inner.downcast_ref::<std::io::Error>() {
            return matches!(
                inner.kind(),
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted
            );
        }
        cause = inner.source();
    }
    error.is_incomplete_message() || error.is_canceled()
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

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncReadExt as _, net::TcpListener};

    use super::*;

    async fn link(listener: &TcpListener) -> (Link, TcpStream) {
        let policy = UpstreamPolicy {
            connect_timeout: Duration::from_secs(10),
            first_byte_timeout: Duration::from_secs(10),
            total_timeout: Duration::from_secs(10),
            retry_backoff: Vec::new(),
            tls: None,
            authorization: None,
        };
        let address = listener.local_addr().unwrap().to_string();
        let (link, accepted) = tokio::join!(connect(&address, &policy), listener.accept());
        (link.unwrap(), accepted.unwrap().0)
    }

    /// B23: whoever leaves while a connection to it is at work does not keep that connection.
    #[tokio::test]
    async fn connections_to_who_has_left_are_dropped() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstreams = Upstreams::default();
        let (at_work, mut other_end) = link(&listener).await;
        upstreams.admit("a");
        upstreams.forget("a");
        upstreams.put("a", at_work);
        assert!(upstreams.kept.lock().is_empty());
        assert_eq!(other_end.read(&mut [0]).await.unwrap(), 0, "closed");
        // Another endpoint, of another pool, has the same address.
        let (at_work, _other_end) = link(&listener).await;
        upstreams.admit("a");
        upstreams.admit("a");
        upstreams.forget("a");
        upstreams.put("a", at_work);
        assert!(upstreams.take("a").is_some());
        upstreams.forget("a");
        assert!(upstreams.kept.lock().is_empty());
    }

    #[test]
    fn only_what_changes_nothing_is_repeated() {
        for method in [Method::GET, Method::HEAD, Method::OPTIONS] {
            assert!(changes_nothing(&method));
        }
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
            assert!(!changes_nothing(&method));
        }
    }
}
