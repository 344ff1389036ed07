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
pub struct Connection {
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
    /// When there is nobody, or it does not speak HTTP.
    pub async fn open(address: SocketAddr) -> io::Result<Connection> {
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
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> io::Result<Response<Incoming>> {
        self.sender.ready().await.map_err(io::Error::other)?;
        self.sender
            .send_request(request)
            .await
            .map_err(io::Error::other)
    }
}

/// Kept connections by address.
#[derive(Default)]
pub struct Client {
    idle: Mutex<HashMap<SocketAddr, Vec<Connection>>>,
}

impl Client {
    /// An idle connection, or a new one.
    ///
    /// # Errors
    /// When a new one cannot be had.
    pub async fn connection(&self, address: SocketAddr) -> io::Result<Connection> {
        let idle = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            let list = idle.get_mut(&address);
            list.and_then(|list| {
                list.retain(|connection| !connection.sender.is_closed());
                list.pop()
            })
        };
        match idle {
            Some(connection) => Ok(connection),
            None => Connection::open(address).await,
        }
    }

    /// Keeps a connection whose answer was read to its end.
    pub fn keep(&self, address: SocketAddr, connection: Connection) {
        if !connection.sender.is_closed() {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.entry(address).or_default().push(connection);
        }
    }
}

/// A JSON request.
///
/// # Errors
/// When the path is none.
pub fn post(path: &str, body: Bytes) -> io::Result<Request<Full<Bytes>>> {
    Request::post(path)
        .header(http::header::HOST, "gateway")
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Full::new(body))
        .map_err(io::Error::other)
}
