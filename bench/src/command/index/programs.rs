//! Indexes in processes of their own.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use wicketgate_bench_index::{Report, Task};

/// File name of the program with the peers, beside this one.
pub(super) const PEERS: &str = "wicketgate-bench-peers";

/// Where the program with the peers is expected.
pub(super) fn peers_program() -> io::Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name(PEERS))
}

/// An index in a process of its own; dropping it ends the process.
pub(super) struct Program {
    /// What it is called in the result.
    pub(super) name: String,
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Our index, in this very program.
    pub(super) fn ours() -> io::Result<Program> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "index-child"]);
        Program::start("wicketgate", command)
    }

    /// All indexes of the program with the peers.
    pub(super) fn peers(program: &Path) -> io::Result<Vec<Program>> {
        let listed = Command::new(program).arg("list").output()?;
        let names = String::from_utf8_lossy(&listed.stdout);
        let names: Vec<&str> = names.lines().collect();
        if !listed.status.success() || names.is_empty() {
            let what = format!("{} lists no peers", program.display());
            return Err(io::Error::other(what));
        }
        let start = |name: &&str| {
            let mut command = Command::new(program);
            command.arg(name);
            Program::start(name, command)
        };
        names.iter().map(start).collect()
    }

    fn start(name: &str, mut command: Command) -> io::Result<Program> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take().map(BufReader::new);
        Ok(Program {
            name: name.to_owned(),
            input: process.stdin.take(),
            output: output.ok_or_else(|| io::Error::other("a child without pipes"))?,
            process,
        })
    }

    /// Has it do a task.
    ///
    /// # Errors
    /// When it ended or does not answer with a report.
    pub(super) fn run(&mut self, task: &Task) -> io::Result<Report> {
        let mut line = serde_json::to_vec(task)?;
        line.push(b'\n');
        let gone = || io::Error::other(format!("{} ended", self.name));
        self.input.as_mut().ok_or_else(gone)?.write_all(&line)?;
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err(gone());
        }
        serde_json::from_str(&line).map_err(io::Error::other)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It ends with its input; killed as well, should it be in the middle of a task.
        self.input = None;
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
