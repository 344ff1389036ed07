//! One table: the decoder, the schema, the reference page and the defaults agree.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that panics has failed, which is its job"
)]

use serde_json::Value;
use wicketgate_config::{
    Config, json_schema, reference_markdown,
    table::{Field, ROOT, Shape},
    units::{Size, Span, parse_size, parse_span},
};

/// Every key of the schema as the steps to it; a step into a list is `[]`.
fn schema_keys(schema: &Value, path: &[String], all: &mut Vec<Vec<String>>) {
    if let Some(items) = schema.get("items") {
        let path = [path, &["[]".to_owned()]].concat();
        schema_keys(items, &path, all);
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    for (key, value) in properties.into_iter().flatten() {
        let path = [path, std::slice::from_ref(key)].concat();
        schema_keys(value, &path, all);
        all.push(path);
    }
}

fn table_keys(shape: &Shape, path: &[String], all: &mut Vec<Vec<String>>) {
    match shape {
        Shape::Map(fields) => {
            for field in *fields {
                let path = [path, &[field.key.to_owned()]].concat();
                table_keys(&field.shape, &path, all);
                all.push(path);
            }
        }
        Shape::List(inner) => table_keys(inner, &[path, &["[]".to_owned()]].concat(), all),
        _ => {}
    }
}

/// A file that has this key and the ones above it.
fn file_with(path: &[String]) -> String {
    let mut value = "x".to_owned();
    for step in path.iter().rev() {
        value = match step.as_str() {
            "[]" => format!("[{value}]"),
            key => format!("{{{key}: {value}}}"),
        };
    }
    value
}

fn said_of(path: &[String]) -> String {
    match Config::parse(&file_with(path), "f") {
        Ok(_) => String::new(),
        Err(errors) => errors.to_string(),
    }
}

#[test]
fn the_decoder_knows_exactly_the_keys_of_the_schema() {
    let (mut schema, mut table) = (Vec::new(), Vec::new());
    schema_keys(&json_schema(), &[], &mut schema);
    table_keys(&Shape::Map(ROOT), &[], &mut table);
    schema.sort();
    table.sort();
    assert_eq!(schema, table);
    assert!(schema.len() > 100, "{}", schema.len());
    for path in &schema {
        let said = said_of(path);
        assert!(!said.contains("unknown key"), "{path:?}: {said}");
        // The same place with a name that is not in the schema.
        let (last, above) = path.split_last().unwrap();
        let other = [above, &[format!("{last}{last}{last}")]].concat();
        let said = said_of(&other);
        assert!(said.contains("unknown key"), "{other:?}: {said}");
    }
}

#[test]
fn the_schema_closes_every_map() {
    fn check(schema: &Value, maps: &mut usize) {
        if schema.get("properties").is_some() {
            assert_eq!(
                schema.get("additionalProperties"),
                Some(&Value::from(false))
            );
            *maps += 1;
        }
        match schema {
            Value::Object(map) => map.values().for_each(|value| check(value, maps)),
            Value::Array(list) => list.iter().for_each(|value| check(value, maps)),
            _ => {}
        }
    }
    let mut maps = 0;
    check(&json_schema(), &mut maps);
    assert!(maps > 20, "{maps}");
}

/// Every default that the reference states as a value is the one that holds.
#[test]
fn documented_defaults_hold() {
    fn stated(field: &Field) -> Option<String> {
        let first = field.default.split(' ').next()?;
        match field.shape {
            Shape::Size => Some(Size(parse_size(first)?).to_string()),
            Shape::Duration => Some(Span(parse_span(first)?).to_string()),
            Shape::Number(..) => Some(format!("{:?}", first.parse::<f64>().ok()?)),
            _ => Some(first.to_owned()),
        }
    }
    fn check(fields: &[Field], effective: &Value, checked: &mut usize) {
        for field in fields {
            let Some(value) = effective.get(field.key) else {
                continue;
            };
            match field.shape {
                Shape::Map(fields) => check(fields, value, checked),
                Shape::List(Shape::Map(fields)) => {
                    let items = value.as_array().into_iter().flatten();
                    items.for_each(|item| check(fields, item, checked));
                }
                Shape::List(_) | Shape::Any => {}
                _ => {
                    let holds = value
                        .as_str()
                        .map_or_else(|| value.to_string(), str::to_owned);
                    assert_eq!(stated(field), Some(holds), "{}", field.key);
                    *checked += 1;
                }
            }
        }
    }
    let (config, _) = Config::parse(
        "pools: [{}]\nkvIndex: {tokenizers: [{model: required, path: none}]}",
        "f",
    )
    .unwrap();
    let mut checked = 0;
    let ours = [
        "server",
        "pools",
        "upstream",
        "telemetry",
        "scheduler",
        "observability",
        "kvIndex",
    ];
    let sections = ROOT.iter().filter(|field| ours.contains(&field.key));
    let sections: Vec<Field> = sections.copied().collect();
    check(&sections, &config.effective_value(), &mut checked);
    assert!(checked > 30, "{checked}");
}

/// `BLESS=1 cargo test -p wicketgate-config --test schema` puts the table into the page.
#[test]
fn the_reference_page_has_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap();
    let table = reference_markdown();
    let heading = table.lines().next().unwrap();
    let start = page.find(heading).unwrap_or(page.len());
    let (before, after) = page.split_at(start);
    let rows = after.lines().take_while(|line| line.starts_with('|'));
    let length = rows
        .map(|line| line.len() + 1)
        .sum::<usize>()
        .min(after.len());
    let (old, rest) = after.split_at(length);
    if std::env::var_os("BLESS").is_some() && old != table {
        std::fs::write(path, format!("{before}{table}{rest}")).unwrap();
        return;
    }
    let missing: Vec<_> = table
        .lines()
        .filter(|row| !old.lines().any(|line| line == *row))
        .collect();
    assert!(
        old == table,
        "docs/configuration.md differs from the table; run with BLESS=1. New rows:\n{}",
        missing.join("\n")
    );
}
