//! The bytes that vLLM hashes: canonical CBOR (RFC 8949, section 4.2) or Python pickle protocol 5, for the few shapes
//! that occur.

/// What a Python object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    None,
    Int(i64),
    Bytes(&'a [u8]),
    Text(&'a str),
    Tuple(Vec<Value<'a>>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Cbor,
    Pickle,
}

impl Encoding {
    pub(super) fn encode(self, value: &Value<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Encoding::Cbor => cbor(value, &mut out),
            Encoding::Pickle => pickle(value, &mut out),
        }
        out
    }
}

fn cbor(value: &Value<'_>, out: &mut Vec<u8>) {
    match value {
        Value::None => out.push(0xf6),
        Value::Int(value) => match u64::try_from(*value) {
            Ok(value) => cbor_head(0, value, out),
            Err(_) => cbor_head(1, !u64::from_ne_bytes(value.to_ne_bytes()), out),
        },
        Value::Bytes(bytes) => {
            cbor_head(2, bytes.len() as u64, out);
            out.extend_from_slice(bytes);
        }
        Value::Text(text) => {
            cbor_head(3, text.len() as u64, out);
            out.extend_from_slice(text.as_bytes());
        }
        Value::Tuple(values) => {
            cbor_head(4, values.len() as u64, out);
            values.iter().for_each(|value| cbor(value, out));
        }
    }
}

/// A type and an argument, in the shortest form.
fn cbor_head(major: u8, argument: u64, out: &mut Vec<u8>) {
    let major = major << 5;
    let bytes = argument.to_be_bytes();
    let [.., b4, b5, b6, b7] = bytes;
    match argument {
        0..24 => out.push(major | b7),
        24..0x100 => out.extend_from_slice(&[major | 24, b7]),
        0x100..0x1_0000 => out.extend_from_slice(&[major | 25, b6, b7]),
        0x1_0000..0x1_0000_0000 => out.extend_from_slice(&[major | 26, b4, b5, b6, b7]),
        _ => {
            out.push(major | 27);
            out.extend_from_slice(&bytes);
        }
    }
}

/// One frame holds everything: vLLM's inputs stay under the 64 KiB at which Python starts another.
fn pickle(value: &Value<'_>, out: &mut Vec<u8>) {
    let mut body = Vec::new();
    pickled(value, &mut body);
    body.push(b'.');
    out.extend_from_slice(&[0x80, 5]);
    if body.len() >= 4 {
        out.push(0x95);
        out.extend_from_slice(&(body.len() as u64).to_le_bytes());
    }
    out.append(&mut body);
}

const MEMOIZE: u8 = 0x94;

fn pickled(value: &Value<'_>, out: &mut Vec<u8>) {
    match value {
        Value::None => out.push(b'N'),
        Value::Int(value) => pickled_int(*value, out),
        Value::Bytes(bytes) => sized(b'C', b'B', bytes, out),
        Value::Text(text) => sized(0x8c, b'X', text.as_bytes(), out),
        Value::Tuple(values) => {
            let close = match values.len() {
                0 => return out.push(b')'),
                1 => 0x85,
                2 => 0x86,
                3 => 0x87,
                _ => {
                    out.push(b'(');
                    b't'
                }
            };
            values.iter().for_each(|value| pickled(value, out));
            out.extend_from_slice(&[close, MEMOIZE]);
        }
    }
}

fn pickled_int(value: i64, out: &mut Vec<u8>) {
    if let Ok(value) = u8::try_from(value) {
        out.extend_from_slice(&[b'K', value]);
    } else if let Ok(value) = u16::try_from(value) {
        out.push(b'M');
        out.extend_from_slice(&value.to_le_bytes());
    } else if let Ok(value) = i32::try_from(value) {
        out.push(b'J');
        out.extend_from_slice(&value.to_le_bytes());
    } else {
        // LONG1: the fewest bytes that keep the sign.
        let bytes = value.to_le_bytes();
        let sign = if value < 0 { 0xff } else { 0 };
        let mut length = 8;
        while length > 1
            && bytes.get(length - 1) == Some(&sign)
            && bytes
                .get(length - 2)
                .is_some_and(|byte| (byte ^ sign) & 0x80 == 0)
        {
            length -= 1;
        }
        out.extend_from_slice(&[0x8a, length as u8]);
        out.extend(bytes.iter().take(length));
    }
}

fn sized(short: u8, long: u8, bytes: &[u8], out: &mut Vec<u8>) {
    match u8::try_from(bytes.len()) {
        Ok(length) => out.extend_from_slice(&[short, length]),
        Err(_) => {
            out.push(long);
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        }
    }
    out.extend_from_slice(bytes);
    out.push(MEMOIZE);
}
