//! The emulated engine: the step model in real time behind an OpenAI-compatible port with vLLM's names.
//!
//! ```text
//!  HTTP ─> api ─ submit / abort ─> driver ─ step, sleep its time ─> progress of each request ─> api ─> HTTP
//! ```
//! [`driver`] owns the core on one task; a request follows its own progress through a watch channel, so a slow
//! reader never holds up a step. A caller that hangs up drops a guard that aborts the request.

mod api;
mod args;
mod body;
mod chat;
mod driver;
mod failure;
mod metrics;

use std::{net::SocketAddr, sync::Arc, time::Duration};

pub use args::EngineArgs;
pub use failure::Failure;
use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};

use crate::{
    core::{CoreConfig, CoreStats},
    step::StepModel,
};
use driver::Driver;

/// How an emulated engine behaves.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Names it serves; the first is the one in metrics.
    pub models: Vec<String>,
    /// Adapters it serves besides.
    pub adapters: Vec<String>,
    /// Step model, from [`StepModel::profile`].
    pub model: StepModel,
    /// Wall time per model time: 0.5 runs twice as fast.
    pub time_scale: f64,
    /// Tokens per KV block.
    pub block_size: usize,
    /// KV blocks.
    pub num_blocks: u32,
    /// Most requests in the batch.
    pub max_num_seqs: usize,
    /// Most tokens in a step.
    pub max_num_batched_tokens: u64,
    /// Most requests, running and waiting; further ones get 503.
    pub max_num_queued: Option<usize>,
    /// Longest prompt and answer together.
    pub max_model_len: u64,
    /// Start of generated text.
    pub seed: u64,
    /// Faults from the start.
    pub failure: Failure,
    /// Take faults from `POST /emulator/failure` and `x-emulator-failure`.
    pub allow_failures: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            models: vec!["emulated".to_owned()],
            adapters: Vec::new(),
            model: StepModel::instant(),
            time_scale: 1.0,
            block_size: 16,
            num_blocks: 19_208,
            max_num_seqs: 256,
            max_num_batched_tokens: 8192,
            max_num_queued: None,
            max_model_len: 131_072,
            seed: 0,
            failure: Failure::default(),
            allow_failures: false,
        }
    }
}

/// State that all requests of an engine share.
struct Shared {
    config: EngineConfig,
    driver: Driver,
    failure: parking::Slot<Failure>,
    metrics: metrics::Metrics,
}

mod parking {
    //! A value behind a lock that no panic poisons.

    use std::sync::{Mutex, PoisonError};

    pub(super) struct Slot<T>(Mutex<T>);

    impl<T: Clone> Slot<T> {
        pub(super) fn new(value: T) -> Self {
            Slot(Mutex::new(value))
        }

        pub(super) fn get(&self) -> T {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
        }

        pub(super) fn set(&self, value: T) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = value;
        }
    }
}

/// A running engine. Dropping it cuts every connection.
pub struct EngineHandle {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl EngineHandle {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Present state and counts of its core.
    pub fn stats(&self) -> CoreStats {
        self.shared.driver.stats()
    }

    /// Requests of the API that came in.
    pub fn requests(&self) -> u64 {
        self.shared.metrics.requests()
    }

    /// Changes its faults.
    pub fn set_failure(&self, failure: Failure) {
        self.shared.failure.set(failure);
    }

    /// Stops it: the listener closes at once, connections are cut.
    pub async fn stop(mut self) {
        // No receiver means that its tasks are gone already.
        let _ = self.stop.send(true);
        for task in std::mem::take(&mut self.tasks) {
            task.abort();
            let _ = task.await;
        }
    }
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Starts an engine on a listener.
///
/// # Errors
/// When the listener has no address.
pub fn spawn(listener: TcpListener, config: EngineConfig) -> std::io::Result<EngineHandle> {
    let address = listener.local_addr()?;
    let core = CoreConfig {
        model: config.model.clone(),
        block_size: config.block_size,
        num_blocks: config.num_blocks,
        max_num_seqs: config.max_num_seqs,
        max_num_batched_tokens: config.max_num_batched_tokens,
        max_num_queued: config.max_num_queued,
        seed: config.seed,
    };
    let (driver, run) = Driver::new(core, config.time_scale);
    let shared = Arc::new(Shared {
        failure: parking::Slot::new(config.failure.clone()),
        metrics: metrics::Metrics::default(),
        config,
        driver,
    });
    let (stop, stopped) = watch::channel(false);
    let tasks = vec![
        tokio::spawn(run),
        tokio::spawn(accept(listener, Arc::clone(&shared), stopped)),
    ];
    Ok(EngineHandle {
        address,
        shared,
        stop,
        tasks,
    })
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, stopped: watch::Receiver<bool>) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        if shared.failure.get().refuse {
            continue;
        }
        // Without it a token may wait for the acknowledgement of the one before.
        let _ = stream.set_nodelay(true);
        let (shared, mut stopped) = (Arc::clone(&shared), stopped.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request| api::answer(Arc::clone(&shared), request));
            let builder = auto::Builder::new(TokioExecutor::new());
            let served = builder.serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                served = served => if let Err(error) = served {
                    tracing::debug!(%error, "connection ended");
                },
                // Gone too when the engine is: both mean stop.
                _ = stopped.wait_for(|stop| *stop) => {}
            }
        });
    }
}
