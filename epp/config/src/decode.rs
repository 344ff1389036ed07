//! Nodes against the table: a plain value, and every fault with its line.
//!
//! A faulty part is left out and remembered as spoiled, so that the checks that follow still run on the rest
//! and say nothing more about that part.

use std::collections::HashMap;

use serde_json::{Map, Value};
use wicketgate_scheduler::spec::nearest;

use crate::{
    error::Fault,
    scalar::{any, expected, read, shown},
    table::{Field, Shape, Status},
    yaml::{Entry, Kind, Node},
};

/// Faults that are shown; further ones are counted.
const SHOWN: usize = 200;

/// Where each path stands, what is wrong, and what deserves a word.
#[derive(Default)]
pub(crate) struct Decoded {
    lines: HashMap<String, usize>,
    spoiled: Vec<String>,
    faults: Vec<Fault>,
    more: usize,
    pub(crate) warnings: Vec<Fault>,
}

impl Decoded {
    /// The line of a path, or of the nearest path above it.
    pub(crate) fn line(&self, path: &str) -> usize {
        let mut path = path;
        loop {
            if let Some(line) = self.lines.get(path) {
                return *line;
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = path.get(..end).unwrap_or_default(),
                None => return self.lines.get("").copied().unwrap_or(0),
            }
        }
    }

    /// True if the file has the key.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.lines.contains_key(path)
    }

    /// True if there is no fault.
    pub(crate) fn is_good(&self) -> bool {
        self.faults.is_empty()
    }

    /// A fault of the checks that follow decoding. Nothing is said of what is spoiled already.
    pub(crate) fn fault(&mut self, path: &str, what: impl Into<String>) {
        if self.is_spoiled(path) {
            return;
        }
        let line = self.line(path);
        self.push(line, path, what.into());
    }

    /// True if the path, something above it or something below it was refused.
    pub(crate) fn is_spoiled(&self, path: &str) -> bool {
        self.spoiled
            .iter()
            .any(|spoiled| below(path, spoiled) || below(spoiled, path))
    }

    pub(crate) fn warn(&mut self, path: &str, what: impl Into<String>) {
        self.warnings.push(Fault {
            line: self.line(path),
            path: path.to_owned(),
            what: what.into(),
        });
    }

    pub(crate) fn push_all(&mut self, faults: Vec<Fault>) {
        for fault in faults {
            self.push(fault.line, &fault.path, fault.what);
        }
    }

    /// All faults; the last says how many are not shown.
    pub(crate) fn into_faults(self) -> Vec<Fault> {
        let mut faults = self.faults;
        faults.sort_by_key(|fault| fault.line);
        if self.more > 0 {
            faults.push(Fault {
                line: 0,
                path: String::new(),
                what: format!("and {} more faults", self.more),
            });
        }
        faults
    }

    fn push(&mut self, line: usize, path: &str, what: String) {
        if self.faults.len() >= SHOWN {
            self.more += 1;
            return;
        }
        self.faults.push(Fault {
            line,
            path: path.to_owned(),
            what,
        });
    }

    /// A fault that makes the path worthless.
    fn refuse(&mut self, line: usize, path: &str, what: String) {
        self.push(line, path, what);
        self.spoil(path);
    }

    fn spoil(&mut self, path: &str) {
        if self.spoiled.len() < SHOWN {
            self.spoiled.push(path.to_owned());
        }
    }
}

