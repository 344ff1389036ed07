//! `/tokenize`, `/detokenize` and `/v1/models`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{ApiError, fields::Fields, generate, prompt};
use crate::{engine::state::Engine, text};

/// Tokens of a prompt, or of a chat's messages.
///
/// # Errors
/// What the client did wrong.
pub(in crate::engine) fn tokenize(engine: &Engine, body: &Value) -> Result<String, ApiError> {
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
    let tokens: &[u32] = &tokens;
    Ok(
        json!({"count": count, "max_model_len": most, "tokens": tokens, "token_strs": strings})
            .to_string(),
    )
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
