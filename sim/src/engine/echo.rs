//! `x-emulator-echo: 1`: answers with what arrived, to compare byte by byte.

use std::sync::Arc;

use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use xxhash_rust::xxh3::Xxh3Default;

use super::{body::ReplyBody, router, state::Engine};

/// Method, path with query, headers and trailers as `[name, value]` pairs in the order received, and the body's
/// length and XXH3-64.
pub(super) async fn echo(_engine: &Arc<Engine>, request: Request<Incoming>) -> Response<ReplyBody> {
    let (parts, mut body) = request.into_parts();
    let mut hash = Xxh3Default::new();
    let (mut length, mut trailers) = (0_u64, HeaderMap::new());
    let mut whole = true;
    while let Some(frame) = body.frame().await {
        match frame.map(http_body::Frame::into_data) {
            Ok(Ok(bytes)) => {
                length += bytes.len() as u64;
                hash.update(&bytes);
            }
            Ok(Err(frame)) => trailers.extend(frame.into_trailers().unwrap_or_default()),
            Err(_) => {
                whole = false;
                break;
            }
        }
    }
    let path = parts.uri.path_and_query().map_or("", |path| path.as_str());
    let answer = json!({
        "method": parts.method.as_str(),
        "path": path,
        "version": format!("{:?}", parts.version),
        "headers": pairs(&parts.headers),
        "trailers": pairs(&trailers),
        "body_len": length,
        "body_xxh3_hex": format!("{:016x}", hash.digest()),
        "body_whole": whole,
    });
    router::json(StatusCode::OK, answer.to_string())
}

fn pairs(headers: &HeaderMap) -> Vec<Value> {
    let pair = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        json!([name.as_str(), String::from_utf8_lossy(value.as_bytes())])
    };
    headers.iter().map(pair).collect()
}
