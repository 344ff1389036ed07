//! Who is at the other end: the greeting, and what a READY command says.

use bytes::{Buf as _, Bytes, BytesMut};

use crate::{Error, frame::put_command};

/// What a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends each message to all who subscribed to its first part.
    Pub,
    /// Gets what it subscribed to.
    Sub,
    /// Asks, and gets any number of answers.
    Dealer,
    /// Answers whom it likes.
    Router,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Role::Pub => "PUB",
            Role::Sub => "SUB",
            Role::Dealer => "DEALER",
            Role::Router => "ROUTER",
        }
    }

    fn goes_with(self, theirs: &[u8]) -> bool {
        let partners: &[&[u8]] = match self {
            Role::Pub => &[b"SUB", b"XSUB"],
            Role::Sub => &[b"PUB", b"XPUB"],
            Role::Dealer => &[b"ROUTER", b"REP", b"DEALER"],
            Role::Router => &[b"DEALER", b"REQ", b"ROUTER"],
        };
        partners.contains(&theirs)
    }
}

pub(crate) const GREETING: usize = 64;
const MECHANISM: std::ops::Range<usize> = 12..32;

/// Our greeting: version 3.0, no security.
pub(crate) fn greeting() -> [u8; GREETING] {
    let mut bytes = [0; GREETING];
    let (signature, rest) = bytes.split_at_mut(10);
    signature.copy_from_slice(b"\xff\0\0\0\0\0\0\0\0\x7f");
    if let Some(start) = rest.first_chunk_mut() {
        *start = *b"\x03\0NULL";
    }
    bytes
}

/// Whether we can talk to who greets so. `seen` may be only the first bytes: a wrong start is refused at once.
pub(crate) fn check(seen: &[u8]) -> Result<(), Error> {
    if seen.first().is_some_and(|byte| *byte != 0xff) {
        return Err(Error::NotZmtp);
    }
    if seen.get(9).is_some_and(|byte| *byte & 1 == 0) {
        return Err(Error::NotZmtp);
    }
    if let Some(version) = seen.get(10).filter(|version| **version < 3) {
        return Err(Error::Version(*version));
    }
    if let Some(mechanism) = seen.get(MECHANISM) {
        let name = mechanism
            .split(|byte| *byte == 0)
            .next()
            .unwrap_or_default();
        if name != b"NULL" {
            return Err(Error::Mechanism(String::from_utf8_lossy(name).into_owned()));
        }
    }
    Ok(())
}

/// Says what we are.
pub(crate) fn put_ready(role: Role, out: &mut BytesMut) {
    let mut properties = Vec::new();
    let mut property = |name: &str, value: &[u8]| {
        properties.push(name.len() as u8);
        properties.extend_from_slice(name.as_bytes());
        properties.extend_from_slice(&(value.len() as u32).to_be_bytes());
        properties.extend_from_slice(value);
    };
    property("Socket-Type", role.name().as_bytes());
    if matches!(role, Role::Dealer | Role::Router) {
        property("Identity", b"");
    }
    put_command("READY", &properties, out);
}

/// Whether what a READY command says goes with us.
pub(crate) fn check_ready(ours: Role, mut properties: Bytes) -> Result<(), Error> {
    let broken = || Error::Broken("a READY command that is cut short");
    while !properties.is_empty() {
        let name = usize::from(properties.get_u8());
        let name = (name <= properties.len())
            .then(|| properties.split_to(name))
            .ok_or_else(broken)?;
        let length = properties.try_get_u32().map_err(|_| broken())?;
        let length = usize::try_from(length).ok();
        let value = length
            .filter(|length| *length <= properties.len())
            .map(|length| properties.split_to(length))
            .ok_or_else(broken)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            if ours.goes_with(&value) {
                return Ok(());
            }
            return Err(Error::Roles {
                ours: ours.name(),
                theirs: String::from_utf8_lossy(&value).into_owned(),
            });
        }
    }
    Err(Error::Broken("a READY command without a socket type"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_refused_at_its_first_wrong_byte() {
        let ours = greeting();
        (0..=64).for_each(|seen| check(&ours[..seen]).unwrap());
        assert!(matches!(check(b"HTTP/1.1 200 OK"), Err(Error::NotZmtp)));
        let with = |at: usize, byte: u8| {
            let mut other = ours;
            other[at] = byte;
            check(&other)
        };
        assert!(matches!(with(9, 0), Err(Error::NotZmtp)));
        assert!(matches!(with(10, 2), Err(Error::Version(2))));
        assert!(matches!(with(12, b'C'), Err(Error::Mechanism(name)) if name == "CULL"));
        // A newer peer speaks 3.0 with us.
        with(11, 1).unwrap();
    }

    #[test]
    fn only_partners_are_taken() {
        let ready = |role| {
            let mut out = BytesMut::new();
            put_ready(role, &mut out);
            // Flags, length, length of the name, the name.
            out.split_off(2 + 1 + 5).freeze()
        };
        check_ready(Role::Sub, ready(Role::Pub)).unwrap();
        check_ready(Role::Dealer, ready(Role::Router)).unwrap();
        let refused = check_ready(Role::Sub, ready(Role::Router)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the peer is a \"ROUTER\" socket, which does not go with our SUB"
        );
        for broken in [
            &b""[..],
            b"\x05Sock",
            b"\x0bSocket-Type\0\0\0\x09PUB",
            b"\x01x\0",
        ] {
            let refused = check_ready(Role::Sub, Bytes::from_static(broken));
            assert!(matches!(refused, Err(Error::Broken(_))), "{refused:?}");
        }
    }
}
