//! Connections that engines open: to a port of their own, or to one that they share.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::RwLock;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};
use wicketgate_kvindex::events::{Dialect, decode_batch};
use wicketgate_zmtp::{Error, Message, Received, Role};

use super::{
    config::IntakeConfig,
    dial::{self, Ours, greet, late},
    feed::{Feeder, Line},
};

/// Connections to one port at once; further ones are closed.
const MOST: usize = 4096;
/// Pause after a failed accept (no file descriptors left), so that it does not spin.
const PAUSE: Duration = Duration::from_millis(50);

/// Whose messages come to a port.
pub(super) trait Route: Send + Sync + 'static {
    /// Whether this address may connect.
    fn welcome(&self, from: IpAddr) -> bool;
    /// Hands on what a connection brings, until it ends.
    fn follow(
        self: Arc<Self>,
        peer: Ours,
        config: Arc<IntakeConfig>,
    ) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Takes connections for ever.
pub(super) async fn listen<R: Route>(
    port: std::net::TcpListener,
    config: Arc<IntakeConfig>,
    route: Arc<R>,
) {
    let port = match TcpListener::from_std(port) {
        Ok(port) => port,
        Err(error) => {
            tracing::error!(%error, "a port for KV events is of no use");
            return;
        }
    };
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = port.accept() => match accepted {
                Ok((stream, from)) => {
                    if connections.len() < MOST && route.welcome(from.ip()) {
                        let (route, config) = (Arc::clone(&route), Arc::clone(&config));
                        connections.spawn(connection(stream, from, config, route));
                    }
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

async fn connection<R: Route>(
    stream: TcpStream,
    from: SocketAddr,
    config: Arc<IntakeConfig>,
    route: Arc<R>,
) {
    let ended = async {
        let greeted = timeout(config.connect_timeout, greet(stream, Role::Sub, &config));
        let (reader, mut writer) = greeted.await.unwrap_or_else(|_| Err(late()))?;
        writer.subscribe(config.topic.as_bytes()).await?;
        route.follow((reader, writer), Arc::clone(&config)).await
    };
    if let Err(error) = ended.await {
        tracing::debug!(%from, %error, "a connection for KV events ended");
    }
}

/// All that comes belongs to one source.
pub(super) struct Only {
    pub(super) from: Option<IpAddr>,
    pub(super) feeder: Feeder,
}

impl Route for Only {
    fn welcome(&self, from: IpAddr) -> bool {
        self.from
            .is_none_or(|only| only.to_canonical() == from.to_canonical())
    }

    async fn follow(
        self: Arc<Self>,
        (reader, writer): Ours,
        _: Arc<IntakeConfig>,
    ) -> Result<(), Error> {
        let Ok(line) = self.feeder.line().await else {
            return Ok(());
        };
        let ended = dial::read(reader, writer, &line, &mut 0).await;
        self.feeder.shared.note(|state| state.counts.failures += 1);
        ended
    }
}

/// The topic says whose a message is, and the payload which rank's.
#[derive(Default)]
pub(super) struct Post {
    feeders: RwLock<HashMap<(String, u32), Feeder>>,
    strays: AtomicU64,
}

impl Post {
    pub(super) fn add(&self, name: &str, rank: u32, feeder: Feeder) {
        self.feeders.write().insert((name.to_owned(), rank), feeder);
    }

    pub(super) fn remove(&self, name: &str, rank: u32) {
        self.feeders.write().remove(&(name.to_owned(), rank));
    }

    pub(super) fn strays(&self) -> u64 {
        self.strays.load(Ordering::Relaxed)
    }

    fn find(&self, topic: &[u8], rank: u32) -> Option<Feeder> {
        let topic = std::str::from_utf8(topic).ok()?;
        let feeders = self.feeders.read();
        let of = |name: &str| feeders.get(&(name.to_owned(), rank)).cloned();
        of(name(topic)).or_else(|| of(topic))
    }

    /// Whose message this is.
    fn sort(&self, message: &Message, config: &IntakeConfig) -> Option<Feeder> {
        let [topic, _, payload] = message.as_slice() else {
            return None;
        };
        // The rank stands in the same place in every dialect.
        let batch = decode_batch(payload, Dialect::Vllm, config.limits).ok()?;
        self.find(topic, batch.rank.unwrap_or(0))
    }
}

/// The endpoint in a topic `kv@NAME@model`. The name may hold a port, and the model an `@`.
fn name(topic: &str) -> &str {
    let mut parts = topic.splitn(3, '@');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(_), Some(name), Some(_)) => name,
        _ => topic,
    }
}

impl Route for Post {
    fn welcome(&self, _: IpAddr) -> bool {
        true
    }

    async fn follow(self: Arc<Self>, peer: Ours, config: Arc<IntakeConfig>) -> Result<(), Error> {
        let (mut reader, mut writer) = peer;
        // A publisher is one rank of one engine: what its first message says holds for the connection, unless the
        // source behind it goes.
        let mut line: Option<Line> = None;
        while let Some(received) = reader.recv().await? {
            let message = match received {
                Received::Message(message) => message,
                Received::Ping(context) => {
                    writer.pong(&context).await?;
                    continue;
                }
                Received::Subscribe(_) | Received::Cancel(_) => {
                    return Err(Error::Broken("a publisher that subscribes"));
                }
            };
            if line.is_none() {
                line = match self.sort(&message, &config) {
                    Some(feeder) => feeder.line().await.ok(),
                    None => None,
                };
            }
            match &line {
                Some(known) => {
                    if known.message(message).await.is_err() {
                        line = None;
                    }
                }
                None => {
                    self.strays.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }
}
