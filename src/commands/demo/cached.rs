//! Engines that say what they cache, and their tokeniser in this process.

use std::{net::SocketAddr, sync::Arc};

use serde_json::Value;
use tokio::net::TcpListener;
use wicketgate_epp::prefix::{Api, Tokens, TokensError};
use wicketgate_sim::{
    engine::{EngineConfig, EngineHandle, KvEventsConfig, KvPublisher, spawn_with},
    text,
};

/// An engine and the publisher of its KV events.
pub(super) struct Publishing {
    pub(super) handle: EngineHandle,
    publisher: Arc<KvPublisher>,
}

/// Engines on free ports, each with a publisher on another one.
pub(super) async fn engines(
    configs: impl IntoIterator<Item = EngineConfig>,
) -> std::io::Result<Vec<Publishing>> {
    let mut engines = Vec::new();
    for config in configs {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let topic = format!("kv@{}@emulated", listener.local_addr()?);
        let events = SocketAddr::from(([127, 0, 0, 1], 0));
        let publisher = KvPublisher::start(KvEventsConfig::at(events, topic)).await?;
        let publisher = Arc::new(publisher);
        engines.push(Publishing {
            handle: spawn_with(listener, config, Some(publisher.clone()))?,
            publisher,
        });
    }
    Ok(engines)
}

/// A configuration with these endpoints and an index of what they cache.
pub(super) fn config(engines: &[Publishing]) -> String {
    let endpoints = engines.iter().map(|engine| {
        let (address, port) = (engine.handle.address(), engine.publisher.events().port());
        format!("  - {{address: \"{address}\", labels: {{kv-events-port: \"{port}\"}}}}\n")
    });
    format!(
        "pools:\n- name: main\n  endpoints:\n{}kvIndex:\n  events: {{mode: connect}}\n",
        endpoints.collect::<String>()
    )
}

/// What an emulated engine makes of a chat of texts.
pub(super) struct EmulatedTokens;

impl Tokens for EmulatedTokens {
    fn tokens(&self, api: Api, body: &[u8]) -> Result<Vec<u32>, TokensError> {
        let other = TokensError::Unsupported("anything but chats of texts");
        let body: Value = serde_json::from_slice(body)
            .map_err(|error| TokensError::Request(error.to_string()))?;
        let messages = match (api, body.get("messages"), body.get("tools")) {
            (Api::ChatCompletions, Some(Value::Array(messages)), None) => messages,
            _ => return Err(other),
        };
        let turn = |message| {
            let field = |name| Value::as_str(Value::get(message, name)?);
            Some((field("role")?, field("content")?))
        };
        let turns: Option<Vec<(&str, &str)>> = messages.iter().map(turn).collect();
        Ok(text::chat(turns.ok_or(other)?, true))
    }
}
