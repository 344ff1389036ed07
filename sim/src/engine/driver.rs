//! Runs the steps in time.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};

use super::state::{Engine, Inner};
use crate::Nanos;

/// Steps that are later than this are not caught up: the machine has no time for the load at this time scale.
const MOST_BEHIND: Duration = Duration::from_secs(1);
/// Steps without a wait before others get a turn.
const STEPS_PER_TURN: u32 = 16;

/// Computes steps for as long as it is polled.
///
/// A step ends when it is due, not when the timer says so: the next one starts then, so the rate of steps is exact
/// although the timer is coarse.
pub(super) async fn drive(engine: Arc<Engine>) {
    let mut due = Instant::now();
    let mut turn = 0;
    loop {
        let Some(duration) = start(&engine) else {
            engine.work.notified().await;
            due = due.max(Instant::now());
            continue;
        };
        due = due.max(Instant::now().checked_sub(MOST_BEHIND).unwrap_or(due)) + duration;
        if due > Instant::now() {
            sleep_until(due).await;
            turn = 0;
        } else if turn >= STEPS_PER_TURN {
            tokio::task::yield_now().await;
            turn = 0;
        }
        turn += 1;
        finish(&engine);
    }
}

/// Starts a step; how long it takes in wall time.
fn start(engine: &Engine) -> Option<Duration> {
    let slow = engine.failure.lock().slow_factor;
    let mut guard = engine.inner.lock();
    let now = engine.now();
    let inner = &mut *guard;
    if inner.asleep.is_some() {
        return None;
    }
    let computes = inner.core.schedule(now, &mut inner.outcome);
    inner.note_batch();
    if !computes {
        return None;
    }
    let model = Duration::from_nanos(inner.outcome.duration);
    Some(
        Duration::try_from_secs_f64(model.as_secs_f64() * slow / engine.config.time_scale)
            .unwrap_or(Duration::MAX),
    )
}

/// Ends a step and wakes the answers that have new tokens.
fn finish(engine: &Engine) {
    let (wakers, events) = {
        let mut guard = engine.inner.lock();
        let now = engine.now();
        let inner = &mut *guard;
        inner.core.complete(now, &mut inner.outcome);
        inner.hand_out(now);
        let mut events = std::mem::take(&mut inner.held_back);
        events.append(&mut inner.outcome.events);
        (std::mem::take(&mut inner.wakers), events)
    };
    if let Some(sink) = engine.sink.as_ref().filter(|_| !events.is_empty()) {
        sink.publish(&events);
    }
    wakers.into_iter().for_each(std::task::Waker::wake);
}

impl Inner {
    /// Notes who joined and left the batch.
    fn note_batch(&mut self) {
        let (admitted, preempted) = (&self.outcome.admitted, &self.outcome.preempted);
        let moves = admitted
            .iter()
            .map(|id| (id, true))
            .chain(preempted.iter().map(|id| (id, false)));
        for (id, running) in moves {
            if let Some(live) = self.live.get_mut(id) {
                live.running = running;
                self.metrics.moved(live.adapter, running);
            }
        }
        self.metrics.note_adapters();
    }

    /// Hands the step's tokens to the answers.
    fn hand_out(&mut self, now: Nanos) {
        self.metrics.step(self.outcome.tokens);
        for produced in &self.outcome.produced {
            let Some(live) = self.live.get_mut(&produced.id) else {
                continue;
            };
            if produced.generated > 1 {
                self.metrics.inter_token(now - live.last_token);
            } else {
                self.metrics.first_token(now - live.last_token);
            }
            live.last_token = now;
            self.wakers
                .extend(live.ticket.update(live.choice, |progress| {
                    progress.generated = produced.generated;
                    progress.cached_tokens = produced.cached_tokens;
                }));
        }
        for finished in &self.outcome.finished {
            let Some(live) = self.live.remove(&finished.id) else {
                continue;
            };
            self.metrics.finished(finished, live.adapter, live.stops);
            self.wakers
                .extend(live.ticket.update(live.choice, |progress| {
                    progress.cached_tokens = finished.cached_tokens;
                    progress.finished = true;
                }));
        }
        self.metrics.note_adapters();
    }
}
