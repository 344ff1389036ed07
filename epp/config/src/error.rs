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
    pub(crate) fn new(file: &str, mut faults: Vec<Fault>) -> Errors {
        faults.sort_by_key(|fault| fault.line);
        let file = file.to_owned();
        Errors { file, faults }
    }
}

impl Fault {
    /// The fault as `file:line: path: what`.
    pub fn shown(&self, file: &str) -> String {
        let line = match self.line {
            0 => String::new(),
            line => format!("{line}:"),
        };
        let path = match self.path.as_str() {
            "" => String::new(),
            path => format!(" {path}:"),
        };
        format!("{file}:{line}{path} {}", self.what)
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self
            .faults
            .iter()
            .map(|fault| fault.shown(&self.file))
            .collect();
        to.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for Errors {}
