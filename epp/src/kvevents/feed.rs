//! The queue between a source's connections and the task that applies its messages.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use wicketgate_zmtp::Message;

use super::{
    config::IntakeConfig,
    counts::{Connected, Shared},
};

/// What happened on a line.
#[derive(Debug)]
pub(super) enum Arrival {
    /// The engine is connected (again), for the so-manieth time.
    Up(u64),
    /// It sent a message.
    Message(Message),
}

/// An arrival with the room that it takes until it is dropped.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) arrival: Arrival,
    _waiting: Waiting,
}

#[derive(Debug)]
struct Waiting {
    shared: Arc<Shared>,
    _room: Option<OwnedSemaphorePermit>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.shared.note(|state| state.waiting -= 1);
    }
}

/// The end of the queue that connections hold.
#[derive(Clone, Debug)]
pub(super) struct Feeder {
    sender: mpsc::Sender<Queued>,
    room: Arc<Semaphore>,
    most: u32,
    /// Number of the newest line: an engine has one, so an older one is a leftover.
    newest: Arc<AtomicU64>,
    pub(super) shared: Arc<Shared>,
}

/// One connection's right to feed, until a newer one takes it.
#[derive(Debug)]
pub(super) struct Line {
    feeder: Feeder,
    number: u64,
    _connected: Connected,
}

/// Nobody takes messages of this line any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Superseded;

pub(super) fn feed(config: &IntakeConfig, shared: Arc<Shared>) -> (Feeder, mpsc::Receiver<Queued>) {
    let (sender, receiver) = mpsc::channel(config.queue_messages.max(1));
    let most = u32::try_from(config.queue_bytes.max(1)).unwrap_or(u32::MAX);
    let feeder = Feeder {
        sender,
        room: Arc::new(Semaphore::new(most as usize)),
        most,
        newest: Arc::default(),
        shared,
    };
    (feeder, receiver)
}

impl Feeder {
    /// A connection stands: it is the source's line from now on. Waits while the queue is full.
    pub(super) async fn line(&self) -> Result<Line, Superseded> {
        let connected = self.shared.connected();
        self.newest.fetch_max(connected.number, Ordering::AcqRel);
        let line = Line {
            number: connected.number,
            feeder: self.clone(),
            _connected: connected,
        };
        line.put(Arrival::Up(line.number), None).await?;
        Ok(line)
    }
}

impl Line {
    /// Hands a message on. Waits while the queue is full: meanwhile the connection is not read.
    pub(super) async fn message(&self, message: Message) -> Result<(), Superseded> {
        let bytes: usize = message.iter().map(|part| part.len()).sum();
        let wanted = u32::try_from(bytes)
            .unwrap_or(u32::MAX)
            .min(self.feeder.most);
        let room = Arc::clone(&self.feeder.room).acquire_many_owned(wanted);
        let room = room.await.map_err(|_| Superseded)?;
        self.put(Arrival::Message(message), Some(room)).await
    }

    async fn put(
        &self,
        arrival: Arrival,
        room: Option<OwnedSemaphorePermit>,
    ) -> Result<(), Superseded> {
        let place = self.feeder.sender.reserve().await;
        let place = place.map_err(|_| Superseded)?;
        if self.feeder.newest.load(Ordering::Acquire) != self.number {
            return Err(Superseded);
        }
        let shared = Arc::clone(&self.feeder.shared);
        shared.note(|state| state.waiting += 1);
        place.send(Queued {
            arrival,
            _waiting: Waiting {
                shared,
                _room: room,
            },
        });
        Ok(())
    }
}
