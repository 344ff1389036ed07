//! A mapping read field by field: each name asked for is known, whatever is left over is a fault.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Fault, PluginErrorKind};
use crate::spec::nearest;

/// A mapping of a configuration at a path. A null counts as missing.
pub(super) struct Fields<'a> {
    path: String,
    map: Option<&'a Map<String, Value>>,
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    /// The outermost mapping.
    pub(super) fn new(value: &'a Value) -> Result<Fields<'a>, Fault> {
        Fields::at(String::new(), Some(value))
    }

    fn at(path: String, value: Option<&'a Value>) -> Result<Fields<'a>, Fault> {
        let map = match value {
            None | Some(Value::Null) => None,
            Some(Value::Object(map)) => Some(map),
            Some(other) => {
                let what = format!("a mapping is needed, not {}", kind_of(other));
                return Err(Fault::value(path, what));
            }
        };
        let known = Vec::new();
        Ok(Fields { path, map, known })
    }

    fn get(&mut self, name: &'static str) -> Option<&'a Value> {
        self.known.push(name);
        let value = self.map?.get(name)?;
        (!value.is_null()).then_some(value)
    }

    fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    fn wrong(&self, name: &str, needed: &str, value: &Value) -> Fault {
        let what = format!("{name} must be {needed}, not {}", kind_of(value));
        Fault::value(self.path_of(name), what)
    }

    fn missing(&self, name: &str) -> Fault {
        Fault::value(self.path_of(name), format!("{name} is required"))
    }

    fn maybe_number(&mut self, name: &'static str) -> Result<Option<f64>, Fault> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let number = value.as_f64().filter(|n| n.is_finite());
        match number {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(name, "a number", value)),
        }
    }

    pub(super) fn number(&mut self, name: &'static str, default: f64) -> Result<f64, Fault> {
        Ok(self.maybe_number(name)?.unwrap_or(default))
    }

    pub(super) fn required_number(&mut self, name: &'static str) -> Result<f64, Fault> {
        let number = self.maybe_number(name)?;
        number.ok_or_else(|| self.missing(name))
    }

    pub(super) fn whole(&mut self, name: &'static str, default: u64) -> Result<u64, Fault> {
        let Some(value) = self.get(name) else {
            return Ok(default);
        };
        value
            .as_u64()
            .ok_or_else(|| self.wrong(name, "a whole number, at least 0", value))
    }

    pub(super) fn integer(&mut self, name: &'static str, default: u32) -> Result<u32, Fault> {
        let whole = self.whole(name, u64::from(default))?;
        u32::try_from(whole).map_err(|_| {
            let what = format!("{name} must be at most {}", u32::MAX);
            Fault::value(self.path_of(name), what)
        })
    }

    pub(super) fn flag(&mut self, name: &'static str) -> Result<bool, Fault> {
        let Some(value) = self.get(name) else {
            return Ok(false);
        };
        value
            .as_bool()
            .ok_or_else(|| self.wrong(name, "true or false", value))
    }

    pub(super) fn text(&mut self, name: &'static str) -> Result<Option<&'a str>, Fault> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        match value.as_str() {
            Some(text) if !text.is_empty() => Ok(Some(text)),
            Some(_) => Err(Fault::value(
                self.path_of(name),
                format!("{name} must not be empty"),
            )),
            None => Err(self.wrong(name, "text", value)),
        }
    }

    pub(super) fn required_text(&mut self, name: &'static str) -> Result<&'a str, Fault> {
        let text = self.text(name)?;
        text.ok_or_else(|| self.missing(name))
    }

    pub(super) fn one_of<T: Copy>(
        &mut self,
        name: &'static str,
        choices: &[(&'static str, T)],
    ) -> Result<Option<T>, Fault> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        if let Some((_, choice)) = choices.iter().find(|(known, _)| *known == text) {
            return Ok(Some(*choice));
        }
        let known: Vec<_> = choices.iter().map(|(known, _)| *known).collect();
        Err(Fault {
            kind: PluginErrorKind::BadValue,
            what: format!("{name} must be one of {}, not {text:?}", known.join(", ")),
            field: self.path_of(name),
            nearest: nearest(text, known.iter().copied()),
            known,
        })
    }

    pub(super) fn required_one_of<T: Copy>(
        &mut self,
        name: &'static str,
        choices: &[(&'static str, T)],
    ) -> Result<T, Fault> {
        let choice = self.one_of(name, choices)?;
        choice.ok_or_else(|| self.missing(name))
    }

    pub(super) fn object(&mut self, name: &'static str) -> Result<Fields<'a>, Fault> {
        let value = self.get(name);
        Fields::at(self.path_of(name), value)
    }

    fn array(&mut self, name: &'static str) -> Result<Option<&'a Vec<Value>>, Fault> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        match value.as_array() {
            Some(array) => Ok(Some(array)),
            None => Err(self.wrong(name, "a list", value)),
        }
    }

    pub(super) fn list(&mut self, name: &'static str) -> Result<Option<Vec<Fields<'a>>>, Fault> {
        let Some(array) = self.array(name)? else {
            return Ok(None);
        };
        let items = array
            .iter()
            .enumerate()
            .map(|(i, item)| Fields::at(format!("{}[{i}]", self.path_of(name)), Some(item)));
        items.collect::<Result<_, _>>().map(Some)
    }

    pub(super) fn text_list(&mut self, name: &'static str) -> Result<Vec<String>, Fault> {
        let array = self.array(name)?;
        let items = array.into_iter().flatten();
        items
            .map(|item| match item.as_str() {
                Some(text) => Ok(text.to_owned()),
                None => Err(self.wrong(name, "a list of texts", item)),
            })
            .collect()
    }

    pub(super) fn text_map(
        &mut self,
        name: &'static str,
    ) -> Result<BTreeMap<String, String>, Fault> {
        let object = self.object(name)?;
        let items = object.map.into_iter().flatten();
        items
            .map(|(key, item)| match item.as_str() {
                Some(text) => Ok((key.clone(), text.to_owned())),
                None => Err(object.wrong(key, "text", item)),
            })
            .collect()
    }

    /// Faults a name that nobody asked for.
    pub(super) fn finish(self) -> Result<(), Fault> {
        let mut names = self.map.into_iter().flatten().map(|(name, _)| name);
        let Some(name) = names.find(|name| !self.known.contains(&name.as_str())) else {
            return Ok(());
        };
        let what = if self.known.is_empty() {
            format!("unknown parameter {name:?}; it takes none")
        } else {
            format!(
                "unknown parameter {name:?}; known: {}",
                self.known.join(", ")
            )
        };
        Err(Fault {
            kind: PluginErrorKind::UnknownParameter,
            what,
            field: self.path_of(name),
            nearest: nearest(name, self.known.iter().copied()),
            known: self.known,
        })
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "that number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}
