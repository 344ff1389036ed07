//! One request through the HTTP front: read, ask, try the list, answer.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, header};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use wicketgate_pool::{
    Ended, admission,
    scheduler::{Decision, Incarnation, Nanos},
};
use wicketgate_wire::Api;

use super::{
    head,
    relay::{Relay, RelayBody},
    upstream::{Failure, HeldBody, UpstreamPolicy, Upstreams, changes_nothing},
};
use crate::{
    exchange::{Ask, BodyMode, Command, Commands, Event, Exchange, Modes, Placement},
    headers,
    outcome::{DROP_REASON_HEADER, Outcome},
    pipeline::{Pipeline, Prepared, Settings, placement},
    shell::{Arrival, InFlight, Verdict},
};

/// Everything that a request's handling shares with others.
pub(super) struct Front {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) upstreams: Arc<Upstreams>,
    pub(super) policy: UpstreamPolicy,
    /// Tell the caller which endpoint served, in `x-wicketgate-served-by`.
    pub(super) expose_served_by: bool,
}

/// A request's walk: its exchange and what it holds.
pub(super) struct Walk {
    pub(super) exchange: Exchange,
    pipeline: Arc<Pipeline>,
    settings: Arc<Settings>,
    arrived: Nanos,
    api: Api,
    pool: Arc<str>,
    guard: Option<InFlight>,
    served_by: Option<Arc<str>>,
    outcome: Option<&'static str>,
}

impl Walk {
    fn new(pipeline: &Arc<Pipeline>, settings: &Arc<Settings>, path: &str) -> Self {
        // The front itself is a full-duplex proxy: it holds the body and answers piece by piece.
        let modes = Modes {
            request: BodyMode::FullDuplex,
            response: BodyMode::FullDuplex,
        };
        Walk {
            exchange: Exchange::new(modes, settings.max_body),
            pipeline: Arc::clone(pipeline),
            settings: Arc::clone(settings),
            arrived: pipeline.clock().now(),
            api: Api::from_path(path),
            pool: pipeline.only_pool(),
            guard: None,
            served_by: None,
            outcome: None,
        }
    }

    pub(super) fn on(&mut self, event: Event) -> Commands {
        let mut commands = Commands::new();
        self.exchange.on(event, &mut commands);
        commands
    }

    /// The commands that are the same wherever they come up.
    pub(super) fn carry_out(&mut self, command: Command) {
        match command {
            Command::FirstToken => {
                self.pipeline.metrics.ttft.observe(self.seconds());
                if let Some(guard) = &self.guard {
                    guard.first_token();
                }
            }
            Command::Finish { how, usage } => {
                let metrics = &self.pipeline.metrics;
                metrics.duration.observe(self.seconds());
                if let Some(usage) = &usage {
                    metrics.usage(usage);
                }
                match self.outcome {
                    Some(reason) => metrics.count(self.api, &self.pool, reason),
                    None => metrics.ended(self.api, &self.pool, how),
                }
                self.log(how);
                if let Some(guard) = self.guard.take() {
                    guard.end(how, usage);
                }
            }
            // These belong to the place where their event was raised.
            Command::Ask(_)
            | Command::ContinueHead
            | Command::Head(_)
            | Command::BodyWithHead(_)
            | Command::Body { .. }
            | Command::ContinueBody
            | Command::ContinueTrailers
            | Command::Reply(_)
            | Command::Served(_)
            | Command::ResponseHead(_)
            | Command::ResponseBody { .. }
            | Command::ContinueResponseBody
            | Command::ContinueResponseTrailers => {}
        }
    }

    /// Ready when the pool takes the request's place back.
    pub(super) fn poll_evicted(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self.guard.as_mut() {
            Some(guard) => guard.poll_evicted(context),
            None => Poll::Pending,
        }
    }

    /// The placement of a decision that this endpoint carries out.
    fn placement(&self, decision: &Decision, serves: Incarnation) -> Placement {
        match &self.guard {
            Some(guard) => placement(decision, serves, guard.shell(), &self.settings),
            None => Placement {
                destination: crate::pipeline::destination(decision),
                session: None,
            },
        }
    }