/// True if `path` is `above` or lies below it.
fn below(path: &str, above: &str) -> bool {
    match path.strip_prefix(above) {
        Some(rest) => above.is_empty() || rest.is_empty() || rest.starts_with(['.', '[']),
        None => false,
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

/// Decodes a map of the table's keys. Without a map there is an empty one, and a fault.
pub(crate) fn map(
    node: &Node,
    fields: &[Field],
    path: &str,
    out: &mut Decoded,
) -> Map<String, Value> {
    out.lines.entry(path.to_owned()).or_insert(node.line);
    let mut map = Map::new();
    let Some(entries) = entries(node, "a map of keys", path, out) else {
        return map;
    };
    let mut meant = Vec::new();
    let mut empty = Vec::new();
    for entry in distinct(entries, path, out) {
        let below = join(path, &entry.key);
        let Some(field) = fields.iter().find(|field| field.key == entry.key) else {
            meant.extend(unknown(entry, fields, path, out));
            continue;
        };
        if entry.value.is_null() && !matches!(field.shape, Shape::Any) {
            empty.push(field.key);
            if !field.is_required() {
                out.warn(&below, "is empty and counts as absent");
            }
            continue;
        }
        if let Some(value) = value(&entry.value, &field.shape, &below, out) {
            map.insert(entry.key.clone(), value);
        }
        let refused = match field.status {
            Status::Works => continue,
            Status::Planned => format!(
                "`{}` is planned but not supported yet; remove it",
                field.key
            ),
            Status::LlmD => not_yet(field.key),
        };
        out.refuse(entry.line, &below, refused);
    }
    for field in fields.iter().filter(|field| field.is_required()) {
        let there = map.contains_key(field.key) || meant.contains(&field.key);
        if !there && !out.is_spoiled(&join(path, field.key)) {
            let state = if empty.contains(&field.key) {
                "empty"
            } else {
                "missing"
            };
            let what = format!("`{}` is {state}: {}", field.key, field.doc);
            out.refuse(node.line, path, what);
        }
    }
    map
}

/// What is said of a name of llm-d's that does nothing here.
pub(crate) fn not_yet(name: &str) -> String {
    format!("`{name}` is known in llm-d but not supported yet; remove it")
}

/// The entries of a map, or a fault.
fn entries<'a>(node: &'a Node, wanted: &str, path: &str, out: &mut Decoded) -> Option<&'a [Entry]> {
    if !unmarked(node, path, out) {
        return None;
    }
    match &node.kind {
        Kind::Map(entries) => Some(entries),
        other => {
            let there = describe(other);
            out.refuse(node.line, path, format!("expected {wanted}, not {there}"));
            None
        }
    }
}

fn describe(kind: &Kind) -> String {
    match kind {
        Kind::Scalar { text, .. } if text.is_empty() => "nothing".to_owned(),
        Kind::Scalar { text, .. } => shown(text),
        Kind::Map(_) => "a map".to_owned(),
        Kind::List(_) => "a list".to_owned(),
        Kind::Alias => "an alias".to_owned(),
    }
}

/// The first entry of each key. The others are faults.
fn distinct<'a>(entries: &'a [Entry], path: &str, out: &mut Decoded) -> Vec<&'a Entry> {
    let mut first: HashMap<&str, usize> = HashMap::new();
    let mut kept = Vec::new();
    for entry in entries {
        let below = join(path, &entry.key);
        if let Some(line) = first.get(entry.key.as_str()) {
            let key = shown(&entry.key);
            let what = format!("{key} stands here a second time, first on line {line}; keep one");
            out.push(entry.line, &below, what);
            continue;
        }
        first.insert(&entry.key, entry.line);
        out.lines.insert(below, entry.line);
        kept.push(entry);
    }
    kept
}

/// A key that the table has not; returns the one that was probably meant.
fn unknown<'f>(
    entry: &Entry,
    fields: &'f [Field],
    path: &str,
    out: &mut Decoded,
) -> Option<&'f str> {
    let below = join(path, &entry.key);
    let keys = || fields.iter().map(|field| field.key);
    if out.faults.len() >= SHOWN {
        out.more += 1;
        return None;
    }
    if entry.key == "<<" {
        let what = "merge keys are not supported; write the keys out";
        out.push(entry.line, &below, what.to_owned());
        return None;
    }
    let near = nearest(&entry.key, keys());
    let hint = match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("expected one of {}", keys().collect::<Vec<_>>().join(", ")),
    };
    let key = shown(&entry.key);
    out.push(entry.line, &below, format!("unknown key {key}; {hint}"));
    if let Some(near) = near {
        out.spoil(&join(path, near));
    }
    near
}

