//! `serve` and `epp`: run until told to stop, take over configuration changes.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use clap::Args;
use wicketgate_config::Config;
use wicketgate_epp::{
    configure::{Fronts, gateway_spec},
    discovery::watch_file,
    gateway::Gateway,
};

use super::{USAGE, descriptors, fail, log, runtime, stop_signal};

/// `wicketgate serve`
#[derive(Args)]
pub(crate) struct ServeArgs {
    /// Configuration file; watched, and taken over when it changes
    #[arg(long, value_name = "FILE", required_unless_present = "backend")]
    config: Option<PathBuf>,
    /// A model server, instead of a configuration; repeatable
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    backend: Vec<String>,
    /// Port of the gateway
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Port of metrics and views
    #[arg(long, value_name = "PORT")]
    metrics_port: Option<u16>,
    /// Port of the management interface
    #[arg(long, value_name = "PORT")]
    management_port: Option<u16>,
    /// Address to listen on
    #[arg(long, value_name = "IP")]
    bind: Option<std::net::IpAddr>,
    /// Write every decision's inputs and outputs to a log that `sim replay` reads
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// `wicketgate epp`
#[derive(Args)]
pub(crate) struct EppArgs {
    /// Configuration file; watched, and taken over when it changes
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Write every decision's inputs and outputs to a log that `sim replay` reads
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// What the command line changes in a configuration.
#[derive(Clone, Default)]
struct Overrides {
    port: Option<u16>,
    metrics_port: Option<u16>,
    management_port: Option<u16>,
    bind: Option<std::net::IpAddr>,
}

impl Overrides {
    fn apply(&self, config: &mut Config) {
        config.http_port = self.port.unwrap_or(config.http_port);
        config.metrics_port = self.metrics_port.unwrap_or(config.metrics_port);
        config.management.port = self.management_port.unwrap_or(config.management.port);
        config.bind = self.bind.unwrap_or(config.bind);
    }
}

pub(crate) fn serve(args: &ServeArgs) -> ExitCode {
    let overrides = Overrides {
        port: args.port,
        metrics_port: args.metrics_port,
        management_port: args.management_port,
        bind: args.bind,
    };
    let loaded = match &args.config {
        Some(path) => load(path),
        None => Config::from_backends(&args.backend)
            .map(|config| (config, None))
            .map_err(|errors| errors.to_string()),
    };
    run(loaded, Fronts::Http, overrides, args.record.clone())
}

pub(crate) fn epp(args: &EppArgs) -> ExitCode {
    let loaded = load(&args.config);
    run(
        loaded,
        Fronts::ExtProc,
        Overrides::default(),
        args.record.clone(),
    )
}

/// A configuration and the file that it came from, to be watched.
type Loaded = (Config, Option<Watched>);

/// A file and the text that is in force.
struct Watched {
    path: PathBuf,
    text: String,
}

fn load(path: &Path) -> Result<Loaded, String> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{file}: {error}"))?;
    let parsed = Config::parse(&text, &file);
    let (config, warnings) = parsed.map_err(|errors| errors.to_string())?;
    log(&config.log_level);
    for warning in warnings {
        tracing::warn!("{}", warning.shown(&file));
    }
    let path = path.to_owned();
    Ok((config, Some(Watched { path, text })))
}

fn run(
    loaded: Result<Loaded, String>,
    fronts: Fronts,
    overrides: Overrides,
    record: Option<PathBuf>,
) -> ExitCode {
    let (mut config, watched) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => return fail(USAGE, error),
    };
    overrides.apply(&mut config);
    log(&config.log_level);
    // What the file says is kept: a reload is compared with that.
    let mut bounded = config.clone();
    bounded.max_connections = descriptors::bound(config.max_connections);
    let spec = match gateway_spec(&bounded, fronts, record) {
        Ok(spec) => spec,
        Err(error) => return fail(USAGE, error),
    };
    let runtime = match runtime(config.workers) {
        Ok(runtime) => runtime,
        Err(error) => return fail(1, error),
    };
    let code = runtime.block_on(async move {
        let gateway = match Gateway::start(spec).await {
            Ok(gateway) => Arc::new(gateway),
            Err(error) => return fail(1, error),
        };
        tracing::info!(
            http = ?gateway.http, ext_proc = ?gateway.ext_proc, health = ?gateway.health,
            metrics = ?gateway.admin, management = ?gateway.management, "listening"
        );
        let watcher = watched
            .map(|watched| watch_config(watched, config, Arc::clone(&gateway), fronts, overrides));
        stop_signal().await;
        tracing::info!("draining");
        if let Some(watcher) = watcher {
            watcher.abort();
            // Aborted: it gives up its share of the gateway.
            let _ = watcher.await;
        }
        match Arc::into_inner(gateway) {
            Some(gateway) => {
                let clean = gateway.drain().await;
                tracing::info!(clean, "stopped");
            }
            None => tracing::warn!("stopped without draining"),
        }
        ExitCode::SUCCESS
    });
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    code
}

/// Takes over the configuration whenever the file changes; a faulty one changes nothing, and what is read at the start
/// only is said.
fn watch_config(
    watched: Watched,
    started: Config,
    gateway: Arc<Gateway>,
    fronts: Fronts,
    overrides: Overrides,
) -> tokio::task::JoinHandle<()> {
    let file = watched.path.display().to_string();
    watch_file(watched.path, Some(watched.text), move |text| {
        let parsed = Config::parse(text, &file).map_err(|errors| errors.to_string());
        let taken = parsed.and_then(|(mut config, _)| {
            overrides.apply(&mut config);
            let spec = gateway_spec(&config, fronts, None).map_err(|error| error.to_string())?;
            Ok((spec, config.needs_restart(&started)))
        });
        match taken {
            Ok((spec, at_start)) => {
                for left in gateway.reconfigure(&spec) {
                    tracing::warn!("{left}");
                }
                for key in at_start {
                    tracing::warn!("{key} has changed: restart to take it over");
                }
                gateway.reload_failed(false);
                tracing::info!("configuration taken over");
            }
            Err(error) => {
                gateway.reload_failed(true);
                tracing::error!("configuration refused, the last one stays:\n{error}");
            }
        }
    })
}
