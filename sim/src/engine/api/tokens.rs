//! `/tokenize`, `/detokenize`, the `/render` pages and `/v1/models`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{ApiError, Dialect, fields::Fields, generate, prompt};
use crate::{engine::state::Engine, text};

/// Ids that are wrong by `skew`; right with 0.
fn skewed(tokens: &[u32], skew: u32) -> Vec<u32> {
    tokens
        .iter()
        .map(|token| token.wrapping_add(skew))
        .collect()
}

/// Tokens of a prompt, or of a chat's messages; each id is too large by `skew`.
///
/// # Errors
/// What the client did wrong.
pub(in crate::engine) fn tokenize(
    engine: &Engine,
    body: &Value,
    skew: u32,
) -> Result<String, ApiError> {
    let fields = Fields::of(body)?;
    let tokens: Arc<[u32]> = if fields.get("messages").is_some() {
        let generation = match fields.get("add_generation_prompt") {
            Some(_) => fields.flag("add_generation_prompt")?,
            None => true,
        };
        prompt::chat(&fields, generation)?
    } else {
        fields.need("prompt")?;
        text::tokenize(fields.text("prompt")?.unwrap_or_default()).into()
    };
    generate::model(engine, &fields)?;
    let strings = fields.flag("return_token_strs")?.then(|| {
        let each = tokens.iter().map(|token| text::detokenize(&[*token]));
        each.collect::<Vec<String>>()
    });
    let (count, most) = (tokens.len(), engine.model_len);
    let tokens = skewed(&tokens, skew);
    Ok(
        json!({"count": count, "max_model_len": most, "tokens": tokens, "token_strs": strings})
            .to_string(),
    )
}

/// What a request becomes before it is computed: an object for a chat, a list with one for each prompt of a completion.
/// Media have tokens of their own here, so there is nothing to say of them besides.
///
/// # Errors
/// What the client did wrong.
pub(in crate::engine) fn render(
    engine: &Engine,
    body: &Value,
    dialect: Dialect,
    skew: u32,
) -> Result<String, ApiError> {
    let fields = Fields::of(body)?;
    let prompts = match dialect {
        Dialect::Chat => vec![prompt::chat(&fields, true)?],
        Dialect::Completion => prompt::prompts("prompt", fields.need("prompt")?)?,
    };
    let (model, _) = generate::model(engine, &fields)?;
    let salt = fields.text("cache_salt")?;
    let rendered = prompts.iter().map(|tokens| {
        json!({
            "token_ids": skewed(tokens, skew),
            "features": null,
            "model": model,
            "cache_salt": salt,
        })
    });
    let all: Vec<Value> = rendered.collect();
    Ok(match (dialect, all.as_slice()) {
        (Dialect::Chat, [only]) => only.to_string(),
        _ => Value::Array(all).to_string(),
    })
}

/// Text of tokens.
///
/// # Errors
/// What the client did wrong.
pub(in crate::engine) fn detokenize(engine: &Engine, body: &Value) -> Result<String, ApiError> {
    let fields = Fields::of(body)?;
    let items = fields.need("tokens")?.as_array();
    let wrong =
        || ApiError::validation("list_type", "tokens", "Input should be a valid list", "'?'");
    let tokens = prompt::token_ids("tokens", items.ok_or_else(wrong)?)?;
    generate::model(engine, &fields)?;
    Ok(json!({"prompt": text::detokenize(&tokens)}).to_string())
}

/// The models and adapters served.
pub(in crate::engine) fn models(engine: &Engine) -> String {
    let config = &engine.config;
    let root = config.models.first();
    let model = |id: &String, parent: Option<&String>| {
        let most = parent.is_none().then_some(engine.model_len);
        json!({
            "id": id,
            "object": "model",
            "created": engine.created,
            "owned_by": "vllm",
            "root": if parent.is_some() { Some(id) } else { root },
            "parent": parent,
            "max_model_len": most,
            "permission": [],
        })
    };
    let models = config.models.iter().map(|id| model(id, None));
    let loras = config.loras.iter().map(|id| model(id, root));
    json!({"object": "list", "data": models.chain(loras).collect::<Vec<Value>>()}).to_string()
}
