//! JSON as Python's `json.dumps` writes it.

use std::fmt::Write as _;

use minijinja::{Error, ErrorKind, Value, value::ValueKind};

use super::python::float;

/// How to write it.
#[derive(Clone, Debug)]
pub(super) struct Style {
    /// Escape everything that is not ASCII.
    pub(super) ascii: bool,
    /// Order objects by their keys.
    pub(super) sorted: bool,
    /// One item a line, each level further in by this.
    pub(super) indent: Option<String>,
    /// Between items.
    pub(super) item: String,
    /// Between key and value.
    pub(super) colon: String,
}

impl Default for Style {
    fn default() -> Style {
        Style {
            ascii: false,
            sorted: false,
            indent: None,
            item: ", ".to_owned(),
            colon: ": ".to_owned(),
        }
    }
}

/// Deepest nesting; requests are bounded before, templates may build more.
const DEPTH: usize = 128;

/// Appends a value.
pub(super) fn write(
    value: &Value,
    style: &Style,
    depth: usize,
    out: &mut String,
) -> Result<(), Error> {
    let failed = |what: &str| Error::new(ErrorKind::BadSerialization, what.to_owned());
    if depth > DEPTH {
        return Err(failed("a value nests too deep for JSON"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number if value.is_integer() => {
            let _ = write!(out, "{value}");
        }
        ValueKind::Number => match f64::try_from(value.clone()) {
            Ok(number) if number.is_nan() => out.push_str("NaN"),
            Ok(number) if number.is_infinite() => {
                out.push_str(if number > 0.0 {
                    "Infinity"
                } else {
                    "-Infinity"
                });
            }
            Ok(number) => float(number, out),
            Err(error) => return Err(error),
        },
        ValueKind::String => text(value.as_str().unwrap_or_default(), style.ascii, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            list(
                ("[", "]"),
                items.len(),
                style,
                depth,
                out,
                |at, out| match items.get(at) {
                    Some(item) => write(item, style, depth + 1, out),
                    None => Ok(()),
                },
            )?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sorted {
                keys.sort();
            }
            list(("{", "}"), keys.len(), style, depth, out, |at, out| {
                let Some(key) = keys.get(at) else {
                    return Ok(());
                };
                match key.as_str() {
                    Some(key) => text(key, style.ascii, out),
                    None => text(&key.to_string(), style.ascii, out),
                }
                out.push_str(&style.colon);
                write(&value.get_item(key)?, style, depth + 1, out)
            })?;
        }
        kind => return Err(failed(&format!("{kind} is no JSON"))),
    }
    Ok(())
}

fn list(
    (open, close): (&str, &str),
    count: usize,
    style: &Style,
    depth: usize,
    out: &mut String,
    mut each: impl FnMut(usize, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    let line = |depth: usize, out: &mut String| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    };
    out.push_str(open);
    for at in 0..count {
        if at > 0 {
            out.push_str(&style.item);
        }
        line(depth + 1, out);
        each(at, out)?;
    }
    if count > 0 {
        line(depth, out);
    }
    out.push_str(close);
    Ok(())
}

fn text(text: &str, ascii: bool, out: &mut String) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            _ if letter < ' ' || (ascii && !(' '..='~').contains(&letter)) => {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            _ => out.push(letter),
        }
    }
    out.push('"');
}
