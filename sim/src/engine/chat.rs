//! Chat completions and completions, streamed and whole, in vLLM's shapes.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use http_body::Frame;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{
    Failure, Shared,
    api::{Answer, Call, check_model, error, json_answer, parse},
    body::{EngineBody, Piece},
    driver::{Progress, Ticket},
};
use crate::{
    core::{Job, Refused, generated_token, prompt_key},
    text,
};

/// Tokens generated when a completion names no limit; chats default to the room that is left, bounded by this.
const DEFAULT_TOKENS: u64 = 16;
const DEFAULT_CHAT_TOKENS: u64 = 256;

/// Everything about one answer.
struct Reply {
    id: String,
    model: String,
    chat: bool,
    prompts: Vec<Prompt>,
    include_usage: bool,
    continuous_usage: bool,
    failure: Failure,
}

/// One sequence of an answer.
struct Prompt {
    index: usize,
    tokens: Arc<[u32]>,
    key: u64,
    seed: u64,
    ticket: Ticket,
}

/// Tokens of a chat's `messages`; odd shapes count as empty texts.
pub(super) fn chat_tokens(messages: &Value) -> Arc<[u32]> {
    let messages = messages.as_array().map(Vec::as_slice).unwrap_or_default();
    let texts: Vec<(String, String)> = messages
        .iter()
        .map(|message| {
            let role = message.get("role").and_then(Value::as_str).unwrap_or("user");
            (role.to_owned(), content(message.get("content")))
        })
        .collect();
    text::chat(texts.iter().map(|(role, text)| (role.as_str(), text.as_str())))
}

fn content(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str));
            texts.collect::<Vec<_>>().join(" ")
        }
        Some(_) | None => String::new(),
    }
}

/// Tokens of a `prompt` or `input`: text or token ids.
pub(super) fn prompt_tokens(prompt: &Value) -> Vec<u32> {
    match prompt {
        Value::String(text) => text::tokenize(text),
        Value::Array(ids) => {
            let ids = ids.iter().filter_map(Value::as_u64);
            ids.map(|id| u32::try_from(id).unwrap_or(u32::MAX)).collect()
        }
        _ => Vec::new(),
    }
}

fn prompts(body: &Value, chat: bool) -> Result<Vec<Arc<[u32]>>, Box<Answer>> {
    let missing = |field: &str| {
        let message = format!("1 validation error:\n  {{'type': 'missing', 'loc': 'body.{field}', 'msg': 'Field required'}}");
        Box::new(error(400, "Bad Request", &message, Some(&format!("body.{field}"))))
    };
    if chat {
        let messages = body.get("messages").ok_or_else(|| missing("messages"))?;
        if !messages.is_array() {
            return Err(Box::new(error(400, "Bad Request", "messages must be a list", Some("body.messages"))));
        }
        return Ok(vec![chat_tokens(messages)]);
    }
    let prompt = body.get("prompt").ok_or_else(|| missing("prompt"))?;
    Ok(match prompt {
        Value::Array(list) if !list.is_empty() && !list.iter().all(Value::is_number) => {
            list.iter().map(|prompt| prompt_tokens(prompt).into()).collect()
        }
        one => vec![prompt_tokens(one).into()],
    })
}

pub(super) async fn answer(shared: Arc<Shared>, call: Call, chat: bool) -> Answer {
    shared.metrics.count_request();
    if let Some(status) = call.failure.status(shared.metrics.draw()) {
        return error(status, "InternalServerError", "injected failure", None);
    }
    tokio::time::sleep(call.failure.wait()).await;
    match accept(&shared, &call, chat).await {
        Ok((reply, true)) => stream(shared, reply),
        Ok((reply, false)) => whole(&shared, reply).await,
        Err(answer) => *answer,
    }
}

