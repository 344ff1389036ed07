//! Values as Python's `repr` writes them.

use std::fmt::Write as _;

use minijinja::{Value, value::ValueKind};

/// Appends a value.
pub(super) fn repr(value: &Value, out: &mut String) {
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => float(number, out),
            Err(_) => out.push_str(&value.to_string()),
        },
        ValueKind::String => quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq => {
            out.push('[');
            for (at, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                repr(&item, out);
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (at, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                repr(&key, out);
                out.push_str(": ");
                repr(&value.get_item(&key).unwrap_or_default(), out);
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}

/// The shortest digits that give the number back; an exponent from 1e16 on and below 1e-4.
pub(super) fn float(number: f64, out: &mut String) {
    if !number.is_finite() {
        let name = match number {
            _ if number.is_nan() => "nan",
            _ if number > 0.0 => "inf",
            _ => "-inf",
        };
        return out.push_str(name);
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let _ = write!(out, "{number:?}");
        return;
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    let _ = write!(out, "{digits}e{sign}{:02}", exponent.abs());
}

fn quoted(text: &str, out: &mut String) {
    let quote = match text.contains('\'') && !text.contains('"') {
        true => '"',
        false => '\'',
    };
    out.push(quote);
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if letter == quote => {
                out.push('\\');
                out.push(letter);
            }
            _ if letter.is_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(letter));
            }
            _ => out.push(letter),
        }
    }
    out.push(quote);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_pythons() {
        for (number, text) in [
            (0.0, "0.0"),
            (-1.0, "-1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-1.25e-7, "-1.25e-07"),
            (123_456.789, "123456.789"),
        ] {
            let mut out = String::new();
            float(number, &mut out);
            assert_eq!(out, text);
        }
    }
}