    fn log(&self, how: Ended) {
        if self.settings.access_log {
            let (ms, api) = (self.seconds() * 1e3, self.api.as_str());
            let served_by = self.served_by.as_deref();
            tracing::info!(api, pool = %self.pool, served_by, ?how, outcome = self.outcome, ms, "request");
        }
    }

    fn seconds(&self) -> f64 {
        let elapsed = self.pipeline.clock().now().saturating_sub(self.arrived);
        Duration::from_nanos(elapsed).as_secs_f64()
    }

    /// Ends the walk with an answer of our own.
    fn refuse(&mut self, outcome: &Outcome, request_id: &HeaderValue) -> Response<RelayBody> {
        self.outcome = Some(outcome.reason());
        let event = match outcome {
            Outcome::Refused { why, .. } if *why == admission::Outcome::EvictedRunning => {
                Event::Evicted
            }
            _ => Event::Refused(outcome.clone()),
        };
        for command in self.on(event) {
            self.carry_out(command);
        }
        own_answer(outcome, request_id)
    }
}

impl Drop for Walk {
    /// The caller is gone: the server dropped the request or its answer before the end.
    fn drop(&mut self) {
        if !self.exchange.finished() {
            for command in self.on(Event::Broken(Ended::ClientGone)) {
                self.carry_out(command);
            }
        }
    }
}

