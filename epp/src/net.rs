//! Sockets: one accept loop for all servers, with bounds, TLS and graceful shutdown.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    time::Sleep,
};
use tokio_rustls::server::TlsStream;

use crate::tls::Acceptor;

/// Longest time for a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The host of `host:port`, an IPv6 address without its brackets.
pub(crate) fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Whether `host:port` is on this machine, and another machine's is another one.
pub(crate) fn is_loopback(address: &str) -> bool {
    let host = host_of(address);
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// A connection, encrypted or not.
pub enum Connection {
    /// As it is.
    Plain(TcpStream),
    /// Through TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Connection::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_write(context, buffer),
            Connection::Tls(stream) => Pin::new(stream).poll_write(context, buffer),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_write_vectored(context, buffers),
            Connection::Tls(stream) => Pin::new(stream).poll_write_vectored(context, buffers),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Connection::Plain(stream) => stream.is_write_vectored(),
            Connection::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_flush(context),
            Connection::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Connection::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// The first bytes of every HTTP/2 connection (RFC 9113, 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How long the other side of a connection may keep us waiting where no protocol has a timer yet or any more.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Longest time to the bytes that tell HTTP/1 from HTTP/2.
    pub first: Duration,
    /// Longest time in which it takes nothing of what is written.
    pub stall: Duration,
}

/// A connection that ends when the other side does not say what it speaks, or does not read.
pub(crate) struct Patient<C> {
    inner: C,
    /// While the bytes so far, this many, are the beginning of [`PREFACE`].
    first: Option<(usize, Pin<Box<Sleep>>)>,
    stall: Duration,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<C> Patient<C> {
    pub(crate) fn new(inner: C, patience: Patience) -> Self {
        Patient {
            inner,
            first: Some((0, Box::pin(tokio::time::sleep(patience.first)))),
            stall: patience.stall,
            stalled: None,
        }
    }

    /// Notes what a write came to; a time-out if it has waited too long.
    fn waited<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.stalled = None;
            return result;
        }
        let stall = self.stall;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(stall)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for Patient<C> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let Some((known, deadline)) = &mut this.first else {
            return Pin::new(&mut this.inner).poll_read(context, buffer);
        };
        let before = buffer.filled().len();
        if Pin::new(&mut this.inner)
            .poll_read(context, buffer)?
            .is_pending()
        {
            ready!(deadline.as_mut().poll(context));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let new = buffer.filled().get(before..).unwrap_or_default();
        let rest = PREFACE.get(*known..).unwrap_or_default();
        *known += new.len();
        // A whole preface, another protocol, or the end.
        if new.is_empty() || new.len() >= rest.len() || !rest.starts_with(new) {
            this.first = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Patient<C> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.inner).poll_write(context, buffer);
        this.waited(context, result)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.inner).poll_write_vectored(context, buffers);
        this.waited(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.inner).poll_flush(context);
        this.waited(context, result)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.inner).poll_shutdown(context);
        this.waited(context, result)
    }
}

/// Tells servers to stop. Cloned into each connection.
#[derive(Clone, Debug)]
pub struct Shutdown {
    signal: watch::Receiver<bool>,
}

impl Shutdown {
    /// A switch and its signal.
    pub fn new() -> (watch::Sender<bool>, Shutdown) {
        let (sender, signal) = watch::channel(false);
        (sender, Shutdown { signal })
    }

    /// Resolves when the switch is thrown or gone.
    pub async fn wait(mut self) {
        // An error means that the switch is gone: the same as thrown.
        let _ = self.signal.wait_for(|stop| *stop).await;
    }
}

/// Accepts connections until shutdown and hands each to `serve` on a task of its own.
///
/// At most `limit` connections are open at once: further ones wait in the kernel's backlog.
pub async fn accept<F, S>(
    listener: TcpListener,
    tls: Option<Acceptor>,
    limit: usize,
    shutdown: Shutdown,
    serve: S,
) where
    S: Fn(Connection, SocketAddr) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(limit));
    let stop = shutdown.wait();
    tokio::pin!(stop);
    loop {
        let slot = tokio::select! {
            () = &mut stop => return,
            slot = Arc::clone(&slots).acquire_owned() => slot,
        };
        let Ok(slot) = slot else { return };
        let accepted = tokio::select! {
            () = &mut stop => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, or a peer that gave up: wait a little rather than spin.
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        // A token must not wait for the next one (Nagle): a stream's latency is the product.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY");
        }
        let (tls, serve) = (tls.clone(), serve.clone());
        tokio::spawn(async move {
            let _slot = slot;
            if let Some(connection) = handshake(stream, tls).await {
                let served = serve(connection, peer);
                // What `serve` holds of its caller must not live as long as the connection.
                drop(serve);
                served.await;
            }
        });
    }
}

