//! The part of Envoy's `envoy.service.ext_proc.v3` API that a picker uses, as prost messages.
//!
//! Written by hand from the published field numbers: a full generation of Envoy's API costs a minute of build
//! and copies every body chunk. Here `bytes` fields borrow from the receive buffer, unknown fields are
//! skipped, and `metadata_context`, which Envoy repeats in every message, stays undecoded until it is asked for.

use bytes::Bytes;
use prost::{Message, Oneof};

/// `ProcessingMode.BodySendMode`.
pub mod body_mode {
    /// No body is sent.
    pub const NONE: i32 = 0;
    /// Chunks, each answered before it goes on.
    pub const STREAMED: i32 = 1;
    /// The whole body in one message.
    pub const BUFFERED: i32 = 2;
    /// The body up to a buffer limit in one message.
    pub const BUFFERED_PARTIAL: i32 = 3;
    /// Chunks both ways, independent of each other.
    pub const FULL_DUPLEX_STREAMED: i32 = 4;
}

/// `HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD`.
pub const OVERWRITE_IF_EXISTS_OR_ADD: i32 = 2;

/// What Envoy sends.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessingRequest {
    /// The phase.
    #[prost(oneof = "Phase", tags = "2, 3, 4, 5, 6, 7")]
    pub phase: Option<Phase>,
    /// An undecoded [`Metadata`].
    #[prost(bytes = "bytes", tag = "8")]
    pub metadata_context: Bytes,
    /// Envoy does not wait for answers.
    #[prost(bool, tag = "10")]
    pub observability_mode: bool,
    /// Only in the first message of a stream.
    #[prost(message, optional, tag = "11")]
    pub protocol_config: Option<ProtocolConfiguration>,
}

/// `ProcessingRequest.request`.
#[derive(Clone, PartialEq, Oneof)]
pub enum Phase {
    /// The client's headers.
    #[prost(message, tag = "2")]
    RequestHeaders(HttpHeaders),
    /// The endpoint's headers.
    #[prost(message, tag = "3")]
    ResponseHeaders(HttpHeaders),
    /// A piece of the client's body.
    #[prost(message, tag = "4")]
    RequestBody(HttpBody),
    /// A piece of the endpoint's body.
    #[prost(message, tag = "5")]
    ResponseBody(HttpBody),
    /// The client's trailers.
    #[prost(message, tag = "6")]
    RequestTrailers(HttpTrailers),
    /// The endpoint's trailers.
    #[prost(message, tag = "7")]
    ResponseTrailers(HttpTrailers),
}

/// How Envoy's filter is configured.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct ProtocolConfiguration {
    /// A [`body_mode`].
    #[prost(int32, tag = "1")]
    pub request_body_mode: i32,
    /// A [`body_mode`].
    #[prost(int32, tag = "2")]
    pub response_body_mode: i32,
}

/// Headers of either direction.
#[derive(Clone, PartialEq, Message)]
pub struct HttpHeaders {
    /// Names and values.
    #[prost(message, optional, tag = "1")]
    pub headers: Option<HeaderMap>,
    /// No body follows.
    #[prost(bool, tag = "3")]
    pub end_of_stream: bool,
}

/// `HeaderMap`.
#[derive(Clone, PartialEq, Message)]
pub struct HeaderMap {
    /// In the order of the wire.
    #[prost(message, repeated, tag = "1")]
    pub headers: Vec<HeaderValue>,
}

/// One header. Envoy fills `raw_value` and leaves `value` empty.
#[derive(Clone, PartialEq, Message)]
pub struct HeaderValue {
    /// Lower-case name, UTF-8.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// Value as text.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
    /// Value as bytes.
    #[prost(bytes = "bytes", tag = "3")]
    pub raw_value: Bytes,
}

impl HeaderValue {
    /// The value, wherever the sender put it.
    pub fn bytes(&self) -> &Bytes {
        if self.raw_value.is_empty() {
            &self.value
        } else {
            &self.raw_value
        }
    }
}

/// A piece of body.
#[derive(Clone, PartialEq, Message)]
pub struct HttpBody {
    /// The bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub body: Bytes,
    /// The last piece.
    #[prost(bool, tag = "2")]
    pub end_of_stream: bool,
}

/// Trailers of either direction; their content is not looked at.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct HttpTrailers {}

