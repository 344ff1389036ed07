//! Bodies of answers: a whole one, or pieces from a thread that makes them.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

/// What is on its way from the thread.
#[derive(Debug)]
pub(super) enum Piece {
    /// More to come.
    Bytes(Bytes),
    /// That was all. Without it the body ends with an error, and its reader knows that something is missing.
    End,
}

/// The body of an answer.
#[derive(Debug)]
pub(super) enum Answer {
    Whole(Option<Bytes>),
    Pieces(mpsc::Receiver<Piece>),
}

impl Answer {
    pub(super) fn whole(bytes: Bytes) -> Answer {
        Answer::Whole(Some(bytes))
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Answer::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Answer::Pieces(pieces) => Poll::Ready(match ready!(pieces.poll_recv(context)) {
                Some(Piece::Bytes(bytes)) => Some(Ok(Frame::data(bytes))),
                Some(Piece::End) => None,
                None => Some(Err(io::ErrorKind::UnexpectedEof.into())),
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Answer::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Answer::Pieces(_) => SizeHint::default(),
        }
    }
}
