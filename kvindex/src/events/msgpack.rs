//! A cursor over MessagePack bytes: no tree, no copies, no panics.
//!
//! Lengths are checked against the bytes that are left before anything is reserved, so a short message cannot ask
//! for much memory. Nesting is bounded by the caller's depth.

/// What a value begins with. Arrays and maps give their element count, the elements follow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Head<'a> {
    Nil,
    Bool,
    Unsigned(u64),
    /// Below zero.
    Negative(i64),
    Float(f64),
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    Array(usize),
    Map(usize),
    Extension,
}

/// The bytes are not MessagePack, end too early or nest too deep: nothing after this point can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// Where the next value starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { rest: bytes }
    }

    /// Bytes that are left.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Broken> {
        let (head, tail) = self.rest.split_at_checked(count).ok_or(Broken)?;
        self.rest = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Broken> {
        let (head, tail) = self.rest.split_first_chunk::<N>().ok_or(Broken)?;
        self.rest = tail;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, Broken> {
        self.array().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Result<u16, Broken> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, Broken> {
        self.array().map(u32::from_be_bytes)
    }

    /// A count of elements of at least `size` bytes each that can still be there.
    fn count(&self, count: usize, size: usize) -> Result<usize, Broken> {
        if count.saturating_mul(size) > self.rest.len() {
            return Err(Broken);
        }
        Ok(count)
    }

    fn length(&mut self, width: u8) -> Result<usize, Broken> {
        Ok(match width {
            0 => usize::from(self.u8()?),
            1 => usize::from(self.u16()?),
            _ => usize::try_from(self.u32()?).map_err(|_| Broken)?,
        })
    }

    /// Reads one head; for text, bytes and extensions also what they hold.
    #[inline]
    pub(crate) fn head(&mut self) -> Result<Head<'a>, Broken> {
        let tag = self.u8()?;
        Ok(match tag {
            0x00..=0x7f => Head::Unsigned(u64::from(tag)),
            0x80..=0x8f => Head::Map(self.count(usize::from(tag & 0x0f), 2)?),
            0x90..=0x9f => Head::Array(self.count(usize::from(tag & 0x0f), 1)?),
            0xa0..=0xbf => Head::Text(self.take(usize::from(tag & 0x1f))?),
            0xcc => Head::Unsigned(u64::from(self.u8()?)),
            0xcd => Head::Unsigned(u64::from(self.u16()?)),
            0xce => Head::Unsigned(u64::from(self.u32()?)),
            0xcf => Head::Unsigned(u64::from_be_bytes(self.array()?)),
            0xe0..=0xff => signed(i64::from(i8::from_be_bytes([tag]))),
            _ => return self.rare(tag),
        })
    }

    fn rare(&mut self, tag: u8) -> Result<Head<'a>, Broken> {
        Ok(match tag {
            0xc0 => Head::Nil,
            0xc2 | 0xc3 => Head::Bool,
            0xc4..=0xc6 => {
                let length = self.length(tag - 0xc4)?;
                Head::Bytes(self.take(length)?)
            }
            0xc7..=0xc9 => {
                let length = self.length(tag - 0xc7)?;
                self.take(length.checked_add(1).ok_or(Broken)?)?;
                Head::Extension
            }
            0xca => Head::Float(f64::from(f32::from_be_bytes(self.array()?))),
            0xcb => Head::Float(f64::from_be_bytes(self.array()?)),
            0xd0 => signed(i64::from(i8::from_be_bytes(self.array()?))),
            0xd1 => signed(i64::from(i16::from_be_bytes(self.array()?))),
            0xd2 => signed(i64::from(i32::from_be_bytes(self.array()?))),
            0xd3 => signed(i64::from_be_bytes(self.array()?)),
            0xd4..=0xd8 => {
                self.take((1 << (tag - 0xd4)) + 1)?;
                Head::Extension
            }
            0xd9..=0xdb => {
                let length = self.length(tag - 0xd9)?;
                Head::Text(self.take(length)?)
            }
            0xdc | 0xdd => {
                let count = self.length(tag - 0xdc + 1)?;
                Head::Array(self.count(count, 1)?)
            }
            0xde | 0xdf => {
                let count = self.length(tag - 0xde + 1)?;
                Head::Map(self.count(count, 2)?)
            }
            // 0xc1 is the one tag that the format never uses.
            _ => return Err(Broken),
        })
    }

    /// Steps over one value that nests at most `depth` arrays and maps.
    pub(crate) fn skip(&mut self, depth: usize) -> Result<(), Broken> {
        let values = match self.head()? {
            Head::Array(count) => count,
            Head::Map(count) => count.checked_mul(2).ok_or(Broken)?,
            _ => return Ok(()),
        };
        let depth = depth.checked_sub(1).ok_or(Broken)?;
        for _ in 0..values {
            self.skip(depth)?;
        }
        Ok(())
    }
}