/// Checks a request and queues its sequences; the flag says whether a stream is wanted.
async fn accept(
    shared: &Shared,
    call: &Call,
    chat: bool,
) -> Result<(Reply, bool), Box<Answer>> {
    let body = parse(call)?;
    let model = check_model(shared, &body)?;
    let prompts = prompts(&body, chat)?;
    let number = |key: &str| body.get(key).and_then(Value::as_u64);
    let wanted = number("max_completion_tokens").or_else(|| number("max_tokens"));
    let copies = number("n").unwrap_or(1).clamp(1, 16);
    let salt = body.get("cache_salt").and_then(Value::as_str).unwrap_or_default();
    let mut queued = Vec::new();
    for tokens in prompts {
        let room = shared.config.max_model_len.saturating_sub(tokens.len() as u64);
        if room == 0 {
            let message = format!(
                "This model's maximum context length is {} tokens. However, your prompt has {} tokens.",
                shared.config.max_model_len,
                tokens.len()
            );
            return Err(Box::new(error(400, "BadRequestError", &message, Some("input_tokens"))));
        }
        let default = if chat { DEFAULT_CHAT_TOKENS } else { DEFAULT_TOKENS };
        let limit = u32::try_from(wanted.unwrap_or(default).min(room)).unwrap_or(u32::MAX);
        for copy in 0..copies {
            let job = Job {
                id: 0,
                tokens: Arc::clone(&tokens),
                max_tokens: limit,
                salt: format!("{model}\0{salt}"),
            };
            let key = prompt_key(&job);
            let ticket = shared.driver.submit(job).await.map_err(|why| Box::new(refused(why)))?;
            queued.push(Prompt {
                index: queued.len(),
                tokens: Arc::clone(&tokens),
                key,
                // Copies of one prompt differ in their text, not in their cache.
                seed: shared.config.seed.wrapping_add(copy),
                ticket,
            });
        }
    }
    let options = body.get("stream_options");
    let option = |key: &str| options.and_then(|options| options.get(key)).and_then(Value::as_bool);
    let prefix = if chat { "chatcmpl-" } else { "cmpl-" };
    let given = call.headers.get("x-request-id").and_then(|id| id.to_str().ok());
    let id = given.map_or_else(|| shared.metrics.next_id(), str::to_owned);
    let reply = Reply {
        id: format!("{prefix}{id}"),
        model,
        chat,
        prompts: queued,
        include_usage: option("include_usage").unwrap_or(false),
        continuous_usage: option("continuous_usage_stats").unwrap_or(false),
        failure: call.failure.clone(),
    };
    let streamed = body.get("stream").and_then(Value::as_bool).unwrap_or(false);
    Ok((reply, streamed))
}

fn refused(why: Refused) -> Answer {
    match why {
        Refused::QueueFull => {
            let message = "The engine is currently busy and its request queue is full. Please retry later.";
            error(503, "Service Unavailable", message, None)
        }
        Refused::TooLong => {
            error(400, "BadRequestError", "the request needs more KV cache than there is", Some("input_tokens"))
        }
    }
}

impl Prompt {
    fn word(&self, at: u32) -> String {
        let word = text::word(generated_token(self.seed, self.key, at));
        if at == 0 { word } else { format!(" {word}") }
    }

    fn text(&self, generated: u32) -> String {
        (0..generated).map(|at| self.word(at)).collect()
    }

    /// Waits for more than `seen` tokens; `None` when the engine is gone.
    async fn more_than(&mut self, seen: u32) -> Option<Progress> {
        let waited = self.ticket.progress.wait_for(|progress| progress.generated > seen).await;
        waited.ok().map(|progress| *progress)
    }
}

impl Reply {
    fn usage(&self, generated: u64, cached: u64) -> Value {
        if self.failure.wrong_usage {
            return json!({"prompt_tokens": "many", "completion_tokens": -1, "total_tokens": null});
        }
        let prompt: usize = self.prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        json!({
            "prompt_tokens": prompt, "total_tokens": prompt as u64 + generated, "completion_tokens": generated,
            "prompt_tokens_details": {"cached_tokens": cached},
        })
    }

    fn chunk(&self, choices: &Value) -> Value {
        let object = if self.chat { "chat.completion.chunk" } else { "text_completion" };
        json!({"id": self.id, "object": object, "created": 0, "model": self.model, "choices": choices})
    }

    fn delta(&self, index: usize, text: &str, finished: bool) -> Value {
        let reason = if finished { json!("length") } else { Value::Null };
        if self.chat {
            json!([{"index": index, "delta": {"content": text}, "logprobs": null, "finish_reason": reason}])
        } else {
            json!([{"index": index, "text": text, "logprobs": null, "finish_reason": reason}])
        }
    }
}

