//! What Envoy would send for one request, in full duplex both ways.

use bytes::Bytes;
use wicketgate_epp::extproc::proto::{
    HeaderMap, HeaderValue, HttpBody, HttpHeaders, Phase, ProcessingRequest, ProtocolConfiguration,
    body_mode,
};

use crate::text::chat_body;

/// Prompts that differ, used in turn.
const PROMPTS: u64 = 32;
/// Prompt tokens of an answer's usage: bytes of the request over this, as English text has them.
const BYTES_PER_TOKEN: u64 = 4;

/// One request: messages until the endpoint is named, then those of its answer.
pub(super) struct Script {
    pub(super) request: Vec<ProcessingRequest>,
    pub(super) response: Vec<ProcessingRequest>,
    pub(super) request_bytes: usize,
    pub(super) response_bytes: usize,
}

/// What the requests of a run look like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Bytes of a request's body.
    pub(super) prompt_bytes: usize,
    /// Bytes of one piece of it.
    pub(super) chunk_bytes: usize,
    /// Events of the answer; 0 is one JSON answer.
    pub(super) events: usize,
}

impl Shape {
    pub(super) fn prompt_tokens(&self) -> u64 {
        (self.prompt_bytes as u64 / BYTES_PER_TOKEN).max(1)
    }

    pub(super) fn scripts(&self) -> Vec<Script> {
        (0..PROMPTS).map(|seed| self.script(seed)).collect()
    }

    fn script(&self, seed: u64) -> Script {
        let stream = self.events > 0;
        let body = chat_body(
            &mut fastrand::Rng::with_seed(seed),
            self.prompt_bytes,
            stream,
        );
        let body = Bytes::from(body);
        let length = body.len().to_string();
        let mut request = vec![ProcessingRequest {
            phase: Some(Phase::RequestHeaders(headers(&[
                (":method", "POST"),
                (":scheme", "http"),
                (":authority", "gateway.example"),
                (":path", "/v1/chat/completions"),
                ("content-type", "application/json"),
                ("content-length", &length),
                ("accept", "*/*"),
                ("accept-encoding", "gzip, deflate"),
                (
                    "authorization",
                    "Bearer sk-0123456789abcdef0123456789abcdef",
                ),
                ("user-agent", "OpenAI/Python 1.109.1"),
                ("x-forwarded-proto", "http"),
                ("x-request-id", "2f0f7f7e-1d8c-4c55-8f4e-0a4c7a1f9f10"),
                ("x-stainless-lang", "python"),
                ("x-stainless-runtime", "CPython"),
            ]))),
            protocol_config: Some(ProtocolConfiguration {
                request_body_mode: body_mode::FULL_DUPLEX_STREAMED,
                response_body_mode: body_mode::FULL_DUPLEX_STREAMED,
            }),
            ..ProcessingRequest::default()
        }];
        let pieces = body.len().div_ceil(self.chunk_bytes);
        for piece in 0..pieces {
            let from = piece * self.chunk_bytes;
            let to = body.len().min(from + self.chunk_bytes);
            request.push(request_body(body.slice(from..to), false));
        }
        request.push(request_body(Bytes::new(), true));
        let answer = self.answer();
        let response_bytes = answer.iter().map(Bytes::len).sum();
        let kind = if stream {
            "text/event-stream; charset=utf-8"
        } else {
            "application/json"
        };
        let head = headers(&[
            (":status", "200"),
            ("content-type", kind),
            ("date", "Mon, 30 Nov 2026 12:00:00 GMT"),
            ("server", "uvicorn"),
            ("x-request-id", "2f0f7f7e-1d8c-4c55-8f4e-0a4c7a1f9f10"),
        ]);
        let mut response = vec![message(Phase::ResponseHeaders(head))];
        response.extend(answer.into_iter().map(|body| response_body(body, false)));
        response.push(response_body(Bytes::new(), true));
        Script {
            request,
            response,
            request_bytes: body.len(),
            response_bytes,
        }
    }