fn signed(value: i64) -> Head<'static> {
    match u64::try_from(value) {
        Ok(value) => Head::Unsigned(value),
        Err(_) => Head::Negative(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(bytes: &[u8]) -> Result<Head<'_>, Broken> {
        Cursor::new(bytes).head()
    }

    #[test]
    fn every_tag_has_its_value() {
        assert_eq!(one(&[0x7f]), Ok(Head::Unsigned(127)));
        assert_eq!(one(&[0xff]), Ok(Head::Negative(-1)));
        assert_eq!(one(&[0xe0]), Ok(Head::Negative(-32)));
        assert_eq!(one(&[0xcc, 200]), Ok(Head::Unsigned(200)));
        assert_eq!(one(&[0xcd, 1, 0]), Ok(Head::Unsigned(256)));
        assert_eq!(one(&[0xce, 0, 1, 0, 0]), Ok(Head::Unsigned(65_536)));
        assert_eq!(one(&[0xd0, 0x80]), Ok(Head::Negative(-128)));
        assert_eq!(one(&[0xd1, 0, 5]), Ok(Head::Unsigned(5)));
        assert_eq!(one(&[0xd2, 0xff, 0xff, 0xff, 0xfe]), Ok(Head::Negative(-2)));
        assert_eq!(
            one(&[0xd3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfd]),
            Ok(Head::Negative(-3))
        );
        assert_eq!(one(&[0xca, 0x3f, 0x80, 0, 0]), Ok(Head::Float(1.0)));
        assert_eq!(
            one(&[0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0]),
            Ok(Head::Float(1.0))
        );
        assert_eq!(one(&[0xa2, b'h', b'i']), Ok(Head::Text(b"hi")));
        assert_eq!(one(&[0xd9, 1, b'x']), Ok(Head::Text(b"x")));
        assert_eq!(one(&[0xda, 0, 1, b'x']), Ok(Head::Text(b"x")));
        assert_eq!(one(&[0xdb, 0, 0, 0, 1, b'x']), Ok(Head::Text(b"x")));
        assert_eq!(one(&[0xc4, 1, 9]), Ok(Head::Bytes(&[9])));
        assert_eq!(one(&[0xc5, 0, 1, 9]), Ok(Head::Bytes(&[9])));
        assert_eq!(one(&[0xd4, 1, 9]), Ok(Head::Extension));
        assert_eq!(one(&[0xd5, 1, 9, 9]), Ok(Head::Extension));
        assert_eq!(one(&[0xc7, 1, 7, 9]), Ok(Head::Extension));
        assert_eq!(one(&[0xdc, 0, 1, 0]), Ok(Head::Array(1)));
        assert_eq!(one(&[0xdf, 0, 0, 0, 1, 0, 0]), Ok(Head::Map(1)));
        assert_eq!(one(&[0xc0]), Ok(Head::Nil));
        assert_eq!(one(&[0xc1]), Err(Broken));
    }

    #[test]
    fn counts_that_cannot_be_there_are_refused_before_anything_is_reserved() {
        assert_eq!(one(&[0xdd, 0xff, 0xff, 0xff, 0xff]), Err(Broken));
        assert_eq!(one(&[0xdf, 0xff, 0xff, 0xff, 0xff, 0, 0]), Err(Broken));
        assert_eq!(one(&[0xc6, 0xff, 0xff, 0xff, 0xff]), Err(Broken));
        assert_eq!(one(&[0xc9, 0xff, 0xff, 0xff, 0xff]), Err(Broken));
    }

    #[test]
    fn nesting_is_bounded() {
        let deep = [vec![0x91; 8], vec![0xc0]].concat();
        assert_eq!(Cursor::new(&deep).skip(8), Ok(()));
        assert_eq!(Cursor::new(&deep).skip(7), Err(Broken));
        let mut all = Cursor::new(&deep);
        all.skip(8).unwrap();
        assert!(all.rest().is_empty());
    }
}
