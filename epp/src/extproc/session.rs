//! One ext_proc stream: messages in, answers out, and the guards of the request it carries.
//!
//! The stream is polled by the gRPC server itself: no task and no channel stand between Envoy's message and
//! our answer. It ends with an error status on a fault of ours: a clean close would make Envoy go on without
//! the body.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_core::Stream;
use tokio::time::Sleep;
use tonic::{Status, Streaming};
use wicketgate_pool::{Ended, Usage, scheduler::Nanos};
use wicketgate_wire::Api;

use super::{
    proto::{Phase, ProcessingRequest, ProcessingResponse},
    translate,
};
use crate::{
    exchange::{Ask, Command, Commands, Event, Exchange},
    metrics::OddityLabels,
    outcome::Outcome,
    pipeline::{Pipeline, Prepared, Preparing, Settings, placement},
    shell::{Arrival, InFlight, PoolShell, Verdict, Waiting},
};

/// One ext_proc stream.
pub(super) struct Session {
    inbound: Streaming<ProcessingRequest>,
    /// Answers not yet taken by the gRPC server; at most one message's worth.
    answers: VecDeque<ProcessingResponse>,
    request: Carried,
    /// The peer's side is over, or ours must end.
    closed: bool,
}

/// The request that a stream carries.
struct Carried {
    pipeline: Arc<Pipeline>,
    settings: Arc<Settings>,
    arrived: Nanos,
    exchange: Option<Exchange>,
    has_subset: bool,
    api: Api,
    pool: Arc<str>,
    /// Its prompt is being looked at.
    preparing: Option<Preparing>,
    /// In the queue, with the deadline of the decision.
    waiting: Option<(Waiting, Pin<Box<Sleep>>)>,
    guard: Option<InFlight>,
    /// The first choice, to compare with who really served.
    chosen: Option<(Arc<PoolShell>, Box<str>)>,
    silent: bool,
    outcome: Option<&'static str>,
}

impl Session {
    pub(super) fn new(inbound: Streaming<ProcessingRequest>, pipeline: Arc<Pipeline>) -> Self {
        pipeline.metrics.streams.inc();
        Session {
            inbound,
            answers: VecDeque::with_capacity(4),
            request: Carried {
                settings: pipeline.settings(),
                arrived: pipeline.clock().now(),
                pipeline,
                exchange: None,
                has_subset: false,
                api: Api::Unknown,
                pool: Arc::from(""),
                preparing: None,
                waiting: None,
                guard: None,
                chosen: None,
                silent: false,
                outcome: None,
            },
            closed: false,
        }
    }

    /// Runs `act` on the request; a panic ends this stream with an error, and only this one.
    fn guarded(
        &mut self,
        act: impl FnOnce(&mut Carried, &mut VecDeque<ProcessingResponse>),
    ) -> bool {
        let (request, answers) = (&mut self.request, &mut self.answers);
        let caught = catch_unwind(AssertUnwindSafe(|| act(request, answers)));
        if caught.is_err() {
            tracing::error!("a stream's handler panicked; the stream ends with an error");
            request.preparing = None;
            request.waiting = None;
            request.guard = None;
            self.closed = true;
        }
        caught.is_ok()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Envoy resets a stream both when all is done and when the caller is gone.
        self.request.gone();
        self.request.pipeline.metrics.streams.dec();
    }
}

impl Stream for Session {
    type Item = Result<ProcessingResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(answer) = this.answers.pop_front() {
                return Poll::Ready(Some(Ok(answer)));
            }
            if this.closed {
                return Poll::Ready(None);
            }
            if let Poll::Ready(ask) = this.request.poll_prepared(context) {
                if !this.guarded(|request, answers| request.put(ask, answers)) {
                    return Poll::Ready(Some(Err(Status::internal("handler failed"))));
                }
                continue;
            }
            if let Poll::Ready(verdict) = this.request.poll_verdict(context) {
                if !this.guarded(|request, answers| request.on_verdict(verdict, answers)) {
                    return Poll::Ready(Some(Err(Status::internal("handler failed"))));
                }
                continue;
            }
            if this.request.poll_evicted(context).is_ready() {
                if !this.guarded(|request, answers| request.on(Event::Evicted, answers)) {
                    return Poll::Ready(Some(Err(Status::internal("handler failed"))));
                }
                continue;
            }
            match Pin::new(&mut this.inbound).poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(message))) => {
                    if !this.guarded(|request, answers| request.on_message(message, answers)) {
                        return Poll::Ready(Some(Err(Status::internal("handler failed"))));
                    }
                }
                // Before the answer's end: the caller, or the endpoint, is gone. After it: the proxy is done, and
                // only now are we. A side that ended first would make each of the proxy's last frames a frame on
                // a closed stream, and HTTP/2 cuts a connection with too many of those.
                Poll::Ready(None) => {
                    this.request.gone();
                    this.closed = true;
                }
                // A reset, or a message that cannot be read: to end clean would tell the proxy to go on without us,
                // and without the body that we hold.
                Poll::Ready(Some(Err(status))) => {
                    let over = this.request.over();
                    this.request.gone();
                    this.closed = true;
                    if !over {
                        return Poll::Ready(Some(Err(status)));
                    }
                }
            }
        }
    }
}

