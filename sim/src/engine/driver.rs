//! The task that owns the core: takes requests, computes steps, sleeps their time, tells each request.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{mpsc, oneshot, watch};

use crate::core::{CoreConfig, CoreStats, EngineCore, Job, Refused};

/// Commands that may wait for the running step.
const INBOX: usize = 4096;

/// How far a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) generated: u32,
    pub(super) finished: bool,
    pub(super) cached_tokens: u32,
}

enum Command {
    Submit(Job, oneshot::Sender<Result<watch::Receiver<Progress>, Refused>>),
    Abort(u64),
    Reset(oneshot::Sender<bool>),
}

/// The way to the core.
pub(super) struct Driver {
    commands: mpsc::Sender<Command>,
    stats: Arc<Mutex<CoreStats>>,
    next_id: AtomicU64,
}

/// A request inside the core; its drop aborts it.
pub(super) struct Ticket {
    id: u64,
    pub(super) progress: watch::Receiver<Progress>,
    commands: mpsc::Sender<Command>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.progress.borrow().finished {
            return;
        }
        if let Err(mpsc::error::TrySendError::Full(abort)) = self.commands.try_send(Command::Abort(self.id)) {
            let commands = self.commands.clone();
            // A full inbox empties with the step; a closed one means that the engine is gone.
            tokio::spawn(async move { commands.send(abort).await.ok() });
        }
    }
}

impl Driver {
    /// A driver and the future that runs it.
    pub(super) fn new(config: CoreConfig, time_scale: f64) -> (Driver, impl Future<Output = ()>) {
        let (commands, inbox) = mpsc::channel(INBOX);
        let core = EngineCore::new(config);
        let stats = Arc::new(Mutex::new(core.stats()));
        let run = run(core, inbox, Arc::clone(&stats), time_scale);
        let driver = Driver {
            commands,
            stats,
            next_id: AtomicU64::new(1),
        };
        (driver, run)
    }

    pub(super) fn stats(&self) -> CoreStats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a request.
    pub(super) async fn submit(&self, mut job: Job) -> Result<Ticket, Refused> {
        job.id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let id = job.id;
        let (answer, answered) = oneshot::channel();
        // A closed inbox means that the engine is stopping: the same as a full one for the caller.
        self.commands.send(Command::Submit(job, answer)).await.map_err(|_| Refused::QueueFull)?;
        let progress = answered.await.map_err(|_| Refused::QueueFull)??;
        Ok(Ticket {
            id,
            progress,
            commands: self.commands.clone(),
        })
    }

    /// Forgets the prefix cache; false while requests run.
    pub(super) async fn reset(&self) -> bool {
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command::Reset(answer)).await.is_ok() && answered.await.unwrap_or(false)
    }
}

async fn run(
    mut core: EngineCore,
    mut inbox: mpsc::Receiver<Command>,
    stats: Arc<Mutex<CoreStats>>,
    time_scale: f64,
) {
    let mut followers: HashMap<u64, watch::Sender<Progress>> = HashMap::new();
    let publish = |core: &EngineCore| {
        *stats.lock().unwrap_or_else(PoisonError::into_inner) = core.stats();
    };
    loop {
        if core.idle() {
            match inbox.recv().await {
                Some(command) => take(command, &mut core, &mut followers),
                None => return,
            }
        }
        while let Ok(command) = inbox.try_recv() {
            take(command, &mut core, &mut followers);
        }
        let out = core.step();
        publish(&core);
        let time = Duration::from_nanos(out.nanos).mul_f64(time_scale.max(0.0));
        if time.is_zero() {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(time).await;
        }
        for produced in out.produced {
            let progress = Progress {
                generated: produced.generated,
                finished: produced.finished,
                cached_tokens: produced.cached_tokens,
            };
            if produced.finished {
                if let Some(follower) = followers.remove(&produced.id) {
                    follower.send_replace(progress);
                }
            } else if let Some(follower) = followers.get(&produced.id) {
                follower.send_replace(progress);
            }
        }
    }
}

fn take(
    command: Command,
    core: &mut EngineCore,
    followers: &mut HashMap<u64, watch::Sender<Progress>>,
) {
    match command {
        Command::Submit(job, answer) => {
            let id = job.id;
            let taken = core.submit(job).map(|()| {
                let (follower, progress) = watch::channel(Progress::default());
                followers.insert(id, follower);
                progress
            });
            if answer.send(taken).is_err() {
                // The caller hung up before it had its ticket.
                core.abort(id);
                followers.remove(&id);
            }
        }
        Command::Abort(id) => {
            core.abort(id);
            followers.remove(&id);
        }
        Command::Reset(answer) => {
            let done = core.reset_prefix_cache(&mut Vec::new());
            // A caller that hung up does not need the answer.
            let _ = answer.send(done);
        }
    }
}
