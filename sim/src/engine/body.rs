//! Bodies of answers: whole, or pieces from a task, with trailers where asked.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

/// Pieces that may wait for the socket.
const PIECES: usize = 16;

pub(super) type Piece = io::Result<Frame<Bytes>>;

pub(super) enum EngineBody {
    Whole(Option<Bytes>, Option<HeaderMap>),
    Pieces(mpsc::Receiver<Piece>),
}

impl EngineBody {
    /// A body and the end that feeds it.
    pub(super) fn pieces() -> (mpsc::Sender<Piece>, EngineBody) {
        let (sender, receiver) = mpsc::channel(PIECES);
        (sender, EngineBody::Pieces(receiver))
    }
}

impl Body for EngineBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut *self {
            EngineBody::Whole(bytes, trailers) => {
                let frame = bytes.take().map(Frame::data);
                let frame = frame.or_else(|| trailers.take().map(Frame::trailers));
                Poll::Ready(frame.map(Ok))
            }
            EngineBody::Pieces(receiver) => receiver.poll_recv(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, EngineBody::Whole(None, None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            EngineBody::Whole(Some(bytes), None) => SizeHint::with_exact(bytes.len() as u64),
            EngineBody::Whole(..) | EngineBody::Pieces(_) => SizeHint::default(),
        }
    }
}
