//! Paths, errors and everything small.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::{Failure, Shared, body::EngineBody, chat};
use crate::text;

/// Longest request body that is read, in bytes.
const LONGEST: usize = 64 << 20;

pub(super) type Answer = Response<EngineBody>;

/// A request read whole.
pub(super) struct Call {
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) failure: Failure,
}

pub(super) async fn answer(
    shared: Arc<Shared>,
    request: Request<Incoming>,
) -> Result<Answer, Infallible> {
    Ok(route(shared, request).await)
}

async fn route(shared: Arc<Shared>, request: Request<Incoming>) -> Answer {
    let (parts, mut incoming) = request.into_parts();
    let mut body = Vec::new();
    let mut trailers = HeaderMap::new();
    while let Some(frame) = incoming.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) if body.len() + data.len() <= LONGEST => body.extend_from_slice(&data),
            Ok(Ok(_)) => return error(413, "Payload Too Large", "the body is too large", None),
            Ok(Err(frame)) => trailers = frame.into_trailers().unwrap_or_default(),
            Err(_) => return error(400, "Bad Request", "the body broke off", None),
        }
    }
    let body = Bytes::from(body);
    if parts.headers.contains_key("x-emulator-echo") {
        return echo(&parts, &body, &trailers);
    }
    let path = parts.uri.path().to_owned();
    let failure = match parts.headers.get("x-emulator-failure") {
        Some(text) if shared.config.allow_failures => {
            match text.to_str().ok().and_then(Failure::parse) {
                Some(failure) => failure,
                None => return error(400, "Bad Request", "x-emulator-failure is not understood", None),
            }
        }
        Some(_) | None => shared.failure.get(),
    };
    let call = Call {
        headers: parts.headers,
        body,
        failure,
    };
    match (&parts.method, path.as_str()) {
        (&Method::POST, "/v1/chat/completions") => chat::answer(shared, call, true).await,
        (&Method::POST, "/v1/completions") => chat::answer(shared, call, false).await,
        (&Method::POST, "/v1/embeddings") => embeddings(&shared, &call),
        (&Method::GET, "/v1/models") => models(&shared),
        (&Method::GET, "/health" | "/ping") => health(&call),
        (&Method::GET, "/version") => json_answer(200, &json!({"version": "emulated"})),
        (&Method::GET, "/load") => {
            let stats = shared.driver.stats();
            json_answer(200, &json!({"server_load": stats.running + stats.waiting}))
        }
        (&Method::GET, "/metrics") => metrics(&shared),
        (&Method::POST, "/tokenize") => tokenize(&shared, &call),
        (&Method::POST, "/detokenize") => detokenize(&call),
        (&Method::POST, "/reset_prefix_cache") => {
            let done = shared.driver.reset().await;
            json_answer(200, &json!({"success": done}))
        }
        (&Method::POST, "/emulator/failure") => set_failure(&shared, &call),
        (&Method::GET, "/emulator/stats") => stats(&shared),
        (_, "/v1/chat/completions" | "/v1/completions" | "/v1/embeddings" | "/tokenize") => {
            json_answer(405, &json!({"detail": "Method Not Allowed"}))
        }
        _ => json_answer(404, &json!({"detail": "Not Found"})),
    }
}

use http_body::Frame;

pub(super) fn json_answer(status: u16, value: &Value) -> Answer {
    plain(status, "application/json", value.to_string())
}