/// What came of waiting for the pool.
#[expect(
    clippy::large_enum_variant,
    reason = "made and taken apart at once, never stored"
)]
enum Decided {
    Verdict(Verdict),
    TimedOut,
}

impl Carried {
    /// All is said.
    fn over(&self) -> bool {
        self.exchange.as_ref().is_some_and(Exchange::over)
    }

    /// The other side is gone. Nothing happens if the request had ended.
    fn gone(&mut self) {
        self.preparing = None;
        self.waiting = None;
        if self
            .exchange
            .as_ref()
            .is_some_and(|exchange| !exchange.finished())
        {
            let mut dropped = VecDeque::new();
            self.on(Event::Broken(Ended::ClientGone), &mut dropped);
        }
    }

    fn poll_prepared(&mut self, context: &mut Context<'_>) -> Poll<Ask> {
        let Some(preparing) = self.preparing.as_mut() else {
            return Poll::Pending;
        };
        let prepared = preparing.as_mut().poll(context);
        if prepared.is_ready() {
            self.preparing = None;
        }
        prepared
    }

    fn poll_verdict(&mut self, context: &mut Context<'_>) -> Poll<Decided> {
        let Some((waiting, deadline)) = self.waiting.as_mut() else {
            return Poll::Pending;
        };
        if let Poll::Ready(verdict) = Pin::new(waiting).poll(context) {
            self.waiting = None;
            return Poll::Ready(Decided::Verdict(verdict));
        }
        if deadline.as_mut().poll(context).is_ready() {
            self.waiting = None;
            return Poll::Ready(Decided::TimedOut);
        }
        Poll::Pending
    }

    fn poll_evicted(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self.guard.as_mut() {
            Some(guard) => guard.poll_evicted(context),
            None => Poll::Pending,
        }
    }

    fn on_verdict(&mut self, decided: Decided, answers: &mut VecDeque<ProcessingResponse>) {
        match decided {
            Decided::Verdict(verdict) => self.on_placed(verdict, answers),
            Decided::TimedOut => self.on(Event::Refused(Outcome::DecisionTimeout), answers),
        }
    }

    fn on_message(
        &mut self,
        message: ProcessingRequest,
        answers: &mut VecDeque<ProcessingResponse>,
    ) {
        if self.exchange.is_none() {
            let modes = translate::modes(message.protocol_config);
            self.exchange = Some(Exchange::new(modes, self.settings.max_body));
            self.silent = message.observability_mode;
        }
        let Some(phase) = message.phase else {
            return self.odd("empty_message");
        };
        let metadata = message.metadata_context;
        let asks = match &phase {
            Phase::RequestHeaders(_) | Phase::RequestTrailers(_) => true,
            Phase::RequestBody(body) => body.end_of_stream,
            Phase::ResponseHeaders(_) | Phase::ResponseBody(_) | Phase::ResponseTrailers(_) => {
                false
            }
        };
        if asks
            && !self.has_subset
            && let Some(subset) = translate::subset(&metadata)
        {
            self.has_subset = true;
            self.on(Event::Subset(subset), answers);
        }
        let event = match phase {
            Phase::RequestHeaders(headers) => {
                let head = translate::request_head(headers.headers.as_ref(), &self.settings);
                // What is known of a request that is refused before it is asked for.
                if self.waiting.is_none() && self.guard.is_none() {
                    self.api = Api::from_path(&head.path);
                    self.pool = self.pipeline.only_pool();
                }
                let end = headers.end_of_stream;
                Event::RequestHeaders { head, end }
            }
            Phase::RequestBody(body) => Event::RequestBody {
                data: body.body,
                end: body.end_of_stream,
            },
            Phase::RequestTrailers(_) => Event::RequestTrailers,
            Phase::ResponseHeaders(headers) => Event::ResponseHeaders {
                head: translate::response_head(headers.headers.as_ref(), &metadata),
                end: headers.end_of_stream,
            },
            Phase::ResponseBody(body) => Event::ResponseBody {
                data: body.body,
                end: body.end_of_stream,
            },
            Phase::ResponseTrailers(_) => Event::ResponseTrailers,
        };
        self.on(event, answers);
    }

    fn on(&mut self, event: Event, answers: &mut VecDeque<ProcessingResponse>) {
        let Some(exchange) = self.exchange.as_mut() else {
            return;
        };
        let before = exchange.oddities();
        let mut commands = Commands::new();
        exchange.on(event, &mut commands);
        let after = exchange.oddities();
        if after.second_end > before.second_end {
            self.odd("second_end_of_stream");
        }
        if after.out_of_phase > before.out_of_phase {
            self.odd("out_of_phase");
        }
        for command in commands {
            self.carry_out(command, answers);
        }
    }

