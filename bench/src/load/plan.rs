//! What is sent when: seeded, so two runs offer the same load.

use std::time::Duration;

use bytes::Bytes;

use super::{
    chats::{Chats, count, push},
    spec::{Arrivals, LoadSpec, SpecError},
};
use crate::text::words;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Its place in the run, from 0.
    pub index: u64,
    /// When it is sent, from the start of the run.
    pub at: Duration,
    /// The body.
    pub body: Bytes,
    /// It asks for a stream.
    pub stream: bool,
    /// When its caller hangs up, from `at`.
    pub cancel: Option<Duration>,
}

/// The requests of a run, by time; made as they are asked for.
pub struct Plan {
    spec: LoadSpec,
    /// Times have a stream of their own: other texts do not move them.
    times: fastrand::Rng,
    texts: fastrand::Rng,
    chats: Chats,
    model: String,
    next: u64,
    at: Duration,
}

/// The plan of a spec.
///
/// # Errors
/// When the spec makes no sense.
pub fn plan(spec: &LoadSpec) -> Result<Plan, SpecError> {
    spec.check()?;
    let mut texts = fastrand::Rng::with_seed(spec.seed);
    Ok(Plan {
        times: texts.fork(),
        chats: Chats::new(spec, &mut texts),
        texts,
        model: serde_json::Value::from(spec.model.as_str()).to_string(),
        next: 0,
        at: Duration::ZERO,
        spec: spec.clone(),
    })
}

impl Plan {
    /// The time of the next request, or nothing when the run is over.
    fn due(&mut self) -> Option<Duration> {
        let mean = 1.0 / self.spec.rate;
        let at = match self.spec.arrivals {
            // From the count, not by adding up: rounding must not move the rate.
            Arrivals::Even => Duration::from_secs_f64(crate::measure::number(self.next) * mean),
            // The inverse of the exponential distribution; 1 - u is never 0.
            Arrivals::Poisson => {
                let gap = -(1.0 - self.times.f64()).ln() * mean;
                self.at + Duration::from_secs_f64(gap)
            }
            // Whenever there is room; the run knows when it is over.
            Arrivals::Closed => Duration::ZERO,
        };
        self.at = at;
        (at < self.spec.duration).then_some(at)
    }

    fn messages(&mut self, at: Duration) -> String {
        if self.texts.f64() >= self.spec.long_share {
            return self.chats.next(&self.spec, at, &mut self.texts);
        }
        let length = count(&mut self.texts, self.spec.long_words);
        let mut messages = String::new();
        push(&mut messages, "user", &words(&mut self.texts, length));
        messages
    }
}

impl Iterator for Plan {
    type Item = Planned;

    fn next(&mut self) -> Option<Planned> {
        let at = self.due()?;
        let messages = self.messages(at);
        let (spec, rng) = (&self.spec, &mut self.texts);
        let max_tokens = rng.u32(spec.output.0..=spec.output.1);
        let stream = rng.f64() < spec.stream_share;
        let options = if stream {
            r#","stream":true,"stream_options":{"include_usage":true}"#
        } else {
            ""
        };
        let cancel = (rng.f64() < spec.cancel_share).then(|| {
            let (from, to) = spec.cancel_after;
            from + (to - from).mul_f64(rng.f64())
        });
        let model = &self.model;
        let body = format!(
            r#"{{"model":{model},"messages":[{messages}],"max_tokens":{max_tokens}{options}}}"#
        );
        let index = self.next;
        self.next += 1;
        Some(Planned {
            index,
            at,
            body: Bytes::from(body),
            stream,
            cancel,
        })
    }
}
