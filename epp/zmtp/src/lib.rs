//! The part of ZMTP 3.0 that KV events need: PUB and SUB for the stream, DEALER and ROUTER for a replay, over TCP.
//!
//! ```text
//! greeting (64 bytes)  ->  READY command  ->  commands and messages of parts
//!        frame: flags u8 | length u8 or u64, big-endian | bytes
//! ```
//!
//! [`handshake`] turns a byte stream into a [`Reader`] and a [`Writer`]; queues, subscriptions and reconnecting belong to
//! the caller. Written anew because no crate bounds the length that a peer may announce ([`Limits`]): whoever reaches
//! the port could end the process with one frame header. Only the NULL mechanism: KV events are not encrypted.

mod frame;
mod greeting;
mod peer;

use std::{io, time::Duration};

use bytes::Bytes;
use smallvec::SmallVec;
use thiserror::Error;
use tokio::net::TcpStream;

pub use greeting::Role;
pub use peer::{Reader, Received, Writer, handshake};

/// The parts of a message, at least one.
pub type Message = SmallVec<[Bytes; 4]>;

/// Bounds of one message or command; a peer that exceeds them is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all parts together.
    pub bytes: usize,
    /// Parts.
    pub parts: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            bytes: 32 << 20,
            parts: 16,
        }
    }
}

/// Why a connection cannot go on.
#[derive(Debug, Error)]
pub enum Error {
    /// The transport failed, or ended in the middle of something.
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    /// The first bytes are not those of a ZMTP peer.
    #[error("the peer does not speak ZMTP")]
    NotZmtp,
    /// Older than 3.0.
    #[error("the peer speaks ZMTP {0}, and 3.0 is the oldest that we speak")]
    Version(u8),
    /// It wants authentication.
    #[error("the peer wants the security mechanism {0:?}, and we have only NULL")]
    Mechanism(String),
    /// Its socket type does not go with ours.
    #[error("the peer is a {theirs:?} socket, which does not go with our {ours}")]
    Roles {
        /// Our socket type.
        ours: &'static str,
        /// What it says of itself.
        theirs: String,
    },
    /// It says why it does not want us.
    #[error("the peer refused: {0:?}")]
    Refused(String),
    /// Bytes that ZMTP does not allow.
    #[error("the peer broke the protocol: {0}")]
    Broken(&'static str),
    /// More than [`Limits::bytes`].
    #[error("a message of more than {0} bytes")]
    TooLong(usize),
    /// More than [`Limits::parts`].
    #[error("a message of more than {0} parts")]
    TooManyParts(usize),
}

/// Idle time after which a peer is probed, and time between probes.
const PROBE: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(5));

/// Sends at once, and notices a peer that vanished without a word within half a minute.
///
/// # Errors
/// When the operating system refuses the options.
pub fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let probes = socket2::TcpKeepalive::new()
        .with_time(PROBE.0)
        .with_interval(PROBE.1)
        .with_retries(3);
    socket2::SockRef::from(stream).set_tcp_keepalive(&probes)
}
