//! A request's prompt: from its body to tokens, from tokens to keys.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use serde::Deserialize;
use wicketgate_kvindex::{
    keys::{KeySpace, Scope},
    tokens::{Chat, Model, TokensError},
};
use wicketgate_wire::{Api, Prompt};

use super::{Known, Prefixes, text};

/// What a prompt is made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The body; empty when it was not read.
    pub body: Bytes,
    /// What the prompt is made of.
    pub prompt: Prompt,
    /// It has images, sounds or the like.
    pub media: bool,
    /// The engine's cache domain that the body asks for.
    pub salt: Option<Arc<str>>,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompted {
    /// Length in tokens, where they are known.
    pub tokens: Option<u64>,
    /// Names of its blocks, for the index.
    pub keys: Arc<[u64]>,
}

/// What became of a prompt, a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It came as token ids.
    Ids,
    /// It was tokenised.
    Tokenized,
    /// It goes by its text, as its model has no tokeniser here.
    Text,
    /// By load alone: there is no tokeniser for its model.
    Unknown,
    /// By load alone: it has images, sounds or the like, several prompts, or something else whose tokens only the
    /// engine knows.
    Unsupported,
    /// By load alone: it could not be tokenised.
    Failed,
    /// It has none that a cache could serve: an embedding, a body that was not read.
    None,
}

impl How {
    /// All of them, in the order of their numbers.
    pub const ALL: [How; 7] = [
        How::Ids,
        How::Tokenized,
        How::Text,
        How::Unknown,
        How::Unsupported,
        How::Failed,
        How::None,
    ];

    /// As a metric label.
    pub fn label(self) -> &'static str {
        match self {
            How::Ids => "ids",
            How::Tokenized => "tokenized",
            How::Text => "text",
            How::Unknown => "no_tokenizer",
            How::Unsupported => "unsupported",
            How::Failed => "failed",
            How::None => "none",
        }
    }
}

/// Turns the requests of one model into the tokens that its engine computes.
pub trait Tokens: Send + Sync {
    /// Tokens of the only prompt of a body.
    ///
    /// # Errors
    /// When only the engine can know them.
    fn tokens(&self, api: Api, body: &[u8]) -> Result<Vec<u32>, TokensError>;
}

/// A completion whose prompt is one text.
#[derive(Deserialize)]
struct Completion {
    prompt: OneText,
    #[serde(default)]
    add_special_tokens: Option<bool>,
    #[serde(default)]
    truncate_prompt_tokens: Option<i64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneText {
    Bare(String),
    Listed([String; 1]),
}

/// A completion whose prompt is one list of token ids.
#[derive(Deserialize)]
struct Ids {
    prompt: OneList,
    #[serde(default)]
    truncate_prompt_tokens: Option<i64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneList {
    Bare(Vec<u32>),
    Listed([Vec<u32>; 1]),
}

const TRUNCATED: TokensError = TokensError::Unsupported("prompts to be truncated");

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, TokensError> {
    serde_json::from_slice(body).map_err(|error| TokensError::Request(error.to_string()))
}

impl Tokens for Model {
    fn tokens(&self, api: Api, body: &[u8]) -> Result<Vec<u32>, TokensError> {
        match api {
            Api::ChatCompletions => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                let now = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(0));
                self.chat(&Chat::parse(body)?, now)
            }
            Api::Completions => {
                let wanted: Completion = parse(body)?;
                if wanted.truncate_prompt_tokens.is_some() {
                    return Err(TRUNCATED);
                }
                let (OneText::Bare(text) | OneText::Listed([text])) = &wanted.prompt;
                self.prompt(text, wanted.add_special_tokens.unwrap_or(true))
            }
            Api::Embeddings | Api::Unknown => Err(TokensError::Unsupported("other requests")),
        }
    }
}

fn ids(body: &[u8]) -> Result<Vec<u32>, TokensError> {
    let wanted: Ids = parse(body)?;
    if wanted.truncate_prompt_tokens.is_some() {
        return Err(TRUNCATED);
    }
    let (OneList::Bare(ids) | OneList::Listed([ids])) = wanted.prompt;
    Ok(ids)
}

