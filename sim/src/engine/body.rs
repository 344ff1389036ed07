//! Bodies of answers.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::{Body, Frame};
use tokio::time::Sleep;
use xxhash_rust::xxh3::Xxh3Default;

use super::{
    sse::SseBody,
    stats::{Account, Ended},
};

/// An injected end of a body: the connection is closed in the middle of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut;

impl fmt::Display for Cut {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("cut on purpose")
    }
}

impl std::error::Error for Cut {}

/// What comes after the bytes of a broken body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Cut,
    Stall,
}

#[derive(Debug)]
enum Payload {
    Whole(Bytes),
    Stream(Box<SseBody>),
    Broken(Bytes, Then),
    Done,
}

/// Size and hash of what was sent, for the trailers.
struct Sum {
    bytes: u64,
    hash: Box<Xxh3Default>,
}

/// A body; with its last byte the request it answers counts as served.
pub(super) struct ReplyBody {
    payload: Payload,
    account: Option<Account>,
    sum: Option<Sum>,
    /// Runs before a cut.
    pause: Option<Pin<Box<Sleep>>>,
}

/// Time for the bytes before a cut to leave: an error at once would take them along.
const BEFORE_CUT: Duration = Duration::from_millis(20);

/// Names of the trailers that `x-emulator-trailers: 1` brings.
pub(super) const TRAILERS: &str = "x-emulator-body-len, x-emulator-body-xxh3";

impl ReplyBody {
    /// A whole body.
    pub(super) fn whole(bytes: impl Into<Bytes>) -> ReplyBody {
        ReplyBody::of(Payload::Whole(bytes.into()))
    }

    pub(super) fn stream(stream: SseBody) -> ReplyBody {
        ReplyBody::of(Payload::Stream(Box::new(stream)))
    }

    /// Only the first half of a whole body, then nothing or the end of the connection.
    pub(super) fn break_off(mut self, then: Then) -> ReplyBody {
        if let Payload::Whole(bytes) = &mut self.payload {
            bytes.truncate(bytes.len() / 2);
            self.payload = Payload::Broken(std::mem::take(bytes), then);
        }
        self
    }

    fn of(payload: Payload) -> ReplyBody {
        ReplyBody {
            payload,
            account: None,
            sum: None,
            pause: None,
        }
    }

    pub(super) fn with_account(mut self, account: Account) -> ReplyBody {
        self.account = Some(account);
        self
    }

    /// Ends the body with trailers that tell its size and hash.
    pub(super) fn with_trailers(mut self) -> ReplyBody {
        self.sum = Some(Sum {
            bytes: 0,
            hash: Box::default(),
        });
        self
    }

    /// Bytes of a body whose length is known from the start.
    pub(super) fn known_length(&self) -> Option<usize> {
        match &self.payload {
            Payload::Whole(bytes) if self.sum.is_none() => Some(bytes.len()),
            _ => None,
        }
    }

    fn served(&mut self) {
        if let Some(account) = self.account.take() {
            account.end(Ended::Ok);
        }
    }

    fn poll_payload(&mut self, cx: &Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        match &mut self.payload {
            Payload::Whole(bytes) => {
                let bytes = std::mem::take(bytes);
                self.payload = Payload::Done;
                self.served();
                Poll::Ready(
                    Some(Ok(bytes))
                        .filter(|bytes| bytes.as_ref().is_ok_and(|bytes| !bytes.is_empty())),
                )
            }
            Payload::Stream(stream) => match ready!(stream.poll_events(cx)) {
                Some(Ok(bytes)) => {
                    if stream.is_done() {
                        self.payload = Payload::Done;
                        self.served();
                    }
                    Poll::Ready(Some(Ok(bytes)))
                }
                Some(Err(cut)) => Poll::Ready(Some(Err(cut))),
                None => Poll::Ready(None),
            },
            Payload::Broken(bytes, _) if !bytes.is_empty() => {
                Poll::Ready(Some(Ok(std::mem::take(bytes))))
            }
            Payload::Broken(_, Then::Cut) => Poll::Ready(Some(Err(Cut))),
            Payload::Broken(_, Then::Stall) => Poll::Pending,
            Payload::Done => Poll::Ready(None),
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match ready!(self.poll_payload(cx)) {
            Some(Ok(bytes)) => {
                if let Some(sum) = &mut self.sum {
                    sum.bytes += bytes.len() as u64;
                    sum.hash.update(&bytes);
                }
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Some(Err(cut)) => {
                let pause = self
                    .pause
                    .get_or_insert_with(|| Box::pin(tokio::time::sleep(BEFORE_CUT)));
                ready!(pause.as_mut().poll(cx));
                Poll::Ready(Some(Err(cut)))
            }
            None => Poll::Ready(
                self.sum
                    .take()
                    .map(|sum| Ok(Frame::trailers(sum.trailers()))),
            ),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.payload, Payload::Done) && self.sum.is_none()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match self.known_length() {
            Some(length) => http_body::SizeHint::with_exact(length as u64),
            None => http_body::SizeHint::default(),
        }
    }
}

impl Sum {
    fn trailers(self) -> HeaderMap {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-emulator-body-len", HeaderValue::from(self.bytes));
        let hash = format!("{:016x}", self.hash.digest());
        if let Ok(hash) = HeaderValue::try_from(hash) {
            trailers.insert("x-emulator-body-xxh3", hash);
        }
        trailers
    }
}
