//! The emulated engine says what its prefix cache holds, as vLLM does: numbered messages on a PUB socket, and a ROUTER
//! socket that repeats them.
//!
//! vLLM binds its PUB socket for `*` and connects it to any other host; here a flag says which. While a connecting
//! publisher finds nobody, its messages wait; a listening one drops what nobody subscribed to.

mod encode;
mod sockets;

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};

use super::KvEventSink;
use crate::batch::KvEvent;

pub use encode::KvShape;

/// Where and how KV events are published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEventsConfig {
    /// Address of the stream; port 0 takes a free one.
    pub events: SocketAddr,
    /// Connect there instead of listening.
    pub connect: bool,
    /// Address of the replay socket, if there is to be one.
    pub replay: Option<SocketAddr>,
    /// How events are written.
    pub shape: KvShape,
    /// First part of each message.
    pub topic: String,
    /// Messages that the replay socket remembers.
    pub remembered: usize,
    /// Messages that wait for one subscriber; further ones are lost to it.
    pub waiting: usize,
    /// Tokens of a block.
    pub block_size: u32,
    /// Adapters, in the order of their numbers.
    pub loras: Vec<String>,
}

impl KvEventsConfig {
    /// vLLM's bounds, for a stream at this address.
    pub fn at(events: SocketAddr, topic: String) -> KvEventsConfig {
        KvEventsConfig {
            events,
            connect: false,
            replay: None,
            shape: KvShape::Map,
            topic,
            remembered: 10_000,
            waiting: 100_000,
            block_size: 16,
            loras: Vec::new(),
        }
    }
}

/// A message, as all who get it share it.
#[derive(Debug)]
struct Sent {
    sequence: u64,
    payload: Bytes,
}

type Queue = mpsc::Sender<Arc<Sent>>;

#[derive(Debug)]
struct State {
    next: u64,
    memory: VecDeque<Arc<Sent>>,
    subscribers: Vec<Queue>,
    /// Messages still to be lost.
    lose: u64,
}

/// What the sockets and the publisher share.
#[derive(Debug)]
struct Shared {
    config: KvEventsConfig,
    state: Mutex<State>,
}

/// Publishes KV events. Dropping it closes its sockets.
#[derive(Debug)]
pub struct KvPublisher {
    shared: Arc<Shared>,
    events: SocketAddr,
    replay: Option<SocketAddr>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for KvPublisher {
    fn drop(&mut self) {
        // Connections belong to these tasks.
        self.tasks.get_mut().iter().for_each(JoinHandle::abort);
    }
}

impl KvPublisher {
    /// Opens the sockets, on the present Tokio runtime.
    ///
    /// # Errors
    /// When a port cannot be bound.
    pub async fn start(config: KvEventsConfig) -> io::Result<KvPublisher> {
        let replay = match config.replay {
            Some(address) => Some(TcpListener::bind(address).await?),
            None => None,
        };
        let listener = match config.connect {
            true => None,
            false => Some(TcpListener::bind(config.events).await?),
        };
        let events = match &listener {
            Some(listener) => listener.local_addr()?,
            None => config.events,
        };
        let shared = Arc::new(Shared {
            config,
            state: Mutex::new(State {
                next: 0,
                memory: VecDeque::new(),
                subscribers: Vec::new(),
                lose: 0,
            }),
        });
        let stream = match listener {
            Some(listener) => tokio::spawn(sockets::publish(listener, Arc::clone(&shared))),
            None => {
                let queue = shared.subscriber();
                tokio::spawn(sockets::call(events, Arc::clone(&shared), queue))
            }
        };
        let mut publisher = KvPublisher {
            shared: Arc::clone(&shared),
            events,
            replay: None,
            tasks: Mutex::new(vec![stream]),
        };
        if let Some(listener) = replay {
            publisher.replay = Some(listener.local_addr()?);
            let task = tokio::spawn(sockets::repeat(listener, shared));
            publisher.tasks.get_mut().push(task);
        }
        Ok(publisher)
    }

    /// Address of the stream.
    pub fn events(&self) -> SocketAddr {
        self.events
    }

    /// Address of the replay socket.
    pub fn replay(&self) -> Option<SocketAddr> {
        self.replay
    }

    /// Messages published so far.
    pub fn published(&self) -> u64 {
        self.shared.state.lock().next
    }

    /// The next `count` messages get their numbers and are remembered, but no subscriber gets them.
    pub fn lose(&self, count: u64) {
        self.shared.state.lock().lose += count;
    }

    /// Closes the sockets and waits until that is done.
    pub async fn stop(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            task.abort();
            let _ = task.await;
        }
    }
}

impl KvEventSink for KvPublisher {
    fn source(&self) -> Option<Value> {
        let config = &self.shared.config;
        // vLLM binds an endpoint that names no host, and connects to one that does.
        let endpoint = match config.connect {
            true => format!("tcp://{}", self.events),
            false => format!("tcp://*:{}", self.events.port()),
        };
        Some(json!({
            "enable_kv_cache_events": true,
            "publisher": "zmq",
            "endpoint": endpoint,
            "replay_endpoint": self.replay.map(|at| format!("tcp://{at}")),
            "buffer_steps": config.remembered,
            "hwm": config.waiting,
            "topic": config.topic,
        }))
    }

    fn publish(&self, events: &[KvEvent]) {
        let config = &self.shared.config;
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let payload = encode::batch(config, now.as_secs_f64(), events);
        let state = &mut *self.shared.state.lock();
        let sent = Arc::new(Sent {
            sequence: state.next,
            payload: payload.into(),
        });
        state.next += 1;
        if config.replay.is_some() {
            if state.memory.len() >= config.remembered {
                state.memory.pop_front();
            }
            state.memory.push_back(Arc::clone(&sent));
        }
        if state.lose > 0 {
            state.lose -= 1;
            return;
        }
        state.subscribers.retain(|queue| {
            use mpsc::error::TrySendError;
            // A slow subscriber loses messages and sees it by their numbers.
            !matches!(
                queue.try_send(Arc::clone(&sent)),
                Err(TrySendError::Closed(_))
            )
        });
    }
}

impl Shared {
    /// The queue of a new subscriber.
    fn subscriber(&self) -> mpsc::Receiver<Arc<Sent>> {
        let (queue, waiting) = mpsc::channel(self.config.waiting.max(1));
        self.state.lock().subscribers.push(queue);
        waiting
    }

    /// What is remembered from a number on.
    fn remembered(&self, from: u64) -> Vec<Arc<Sent>> {
        let state = self.state.lock();
        let wanted = state.memory.iter().filter(|sent| sent.sequence >= from);
        wanted.cloned().collect()
    }
}
