//! An engine's publisher and its replay socket, by hand: a test decides each message.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream, tcp::OwnedWriteHalf},
    sync::Semaphore,
    task::JoinHandle,
};
use wicketgate_zmtp::{Limits, Received, Role, Writer, handshake};

/// Waits for a condition. Only a hang is decided by time.
pub(super) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..4000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never {what}");
}

/// Engine clock of message `sequence` in the `life`-th life.
pub(super) fn clock(life: u32, sequence: u64) -> f64 {
    f64::from(life) * 1e6 + sequence as f64
}

/// A batch with these events as its payload.
pub(super) fn payload(published: f64, events: &[Vec<u8>]) -> Vec<u8> {
    let mut out = vec![0x93, 0xcb];
    out.extend(published.to_be_bytes());
    out.push(0xdd);
    out.extend((events.len() as u32).to_be_bytes());
    events.iter().for_each(|event| out.extend(event));
    out.push(0);
    out
}

fn word(text: &str) -> Vec<u8> {
    [&[0xd9, text.len() as u8], text.as_bytes()].concat()
}

fn hash(hash: u64) -> Vec<u8> {
    [&[0xcf][..], &hash.to_be_bytes()].concat()
}

/// Block `number` of a chain of blocks of 16 tokens, each following the one before.
pub(super) fn stored(number: u64) -> Vec<u8> {
    let parent = match number {
        0 => vec![0xc0],
        _ => hash(999 + number),
    };
    let mut out = [
        vec![0x96],
        word("BlockStored"),
        vec![0x91],
        hash(1000 + number),
        parent,
    ]
    .concat();
    out.extend([0xdc, 0, 16]);
    out.extend((0..16).flat_map(|at| [0xcd, number as u8, at]));
    // `lora_id` is there, the rest is cut off as engines do.
    out.extend([16, 0xc0]);
    out
}

pub(super) fn removed(number: u64) -> Vec<u8> {
    [
        vec![0x92],
        word("BlockRemoved"),
        vec![0x91],
        hash(1000 + number),
    ]
    .concat()
}

pub(super) fn cleared() -> Vec<u8> {
    [vec![0x91], word("AllBlocksCleared")].concat()
}

/// Tokens of the first `blocks` blocks of the chain, and one more.
pub(super) fn prompt(blocks: u64) -> Vec<u32> {
    let block = |number: u64| (0..16).map(move |at| (number as u32) << 8 | at);
    (0..blocks).flat_map(block).chain([7]).collect()
}

type Parts = Vec<Bytes>;

pub(super) fn message(topic: &str, sequence: u64, payload: Vec<u8>) -> Parts {
    vec![
        Bytes::copy_from_slice(topic.as_bytes()),
        Bytes::copy_from_slice(&sequence.to_be_bytes()),
        payload.into(),
    ]
}

#[derive(Default)]
struct Lines {
    /// Subscriptions so far.
    heard: AtomicUsize,
    writers: Mutex<Vec<Arc<tokio::sync::Mutex<Writer<OwnedWriteHalf>>>>>,
}

/// A publisher that listens.
pub(super) struct Publisher {
    pub(super) address: SocketAddr,
    lines: Arc<Lines>,
    task: JoinHandle<()>,
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Publisher {
    pub(super) async fn start() -> Publisher {
        Publisher::on("127.0.0.1:0".parse().unwrap()).await
    }

    /// On an address that was in use a moment ago.
    pub(super) async fn on(address: SocketAddr) -> Publisher {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let lines = Arc::new(Lines::default());
        let shared = Arc::clone(&lines);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                subscriber(stream, &shared).await;
            }
        });
        Publisher {
            address,
            lines,
            task,
        }
    }

    /// Sends to all who listen, in order; who is gone is forgotten.
    pub(super) async fn send(&self, parts: &[Bytes]) {
        let writers = self.lines.writers.lock().clone();
        for writer in writers {
            if writer.lock().await.send(parts).await.is_err() {
                let gone = |known: &Arc<_>| !Arc::ptr_eq(known, &writer);
                self.lines.writers.lock().retain(gone);
            }
        }
    }

    pub(super) async fn publish(&self, life: u32, sequence: u64, events: &[Vec<u8>]) {
        let payload = payload(clock(life, sequence), events);
        self.send(&message("kv@a@m", sequence, payload)).await;
    }

    pub(super) async fn until_heard(&self, subscriptions: usize) {
        until("subscribed", || {
            self.lines.heard.load(Ordering::SeqCst) >= subscriptions
        })
        .await;
    }

    /// Closes the port and all connections.
    pub(super) async fn stop(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }
}

