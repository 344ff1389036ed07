//! From text to nodes with lines, or to the line where the text is no YAML.

use marked_yaml::{LoadError, LoaderOptions, Marker, Node, parse_yaml_with_options};

use crate::error::Fault;

/// Longest file that is read, in bytes.
const LONGEST: usize = 4 << 20;
/// Deepest indentation and flow nesting that is parsed; the parser itself recurses.
const DEEPEST: usize = 64;

pub(crate) fn parse(text: &str) -> Result<Option<Node>, Fault> {
    let fault = |line, what: String| Fault {
        line,
        path: String::new(),
        what,
    };
    if text.len() > LONGEST {
        return Err(fault(0, format!("longer than {LONGEST} bytes")));
    }
    if let Some(line) = too_deep(text) {
        return Err(fault(line, format!("nested deeper than {DEEPEST} levels")));
    }
    let blank = |line: &str| {
        let line = line.trim();
        line.is_empty() || line.starts_with('#') || line == "---"
    };
    if text.lines().all(blank) {
        return Ok(None);
    }
    if let Some(line) = second_document(text) {
        return Err(fault(
            line,
            "a second document; expected one per file".to_owned(),
        ));
    }
    let options = LoaderOptions::default().error_on_duplicate_keys(true);
    match parse_yaml_with_options(0, text, options) {
        Ok(node) => Ok(Some(node)),
        Err(error) => {
            let (line, what) = describe(&error);
            Err(fault(line, what))
        }
    }
}

/// The line on which brackets or indentation go deeper than allowed. Brackets in texts count too: harmless.
fn too_deep(text: &str) -> Option<usize> {
    let mut open = 0_usize;
    for (line, number) in text.lines().zip(1..) {
        let indent = line.len() - line.trim_start().len();
        let dashes = line
            .chars()
            .take_while(|c| matches!(c, ' ' | '-' | '?'))
            .filter(|c| *c != ' ')
            .count();
        if indent > DEEPEST * 8 || dashes > DEEPEST {
            return Some(number);
        }
        for byte in line.bytes() {
            match byte {
                b'[' | b'{' => open += 1,
                b']' | b'}' => open = open.saturating_sub(1),
                _ => {}
            }
            if open > DEEPEST {
                return Some(number);
            }
        }
    }
    None
}

fn second_document(text: &str) -> Option<usize> {
    let mut seen = false;
    for (line, number) in text.lines().zip(1..) {
        if line == "---" || line.starts_with("--- ") {
            if seen {
                return Some(number);
            }
            seen = true;
        } else if !line.trim().is_empty() && !line.trim_start().starts_with('#') {
            seen = true;
        }
    }
    None
}

fn line(marker: &Marker) -> usize {
    marker.line()
}

fn describe(error: &LoadError) -> (usize, String) {
    match error {
        LoadError::TopLevelMustBeMapping(at) => {
            (line(at), "expected a map of keys at the top".to_owned())
        }
        LoadError::TopLevelMustBeSequence(at) => {
            (line(at), "expected a list at the top".to_owned())
        }
        LoadError::UnexpectedAnchor(at) => (
            line(at),
            "anchors and aliases are not supported; write the value out".to_owned(),
        ),
        LoadError::UnexpectedTag(at) => (line(at), "tags are not supported; remove it".to_owned()),
        LoadError::MappingKeyMustBeScalar(at) => {
            (line(at), "a key must be a plain text".to_owned())
        }
        LoadError::DuplicateKey(inner) => {
            let at = inner.key.span().start().map_or(0, line);
            (
                at,
                format!(
                    "`{}` stands here a second time; keep one",
                    inner.key.as_str()
                ),
            )
        }
        LoadError::ScanError(at, error) => (line(at), format!("not YAML: {error}")),
    }
}