impl Prefixes {
    /// True if a prompt takes too long for a thread that serves others.
    pub fn is_long(&self, content: &Content) -> bool {
        content.body.len() as u64 > self.spec.long_body
    }

    /// The prompt of a request, counted. Blocks for as long as tokenising takes.
    pub fn prompt(&self, api: Api, model: &str, content: &Content) -> Prompted {
        let (how, prompted) = self.read(api, model, content);
        self.counts.count(how);
        prompted
    }

    /// The same on a blocking thread, in turn with other long ones.
    pub async fn prompt_elsewhere(
        self: Arc<Self>,
        api: Api,
        model: Arc<str>,
        content: Content,
    ) -> Prompted {
        let Ok(turn) = Arc::clone(&self.turns).acquire_owned().await else {
            return Prompted::default();
        };
        let task = tokio::task::spawn_blocking({
            let prefixes = Arc::clone(&self);
            move || {
                let _turn = turn;
                prefixes.prompt(api, &model, &content)
            }
        });
        task.await.unwrap_or_else(|error| {
            tracing::error!(%error, "a prompt could not be tokenised");
            self.counts.count(How::Failed);
            Prompted::default()
        })
    }

    /// The prompt without counting it: for views.
    pub fn read(&self, api: Api, model: &str, content: &Content) -> (How, Prompted) {
        let known = match model {
            "" => self.only.as_ref(),
            _ => self.by_name.get(model),
        };
        let several = match content.prompt {
            Prompt::TokenIds { sequences, .. } => sequences != 1,
            Prompt::Texts { count, .. } => count != 1,
            Prompt::Mixed => true,
            Prompt::None | Prompt::Text { .. } => false,
        };
        let listed = matches!(content.prompt, Prompt::TokenIds { .. });
        match api {
            Api::Unknown | Api::Embeddings => return (How::None, Prompted::default()),
            Api::ChatCompletions | Api::Completions if content.body.is_empty() => {
                return (How::None, Prompted::default());
            }
            Api::Completions if several => return (How::Unsupported, Prompted::default()),
            Api::Completions | Api::ChatCompletions => {}
        }
        let (how, tokens) = match known {
            _ if listed => (How::Ids, ids(&content.body)),
            Some(_) if content.media => (How::Unsupported, Err(TokensError::Unsupported("media"))),
            Some(known) => (How::Tokenized, known.tokens.tokens(api, &content.body)),
            None if self.spec.approximate.is_some() => {
                return (How::Text, self.by_text(api, model, content));
            }
            None => return (How::Unknown, Prompted::default()),
        };
        match tokens {
            Ok(tokens) => (how, self.by_tokens(known, model, content, &tokens)),
            Err(TokensError::Unsupported(_)) => (How::Unsupported, Prompted::default()),
            Err(error) => {
                tracing::debug!(%error, model, "a prompt could not be tokenised");
                (How::Failed, Prompted::default())
            }
        }
    }

    fn by_tokens(
        &self,
        known: Option<&Arc<Known>>,
        model: &str,
        content: &Content,
        tokens: &[u32],
    ) -> Prompted {
        let adapter = |known: &&Arc<Known>| known.adapters.iter().any(|name| name == model);
        let base = known.filter(|known| !adapter(known));
        let scope = Scope {
            model: base.map_or(model, |known| &known.model),
            domain: content.salt.as_deref(),
        };
        Prompted {
            tokens: Some(tokens.len() as u64),
            keys: keys(&self.index.config().keys, scope, tokens),
        }
    }

    /// Keys of a text that nobody can tokenise here: good for picks, not for events.
    fn by_text(&self, api: Api, model: &str, content: &Content) -> Prompted {
        let pieces = text::pieces(api, &content.body);
        // Nobody's model has this name: no text is ever taken for tokens.
        let model = format!("\0text\0{model}");
        let scope = Scope {
            model: &model,
            domain: content.salt.as_deref(),
        };
        Prompted {
            tokens: None,
            keys: keys(&self.index.config().keys, scope, &pieces),
        }
    }
}

fn keys(space: &KeySpace, scope: Scope<'_>, tokens: &[u32]) -> Arc<[u64]> {
    let mut keys = Vec::new();
    space.prompt(scope, tokens, &[], &mut keys);
    keys.iter().map(|key| key.0).collect()
}
