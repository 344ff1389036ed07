//! From text to a tree of nodes with lines. Nothing is interpreted here: that is the decoder's.

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};

use crate::error::Fault;

/// Longest file that is read, in bytes.
const LONGEST: usize = 4 << 20;
/// Deepest nesting of maps and lists.
const DEEPEST: usize = 64;

/// A value in the file.
#[derive(Debug)]
pub(crate) struct Node {
    /// Where it starts, from 1.
    pub(crate) line: usize,
    /// A mark that is not supported, in words: an anchor or a tag.
    pub(crate) mark: Option<&'static str>,
    pub(crate) kind: Kind,
}

/// What a node is.
#[derive(Debug)]
pub(crate) enum Kind {
    /// A text; `plain` if it stands without quotes, so that it may be read as a number or the like.
    Scalar {
        text: String,
        plain: bool,
    },
    /// Keys in the file's order, duplicates included.
    Map(Vec<Entry>),
    List(Vec<Node>),
    /// `*name`, which is never followed: a small file cannot grow.
    Alias,
}

/// A key and its value.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) line: usize,
    pub(crate) value: Node,
}

impl Node {
    /// Nothing, `~` or `null`, without quotes.
    pub(crate) fn is_null(&self) -> bool {
        match &self.kind {
            Kind::Scalar { text, plain } => {
                *plain && matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL")
            }
            Kind::Map(_) | Kind::List(_) | Kind::Alias => false,
        }
    }
}

/// A map or list that is still open.
enum Open {
    Map {
        node: Node,
        key: Option<(String, usize)>,
    },
    List(Node),
}

#[derive(Default)]
struct Loader {
    open: Vec<Open>,
    root: Option<Node>,
    documents: usize,
    /// The last line: the parser may name the one behind it.
    last: usize,
    faults: Vec<Fault>,
}

/// The tree, or nothing if the text has none; and what does not belong into a file of ours.
///
/// # Errors
/// The place where the text is no YAML, or is too long or too deep.
pub(crate) fn parse(text: &str) -> Result<(Option<Node>, Vec<Fault>), Fault> {
    if text.len() > LONGEST {
        return Err(fault(0, format!("longer than {LONGEST} bytes")));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut loader = Loader {
        last: text.matches(['\n', '\r']).count() + 1,
        ..Loader::default()
    };
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| not_yaml(&error, loader.last))?;
        loader.take(event, span)?;
        if loader.documents > 1 {
            break;
        }
    }
    Ok((loader.root, loader.faults))
}

fn fault(line: usize, what: impl Into<String>) -> Fault {
    Fault {
        line,
        path: String::new(),
        what: what.into(),
    }
}

fn not_yaml(error: &ScanError, last: usize) -> Fault {
    let line = error.marker().line().min(last);
    fault(line, format!("not YAML: {}", error.info()))
}

fn mark(anchor: usize, tagged: bool) -> Option<&'static str> {
    match (anchor, tagged) {
        (0, false) => None,
        (0, true) => Some("tags are not supported; remove it"),
        _ => Some("anchors and aliases are not supported; write the value out"),
    }
}

impl Loader {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Fault> {
        let line = span.start.line().min(self.last);
        let node = |kind, anchor, tagged| Node {
            line,
            mark: mark(anchor, tagged),
            kind,
        };
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    let what = "a second document; expected one per file";
                    self.faults.push(fault(line, what));
                }
            }
            Event::Alias(_) => self.value(node(Kind::Alias, 0, false))?,
            Event::Scalar(text, style, anchor, tag) => {
                let kind = Kind::Scalar {
                    text: text.into_owned(),
                    plain: style == ScalarStyle::Plain,
                };
                self.value(node(kind, anchor, tag.is_some()))?;
            }
            Event::SequenceStart(anchor, tag) => {
                let list = Open::List(node(Kind::List(Vec::new()), anchor, tag.is_some()));
                self.deeper(list, line)?;
            }
            Event::MappingStart(anchor, tag) => {
                let node = node(Kind::Map(Vec::new()), anchor, tag.is_some());
                self.deeper(Open::Map { node, key: None }, line)?;
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open::Map { node, .. } | Open::List(node)) => self.value(node)?,
                None => {}
            },
        }
        Ok(())
    }

    fn deeper(&mut self, open: Open, line: usize) -> Result<(), Fault> {
        if self.open.len() >= DEEPEST {
            let what = format!("nested deeper than {DEEPEST} levels");
            return Err(fault(line, what));
        }
        if matches!(self.open.last(), Some(Open::Map { key: None, .. })) {
            return Err(fault(line, "a key must be a plain text"));
        }
        self.open.push(open);
        Ok(())
    }

    fn value(&mut self, value: Node) -> Result<(), Fault> {
        match self.open.last_mut() {
            None => self.root = Some(value),
            Some(Open::List(list)) => {
                if let Kind::List(items) = &mut list.kind {
                    items.push(value);
                }
            }
            Some(Open::Map { node, key }) => match key.take() {
                Some((name, line)) => {
                    if let Kind::Map(entries) = &mut node.kind {
                        entries.push(Entry {
                            key: name,
                            line,
                            value,
                        });
                    }
                }
                None => {
                    let Kind::Scalar { text, .. } = value.kind else {
                        return Err(fault(value.line, "a key must be a plain text"));
                    };
                    if let Some(what) = value.mark {
                        self.faults.push(fault(value.line, what));
                    }
                    *key = Some((text, value.line));
                }
            },
        }
        Ok(())
    }
}
