//! One file per command. Exit codes: 0 done, 1 failed, 2 bad usage or configuration, 3 result invalid.

pub(crate) mod config;
pub(crate) mod demo;
mod descriptors;
pub(crate) mod engine;
pub(crate) mod run;
pub(crate) mod sim;

use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

/// Bad usage or configuration.
pub(crate) const USAGE: u8 = 2;

/// Logs to stderr; `RUST_LOG` wins over the configuration.
pub(crate) fn log(level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let colour = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colour)
        .with_writer(std::io::stderr);
    // A second call in one process keeps the first logger.
    let _ = subscriber.try_init();
}

/// Says what is wrong on stderr.
#[expect(clippy::print_stderr, reason = "the command line talks to people")]
pub(crate) fn fail(code: u8, what: impl std::fmt::Display) -> ExitCode {
    eprintln!("{what}");
    ExitCode::from(code)
}

/// Prints on stdout. A closed pipe is no error: `head` has seen enough.
pub(crate) fn print(text: &str) {
    use std::io::Write as _;
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// A runtime with this many workers; 0 is one per core.
pub(crate) fn runtime(workers: usize) -> std::io::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if workers > 0 {
        builder.worker_threads(workers);
    }
    builder.enable_all().build()
}

/// Resolves on SIGTERM or SIGINT.
pub(crate) async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) {
        (Ok(mut terminate), Ok(mut interrupt)) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
        // Without signals only kill -9 ends the process.
        _ => std::future::pending().await,
    }
}
