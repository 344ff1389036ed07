//! Asks another replica's management port for a snapshot.

use std::{io, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::JoinHandle,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::{ASKED, SNAPSHOT, WarmPeer, WarmSpec};
use crate::{net::host_of, tls::peer_config};

/// Longest time to a connection.
const CONNECT: Duration = Duration::from_secs(2);
/// Longest pause of a peer.
const PAUSE: Duration = Duration::from_secs(5);
/// Longest answer that says why not.
const MOST_WORDS: usize = 4 << 10;

/// Why there is no snapshot of a peer.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    /// It cannot be reached, or broke off.
    #[error("{0}")]
    Unreached(String),
    /// It is asked too much just now.
    #[error("it is busy")]
    Busy,
    /// It has none for us.
    #[error("it answers {0}: {1}")]
    Refused(StatusCode, String),
    /// It is longer than we take.
    #[error("its snapshot is longer than {0} bytes; `kvIndex.maxSnapshotBytes` allows more")]
    TooLarge(usize),
}

fn broken(error: impl std::fmt::Display) -> FetchError {
    FetchError::Unreached(error.to_string())
}

/// A snapshot of a peer.
pub(super) struct Fetched {
    pub(super) bytes: Bytes,
    /// It was made after it was asked for: whatever lies between us has not kept it from earlier.
    pub(super) fresh: bool,
}

/// The snapshot of a peer. Bounded in time by whoever calls.
pub(super) async fn fetch(peer: &WarmPeer, spec: &WarmSpec) -> Result<Fetched, FetchError> {
    let late = || broken(io::Error::from(io::ErrorKind::TimedOut));
    let stream = timeout(CONNECT, TcpStream::connect(&peer.address)).await;
    let stream = stream.map_err(|_| late())?.map_err(broken)?;
    if !peer.tls {
        return ask(stream, peer, spec).await;
    }
    let files = spec.tls.as_ref();
    let files = files.ok_or_else(|| broken("`https://` needs `server.managementTls`"))?;
    let mut config = (*peer_config(files).map_err(broken)?).clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = host_of(&peer.address)
        .to_owned()
        .try_into()
        .map_err(broken)?;
    let shook = TlsConnector::from(std::sync::Arc::new(config)).connect(name, stream);
    let stream = timeout(CONNECT, shook).await;
    ask(stream.map_err(|_| late())?.map_err(broken)?, peer, spec).await
}

/// The task that moves a connection's bytes; dropping it hangs up.
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn ask<S>(stream: S, peer: &WarmPeer, spec: &WarmSpec) -> Result<Fetched, FetchError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let shook = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shook.map_err(broken)?;
    // The answer says what went wrong.
    let _driver = Driver(tokio::spawn(async { drop(connection.await) }));
    let word = fastrand::u64(..).to_string();
    let mut request = Request::get(SNAPSHOT)
        .header(header::HOST, &peer.address)
        .header(ASKED, &word);
    if let Some(token) = &spec.token {
        request = request.header(header::AUTHORIZATION, token.header());
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(broken)?;
    let answer = timeout(PAUSE, sender.send_request(request)).await;
    let answer = answer
        .map_err(|_| broken("no answer in time"))?
        .map_err(broken)?;
    let status = answer.status();
    if status == StatusCode::OK {
        let repeated = answer.headers().get(ASKED);
        let fresh = repeated.is_some_and(|repeated| *repeated == *word);
        let bytes = read(answer.into_body(), spec.max_bytes).await?;
        return Ok(Fetched { bytes, fresh });
    }
    let words = read(answer.into_body(), MOST_WORDS)
        .await
        .unwrap_or_default();
    let said: serde_json::Value = serde_json::from_slice(&words).unwrap_or_default();
    let said = |pointer: &str| said.pointer(pointer).and_then(serde_json::Value::as_str);
    match said("/error/code") {
        Some("busy") => Err(FetchError::Busy),
        _ => {
            let message = said("/error/message").unwrap_or_default();
            Err(FetchError::Refused(status, message.to_owned()))
        }
    }
}

async fn read(mut body: Incoming, most: usize) -> Result<Bytes, FetchError> {
    let mut all = BytesMut::new();
    loop {
        let frame = timeout(PAUSE, body.frame()).await;
        let Some(frame) = frame.map_err(|_| broken("it fell silent"))? else {
            return Ok(all.freeze());
        };
        if let Ok(data) = frame.map_err(broken)?.into_data() {
            if all.len() + data.len() > most {
                return Err(FetchError::TooLarge(most));
            }
            all.extend_from_slice(&data);
        }
    }
}