    /// Pieces of the answer's body, as an engine writes them.
    fn answer(&self) -> Vec<Bytes> {
        let prompt = self.prompt_tokens();
        let usage = format!(
            r#""usage":{{"prompt_tokens":{prompt},"total_tokens":{},"completion_tokens":128,"prompt_tokens_details":{{"cached_tokens":{}}}}}"#,
            prompt + 128,
            prompt / 2,
        );
        let head = r#""id":"chatcmpl-bench","created":1796072868,"model":"bench""#;
        if self.events == 0 {
            let text = "The river drives the turbine and the gate holds the water back. ".repeat(8);
            return vec![Bytes::from(format!(
                r#"{{{head},"object":"chat.completion","choices":[{{"index":0,"message":{{"role":"assistant","content":"{text}"}},"finish_reason":"stop"}}],{usage}}}"#
            ))];
        }
        let token = Bytes::from(format!(
            "data: {{{head},\"object\":\"chat.completion.chunk\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" river\"}},\"finish_reason\":null}}]}}\n\n"
        ));
        let last = format!(
            "data: {{{head},\"object\":\"chat.completion.chunk\",\"choices\":[],{usage}}}\n\ndata: [DONE]\n\n"
        );
        let mut pieces = vec![token; self.events.saturating_sub(1)];
        pieces.push(Bytes::from(last));
        pieces
    }
}

fn message(phase: Phase) -> ProcessingRequest {
    ProcessingRequest {
        phase: Some(phase),
        ..ProcessingRequest::default()
    }
}

fn request_body(body: Bytes, end_of_stream: bool) -> ProcessingRequest {
    message(Phase::RequestBody(HttpBody {
        body,
        end_of_stream,
    }))
}

fn response_body(body: Bytes, end_of_stream: bool) -> ProcessingRequest {
    message(Phase::ResponseBody(HttpBody {
        body,
        end_of_stream,
    }))
}

fn headers(list: &[(&'static str, &str)]) -> HttpHeaders {
    let headers = list.iter().map(|(name, value)| HeaderValue {
        key: Bytes::from_static(name.as_bytes()),
        value: Bytes::new(),
        raw_value: Bytes::copy_from_slice(value.as_bytes()),
    });
    HttpHeaders {
        headers: Some(HeaderMap {
            headers: headers.collect(),
        }),
        end_of_stream: false,
    }
}

#[cfg(test)]
mod tests {
    use wicketgate_wire::UsageObserver;

    use super::*;

    fn body(messages: &[ProcessingRequest]) -> (Vec<u8>, usize) {
        let mut all = Vec::new();
        let mut ends = 0;
        for message in messages {
            if let Some(Phase::RequestBody(body) | Phase::ResponseBody(body)) = &message.phase {
                assert_eq!(ends, 0);
                all.extend_from_slice(&body.body);
                ends += usize::from(body.end_of_stream);
            }
        }
        (all, ends)
    }

    #[test]
    fn scripts_are_real_requests_and_answers() {
        for (events, chunk_bytes) in [(0, 16 << 10), (16, 1000)] {
            let shape = Shape {
                prompt_bytes: 40_000,
                chunk_bytes,
                events,
            };
            for script in shape.scripts() {
                let (request, ends) = body(&script.request);
                assert_eq!((request.len(), ends), (40_000, 1));
                assert_eq!(script.request_bytes, 40_000);
                assert_eq!(script.request.len(), 2 + 40_000usize.div_ceil(chunk_bytes));
                serde_json::from_slice::<serde_json::Value>(&request).unwrap();
                let (response, ends) = body(&script.response);
                assert_eq!((response.len(), ends), (script.response_bytes, 1));
                let mut observer = if events > 0 {
                    UsageObserver::sse()
                } else {
                    UsageObserver::json()
                };
                observer.feed(&response);
                observer.finish();
                assert_eq!(observer.usage().prompt_tokens, Some(shape.prompt_tokens()));
                assert_eq!(observer.done(), events > 0);
                let lines = memchr::memmem::find_iter(&response, b"data: ").count();
                assert_eq!(lines, if events > 0 { events + 1 } else { 0 });
            }
        }
    }

    #[test]
    fn prompts_differ() {
        let shape = Shape {
            prompt_bytes: 2048,
            chunk_bytes: 4096,
            events: 0,
        };
        let scripts = shape.scripts();
        let mut bodies: Vec<_> = scripts
            .iter()
            .map(|script| body(&script.request).0)
            .collect();
        bodies.sort_unstable();
        bodies.dedup();
        assert_eq!(bodies.len() as u64, PROMPTS);
    }
}
