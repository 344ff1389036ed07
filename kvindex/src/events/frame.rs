//! The parts of one message.

use thiserror::Error;

/// Sequence number that ends a replay.
pub const REPLAY_END: u64 = u64::MAX;

/// One message of an engine's event socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Topic, not checked: engines use several forms, and SGLang an empty one.
    pub topic: &'a [u8],
    /// Number of the message within one life of the publisher.
    pub sequence: u64,
    /// See [`crate::events::decode_batch`].
    pub payload: &'a [u8],
}

/// Why parts are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// A message has a topic, a sequence number and a payload.
    #[error("a message of {0} parts instead of 3")]
    Parts(usize),
    /// The sequence number is a big-endian 64-bit integer.
    #[error("a sequence number of {0} bytes instead of 8")]
    Sequence(usize),
    /// Only the end of a replay has no payload.
    #[error("an empty payload")]
    Empty,
}

/// Reads the parts of a message; the end of a replay has [`REPLAY_END`] as its number and no payload.
///
/// # Errors
/// When it is not of three parts, or the second is not of eight bytes, or the third is empty elsewhere.
pub fn parse_frames<'a>(parts: &[&'a [u8]]) -> Result<Frame<'a>, FrameError> {
    let [topic, sequence, payload] = parts else {
        return Err(FrameError::Parts(parts.len()));
    };
    let Ok(bytes) = <[u8; 8]>::try_from(*sequence) else {
        return Err(FrameError::Sequence(sequence.len()));
    };
    let sequence = u64::from_be_bytes(bytes);
    if payload.is_empty() && sequence != REPLAY_END {
        return Err(FrameError::Empty);
    }
    Ok(Frame {
        topic,
        sequence,
        payload,
    })
}
