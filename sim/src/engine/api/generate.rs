//! `/v1/chat/completions` and `/v1/completions`.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Response, header};
use serde_json::Value;

use super::{Answer, ApiError, Dialect, fields::Fields, prompt};
use crate::{
    batch::{Refused, Request, block_hash},
    engine::{
        body::{ReplyBody, Then},
        failure::Fault,
        router::{json, unix_seconds},
        sse::SseBody,
        state::{Engine, Submission},
        stats::Account,
    },
};

/// Tokens of a completion without a limit, as vLLM has it.
const COMPLETION_TOKENS: u32 = 16;
/// Choices that one request may ask for, over all its prompts.
const MOST_CHOICES: usize = 1024;

/// A generation request, validated.
struct Generation {
    answer: Answer,
    submissions: Vec<Submission>,
    stream: bool,
}

/// Generates.
///
/// # Errors
/// What the client did wrong, or that the queue is full.
pub(in crate::engine) async fn generate(
    engine: &Arc<Engine>,
    headers: &HeaderMap,
    body: &Value,
    dialect: Dialect,
    fault: Fault,
    account: &Account,
) -> Result<Response<ReplyBody>, ApiError> {
    let generation = read(engine, headers, body, dialect, account.id())?;
    let prompt = generation
        .submissions
        .first()
        .map_or(0, |first| first.request.tokens.len());
    let flight = engine
        .enter(generation.submissions)
        .map_err(|refused| match refused {
            Refused::QueueFull | Refused::Duplicate => ApiError::busy(),
            Refused::TooLong => ApiError::too_long(prompt, engine.model_len),
            Refused::Empty => ApiError::bad_value("prompt", "The decoder prompt cannot be empty"),
        })?;
    if generation.stream {
        let mut response = Response::new(ReplyBody::stream(SseBody::new(
            generation.answer,
            flight,
            fault,
        )));
        let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        return Ok(response);
    }
    let progress = flight.complete().await;
    let text = generation.answer.whole(&progress, fault);
    let mut response = json(http::StatusCode::OK, text);
    if let Some(load) = orca(engine, headers) {
        response.headers_mut().insert("endpoint-load-metrics", load);
    }
    let then = match (fault.cut_after, fault.stall_after) {
        (Some(_), _) => Then::Cut,
        (None, Some(_)) => Then::Stall,
        (None, None) => return Ok(response),
    };
    Ok(response.map(|body| body.break_off(then)))
}

fn read(
    engine: &Engine,
    headers: &HeaderMap,
    body: &Value,
    dialect: Dialect,
    id: &str,
) -> Result<Generation, ApiError> {
    let fields = Fields::of(body)?;
    let prompts = match dialect {
        Dialect::Chat => vec![prompt::chat(&fields, true)?],
        Dialect::Completion => prompt::prompts("prompt", fields.need("prompt")?)?,
    };
    let (model, adapter) = model(engine, &fields)?;
    let limit = limit(&fields, dialect)?;
    let n = choices(&fields, prompts.len())?;
    if fields
        .number("temperature")?
        .is_some_and(|temperature| temperature < 0.0)
    {
        return Err(ApiError::bad_value(
            "temperature",
            "temperature must be non-negative",
        ));
    }
    let stream = fields.flag("stream")?;
    let options = fields
        .get("stream_options")
        .and_then(Value::as_object)
        .filter(|_| stream);
    let option =
        |name: &str| options.is_some_and(|options| options.get(name) == Some(&Value::Bool(true)));
    let answer = Answer {
        dialect,
        head: head(dialect, stream, id, model),
        include_usage: option("include_usage"),
        continuous_usage: option("include_usage") && option("continuous_usage_stats"),
        return_token_ids: fields.flag("return_token_ids")?,
        stops: limit.is_none(),
        prompts,
        output_keys: Vec::new(),
        block_size: engine.config.block_size,
    };
    let common = Common {
        adapter,
        salt: fields.text("cache_salt")?.map(Arc::from),
        priority: priority(headers, &fields)?,
    };
    submissions(engine, answer, n, limit, stream, &common)
}

/// What all requests of an answer have in common.
struct Common {
    adapter: Option<usize>,
    salt: Option<Arc<str>>,
    priority: i64,
}

/// One request for each choice of each prompt.
fn submissions(
    engine: &Engine,
    mut answer: Answer,
    n: u32,
    limit: Option<u32>,
    stream: bool,
    common: &Common,
) -> Result<Generation, ApiError> {
    let mut submissions = Vec::with_capacity(n as usize * answer.prompts.len());
    for prompt in &answer.prompts {
        let room = room(engine, prompt.len())?;
        let first = block_hash(engine.config.seed, prompt);
        for variant in 0..n {
            let key = if variant == 0 {
                first
            } else {
                block_hash(first, &[variant])
            };
            answer.output_keys.push(key);
            let wanted = limit.unwrap_or_else(|| natural_length(key));
            answer.stops &= wanted <= room;
            let request = Request {
                id: engine.number(),
                tokens: Arc::clone(prompt),
                max_tokens: wanted.min(room),
                output_key: key,
                cache_salt: common.salt.clone(),
                adapter: common
                    .adapter
                    .map(|index| Arc::from(model_name(engine, index))),
                priority: common.priority,
            };
            let (adapter, stops) = (common.adapter, limit.is_none() && wanted <= room);
            submissions.push(Submission {
                request,
                adapter,
                stops,
                n,
            });
        }
    }
    Ok(Generation {
        answer,
        submissions,
        stream,
    })
}