/// What a picker answers.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessingResponse {
    /// The phase.
    #[prost(oneof = "Answer", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub answer: Option<Answer>,
    /// Metadata by namespace.
    #[prost(message, optional, tag = "8")]
    pub dynamic_metadata: Option<prost_types::Struct>,
}

/// `ProcessingResponse.response`.
#[derive(Clone, PartialEq, Oneof)]
pub enum Answer {
    /// To [`Phase::RequestHeaders`].
    #[prost(message, tag = "1")]
    RequestHeaders(CommonAnswer),
    /// To [`Phase::ResponseHeaders`].
    #[prost(message, tag = "2")]
    ResponseHeaders(CommonAnswer),
    /// To [`Phase::RequestBody`].
    #[prost(message, tag = "3")]
    RequestBody(CommonAnswer),
    /// To [`Phase::ResponseBody`].
    #[prost(message, tag = "4")]
    ResponseBody(CommonAnswer),
    /// To [`Phase::RequestTrailers`].
    #[prost(message, tag = "5")]
    RequestTrailers(TrailersAnswer),
    /// To [`Phase::ResponseTrailers`].
    #[prost(message, tag = "6")]
    ResponseTrailers(TrailersAnswer),
    /// Ends the exchange with an answer of our own.
    #[prost(message, tag = "7")]
    Immediate(ImmediateResponse),
}

/// `HeadersResponse` and `BodyResponse`: the same shape.
#[derive(Clone, PartialEq, Message)]
pub struct CommonAnswer {
    /// What to change; absent means nothing.
    #[prost(message, optional, tag = "1")]
    pub response: Option<CommonResponse>,
}

/// `TrailersResponse` without changes.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct TrailersAnswer {}

/// `CommonResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct CommonResponse {
    /// Headers to set and remove.
    #[prost(message, optional, tag = "2")]
    pub header_mutation: Option<HeaderMutation>,
    /// Body to send on.
    #[prost(message, optional, tag = "3")]
    pub body_mutation: Option<BodyMutation>,
    /// Route again with the changed headers.
    #[prost(bool, tag = "5")]
    pub clear_route_cache: bool,
}

/// `HeaderMutation`.
#[derive(Clone, PartialEq, Message)]
pub struct HeaderMutation {
    /// Headers to set.
    #[prost(message, repeated, tag = "1")]
    pub set_headers: Vec<HeaderValueOption>,
    /// Names to remove.
    #[prost(string, repeated, tag = "2")]
    pub remove_headers: Vec<String>,
}

/// `HeaderValueOption`.
#[derive(Clone, PartialEq, Message)]
pub struct HeaderValueOption {
    /// Name and value.
    #[prost(message, optional, tag = "1")]
    pub header: Option<HeaderValue>,
    /// Always [`OVERWRITE_IF_EXISTS_OR_ADD`] here.
    #[prost(int32, tag = "3")]
    pub append_action: i32,
}

impl HeaderValueOption {
    /// Sets `key` to `value`, whatever was there.
    pub fn set(key: &'static str, value: Bytes) -> Self {
        HeaderValueOption {
            header: Some(HeaderValue {
                key: Bytes::from_static(key.as_bytes()),
                value: Bytes::new(),
                raw_value: value,
            }),
            append_action: OVERWRITE_IF_EXISTS_OR_ADD,
        }
    }
}

/// `BodyMutation` with a streamed piece.
#[derive(Clone, PartialEq, Message)]
pub struct BodyMutation {
    /// `streamed_response`; the only form that full duplex accepts.
    #[prost(message, optional, tag = "3")]
    pub streamed_response: Option<HttpBody>,
}

/// `ImmediateResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct ImmediateResponse {
    /// Status of the answer.
    #[prost(message, optional, tag = "1")]
    pub status: Option<HttpStatus>,
    /// Headers of the answer.
    #[prost(message, optional, tag = "2")]
    pub headers: Option<HeaderMutation>,
    /// Body of the answer.
    #[prost(bytes = "bytes", tag = "3")]
    pub body: Bytes,
    /// Goes to `RESPONSE_CODE_DETAILS`.
    #[prost(string, tag = "5")]
    pub details: String,
}

/// `HttpStatus`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct HttpStatus {
    /// HTTP status code.
    #[prost(int32, tag = "1")]
    pub code: i32,
}

/// `config.core.v3.Metadata`.
#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    /// Untyped metadata by namespace.
    #[prost(btree_map = "string, message", tag = "1")]
    pub filter_metadata: std::collections::BTreeMap<String, prost_types::Struct>,
}
