//! Nodes against the table: a plain value, and every fault with its line.

use std::collections::HashMap;

use marked_yaml::{Node, types::MarkedScalarNode};
use serde_json::{Map, Number, Value};
use wicketgate_scheduler::spec::nearest;

use crate::{
    error::Fault,
    table::{Field, Shape},
    units::{parse_size, parse_span},
};

/// What came out: the value, where each path stands, and what is wrong.
#[derive(Default)]
pub(crate) struct Decoded {
    pub(crate) lines: HashMap<String, usize>,
    pub(crate) faults: Vec<Fault>,
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
                None => return 0,
            }
        }
    }

    pub(crate) fn fault(&mut self, path: &str, what: impl Into<String>) {
        let line = self.line(path);
        self.faults.push(Fault {
            line,
            path: path.to_owned(),
            what: what.into(),
        });
    }
}

/// Decodes a map of the table's keys.
pub(crate) fn map(node: &Node, fields: &[Field], path: &str, out: &mut Decoded) -> Value {
    note(node, path, out);
    let Node::Mapping(mapping) = node else {
        out.fault(path, "expected a map of keys");
        return Value::Null;
    };
    let mut map = Map::new();
    for (key, value) in mapping.iter() {
        let name = key.as_str();
        let below = join(path, name);
        if let Some(start) = key.span().start() {
            out.lines.insert(below.clone(), start.line());
        }
        match fields.iter().find(|field| field.key == name) {
            Some(field) => {
                let value = self::value(value, &field.shape, &below, out);
                map.insert(name.to_owned(), value);
            }
            None => {
                let known = nearest(name, fields.iter().map(|field| field.key));
                let hint = match known {
                    Some(known) => format!("did you mean `{known}`?"),
                    None => {
                        let keys: Vec<&str> = fields.iter().map(|field| field.key).collect();
                        format!("expected one of {}", keys.join(", "))
                    }
                };
                out.fault(&below, format!("unknown key `{name}`; {hint}"));
            }
        }
    }
    for field in fields.iter().filter(|field| field.default == "required") {
        if !map.contains_key(field.key) {
            out.fault(path, format!("`{}` is missing: {}", field.key, field.doc));
        }
    }
    Value::Object(map)
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

fn note(node: &Node, path: &str, out: &mut Decoded) {
    if let Some(start) = node.span().start() {
        out.lines.entry(path.to_owned()).or_insert(start.line());
    }
}

fn value(node: &Node, shape: &Shape, path: &str, out: &mut Decoded) -> Value {
    note(node, path, out);
    match shape {
        Shape::Map(fields) => map(node, fields, path, out),
        Shape::List(inner) => list(node, inner, path, out),
        Shape::Texts => texts(node, path, out),
        Shape::Any => any(node),
        Shape::Text
        | Shape::Word(_)
        | Shape::Bool
        | Shape::Integer(..)
        | Shape::Number(..)
        | Shape::Duration
        | Shape::Size => match node {
            Node::Scalar(scalar) => self::scalar(scalar, shape, path, out),
            Node::Mapping(_) | Node::Sequence(_) => {
                out.fault(path, format!("expected {}", expected(shape)));
                Value::Null
            }
        },
    }
}

fn list(node: &Node, inner: &Shape, path: &str, out: &mut Decoded) -> Value {
    let Node::Sequence(sequence) = node else {
        out.fault(path, "expected a list");
        return Value::Null;
    };
    let element = |(index, node): (usize, &Node)| {
        let path = format!("{path}[{index}]");
        value(node, inner, &path, out)
    };
    Value::Array(sequence.iter().enumerate().map(element).collect())
}

fn texts(node: &Node, path: &str, out: &mut Decoded) -> Value {
    let Node::Mapping(mapping) = node else {
        out.fault(path, "expected a map of texts");
        return Value::Null;
    };
    let mut map = Map::new();
    for (key, value) in mapping.iter() {
        let below = join(path, key.as_str());
        let value = self::value(value, &Shape::Text, &below, out);
        map.insert(key.as_str().to_owned(), value);
    }
    Value::Object(map)
}

/// A value as YAML's core schema reads it.
fn any(node: &Node) -> Value {
    match node {
        Node::Mapping(mapping) => mapping
            .iter()
            .map(|(key, value)| (key.as_str().to_owned(), any(value)))
            .collect(),
        Node::Sequence(sequence) => sequence.iter().map(any).collect(),
        Node::Scalar(scalar) => plain(scalar),
    }
}

fn plain(scalar: &MarkedScalarNode) -> Value {
    let text = scalar.as_str();
    if !scalar.may_coerce() {
        return Value::from(text);
    }
    match text {
        "" | "~" | "null" => return Value::Null,
        "true" => return Value::from(true),
        "false" => return Value::from(false),
        _ => {}
    }
    if let Ok(integer) = text.parse::<i64>() {
        return Value::from(integer);
    }
    let number = text
        .parse::<f64>()
        .ok()
        .filter(|_| text.starts_with(|c: char| c.is_ascii_digit() || "-+.".contains(c)));
    number
        .and_then(Number::from_f64)
        .map_or_else(|| Value::from(text), Value::Number)
}

fn expected(shape: &Shape) -> String {
    match shape {
        Shape::Map(_) => "a map".to_owned(),
        Shape::List(_) => "a list".to_owned(),
        Shape::Text => "a text".to_owned(),
        Shape::Word(words) => format!("one of {}", words.join(", ")),
        Shape::Bool => "true or false".to_owned(),
        Shape::Integer(least, most) => format!("a whole number from {least} to {most}"),
        Shape::Number(least, most) if least.is_finite() => {
            format!("a number from {least} to {most}")
        }
        Shape::Number(..) => "a number".to_owned(),
        Shape::Duration => "a duration such as 500ms or 1m30s".to_owned(),
        Shape::Size => "a size such as 1048576, 10Mi or 16M".to_owned(),
        Shape::Texts => "a map of texts".to_owned(),
        Shape::Any => "a value".to_owned(),
    }
}

fn scalar(node: &MarkedScalarNode, shape: &Shape, path: &str, out: &mut Decoded) -> Value {
    let text = node.as_str();
    let read = match shape {
        Shape::Text => {
            (!(node.may_coerce() && matches!(text, "" | "~" | "null"))).then(|| Value::from(text))
        }
        Shape::Word(words) => words.contains(&text).then(|| Value::from(text)),
        Shape::Bool => match text {
            "true" => Some(Value::from(true)),
            "false" => Some(Value::from(false)),
            _ => None,
        },
        Shape::Integer(least, most) => {
            let number = text.parse::<u64>().ok();
            number
                .filter(|number| (*least..=*most).contains(number))
                .map(Value::from)
        }
        Shape::Number(least, most) => {
            let number = text.parse::<f64>().ok();
            let number = number.filter(|number| *number >= *least && *number <= *most);
            number.and_then(Number::from_f64).map(Value::Number)
        }
        Shape::Duration => parse_span(text).map(|_| Value::from(text)),
        Shape::Size => parse_size(text).map(|_| Value::from(text)),
        Shape::Map(_) | Shape::List(_) | Shape::Texts | Shape::Any => None,
    };
    read.unwrap_or_else(|| {
        let hint = match shape {
            Shape::Word(words) => nearest(text, words.iter().copied()),
            _ => None,
        };
        let hint = hint.map_or_else(String::new, |word| format!("; did you mean `{word}`?"));
        out.fault(
            path,
            format!("`{text}` is not valid; expected {}{hint}", expected(shape)),
        );
        Value::Null
    })
}