async fn handshake(stream: TcpStream, tls: Option<Acceptor>) -> Option<Connection> {
    let Some(tls) = tls else {
        return Some(Connection::Plain(stream));
    };
    match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
        Ok(Ok(stream)) => Some(Connection::Tls(Box::new(stream))),
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake refused");
            None
        }
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    const PATIENCE: Patience = Patience {
        first: Duration::from_secs(10),
        stall: Duration::from_secs(30),
    };

    fn pair() -> (Patient<DuplexStream>, DuplexStream) {
        let (ours, theirs) = duplex(8);
        (Patient::new(ours, PATIENCE), theirs)
    }

    async fn read(connection: &mut Patient<DuplexStream>) -> Result<usize, io::ErrorKind> {
        let read = connection.read(&mut [0; 64]).await;
        read.map_err(|error| error.kind())
    }

    #[test]
    fn the_loopback_is_known_by_its_addresses_and_its_name() {
        for here in [
            "127.0.0.1:80",
            "127.1.2.3:80",
            "[::1]:80",
            "localhost:80",
            "LocalHost:1",
        ] {
            assert!(is_loopback(here), "{here}");
        }
        for elsewhere in [
            "10.0.0.1:80",
            "[fd00::1]:80",
            "localhost.example:80",
            "127.0.0.1.example:80",
        ] {
            assert!(!is_loopback(elsewhere), "{elsewhere}");
        }
        assert_eq!(host_of("[fd00::1]:80"), "fd00::1");
    }

    /// A2: whoever does not say what it speaks is given up; whoever does is left to its protocol's timers.
    #[tokio::test(start_paused = true)]
    async fn the_first_words_have_a_deadline() {
        let late = Err(io::ErrorKind::TimedOut);
        let (mut connection, _theirs) = pair();
        let begun = tokio::time::Instant::now();
        assert_eq!(read(&mut connection).await, late);
        assert_eq!(begun.elapsed(), Duration::from_secs(10));
        for beginning in ["P", "PRI * HT"] {
            let (mut connection, mut theirs) = pair();
            theirs.write_all(beginning.as_bytes()).await.unwrap();
            assert_eq!(read(&mut connection).await, Ok(beginning.len()));
            assert_eq!(read(&mut connection).await, late, "{beginning}");
        }
        for words in ["POST", "G", "PRI / HT"] {
            let (mut connection, mut theirs) = pair();
            theirs.write_all(words.as_bytes()).await.unwrap();
            assert_eq!(read(&mut connection).await, Ok(words.len()));
            let silence = tokio::time::timeout(Duration::from_secs(60), read(&mut connection));
            assert!(silence.await.is_err(), "{words}");
        }
        let (mut connection, mut theirs) = pair();
        for part in PREFACE.chunks(8) {
            theirs.write_all(part).await.unwrap();
            assert_eq!(read(&mut connection).await, Ok(8));
        }
        let silence = tokio::time::timeout(Duration::from_secs(60), read(&mut connection));
        assert!(silence.await.is_err());
    }

    /// A4: a reader that takes nothing for too long is given up; a slow one is not.
    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stalls_is_given_up() {
        let (mut connection, mut theirs) = pair();
        let writing = tokio::spawn(async move {
            let written = connection.write_all(&[0; 24]).await;
            written.map_err(|error| error.kind())
        });
        // Eight bytes lie in the pipe, and eight more go in after each of these.
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_secs(29)).await;
            theirs.read_exact(&mut [0; 8]).await.unwrap();
        }
        assert_eq!(writing.await.unwrap(), Ok(()));
        let (mut connection, _theirs) = pair();
        let begun = tokio::time::Instant::now();
        let written = connection.write_all(&[0; 24]).await;
        assert_eq!(
            written.map_err(|error| error.kind()),
            Err(io::ErrorKind::TimedOut)
        );
        assert_eq!(begun.elapsed(), Duration::from_secs(30));
    }
}
