//! The emulated engine over real sockets.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, which is its job"
)]

mod abort;
mod asked;
mod chat;
mod client;
mod completions;
mod echo;
mod errors;
mod failures;
mod fixtures;
mod kvevents;
mod metrics;
mod shapes;

use std::time::Duration;

use wicketgate_sim::engine::{EngineConfig, EngineHandle, start};

/// An engine whose steps take no time, with the model `m`.
async fn instant() -> EngineHandle {
    start(EngineConfig::instant("m"))
        .await
        .expect("the engine starts")
}

/// An engine that is stuck in its first step: a step takes hours.
fn frozen() -> EngineConfig {
    EngineConfig {
        profile: "h100-qwen3-32b-tp2".to_owned(),
        time_scale: 1e-6,
        ..EngineConfig::instant("m")
    }
}

/// Waits until the engine's counts are as wanted. Only a hang is decided by time.
async fn until(
    engine: &EngineHandle,
    what: &str,
    holds: impl Fn(&wicketgate_sim::engine::EmulatorStats) -> bool,
) {
    for _ in 0..2000 {
        if holds(&engine.stats()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never {what}: {:?}", engine.stats());
}

/// Nothing is in the engine and nothing is held.
async fn until_empty(engine: &EngineHandle) {
    until(engine, "empty", |stats| {
        stats.running + stats.waiting == 0 && stats.held_blocks == 0 && stats.in_flight == 0
    })
    .await;
}
