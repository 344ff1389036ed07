//! The child's side: a task on each line of standard input, its report on a line of standard output.

use std::io::{self, BufRead as _, Write as _};

use crate::{Busy, Subject, Task, tasks};

/// Does what each line of standard input asks for, until it ends. `busy` is [`crate::busy`] for an index that can be
/// read while it is written.
///
/// # Errors
/// When a line is not understood, or a pipe is gone.
pub fn serve<S: Subject>(busy: Option<Busy>) -> io::Result<()> {
    for line in io::stdin().lock().lines() {
        let task: Task = serde_json::from_str(&line?).map_err(io::Error::other)?;
        let mut report = serde_json::to_vec(&tasks::run::<S>(&task, busy))?;
        report.push(b'\n');
        let mut out = io::stdout().lock();
        out.write_all(&report)?;
        out.flush()?;
    }
    Ok(())
}
