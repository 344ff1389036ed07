//! One line of the Prometheus text format.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

/// A sample line.
#[derive(Clone, Debug, PartialEq)]
pub struct Series<'a> {
    /// Metric name.
    pub name: &'a str,
    /// Labels, unread.
    pub labels: Labels<'a>,
    /// Value; may be NaN or infinite.
    pub value: f64,
}

/// The text between the braces of a sample line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Labels<'a>(&'a str);

impl<'a> Labels<'a> {
    /// Name and value of each label, escapes resolved.
    pub fn iter(self) -> impl Iterator<Item = (&'a str, Cow<'a, str>)> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (label, after) = label(rest)?;
            rest = after;
            Some(label)
        })
    }

    /// The value of a label.
    pub fn get(self, name: &str) -> Option<Cow<'a, str>> {
        self.iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value)
    }
}

/// The first label of `text` and what follows it.
fn label(text: &str) -> Option<((&str, Cow<'_, str>), &str)> {
    let text = text.trim_start_matches([' ', '\t', ',']);
    let (name, after) = text.split_once('=')?;
    let after = after.trim_start().strip_prefix('"')?;
    let end = quote(after.as_bytes())?;
    let (raw, rest) = after.split_at_checked(end)?;
    Some(((name.trim_end(), unescape(raw)), rest.get(1..)?))
}

/// Offset of the quote that ends a label value.
fn quote(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let rest = text.get(at..)?;
        let found = memchr2(b'"', b'\\', rest)?;
        if rest.get(found) == Some(&b'"') {
            return Some(at + found);
        }
        at += found + 2;
    }
}

fn unescape(raw: &str) -> Cow<'_, str> {
    if memchr(b'\\', raw.as_bytes()).is_none() {
        return Cow::Borrowed(raw);
    }
    let mut text = String::with_capacity(raw.len());
    let mut chars = raw.chars();
    while let Some(character) = chars.next() {
        if character != '\\' {
            text.push(character);
            continue;
        }
        match chars.next() {
            Some('n') => text.push('\n'),
            Some(other @ ('"' | '\\')) => text.push(other),
            // Not an escape: both characters stand for themselves.
            Some(other) => text.extend(['\\', other]),
            None => text.push('\\'),
        }
    }
    Cow::Owned(text)
}

/// A line read; `None` for comments, empty lines and what is not a sample.
pub(super) fn parse(line: &[u8]) -> Option<Series<'_>> {
    let line = std::str::from_utf8(line).ok()?.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at_checked(end)?;
    let (labels, rest) = match rest.strip_prefix('{') {
        None => ("", rest),
        Some(rest) => {
            let end = closing(rest.as_bytes())?;
            (rest.get(..end)?, rest.get(end + 1..)?)
        }
    };
    // A time stamp or an exemplar may follow the value.
    let value = rest.split_ascii_whitespace().next()?;
    Some(Series {
        name,
        labels: Labels(labels),
        value: number(value)?,
    })
}

fn number(text: &str) -> Option<f64> {
    match text {
        "+Inf" | "Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        "NaN" => Some(f64::NAN),
        _ => text.parse().ok(),
    }
}

/// Offset of the brace that ends the labels; braces inside quotes do not count.
fn closing(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let rest = text.get(at..)?;
        let found = memchr2(b'"', b'}', rest)?;
        if rest.get(found) == Some(&b'}') {
            return Some(at + found);
        }
        at += found + 1;
        at += quote(text.get(at..)?)? + 1;
    }
}

/// Every complete line of a page. A last line without its newline may be cut, so it does not count.
pub(super) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let whole = memchr::memrchr(b'\n', text).map_or(0, |at| at + 1);
    let text = text.get(..whole).unwrap_or_default();
    let mut start = 0;
    memchr::memchr_iter(b'\n', text).map(move |end| {
        let line = text.get(start..end).unwrap_or_default();
        start = end + 1;
        line
    })
}

/// Every sample of a page, in its order.
pub fn series(text: &[u8]) -> impl Iterator<Item = Series<'_>> {
    lines(text).filter_map(parse)
}
