//! `dynamo-kv-router`: the concurrent tree that it uses by default, with one writer thread.

use std::{sync::Arc, thread};

use dynamo_kv_router::{
    ConcurrentRadixTreeCompressed, SyncIndexer as _,
    indexer::WorkerTask,
    protocols::{LocalBlockHash, RouterEvent},
};
use tokio::sync::oneshot;
use wicketgate_bench_index::{Block, Reader, Subject};

use crate::events;

/// Events that may wait: enough that the writer never does.
const QUEUE: usize = 1024;

/// The writer keeps the map of engine hashes, and events reach it by a channel only.
pub(crate) struct Peer {
    tree: Arc<ConcurrentRadixTreeCompressed>,
    writer: flume::Sender<WorkerTask>,
    thread: Option<thread::JoinHandle<()>>,
}

pub(crate) struct View(Arc<ConcurrentRadixTreeCompressed>);

impl Peer {
    fn give(&self, task: WorkerTask) {
        self.writer.send(task).expect("the writer lives");
    }
}

impl Drop for Peer {
    /// What the writer holds is gone before the next index is weighed.
    fn drop(&mut self) {
        self.give(WorkerTask::Terminate);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the writer does not panic");
        }
    }
}

impl Subject for Peer {
    type Event = RouterEvent;
    type Query = Vec<LocalBlockHash>;
    type Reader = View;

    const ON_THIS_THREAD: bool = false;

    fn new(_endpoints: usize) -> Peer {
        let tree = Arc::new(ConcurrentRadixTreeCompressed::new());
        let (writer, tasks) = flume::bounded(QUEUE);
        let of_writer = Arc::clone(&tree);
        let write = move || of_writer.worker(tasks, None).expect("the writer works");
        Peer {
            tree,
            writer,
            thread: Some(thread::spawn(write)),
        }
    }

    fn stored(endpoint: usize, parent: Option<&Block>, blocks: &[Block]) -> RouterEvent {
        events::stored(endpoint, parent, blocks)
    }

    fn removed(endpoint: usize, blocks: &[Block]) -> RouterEvent {
        events::removed(endpoint, blocks)
    }

    fn apply(&mut self, events: &mut Vec<RouterEvent>) {
        for event in events.drain(..) {
            self.give(WorkerTask::Event(event));
        }
        let (done, wait) = oneshot::channel();
        self.give(WorkerTask::Flush(done));
        wait.blocking_recv().expect("the writer lives");
    }

    fn send(&mut self, event: RouterEvent) {
        self.give(WorkerTask::Event(event));
    }

    fn reader(&self) -> View {
        View(Arc::clone(&self.tree))
    }

    fn query(blocks: &[Block]) -> Vec<LocalBlockHash> {
        events::query(blocks)
    }

    fn hashed(tokens: &[u32]) -> Vec<LocalBlockHash> {
        events::hashed(tokens)
    }
}

impl Reader for View {
    type Query = Vec<LocalBlockHash>;

    fn lookup(&mut self, query: &Vec<LocalBlockHash>) -> usize {
        self.0.find_matches(query, false).scores.len()
    }

    fn blocks(&mut self, query: &Vec<LocalBlockHash>) -> u64 {
        events::blocks(self.0.find_matches(query, false))
    }
}
