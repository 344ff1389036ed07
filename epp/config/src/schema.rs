//! JSON Schema and reference page from the same table that decodes.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use crate::table::{Field, ROOT, Shape, Status};

/// The schema of the file, JSON Schema 2020-12.
pub fn json_schema() -> Value {
    let mut schema = of_map(ROOT);
    if let Value::Object(map) = &mut schema {
        map.insert(
            "$schema".into(),
            "https://json-schema.org/draft/2020-12/schema".into(),
        );
        map.insert("title".into(), "Wicketgate configuration".into());
    }
    schema
}

fn of_map(fields: &[Field]) -> Value {
    let mut properties = Map::new();
    for field in fields {
        let mut schema = of(&field.shape);
        if let Value::Object(map) = &mut schema {
            map.insert("description".into(), meaning(field).into());
        }
        properties.insert(field.key.to_owned(), schema);
    }
    let required: Vec<&str> = fields
        .iter()
        .filter(|field| field.is_required())
        .map(|field| field.key)
        .collect();
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": required,
        "properties": properties,
    })
}

fn of(shape: &Shape) -> Value {
    match shape {
        Shape::Map(fields) => of_map(fields),
        Shape::List(inner) => json!({"type": "array", "items": of(inner)}),
        Shape::Text => json!({"type": "string"}),
        Shape::Header => json!({"type": "string", "pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"}),
        Shape::EnvRef => json!({"type": "string", "pattern": r"^\$\{env:[0-9A-Za-z_]+\}$"}),
        Shape::Word(words) => json!({"enum": words}),
        Shape::Bool => json!({"type": "boolean"}),
        Shape::Integer(least, most) => {
            json!({"type": "integer", "minimum": least, "maximum": most})
        }
        Shape::Number(least, most) if most.is_finite() => {
            json!({"type": "number", "minimum": least, "maximum": most})
        }
        Shape::Number(least, _) => json!({"type": "number", "minimum": least}),
        Shape::Duration => json!({
            "oneOf": [
                {"type": "string", "pattern": "^(0|([0-9.]+(ns|us|\u{b5}s|ms|s|m|h))+)$"},
                {"const": 0},
            ],
            "examples": ["500ms", "1m30s"],
        }),
        Shape::Size => json!({
            "oneOf": [
                {"type": "string", "pattern": "^[0-9][0-9.eE+]*(Ki|Mi|Gi|Ti|Pi|k|K|M|G|T|P)?$"},
                {"type": "integer", "minimum": 0},
            ],
            "examples": ["10Mi", 1_048_576],
        }),
        Shape::Texts => json!({"type": "object", "additionalProperties": {"type": "string"}}),
        Shape::Any => json!({}),
    }
}

/// What a key means, and whether this version does it.
fn meaning(field: &Field) -> String {
    match field.status {
        Status::Works => field.doc.to_owned(),
        Status::Planned => format!("Not supported yet. {}", field.doc),
        Status::LlmD => format!("llm-d's, not supported yet. {}", field.doc),
    }
}

/// The reference page, Markdown: a row per key.
pub fn reference_markdown() -> String {
    let mut page = String::from("| key | value | default | meaning |\n| --- | --- | --- | --- |\n");
    rows(ROOT, "", &mut page);
    page
}

fn rows(fields: &[Field], path: &str, page: &mut String) {
    for field in fields {
        let here = format!("{path}{}", field.key);
        let _ = writeln!(
            page,
            "| `{here}` | {} | {} | {} |",
            kind(&field.shape),
            field.default.replace('|', "\\|"),
            meaning(field).replace('|', "\\|")
        );
        match field.shape {
            Shape::Map(fields) => rows(fields, &format!("{here}."), page),
            Shape::List(Shape::Map(fields)) => rows(fields, &format!("{here}[]."), page),
            _ => {}
        }
    }
}

fn kind(shape: &Shape) -> String {
    match shape {
        Shape::Map(_) => "map".to_owned(),
        Shape::List(inner) => format!("list of {}", kind(inner)),
        Shape::Text => "text".to_owned(),
        Shape::Header => "header name".to_owned(),
        Shape::EnvRef => "`${env:NAME}`".to_owned(),
        Shape::Word(words) => words
            .iter()
            .map(|word| format!("`{word}`"))
            .collect::<Vec<_>>()
            .join(", "),
        Shape::Bool => "`true`, `false`".to_owned(),
        Shape::Integer(..) => "whole number".to_owned(),
        Shape::Number(..) => "number".to_owned(),
        Shape::Duration => "duration".to_owned(),
        Shape::Size => "size".to_owned(),
        Shape::Texts => "map of texts".to_owned(),
        Shape::Any => "any".to_owned(),
    }
}
