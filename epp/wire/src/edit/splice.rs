//! Replacements of spans.

use crate::json::Span;

/// A change that would touch what another one touches, or whose span ends before it starts.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("bytes {}..{} cannot be changed: the span is reversed, or another change touches it", span.start, span.end)]
pub struct Overlap {
    /// Where.
    pub span: Span,
}

/// Changes to one body, which do not overlap.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Splice {
    /// In the order of their spans.
    changes: Vec<Change>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
struct Change {
    span: Span,
    bytes: Vec<u8>,
}

/// A part of the new body.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Piece<'a> {
    /// Bytes of the old body.
    Kept(Span),
    /// New bytes.
    New(&'a [u8]),
}

impl Splice {
    /// No change.
    pub fn new() -> Self {
        Self::default()
    }

    /// True if it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Puts `bytes` where `span` is. An empty span inserts; insertions at one place keep the order of their calls
    /// and come before what replaces the bytes that follow.
    ///
    /// # Errors
    /// When an earlier change touches the same bytes, or an insertion falls inside one.
    pub fn replace(&mut self, span: Span, bytes: impl Into<Vec<u8>>) -> Result<(), Overlap> {
        // Spans in order have ends in order: everything before `at` ends before this one starts.
        let at = self
            .changes
            .partition_point(|change| change.span.end <= span.start);
        let free = self
            .changes
            .get(at)
            .is_none_or(|next| span.end <= next.span.start);
        if span.start > span.end || !free {
            return Err(Overlap { span });
        }
        let bytes = bytes.into();
        self.changes.insert(at, Change { span, bytes });
        Ok(())
    }

    /// Length of the new body, in bytes.
    pub fn length(&self, body: &[u8]) -> usize {
        self.pieces(body)
            .map(|piece| match piece {
                Piece::Kept(span) => span.len(),
                Piece::New(bytes) => bytes.len(),
            })
            .sum()
    }

    /// The new body as a list of pieces, none of them empty.
    pub fn pieces(&self, body: &[u8]) -> impl Iterator<Item = Piece<'_>> {
        let length = body.len();
        let kept = move |from: usize, to: usize| Piece::Kept(from.min(length)..to.min(length));
        let mut at = 0;
        let last = self.changes.last().map_or(0, |change| change.span.end);
        self.changes
            .iter()
            .flat_map(move |change| {
                let before = kept(at, change.span.start);
                at = change.span.end;
                [before, Piece::New(&change.bytes)]
            })
            .chain(std::iter::once(kept(last, length)))
            .filter(|piece| match piece {
                Piece::Kept(span) => !span.is_empty(),
                Piece::New(bytes) => !bytes.is_empty(),
            })
    }

    /// The new body in one piece.
    pub fn apply(&self, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.length(body));
        for piece in self.pieces(body) {
            out.extend_from_slice(match piece {
                Piece::Kept(span) => body.get(span).unwrap_or_default(),
                Piece::New(bytes) => bytes,
            });
        }
        out
    }
}
