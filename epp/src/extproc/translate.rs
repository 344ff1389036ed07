//! Envoy's messages to events, commands to Envoy's messages.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use prost::Message as _;
use prost_types::{Struct, Value, value::Kind};
use wicketgate_pool::scheduler::{SubsetEntry, parse_subset};

use super::proto::{
    Answer, BodyMutation, CommonAnswer, CommonResponse, HeaderMap, HeaderMutation,
    HeaderValueOption, HttpBody, HttpStatus, ImmediateResponse, Metadata, ProcessingResponse,
    ProtocolConfiguration, TrailersAnswer, body_mode,
};
use crate::{
    exchange::{BodyMode, Command, HeadDelta, Modes, RequestHead, ResponseHead},
    headers,
    outcome::{DROP_REASON_HEADER, Outcome},
    pipeline::Settings,
};

/// The modes that Envoy announces in a stream's first message. Without an announcement (Envoy before 1.31)
/// full duplex is assumed, as the Endpoint Picker Protocol asks for it.
pub(super) fn modes(config: Option<ProtocolConfiguration>) -> Modes {
    config.map_or(
        Modes {
            request: BodyMode::FullDuplex,
            response: BodyMode::FullDuplex,
        },
        |config| Modes {
            request: mode(config.request_body_mode),
            response: mode(config.response_body_mode),
        },
    )
}

fn mode(mode: i32) -> BodyMode {
    match mode {
        body_mode::STREAMED => BodyMode::Streamed,
        body_mode::BUFFERED => BodyMode::Buffered,
        body_mode::BUFFERED_PARTIAL => BodyMode::BufferedPartial,
        body_mode::FULL_DUPLEX_STREAMED => BodyMode::FullDuplex,
        _ => BodyMode::None,
    }
}

/// What matters of the caller's headers.
pub(super) fn request_head(map: Option<&HeaderMap>, settings: &Settings) -> RequestHead {
    let mut head = RequestHead::default();
    for header in map.map(|map| map.headers.as_slice()).unwrap_or_default() {
        let value = header.bytes();
        match header.key.as_ref() {
            b":path" => head.path = String::from_utf8_lossy(value).into(),
            b"content-length" => head.content_length = headers::parse_length(value),
            b"content-encoding" => head.encoded |= !headers::readable_encoding(value),
            name => plugin_header(name, value, settings, &mut head),
        }
    }
    if let (Some(trusted), Some(map)) = (&settings.trusted, map) {
        head.context = trusted.read(|name| {
            let mut headers = map.headers.iter();
            let header = headers.find(|header| header.key.as_ref() == name.as_bytes())?;
            Some(header.bytes().as_ref())
        });
    }
    head
}

fn plugin_header(name: &[u8], value: &Bytes, settings: &Settings, head: &mut RequestHead) {
    if let Some(forged) = headers::steering(name) {
        if !head.forged.contains(&forged) {
            head.forged.push(forged);
        }
        return;
    }
    let session = settings.session_header.as_ref();
    if session.is_some_and(|session| session.as_bytes() == name) {
        head.session = Some(Arc::from(String::from_utf8_lossy(value)));
    }
    let known = settings.plugin_headers.iter();
    if let Some(known) = known.into_iter().find(|known| known.as_bytes() == name) {
        let value = String::from_utf8_lossy(value).into_owned();
        head.plugin_headers.push((known.clone(), value));
    }
}

/// What matters of the endpoint's headers.
pub(super) fn response_head(map: Option<&HeaderMap>, metadata: &Bytes) -> ResponseHead {
    let mut head = ResponseHead {
        served: served(metadata),
        ..ResponseHead::default()
    };
    for header in map.map(|map| map.headers.as_slice()).unwrap_or_default() {
        match header.key.as_ref() {
            b":status" => {
                let status = headers::parse_length(header.bytes());
                head.status = status
                    .and_then(|status| u16::try_from(status).ok())
                    .unwrap_or(0);
            }
            b"content-type" => head.kind = headers::response_kind(header.bytes()),
            _ => {}
        }
    }
    head
}

/// A value of the metadata, or nothing if it is absent or cannot be read.
fn lookup(metadata: &Bytes, namespace: &str, key: &str) -> Option<Kind> {
    if metadata.is_empty() {
        return None;
    }
    let mut metadata = Metadata::decode(metadata.clone()).ok()?;
    let mut space = metadata.filter_metadata.remove(namespace)?;
    space.fields.remove(key)?.kind
}

/// The subset hint: a list of strings or one comma-separated string. `Some` and empty when it is there but
/// names nobody, which must not be read as "anybody".
pub(super) fn subset(metadata: &Bytes) -> Option<Vec<SubsetEntry>> {
    let kind = lookup(metadata, headers::SUBSET_NAMESPACE, headers::SUBSET)?;
    Some(match kind {
        Kind::StringValue(list) => parse_subset([list.as_str()].into_iter()),
        Kind::ListValue(list) => {
            parse_subset(list.values.iter().filter_map(|value| match &value.kind {
                Some(Kind::StringValue(entry)) => Some(entry.as_str()),
                _ => None,
            }))
        }
        Kind::NullValue(_) | Kind::NumberValue(_) | Kind::BoolValue(_) | Kind::StructValue(_) => {
            Vec::new()
        }
    })
}