/// An answer of our own: OpenAI-shaped JSON, why, and when to come back.
pub(super) fn own_answer(outcome: &Outcome, request_id: &HeaderValue) -> Response<RelayBody> {
    let reply = outcome.reply();
    let mut response = Response::new(RelayBody::Whole(Some(reply.body)));
    *response.status_mut() =
        http::StatusCode::from_u16(reply.status).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    let map = response.headers_mut();
    map.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    map.insert(headers::REQUEST_ID, request_id.clone());
    if let Some(seconds) = reply.retry_after {
        map.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if let Some(reason) = reply.drop_reason {
        map.insert(DROP_REASON_HEADER, HeaderValue::from_static(reason));
    }
    response
}

/// What goes to an endpoint, whichever it is.
struct Outbound {
    method: Method,
    target: http::uri::PathAndQuery,
    headers: HeaderMap,
    body: HeldBody,
    has_length: bool,
}

impl Outbound {
    fn to(&self, address: &str) -> Result<Request<HeldBody>, Outcome> {
        let bad = |_| Outcome::Internal;
        let mut request = Request::new(self.body.clone());
        *request.method_mut() = self.method.clone();
        // HTTP/1.1 has the path alone on its request line.
        *request.uri_mut() = http::Uri::from(self.target.clone());
        *request.headers_mut() = self.headers.clone();
        let map = request.headers_mut();
        map.insert(header::HOST, HeaderValue::from_str(address).map_err(bad)?);
        match &self.body.trailers {
            Some(trailers) => {
                let names: Vec<&str> = trailers.keys().map(|name| name.as_str()).collect();
                let names = HeaderValue::from_str(&names.join(", ")).map_err(bad)?;
                map.insert(header::TRAILER, names);
                map.insert(
                    header::TRANSFER_ENCODING,
                    HeaderValue::from_static("chunked"),
                );
            }
            None if self.has_length => {
                let length = HeaderValue::from(self.body.bytes.len());
                map.insert(header::CONTENT_LENGTH, length);
            }
            None => {}
        }
        Ok(request)
    }
}

impl Front {
    /// Handles one request. Dropping the future, or the answer's body, ends it everywhere.
    ///
    /// `ambiguous`: it says in two ways how long it is, which its headers show no more.
    pub(super) async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
        ambiguous: bool,
    ) -> Response<RelayBody> {
        let settings = self.pipeline.settings();
        let (parts, incoming) = request.into_parts();
        let mut walk = Walk::new(&self.pipeline, &settings, parts.uri.path());
        let request_id = head::request_id(&parts.headers);
        // A caller that asked leave to send its body has not sent it: there is nothing to read away.
        let sending = !parts.headers.contains_key(header::EXPECT);
        if ambiguous {
            // What follows on this connection is whatever the other reading would make of it.
            let outcome =
                Outcome::BadRequest("A request cannot have a length and a transfer coding.");
            return last_word(walk.refuse(&outcome, &request_id));
        }
        if let Some(outcome) = head::unsupported(&parts) {
            read_away(incoming, sending);
            return walk.refuse(&outcome, &request_id);
        }
        let request_head = head::request_head(&parts, &settings);
        let forged = request_head.forged.clone();
        let mut incoming = incoming;
        let until = tokio::time::Instant::now() + self.policy.total_timeout;
        let (ask, body) = match read(&mut walk, request_head, &mut incoming, until).await {
            Ok(read) => read,
            Err(outcome) => {
                read_away(incoming, sending);
                let answer = walk.refuse(&outcome, &request_id);
                let late = outcome == Outcome::BodyTimeout && parts.version < http::Version::HTTP_2;
                return if late { last_word(answer) } else { answer };
            }
        };
        let target = parts.uri.path_and_query().cloned();
        let has_length =
            !body.bytes.is_empty() || parts.headers.contains_key(header::CONTENT_LENGTH);
        let mut outbound = Outbound {
            has_length: has_length || matches!(parts.method, Method::POST | Method::PUT),
            method: parts.method,
            target: target.unwrap_or_else(|| http::uri::PathAndQuery::from_static("/")),
            headers: head::to_upstream(parts.headers, &forged, &request_id),
            body,
        };
        if let Some(authorization) = &self.policy.authorization {
            outbound
                .headers
                .insert(header::AUTHORIZATION, authorization.clone());
        }
        match self.forward(&mut walk, *ask, &outbound).await {
            Ok(answered) => self.answer(walk, answered, &request_id),
            Err(outcome) => walk.refuse(&outcome, &request_id),
        }
    }

    /// Rounds of asking the pool and walking down its list, while nothing has reached the caller.
    async fn forward(
        &self,
        walk: &mut Walk,
        ask: Ask,
        outbound: &Outbound,
    ) -> Result<Answered, Outcome> {
        let deadline = tokio::time::Instant::now() + self.policy.total_timeout;
        let mut pauses = self.policy.retry_backoff.iter();
        let ask = match self.pipeline.prepare(ask) {
            Prepared::Now(ask) => ask,
            Prepared::Later(preparing) => {
                let limit = walk.settings.decision_timeout;
                let prepared = tokio::time::timeout(limit, preparing).await;
                prepared.map_err(|_| Outcome::DecisionTimeout)?
            }
        };
        let mut ask = ask;
        loop {
            let decision = self.place(walk, ask.clone(), deadline).await?;
            if let (Some(ttl), Some(guard)) = (&mut ask.context.ttl, &walk.guard) {
                // The caller's patience is for all rounds together.
                *ttl = ttl.saturating_sub(guard.waited());
            }
            let failure = match self.walk_down(walk, &decision, outbound, deadline).await {
                Ok(answered) => return Ok(answered),
                Err(failure) => failure,
            };
            let Some(pause) = pauses.next().filter(|_| failure.0) else {
                return Err(failure.1);
            };
            // A new round is a new question: the pool has learned what failed.
            if let Some(guard) = walk.guard.take() {
                guard.end(Ended::Unobserved, None);
            }
            tokio::time::sleep(*pause).await;
        }
    }

    /// Asks the pool for a place, at most until the end of the request's whole time.
    async fn place(
        &self,
        walk: &mut Walk,
        ask: Ask,
        deadline: tokio::time::Instant,
    ) -> Result<Decision, Outcome> {
        walk.api = ask.api;
        let asked = self.pipeline.ask(ask, walk.arrived, &walk.settings)?;
        walk.pool = asked.pool;
        let verdict = match asked.arrival {
            Arrival::Now(verdict) => verdict,
            Arrival::Later(waiting) => {
                let limit = tokio::time::Instant::now() + walk.settings.decision_timeout;
                let decided = tokio::time::timeout_at(limit.min(deadline), waiting).await;
                decided.map_err(|_| Outcome::DecisionTimeout)?
            }
        };
        self.pipeline.metrics.decision.observe(walk.seconds());
        match verdict {
            Verdict::Refused { why, wait } => Err(Outcome::Refused { why, wait }),
            Verdict::Dispatched(decision, guard) => {
                self.pipeline.metrics.waited(guard.waited());
                walk.guard = Some(guard);
                Ok(decision)
            }
        }
    }

    /// Tries the list in order. The error says whether another round is safe.
    async fn walk_down(
        &self,
        walk: &mut Walk,
        decision: &Decision,
        outbound: &Outbound,
        deadline: tokio::time::Instant,
    ) -> Result<Answered, (bool, Outcome)> {
        let mut last = (false, Outcome::Internal);
        for (index, target) in decision.targets.iter().enumerate() {
            if index > 0 {
                self.pipeline.metrics.retries.inc();
                if let Some(guard) = &walk.guard {
                    guard.served(target.id);
                }
            }
            let request = outbound
                .to(&target.address)
                .map_err(|outcome| (false, outcome))?;
            let sent = self.upstreams.send(&target.address, &self.policy, request);
            let sent = tokio::select! {
                biased;
                () = std::future::poll_fn(|context| walk.poll_evicted(context)) => {
                    let why = admission::Outcome::EvictedRunning;
                    return Err((false, Outcome::Refused { why, wait: None }));
                }
                sent = tokio::time::timeout_at(deadline, sent) => sent,
            };
            let sent = sent.unwrap_or(Err(Failure::FirstByteTimeout));
            let sent = sent.and_then(|(response, link)| {
                let (mut parts, incoming) = response.into_parts();
                head::check_answer(&mut parts).map_err(Failure::BadAnswer)?;
                Ok((Response::from_parts(parts, incoming), link))
            });
            match sent {
                Ok((response, link)) => {
                    let more = index + 1 < decision.targets.len();
                    // A full queue refused the request: nothing was begun, and another may have room.
                    if response.status() == http::StatusCode::SERVICE_UNAVAILABLE && more {
                        continue;
                    }
                    return Ok(Answered {
                        response,
                        link,
                        address: Arc::clone(&target.address),
                        placement: walk.placement(decision, target.id),
                        deadline,
                    });
                }
                Err(failure) => {
                    if let Some(certain) = failure.fault()
                        && let Some(guard) = &walk.guard
                    {
                        guard.failed(target.id, certain);
                    }
                    tracing::debug!(address = %target.address, %failure, "endpoint failed");
                    let again = failure.safe_to_retry(changes_nothing(&outbound.method));
                    last = (again, outcome_of(&failure));
                    if !last.0 {
                        break;
                    }
                }
            }
        }
        Err(last)
    }

    /// Turns an endpoint's answer into ours.
    fn answer(
        &self,
        mut walk: Walk,
        answered: Answered,
        request_id: &HeaderValue,
    ) -> Response<RelayBody> {
        let (mut parts, incoming) = answered.response.into_parts();
        // The held body lies with the tries, not with the exchange: its own copy is dropped here.
        walk.on(Event::Placed(answered.placement));
        walk.served_by = Some(Arc::clone(&answered.address));
        let end = incoming.is_end_stream();
        let head = head::response_head(&parts);
        head::to_caller(&mut parts.headers, request_id);
        for command in walk.on(Event::ResponseHeaders { head, end }) {
            if let Command::ResponseHead(Some((name, token))) = &command
                && let Ok(name) = http::HeaderName::from_bytes(name.as_bytes())
                && let Ok(token) = HeaderValue::from_maybe_shared(token.clone())
            {
                parts.headers.insert(name, token);
            }
            walk.carry_out(command);
        }
        if self.expose_served_by
            && let Ok(address) = HeaderValue::from_str(&answered.address)
        {
            parts.headers.insert("x-wicketgate-served-by", address);
        }
        if end {
            self.upstreams.put(&answered.address, answered.link);
            return Response::from_parts(parts, RelayBody::Whole(None));
        }
        let relay = Relay::new(
            incoming,
            walk,
            answered.link,
            answered.address,
            Arc::clone(&self.upstreams),
            answered.deadline,
        );
        Response::from_parts(parts, RelayBody::Relay(relay))
    }
}

