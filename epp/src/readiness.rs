//! What health checkers hear: starting, serving, draining; in this order, and never back.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Mutex;
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::extproc::SERVICE_NAME;

/// Where a process stands in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// It does not know its endpoints yet.
    Starting,
    /// It takes requests.
    Serving,
    /// It is told to stop.
    Draining,
}

/// The stage, for gRPC health and for the views.
///
/// `liveness` answers as long as the process does: a process that starts or drains must not be killed for it. The
/// other names follow the stage.
pub(crate) struct Readiness {
    reporter: HealthReporter,
    /// Held over the report, so that two of them do not mix.
    stage: Mutex<Stage>,
    ready: AtomicBool,
}

impl Readiness {
    /// At the start.
    pub(crate) async fn new(reporter: HealthReporter) -> Readiness {
        let readiness = Readiness {
            reporter,
            stage: Mutex::new(Stage::Starting),
            ready: AtomicBool::new(false),
        };
        readiness.report(false).await;
        readiness
    }

    /// Goes on to a stage; an earlier one than the present changes nothing.
    pub(crate) async fn reach(&self, to: Stage) {
        let mut stage = self.stage.lock().await;
        if to > *stage {
            *stage = to;
            let serving = to == Stage::Serving;
            self.report(serving).await;
            if serving {
                tracing::info!("ready");
            }
        }
    }

    /// True while it takes requests.
    pub(crate) fn ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    async fn report(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
        let status = if ready {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        };
        let named = ["", "readiness", SERVICE_NAME].map(|name| (name, status));
        for (name, status) in named
            .into_iter()
            .chain([("liveness", ServingStatus::Serving)])
        {
            self.reporter.set_service_status(name, status).await;
        }
    }
}
