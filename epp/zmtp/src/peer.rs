//! A connection, from its handshake on.

use std::io;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::{
    Error, Limits, Message, Role,
    frame::{Decoder, Item, command, put_command, put_message},
    greeting::{GREETING, check, check_ready, greeting, put_ready},
};

/// Bytes that a read has room for. Room grows with what came, never with what was announced.
const CHUNK: usize = 16 << 10;

/// What a peer sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A message.
    Message(Message),
    /// It wants messages whose first part begins so.
    Subscribe(Bytes),
    /// It does not want them any more.
    Cancel(Bytes),
    /// It wants to be told that we are there: see [`Writer::pong`].
    Ping(Bytes),
}

/// What comes from a peer.
#[derive(Debug)]
pub struct Reader<R> {
    stream: R,
    buffer: BytesMut,
    decoder: Decoder,
    /// Messages of a subscriber are subscriptions.
    from_subscriber: bool,
}

/// What goes to a peer.
#[derive(Debug)]
pub struct Writer<W> {
    stream: W,
    buffer: BytesMut,
}

/// Greets a peer and finds out whether it goes with `role`. It may take for ever: the caller sets a time limit.
///
/// # Errors
/// When the peer is none of ours, or the transport fails.
pub async fn handshake<R, W>(
    read: R,
    write: W,
    role: Role,
    limits: Limits,
) -> Result<(Reader<R>, Writer<W>), Error>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut reader = Reader {
        stream: read,
        buffer: BytesMut::new(),
        decoder: Decoder::new(limits),
        from_subscriber: role == Role::Pub,
    };
    let mut writer = Writer {
        stream: write,
        buffer: BytesMut::from(&greeting()[..]),
    };
    writer.flush().await?;
    while reader.buffer.len() < GREETING {
        reader.fill().await?;
        check(reader.buffer.get(..GREETING).unwrap_or(&reader.buffer))?;
    }
    reader.buffer.advance(GREETING);
    put_ready(role, &mut writer.buffer);
    writer.flush().await?;
    let item = loop {
        match reader.decoder.next(&mut reader.buffer)? {
            Some(item) => break item,
            None => reader.fill().await?,
        }
    };
    let Item::Command(body) = item else {
        return Err(Error::Broken("a message before the READY command"));
    };
    match command(&body)? {
        (b"READY", properties) => check_ready(role, properties)?,
        (b"ERROR", reason) => {
            let reason = reason.get(1..).unwrap_or_default();
            return Err(Error::Refused(String::from_utf8_lossy(reason).into_owned()));
        }
        _ => return Err(Error::Broken("a command before READY")),
    }
    Ok((reader, writer))
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// The next thing that the peer sends; `None` when it has closed the connection. Nothing is lost when the future is
    /// dropped.
    ///
    /// # Errors
    /// When the peer breaks the protocol or a limit, or the transport fails; then the connection is of no use any more.
    pub async fn recv(&mut self) -> Result<Option<Received>, Error> {
        loop {
            match self.decoder.next(&mut self.buffer)? {
                Some(Item::Message(message)) => {
                    return Ok(Some(match (self.from_subscriber, message.as_slice()) {
                        (true, [part]) if part.first() == Some(&1) => {
                            Received::Subscribe(part.slice(1..))
                        }
                        (true, [part]) if part.first() == Some(&0) => {
                            Received::Cancel(part.slice(1..))
                        }
                        _ => Received::Message(message),
                    }));
                }
                Some(Item::Command(body)) => match command(&body)? {
                    (b"PING", rest) => {
                        // Two bytes say how long it waits for the answer; what follows is to be sent back.
                        return Ok(Some(Received::Ping(rest.slice(2.min(rest.len())..))));
                    }
                    (b"SUBSCRIBE", prefix) => return Ok(Some(Received::Subscribe(prefix))),
                    (b"CANCEL", prefix) => return Ok(Some(Received::Cancel(prefix))),
                    (b"ERROR", reason) => {
                        let reason = String::from_utf8_lossy(&reason).into_owned();
                        return Err(Error::Refused(reason));
                    }
                    // A peer may know more commands than we do.
                    _ => {}
                },
                None if self.read().await? == 0 => {
                    if self.buffer.is_empty() && self.decoder.is_idle() {
                        return Ok(None);
                    }
                    return Err(cut());
                }
                None => {}
            }
        }
    }

    async fn read(&mut self) -> io::Result<usize> {
        self.buffer.reserve(CHUNK);
        self.stream.read_buf(&mut self.buffer).await
    }

    async fn fill(&mut self) -> Result<(), Error> {
        match self.read().await? {
            0 => Err(cut()),
            _ => Ok(()),
        }
    }
}

fn cut() -> Error {
    io::Error::from(io::ErrorKind::UnexpectedEof).into()
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    /// Sends a message.
    ///
    /// # Errors
    /// When the transport fails.
    pub async fn send(&mut self, parts: &[impl AsRef<[u8]>]) -> io::Result<()> {
        self.put(parts);
        self.flush().await
    }

    /// Adds a message to what the next [`Writer::flush`] sends.
    pub fn put(&mut self, parts: &[impl AsRef<[u8]>]) {
        put_message(parts, &mut self.buffer);
    }

    /// Bytes that wait for [`Writer::flush`].
    pub fn waiting(&self) -> usize {
        self.buffer.len()
    }

    /// Asks a publisher for messages whose first part begins with `prefix`.
    ///
    /// # Errors
    /// When the transport fails.
    pub async fn subscribe(&mut self, prefix: &[u8]) -> io::Result<()> {
        self.send(&[[&[1], prefix].concat()]).await
    }

    /// Answers a [`Received::Ping`].
    ///
    /// # Errors
    /// When the transport fails.
    pub async fn pong(&mut self, context: &[u8]) -> io::Result<()> {
        put_command("PONG", context, &mut self.buffer);
        self.flush().await
    }

    /// Sends what was put. Nothing is lost or sent twice when the future is dropped.
    ///
    /// # Errors
    /// When the transport fails.
    pub async fn flush(&mut self) -> io::Result<()> {
        while self.buffer.has_remaining() {
            if self.stream.write_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        self.stream.flush().await
    }
}