/// Greets a subscriber; from then on it gets everything.
async fn subscriber(stream: TcpStream, lines: &Lines) {
    let (read, write) = stream.into_split();
    let Ok((mut reader, writer)) = handshake(read, write, Role::Pub, Limits::default()).await
    else {
        return;
    };
    if let Ok(Some(Received::Subscribe(_))) = reader.recv().await {
        let writer = Arc::new(tokio::sync::Mutex::new(writer));
        lines.writers.lock().push(writer);
        lines.heard.fetch_add(1, Ordering::SeqCst);
        // The connection lives as long as its writer: the reader's half only waits for its end.
        tokio::spawn(async move { while let Ok(Some(_)) = reader.recv().await {} });
    }
}

/// A publisher that connects.
pub(super) async fn caller(to: SocketAddr) -> Writer<OwnedWriteHalf> {
    let stream = TcpStream::connect(to).await.unwrap();
    let (read, write) = stream.into_split();
    let (mut reader, writer) = handshake(read, write, Role::Pub, Limits::default())
        .await
        .unwrap();
    assert!(matches!(
        reader.recv().await,
        Ok(Some(Received::Subscribe(_)))
    ));
    tokio::spawn(async move { while let Ok(Some(_)) = reader.recv().await {} });
    writer
}

/// What a replay socket remembers.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) messages: VecDeque<(u64, Vec<u8>)>,
    /// Where replays were asked to begin.
    pub(super) asked: Vec<u64>,
}

/// A replay socket. It answers as long as it has permits, and waits for one otherwise.
pub(super) struct Replay {
    pub(super) address: SocketAddr,
    pub(super) memory: Arc<Mutex<Memory>>,
    pub(super) permits: Arc<Semaphore>,
    task: JoinHandle<()>,
}

impl Drop for Replay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Replay {
    pub(super) async fn start(permits: usize) -> Replay {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let memory = Arc::new(Mutex::new(Memory::default()));
        let permits = Arc::new(Semaphore::new(permits));
        let (shared, turns) = (Arc::clone(&memory), Arc::clone(&permits));
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(answer(stream, Arc::clone(&shared), Arc::clone(&turns)));
            }
        });
        Replay {
            address,
            memory,
            permits,
            task,
        }
    }

    pub(super) fn remember(&self, life: u32, sequence: u64, events: &[Vec<u8>]) {
        let payload = payload(clock(life, sequence), events);
        self.memory.lock().messages.push_back((sequence, payload));
    }

    pub(super) fn asked(&self) -> Vec<u64> {
        self.memory.lock().asked.clone()
    }
}

async fn answer(stream: TcpStream, memory: Arc<Mutex<Memory>>, permits: Arc<Semaphore>) {
    let (read, write) = stream.into_split();
    let (mut reader, mut writer) = handshake(read, write, Role::Router, Limits::default())
        .await
        .unwrap();
    while let Ok(Some(Received::Message(request))) = reader.recv().await {
        let from = u64::from_be_bytes(request[1].as_ref().try_into().unwrap());
        memory.lock().asked.push(from);
        let Ok(permit) = permits.acquire().await else {
            return;
        };
        permit.forget();
        let wanted: Vec<_> = {
            let memory = memory.lock();
            let wanted = memory.messages.iter().filter(|(number, _)| *number >= from);
            wanted.cloned().collect()
        };
        for (sequence, payload) in wanted {
            let sequence = sequence.to_be_bytes();
            let parts = [&b""[..], b"kv@a@m", &sequence, &payload];
            writer.send(&parts).await.unwrap();
        }
        let end = [&b""[..], b"", &u64::MAX.to_be_bytes(), b""];
        writer.send(&end).await.unwrap();
    }
}