    fn carry_out(&mut self, command: Command, answers: &mut VecDeque<ProcessingResponse>) {
        match command {
            Command::Ask(ask) => return self.ask(*ask, answers),
            Command::Served(address) => return self.served(&address),
            Command::FirstToken => {
                let metrics = &self.pipeline.metrics;
                metrics.ttft.observe(self.since_arrival());
                if let Some(guard) = &self.guard {
                    guard.first_token();
                }
                return;
            }
            Command::Finish { how, usage } => return self.finish(how, usage),
            Command::Reply(ref outcome) => self.outcome = Some(outcome.reason()),
            Command::ContinueHead
            | Command::Head(_)
            | Command::BodyWithHead(_)
            | Command::Body { .. }
            | Command::ContinueBody
            | Command::ContinueTrailers
            | Command::ResponseHead(_)
            | Command::ResponseBody { .. }
            | Command::ContinueResponseBody
            | Command::ContinueResponseTrailers => {}
        }
        // In observability mode Envoy goes on by itself and refuses answers.
        if !self.silent
            && let Some(answer) = translate::answer(command)
        {
            answers.push_back(answer);
        }
    }

    fn ask(&mut self, ask: Ask, answers: &mut VecDeque<ProcessingResponse>) {
        self.api = ask.api;
        if self.silent {
            return;
        }
        match self.pipeline.prepare(ask) {
            Prepared::Now(ask) => self.put(ask, answers),
            Prepared::Later(preparing) => self.preparing = Some(preparing),
        }
    }

    /// Puts the question to the pool.
    fn put(&mut self, ask: Ask, answers: &mut VecDeque<ProcessingResponse>) {
        match self.pipeline.ask(ask, self.arrived, &self.settings) {
            Err(outcome) => self.on(Event::Refused(outcome), answers),
            Ok(asked) => {
                self.pool = asked.pool;
                match asked.arrival {
                    Arrival::Now(verdict) => self.on_placed(verdict, answers),
                    Arrival::Later(waiting) => {
                        let limit = self.settings.decision_timeout;
                        self.waiting = Some((waiting, Box::pin(tokio::time::sleep(limit))));
                    }
                }
            }
        }
    }

    fn on_placed(&mut self, verdict: Verdict, answers: &mut VecDeque<ProcessingResponse>) {
        self.pipeline.metrics.decision.observe(self.since_arrival());
        match verdict {
            Verdict::Refused { why, wait } => {
                self.on(Event::Refused(Outcome::Refused { why, wait }), answers);
            }
            Verdict::Dispatched(decision, guard) => {
                self.pipeline.metrics.waited(guard.waited());
                let Some(first) = decision.targets.first() else {
                    return self.on(Event::Refused(Outcome::Internal), answers);
                };
                let shell = Arc::clone(guard.shell());
                let placement = placement(&decision, first.id, &shell, &self.settings);
                self.chosen = Some((shell, first.address.as_ref().into()));
                self.guard = Some(guard);
                self.on(Event::Placed(placement), answers);
            }
        }
    }

    /// Moves the counts to whoever really served. The proxy does not say why the first choice did not.
    fn served(&mut self, address: &str) {
        let (Some(guard), Some((shell, chosen))) = (&self.guard, &self.chosen) else {
            return;
        };
        if chosen.as_ref() == address {
            return;
        }
        self.pipeline.metrics.served_elsewhere.inc();
        if let Some(missed) = shell.at_address(chosen) {
            guard.failed(missed, false);
        }
        match shell.at_address(address) {
            Some(by) => guard.served(by),
            None => self.odd("served_unknown_endpoint"),
        }
    }

    fn finish(&mut self, how: Ended, usage: Option<Usage>) {
        let metrics = &self.pipeline.metrics;
        metrics.duration.observe(self.since_arrival());
        if let Some(usage) = &usage {
            metrics.usage(usage);
        }
        match self.outcome {
            Some(reason) => metrics.count(self.api, &self.pool, reason),
            None => metrics.ended(self.api, &self.pool, how),
        }
        if self.settings.access_log {
            let ms = self.since_arrival() * 1e3;
            let chosen = self.chosen.as_ref().map(|(_, address)| address.as_ref());
            tracing::info!(api = self.api.as_str(), pool = %self.pool, chosen, ?how, outcome = self.outcome, ms, "request");
        }
        if let Some(guard) = self.guard.take() {
            guard.end(how, usage);
        }
    }

    /// Seconds since the stream began.
    fn since_arrival(&self) -> f64 {
        let elapsed = self.pipeline.clock().now().saturating_sub(self.arrived);
        std::time::Duration::from_nanos(elapsed).as_secs_f64()
    }

    fn odd(&self, kind: &'static str) {
        let oddities = &self.pipeline.metrics.oddities;
        oddities.get_or_create(&OddityLabels { kind }).inc();
    }
}

#[cfg(test)]
mod tests;
