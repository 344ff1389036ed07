//! Damage by chance: bytes, and the structure that they have.

use fastrand::Rng;

/// A message that was damaged a few times. `others` gives payloads to take pieces from.
pub(crate) fn damaged(random: &mut Rng, parts: &[Vec<u8>], others: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut parts = parts.to_vec();
    for _ in 0..random.usize(1..4) {
        // Mostly the payload.
        if random.u8(..) < 16 {
            frame(random, &mut parts);
        } else if let Some(payload) = parts.last_mut() {
            self::payload(random, payload, others);
        }
    }
    parts
}

/// Damage to the parts themselves.
fn frame(random: &mut Rng, parts: &mut Vec<Vec<u8>>) {
    match random.u8(..4) {
        0 if !parts.is_empty() => {
            parts.swap_remove(random.usize(..parts.len()));
        }
        1 => parts.insert(random.usize(..=parts.len()), vec![0; random.usize(..12)]),
        2 if parts.len() > 1 => parts[1] = random.u64(..).to_be_bytes().to_vec(),
        3 if parts.len() > 1 => {
            let near = u64::from(random.u8(..8));
            let ends = [near, u64::MAX - near, 1 << 63, u64::from(u32::MAX) + near];
            parts[1] = ends[random.usize(..4)].to_be_bytes().to_vec();
        }
        _ => parts.reverse(),
    }
}

/// Bytes that mean much to a decoder: lengths, tags, nothing.
const BYTES: [u8; 20] = [
    0x00, 0x01, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc4, 0xc6, 0xc9, 0xcb, 0xcf,
    0xd3, 0xdb, 0xdd, 0xff,
];

fn payload(random: &mut Rng, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    if bytes.is_empty() {
        return bytes.push(random.u8(..));
    }
    let at = random.usize(..bytes.len());
    let to = at + random.usize(..=(bytes.len() - at).min(64));
    match random.u8(..12) {
        0 => bytes[at] ^= 1 << random.u8(..8),
        1 => bytes[at] = BYTES[random.usize(..BYTES.len())],
        2 => bytes.truncate(at),
        3 => bytes.extend((0..random.usize(..32)).map(|_| random.u8(..))),
        4 => {
            bytes.drain(at..to);
        }
        5 => {
            let again = bytes[at..to].to_vec();
            bytes.splice(at..at, again);
        }
        6 if !others.is_empty() => {
            let other = &others[random.usize(..others.len())];
            let from = random.usize(..=other.len());
            let until = from + random.usize(..=other.len() - from);
            bytes.splice(at..to, other[from..until].iter().copied());
        }
        7 => {
            // A length that nothing can have.
            let tag = [0xc6, 0xc9, 0xdb, 0xdd, 0xdf][random.usize(..5)];
            let count = [u32::MAX, 1 << 31, 1 << 24, 70_000][random.usize(..4)].to_be_bytes();
            let many = [tag, count[0], count[1], count[2], count[3]];
            bytes.splice(at..at, many);
        }
        _ => structure(random, bytes),
    }
}

/// Damage that knows where values begin.
fn structure(random: &mut Rng, bytes: &mut Vec<u8>) {
    let heads = heads(bytes);
    let Some(head) = random.choice(&heads).copied() else {
        return;
    };
    let new: Vec<u8> = match random.u8(..8) {
        // The count is one more or less than what follows.
        0 if matches!(bytes[head.at], 0x80..=0xbf) => {
            let step = if random.bool() { 1 } else { 0xff };
            let tag = bytes[head.at];
            let mask = if tag >= 0xa0 { 0x1f } else { 0x0f };
            vec![tag & !mask | tag.wrapping_add(step) & mask]
        }
        1 => vec![0xc0],
        2 => [&[0xcf][..], &random.u64(..).to_be_bytes()].concat(),
        3 => [&[0xd3][..], &(-1i64).to_be_bytes()].concat(),
        4 => [&[0xcb][..], &f64::from_bits(random.u64(..)).to_be_bytes()].concat(),
        5 => {
            let depth = random.usize(1..40);
            [vec![0x91; depth], vec![0xc0]].concat()
        }
        6 => vec![0x82, 0xa1, b'a', 0x01, 0xa1, b'b', 0x92, 0xc0, 0xc3],
        _ => [&[0xc4, 9][..], &[0xff; 9]].concat(),
    };
    bytes.splice(head.at..head.at + head.width, new);
}

#[derive(Clone, Copy)]
struct Head {
    at: usize,
    /// Bytes of the head, and of what it holds where that is no other value.
    width: usize,
}

/// Where values begin, as far as the bytes can be followed.
fn heads(bytes: &[u8]) -> Vec<Head> {
    let mut heads = Vec::new();
    let mut at = 0;
    while let Some(tag) = bytes.get(at) {
        let long = |width: usize| {
            let length = bytes.get(at + 1..=at + width).unwrap_or_default();
            1 + width
                + length
                    .iter()
                    .fold(0, |sum, byte| sum << 8 | usize::from(*byte))
        };
        let width = match tag {
            0xa0..=0xbf => 1 + usize::from(tag & 0x1f),
            0xc4 | 0xd9 => long(1),
            0xc5 | 0xda => long(2),
            0xc6 | 0xdb => long(4),
            0xcc | 0xd0 => 2,
            0xcd | 0xd1 | 0xdc | 0xde => 3,
            0xca | 0xce | 0xd2 | 0xdd | 0xdf => 5,
            0xcb | 0xcf | 0xd3 => 9,
            _ => 1,
        };
        if at + width > bytes.len() {
            break;
        }
        heads.push(Head { at, width });
        at += width;
    }
    heads
}
