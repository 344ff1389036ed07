//! One request's life as a state machine: events in, commands out. No I/O, no clock, no queues.
//!
//! ```text
//!  RequestHeaders ─> RequestBody* ─> (RequestTrailers)        what the caller sends
//!        └──────────────┬───────────────┘
//!                      Ask ──────────────> Placed | Refused   the pool's answer
//!                       │
//!      Head, Body*, ContinueTrailers | Reply                  what goes on
//!                       │
//!  ResponseHeaders ─> ResponseBody* ─> (ResponseTrailers)     what the endpoint answers, relayed and observed
//!                       └─> FirstToken, Finish(once)
//! ```
//!
//! Both fronts move bytes only: they turn wire messages into [`Event`]s and [`Command`]s into wire messages.

mod event;
mod request;
mod response;

pub use event::{
    Ask, BodyMode, Command, Commands, Event, HeadDelta, Modes, Placement, RequestHead,
    ResponseHead, ResponseKind,
};
use request::Upload;
pub(crate) use request::content;
use response::Observed;
use wicketgate_pool::{Ended, admission};

use crate::outcome::Outcome;

/// Where the exchange stands on the request side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing seen yet.
    Start,
    /// The body is coming in.
    Upload,
    /// The pool was asked.
    Asked,
    /// The request goes on to an endpoint.
    Placed,
    /// We answered it ourselves, or it is over.
    Over,
}

/// Messages that a correct peer does not send, tolerated and counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Oddities {
    /// Body pieces after the end of the stream.
    pub second_end: u32,
    /// Events that do not fit the phase.
    pub out_of_phase: u32,
}

/// One request's life.
#[derive(Debug)]
pub struct Exchange {
    modes: Modes,
    limit: u64,
    phase: Phase,
    upload: Upload,
    observed: Observed,
    finished: bool,
    oddities: Oddities,
}

impl Exchange {
    /// A new exchange. Bodies longer than `limit` bytes are refused where they are held.
    pub fn new(modes: Modes, limit: u64) -> Self {
        Exchange {
            modes,
            limit,
            phase: Phase::Start,
            upload: Upload::default(),
            observed: Observed::default(),
            finished: false,
            oddities: Oddities::default(),
        }
    }

    /// True once [`Command::Finish`] was given out.
    pub fn finished(&self) -> bool {
        self.finished
    }

    /// True once the exchange needs nothing more from either side.
    pub fn over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// What was tolerated.
    pub fn oddities(&self) -> Oddities {
        self.oddities
    }

    /// Takes one event; appends what is to be done, in order.
    pub fn on(&mut self, event: Event, out: &mut Commands) {
        if self.phase == Phase::Over {
            self.after_the_end(&event);
            return;
        }
        match event {
            Event::RequestHeaders { head, end } => self.request_headers(head, end, out),
            Event::RequestBody { data, end } => self.request_body(data, end, out),
            Event::RequestTrailers => self.request_trailers(out),
            Event::Subset(subset) => self.upload.subset = Some(subset),
            Event::Placed(placement) => self.placed(placement, out),
            Event::Refused(outcome) => self.reply(&outcome, out),
            Event::ResponseHeaders { head, end } => self.response_headers(head, end, out),
            Event::ResponseBody { data, end } => self.response_body(data, end, out),
            Event::ResponseTrailers => self.response_trailers(out),
            Event::Evicted => self.evicted(out),
            Event::Broken(how) => self.finish(how, out),
        }
    }

    /// Our answer where none has begun; otherwise the proxy cuts the answer when it hears this one.
    fn evicted(&mut self, out: &mut Commands) {
        let why = admission::Outcome::EvictedRunning;
        out.push(Command::Reply(Outcome::Refused { why, wait: None }));
        self.finish(Ended::Evicted, out);
    }

    /// A late message must not revive a finished request; an extra end of stream is worth counting.
    fn after_the_end(&mut self, event: &Event) {
        match event {
            Event::RequestBody { .. } | Event::ResponseBody { .. } => self.oddities.second_end += 1,
            Event::RequestHeaders { .. }
            | Event::RequestTrailers
            | Event::Subset(_)
            | Event::Placed(_)
            | Event::Refused(_)
            | Event::ResponseHeaders { .. }
            | Event::ResponseTrailers
            | Event::Evicted
            | Event::Broken(_) => self.oddities.out_of_phase += 1,
        }
    }

    fn reply(&mut self, outcome: &Outcome, out: &mut Commands) {
        out.push(Command::Reply(outcome.clone()));
        self.finish(Ended::Dropped, out);
    }

    /// Ends the exchange; only the first end counts.
    fn finish(&mut self, how: Ended, out: &mut Commands) {
        self.phase = Phase::Over;
        if !std::mem::replace(&mut self.finished, true) {
            self.observed.close();
            out.push(Command::Finish {
                how,
                usage: self.observed.usage(),
            });
        }
    }
}

#[cfg(test)]
mod tests;
