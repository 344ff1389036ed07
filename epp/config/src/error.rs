//! Faults with their place, all of them at once.

use std::fmt;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Line in the file, from 1; 0 when the fault has no line.
    pub line: usize,
    /// Path of the key, such as `pools[0].endpoints[1].address`.
    pub path: String,
    /// What is wrong, what is expected, and the fix where it can be guessed.
    pub what: String,
}

/// Something accepted that deserves a word.
pub type Warning = Fault;

/// Everything that is wrong with a file. Displayed one per line, `file:line: path: what`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors {
    /// The file's name.
    pub file: String,
    /// At least one fault, by line.
    pub faults: Vec<Fault>,
}

impl Errors {
    pub(crate) fn new(file: &str, faults: Vec<Fault>) -> Errors {
        let file = file.to_owned();
        Errors { file, faults }
    }

    pub(crate) fn one(file: &str, what: String) -> Errors {
        let fault = Fault {
            line: 0,
            path: String::new(),
            what,
        };
        Errors::new(file, vec![fault])
    }
}

impl Fault {
    /// The fault as `file:line: path: what`, on one line whatever the file holds.
    pub fn shown(&self, file: &str) -> String {
        let line = match self.line {
            0 => String::new(),
            line => format!("{line}:"),
        };
        let path = match self.path.as_str() {
            "" => String::new(),
            path => format!(" {path}:"),
        };
        let text = format!("{file}:{line}{path} {}", self.what);
        text.chars().flat_map(visible).collect()
    }
}

/// Line breaks and other control characters as escapes: a file must not forge lines in a log or steer a terminal.
fn visible(c: char) -> impl Iterator<Item = char> {
    let escape = c.is_control().then(|| c.escape_default());
    let plain = (!c.is_control()).then_some(c);
    escape.into_iter().flatten().chain(plain)
}

impl fmt::Display for Errors {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut faults = self.faults.iter();
        if let Some(fault) = faults.next() {
            to.write_str(&fault.shown(&self.file))?;
        }
        faults.try_for_each(|fault| write!(to, "\n{}", fault.shown(&self.file)))
    }
}

impl std::error::Error for Errors {}