async fn whole(shared: &Shared, mut reply: Reply) -> Answer {
    let started = std::time::Instant::now();
    let (mut choices, mut generated, mut cached) = (Vec::new(), 0, 0);
    let mut prompts = std::mem::take(&mut reply.prompts);
    for prompt in &mut prompts {
        let Ok(done) = prompt.ticket.progress.wait_for(|progress| progress.finished).await.map(|done| *done) else {
            return error(500, "InternalServerError", "EngineCore encountered an issue.", None);
        };
        generated += u64::from(done.generated);
        cached += u64::from(done.cached_tokens);
        let text = prompt.text(done.generated);
        choices.push(if reply.chat {
            json!({"index": prompt.index, "message": {"role": "assistant", "content": text, "refusal": null},
                   "logprobs": null, "finish_reason": "length", "stop_reason": null})
        } else {
            json!({"index": prompt.index, "text": text, "logprobs": null, "finish_reason": "length", "stop_reason": null})
        });
    }
    shared.metrics.ended(started.elapsed());
    reply.prompts = prompts;
    let object = if reply.chat { "chat.completion" } else { "text_completion" };
    json_answer(
        200,
        &json!({"id": reply.id, "object": object, "created": 0, "model": reply.model, "choices": choices,
                "usage": reply.usage(generated, cached)}),
    )
}

fn stream(shared: Arc<Shared>, reply: Reply) -> Answer {
    let (to, body) = EngineBody::pieces();
    tokio::spawn(async move {
        let closed = to.clone();
        tokio::select! {
            // The caller hung up: dropping the reply aborts its sequences.
            () = closed.closed() => {}
            _ = feed(&shared, reply, &to) => {}
        }
    });
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Sends events until a fault on purpose stops it.
struct Events<'a> {
    to: &'a mpsc::Sender<Piece>,
    failure: Failure,
    sent: u32,
}

/// The stream is over early: the caller is gone, or a fault was asked for.
struct Over;

impl Events<'_> {
    async fn send(&mut self, data: &str) -> Result<(), Over> {
        if self.failure.stall_after == Some(self.sent) {
            std::future::pending::<()>().await;
        }
        if self.failure.cut_after == Some(self.sent) {
            let cut = io::Error::other("cut on purpose");
            // Nobody left to cut off.
            let _ = self.to.send(Err(cut)).await;
            return Err(Over);
        }
        self.sent += 1;
        let piece = Frame::data(Bytes::from(format!("data: {data}\n\n")));
        self.to.send(Ok(piece)).await.map_err(|_| Over)
    }
}

async fn feed(shared: &Shared, mut reply: Reply, to: &mpsc::Sender<Piece>) -> Result<(), Over> {
    let started = std::time::Instant::now();
    let mut events = Events {
        to,
        failure: reply.failure.clone(),
        sent: 0,
    };
    let (mut total, mut cached) = (0_u64, 0_u64);
    let mut prompts = std::mem::take(&mut reply.prompts);
    for prompt in &mut prompts {
        let mut sent = 0;
        loop {
            let Some(progress) = prompt.more_than(sent).await else {
                let error = json!({"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": null, "code": 500}});
                events.send(&error.to_string()).await?;
                return events.send("[DONE]").await;
            };
            if sent == 0 {
                shared.metrics.first_token(started.elapsed());
                cached += u64::from(progress.cached_tokens);
                if reply.chat {
                    let role = json!([{"index": prompt.index, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null}]);
                    events.send(&reply.chunk(&role).to_string()).await?;
                }
            }
            while sent < progress.generated {
                let last = progress.finished && sent + 1 == progress.generated;
                let mut chunk = reply.chunk(&reply.delta(prompt.index, &prompt.word(sent), last));
                total += 1;
                if reply.continuous_usage && let Some(map) = chunk.as_object_mut() {
                    map.insert("usage".into(), reply.usage(total, cached));
                }
                events.send(&chunk.to_string()).await?;
                sent += 1;
            }
            if progress.finished {
                break;
            }
        }
    }
    shared.metrics.ended(started.elapsed());
    reply.prompts = prompts;
    if reply.include_usage {
        let mut chunk = reply.chunk(&json!([]));
        if let Some(map) = chunk.as_object_mut() {
            map.insert("usage".into(), reply.usage(total, cached));
        }
        events.send(&chunk.to_string()).await?;
    }
    events.send("[DONE]").await?;
    // The end goes out before the sequences' tickets are dropped.
    tokio::time::sleep(Duration::ZERO).await;
    Ok(())
}
