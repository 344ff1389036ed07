//! Wicketgate in front of a real vLLM: two engines of its CPU build serve a small model with random weights and a real
//! tokeniser. `make test-vllm` installs what is needed and runs this; where vLLM is not installed, a line says so.
//!
//! - [`tokens`]: our token ids are the engine's, for chats of every shape.
//! - [`credit`]: before each turn the index says what the engine then reports as cached.
//! - [`upsets`]: and again after a reset of the cache, a restart of the engines, a cut of their events.
//!
//! Engines take about a minute to start, so one test does all of it with the same two.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, which is its job"
)]

mod chats;
mod credit;
mod engine;
mod relay;
mod rig;
mod tokens;
mod upsets;

use std::{io::Write as _, path::Path, sync::Arc, time::Instant};

use wicketgate_testkit::free_address;

use engine::{Engine, Publishes, Vllm};

/// The binary under test.
fn wicketgate() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_wicketgate"))
}

/// Says something even when the test runner keeps what passing tests print.
fn say(line: &str) {
    let mut out = std::io::stderr();
    writeln!(out, "{line}").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_vllm() {
    let begun = Instant::now();
    let Some(vllm) = Vllm::find().await else {
        return;
    };
    let vllm = Arc::new(vllm);
    let done = |what: &str| say(&format!("[{:4.0} s] {what}", begun.elapsed().as_secs_f64()));
    // One listens for whoever wants its events, the other one connects to them: vLLM knows both.
    let mut engines = [Publishes::AnyPort, Publishes::To(free_address())]
        .map(|publishes| Engine::start(&vllm, publishes));
    for engine in &mut engines {
        engine.ready().await;
    }
    done("two engines serve");
    done(&tokens::ours_are_the_engines(&vllm, &engines).await);
    for line in credit::of_follow_up_turns(&vllm, &engines).await {
        done(&line);
    }
    done(&upsets::cut_with_a_replay(&vllm, &engines).await);
    done(&upsets::cut_without_a_replay(&vllm, &engines).await);
    for line in upsets::restart(&vllm, &mut engines).await {
        done(&line);
    }
}
