//! Questions to engines, beside the requests that they serve: what they publish, what a prompt becomes.
//!
//! HTTP/1 over connections that are kept, bounded in time and in bytes. Scrapes have a path of their own, in
//! [`crate::telemetry`].

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{net::TcpStream, task::JoinHandle, time::timeout};

use crate::tls::Connector;

/// Connections that wait for the next question.
const KEPT: usize = 4;

/// How engines are reached: as requests reach them.
#[derive(Clone, Default)]
pub struct Reach {
    /// Through TLS with this trust, if they are.
    pub tls: Option<Connector>,
    /// What they want to see, if anything.
    pub authorization: Option<HeaderValue>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// It took too long.
    #[error("no answer in time")]
    Late,
    /// The connection could not be had, or broke.
    #[error("{0}")]
    Broken(String),
    /// The answer is longer than anybody needs.
    #[error("the answer is too long")]
    TooLong,
}

fn broken(error: impl std::fmt::Display) -> AskError {
    AskError::Broken(error.to_string())
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: BytesMut,
}

/// A question.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    method: Method,
    path: &'static str,
    body: Bytes,
}

impl Question {
    pub(crate) fn get(path: &'static str) -> Question {
        Question {
            method: Method::GET,
            path,
            body: Bytes::new(),
        }
    }

    /// With a body of JSON.
    pub(crate) fn post(path: &'static str, body: Bytes) -> Question {
        Question {
            method: Method::POST,
            path,
            body,
        }
    }
}

/// The way to one engine.
pub(crate) struct Line {
    /// `host:port`.
    address: Arc<str>,
    reach: Reach,
    kept: Mutex<Vec<Connection>>,
}

struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Line {
    pub(crate) fn new(address: Arc<str>, reach: Reach) -> Line {
        Line {
            address,
            reach,
            kept: Mutex::default(),
        }
    }

    /// Asks, and waits for the answer `within` a time; it has at most `most` bytes.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) async fn ask(
        &self,
        question: Question,
        most: usize,
        within: Duration,
    ) -> Result<Answer, AskError> {
        let asked = timeout(within, self.asked(&question, most)).await;
        asked.unwrap_or(Err(AskError::Late))
    }

    async fn asked(&self, question: &Question, most: usize) -> Result<Answer, AskError> {
        if let Some(mut connection) = self.idle() {
            // The engine may have closed it a moment ago.
            if let Ok(response) = self.send(&mut connection, question).await {
                return self.read(connection, response, most).await;
            }
        }
        let mut connection = self.connect().await?;
        let response = self.send(&mut connection, question).await?;
        self.read(connection, response, most).await
    }

    fn idle(&self) -> Option<Connection> {
        let mut kept = self.kept.lock();
        while let Some(connection) = kept.pop() {
            if connection.sender.is_ready() {
                return Some(connection);
            }
        }
        None
    }

    async fn send(
        &self,
        connection: &mut Connection,
        question: &Question,
    ) -> Result<http::Response<Incoming>, AskError> {
        let mut request = http::Request::builder()
            .method(question.method.clone())
            .uri(question.path)
            .header(header::HOST, &*self.address)
            .body(Full::new(question.body.clone()))
            .map_err(broken)?;
        let headers = request.headers_mut();
        if question.method == Method::POST {
            let json = HeaderValue::from_static("application/json");
            headers.insert(header::CONTENT_TYPE, json);
        }
        if let Some(authorization) = &self.reach.authorization {
            headers.insert(header::AUTHORIZATION, authorization.clone());
        }
        connection.sender.ready().await.map_err(broken)?;
        connection
            .sender
            .send_request(request)
            .await
            .map_err(broken)
    }

    async fn read(
        &self,
        connection: Connection,
        response: http::Response<Incoming>,
        most: usize,
    ) -> Result<Answer, AskError> {
        let status = response.status();
        let mut incoming = response.into_body();
        let mut body = BytesMut::new();
        while let Some(frame) = incoming.frame().await {
            if let Ok(data) = frame.map_err(broken)?.into_data() {
                if body.len() + data.len() > most {
                    return Err(AskError::TooLong);
                }
                body.extend_from_slice(&data);
            }
        }
        let mut kept = self.kept.lock();
        if kept.len() < KEPT {
            kept.push(connection);
        }
        Ok(Answer { status, body })
    }

    async fn connect(&self) -> Result<Connection, AskError> {
        let stream = TcpStream::connect(&*self.address).await.map_err(broken)?;
        stream.set_nodelay(true).map_err(broken)?;
        match &self.reach.tls {
            None => open(TokioIo::new(stream)).await,
            Some(tls) => {
                let shaken = tls.connect(&self.address, stream).await;
                open(TokioIo::new(shaken.map_err(broken)?)).await
            }
        }
    }
}

async fn open<T>(io: T) -> Result<Connection, AskError>
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(io).await.map_err(broken)?;
    let driver = tokio::spawn(async move {
        // The next question finds the connection closed and says so.
        let _ = connection.await;
    });
    Ok(Connection { sender, driver })
}
