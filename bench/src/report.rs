//! How a benchmark tells its result: a short table, and with `--json` one object on the last line.

use std::{fmt::Display, io::Write as _, process::ExitCode};

use serde_json::Value;

/// The result was not what was asked for: load not offered, counters that do not agree.
const INVALID: u8 = 3;

/// A benchmark's result.
pub(crate) struct Outcome {
    /// Rows of the table: what, and how much.
    pub(crate) rows: Vec<(String, String)>,
    /// The object of `--json`; `valid` is added.
    pub(crate) json: Value,
    /// Why the result does not count.
    pub(crate) faults: Vec<String>,
}

impl Outcome {
    pub(crate) fn new() -> Outcome {
        Outcome {
            rows: Vec::new(),
            json: Value::Object(serde_json::Map::new()),
            faults: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, what: impl Into<String>, much: impl Display) {
        self.rows.push((what.into(), much.to_string()));
    }

    /// Notes a fault unless `holds`.
    pub(crate) fn require(&mut self, holds: bool, fault: impl FnOnce() -> String) {
        if !holds {
            self.faults.push(fault());
        }
    }

    /// The text on stdout.
    fn text(&mut self, json: bool) -> String {
        let width = self
            .rows
            .iter()
            .map(|(what, _)| what.len())
            .max()
            .unwrap_or(0);
        let rows = self.rows.iter();
        let mut text: String = rows
            .map(|(what, much)| format!("{what:<width$}  {much}\n"))
            .collect();
        if json {
            if let Value::Object(map) = &mut self.json {
                map.insert("valid".to_owned(), self.faults.is_empty().into());
            }
            text.push_str(&format!("{}\n", self.json));
        }
        text
    }

    /// Prints it. 0 if the result counts, else 3.
    pub(crate) fn tell(mut self, json: bool) -> ExitCode {
        let text = self.text(json);
        // A closed pipe is no error: the reader has seen enough.
        let _ = std::io::stdout().write_all(text.as_bytes());
        for fault in &self.faults {
            say(&format!("result invalid: {fault}"));
        }
        if self.faults.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(INVALID)
        }
    }
}

/// A line on stderr.
pub(crate) fn say(text: &str) {
    // Nobody reads it: then nobody misses it.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// A line of progress, on a terminal only.
pub(crate) fn progress(text: &str) {
    if std::io::IsTerminal::is_terminal(&std::io::stderr()) {
        say(text);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn outcome() -> Outcome {
        let mut outcome = Outcome::new();
        outcome.row("rate", 12.5);
        outcome.row("endpoints", 100);
        outcome.json = json!({"endpoints": 100, "us": {"p50": 1.5}});
        outcome
    }

    #[test]
    fn the_object_is_the_last_line() {
        let mut outcome = outcome();
        assert_eq!(outcome.text(false), "rate       12.5\nendpoints  100\n");
        let text = outcome.text(true);
        let last = text.lines().last().unwrap();
        assert_eq!(last, r#"{"endpoints":100,"us":{"p50":1.5},"valid":true}"#);
    }

    #[test]
    fn a_fault_is_in_the_object() {
        let mut outcome = outcome();
        outcome.require(true, || unreachable!());
        outcome.require(1 + 1 == 3, || "two".to_owned());
        assert!(outcome.text(true).ends_with("\"valid\":false}\n"));
        assert_eq!(outcome.faults, ["two"]);
    }
}
