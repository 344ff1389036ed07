//! Ports on the loopback that speak HTTP/1.1 by hand.

use std::{io, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use tokio::{net::TcpListener, task::JoinSet};

use crate::raw::{Wire, length};

/// Answers a request, given its head, at a port by number: pieces that are written one by one.
pub(super) type Answer = Arc<dyn Fn(usize, &[u8]) -> Vec<Bytes> + Send + Sync>;

/// Ports that serve until this is dropped.
pub(super) struct Ports {
    pub(super) addresses: Vec<SocketAddr>,
    _tasks: JoinSet<()>,
}

/// Opens `count` ports.
pub(super) async fn open(count: usize, answer: Answer) -> io::Result<Ports> {
    let mut tasks = JoinSet::new();
    let mut addresses = Vec::with_capacity(count);
    for port in 0..count {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        addresses.push(listener.local_addr()?);
        tasks.spawn(accept(listener, port, Arc::clone(&answer)));
    }
    Ok(Ports {
        addresses,
        _tasks: tasks,
    })
}

async fn accept(listener: TcpListener, port: usize, answer: Answer) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                let answer = Arc::clone(&answer);
                connections.spawn(async move {
                    // A client that goes away is how every run ends.
                    if let Ok(mut wire) = Wire::over(stream) {
                        let _ = connection(&mut wire, port, &answer).await;
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(wire: &mut Wire, port: usize, answer: &Answer) -> io::Result<()> {
    while let Some(head) = wire.head().await? {
        wire.body(length(&head).unwrap_or(0), |_| ()).await?;
        for piece in answer(port, &head) {
            wire.write(&piece).await?;
        }
    }
    Ok(())
}

/// A whole answer.
pub(super) fn whole(kind: &str, body: &str) -> Bytes {
    let length = body.len();
    Bytes::from(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}"
    ))
}

/// The head of an answer in chunks.
pub(super) fn chunked_head(kind: &str) -> Bytes {
    Bytes::from(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n"
    ))
}

/// One chunk.
pub(super) fn chunk(body: &str) -> Bytes {
    Bytes::from(format!("{:x}\r\n{body}\r\n", body.len()))
}
