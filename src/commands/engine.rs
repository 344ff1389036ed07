//! `engine`: an emulated engine until told to stop.

use std::{io, process::ExitCode, sync::Arc};

use tokio::net::TcpListener;
use wicketgate_sim::engine::{
    EngineArgs, EngineConfig, EngineHandle, KvEventSink, KvPublisher, spawn_with,
};

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
        match start(args, config).await {
            Ok(engine) => {
                tracing::info!(address = %engine.address(), "ready");
                stop_signal().await;
                engine.stop().await;
                ExitCode::SUCCESS
            }
            Err(error) => fail(1, error),
        }
    });
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    code
}

/// The engine with its sockets open. It owns its publisher.
async fn start(args: &EngineArgs, config: EngineConfig) -> io::Result<EngineHandle> {
    let at = |what: &'static str, address: std::net::SocketAddr| {
        move |error: io::Error| {
            io::Error::new(
                error.kind(),
                format!("cannot listen on {address}{what}: {error}"),
            )
        }
    };
    let listener = TcpListener::bind(args.address())
        .await
        .map_err(at("", args.address()))?;
    let events = args.kv_events(listener.local_addr()?);
    let sink: Option<Arc<dyn KvEventSink>> = match events {
        Some(events) => {
            let address = events.events;
            let started = KvPublisher::start(events).await;
            let publisher = started.map_err(at(" or its replay port for KV events", address))?;
            tracing::info!(address = %publisher.events(), "KV events");
            Some(Arc::new(publisher))
        }
        None => None,
    };
    spawn_with(listener, config, sink)
}
