//! Paths, and the failures to inject.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    FailureConfig,
    api::{self, ApiError, Dialect},
    body::{ReplyBody, TRAILERS},
    echo::echo,
    failure::Fault,
    state::{Engine, SleepLevel},
    stats::{Account, Ended},
};

/// What a path asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Generate(Dialect),
    Embed,
    Models,
    Probe,
    Metrics,
    Version,
    Load,
    Tokenize,
    Detokenize,
    Render(Dialect),
    KvEventSources,
    Sleep,
    WakeUp,
    IsSleeping,
    ResetPrefixCache,
    Failure,
    Stats,
}

impl Route {
    fn of(path: &str) -> Option<(Route, Method)> {
        Some(match path {
            "/v1/chat/completions" => (Route::Generate(Dialect::Chat), Method::POST),
            "/v1/completions" => (Route::Generate(Dialect::Completion), Method::POST),
            "/v1/embeddings" => (Route::Embed, Method::POST),
            "/v1/models" => (Route::Models, Method::GET),
            "/health" | "/ping" => (Route::Probe, Method::GET),
            "/metrics" => (Route::Metrics, Method::GET),
            "/version" => (Route::Version, Method::GET),
            "/load" => (Route::Load, Method::GET),
            "/tokenize" => (Route::Tokenize, Method::POST),
            "/detokenize" => (Route::Detokenize, Method::POST),
            "/v1/chat/completions/render" => (Route::Render(Dialect::Chat), Method::POST),
            "/v1/completions/render" => (Route::Render(Dialect::Completion), Method::POST),
            "/kv_event_sources" => (Route::KvEventSources, Method::GET),
            "/sleep" => (Route::Sleep, Method::POST),
            "/wake_up" => (Route::WakeUp, Method::POST),
            "/is_sleeping" => (Route::IsSleeping, Method::GET),
            "/reset_prefix_cache" => (Route::ResetPrefixCache, Method::POST),
            "/emulator/failure" => (Route::Failure, Method::POST),
            "/emulator/stats" => (Route::Stats, Method::GET),
            _ => return None,
        })
    }
}

/// Answers a request.
pub(super) async fn handle(
    engine: Arc<Engine>,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    let asked = |name: &str| {
        request
            .headers()
            .get(name)
            .is_some_and(|value| value == "1")
    };
    let trailers = asked("x-emulator-trailers");
    let response = if asked("x-emulator-echo") {
        echo(&engine, request).await
    } else {
        route(&engine, request).await
    };
    Ok(if trailers {
        with_trailers(response)
    } else {
        response
    })
}

fn with_trailers(mut response: Response<ReplyBody>) -> Response<ReplyBody> {
    response.headers_mut().remove(header::CONTENT_LENGTH);
    response
        .headers_mut()
        .insert(header::TRAILER, HeaderValue::from_static(TRAILERS));
    response.map(ReplyBody::with_trailers)
}

