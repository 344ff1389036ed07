//! Guards: the only things that give back what the pool counted.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::sync::oneshot;
use wicketgate_pool::{
    Ended, Input, RequestId, Usage, admission,
    scheduler::{Incarnation, Nanos},
};

use super::{PoolShell, Verdict};

/// A dispatched request. Its drop ends the request in the pool, once, whatever happened.
pub struct InFlight {
    shell: Arc<PoolShell>,
    id: RequestId,
    how: Ended,
    usage: Option<Usage>,
    waited: Nanos,
    /// Where the pool asks for its end; only of requests that may be evicted.
    evicted: Option<oneshot::Receiver<()>>,
}

impl InFlight {
    pub(super) fn new(
        shell: &Arc<PoolShell>,
        id: RequestId,
        waited: Nanos,
        evicted: Option<oneshot::Receiver<()>>,
    ) -> Self {
        InFlight {
            shell: Arc::clone(shell),
            id,
            how: Ended::Dropped,
            usage: None,
            waited,
            evicted,
        }
    }

    /// How long it waited for its turn, in nanoseconds.
    pub fn waited(&self) -> Nanos {
        self.waited
    }

    /// Ready when the pool wants the request ended for a more urgent one; never for most requests.
    pub fn poll_evicted(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(evicted) = self.evicted.as_mut() else {
            return Poll::Pending;
        };
        match Pin::new(evicted).poll(context) {
            Poll::Ready(Ok(())) => {
                self.evicted = None;
                Poll::Ready(())
            }
            // The pool will not ask any more.
            Poll::Ready(Err(_)) => {
                self.evicted = None;
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// The request's number.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The pool that counts it.
    pub fn shell(&self) -> &Arc<PoolShell> {
        &self.shell
    }

    /// The endpoint that really got the request.
    pub fn served(&self, by: Incarnation) {
        self.shell.post(Input::Served { id: self.id, by });
    }

    /// One try failed there; the request goes on elsewhere. `certain` when we saw the failure ourselves.
    pub fn failed(&self, at: Incarnation, certain: bool) {
        let id = self.id;
        self.shell.post(Input::Failed { id, at, certain });
    }

    /// The prefill is over.
    pub fn first_token(&self) {
        self.shell.post(Input::FirstToken(self.id));
    }

    /// Says how it ended; the drop that follows posts it.
    pub fn end(mut self, how: Ended, usage: Option<Usage>) {
        self.how = how;
        self.usage = usage;
    }

    /// Sets what a drop without [`InFlight::end`] will say.
    pub fn if_dropped(&mut self, how: Ended) {
        self.how = how;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.shell.post(Input::End {
            id: self.id,
            how: self.how,
            usage: self.usage.take(),
        });
    }
}

/// A request in the queue. Its drop takes the request out.
pub struct Waiting {
    shell: Arc<PoolShell>,
    id: RequestId,
    receiver: oneshot::Receiver<Verdict>,
    answered: bool,
}

impl Waiting {
    pub(super) fn new(
        shell: &Arc<PoolShell>,
        id: RequestId,
        receiver: oneshot::Receiver<Verdict>,
    ) -> Self {
        Waiting {
            shell: Arc::clone(shell),
            id,
            receiver,
            answered: false,
        }
    }
}

impl Future for Waiting {
    type Output = Verdict;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Verdict> {
        let verdict = match Pin::new(&mut self.receiver).poll(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(verdict)) => verdict,
            Poll::Ready(Err(_)) => Verdict::Refused {
                why: admission::Outcome::EvictedShuttingDown,
                wait: None,
            },
        };
        self.answered = true;
        Poll::Ready(verdict)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.answered {
            self.shell.cancel(self.id);
        }
    }
}
