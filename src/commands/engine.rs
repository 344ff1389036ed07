//! `engine`: an emulated engine until told to stop.

use std::process::ExitCode;

use tokio::net::TcpListener;
use wicketgate_sim::engine::{EngineArgs, spawn};

use super::{USAGE, fail, log, runtime, stop_signal};

pub(crate) fn engine(args: &EngineArgs) -> ExitCode {
    log("info");
    let config = match args.config() {
        Ok(config) => config,
        Err(error) => return fail(USAGE, error),
    };
    let runtime = match runtime(0) {
        Ok(runtime) => runtime,
        Err(error) => return fail(1, error),
    };
    let code = runtime.block_on(async move {
        let started = TcpListener::bind(args.address()).await;
        let started = started.and_then(|listener| spawn(listener, config));
        match started {
            Ok(engine) => {
                tracing::info!(address = %engine.address(), "ready");
                stop_signal().await;
                engine.stop().await;
                ExitCode::SUCCESS
            }
            Err(error) => fail(1, format!("cannot listen on {}: {error}", args.address())),
        }
    });
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    code
}
