//! A run written down and played again.
//!
//! The log is JSON lines: a [`Header`], then an [`Entry`] for each step in the order in which the pool's
//! lock was taken. Replaying it through a fresh [`Pool`] must give the recorded outputs exactly.

use std::{
    cell::{Cell, RefCell},
    io::BufRead,
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use wicketgate_scheduler::{Incarnation, Nanos, PrefixView, RequestView};

use crate::{
    core::{Pool, PoolConfig},
    input::{Input, Output, Outputs},
};

/// The log's format; a reader refuses others.
pub const VERSION: u32 = 3;

/// First line of a log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`VERSION`].
    pub version: u32,
    /// The configuration at the start.
    pub config: Arc<PoolConfig>,
    /// The seed at the start.
    pub seed: u64,
}

/// Endpoints that held something of a prompt when the index was asked, and how many tokens.
pub type Answers = Vec<(Incarnation, u64)>;

/// One step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The instant passed in.
    pub now: Nanos,
    /// The input passed in.
    pub input: Input,
    /// The answers of the prefix index: a list for each question, in the order asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefix: Vec<Answers>,
    /// What came out.
    pub outputs: Vec<Output>,
}

/// Asks the live index and writes its answers down.
pub struct Recording<'a> {
    inner: &'a dyn PrefixView,
    answers: RefCell<Vec<Answers>>,
}

impl<'a> Recording<'a> {
    /// Records what `inner` answers.
    pub fn new(inner: &'a dyn PrefixView) -> Self {
        let answers = RefCell::default();
        Recording { inner, answers }
    }

    /// The answers so far. Those after the last one that held something are left out.
    pub fn into_answers(self) -> Vec<Answers> {
        let mut answers = self.answers.into_inner();
        while answers.last().is_some_and(Vec::is_empty) {
            answers.pop();
        }
        answers
    }
}

impl PrefixView for Recording<'_> {
    fn cached_tokens(&self, request: &RequestView<'_>, endpoint: Incarnation) -> u64 {
        let tokens = self.inner.cached_tokens(request, endpoint);
        // Zero is the answer for whatever is not written down: an empty index costs no bytes.
        if tokens > 0
            && let Some(answers) = self.answers.borrow_mut().last_mut()
            && !answers.iter().any(|(known, _)| *known == endpoint)
        {
            answers.push((endpoint, tokens));
        }
        tokens
    }

    fn look(&self, request: &RequestView<'_>) -> bool {
        self.answers.borrow_mut().push(Vec::new());
        self.inner.look(request)
    }

    fn picked(&self, request: &RequestView<'_>, endpoint: Incarnation) {
        self.inner.picked(request, endpoint);
    }
}

/// Gives recorded answers back.
struct Recorded<'a> {
    answers: &'a [Answers],
    /// Questions so far.
    asked: Cell<usize>,
}

impl Recorded<'_> {
    fn present(&self) -> &[(Incarnation, u64)] {
        let index = self.asked.get().checked_sub(1);
        let answers = index.and_then(|index| self.answers.get(index));
        answers.map_or(&[], Vec::as_slice)
    }
}

impl PrefixView for Recorded<'_> {
    fn cached_tokens(&self, _: &RequestView<'_>, endpoint: Incarnation) -> u64 {
        let found = self.present().iter().find(|(id, _)| *id == endpoint);
        found.map_or(0, |(_, tokens)| *tokens)
    }

    fn look(&self, _: &RequestView<'_>) -> bool {
        self.asked.set(self.asked.get() + 1);
        !self.present().is_empty()
    }
}

/// Why a log could not be replayed to the end.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The file could not be read.
    #[error("line {line}: {source}")]
    Read {
        /// Line number from 1.
        line: u64,
        /// The cause.
        source: std::io::Error,
    },
    /// A line is not what a log has there.
    #[error("line {line}: not a replay log entry: {source}")]
    Parse {
        /// Line number from 1.
        line: u64,
        /// The cause.
        source: serde_json::Error,
    },
    /// The file is empty.
    #[error("the log is empty: expected a header line")]
    Empty,
    /// Written by another version.
    #[error("log version {found}, this build reads {VERSION}")]
    Version {
        /// The version found.
        found: u32,
    },
    /// The configuration does not build.
    #[error("the log's configuration does not build: {0}")]
    Config(String),
    /// The pool answered differently.
    #[error("line {line}: diverged\n recorded: {recorded}\n replayed: {replayed}")]
    Diverged {
        /// Line number from 1.
        line: u64,
        /// The outputs in the log, as JSON.
        recorded: String,
        /// The outputs now, as JSON.
        replayed: String,
    },
}

/// What a replay went through.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Report {
    /// Steps replayed.
    pub steps: u64,
    /// Dispatches among their outputs.
    pub dispatched: u64,
    /// Refusals among their outputs.
    pub refused: u64,
    /// Requests still running at the end.
    pub running: u64,
    /// Requests still waiting at the end.
    pub waiting: u64,
}

/// Replays a log; `alter` may change the configuration first, to ask "what if".
///
/// # Errors
/// When the log cannot be read, or at the first step whose outputs differ.
pub fn replay(
    log: impl BufRead,
    alter: impl FnOnce(&mut PoolConfig),
) -> Result<Report, ReplayError> {
    let mut lines = log.lines().zip(1_u64..);
    let (first, line) = lines.next().ok_or(ReplayError::Empty)?;
    let mut header: Header = parse(first, line)?;
    if header.version != VERSION {
        return Err(ReplayError::Version {
            found: header.version,
        });
    }
    alter(Arc::make_mut(&mut header.config));
    let mut pool = Pool::new(header.config, header.seed)
        .map_err(|error| ReplayError::Config(error.to_string()))?;
    let mut report = Report::default();
    let mut out = Outputs::default();
    for (text, line) in lines {
        let entry: Entry = parse(text, line)?;
        out.list.clear();
        let prefix = Recorded {
            answers: &entry.prefix,
            asked: Cell::new(0),
        };
        pool.step(entry.now, entry.input, &prefix, &mut out);
        if out.list != entry.outputs {
            return Err(ReplayError::Diverged {
                line,
                recorded: json(&entry.outputs),
                replayed: json(&out.list),
            });
        }
        report.steps += 1;
        for output in &out.list {
            match output {
                Output::Dispatch { .. } => report.dispatched += 1,
                Output::Refuse { .. } => report.refused += 1,
                Output::Evict { .. }
                | Output::Tell(_)
                | Output::ConfigRefused(_)
                | Output::WakeAt(_) => {}
            }
        }
    }
    report.running = pool.running() as u64;
    report.waiting = pool.waiting() as u64;
    Ok(report)
}

fn parse<T: serde::de::DeserializeOwned>(
    text: Result<String, std::io::Error>,
    line: u64,
) -> Result<T, ReplayError> {
    let text = text.map_err(|source| ReplayError::Read { line, source })?;
    serde_json::from_str(&text).map_err(|source| ReplayError::Parse { line, source })
}

fn json(outputs: &[Output]) -> String {
    serde_json::to_string(outputs).unwrap_or_else(|error| error.to_string())
}
