//! Changes to the members of an object, with the commas that go with them.

use super::{Overlap, Splice};
use crate::json::{Cursor, Kind, ScanError, Span, Text, quote};

/// Why an object cannot be edited.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum EditError {
    /// The span does not hold one well-formed object.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// Another change of the same splice is in the way.
    #[error(transparent)]
    Overlap(#[from] Overlap),
}

/// What should become of an object's members. Keys are compared with their escapes resolved.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ObjectEdit {
    /// A value to set, or `None` to remove; one per key.
    changes: Vec<(String, Option<Vec<u8>>)>,
}

impl ObjectEdit {
    /// Changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives every occurrence of `key` the value `json`, or adds the member at the end where there is none.
    #[must_use]
    pub fn set(self, key: &str, json: impl Into<Vec<u8>>) -> Self {
        let json = json.into();
        debug_assert!(is_json(&json), "{:?}", String::from_utf8_lossy(&json));
        self.with(key, Some(json))
    }

    /// Takes out every occurrence of `key`, each with one comma.
    #[must_use]
    pub fn remove(self, key: &str) -> Self {
        self.with(key, None)
    }

    /// The last word on a key counts.
    fn with(mut self, key: &str, value: Option<Vec<u8>>) -> Self {
        match self.changes.iter_mut().find(|(known, _)| known == key) {
            Some((_, known)) => *known = value,
            None => self.changes.push((key.to_owned(), value)),
        }
        self
    }

    /// Adds the changes of the object that `object` spans to `splice`.
    ///
    /// # Errors
    /// When `object` does not span an object, or `splice` changes it already.
    pub fn splice(&self, body: &[u8], object: Span, splice: &mut Splice) -> Result<(), EditError> {
        let offset = object.start;
        let text = body.get(object).unwrap_or_default();
        let mut cursor = Cursor::new(text);
        if cursor.kind()? != Kind::Object {
            return Err(ScanError::NotAnObject.into());
        }
        let mut walk = Walk {
            offset,
            last: offset + cursor.at() + 1,
            absent: vec![true; self.changes.len()],
            kept: false,
            removed: None,
            splice,
            overlap: None,
        };
        cursor.object(|cursor, key| {
            let value = cursor.skip()?;
            match self.find(text, key) {
                None => walk.keep(key, &value),
                Some((index, change)) => walk.change(key, value, index, change),
            }
            Ok(())
        })?;
        cursor.end()?;
        walk.finish(&self.changes)
    }

    fn find(&self, text: &[u8], key: &Text) -> Option<(usize, Option<&Vec<u8>>)> {
        let mut changes = self.changes.iter().enumerate();
        let (index, (_, change)) = changes.find(|(_, (known, _))| key.is(text, known))?;
        Some((index, change.as_ref()))
    }
}

/// The members seen so far. Offsets count from the body's start.
struct Walk<'a> {
    offset: usize,
    /// End of the last member, kept or not; before the first, just behind the brace.
    last: usize,
    /// Which keys were not met.
    absent: Vec<bool>,
    /// A member stays.
    kept: bool,
    /// A run of members to take out, and the comma before it if a member before it stays.
    removed: Option<Span>,
    splice: &'a mut Splice,
    overlap: Option<Overlap>,
}

impl Walk<'_> {
    fn replace(&mut self, span: Span, bytes: Vec<u8>) {
        let done = self.splice.replace(span, bytes);
        self.overlap = self.overlap.take().or(done.err());
    }

    fn keep(&mut self, key: &Text, value: &Span) {
        if let Some(run) = self.removed.take() {
            // With nothing kept before it, the run takes the comma behind it.
            let end = if self.kept {
                run.end
            } else {
                self.offset + key.span.start
            };
            self.replace(run.start..end, Vec::new());
        }
        self.kept = true;
        self.last = self.offset + value.end;
    }

    fn change(&mut self, key: &Text, value: Span, index: usize, change: Option<&Vec<u8>>) {
        if let Some(absent) = self.absent.get_mut(index) {
            *absent = false;
        }
        if let Some(bytes) = change {
            self.keep(key, &value);
            return self.replace(
                self.offset + value.start..self.offset + value.end,
                bytes.clone(),
            );
        }
        let end = self.offset + value.end;
        let start = if self.kept {
            self.last
        } else {
            self.offset + key.span.start
        };
        let run = self.removed.get_or_insert(start..end);
        run.end = end;
        self.last = end;
    }

    fn finish(mut self, changes: &[(String, Option<Vec<u8>>)]) -> Result<(), EditError> {
        if let Some(run) = self.removed.take() {
            self.replace(run, Vec::new());
        }
        let mut added = Vec::new();
        for ((key, value), absent) in changes.iter().zip(&self.absent) {
            let (Some(value), true) = (value, absent) else {
                continue;
            };
            if self.kept || !added.is_empty() {
                added.push(b',');
            }
            added.extend(quote(key));
            added.push(b':');
            added.extend_from_slice(value);
        }
        if !added.is_empty() {
            self.replace(self.last..self.last, added);
        }
        self.overlap.map_or(Ok(()), |overlap| Err(overlap.into()))
    }
}

fn is_json(text: &[u8]) -> bool {
    let mut cursor = Cursor::new(text);
    cursor.pass().is_ok() && cursor.end().is_ok()
}
