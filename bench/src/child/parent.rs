//! The parent's side of a child.

use std::{io, net::SocketAddr, process::Stdio, time::Duration};

use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{self, ChildStdin, ChildStdout, Command},
};

use super::{Ready, Role, Stats};

/// Longest time for a child to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running child; dropping it ends it.
pub(crate) struct Child {
    /// Where it listens.
    pub(crate) addresses: Vec<SocketAddr>,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    /// Killed with the rest, should closing its input not be enough.
    _process: process::Child,
}

impl Child {
    /// Starts this very program in a role and waits until it listens.
    ///
    /// # Errors
    /// When it cannot be started, or says why it does not listen.
    pub(crate) async fn start(role: &Role) -> io::Result<Child> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["bench", "child"])
            .arg(serde_json::to_string(role)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let (Some(input), Some(output)) = (input, output) else {
            return Err(io::Error::other("a child without pipes"));
        };
        let mut child = Child {
            addresses: Vec::new(),
            input,
            lines: BufReader::new(output).lines(),
            _process: process,
        };
        match child.read().await? {
            Ready::Listens(addresses) => child.addresses = addresses,
            Ready::Failed(why) => return Err(io::Error::other(why)),
        }
        Ok(child)
    }

    /// The only address of a child that has one.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        let first = self.addresses.first().copied();
        first.ok_or_else(|| io::Error::other("a child without an address"))
    }

    /// Its counts now.
    ///
    /// # Errors
    /// When it is gone or does not answer.
    pub(crate) async fn stats(&mut self) -> io::Result<Stats> {
        self.input.write_all(b"\n").await?;
        self.read().await
    }

    /// Asks until its counts are as wanted.
    ///
    /// # Errors
    /// When that takes too long; the error has the last counts.
    pub(crate) async fn wait(
        &mut self,
        what: &str,
        wanted: impl Fn(&Stats) -> bool,
    ) -> io::Result<Stats> {
        let until = tokio::time::Instant::now() + PATIENCE;
        loop {
            let stats = self.stats().await?;
            if wanted(&stats) {
                return Ok(stats);
            }
            if tokio::time::Instant::now() > until {
                let counters = &stats.counters;
                return Err(io::Error::other(format!(
                    "{what} did not come: {counters:?}"
                )));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn read<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await??;
        let line = line.ok_or_else(|| io::Error::other("a child ended"))?;
        serde_json::from_str(&line).map_err(io::Error::other)
    }
}
