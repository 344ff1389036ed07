//! The response side: relayed as it comes, read on the side.

use bytes::Bytes;
use wicketgate_pool::{Ended, Usage};
use wicketgate_wire::UsageObserver;

use super::{
    Exchange, Phase,
    event::{BodyMode, Command, Commands, ResponseHead, ResponseKind},
};

/// Most tokens that one report is believed to mean. No request has as many; sums over many must not overflow.
const MOST_TOKENS: u64 = 1 << 32;

/// What was read of the answer so far.
#[derive(Debug, Default)]
pub(super) struct Observed {
    status: u16,
    event_stream: bool,
    observer: Option<UsageObserver>,
    first_token: bool,
    headers: bool,
    closed: bool,
}

impl Observed {
    fn begin(&mut self, head: &ResponseHead) {
        self.headers = true;
        self.status = head.status;
        self.event_stream = head.kind == ResponseKind::EventStream;
        self.observer = match head.kind {
            ResponseKind::EventStream => Some(UsageObserver::sse()),
            ResponseKind::Json => Some(UsageObserver::json()),
            ResponseKind::Other => None,
        };
    }

    /// Reads a piece; true when it brought the first token.
    fn read(&mut self, data: &Bytes) -> bool {
        if let Some(observer) = self.observer.as_mut() {
            observer.feed(data);
        }
        if self.first_token || data.is_empty() {
            return false;
        }
        let observer = self.observer.as_ref();
        self.first_token = !self.event_stream || observer.is_none_or(UsageObserver::first_content);
        self.first_token
    }

    pub(super) fn close(&mut self) {
        if !std::mem::replace(&mut self.closed, true)
            && let Some(observer) = self.observer.as_mut()
        {
            observer.finish();
        }
    }

    pub(super) fn usage(&self) -> Option<Usage> {
        let usage = self.observer.as_ref()?.usage();
        let bounded = |tokens: Option<u64>| tokens.map(|tokens| tokens.min(MOST_TOKENS));
        let usage = Usage {
            prompt_tokens: bounded(usage.prompt_tokens),
            completion_tokens: bounded(usage.completion_tokens),
            cached_tokens: bounded(usage.cached_tokens),
        };
        (usage != Usage::default()).then_some(usage)
    }
}

impl Exchange {
    pub(super) fn response_headers(&mut self, head: ResponseHead, end: bool, out: &mut Commands) {
        if self.observed.headers {
            self.oddities.out_of_phase += 1;
            return;
        }
        self.observed.begin(&head);
        if let Some(served) = head.served {
            out.push(Command::Served(served));
        }
        out.push(Command::ResponseHead(self.upload.session.take()));
        if end {
            self.complete(out);
        } else if self.modes.response == BodyMode::None {
            self.finish(Ended::Unobserved, out);
        }
    }

    pub(super) fn response_body(&mut self, data: Bytes, end: bool, out: &mut Commands) {
        if self.observed.read(&data) {
            out.push(Command::FirstToken);
        }
        out.push(match self.modes.response {
            BodyMode::FullDuplex => Command::ResponseBody { data, end },
            BodyMode::None
            | BodyMode::Streamed
            | BodyMode::Buffered
            | BodyMode::BufferedPartial => Command::ContinueResponseBody,
        });
        if end {
            self.complete(out);
        }
    }

    pub(super) fn response_trailers(&mut self, out: &mut Commands) {
        out.push(Command::ContinueResponseTrailers);
        self.complete(out);
    }

    fn complete(&mut self, out: &mut Commands) {
        // An answer to a request that never was placed is the proxy's own; nothing was dispatched.
        let placed = self.phase == Phase::Placed;
        let how = Ended::Complete(self.observed.status);
        self.finish(if placed { how } else { Ended::Dropped }, out);
    }
}
