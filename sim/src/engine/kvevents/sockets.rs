//! The sockets of a publisher.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};
use wicketgate_zmtp::{Error, Limits, Received, Role, handshake, tune};

use super::{Sent, Shared};

/// Longest time to greet, so that a silent caller does not stay.
const GREETING: Duration = Duration::from_secs(5);
/// Pause before a subscriber is called again, and after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes that are sent together.
const TOGETHER: usize = 64 << 10;
/// A subscriber sends subscriptions, and who wants a replay sends numbers.
const LIMITS: Limits = Limits {
    bytes: 4096,
    parts: 4,
};

/// Takes subscribers for ever.
pub(super) async fn publish(listener: TcpListener, shared: Arc<Shared>) {
    accept(listener, move |stream| {
        let shared = Arc::clone(&shared);
        let mut queue = shared.subscriber();
        async move { subscriber(stream, &shared, &mut queue).await }
    })
    .await;
}

/// Calls the one subscriber for ever; what is published meanwhile waits in the queue.
pub(super) async fn call(
    to: SocketAddr,
    shared: Arc<Shared>,
    mut queue: mpsc::Receiver<Arc<Sent>>,
) {
    loop {
        if let Ok(stream) = TcpStream::connect(to).await
            && let Err(error) = subscriber(stream, &shared, &mut queue).await
        {
            tracing::debug!(%to, %error, "a subscriber is gone");
        }
        sleep(PAUSE).await;
    }
}

/// Answers requests for replays for ever.
pub(super) async fn repeat(listener: TcpListener, shared: Arc<Shared>) {
    accept(listener, move |stream| {
        let shared = Arc::clone(&shared);
        async move { replays(stream, &shared).await }
    })
    .await;
}

async fn accept<F>(listener: TcpListener, mut serve: impl FnMut(TcpStream) -> F)
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => {
                    let served = serve(stream);
                    connections.spawn(async move {
                        if let Err(error) = served.await {
                            tracing::debug!(%from, %error, "a connection for KV events ended");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    sleep(PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn greet(
    stream: TcpStream,
    role: Role,
) -> Result<
    (
        wicketgate_zmtp::Reader<tokio::net::tcp::OwnedReadHalf>,
        wicketgate_zmtp::Writer<tokio::net::tcp::OwnedWriteHalf>,
    ),
    Error,
> {
    tune(&stream)?;
    let (read, write) = stream.into_split();
    match timeout(GREETING, handshake(read, write, role, LIMITS)).await {
        Ok(greeted) => greeted,
        Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
    }
}

/// Sends a subscriber what it wants until it goes.
async fn subscriber(
    stream: TcpStream,
    shared: &Shared,
    queue: &mut mpsc::Receiver<Arc<Sent>>,
) -> Result<(), Error> {
    let (mut reader, mut writer) = greet(stream, Role::Pub).await?;
    let topic = shared.config.topic.as_bytes();
    let mut wanted: Vec<Bytes> = Vec::new();
    // A connecting publisher keeps its messages until somebody wants any.
    let keeps = shared.config.connect;
    loop {
        tokio::select! {
            biased;
            received = reader.recv() => match received? {
                None => return Ok(()),
                Some(Received::Subscribe(prefix)) => wanted.push(prefix),
                Some(Received::Cancel(prefix)) => {
                    let known = wanted.iter().position(|one| *one == prefix);
                    known.map(|at| wanted.swap_remove(at));
                }
                Some(Received::Ping(context)) => writer.pong(&context).await?,
                Some(Received::Message(_)) => return Err(Error::Broken("a message from a subscriber")),
            },
            Some(sent) = queue.recv(), if !(keeps && wanted.is_empty()) => {
                let mut next = Some(sent);
                while let Some(sent) = next {
                    if wanted.iter().any(|prefix| topic.starts_with(prefix)) {
                        writer.put(&[topic, &sent.sequence.to_be_bytes(), &sent.payload]);
                    }
                    next = (writer.waiting() < TOGETHER).then(|| queue.try_recv().ok()).flatten();
                }
                writer.flush().await?;
            }
        }
    }
}

/// Repeats what is remembered, as often as it is asked for.
async fn replays(stream: TcpStream, shared: &Shared) -> Result<(), Error> {
    let (mut reader, mut writer) = greet(stream, Role::Router).await?;
    while let Some(received) = reader.recv().await? {
        let request = match received {
            Received::Message(request) => request,
            Received::Ping(context) => {
                writer.pong(&context).await?;
                continue;
            }
            Received::Subscribe(_) | Received::Cancel(_) => {
                return Err(Error::Broken("a subscription at a replay socket"));
            }
        };
        // As vLLM: what is no number of eight bytes is answered with the end.
        let from = request
            .get(1)
            .and_then(|part| part.as_ref().try_into().ok());
        let from = from.map(u64::from_be_bytes);
        for sent in from.map(|from| shared.remembered(from)).unwrap_or_default() {
            let number = sent.sequence.to_be_bytes();
            let topic = shared.config.topic.as_bytes();
            writer.put(&[b"", topic, &number, &sent.payload]);
            if writer.waiting() >= TOGETHER {
                writer.flush().await?;
            }
        }
        writer.put(&[&b""[..], b"", &u64::MAX.to_be_bytes(), b""]);
        writer.flush().await?;
    }
    Ok(())
}
