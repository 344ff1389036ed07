//! The port: HTTP/1.1 and HTTP/2 with prior knowledge.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{oneshot, watch},
    task::{JoinHandle, JoinSet},
};

use super::{
    EmulatorStats, EngineConfig, FailureConfig, KvEventSink, driver::drive, router, state::Engine,
};

/// Connections that h2 may multiplex requests over, each.
const STREAMS: u32 = 10_000;
/// Pause after a failed accept (no file descriptors left), so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves an emulated engine on `listener` until `shutdown`; then the port is closed and open answers are cut, as
/// vLLM does at SIGTERM.
///
/// # Errors
/// When the settings make no sense, or the listener has no address.
pub async fn serve(
    listener: TcpListener,
    config: EngineConfig,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    serve_with(listener, config, None, shutdown).await
}

/// [`serve`] with somebody who takes the changes of the prefix cache.
///
/// # Errors
/// As [`serve`].
pub async fn serve_with(
    listener: TcpListener,
    config: EngineConfig,
    sink: Option<Arc<dyn KvEventSink>>,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let engine = engine(config, sink)?;
    let addr = listener.local_addr()?;
    run(engine, listener, addr, shutdown).await;
    Ok(())
}

/// Starts an emulated engine in this process on a listener, on the present Tokio runtime.
///
/// # Errors
/// When the settings make no sense, or the listener has no address.
pub fn spawn(listener: TcpListener, config: EngineConfig) -> io::Result<EngineHandle> {
    spawn_with(listener, config, None)
}

/// [`spawn`] with somebody who takes the changes of the prefix cache.
///
/// # Errors
/// As [`spawn`].
pub fn spawn_with(
    listener: TcpListener,
    config: EngineConfig,
    sink: Option<Arc<dyn KvEventSink>>,
) -> io::Result<EngineHandle> {
    let engine = engine(config, sink)?;
    let address = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let shared = Arc::clone(&engine);
    let task = tokio::spawn(async move {
        run(shared, listener, address, async {
            let _ = stopped.await;
        })
        .await;
    });
    Ok(EngineHandle {
        engine,
        address,
        stop: Some(stop),
        task,
    })
}

/// [`spawn`] on the address and port of the settings.
///
/// # Errors
/// As [`spawn`], and when the port cannot be bound.
pub async fn start(config: EngineConfig) -> io::Result<EngineHandle> {
    let listener = TcpListener::bind(SocketAddr::new(config.bind, config.port)).await?;
    spawn(listener, config)
}

fn engine(config: EngineConfig, sink: Option<Arc<dyn KvEventSink>>) -> io::Result<Arc<Engine>> {
    let engine = Engine::new(config, sink)
        .map_err(|wrong| io::Error::new(io::ErrorKind::InvalidInput, wrong))?;
    Ok(Arc::new(engine))
}

/// A running emulated engine. Dropping it stops it.
#[derive(Debug)]
pub struct EngineHandle {
    engine: Arc<Engine>,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl EngineHandle {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://address:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its counts.
    pub fn stats(&self) -> EmulatorStats {
        self.engine.stats()
    }

    /// Its page of metrics.
    pub fn metrics(&self) -> String {
        self.engine.page()
    }

    /// Changes the failures that it shows from now on.
    ///
    /// # Errors
    /// When a value is out of its range; then nothing changes.
    pub fn set_failure(&self, failure: FailureConfig) -> Result<(), String> {
        failure.validate()?;
        self.engine.set_failure(failure);
        Ok(())
    }

    /// Closes the port and all connections at once, and waits until that is done.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        let _ = (&mut self.task).await;
    }
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        // Its connections and its driver belong to the task and end with it.
        self.task.abort();
    }
}

async fn run(
    engine: Arc<Engine>,
    listener: TcpListener,
    addr: SocketAddr,
    shutdown: impl Future<Output = ()>,
) {
    let mut refusing = engine.refusing.subscribe();
    let (mut core, mut tasks) = (JoinSet::new(), JoinSet::new());
    core.spawn(drive(Arc::clone(&engine)));
    let mut listener = Some(listener);
    tokio::pin!(shutdown);
    loop {
        let refuse = *refusing.borrow_and_update();
        if refuse {
            listener = None;
        } else if listener.is_none() {
            match TcpListener::bind(addr).await {
                Ok(bound) => listener = Some(bound),
                Err(error) => {
                    tracing::warn!(%addr, %error, "cannot listen again yet");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            }
        }
        tokio::select! {
            () = &mut shutdown => break,
            _ = refusing.changed() => {}
            () = relisten(&engine), if refuse => {}
            accepted = accept(listener.as_ref()) => match accepted {
                Ok(stream) => {
                    engine.counters.connections.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    tasks.spawn(connection(Arc::clone(&engine), stream, engine.refusing.subscribe()));
                }
                Err(error) => {
                    tracing::warn!(%addr, %error, "accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = tasks.join_next() => {}
            // It runs for ever, so it panicked. As in vLLM, nothing works without the core.
            Some(_) = core.join_next() => {
                tracing::error!(%addr, "the engine core is gone");
                break;
            }
        }
    }
    // Closed before the connections are, so that nobody gets in between.
    drop(listener);
    tasks.shutdown().await;
}

/// Ends a refusal that has a limit.
async fn relisten(engine: &Engine) {
    let limit = engine.failure.lock().refuse_ms;
    match limit {
        Some(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
        None => std::future::pending().await,
    }
    engine.failure.lock().refuse = false;
    engine.refusing.send_replace(false);
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    let Some(listener) = listener else {
        return std::future::pending().await;
    };
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn connection(engine: Arc<Engine>, stream: TcpStream, mut refusing: watch::Receiver<bool>) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new());
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS);
    let service = service_fn(move |request| router::handle(Arc::clone(&engine), request));
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = refused(&mut refusing) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "connection ended");
    }
}

/// Waits until connections are refused.
async fn refused(refusing: &mut watch::Receiver<bool>) {
    if refusing.wait_for(|refuse| *refuse).await.is_err() {
        std::future::pending().await
    }
}
