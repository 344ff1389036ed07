//! The answer's body on its way back: frames pass as they come, the exchange reads on the side.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;
use wicketgate_pool::Ended;

use super::{
    proxy::Walk,
    upstream::{Link, Upstreams},
};
use crate::exchange::{Command, Commands, Event};

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
    Relay(Box<Relay>),
}

/// An endpoint's answer under way.
pub(super) struct Relay {
    incoming: Incoming,
    walk: Walk,
    link: Option<Link>,
    address: Arc<str>,
    upstreams: Arc<Upstreams>,
    deadline: Pin<Box<Sleep>>,
    over: bool,
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
        Relay {
            incoming,
            walk,
            link: Some(link),
            address,
            upstreams,
            deadline: Box::pin(tokio::time::sleep_until(deadline)),
            over: false,
        }
    }

    fn on(&mut self, event: Event) -> Option<Bytes> {
        let mut commands = Commands::new();
        self.walk.exchange.on(event, &mut commands);
        let mut piece = None;
        for command in commands {
            match command {
                Command::ResponseBody { data, .. } => piece = Some(data),
                other => self.walk.carry_out(other),
            }
        }
        piece
    }

    /// The endpoint said all it had to say: its connection can serve the next request.
    fn end(&mut self) {
        self.over = true;
        if let Some(link) = self.link.take() {
            self.upstreams.put(&self.address, link);
        }
    }

    fn broke(&mut self, how: Ended) {
        self.over = true;
        self.link = None;
        self.on(Event::Broken(how));
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        if self.over {
            return Poll::Ready(None);
        }
        if self.walk.poll_evicted(context).is_ready() {
            self.over = true;
            self.link = None;
            self.on(Event::Evicted);
            return Poll::Ready(Some(Err(RelayError::Evicted)));
        }
        let frame = match Pin::new(&mut self.incoming).poll_frame(context) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                if self.deadline.as_mut().poll(context).is_ready() {
                    self.broke(Ended::TimedOut);
                    return Poll::Ready(Some(Err(RelayError::TooLong)));
                }
                return Poll::Pending;
            }
        };
        match frame {
            None => {
                self.on(Event::ResponseBody {
                    data: Bytes::new(),
                    end: true,
                });
                self.end();
                Poll::Ready(None)
            }
            Some(Err(error)) => {
                self.broke(Ended::UpstreamFailed);
                Poll::Ready(Some(Err(error.into())))
            }
            Some(Ok(frame)) => Poll::Ready(Some(Ok(self.pass(frame)))),
        }
    }

    fn pass(&mut self, frame: Frame<Bytes>) -> Frame<Bytes> {
        match frame.into_data() {
            Ok(data) => {
                let end = self.incoming.is_end_stream();
                let data = self.on(Event::ResponseBody { data, end });
                if end {
                    self.end();
                }
                Frame::data(data.unwrap_or_default())
            }
            Err(trailers) => {
                self.on(Event::ResponseTrailers);
                self.end();
                trailers
            }
        }
    }
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
            RelayBody::Relay(relay) => relay.over,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RelayBody::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            RelayBody::Relay(relay) => relay.incoming.size_hint(),
        }
    }
}
