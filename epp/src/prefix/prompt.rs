//! A request's prompt: from its body to tokens, from tokens to keys.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use serde::Deserialize;
use wicketgate_kvindex::{
    keys::{Media, Scope},
    tokens::{Chat, Model, TokensError},
};
use wicketgate_wire::{Api, Prompt};

use super::{Known, Prefixes, Source, text};

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
    /// An engine tokenised it.
    Engine,
    /// It was tokenised up to its first image, sound or the like: what follows only the engine knows.
    BeforeMedia,
    /// It goes by its text, as its model has no tokeniser here.
    Text,
    /// By load alone: there is no tokeniser for its model.
    Unknown,
    /// By load alone: it has several prompts, or something else whose tokens only the engine knows.
    Unsupported,
    /// By load alone: it could not be tokenised.
    Failed,
    /// By load alone: our tokens of its model are not the engine's.
    Mismatched,
    /// By load alone: the engine did not tell its tokens in time.
    Unanswered,
    /// It has none that a cache could serve: an embedding, a body that was not read.
    None,
}

impl How {
    /// All of them, in the order of their numbers.
    pub const ALL: [How; 11] = [
        How::Ids,
        How::Tokenized,
        How::Engine,
        How::BeforeMedia,
        How::Text,
        How::Unknown,
        How::Unsupported,
        How::Failed,
        How::Mismatched,
        How::Unanswered,
        How::None,
    ];

    /// As a metric label.
    pub fn label(self) -> &'static str {
        match self {
            How::Ids => "ids",
            How::Tokenized => "tokenized",
            How::Engine => "engine",
            How::BeforeMedia => "before_media",
            How::Text => "text",
            How::Unknown => "no_tokenizer",
            How::Unsupported => "unsupported",
            How::Failed => "failed",
            How::Mismatched => "mismatch",
            How::Unanswered => "engine_silent",
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

    /// Tokens of the only prompt of a body up to its first image, sound or the like: no more than the engine makes before it.
    ///
    /// # Errors
    /// When that is not known.
    fn tokens_before_media(&self, _: Api, _: &[u8]) -> Result<Vec<u32>, TokensError> {
        Err(TokensError::Unsupported("prompts with media"))
    }
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
            Api::ChatCompletions => self.chat(&Chat::parse(body)?, now()),
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

    fn tokens_before_media(&self, api: Api, body: &[u8]) -> Result<Vec<u32>, TokensError> {
        match api {
            Api::ChatCompletions => self.chat_before_media(&Chat::parse(body)?, now()),
            Api::Completions | Api::Embeddings | Api::Unknown => {
                Err(TokensError::Unsupported("media in other requests"))
            }
        }
    }
}

/// Unix time in seconds.
fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(0))
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
        if matches!(how, How::Tokenized | How::Mismatched)
            && let Some(known) = self.known(model)
        {
            self.sample(known, api, model, content);
        }
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

    /// A model by a name that requests use; the only one if they use none.
    pub(super) fn known(&self, model: &str) -> Option<&Arc<Known>> {
        match model {
            "" => self.only.as_ref(),
            _ => self.by_name.get(model),
        }
    }

    /// The prompt without counting it, as far as we can tell: for views.
    pub fn read(&self, api: Api, model: &str, content: &Content) -> (How, Prompted) {
        if let Some(how) = content.settled(api) {
            return (how, Prompted::default());
        }
        let known = self.known(model);
        let source = known.map(|known| (known, &known.source));
        let (how, tokens) = match source {
            _ if content.is_listed() => (How::Ids, ids(&content.body)),
            Some((known, Source::Own(_))) if self.is_distrusted(known) => {
                return (How::Mismatched, Prompted::default());
            }
            Some((_, Source::Own(tokens))) if content.media => (
                How::BeforeMedia,
                tokens.tokens_before_media(api, &content.body),
            ),
            Some((_, Source::Own(tokens))) => (How::Tokenized, tokens.tokens(api, &content.body)),
            // Who asks the engine first does not come here.
            Some((_, Source::Engine | Source::Service(_))) => (
                How::Unsupported,
                Err(TokensError::Unsupported("such prompts")),
            ),
            None if self.spec.approximate.is_some() => {
                return (How::Text, self.by_text(api, model, content));
            }
            None => return (How::Unknown, Prompted::default()),
        };
        match tokens {
            Ok(tokens) if how == How::BeforeMedia => {
                let scope = scope(known, model, content);
                let keys = self.keys(scope, &tokens, [].into_iter(), true);
                (how, Prompted { tokens: None, keys })
            }
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
        Prompted {
            tokens: Some(tokens.len() as u64),
            keys: self.keys(scope(known, model, content), tokens, [].into_iter(), false),
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
            keys: self.keys(scope, &pieces, [].into_iter(), false),
        }
    }

    /// Names of the blocks that a cache can serve. `media` is in the order of positions. `more` says that the prompt goes
    /// on behind these tokens: then the last of them may be served too.
    pub(super) fn keys<'a>(
        &self,
        scope: Scope<'_>,
        tokens: &[u32],
        media: impl Iterator<Item = (&'a str, usize)>,
        more: bool,
    ) -> Arc<[u64]> {
        let space = &self.index.config().keys;
        let media: Vec<Media<'_>> = media.map(|(id, at)| Media { id, at }).collect();
        let mut keys = Vec::new();
        match more {
            false => space.prompt(scope, tokens, &media, &mut keys),
            true => {
                let mut longer = tokens.to_vec();
                longer.push(0);
                space.prompt(scope, &longer, &media, &mut keys);
            }
        }
        keys.iter().map(|key| key.0).collect()
    }
}

impl Content {
    /// What becomes of the prompt of such a request whatever its model, if that is so.
    pub(super) fn settled(&self, api: Api) -> Option<How> {
        let several = match self.prompt {
            Prompt::TokenIds { sequences, .. } => sequences != 1,
            Prompt::Texts { count, .. } => count != 1,
            Prompt::Mixed => true,
            Prompt::None | Prompt::Text { .. } => false,
        };
        match api {
            Api::Unknown | Api::Embeddings => Some(How::None),
            Api::ChatCompletions | Api::Completions if self.body.is_empty() => Some(How::None),
            Api::Completions if several => Some(How::Unsupported),
            Api::Completions | Api::ChatCompletions => None,
        }
    }

    /// It comes as token ids.
    pub(super) fn is_listed(&self) -> bool {
        matches!(self.prompt, Prompt::TokenIds { .. })
    }
}

/// Whose caches a prompt may share.
pub(super) fn scope<'a>(
    known: Option<&'a Arc<Known>>,
    model: &'a str,
    content: &'a Content,
) -> Scope<'a> {
    let adapter = |known: &&Arc<Known>| known.adapters.iter().any(|name| name == model);
    let base = known.filter(|known| !adapter(known));
    Scope {
        model: base.map_or(model, |known| &known.model),
        domain: content.salt.as_deref(),
    }
}
