//! What an answer knows of its requests in the engine.

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;

use super::state::Engine;

/// How far one choice of an answer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) generated: u32,
    pub(super) cached_tokens: u32,
    pub(super) finished: bool,
}

#[derive(Debug, Default)]
struct TicketState {
    choices: Vec<Progress>,
    waker: Option<Waker>,
}

/// The driver writes, the answer reads.
#[derive(Debug)]
pub(super) struct Ticket(Mutex<TicketState>);

impl Ticket {
    pub(super) fn new(choices: usize) -> Ticket {
        Ticket(Mutex::new(TicketState {
            choices: vec![Progress::default(); choices],
            waker: None,
        }))
    }

    /// Changes one choice; returns whom to wake.
    pub(super) fn update(
        &self,
        choice: usize,
        change: impl FnOnce(&mut Progress),
    ) -> Option<Waker> {
        let mut state = self.0.lock();
        if let Some(progress) = state.choices.get_mut(choice) {
            change(progress);
        }
        state.waker.take()
    }

    /// Reads all choices. If `read` finds nothing to do, the task is woken at the next change.
    fn poll<T>(&self, cx: &Context<'_>, read: impl FnOnce(&[Progress]) -> Option<T>) -> Poll<T> {
        let mut state = self.0.lock();
        match read(&state.choices) {
            Some(value) => Poll::Ready(value),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// The requests of one answer. Dropping it aborts those that are not complete.
#[derive(Debug)]
pub(super) struct InFlight {
    engine: Arc<Engine>,
    ids: Vec<u64>,
    ticket: Arc<Ticket>,
}

impl InFlight {
    pub(super) fn new(engine: Arc<Engine>, ids: Vec<u64>, ticket: Arc<Ticket>) -> InFlight {
        InFlight {
            engine,
            ids,
            ticket,
        }
    }

    /// One more request of the answer.
    pub(super) fn push(&mut self, id: u64) {
        self.ids.push(id);
    }

    /// Reads the progress of all choices, as [`Ticket::poll`] does.
    pub(super) fn poll<T>(
        &self,
        cx: &Context<'_>,
        read: impl FnOnce(&[Progress]) -> Option<T>,
    ) -> Poll<T> {
        self.ticket.poll(cx, read)
    }

    /// Waits until every choice is complete.
    pub(super) async fn complete(&self) -> Vec<Progress> {
        std::future::poll_fn(|cx| {
            self.poll(cx, |choices| {
                let all = choices.iter().all(|progress| progress.finished);
                all.then(|| choices.to_vec())
            })
        })
        .await
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.engine.leave(&self.ids);
    }
}
