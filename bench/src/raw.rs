//! HTTP/1.1 by hand, as cheap as it can be: what measures a gateway must not take its core.
//!
//! For the two ends that the benchmarks own: requests with a `content-length`, answers with one or in chunks.

use std::{io, net::SocketAddr};

use bytes::BytesMut;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Read at once.
const ROOM: usize = 64 << 10;
/// Longest head.
const LONGEST_HEAD: usize = 64 << 10;

/// A connection and what was read ahead on it.
pub(crate) struct Wire {
    stream: TcpStream,
    buffer: BytesMut,
}

impl Wire {
    /// Over a connection.
    pub(crate) fn over(stream: TcpStream) -> io::Result<Wire> {
        stream.set_nodelay(true)?;
        Ok(Wire {
            stream,
            buffer: BytesMut::with_capacity(ROOM),
        })
    }

    /// Over a new connection.
    pub(crate) async fn connect(address: SocketAddr) -> io::Result<Wire> {
        Wire::over(TcpStream::connect(address).await?)
    }

    /// Writes it all.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// The next head with its empty line; nothing when the other side has closed in between.
    pub(crate) async fn head(&mut self) -> io::Result<Option<BytesMut>> {
        loop {
            if let Some(at) = memchr::memmem::find(&self.buffer, b"\r\n\r\n") {
                return Ok(Some(self.buffer.split_to(at + 4)));
            }
            if self.buffer.len() > LONGEST_HEAD {
                return Err(broken("the head is too long"));
            }
            if !self.fill().await? {
                return if self.buffer.is_empty() {
                    Ok(None)
                } else {
                    Err(io::ErrorKind::UnexpectedEof.into())
                };
            }
        }
    }

    /// Passes over the next `length` bytes, telling each piece.
    pub(crate) async fn body(
        &mut self,
        mut length: usize,
        mut tell: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        loop {
            let piece = self.buffer.split_to(length.min(self.buffer.len()));
            if !piece.is_empty() {
                tell(&piece);
            }
            length -= piece.len();
            if length == 0 {
                return Ok(());
            }
            self.must_fill().await?;
        }
    }

    /// Passes over a chunked body, telling each piece.
    pub(crate) async fn chunks(&mut self, mut tell: impl FnMut(&[u8])) -> io::Result<()> {
        loop {
            let line = self.line().await?;
            let digits = line
                .as_ref()
                .split(|byte| *byte == b';')
                .next()
                .unwrap_or_default();
            let digits = std::str::from_utf8(digits.trim_ascii()).unwrap_or_default();
            let size = usize::from_str_radix(digits, 16);
            let size = size.map_err(|_| broken("a chunk without a size"))?;
            if size == 0 {
                // Trailers, then an empty line.
                while !self.line().await?.trim_ascii().is_empty() {}
                return Ok(());
            }
            self.body(size, &mut tell).await?;
            self.body(2, |_| ()).await?;
        }
    }

    async fn line(&mut self) -> io::Result<BytesMut> {
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer) {
                return Ok(self.buffer.split_to(at + 1));
            }
            if self.buffer.len() > LONGEST_HEAD {
                return Err(broken("a line without end"));
            }
            self.must_fill().await?;
        }
    }

    async fn must_fill(&mut self) -> io::Result<()> {
        if self.fill().await? {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }

    /// Reads what is there; false at the end.
    async fn fill(&mut self) -> io::Result<bool> {
        self.buffer.reserve(ROOM);
        Ok(self.stream.read_buf(&mut self.buffer).await? > 0)
    }

    /// Reads an answer to its end, telling each piece of its body. The status.
    pub(crate) async fn answer(&mut self, tell: impl FnMut(&[u8])) -> io::Result<u16> {
        let head = self.head().await?;
        let head = head.ok_or(io::Error::from(io::ErrorKind::UnexpectedEof))?;
        let status = head
            .get(9..12)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let status = status.and_then(|digits| digits.parse().ok());
        let status = status.ok_or(broken("no status"))?;
        match length(&head) {
            Some(length) => self.body(length, tell).await?,
            None => self.chunks(tell).await?,
        }
        Ok(status)
    }
}

fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// A header's value; `name` in lower case.
pub(crate) fn header<'a>(mut head: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    while let Some(end) = memchr::memchr(b'\n', head) {
        let (line, rest) = head.split_at_checked(end)?;
        if let Some((found, value)) = line.split_at_checked(name.len())
            && found.eq_ignore_ascii_case(name)
            && let Some(value) = value.strip_prefix(b":")
        {
            return Some(value.trim_ascii());
        }
        head = rest.get(1..).unwrap_or_default();
    }
    None
}

/// The announced length of a body.
pub(crate) fn length(head: &[u8]) -> Option<usize> {
    let value = header(head, b"content-length")?;
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// A connection whose other end writes `pieces` and closes.
    async fn told(pieces: Vec<Vec<u8>>) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut wire = Wire::over(stream).unwrap();
            for piece in pieces {
                wire.write(&piece).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        Wire::connect(address).await.unwrap()
    }

    async fn answers(text: &str, step: usize) -> Vec<(u16, String)> {
        let mut wire = told(text.as_bytes().chunks(step).map(<[u8]>::to_vec).collect()).await;
        let mut all = Vec::new();
        loop {
            let mut body = Vec::new();
            match wire.answer(|piece| body.extend_from_slice(piece)).await {
                Ok(status) => all.push((status, String::from_utf8(body).unwrap())),
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
                    return all;
                }
            }
        }
    }

    #[tokio::test]
    async fn answers_are_read_for_every_cut() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello\
            HTTP/1.1 503 No\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nt: 1\r\n\r\n\
            HTTP/1.1 204 None\r\ncontent-length: 0\r\n\r\n";
        let expected = [(200, "hello"), (503, "abc0123456789"), (204, "")];
        let expected = expected.map(|(status, body)| (status, body.to_owned()));
        for step in [1, 2, 7, 64, text.len()] {
            assert_eq!(answers(text, step).await, expected, "{step}");
        }
    }

    #[tokio::test]
    async fn nonsense_is_an_error() {
        for text in [
            "HTTP/1.1 200 OK\r\n\r\nxyz\r\n",
            "HTTP/1.1 abc OK\r\ncontent-length: 0\r\n\r\n",
            "x\r\n\r\n",
        ] {
            let mut wire = told(vec![text.into()]).await;
            let error = wire.answer(|_| ()).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{text}");
        }
    }

    #[test]
    fn headers_are_found_by_whole_name() {
        let head = b"POST / HTTP/1.1\r\nX-Content-Length: 1\r\nContent-LENGTH:  42 \r\n\r\n";
        assert_eq!(length(head), Some(42));
        assert_eq!(header(head, b"content"), None);
        assert_eq!(header(b"content-length", b"content-length"), None);
    }
}