fn served(metadata: &Bytes) -> Option<Box<str>> {
    match lookup(metadata, headers::LB_NAMESPACE, headers::SERVED)? {
        Kind::StringValue(address) => Some(address.into()),
        _ => None,
    }
}

/// The answer that carries out a command; `None` for commands that Envoy does not hear of.
pub(super) fn answer(command: Command) -> Option<ProcessingResponse> {
    let (answer, dynamic_metadata) = match command {
        Command::ContinueHead => (Answer::RequestHeaders(CommonAnswer::default()), None),
        Command::Head(delta) => {
            let metadata = lb_metadata(&delta.destination);
            (Answer::RequestHeaders(with_head(delta)), Some(metadata))
        }
        Command::BodyWithHead(delta) => {
            let metadata = lb_metadata(&delta.destination);
            (Answer::RequestBody(with_head(delta)), Some(metadata))
        }
        Command::Body { data, end } => (Answer::RequestBody(streamed(data, end)), None),
        Command::ContinueBody => (Answer::RequestBody(CommonAnswer::default()), None),
        Command::ContinueTrailers => (Answer::RequestTrailers(TrailersAnswer {}), None),
        Command::ResponseHead(session) => (Answer::ResponseHeaders(session_head(session)), None),
        Command::ResponseBody { data, end } => (Answer::ResponseBody(streamed(data, end)), None),
        Command::ContinueResponseBody => (Answer::ResponseBody(CommonAnswer::default()), None),
        Command::ContinueResponseTrailers => (Answer::ResponseTrailers(TrailersAnswer {}), None),
        Command::Reply(outcome) => (Answer::Immediate(immediate(&outcome)), None),
        Command::Ask(_) | Command::Served(_) | Command::FirstToken | Command::Finish { .. } => {
            return None;
        }
    };
    Some(ProcessingResponse {
        answer: Some(answer),
        dynamic_metadata,
    })
}

fn with_head(delta: HeadDelta) -> CommonAnswer {
    CommonAnswer {
        response: Some(CommonResponse {
            header_mutation: Some(HeaderMutation {
                set_headers: vec![HeaderValueOption::set(
                    headers::DESTINATION,
                    delta.destination,
                )],
                remove_headers: delta.remove.into_iter().map(str::to_owned).collect(),
            }),
            body_mutation: None,
            clear_route_cache: true,
        }),
    }
}

fn session_head(session: Option<(Arc<str>, Bytes)>) -> CommonAnswer {
    let Some((name, token)) = session else {
        return CommonAnswer::default();
    };
    let mut header = HeaderValueOption::set("", token);
    if let Some(header) = header.header.as_mut() {
        header.key = Bytes::copy_from_slice(name.as_bytes());
    }
    CommonAnswer {
        response: Some(CommonResponse {
            header_mutation: Some(HeaderMutation {
                set_headers: vec![header],
                remove_headers: Vec::new(),
            }),
            ..CommonResponse::default()
        }),
    }
}

fn streamed(body: Bytes, end_of_stream: bool) -> CommonAnswer {
    CommonAnswer {
        response: Some(CommonResponse {
            body_mutation: Some(BodyMutation {
                streamed_response: Some(HttpBody {
                    body,
                    end_of_stream,
                }),
            }),
            ..CommonResponse::default()
        }),
    }
}

/// `envoy.lb: {x-gateway-destination-endpoint: "..."}`; always equal to the header.
fn lb_metadata(destination: &Bytes) -> Struct {
    let destination = String::from_utf8_lossy(destination).into_owned();
    let value = |kind| Value { kind: Some(kind) };
    let inner = Struct {
        fields: BTreeMap::from([(
            headers::DESTINATION.to_owned(),
            value(Kind::StringValue(destination)),
        )]),
    };
    Struct {
        fields: BTreeMap::from([(
            headers::LB_NAMESPACE.to_owned(),
            value(Kind::StructValue(inner)),
        )]),
    }
}

fn immediate(outcome: &Outcome) -> ImmediateResponse {
    let reply = outcome.reply();
    let mut set = vec![HeaderValueOption::set(
        "content-type",
        Bytes::from_static(b"application/json"),
    )];
    if let Some(seconds) = reply.retry_after {
        set.push(HeaderValueOption::set(
            "retry-after",
            Bytes::from(seconds.to_string()),
        ));
    }
    if let Some(reason) = reply.drop_reason {
        let reason = Bytes::from_static(reason.as_bytes());
        set.push(HeaderValueOption::set(DROP_REASON_HEADER, reason));
    }
    ImmediateResponse {
        status: Some(HttpStatus {
            code: i32::from(reply.status),
        }),
        headers: Some(HeaderMutation {
            set_headers: set,
            remove_headers: Vec::new(),
        }),
        body: reply.body,
        details: format!("wicketgate_{}", reply.reason),
    }
}

#[cfg(test)]
mod tests;