async fn route(engine: &Arc<Engine>, request: Request<Incoming>) -> Response<ReplyBody> {
    let Some((route, method)) = Route::of(request.uri().path()) else {
        return json(StatusCode::NOT_FOUND, r#"{"detail":"Not Found"}"#);
    };
    if request.method() != method && !(method == Method::GET && request.method() == Method::HEAD) {
        let mut response = json(
            StatusCode::METHOD_NOT_ALLOWED,
            r#"{"detail":"Method Not Allowed"}"#,
        );
        if let Ok(allow) = HeaderValue::from_str(method.as_str()) {
            response.headers_mut().insert(header::ALLOW, allow);
        }
        return response;
    }
    match route {
        Route::Generate(_) | Route::Embed => infer(engine, route, request).await,
        Route::Models => json(StatusCode::OK, api::models(engine)),
        Route::Probe => match probe_fault(engine).await {
            Some(error) => error,
            None => Response::new(ReplyBody::whole(Bytes::new())),
        },
        Route::Metrics => match probe_fault(engine).await {
            Some(error) => error,
            None => metrics(engine),
        },
        Route::Version => json(
            StatusCode::OK,
            r#"{"version":"0.32.0+wicketgate.emulated"}"#,
        ),
        Route::Load => {
            let load = engine.counters.in_flight();
            json(StatusCode::OK, format!("{{\"server_load\":{load}}}"))
        }
        Route::Tokenize => match tokenize_fault(engine).await {
            Err(error) => error,
            Ok(skew) => {
                let answer = |body: &Value| api::tokenize(engine, body, skew);
                with_body(engine, request, answer).await
            }
        },
        Route::Render(dialect) => match tokenize_fault(engine).await {
            Err(error) => error,
            Ok(skew) => {
                let answer = |body: &Value| api::render(engine, body, dialect, skew);
                with_body(engine, request, answer).await
            }
        },
        Route::KvEventSources => json(StatusCode::OK, engine.kv_event_sources()),
        Route::Sleep => match sleep_level(request.uri().query()) {
            Some(level) => {
                engine.sleep(level);
                Response::new(ReplyBody::whole(Bytes::new()))
            }
            None => error(&ApiError::bad_value("level", "the level is 1 or 2")),
        },
        Route::WakeUp => {
            engine.wake_up();
            Response::new(ReplyBody::whole(Bytes::new()))
        }
        Route::IsSleeping => {
            let asleep = engine.is_sleeping();
            json(StatusCode::OK, format!("{{\"is_sleeping\":{asleep}}}"))
        }
        Route::Detokenize => with_body(engine, request, |body| api::detokenize(engine, body)).await,
        Route::ResetPrefixCache => {
            let done = engine.reset_prefix_cache();
            json(StatusCode::OK, format!("{{\"success\":{done}}}"))
        }
        Route::Failure => with_body(engine, request, |body| change_failure(engine, body)).await,
        Route::Stats => match serde_json::to_string(&engine.stats()) {
            Ok(stats) => json(StatusCode::OK, stats),
            Err(_) => json(StatusCode::INTERNAL_SERVER_ERROR, "{}"),
        },
    }
}

/// An inference request, counted from here to the last byte of its answer.
async fn infer(
    engine: &Arc<Engine>,
    route: Route,
    request: Request<Incoming>,
) -> Response<ReplyBody> {
    let (parts, body) = request.into_parts();
    let number = engine.number();
    let header = parts
        .headers
        .get("x-request-id")
        .and_then(|value| value.to_str().ok());
    let mut account = Account::open(
        engine,
        match header {
            Some(id) => id.to_owned(),
            None => format!(
                "{:016x}",
                xxh3_64_with_seed(&number.to_le_bytes(), engine.config.seed)
            ),
        },
    );
    let fault = match fault(engine, &parts.headers, number) {
        Ok(fault) => fault,
        Err(message) => {
            account.end(Ended::Refused);
            return error(&ApiError::bad_value("x-emulator-failure", message));
        }
    };
    if fault.slow_ms > 0 {
        tokio::time::sleep(Duration::from_millis(fault.slow_ms)).await;
    }
    if let Some(status) = fault
        .status
        .and_then(|status| StatusCode::from_u16(status).ok())
    {
        account.end(Ended::Injected);
        return error(&ApiError::injected(status));
    }
    let answer = match read_json(engine, &parts.headers, body).await {
        Ok(body) => {
            if let Some(id) = body
                .get("request_id")
                .and_then(Value::as_str)
                .filter(|_| header.is_none())
            {
                account.rename(id);
            }
            let account = &account;
            match route {
                Route::Generate(dialect) => {
                    api::generate(engine, &parts.headers, &body, dialect, fault, account).await
                }
                _ => api::embeddings(engine, &body, account).await,
            }
        }
        Err(wrong) => Err(wrong),
    };
    match answer {
        Ok(response) => response.map(|body| body.with_account(account)),
        Err(wrong) => {
            account.end(Ended::Refused);
            error(&wrong)
        }
    }
}

/// What this request suffers: by its own header, else by the engine's settings.
fn fault(engine: &Engine, headers: &HeaderMap, number: u64) -> Result<Fault, String> {
    if let Some(header) = headers
        .get("x-emulator-failure")
        .filter(|_| engine.config.allow_failure_injection)
    {
        return Fault::parse(header.to_str().map_err(|_| "not ASCII".to_owned())?);
    }
    let failure = engine.failure.lock();
    let draw = xxh3_64_with_seed(&number.to_be_bytes(), engine.config.seed);
    let hit = failure.rate >= 1.0 || ((draw >> 11) as f64) < failure.rate * (1_u64 << 53) as f64;
    Ok(if hit {
        failure.fault()
    } else {
        Fault::default()
    })
}

/// The failure of a probe or a scrape, after its delay.
async fn probe_fault(engine: &Engine) -> Option<Response<ReplyBody>> {
    let (delay, status) = {
        let failure = engine.failure.lock();
        (failure.probe_slow_ms, failure.probe_status)
    };
    if delay > 0 {
        tokio::time::sleep(Duration::from_millis(delay)).await;
    }
    let status = StatusCode::from_u16(status?).ok()?;
    Some(error(&ApiError::injected(status)))
}

/// By how much the ids of `/tokenize` are wrong, after its delay, or its failure.
async fn tokenize_fault(engine: &Engine) -> Result<u32, Response<ReplyBody>> {
    let (delay, status, skew) = {
        let failure = engine.failure.lock();
        let status = failure.tokenize_status;
        (failure.tokenize_slow_ms, status, failure.tokenize_skew)
    };
    if delay > 0 {
        tokio::time::sleep(Duration::from_millis(delay)).await;
    }
    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
    match status {
        Some(status) => Err(error(&ApiError::injected(status))),
        None => Ok(skew),
    }
}

/// How deep the engine is to sleep: vLLM's levels, 1 if nothing is said.
fn sleep_level(query: Option<&str>) -> Option<SleepLevel> {
    let pairs = query.unwrap_or_default().split('&');
    let mut level = pairs.filter_map(|pair| pair.strip_prefix("level="));
    match level.next() {
        None | Some("1") => Some(SleepLevel::Offloaded),
        Some("2") => Some(SleepLevel::Discarded),
        Some(_) => None,
    }
}

fn metrics(engine: &Engine) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::whole(engine.page()));
    let kind = HeaderValue::from_static("text/plain; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn change_failure(engine: &Engine, body: &Value) -> Result<String, ApiError> {
    if !engine.config.allow_failure_injection {
        return Err(ApiError::forbidden(
            "failure injection is not allowed on this engine",
        ));
    }
    let failure: FailureConfig = serde_json::from_value(body.clone())
        .map_err(|wrong| ApiError::bad_value("failure", wrong.to_string()))?;
    failure
        .validate()
        .map_err(|wrong| ApiError::bad_value("failure", wrong))?;
    let text = serde_json::to_string(&failure).unwrap_or_default();
    engine.set_failure(failure);
    Ok(text)
}

