//! Endpoints at run time: listed, added and removed.
//!
//! What is added or removed here lasts as long as the process, over reloads of the configuration too.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Map, Value, json};
use tokio::time::timeout;
use wicketgate_wire::EngineKind;

use super::{Refusal, answer, body::Answer};
use crate::{
    discovery::{AddError, Directory, EndpointEntry},
    gateway::ReadEndpoints,
};

/// Longest description of an endpoint, in bytes.
const MOST: usize = 64 << 10;
/// Longest time for it to come in.
const PAUSE: Duration = Duration::from_secs(10);

/// Each pool's endpoints, and how one is read.
pub(crate) struct Endpoints {
    pub(crate) pools: Vec<(Arc<str>, Arc<Directory>)>,
    pub(crate) read: ReadEndpoints,
}

impl Endpoints {
    pub(super) fn list(&self) -> Response<Answer> {
        let pools: Map<String, Value> = self
            .pools
            .iter()
            .map(|(name, directory)| {
                let all = directory.list();
                let all: Vec<Value> = all
                    .iter()
                    .map(|(entry, by_hand)| shown(entry, *by_hand))
                    .collect();
                (name.to_string(), all.into())
            })
            .collect();
        answer(StatusCode::OK, &json!({"pools": pools}))
    }

    /// One endpoint with the keys of an endpoints file, and `pool` where there are several.
    pub(super) async fn add(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Answer>, Refusal> {
        let bad = |what: String| Refusal::new(StatusCode::BAD_REQUEST, "invalid_body", what);
        let body = read(request.into_body()).await?;
        let mut body: Map<String, Value> = serde_json::from_slice(&body)
            .map_err(|error| bad(format!("no JSON object: {error}")))?;
        let pool = match body.remove("pool") {
            None => None,
            Some(Value::String(name)) => Some(name),
            Some(other) => return Err(bad(format!("pool: {other} is no name of a pool"))),
        };
        let directory = self.pool(pool.as_deref())?;
        // JSON is YAML: the checks, and the words, are those of a watched file.
        let text = json!({"endpoints": [body]}).to_string();
        let mut entries = (self.read)(&text, "request").map_err(bad)?;
        let Some(entry) = entries.pop() else {
            return Err(bad("no endpoint".to_owned()));
        };
        let added = shown(&entry, true);
        match directory.add(entry) {
            Ok(()) => Ok(answer(StatusCode::CREATED, &added)),
            Err(error) => {
                let code = match error {
                    AddError::Known { .. } => "endpoint_exists",
                    AddError::TooMany => "too_many_endpoints",
                };
                Err(Refusal::new(StatusCode::CONFLICT, code, error.to_string()))
            }
        }
    }

    pub(super) fn remove(
        &self,
        name: &str,
        query: Option<&str>,
    ) -> Result<Response<Answer>, Refusal> {
        let name = decoded(name);
        let pool = query.and_then(|query| query.strip_prefix("pool="));
        let directory = self.pool(pool.map(decoded).as_deref())?;
        match directory.remove(&name) {
            true => Ok(answer(StatusCode::OK, &json!({"removed": name}))),
            false => {
                let what = format!("the pool has no endpoint of the name {name:?}");
                Err(Refusal::new(
                    StatusCode::NOT_FOUND,
                    "no_such_endpoint",
                    what,
                ))
            }
        }
    }

    fn pool(&self, name: Option<&str>) -> Result<&Directory, Refusal> {
        let found = match (name, self.pools.as_slice()) {
            (None, [(_, only)]) => Some(only),
            (None, _) => None,
            (Some(name), pools) => pools
                .iter()
                .find(|(known, _)| **known == *name)
                .map(|(_, directory)| directory),
        };
        found.map(AsRef::as_ref).ok_or_else(|| {
            let names: Vec<&str> = self.pools.iter().map(|(name, _)| &**name).collect();
            let what = format!("name one of the pools {}", names.join(", "));
            Refusal::new(StatusCode::NOT_FOUND, "no_such_pool", what)
        })
    }
}

fn shown(entry: &EndpointEntry, by_hand: bool) -> Value {
    json!({
        "name": entry.name,
        "address": entry.address,
        "weight": entry.weight,
        "draining": entry.draining,
        "labels": entry.labels,
        "engine": match entry.engine {
            EngineKind::Vllm => "vllm",
            EngineKind::Sglang => "sglang",
        },
        "added": by_hand,
    })
}

/// A name from a path or query, where `%5B` stands for `[`. What is no escape stays as it is.
fn decoded(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = match (first, tail) {
            (b'%', [high, low, ..]) => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                digit(high)
                    .zip(digit(low))
                    .map(|(high, low)| (high * 16 + low) as u8)
            }
            _ => None,
        };
        out.push(escaped.unwrap_or(*first));
        rest = tail
            .get(if escaped.is_some() { 2 } else { 0 }..)
            .unwrap_or_default();
    }
    String::from_utf8_lossy(&out).into_owned()
}

async fn read(mut body: Incoming) -> Result<Bytes, Refusal> {
    let all = async {
        let mut all = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                let what = format!("the body broke off: {error}");
                Refusal::new(StatusCode::BAD_REQUEST, "incomplete_body", what)
            })?;
            if let Ok(data) = frame.into_data() {
                if all.len() + data.len() > MOST {
                    let what = format!("longer than {MOST} bytes");
                    return Err(Refusal::new(
                        StatusCode::PAYLOAD_TOO_LARGE,
                        "too_large",
                        what,
                    ));
                }
                all.extend_from_slice(&data);
            }
        }
        Ok(all.freeze())
    };
    timeout(PAUSE, all).await.unwrap_or_else(|_| {
        let what = "the body did not come in in time";
        Err(Refusal::new(
            StatusCode::REQUEST_TIMEOUT,
            "body_timeout",
            what,
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_from_paths() {
        for (text, name) in [
            ("e0", "e0"),
            ("10.0.0.1:8000", "10.0.0.1:8000"),
            ("%5Bfd00%3a%3A1%5D:80", "[fd00::1]:80"),
            ("a%2", "a%2"),
            ("%", "%"),
            ("%zz%41", "%zzA"),
            ("%ff", "\u{fffd}"),
        ] {
            assert_eq!(decoded(text), name, "{text}");
        }
    }
}
