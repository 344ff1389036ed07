//! The answer's body on its way back: frames pass as they come, the exchange reads on the side.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use wicketgate_pool::Ended;

use super::{
    head,
    proxy::Walk,
    upstream::{Link, Upstreams},
};
use crate::exchange::{Command, Event};

/// Why a body broke off. The connection to the caller is cut, so that it cannot take the part for the whole.
#[derive(Debug, thiserror::Error)]
pub(super) enum RelayError {
    /// The endpoint broke off.
    #[error("the model server broke off: {0}")]
    Upstream(#[from] hyper::Error),
    /// The request took longer than allowed.
    #[error("the request took too long")]
    TooLong,
    /// Its place was taken back.
    #[error("the request was ended for a more urgent one")]
    Evicted,
}

/// Body of an answer to a caller.
pub(super) enum RelayBody {
    /// Ours, whole.
    Whole(Option<Bytes>),
    /// An endpoint's, relayed.
    Relay(Relay),
}

/// An endpoint's answer under way.
///
/// The server asks for a piece only when the caller can take one. What ends an answer from outside, the deadline and
/// the pool, must not wait for that: a watcher of its own does.
pub(super) struct Relay {
    shared: Arc<Mutex<Shared>>,
    watcher: JoinHandle<()>,
}

/// What the server's side and the watcher share.
struct Shared {
    /// Until the end, however it comes.
    live: Option<Live>,
    /// Why the watcher ended it, for the server to hear.
    cut: Option<RelayError>,
    /// The server's side, when it waits for a piece.
    waiting: Option<Waker>,
}

/// What an answer holds while it lasts.
struct Live {
    incoming: Incoming,
    walk: Walk,
    link: Link,
    address: Arc<str>,
    upstreams: Arc<Upstreams>,
}

impl Live {
    fn on(&mut self, event: Event) -> Option<Bytes> {
        let mut piece = None;
        for command in self.walk.on(event) {
            match command {
                Command::ResponseBody { data, .. } => piece = Some(data),
                other => self.walk.carry_out(other),
            }
        }
        piece
    }

    /// Passes a piece of the answer, or its trailers; true with the last one.
    fn pass(&mut self, frame: Frame<Bytes>) -> (Frame<Bytes>, bool) {
        match frame.into_data() {
            Ok(data) => {
                let end = self.incoming.is_end_stream();
                let data = self.on(Event::ResponseBody { data, end });
                (Frame::data(data.unwrap_or_default()), end)
            }
            Err(frame) => {
                self.on(Event::ResponseTrailers);
                let trailers = frame.into_trailers().ok().and_then(head::trailers);
                let empty = || Frame::data(Bytes::new());
                (trailers.map_or_else(empty, Frame::trailers), true)
            }
        }
    }

    /// The endpoint said all it had to say: its connection can serve the next request.
    fn end(self) {
        self.upstreams.put(&self.address, self.link);
    }
}

impl Relay {
    pub(super) fn new(
        incoming: Incoming,
        walk: Walk,
        link: Link,
        address: Arc<str>,
        upstreams: Arc<Upstreams>,
        deadline: tokio::time::Instant,
    ) -> Self {
        let shared = Arc::new(Mutex::new(Shared {
            live: Some(Live {
                incoming,
                walk,
                link,
                address,
                upstreams,
            }),
            cut: None,
            waiting: None,
        }));
        let watcher = tokio::spawn(watch(Arc::clone(&shared), deadline));
        Relay { shared, watcher }
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        let mut shared = self.shared.lock();
        if let Some(error) = shared.cut.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let Some(mut live) = shared.live.take() else {
            return Poll::Ready(None);
        };
        let frame = match Pin::new(&mut live.incoming).poll_frame(context) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                shared.live = Some(live);
                shared.waiting = Some(context.waker().clone());
                return Poll::Pending;
            }
        };
        match frame {
            None => {
                let (data, end) = (Bytes::new(), true);
                live.on(Event::ResponseBody { data, end });
                live.end();
                Poll::Ready(None)
            }
            // The connection is dropped with the rest.
            Some(Err(error)) => {
                live.on(Event::Broken(Ended::UpstreamFailed));
                Poll::Ready(Some(Err(error.into())))
            }
            Some(Ok(frame)) => {
                let (frame, end) = live.pass(frame);
                if end {
                    live.end();
                } else {
                    shared.live = Some(live);
                }
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }
}

impl Drop for Relay {
    /// The caller is gone, or has everything.
    fn drop(&mut self) {
        self.watcher.abort();
        let live = self.shared.lock().live.take();
        drop(live);
    }
}

/// Ends an answer whose time is over or whose place is taken back, whether or not its caller reads.
async fn watch(shared: Arc<Mutex<Shared>>, deadline: tokio::time::Instant) {
    let late = tokio::time::sleep_until(deadline);
    tokio::pin!(late);
    std::future::poll_fn(|context| {
        let mut shared = shared.lock();
        let Some(live) = shared.live.as_mut() else {
            return Poll::Ready(());
        };
        let (event, error) = if live.walk.poll_evicted(context).is_ready() {
            (Event::Evicted, RelayError::Evicted)
        } else {
            std::task::ready!(late.as_mut().poll(context));
            (Event::Broken(Ended::TimedOut), RelayError::TooLong)
        };
        live.on(event);
        // Cuts the connection to the endpoint.
        shared.live = None;
        shared.cut = Some(error);
        if let Some(waiting) = shared.waiting.take() {
            waiting.wake();
        }
        Poll::Ready(())
    })
    .await;
}

impl Body for RelayBody {
    type Data = Bytes;
    type Error = RelayError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        match self.get_mut() {
            RelayBody::Whole(bytes) => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            RelayBody::Relay(relay) => relay.poll(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RelayBody::Whole(bytes) => bytes.is_none(),
            RelayBody::Relay(relay) => {
                let shared = relay.shared.lock();
                shared.live.is_none() && shared.cut.is_none()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RelayBody::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            RelayBody::Relay(relay) => match &relay.shared.lock().live {
                Some(live) => live.incoming.size_hint(),
                None => SizeHint::default(),
            },
        }
    }
}