/// An endpoint's answer, its body still to come.
struct Answered {
    response: Response<Incoming>,
    link: super::upstream::Link,
    address: Arc<str>,
    placement: Placement,
    deadline: tokio::time::Instant,
}

/// Ends an HTTP/1 connection after this answer.
fn last_word(mut answer: Response<RelayBody>) -> Response<RelayBody> {
    let close = HeaderValue::from_static("close");
    answer.headers_mut().insert(header::CONNECTION, close);
    answer
}

fn outcome_of(failure: &Failure) -> Outcome {
    match failure {
        Failure::Connect(_) | Failure::ConnectTimeout | Failure::NotSent => {
            Outcome::UpstreamUnreachable
        }
        Failure::Broken(_) | Failure::Stale(_) | Failure::BadAnswer(_) => Outcome::UpstreamBroken,
        Failure::FirstByteTimeout => Outcome::UpstreamTimeout,
    }
}

/// Most that is read away of a refused body, and for how long.
const READ_AWAY_BYTES: usize = 64 << 20;
const READ_AWAY_TIME: Duration = Duration::from_secs(2);

/// Reads what is still coming of a body that was refused, and throws it away.
///
/// Closing a socket with unread bytes resets it, and the reset can overtake our answer: the caller would see a
/// broken pipe instead of its 413. Bounded, so that nobody can keep us reading.
fn read_away(mut incoming: Incoming, sending: bool) {
    if !sending || incoming.is_end_stream() {
        return;
    }
    tokio::spawn(tokio::time::timeout(READ_AWAY_TIME, async move {
        let mut read = 0;
        while let Some(Ok(frame)) = incoming.frame().await {
            read += frame.data_ref().map_or(0, Bytes::len);
            if read > READ_AWAY_BYTES {
                return;
            }
        }
    }));
}

