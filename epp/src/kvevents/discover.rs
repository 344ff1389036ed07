//! What an engine says of itself: `GET /kv_event_sources` (vLLM 0.32 and later) where it publishes, `GET /v1/models`
//! what its model is called.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use bytes::BytesMut;
use serde::Deserialize;
use thiserror::Error;
use wicketgate_zmtp::Role;

use super::{
    config::{Events, IntakeConfig, RankSource},
    dial,
};
use crate::engine::{AskError, Line, Question};

/// Longest answer in bytes.
const MOST: usize = 1 << 20;

/// Why nothing is known of an engine.
#[derive(Debug, Error)]
pub enum DiscoverError {
    /// It has no such page: an older engine, or not vLLM.
    #[error("the engine does not say (status {0})")]
    Absent(u16),
    /// It could not be asked.
    #[error("the engine could not be asked: {0}")]
    Unreachable(#[from] AskError),
    /// The answer makes no sense.
    #[error("the engine's answer makes no sense: {0}")]
    Answer(String),
}

/// One rank's publisher, as vLLM describes it.
#[derive(Debug, Deserialize)]
struct Publisher {
    #[serde(default)]
    enable_kv_cache_events: bool,
    #[serde(default)]
    publisher: String,
    #[serde(default)]
    endpoint: String,
    replay_endpoint: Option<String>,
}

/// Asks an engine; `host` is where it is. Where it names a host, whoever listens there is greeted: it may be the engine
/// itself.
///
/// # Errors
/// When it does not answer in time, or not with a list of publishers.
pub(crate) async fn discover(
    line: &Line,
    host: &str,
    within: Duration,
) -> Result<Vec<RankSource>, DiscoverError> {
    let body = get(line, "/kv_event_sources", within).await?;
    let mut ranks = parse_sources(&body, host)?;
    let config = IntakeConfig {
        connect_timeout: within,
        ..IntakeConfig::default()
    };
    for rank in &mut ranks {
        if let Events::Listen { at, .. } = rank.events
            && dial::connect(&at.to_string(), Role::Sub, &config)
                .await
                .is_ok()
        {
            rank.events = Events::Connect(at.to_string());
        }
    }
    Ok(ranks)
}

/// One entry of the list of models.
#[derive(Debug, Deserialize)]
struct Served {
    id: String,
    /// The model that an adapter belongs to.
    parent: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Models {
    data: Vec<Served>,
}

/// Asks an engine for the name of its model: the first that is no adapter.
///
/// # Errors
/// When it does not answer in time, or names none.
pub(crate) async fn base_model(line: &Line, within: Duration) -> Result<String, DiscoverError> {
    let body = get(line, "/v1/models", within).await?;
    parse_models(&body)
}

fn parse_models(json: &[u8]) -> Result<String, DiscoverError> {
    let models: Models =
        serde_json::from_slice(json).map_err(|error| DiscoverError::Answer(error.to_string()))?;
    let base = models.data.into_iter().find(|model| model.parent.is_none());
    base.map(|model| model.id)
        .ok_or_else(|| DiscoverError::Answer("it names no model".to_owned()))
}

async fn get(line: &Line, path: &'static str, within: Duration) -> Result<BytesMut, DiscoverError> {
    let answer = line.ask(Question::get(path), MOST, within).await?;
    match answer.status.is_success() {
        true => Ok(answer.body),
        false => Err(DiscoverError::Absent(answer.status.as_u16())),
    }
}

/// Reads the answer of an engine on `host`. Ranks that do not publish over ZMQ are left out.
///
/// # Errors
/// When it is not a list of publishers, or one publishes where nobody can listen.
pub fn parse_sources(json: &[u8], host: &str) -> Result<Vec<RankSource>, DiscoverError> {
    let wrong = |what: String| DiscoverError::Answer(what);
    let publishers: BTreeMap<u32, Publisher> =
        serde_json::from_slice(json).map_err(|error| wrong(error.to_string()))?;
    let mut ranks = Vec::new();
    for (rank, publisher) in publishers {
        if !publisher.enable_kv_cache_events || publisher.publisher != "zmq" {
            continue;
        }
        let events = events(&publisher.endpoint, host)
            .ok_or_else(|| wrong(format!("{:?} is not a TCP address", publisher.endpoint)))?;
        let replay = match &publisher.replay_endpoint {
            Some(endpoint) => {
                let (_, port) = split(endpoint)
                    .ok_or_else(|| wrong(format!("{endpoint:?} is not a TCP address")))?;
                // A replay socket is always bound, so it is where the engine is.
                Some(format!("{host}:{port}"))
            }
            None => None,
        };
        ranks.push(RankSource {
            rank,
            events,
            replay,
        });
    }
    Ok(ranks)
}

/// vLLM listens on an endpoint that names no host or has `::` in it, and connects to any other; but where it let the
/// system choose a port (`tcp://*:0`) it listens, and names its own host.
fn events(endpoint: &str, host: &str) -> Option<Events> {
    let (named, port) = split(endpoint)?;
    if matches!(named, "*" | "::" | "[::]") {
        return Some(Events::Connect(format!("{host}:{port}")));
    }
    if named.contains("::") {
        let at: SocketAddr = format!("{named}:{port}").parse().ok()?;
        // A socket of IPv6 that is an address of IPv4 is one of IPv4.
        let at = SocketAddr::new(at.ip().to_canonical(), port);
        return Some(Events::Connect(at.to_string()));
    }
    let at = match named {
        "localhost" => SocketAddr::from(([127, 0, 0, 1], port)),
        _ => format!("{named}:{port}").parse().ok()?,
    };
    Some(Events::Listen { at, from: None })
}

fn split(endpoint: &str) -> Option<(&str, u16)> {
    let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    Some((host, port.parse().ok()?)).filter(|(host, _)| !host.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As captured from vLLM 0.32 with two ranks.
    const CAPTURED: &str = r#"{"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://127.0.0.1:5558","replay_endpoint":null,"buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"kv@127.0.0.1:8001@tiny"},"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://127.0.0.1:5559","buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"kv@127.0.0.1:8001@tiny"}}"#;

    #[test]
    fn a_host_means_that_the_engine_connects() {
        let ranks = parse_sources(CAPTURED.as_bytes(), "10.0.0.7").unwrap();
        let expected = [
            RankSource {
                rank: 0,
                events: Events::Connect("10.0.0.7:5557".to_owned()),
                replay: Some("10.0.0.7:5559".to_owned()),
            },
            RankSource {
                rank: 1,
                events: Events::Listen {
                    at: "127.0.0.1:5558".parse().unwrap(),
                    from: None,
                },
                replay: None,
            },
        ];
        assert_eq!(ranks, expected);
    }

    #[test]
    fn an_address_of_ipv6_with_a_gap_is_the_engines_own() {
        for (endpoint, at) in [
            ("tcp://[::ffff:127.0.0.1]:5557", "127.0.0.1:5557"),
            ("tcp://[fd00::7]:5557", "[fd00::7]:5557"),
            ("tcp://[::]:5557", "h:5557"),
        ] {
            let expected = Events::Connect(at.to_owned());
            assert_eq!(events(endpoint, "h"), Some(expected), "{endpoint}");
        }
    }

    #[test]
    fn the_model_is_the_first_that_is_no_adapter() {
        let list = br#"{"object":"list","data":[{"id":"food","parent":"m"},{"id":"m","parent":null},{"id":"n"}]}"#;
        assert_eq!(parse_models(list).unwrap(), "m");
        for none in [
            &b"{}"[..],
            br#"{"data":[]}"#,
            br#"{"data":[{"id":"a","parent":"m"}]}"#,
        ] {
            assert!(parse_models(none).is_err());
        }
    }

    #[test]
    fn what_cannot_be_listened_to_is_said_or_left_out() {
        let off = br#"{"0":{"enable_kv_cache_events":false,"publisher":"null","endpoint":"","replay_endpoint":null}}"#;
        assert_eq!(parse_sources(off, "h").unwrap(), []);
        for (json, says) in [
            ("[]", "invalid type"),
            (r#"{"x":{}}"#, "invalid"),
            (
                r#"{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"ipc:///tmp/x"}}"#,
                "ipc:///tmp/x",
            ),
            (
                r#"{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:99999"}}"#,
                "99999",
            ),
        ] {
            let wrong = parse_sources(json.as_bytes(), "h").unwrap_err().to_string();
            assert!(wrong.contains(says), "{json}: {wrong}");
        }
    }
}
