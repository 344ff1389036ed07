//! A value as YAML that reads back as the same value.

use std::fmt::Write as _;

use serde_json::Value;

pub(crate) fn yaml(value: &Value) -> String {
    let mut out = String::new();
    block(value, 0, &mut out);
    out
}

fn empty(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

/// Writes a map or list in block form at an indentation; the cursor is at the start of a line.
fn block(value: &Value, indent: usize, out: &mut String) {
    let pad = " ".repeat(indent);
    match value {
        Value::Object(map) => {
            for (key, value) in map.iter().filter(|(_, value)| !value.is_null()) {
                let _ = write!(out, "{pad}{}:", text(key));
                after(value, indent, out);
            }
        }
        Value::Array(list) => {
            for value in list {
                let _ = write!(out, "{pad}-");
                after(value, indent, out);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            let _ = writeln!(out, "{pad}{}", scalar(value));
        }
    }
}

fn after(value: &Value, indent: usize, out: &mut String) {
    if empty(value) {
        let _ = writeln!(out, " {}", scalar(value));
    } else {
        out.push('\n');
        block(value, indent + 2, out);
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(string) => text(string),
        Value::Object(_) => "{}".to_owned(),
        Value::Array(_) => "[]".to_owned(),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// Plain where it cannot be mistaken for anything else, quoted otherwise.
fn text(string: &str) -> String {
    let plain = string.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && string
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
        && !matches!(
            string.to_ascii_lowercase().as_str(),
            "true" | "false" | "null" | "yes" | "no" | "on" | "off" | "y" | "n"
        );
    if plain {
        string.to_owned()
    } else {
        Value::from(string).to_string()
    }
}