/// Reads the caller's body through the exchange until it asks, or says no, or the caller takes too long.
async fn read(
    walk: &mut Walk,
    head: crate::exchange::RequestHead,
    incoming: &mut Incoming,
    until: tokio::time::Instant,
) -> Result<(Box<Ask>, HeldBody), Outcome> {
    let mut trailers = None;
    let end = incoming.is_end_stream();
    let mut commands = walk.on(Event::RequestHeaders { head, end });
    loop {
        let mut refused = None;
        for command in commands {
            match command {
                Command::Ask(ask) => {
                    let bytes = walk.exchange.held();
                    return Ok((ask, HeldBody { bytes, trailers }));
                }
                Command::Reply(outcome) => {
                    walk.outcome = Some(outcome.reason());
                    refused = Some(outcome);
                }
                other => walk.carry_out(other),
            }
        }
        if let Some(outcome) = refused {
            return Err(outcome);
        }
        let pause = tokio::time::Instant::now() + walk.settings.body_timeout;
        let frame = tokio::time::timeout_at(pause.min(until), incoming.frame()).await;
        let event = match frame.map_err(|_| Outcome::BodyTimeout)? {
            None => Event::RequestBody {
                data: Bytes::new(),
                end: true,
            },
            Some(Err(_)) => return Err(Outcome::BodyIncomplete),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    let end = incoming.is_end_stream();
                    Event::RequestBody { data, end }
                }
                Err(frame) => {
                    trailers = frame.into_trailers().ok().and_then(head::trailers);
                    Event::RequestTrailers
                }
            },
        };
        commands = walk.on(event);
    }
}
