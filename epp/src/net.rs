//! Sockets: one accept loop for all servers, with bounds, TLS and graceful shutdown.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
};
use tokio_rustls::server::TlsStream;

use crate::tls::Acceptor;

/// Longest time for a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

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
