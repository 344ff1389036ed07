//! Real parts for end-to-end tests, each of which ends with its value.
//!
//! - [`process`]: `wicketgate` as a child process, killed by its own pid on drop.
//! - [`cluster`]: emulated engines, a picker or gateway in front of them, Envoy in front of those.
//! - [`client`]: callers: HTTP/1.1 and HTTP/2, raw bytes, streams that hang up.
//! - [`raw`]: callers and servers that speak bytes: what no proper one would send.
//! - [`scripted`]: a model server whose metrics page and answers a test writes.
//! - [`stream`]: a scripted Envoy that speaks ext_proc to a picker; [`said`]: its answers in words.
//! - [`certs`]: a certificate authority for one test.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::print_stderr,
    reason = "a test that panics has failed, which is its job"
)]

pub mod certs;
pub mod client;
pub mod cluster;
pub mod process;
pub mod raw;
pub mod said;
pub mod scripted;
pub mod stream;

use std::{
    collections::BTreeSet,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, Instant},
};

/// Longest wait for something that must come; a test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Ports below those that systems give out by themselves: neither an outgoing connection nor a listener on port 0 takes
/// one between its choice and its use.
const PORTS: std::ops::Range<u16> = 10_240..32_000;

/// A free loopback address, given out once.
pub fn free_address() -> SocketAddr {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let port = fastrand::u16(PORTS);
        let free = TcpListener::bind(("127.0.0.1", port));
        if let (Ok(listener), true) = (free, GIVEN.lock().unwrap().insert(port)) {
            return listener.local_addr().unwrap();
        }
    }
}

/// A directory for one test; removed on drop.
pub struct TempDir(PathBuf);

impl TempDir {
    /// A new directory.
    pub fn new() -> TempDir {
        let path = std::env::temp_dir().join(format!("wicketgate-test-{:016x}", fastrand::u64(..)));
        std::fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file into it.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Default for TempDir {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Waits until `check` gives a value; panics with `what` when it does not in time.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, check: impl Fn() -> F) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = check().await {
            return value;
        }
        assert!(
            Instant::now() < until,
            "{what} did not happen in {PATIENCE:?}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Awaits something that must come; panics with `what` when it does not in time.
pub async fn must<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what} did not come in {PATIENCE:?}"),
    }
}

/// The repository's root, from a crate at this depth.
pub fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The Envoy binary. Where it is missing, tests are skipped with a visible line, except in CI, which fails.
pub fn envoy_binary() -> Option<PathBuf> {
    let found = wicketgate_bench::envoy::binary(&root());
    if found.is_none() {
        assert!(
            std::env::var_os("CI").is_none(),
            "CI needs Envoy: scripts/setup-test-env.sh"
        );
        eprintln!("skipped: Envoy absent, run scripts/setup-test-env.sh");
    }
    found
}
