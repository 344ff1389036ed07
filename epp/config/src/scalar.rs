//! One scalar against what its key expects.

use serde_json::{Number, Value};
use wicketgate_scheduler::spec::nearest;

use crate::{
    table::Shape,
    units::{parse_size, parse_span},
};

/// What a plain scalar is by YAML's core schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plain {
    Null,
    Bool(bool),
    Integer,
    Float,
    Text,
}

fn plain(text: &str) -> Plain {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Plain::Null,
        "true" | "True" | "TRUE" => return Plain::Bool(true),
        "false" | "False" | "FALSE" => return Plain::Bool(false),
        _ => {}
    }
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let all = |text: &str, digit: fn(char) -> bool| !text.is_empty() && text.chars().all(digit);
    let hex = digits.strip_prefix("0x");
    let octal = digits.strip_prefix("0o");
    if all(digits, |c| c.is_ascii_digit())
        || hex.is_some_and(|hex| all(hex, |c| c.is_ascii_hexdigit()))
        || octal.is_some_and(|octal| all(octal, |c| c.is_digit(8)))
    {
        return Plain::Integer;
    }
    let special = matches!(digits, ".inf" | ".Inf" | ".INF")
        || matches!(text, ".nan" | ".NaN" | ".NAN" | "NaN");
    let number = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && digits.parse::<f64>().is_ok();
    if special || number {
        Plain::Float
    } else {
        Plain::Text
    }
}

/// A scalar as YAML's core schema reads it. What is no finite number stays a text.
pub(crate) fn any(text: &str, is_plain: bool) -> Value {
    if !is_plain {
        return Value::from(text);
    }
    let float = || text.parse().ok().and_then(Number::from_f64);
    let number = match plain(text) {
        Plain::Null => return Value::Null,
        Plain::Bool(truth) => return Value::from(truth),
        Plain::Integer => {
            let unsigned = text.parse::<u64>().ok().map(Number::from);
            let signed = || text.parse::<i64>().ok().map(Number::from);
            unsigned.or_else(signed).or_else(float)
        }
        Plain::Float => float(),
        Plain::Text => None,
    };
    number.map_or_else(|| Value::from(text), Value::Number)
}

/// What a key expects, in words.
pub(crate) fn expected(shape: &Shape) -> String {
    match shape {
        Shape::Map(_) => "a map of keys".to_owned(),
        Shape::List(inner) => format!("a list, each item {}", expected(inner)),
        Shape::Text => "a text".to_owned(),
        Shape::Header => "the name of an HTTP header".to_owned(),
        Shape::EnvRef => "a reference such as ${env:NAME}".to_owned(),
        Shape::Word(words) => format!("one of {}", words.join(", ")),
        Shape::Bool => "true or false".to_owned(),
        Shape::Integer(least, most) => format!("a whole number from {least} to {most}"),
        Shape::Number(least, most) if most.is_finite() => {
            format!("a number from {least} to {most}")
        }
        Shape::Number(least, _) => format!("a finite number from {least} on"),
        Shape::Duration => "a duration such as 500ms or 1m30s".to_owned(),
        Shape::Size => "a size such as 1048576, 10Mi or 16M".to_owned(),
        Shape::Texts => "a map of texts".to_owned(),
        Shape::Any => "a value".to_owned(),
    }
}

/// Reads a scalar.
///
/// # Errors
/// What is wrong with it, in words.
pub(crate) fn read(text: &str, is_plain: bool, shape: &Shape) -> Result<Value, String> {
    match shape {
        Shape::Text => return text_of(text, is_plain).map(Value::from),
        Shape::EnvRef => return env_reference(text).map(|_| Value::from(text)),
        Shape::Header => {
            let name = text_of(text, is_plain)?;
            return header(name).map(|()| Value::from(name));
        }
        Shape::Any => return Ok(any(text, is_plain)),
        _ => {}
    }
    let quoted = !is_plain && matches!(shape, Shape::Bool | Shape::Integer(..) | Shape::Number(..));
    if let Some(value) = typed(text, shape) {
        if quoted {
            let expected = expected(shape);
            return Err(format!(
                "\"{text}\" is a text; expected {expected}: remove the quotes"
            ));
        }
        return Ok(value);
    }
    let near = match shape {
        Shape::Word(words) => nearest(text, words.iter().copied()),
        _ => None,
    };
    let hint = near.map_or_else(String::new, |word| format!("; did you mean `{word}`?"));
    let shown = shown(text);
    Err(format!(
        "{shown} is not valid; expected {}{hint}",
        expected(shape)
    ))
}