/// Tokens that the answer may have; none if it ends by itself.
fn limit(fields: &Fields<'_>, dialect: Dialect) -> Result<Option<u32>, ApiError> {
    let limit = fields.count("max_tokens", 1)?;
    match dialect {
        Dialect::Chat => Ok(fields.count("max_completion_tokens", 1)?.or(limit)),
        Dialect::Completion => Ok(limit.or(Some(COMPLETION_TOKENS))),
    }
}

/// Choices of each prompt.
fn choices(fields: &Fields<'_>, prompts: usize) -> Result<u32, ApiError> {
    let n = fields.count("n", 1)?.unwrap_or(1);
    if (n as usize).saturating_mul(prompts) > MOST_CHOICES {
        return Err(ApiError::bad_value(
            "n",
            format!("at most {MOST_CHOICES} choices are possible"),
        ));
    }
    Ok(n)
}

/// Length of an answer that ends by itself: 32 to 287 tokens, by its key alone.
fn natural_length(key: u64) -> u32 {
    32 + u32::try_from(key % 256).unwrap_or(0)
}

/// Tokens that an answer may have: what the prompt leaves.
pub(super) fn room(engine: &Engine, prompt: usize) -> Result<u32, ApiError> {
    let used = u32::try_from(prompt).unwrap_or(u32::MAX);
    match engine.model_len.checked_sub(used) {
        Some(room) if room > 0 => Ok(room),
        _ => Err(ApiError::too_long(prompt, engine.model_len)),
    }
}

/// The model's name for the answer, and the number of its adapter.
pub(super) fn model<'a>(
    engine: &'a Engine,
    fields: &Fields<'a>,
) -> Result<(&'a str, Option<usize>), ApiError> {
    let config = &engine.config;
    let Some(name) = fields.text("model")?.filter(|name| !name.is_empty()) else {
        return Ok((config.models.first().map_or("", String::as_str), None));
    };
    if let Some(index) = config.loras.iter().position(|lora| lora == name) {
        return Ok((name, Some(index)));
    }
    if config.models.iter().any(|model| model == name) {
        return Ok((name, None));
    }
    let known: Vec<&str> = config
        .models
        .iter()
        .chain(&config.loras)
        .map(String::as_str)
        .collect();
    Err(ApiError::unknown_model(name, &known.join(", ")))
}

pub(super) fn model_name(engine: &Engine, adapter: usize) -> &str {
    engine.config.loras.get(adapter).map_or("", String::as_str)
}

/// The header wins over the field; the smallest is the most urgent.
fn priority(headers: &HeaderMap, fields: &Fields<'_>) -> Result<i64, ApiError> {
    let header = headers
        .get("x-vllm-priority")
        .and_then(|value| value.to_str().ok());
    match header.and_then(|value| value.trim().parse().ok()) {
        Some(priority) => Ok(priority),
        None => Ok(fields.integer("priority")?.unwrap_or(0)),
    }
}

fn head(dialect: Dialect, stream: bool, id: &str, model: &str) -> String {
    let (prefix, object) = match (dialect, stream) {
        (Dialect::Chat, false) => ("chatcmpl", "chat.completion"),
        (Dialect::Chat, true) => ("chatcmpl", "chat.completion.chunk"),
        (Dialect::Completion, _) => ("cmpl", "text_completion"),
    };
    let id = Value::from(format!("{prefix}-{id}"));
    let (created, model) = (unix_seconds(), Value::from(model));
    format!("{{\"id\":{id},\"object\":\"{object}\",\"created\":{created},\"model\":{model},")
}

/// The load report that a request can ask for.
fn orca(engine: &Engine, headers: &HeaderMap) -> Option<HeaderValue> {
    let format = headers.get("endpoint-load-metrics-format")?.to_str().ok()?;
    let stats = engine.stats();
    let waiting = f64::from(stats.waiting);
    let usage = f64::from(stats.held_blocks) / f64::from(stats.total_blocks.max(1));
    let text = match format {
        "TEXT" => format!(
            "TEXT named_metrics.num_requests_waiting={waiting:?}, named_metrics.kv_cache_usage_perc={usage:?}"
        ),
        "JSON" => format!(
            "JSON {{\"named_metrics\": {{\"num_requests_waiting\": {waiting:?}, \"kv_cache_usage_perc\": {usage:?}}}}}"
        ),
        _ => return None,
    };
    HeaderValue::try_from(text).ok()
}