async fn with_body(
    engine: &Engine,
    request: Request<Incoming>,
    answer: impl FnOnce(&Value) -> Result<String, ApiError>,
) -> Response<ReplyBody> {
    let (parts, body) = request.into_parts();
    match read_json(engine, &parts.headers, body)
        .await
        .and_then(|body| answer(&body))
    {
        Ok(text) => json(StatusCode::OK, text),
        Err(wrong) => error(&wrong),
    }
}

async fn read_json(
    engine: &Engine,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<Value, ApiError> {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    if kind.is_some_and(|kind| !kind.to_ascii_lowercase().contains("json")) {
        return Err(ApiError::media_type());
    }
    let body = read(body, engine.config.max_body_bytes).await?;
    serde_json::from_slice(&body).map_err(|wrong| ApiError::json(&wrong))
}

async fn read(mut body: Incoming, most: usize) -> Result<Bytes, ApiError> {
    let declared = body.size_hint().lower();
    if declared > most as u64 {
        return Err(ApiError::body_too_large(most));
    }
    let mut all = BytesMut::with_capacity(usize::try_from(declared).unwrap_or(0).min(1 << 20));
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| ApiError::bad_value("body", "the body ended early"))?;
        if let Ok(bytes) = frame.into_data() {
            if all.len() + bytes.len() > most {
                return Err(ApiError::body_too_large(most));
            }
            all.extend_from_slice(&bytes);
        }
    }
    Ok(all.freeze())
}

/// A JSON answer.
pub(super) fn json(status: StatusCode, text: impl Into<Bytes>) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::whole(text));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

fn error(error: &ApiError) -> Response<ReplyBody> {
    json(error.status, error.to_json())
}

pub(super) fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}
