//! Reads fields of a request's JSON, with vLLM's errors.

use serde_json::{Map, Value};

use super::ApiError;

pub(super) struct Fields<'a>(pub(super) &'a Map<String, Value>);

impl<'a> Fields<'a> {
    /// The object in `body`.
    pub(super) fn of(body: &'a Value) -> Result<Fields<'a>, ApiError> {
        let wrong = || {
            ApiError::validation(
                "model_attributes_type",
                "",
                "Input should be a valid dictionary",
                "'?'",
            )
        };
        body.as_object().map(Fields).ok_or_else(wrong)
    }

    /// A field that is there and not null.
    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn need(&self, name: &str) -> Result<&'a Value, ApiError> {
        self.get(name)
            .ok_or_else(|| ApiError::missing(name, self.0.len()))
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.typed(name, "string_type", "a valid string", Value::as_str)
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        let flag = self.typed(name, "bool_type", "a valid boolean", Value::as_bool)?;
        Ok(flag.unwrap_or(false))
    }

    pub(super) fn integer(&self, name: &str) -> Result<Option<i64>, ApiError> {
        self.typed(name, "int_parsing", "a valid integer", Value::as_i64)
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<f64>, ApiError> {
        self.typed(name, "float_parsing", "a valid number", Value::as_f64)
    }

    /// An integer of at least `least`.
    pub(super) fn count(&self, name: &str, least: u32) -> Result<Option<u32>, ApiError> {
        let Some(value) = self.integer(name)? else {
            return Ok(None);
        };
        let count = u32::try_from(value).ok().filter(|count| *count >= least);
        let wrong = || {
            let message = format!(
                "{name} must be at least {least}, got {value}. (parameter={name}, value={value})"
            );
            ApiError::bad_value(name, message)
        };
        count.map(Some).ok_or_else(wrong)
    }

    fn typed<T>(
        &self,
        name: &str,
        kind: &str,
        wanted: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let wrong = || {
            let input = match value {
                Value::Array(items) => format!("'<list of {} items>'", items.len()),
                Value::Object(fields) => format!("'<dict of {} items>'", fields.len()),
                other => format!("'{}'", other.to_string().trim_matches('"')),
            };
            ApiError::validation(kind, name, &format!("Input should be {wanted}"), &input)
        };
        read(value).map(Some).ok_or_else(wrong)
    }
}