fn typed(text: &str, shape: &Shape) -> Option<Value> {
    match shape {
        Shape::Word(words) => words.contains(&text).then(|| Value::from(text)),
        Shape::Bool => match text {
            "true" => Some(Value::from(true)),
            "false" => Some(Value::from(false)),
            _ => None,
        },
        Shape::Integer(least, most) => {
            let number = text.parse::<i128>().ok()?;
            if number < i128::from(*least) || number > i128::from(*most) {
                return None;
            }
            u64::try_from(number)
                .map(Value::from)
                .or_else(|_| i64::try_from(number).map(Value::from))
                .ok()
        }
        Shape::Number(least, most) => {
            let number = text.parse::<f64>().ok()?;
            let inside = number >= *least && number <= *most;
            Number::from_f64(number)
                .filter(|_| inside)
                .map(Value::Number)
        }
        Shape::Duration => parse_span(text).map(|_| Value::from(text)),
        Shape::Size => parse_size(text).map(|_| Value::from(text)),
        Shape::Map(_)
        | Shape::List(_)
        | Shape::Texts
        | Shape::Any
        | Shape::Text
        | Shape::Header
        | Shape::EnvRef => None,
    }
}

/// A text in a message, cut short: a file may hold very long ones.
pub(crate) fn shown(text: &str) -> String {
    const LONG: usize = 80;
    match text.char_indices().nth(LONG) {
        Some((end, _)) => format!("`{}...`", text.get(..end).unwrap_or_default()),
        None => format!("`{text}`"),
    }
}

fn text_of(text: &str, is_plain: bool) -> Result<&str, String> {
    let what = match plain(text) {
        _ if !is_plain => None,
        Plain::Null => Some("nothing"),
        Plain::Bool(_) => Some("true or false"),
        Plain::Integer | Plain::Float => Some("a number"),
        Plain::Text => None,
    };
    match what {
        None => Ok(text),
        Some(what) => Err(format!(
            "`{text}` is {what}; expected a text: write \"{text}\""
        )),
    }
}

/// Checks the name of an HTTP header (RFC 9110, 5.1: a token).
///
/// # Errors
/// What is wrong with it, in words.
pub(crate) fn header(name: &str) -> Result<(), String> {
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    match name.chars().find(|c| !token(*c)) {
        None if !name.is_empty() => Ok(()),
        None => Err("an empty text is no header name".to_owned()),
        Some(bad) => Err(format!(
            "\"{name}\" is no header name: {bad:?} is not allowed in one"
        )),
    }
}

/// The variable that `${env:NAME}` names. The message never has the text: it may be a secret by mistake.
pub(crate) fn env_reference(text: &str) -> Result<&str, String> {
    let name = text
        .strip_prefix("${env:")
        .and_then(|rest| rest.strip_suffix('}'));
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    match name {
        Some(name) if !name.is_empty() && name.chars().all(letter) => Ok(name),
        _ => Err(
            "a secret does not belong into the file; expected a reference such as ${env:NAME}"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_are_what_the_core_schema_says() {
        for (text, kind) in [
            ("", Plain::Null),
            ("~", Plain::Null),
            ("True", Plain::Bool(true)),
            ("yes", Plain::Text),
            ("12", Plain::Integer),
            ("-12", Plain::Integer),
            ("0x1F", Plain::Integer),
            ("0o17", Plain::Integer),
            ("1.5", Plain::Float),
            (".5", Plain::Float),
            ("1e3", Plain::Float),
            (".inf", Plain::Float),
            ("-.inf", Plain::Float),
            (".nan", Plain::Float),
            ("inf", Plain::Text),
            ("10.0.0.1", Plain::Text),
            ("1m30s", Plain::Text),
            ("-", Plain::Text),
            (".", Plain::Text),
        ] {
            assert_eq!(plain(text), kind, "{text:?}");
        }
    }

    #[test]
    fn numbers_keep_their_value() {
        assert_eq!(any("18446744073709551615", true), Value::from(u64::MAX));
        assert_eq!(any("-3", true), Value::from(-3));
        assert_eq!(any("2.5", true), Value::from(2.5));
        assert_eq!(any("2.5", false), Value::from("2.5"));
        assert_eq!(any(".nan", true), Value::from(".nan"));
    }

    #[test]
    fn header_names_are_tokens() {
        assert_eq!(header("x-fair-id"), Ok(()));
        assert_eq!(
            header("x-fair id").unwrap_err(),
            "\"x-fair id\" is no header name: ' ' is not allowed in one"
        );
        for bad in ["", "x:y", "größe", "a\nb"] {
            assert!(header(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_secret_is_a_reference_and_never_shown() {
        assert_eq!(env_reference("${env:API_KEY}"), Ok("API_KEY"));
        for bad in ["sk-123", "${env:}", "${env:a b}", "$API_KEY", "${file:x}"] {
            let said = env_reference(bad).unwrap_err();
            assert!(!said.contains("sk-123"), "{said}");
        }
    }
}
