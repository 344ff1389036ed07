//! `/v1/embeddings`: unit vectors that depend on the seed and the input alone.

use std::sync::Arc;

use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::{ApiError, fields::Fields, generate, prompt};
use crate::{
    batch::{Request, block_hash},
    engine::{
        body::ReplyBody,
        router::{json as reply, unix_seconds},
        state::{Engine, Submission},
        stats::Account,
    },
};

/// Longest vector.
const MOST_DIMENSIONS: u32 = 16_384;
/// Inputs of one request.
const MOST_INPUTS: usize = 2048;

/// An embedding request, validated.
struct Embedding {
    inputs: Vec<Arc<[u32]>>,
    model: String,
    adapter: Option<usize>,
    salt: Option<Arc<str>>,
    dimensions: u32,
    base64: bool,
}

/// Embeds. The prompts pass through the engine as vLLM's pooling requests do.
///
/// # Errors
/// What the client did wrong, or that the queue is full.
pub(in crate::engine) async fn embeddings(
    engine: &Arc<Engine>,
    body: &Value,
    account: &Account,
) -> Result<Response<ReplyBody>, ApiError> {
    let wanted = read(engine, &Fields::of(body)?)?;
    let submissions = wanted
        .inputs
        .iter()
        .map(|input| submission(engine, &wanted, input));
    let flight = engine
        .enter(submissions.collect())
        .map_err(|_| ApiError::busy())?;
    flight.complete().await;
    let data: Vec<Value> = wanted
        .inputs
        .iter()
        .enumerate()
        .map(|(index, input)| {
            let vector = vector(engine.config.seed, input, wanted.dimensions);
            let embedding = if wanted.base64 {
                Value::from(to_base64(&vector))
            } else {
                Value::from(vector)
            };
            json!({"index": index, "object": "embedding", "embedding": embedding})
        })
        .collect();
    let tokens: usize = wanted.inputs.iter().map(|input| input.len()).sum();
    let answer = json!({
        "id": format!("embd-{}", account.id()),
        "object": "list",
        "created": unix_seconds(),
        "model": wanted.model,
        "data": data,
        "usage": {
            "prompt_tokens": tokens,
            "total_tokens": tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": null,
        },
    });
    Ok(reply(StatusCode::OK, answer.to_string()))
}

fn read(engine: &Engine, fields: &Fields<'_>) -> Result<Embedding, ApiError> {
    let inputs = prompt::prompts("input", fields.need("input")?)?;
    if inputs.len() > MOST_INPUTS {
        return Err(ApiError::bad_value(
            "input",
            format!("at most {MOST_INPUTS} inputs are possible"),
        ));
    }
    for input in &inputs {
        generate::room(engine, input.len())?;
    }
    let (model, adapter) = generate::model(engine, fields)?;
    let dimensions = fields
        .count("dimensions", 1)?
        .unwrap_or(engine.config.embedding_dims);
    if dimensions > MOST_DIMENSIONS {
        let message = format!("dimensions must be at most {MOST_DIMENSIONS}, got {dimensions}");
        return Err(ApiError::bad_value("dimensions", message));
    }
    let base64 = match fields.text("encoding_format")? {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let message = format!("encoding_format must be float or base64, got {other}");
            return Err(ApiError::bad_value("encoding_format", message));
        }
    };
    let salt = fields.text("cache_salt")?.map(Arc::from);
    Ok(Embedding {
        inputs,
        model: model.to_owned(),
        adapter,
        salt,
        dimensions,
        base64,
    })
}

fn submission(engine: &Engine, wanted: &Embedding, input: &Arc<[u32]>) -> Submission {
    let request = Request {
        id: engine.number(),
        tokens: Arc::clone(input),
        max_tokens: 0,
        output_key: 0,
        cache_salt: wanted.salt.clone(),
        adapter: wanted
            .adapter
            .map(|index| Arc::from(generate::model_name(engine, index))),
        priority: 0,
    };
    Submission {
        request,
        adapter: wanted.adapter,
        stops: true,
        n: 1,
    }
}

fn vector(seed: u64, input: &[u32], dimensions: u32) -> Vec<f32> {
    let key = block_hash(seed, input);
    let raw: Vec<f64> = (0..dimensions)
        .map(|index| (block_hash(key, &[index]) >> 11) as f64 / (1_u64 << 52) as f64 - 1.0)
        .collect();
    let norm = raw
        .iter()
        .map(|value| value * value)
        .sum::<f64>()
        .sqrt()
        .max(f64::MIN_POSITIVE);
    raw.iter().map(|value| (value / norm) as f32).collect()
}

/// Little-endian floats in base64, as OpenAI's clients ask for.
fn to_base64(vector: &[f32]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = vector
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group
            .iter()
            .fold(0_u32, |word, byte| word << 8 | u32::from(*byte))
            << (8 * (3 - group.len()));
        for digit in 0..4 {
            let index = (word >> (18 - 6 * digit) & 63) as usize;
            let padding = digit > group.len();
            text.push(if padding {
                '='
            } else {
                char::from(DIGITS.get(index).copied().unwrap_or(b'A'))
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_floats() {
        assert_eq!(to_base64(&[1.0]), "AACAPw==");
        assert_eq!(to_base64(&[1.0, -2.0]), "AACAPwAAAMA=");
        assert_eq!(to_base64(&[1.0, -2.0, 0.0]), "AACAPwAAAMAAAAAA");
    }

    #[test]
    fn vectors_have_length_one_and_differ() {
        let a = vector(1, &[1, 2, 3], 64);
        let norm: f32 = a.iter().map(|value| value * value).sum();
        assert!((norm - 1.0).abs() < 1e-5);
        assert_eq!(a, vector(1, &[1, 2, 3], 64));
        assert_ne!(a, vector(1, &[1, 2, 4], 64));
        assert_ne!(a, vector(2, &[1, 2, 3], 64));
    }
}