/// False, with a fault, for what has an anchor or a tag, or is an alias.
fn unmarked(node: &Node, path: &str, out: &mut Decoded) -> bool {
    let alias = matches!(node.kind, Kind::Alias);
    let what = node
        .mark
        .or(alias.then_some("anchors and aliases are not supported; write the value out"));
    if let Some(what) = what {
        out.refuse(node.line, path, what.to_owned());
    }
    what.is_none()
}

fn value(node: &Node, shape: &Shape, path: &str, out: &mut Decoded) -> Option<Value> {
    out.lines.entry(path.to_owned()).or_insert(node.line);
    match shape {
        Shape::Map(fields) => Some(Value::Object(map(node, fields, path, out))),
        Shape::List(inner) => list(node, inner, path, out),
        Shape::Texts => texts(node, path, out),
        Shape::Any => anything(node, path, out),
        _ => scalar(node, shape, path, out),
    }
}

fn scalar(node: &Node, shape: &Shape, path: &str, out: &mut Decoded) -> Option<Value> {
    if !unmarked(node, path, out) {
        return None;
    }
    let read = match &node.kind {
        Kind::Scalar { text, plain } => read(text, *plain, shape),
        other => Err(format!(
            "expected {}, not {}",
            expected(shape),
            describe(other)
        )),
    };
    match read {
        Ok(value) => Some(value),
        Err(what) => {
            out.refuse(node.line, path, what);
            None
        }
    }
}

/// A list. A faulty item keeps its place, so that the indices of the others stay right.
fn list(node: &Node, inner: &Shape, path: &str, out: &mut Decoded) -> Option<Value> {
    if !unmarked(node, path, out) {
        return None;
    }
    let Kind::List(items) = &node.kind else {
        let what = format!("expected a list, not {}", describe(&node.kind));
        out.refuse(node.line, path, what);
        return None;
    };
    let item = |(index, node): (usize, &Node)| {
        let path = format!("{path}[{index}]");
        value(node, inner, &path, out).unwrap_or_else(|| placeholder(inner))
    };
    Some(Value::Array(items.iter().enumerate().map(item).collect()))
}

fn placeholder(shape: &Shape) -> Value {
    match shape {
        Shape::Duration => Value::from("0s"),
        Shape::Map(_) | Shape::Texts => Value::Object(Map::new()),
        _ => Value::from(""),
    }
}

fn texts(node: &Node, path: &str, out: &mut Decoded) -> Option<Value> {
    let entries = entries(node, "a map of texts", path, out)?;
    let mut map = Map::new();
    for entry in distinct(entries, path, out) {
        let below = join(path, &entry.key);
        let value = scalar(&entry.value, &Shape::Text, &below, out)?;
        map.insert(entry.key.clone(), value);
    }
    Some(Value::Object(map))
}

/// A value as YAML's core schema reads it.
fn anything(node: &Node, path: &str, out: &mut Decoded) -> Option<Value> {
    out.lines.entry(path.to_owned()).or_insert(node.line);
    if !unmarked(node, path, out) {
        return None;
    }
    match &node.kind {
        Kind::Scalar { text, plain } => Some(any(text, *plain)),
        Kind::Alias => None,
        Kind::List(items) => {
            let mut list = Vec::new();
            for (index, item) in items.iter().enumerate() {
                list.extend(anything(item, &format!("{path}[{index}]"), out));
            }
            Some(Value::Array(list))
        }
        Kind::Map(entries) => {
            let mut map = Map::new();
            for entry in distinct(entries, path, out) {
                let below = join(path, &entry.key);
                if let Some(value) = anything(&entry.value, &below, out) {
                    map.insert(entry.key.clone(), value);
                }
            }
            Some(Value::Object(map))
        }
    }
}
