//! A value as YAML that reads back as the same value.

use std::fmt::Write as _;

use serde_json::Value;

/// Maps and lists in block form; null values are left out.
pub(crate) fn yaml(value: &Value) -> String {
    let mut out = String::new();
    block(value, 0, &mut out);
    out
}

fn is_inline(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

/// Writes a map or list at an indentation; the cursor is at the start of a line.
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
                item(value, indent, out);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            let _ = writeln!(out, "{pad}{}", scalar(value));
        }
    }
}

fn after(value: &Value, indent: usize, out: &mut String) {
    if is_inline(value) {
        let _ = writeln!(out, " {}", scalar(value));
    } else {
        out.push('\n');
        block(value, indent + 2, out);
    }
}

/// The value after a `-`: a map's first key stands on the same line.
fn item(value: &Value, indent: usize, out: &mut String) {
    if is_inline(value) {
        let _ = writeln!(out, " {}", scalar(value));
        return;
    }
    let mut inner = String::new();
    block(value, indent + 2, &mut inner);
    out.push(' ');
    out.push_str(inner.trim_start());
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(string) => text(string),
        Value::Object(_) => "{}".to_owned(),
        Value::Array(_) => "[]".to_owned(),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// True where a text without quotes cannot be mistaken for anything else, by readers of older YAML either.
fn is_plain(string: &str) -> bool {
    const WORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let all = |more: &str| {
        string
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || more.contains(c))
    };
    if string.starts_with(|c: char| c.is_ascii_digit()) {
        // Durations and sizes: `1500ms`, `16Mi`.
        let number = string.trim_end_matches(|c: char| "GKMihmsun".contains(c));
        return number.len() < string.len() && number.bytes().all(|b| b.is_ascii_digit());
    }
    string.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && all("-_./")
        && !WORDS.contains(&string.to_ascii_lowercase().as_str())
}

fn text(string: &str) -> String {
    if is_plain(string) {
        return string.to_owned();
    }
    let mut quoted = String::from("\"");
    for c in string.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            ' '..='~' => quoted.push(c),
            _ => {
                let _ = write!(quoted, "\\U{:08X}", u32::from(c));
            }
        }
    }
    quoted.push('"');
    quoted
}