fn plain(status: u16, kind: &'static str, text: String) -> Answer {
    let mut response = Response::new(EngineBody::Whole(Some(text.into()), None));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// An error as vLLM shapes it.
pub(super) fn error(status: u16, kind: &str, message: &str, param: Option<&str>) -> Answer {
    json_answer(
        status,
        &json!({"error": {"message": message, "type": kind, "param": param, "code": status}}),
    )
}

/// Where the engine's `model` field may not be: an unknown name. A missing one is accepted.
pub(super) fn check_model(shared: &Shared, body: &Value) -> Result<String, Box<Answer>> {
    let Some(model) = body.get("model").and_then(Value::as_str) else {
        return Ok(shared.config.models.first().cloned().unwrap_or_default());
    };
    let known = shared.config.models.iter().chain(&shared.config.adapters);
    if known.into_iter().any(|known| known == model) {
        return Ok(model.to_owned());
    }
    let valid = shared.config.models.join(", ");
    let message = format!("The model `{model}` does not exist. Valid aliases: {valid}.");
    Err(Box::new(error(404, "NotFoundError", &message, Some("model"))))
}

pub(super) fn parse(call: &Call) -> Result<Value, Box<Answer>> {
    match serde_json::from_slice::<Value>(&call.body) {
        Ok(value) if value.is_object() => Ok(value),
        Ok(_) => Err(Box::new(error(400, "Bad Request", "the body must be an object", None))),
        Err(parse) => Err(Box::new(error(400, "Bad Request", &format!("json_invalid: {parse}"), None))),
    }
}

fn models(shared: &Shared) -> Answer {
    let all = shared.config.models.iter().chain(&shared.config.adapters);
    let data: Vec<Value> = all
        .map(|name| {
            json!({"id": name, "object": "model", "created": 0, "owned_by": "vllm", "root": name,
                   "parent": null, "max_model_len": shared.config.max_model_len})
        })
        .collect();
    json_answer(200, &json!({"object": "list", "data": data}))
}

fn health(call: &Call) -> Answer {
    let status = call.failure.status(0.0).filter(|_| call.failure.rate.is_none()).unwrap_or(200);
    let mut response = plain(status, "text/plain", String::new());
    response.headers_mut().remove(header::CONTENT_TYPE);
    response
}

fn metrics(shared: &Shared) -> Answer {
    let page = shared.metrics.page(&shared.config, &shared.driver.stats());
    plain(200, "text/plain; version=1.0.0; charset=utf-8", page)
}

fn stats(shared: &Shared) -> Answer {
    let core = shared.driver.stats();
    json_answer(
        200,
        &json!({
            "requests": shared.metrics.requests(), "running": core.running, "waiting": core.waiting,
            "held_blocks": core.held_blocks, "steps": core.steps, "finished": core.finished,
            "aborted": core.aborted, "generated_tokens": core.generated_tokens,
            "prompt_tokens": core.prompt_tokens, "prefix_hits": core.prefix_hits,
        }),
    )
}

fn set_failure(shared: &Shared, call: &Call) -> Answer {
    if !shared.config.allow_failures {
        return error(403, "Forbidden", "start with --allow-failure-injection", None);
    }
    match serde_json::from_slice::<Failure>(&call.body) {
        Ok(failure) => {
            shared.failure.set(failure);
            json_answer(200, &json!({"success": true}))
        }
        Err(parse) => error(400, "Bad Request", &parse.to_string(), None),
    }
}

fn tokenize(shared: &Shared, call: &Call) -> Answer {
    let body = match parse(call) {
        Ok(body) => body,
        Err(answer) => return *answer,
    };
    let tokens = match (body.get("prompt").and_then(Value::as_str), body.get("messages")) {
        (Some(prompt), _) => text::tokenize(prompt),
        (None, Some(messages)) => chat::chat_tokens(messages).to_vec(),
        (None, None) => return error(400, "Bad Request", "Field required", Some("body.prompt")),
    };
    json_answer(
        200,
        &json!({"count": tokens.len(), "max_model_len": shared.config.max_model_len, "tokens": tokens}),
    )
}

fn detokenize(call: &Call) -> Answer {
    let body = match parse(call) {
        Ok(body) => body,
        Err(answer) => return *answer,
    };
    let tokens = body.get("tokens").and_then(Value::as_array);
    let tokens = tokens.into_iter().flatten().filter_map(Value::as_u64);
    let tokens: Vec<u32> = tokens.filter_map(|token| u32::try_from(token).ok()).collect();
    json_answer(200, &json!({"prompt": text::detokenize(&tokens)}))
}

/// Vectors that depend on the text alone.
fn embeddings(shared: &Shared, call: &Call) -> Answer {
    shared.metrics.count_request();
    if let Some(status) = call.failure.status(shared.metrics.draw()) {
        return error(status, "InternalServerError", "injected failure", None);
    }
    let body = match parse(call) {
        Ok(body) => body,
        Err(answer) => return *answer,
    };
    let model = match check_model(shared, &body) {
        Ok(model) => model,
        Err(answer) => return *answer,
    };
    let inputs = match body.get("input") {
        Some(Value::Array(list)) if list.iter().all(Value::is_number) => vec![Value::Array(list.clone())],
        Some(Value::Array(list)) => list.clone(),
        Some(other) => vec![other.clone()],
        None => return error(400, "Bad Request", "Field required", Some("body.input")),
    };
    let mut tokens = 0;
    let vectors: Vec<Value> = inputs
        .iter()
        .enumerate()
        .map(|(index, input)| {
            let ids = chat::prompt_tokens(input);
            tokens += ids.len();
            json!({"object": "embedding", "index": index, "embedding": vector(&ids)})
        })
        .collect();
    json_answer(
        200,
        &json!({"id": "embd-emulated", "object": "list", "created": 0, "model": model, "data": vectors,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}}),
    )
}

fn vector(tokens: &[u32]) -> Vec<f64> {
    (0..8_u64)
        .map(|dimension| {
            let hash = crate::kv::block_hash(dimension, tokens);
            f64::from(u16::try_from(hash % 2001).unwrap_or(0)) / 1000.0 - 1.0
        })
        .collect()
}

/// What came in, for tests of what stands in front: method, path, headers, trailers, and a hash of the body.
fn echo(parts: &http::request::Parts, body: &[u8], trailers: &HeaderMap) -> Answer {
    let list = |map: &HeaderMap| -> Vec<(String, String)> {
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        map.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
    };
    let value = json!({
        "method": parts.method.as_str(),
        "path": parts.uri.path_and_query().map_or("", |target| target.as_str()),
        "version": format!("{:?}", parts.version),
        "headers": list(&parts.headers),
        "trailers": list(trailers),
        "body_len": body.len(),
        "body_xxh3_hex": format!("{:016x}", xxhash_rust::xxh3::xxh3_64(body)),
    });
    let mut response = json_answer(200, &value);
    if parts.headers.contains_key("x-emulator-trailers")
        && let EngineBody::Whole(_, trailers) = response.body_mut()
    {
        let mut map = HeaderMap::new();
        map.insert("x-emulated-trailer", HeaderValue::from_static("yes"));
        *trailers = Some(map);
        let name = HeaderValue::from_static("x-emulated-trailer");
        response.headers_mut().insert(header::TRAILER, name);
    }
    response
}
