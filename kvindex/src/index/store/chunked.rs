//! A growing array whose elements never move, so that they can be shared while it grows.

use std::sync::OnceLock;

/// Few for the model checker, which follows every one of them.
const FIRST: usize = if cfg!(feature = "loom") { 2 } else { 64 };
/// Each chunk is twice the one before it: 2^32 elements in all, without the few that the last one lacks.
const CHUNKS: usize = 26;

pub(crate) struct Chunked<T> {
    chunks: [OnceLock<Box<[T]>>; CHUNKS],
}

/// Chunk and position in it.
#[inline]
fn place(index: u32) -> (usize, usize) {
    let index = index as usize + FIRST;
    let chunk = (index / FIRST).ilog2();
    (chunk as usize, index - (FIRST << chunk))
}

fn size(chunk: usize) -> usize {
    FIRST << chunk
}

impl<T: Default> Chunked<T> {
    pub(crate) fn new() -> Chunked<T> {
        Chunked {
            chunks: [const { OnceLock::new() }; CHUNKS],
        }
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        let (chunk, at) = place(index);
        self.chunks.get(chunk)?.get()?.get(at)
    }

    /// The element, made if it is not there; `None` beyond what can ever be held.
    pub(crate) fn reach(&self, index: u32) -> Option<&T> {
        let (chunk, at) = place(index);
        let made = || (0..size(chunk)).map(|_| T::default()).collect();
        self.chunks.get(chunk)?.get_or_init(made).get(at)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn every_index_has_its_own_element() {
        let array: Chunked<AtomicU32> = Chunked::new();
        assert!(array.get(0).is_none());
        for index in 0..10_000 {
            array.reach(index).unwrap().store(index, Ordering::Relaxed);
        }
        for index in 0..10_000 {
            assert_eq!(array.get(index).unwrap().load(Ordering::Relaxed), index);
        }
        assert!(array.reach(u32::MAX).is_none());
    }
}
