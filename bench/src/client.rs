//! A small HTTP/1.1 client: kept connections, streams read as they come, dropping means hanging up.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, task::JoinHandle};

/// A connection; dropping it closes the socket at once.
pub(crate) struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// When there is nobody.
    pub(crate) async fn open(address: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let built = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = built.map_err(io::Error::other)?;
        let driver = tokio::spawn(async move {
            // The next request on it says that it is closed.
            let _ = connection.await;
        });
        Ok(Connection { sender, driver })
    }

    /// Sends a request and waits for the answer's headers.
    ///
    /// # Errors
    /// When the other side breaks off.
    pub(crate) async fn try_send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> hyper::Result<Response<Incoming>> {
        self.sender.ready().await?;
        self.sender.send_request(request).await
    }
}

/// Kept connections by address.
#[derive(Default)]
pub(crate) struct Client {
    idle: Mutex<HashMap<SocketAddr, Vec<Connection>>>,
}

impl Client {
    /// A kept connection that is still open, the last used first.
    pub(crate) fn idle(&self, address: SocketAddr) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let list = idle.get_mut(&address)?;
        while let Some(connection) = list.pop() {
            if !connection.sender.is_closed() {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection whose answer was read to its end.
    pub(crate) fn keep(&self, address: SocketAddr, connection: Connection) {
        if !connection.sender.is_closed() {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.entry(address).or_default().push(connection);
        }
    }
}
