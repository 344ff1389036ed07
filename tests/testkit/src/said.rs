//! What a picker says, in words that a test can compare.

use std::fmt;

use bytes::Bytes;
use prost_types::{Struct, value::Kind};
use wicketgate_epp::extproc::proto::{Answer, CommonAnswer, HeaderValueOption, ProcessingResponse};

const DESTINATION: &str = "x-gateway-destination-endpoint";

/// What an answer changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The destination header, if it is set.
    pub destination: Option<String>,
    /// The destination in the dynamic metadata, if it is set.
    pub metadata: Option<String>,
    /// Other headers that are set.
    pub set: Vec<(String, String)>,
    /// Headers that are removed.
    pub removed: Vec<String>,
    /// The route is looked up again.
    pub reroute: bool,
    /// A streamed piece of body: its bytes, and whether it is the last.
    pub piece: Option<(Bytes, bool)>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// To the request headers.
    RequestHeaders(Changes),
    /// To a piece of request body.
    RequestBody(Changes),
    /// To the request trailers.
    RequestTrailers,
    /// To the response headers.
    ResponseHeaders(Changes),
    /// To a piece of response body.
    ResponseBody(Changes),
    /// To the response trailers.
    ResponseTrailers,
    /// Instead of a request to an endpoint.
    Immediate {
        /// HTTP status.
        status: u16,
        /// Headers that are set.
        headers: Vec<(String, String)>,
        /// Body.
        body: Bytes,
        /// For the proxy's log.
        details: String,
    },
}

impl Said {
    /// The changes; none for trailers and immediate answers.
    pub fn changes(&self) -> Changes {
        match self {
            Said::RequestHeaders(changes)
            | Said::RequestBody(changes)
            | Said::ResponseHeaders(changes)
            | Said::ResponseBody(changes) => changes.clone(),
            Said::RequestTrailers | Said::ResponseTrailers | Said::Immediate { .. } => {
                Changes::default()
            }
        }
    }
}

impl From<ProcessingResponse> for Said {
    fn from(message: ProcessingResponse) -> Said {
        let metadata = message.dynamic_metadata.as_ref().and_then(destination);
        match message.answer.expect("an answer has a phase") {
            Answer::RequestHeaders(answer) => Said::RequestHeaders(changes(answer, metadata)),
            Answer::RequestBody(answer) => Said::RequestBody(changes(answer, metadata)),
            Answer::RequestTrailers(_) => Said::RequestTrailers,
            Answer::ResponseHeaders(answer) => Said::ResponseHeaders(changes(answer, metadata)),
            Answer::ResponseBody(answer) => Said::ResponseBody(changes(answer, metadata)),
            Answer::ResponseTrailers(_) => Said::ResponseTrailers,
            Answer::Immediate(reply) => Said::Immediate {
                status: reply
                    .status
                    .map_or(0, |status| u16::try_from(status.code).unwrap()),
                headers: reply
                    .headers
                    .map(|set| pairs(set.set_headers))
                    .unwrap_or_default(),
                body: reply.body,
                details: reply.details,
            },
        }
    }
}

fn pairs(list: Vec<HeaderValueOption>) -> Vec<(String, String)> {
    let shown = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    let headers = list.into_iter().filter_map(|option| option.header);
    headers
        .map(|header| (shown(&header.key), shown(header.bytes())))
        .collect()
}

fn changes(answer: CommonAnswer, metadata: Option<String>) -> Changes {
    let response = answer.response.unwrap_or_default();
    let mutation = response.header_mutation.unwrap_or_default();
    let (to, set): (Vec<_>, _) = pairs(mutation.set_headers)
        .into_iter()
        .partition(|pair| pair.0 == DESTINATION);
    assert!(to.len() <= 1, "one destination: {to:?}");
    let piece = response
        .body_mutation
        .and_then(|body| body.streamed_response);
    Changes {
        destination: to.into_iter().next().map(|pair| pair.1),
        metadata,
        set,
        removed: mutation.remove_headers,
        reroute: response.clear_route_cache,
        piece: piece.map(|piece| (piece.body, piece.end_of_stream)),
    }
}

fn destination(metadata: &Struct) -> Option<String> {
    let Kind::StructValue(space) = metadata.fields.get("envoy.lb")?.kind.as_ref()? else {
        return None;
    };
    match space.fields.get(DESTINATION)?.kind.as_ref()? {
        Kind::StringValue(text) => Some(text.clone()),
        _ => None,
    }
}

/// One line, such as `request headers: to 127.0.0.1:1, reroute` or `request body: 5 bytes, end`.
impl fmt::Display for Said {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (phase, changes) = match self {
            Said::RequestHeaders(changes) => ("request headers", changes),
            Said::RequestBody(changes) => ("request body", changes),
            Said::ResponseHeaders(changes) => ("response headers", changes),
            Said::ResponseBody(changes) => ("response body", changes),
            Said::RequestTrailers => return write!(to, "request trailers"),
            Said::ResponseTrailers => return write!(to, "response trailers"),
            Said::Immediate {
                status, details, ..
            } => {
                return write!(to, "immediate: {status} {details}");
            }
        };
        let mut words = Vec::new();
        match (&changes.destination, &changes.metadata) {
            (Some(header), Some(metadata)) if header == metadata => {
                words.push(format!("to {header}"));
            }
            (None, None) => {}
            (header, metadata) => words.push(format!("UNEQUAL: {header:?} {metadata:?}")),
        }
        words.extend(
            changes
                .set
                .iter()
                .map(|(name, value)| format!("set {name}={value}")),
        );
        words.extend(changes.removed.iter().map(|name| format!("remove {name}")));
        words.extend(changes.reroute.then(|| "reroute".to_owned()));
        if let Some((bytes, end)) = &changes.piece {
            words.push(format!("{} bytes", bytes.len()));
            words.extend(end.then(|| "end".to_owned()));
        }
        if words.is_empty() {
            words.push("as it is".to_owned());
        }
        write!(to, "{phase}: {}", words.join(", "))
    }
}
