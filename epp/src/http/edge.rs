//! The caller's side of a connection, where bytes and requests meet.
//!
//! The HTTP/1 parser answers what it cannot read by itself, with an empty body, and has no say in it for anybody
//! else. [`Edge`] stands between it and the socket: it puts an error that callers understand in the place of such an
//! answer, and keeps for the service what the parser saw and does not tell.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::framing::{Framing, Head};
use crate::{net::PREFACE, outcome::Outcome};

/// What both sides know of a connection.
#[derive(Clone, Default)]
pub(super) struct Ledger(Arc<Mutex<Framing>>);

impl Ledger {
    /// The head that belongs to the request which the parser hands out now.
    pub(super) fn next(&self) -> Option<Head> {
        self.0.lock().next()
    }
}

/// Which protocol a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaks {
    /// So many bytes of it are HTTP/2's first words.
    Unknown(usize),
    Http1,
    Http2,
}

/// A connection whose bytes are followed.
pub(super) struct Edge<C, F> {
    inner: C,
    ledger: Ledger,
    speaks: Speaks,
    /// What to answer where the parser refused with this status a request with this `content-length`.
    refuse: F,
    /// Our words in the place of the parser's, to be written before anything else.
    instead: Bytes,
}

impl<C, F> Edge<C, F> {
    pub(super) fn new(inner: C, ledger: Ledger, refuse: F) -> Self {
        Edge {
            inner,
            ledger,
            speaks: Speaks::Unknown(0),
            refuse,
            instead: Bytes::new(),
        }
    }

    fn follow(&mut self, bytes: &[u8]) {
        if let Speaks::Unknown(known) = self.speaks {
            let rest = PREFACE.get(known..).unwrap_or_default();
            let same = bytes.iter().zip(rest).take_while(|(a, b)| a == b).count();
            self.speaks = match known + same {
                all if all == PREFACE.len() => Speaks::Http2,
                some if same == bytes.len() => Speaks::Unknown(some),
                _ => {
                    let held_back = PREFACE.get(..known).unwrap_or_default();
                    self.ledger.0.lock().read(held_back);
                    Speaks::Http1
                }
            };
        }
        if self.speaks == Speaks::Http1 {
            self.ledger.0.lock().read(bytes);
        }
    }
}

impl<C, F: Fn(u16, Option<u64>) -> Outcome> Edge<C, F> {
    /// True if this is an answer of the parser's own; ours is then to be written instead.
    fn replaces(&mut self, answer: &[u8]) -> bool {
        let Some(status) = parsers_own(answer).filter(|_| self.speaks == Speaks::Http1) else {
            return false;
        };
        let length = self.ledger.next().and_then(|head| head.length);
        self.instead = written(&(self.refuse)(status, length));
        true
    }
}

impl<C: AsyncWrite + Unpin, F> Edge<C, F> {
    fn poll_instead(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.instead.is_empty() {
            let written = ready!(Pin::new(&mut self.inner).poll_write(context, &self.instead))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.instead.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}

/// The status of an answer that the parser made by itself. Every other answer has more headers than these.
fn parsers_own(answer: &[u8]) -> Option<u16> {
    let rest = answer.strip_prefix(b"HTTP/1.1 ")?;
    let status = rest.get(..3).filter(|status| status.starts_with(b"4"))?;
    let line = rest.iter().position(|byte| *byte == b'\r')?;
    let headers = rest.get(line..)?;
    let date = headers.strip_prefix(b"\r\nconnection: close\r\ncontent-length: 0\r\ndate: ")?;
    let end = date.iter().position(|byte| *byte == b'\r')?;
    let status = std::str::from_utf8(status).ok()?.parse().ok()?;
    (date.get(end..) == Some(b"\r\n\r\n")).then_some(status)
}

/// An outcome as an HTTP/1.1 answer that ends the connection.
fn written(outcome: &Outcome) -> Bytes {
    let reply = outcome.reply();
    let status = http::StatusCode::from_u16(reply.status).unwrap_or(http::StatusCode::BAD_REQUEST);
    let reason = status.canonical_reason().unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {} {reason}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        reply.status,
        reply.body.len()
    );
    [head.as_bytes(), &reply.body].concat().into()
}

impl<C: AsyncRead + Unpin, F: Unpin> AsyncRead for Edge<C, F> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(context, buffer))?;
        this.follow(buffer.filled().get(before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

impl<C, F> AsyncWrite for Edge<C, F>
where
    C: AsyncWrite + Unpin,
    F: Fn(u16, Option<u64>) -> Outcome + Unpin,
{
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_instead(context))?;
        if this.replaces(buffer) {
            return Poll::Ready(Ok(buffer.len()));
        }
        Pin::new(&mut this.inner).poll_write(context, buffer)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_instead(context))?;
        let mut filled = buffers.iter().filter(|buffer| !buffer.is_empty());
        if let (Some(only), None) = (filled.next(), filled.next())
            && this.replaces(only)
        {
            return Poll::Ready(Ok(only.len()));
        }
        Pin::new(&mut this.inner).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_instead(context))?;
        Pin::new(&mut this.inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_instead(context))?;
        Pin::new(&mut this.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parsers_own_answers_are_known() {
        let tail =
            "connection: close\r\ncontent-length: 0\r\ndate: Tue, 01 Dec 2026 05:15:57 GMT\r\n\r\n";
        let own = |head: &str, tail: &str| {
            let answer = format!("{head}\r\n{tail}");
            parsers_own(answer.as_bytes())
        };
        assert_eq!(own("HTTP/1.1 400 Bad Request", tail), Some(400));
        let large = "HTTP/1.1 431 Request Header Fields Too Large";
        assert_eq!(own(large, tail), Some(431));
        assert_eq!(own("HTTP/1.1 200 OK", tail), None);
        assert_eq!(
            own("HTTP/1.1 400 Bad Request", &format!("x-a: b\r\n{tail}")),
            None
        );
        assert_eq!(
            own("HTTP/1.1 400 Bad Request", &format!("{tail}more")),
            None
        );
        assert_eq!(own("HTTP/1.1 400 Bad Request", "\r\n"), None);
        assert_eq!(parsers_own(b""), None);
    }

    #[test]
    fn http2_is_not_followed_as_http1() {
        for cut in 0..=PREFACE.len() {
            let mut edge = Edge::new((), Ledger::default(), ());
            let (first, rest) = PREFACE.split_at(cut);
            edge.follow(first);
            edge.follow(rest);
            assert_eq!(edge.speaks, Speaks::Http2, "{cut}");
        }
        // Begins like it, and is something else.
        let mut edge = Edge::new((), Ledger::default(), ());
        edge.follow(b"P");
        edge.follow(b"OST / HTTP/1.1\r\ncontent-length: 7\r\n\r\n");
        assert_eq!(edge.speaks, Speaks::Http1);
        assert_eq!(edge.ledger.next().unwrap().length, Some(7));
    }
}
