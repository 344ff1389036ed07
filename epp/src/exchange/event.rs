//! The vocabulary of an exchange.

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;
use wicketgate_pool::{Ended, Usage, scheduler::SubsetEntry};
use wicketgate_wire::Api;

use crate::{
    outcome::Outcome,
    prefix::{Content, Prompted},
    trust::Context,
};

/// How a front carries a body, told by the proxy's own configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyMode {
    /// Not shown to us.
    #[default]
    None,
    /// In pieces, each of which waits for our answer. Headers must be answered before the body comes.
    Streamed,
    /// Whole, after the headers were answered.
    Buffered,
    /// Like [`BodyMode::Buffered`], but cut at the proxy's buffer limit.
    BufferedPartial,
    /// In pieces both ways; we hold the headers back until the body is known.
    FullDuplex,
}

/// Both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// Of the request body.
    pub request: BodyMode,
    /// Of the response body.
    pub response: BodyMode,
}

/// What matters of the caller's headers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestHead {
    /// Request target, with its query.
    pub path: Box<str>,
    /// `content-length`, where given.
    pub content_length: Option<u64>,
    /// The body is compressed: it goes through unread.
    pub encoded: bool,
    /// Session token that the caller presented.
    pub session: Option<Arc<str>>,
    /// Headers that a plugin reads.
    pub plugin_headers: Vec<(String, String)>,
    /// What a trusted proxy says about the request.
    pub context: Context,
    /// Headers that only we or the proxy may set, and that the caller sent.
    pub forged: SmallVec<[&'static str; 2]>,
}

/// What kind of body an endpoint answers with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResponseKind {
    /// Neither of the others; relayed unread.
    #[default]
    Other,
    /// `application/json`.
    Json,
    /// `text/event-stream`.
    EventStream,
}

/// What matters of the endpoint's headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseHead {
    /// HTTP status.
    pub status: u16,
    /// From `content-type`.
    pub kind: ResponseKind,
    /// The endpoint that really answered, `ip:port`, where the proxy says.
    pub served: Option<Box<str>>,
}

/// Where the request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Ordered list of `ip:port`, comma separated.
    pub destination: Bytes,
    /// Session token to hand to the caller: header name and value.
    pub session: Option<(Arc<str>, Bytes)>,
}

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// The caller's headers; `end` when no body follows.
    RequestHeaders {
        /// What matters of them.
        head: RequestHead,
        /// No body follows.
        end: bool,
    },
    /// A piece of the caller's body.
    RequestBody {
        /// The bytes.
        data: Bytes,
        /// The last piece.
        end: bool,
    },
    /// The caller's trailers; they end the body.
    RequestTrailers,
    /// The proxy restricts the choice. Comes before the event that leads to the question.
    Subset(Vec<SubsetEntry>),
    /// The pool found a place.
    Placed(Placement),
    /// The pool, or a limit on the way to it, said no.
    Refused(Outcome),
    /// The endpoint's headers; `end` when no body follows.
    ResponseHeaders {
        /// What matters of them.
        head: ResponseHead,
        /// No body follows.
        end: bool,
    },
    /// A piece of the endpoint's body.
    ResponseBody {
        /// The bytes.
        data: Bytes,
        /// The last piece.
        end: bool,
    },
    /// The endpoint's trailers; they end the body.
    ResponseTrailers,
    /// The pool takes the place back for a more urgent request.
    Evicted,
    /// Nothing more will come.
    Broken(Ended),
}

/// The question to the pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// Dialect, a metric label.
    pub api: Api,
    /// Model or adapter; empty when the body names none.
    pub model: Arc<str>,
    /// Prompt length in tokens.
    pub prompt_tokens: u64,
    /// Expected output length in tokens.
    pub output_tokens: u64,
    /// Body length in bytes.
    pub bytes: u64,
    /// It has a body that could not be read: the proxy does not show it, or it is compressed. So its model is unknown.
    pub blind: bool,
    /// What its prompt is made from, until it was looked at.
    pub content: Content,
    /// What came of its prompt.
    pub prompted: Prompted,
    /// Session token that the caller presented.
    pub session: Option<Arc<str>>,
    /// Implicit session.
    pub session_hash: Option<u64>,
    /// Only these endpoints may serve it.
    pub subset: Option<Vec<SubsetEntry>>,
    /// Headers that a plugin reads.
    pub plugin_headers: Vec<(String, String)>,
    /// What a trusted proxy says about the request.
    pub context: Context,
}

/// Changes to the request's headers: only what differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadDelta {
    /// Value of the destination header and metadata.
    pub destination: Bytes,
    /// Names to remove: the caller's copies of what only we may set.
    pub remove: SmallVec<[&'static str; 2]>,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Put this question to the pool.
    Ask(Box<Ask>),
    /// Let the headers go on unchanged; the pick comes with the body.
    ContinueHead,
    /// Let the headers go on with these changes.
    Head(HeadDelta),
    /// Let the held body go on, with these changes to the headers.
    BodyWithHead(HeadDelta),
    /// Send a piece of the request body.
    Body {
        /// The bytes.
        data: Bytes,
        /// The last piece.
        end: bool,
    },
    /// Let a piece of the request body go on unchanged.
    ContinueBody,
    /// Let the request trailers go on.
    ContinueTrailers,
    /// Answer instead of an endpoint.
    Reply(Outcome),
    /// The endpoint that really answered.
    Served(Box<str>),
    /// Let the response headers go on, with this session token added.
    ResponseHead(Option<(Arc<str>, Bytes)>),
    /// Send a piece of the response body.
    ResponseBody {
        /// The bytes.
        data: Bytes,
        /// The last piece.
        end: bool,
    },
    /// Let a piece of the response body go on unchanged.
    ContinueResponseBody,
    /// Let the response trailers go on.
    ContinueResponseTrailers,
    /// The first token of the answer was seen.
    FirstToken,
    /// The request is over. Given out once.
    Finish {
        /// How.
        how: Ended,
        /// What the engine said it cost.
        usage: Option<Usage>,
    },
}

/// Commands of one event, in order.
pub type Commands = SmallVec<[Command; 4]>;
