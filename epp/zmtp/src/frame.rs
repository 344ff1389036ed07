//! Frames: what is on the wire after the greeting.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use crate::{Error, Limits, Message};

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// A whole thing that a peer sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Item {
    Command(Bytes),
    Message(Message),
}

/// Puts frames together; holds the parts of the message that is not complete yet.
#[derive(Debug)]
pub(crate) struct Decoder {
    limits: Limits,
    parts: Message,
    bytes: usize,
}

impl Decoder {
    pub(crate) fn new(limits: Limits) -> Decoder {
        Decoder {
            limits,
            parts: Message::new(),
            bytes: 0,
        }
    }

    /// The next item, if `buffer` holds all of it. What is used is taken out of `buffer`.
    ///
    /// A length is checked before anything waits for its bytes.
    pub(crate) fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Item>, Error> {
        while let Some((flags, length, head)) = header(buffer)? {
            let room = self.limits.bytes - self.bytes;
            let length = usize::try_from(length)
                .ok()
                .filter(|length| *length <= room);
            let length = length.ok_or(Error::TooLong(self.limits.bytes))?;
            if flags & COMMAND == 0 && self.parts.len() >= self.limits.parts {
                return Err(Error::TooManyParts(self.limits.parts));
            }
            if buffer.len() - head < length {
                return Ok(None);
            }
            buffer.advance(head);
            let body = buffer.split_to(length).freeze();
            if flags & COMMAND != 0 {
                return Ok(Some(Item::Command(body)));
            }
            self.bytes += length;
            self.parts.push(body);
            if flags & MORE == 0 {
                self.bytes = 0;
                return Ok(Some(Item::Message(std::mem::take(&mut self.parts))));
            }
        }
        Ok(None)
    }

    /// True between two items.
    pub(crate) fn is_idle(&self) -> bool {
        self.parts.is_empty()
    }
}

/// Flags, length of the body and length of the header of the first frame, once they are there.
fn header(buffer: &[u8]) -> Result<Option<(u8, u64, usize)>, Error> {
    let Some((flags, rest)) = buffer.split_first() else {
        return Ok(None);
    };
    if flags & !(MORE | LONG | COMMAND) != 0 {
        return Err(Error::Broken("reserved flags"));
    }
    if flags & COMMAND != 0 && flags & MORE != 0 {
        return Err(Error::Broken("a command of several parts"));
    }
    let found = if flags & LONG == 0 {
        rest.first().map(|length| (u64::from(*length), 2))
    } else {
        rest.first_chunk()
            .map(|length| (u64::from_be_bytes(*length), 9))
    };
    Ok(found.map(|(length, head)| (*flags, length, head)))
}

/// Appends a message; nothing for one without parts.
pub(crate) fn put_message(parts: &[impl AsRef<[u8]>], out: &mut BytesMut) {
    let last = parts.len().saturating_sub(1);
    for (at, part) in parts.iter().enumerate() {
        put_frame(if at < last { MORE } else { 0 }, part.as_ref(), out);
    }
}

/// Appends a command of this name and what follows it.
pub(crate) fn put_command(name: &str, rest: &[u8], out: &mut BytesMut) {
    let mut body = Vec::with_capacity(1 + name.len() + rest.len());
    body.push(u8::try_from(name.len()).unwrap_or(0));
    body.extend_from_slice(name.as_bytes());
    body.extend_from_slice(rest);
    put_frame(COMMAND, &body, out);
}

fn put_frame(flags: u8, body: &[u8], out: &mut BytesMut) {
    out.reserve(9 + body.len());
    match u8::try_from(body.len()) {
        Ok(length) => out.put_slice(&[flags, length]),
        Err(_) => {
            out.put_u8(flags | LONG);
            out.put_u64(body.len() as u64);
        }
    }
    out.put_slice(body);
}

/// Name and rest of a command.
pub(crate) fn command(body: &Bytes) -> Result<(&[u8], Bytes), Error> {
    let (length, rest) = body
        .split_first()
        .ok_or(Error::Broken("an empty command"))?;
    let name = rest
        .get(..usize::from(*length))
        .ok_or(Error::Broken("a command without its name"))?;
    Ok((name, body.slice(1 + name.len()..)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits {
        bytes: 1000,
        parts: 4,
    };

    fn all(bytes: &[u8], chunk: usize) -> Result<Vec<Item>, Error> {
        let mut decoder = Decoder::new(LIMITS);
        let mut buffer = BytesMut::new();
        let mut items = Vec::new();
        for chunk in bytes.chunks(chunk) {
            buffer.extend_from_slice(chunk);
            while let Some(item) = decoder.next(&mut buffer)? {
                items.push(item);
            }
        }
        Ok(items)
    }

    fn message(parts: &[Vec<u8>]) -> Item {
        Item::Message(parts.iter().cloned().map(Bytes::from).collect())
    }

    proptest! {
        /// However the bytes are cut.
        #[test]
        fn what_is_written_is_read(
            messages in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..240), 1..4), 0..6),
            chunk in 1usize..700,
        ) {
            let mut bytes = BytesMut::new();
            let mut expected = Vec::new();
            for parts in &messages {
                put_message(parts, &mut bytes);
                put_command("PING", b"\0\x01x", &mut bytes);
                expected.push(message(parts));
                expected.push(Item::Command(Bytes::from_static(b"\x04PING\0\x01x")));
            }
            prop_assert_eq!(all(&bytes, chunk).unwrap(), expected);
        }

        #[test]
        fn any_bytes_end_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), chunk in 1usize..50) {
            let _ = all(&bytes, chunk);
        }
    }

    #[test]
    fn lengths_are_refused_before_their_bytes_come() {
        let announced = |length: u64| [&[LONG][..], &length.to_be_bytes()].concat();
        for length in [1001, 1 << 46, u64::MAX] {
            let refused = all(&announced(length), 9).unwrap_err();
            assert!(matches!(refused, Error::TooLong(1000)), "{refused}");
        }
        assert_eq!(all(&announced(1000), 9).unwrap(), []);
        // The bound is on all parts together.
        let mut two = [&[MORE, 200][..], &[7; 200]].concat();
        two.extend([LONG, 0, 0, 0, 0, 0, 0, 3, 33]);
        assert!(matches!(all(&two, 50), Err(Error::TooLong(1000))));
        let five = [MORE, 0].repeat(5);
        assert!(matches!(all(&five, 1), Err(Error::TooManyParts(4))));
        assert!(matches!(all(&[8, 0], 1), Err(Error::Broken(_))));
        assert!(matches!(
            all(&[COMMAND | MORE, 0], 1),
            Err(Error::Broken(_))
        ));
    }

    #[test]
    fn both_forms_of_a_length_are_read_and_the_short_one_is_written() {
        let long = [&[LONG][..], &3u64.to_be_bytes(), b"abc"].concat();
        assert_eq!(all(&long, 100).unwrap(), [message(&[b"abc".to_vec()])]);
        let mut out = BytesMut::new();
        put_message(&[&[0u8; 255][..], &[0; 256]], &mut out);
        assert_eq!(out.get(..2), Some(&[MORE, 255][..]));
        assert_eq!(out.get(257..266), Some(&[LONG, 0, 0, 0, 0, 0, 0, 1, 0][..]));
    }
}
