//! A child process that ends with its value.

use std::{
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    task::JoinHandle,
};

/// A running `wicketgate` command. Dropping it kills it, by its own pid.
pub struct Process {
    child: Child,
    words: Arc<Mutex<Vec<String>>>,
    /// Ends when the process has said its last word.
    reader: JoinHandle<()>,
}

impl Process {
    /// Starts a program; its stderr is kept for failure messages.
    pub fn start(program: &Path, arguments: &[&str]) -> Process {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let words = Arc::new(Mutex::new(Vec::new()));
        let stderr = child.stderr.take().unwrap();
        let kept = Arc::clone(&words);
        let reader = tokio::spawn(async move {
            let mut lines = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                kept.lock().unwrap().push(line);
            }
        });
        Process {
            child,
            words,
            reader,
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id().expect("still running")
    }

    /// What it said on stderr so far.
    pub fn words(&self) -> Vec<String> {
        self.words.lock().unwrap().clone()
    }

    /// Ends it at once, as `kill -9` does, and waits until it is gone.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Asks it to end (SIGTERM).
    pub async fn terminate(&self) {
        self.signal("TERM").await;
    }

    /// Sends it a signal by name, such as `STOP` or `CONT`.
    pub async fn signal(&self, name: &str) {
        let (signal, pid) = (format!("-{name}"), self.pid().to_string());
        let status = Command::new("kill").args([signal, pid]).status().await;
        assert!(status.unwrap().success());
    }

    /// Waits for its end and its last words; gives its exit code.
    pub async fn wait(&mut self) -> Option<i32> {
        let waited = tokio::time::timeout(crate::PATIENCE * 2, self.child.wait()).await;
        let code = waited.expect("the process does not end").unwrap().code();
        (&mut self.reader).await.unwrap();
        code
    }

    /// Resident memory in bytes.
    pub fn resident(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// The most resident memory that it ever had, in bytes.
    pub fn peak(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        let kb: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kb * 1024
    }
}
