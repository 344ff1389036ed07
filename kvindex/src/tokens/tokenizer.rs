//! A Hugging Face tokeniser, with a memory for what it has seen.

use aho_corasick::AhoCorasick;
use serde::Deserialize;
use tokenizers::{NormalizerWrapper, TokenizerImpl};

use super::{
    Memo, TokensError,
    split::{Added, Piece, Splitter},
};

type Inner = TokenizerImpl<
    tokenizers::ModelWrapper,
    NormalizerWrapper,
    tokenizers::PreTokenizerWrapper,
    tokenizers::PostProcessorWrapper,
    tokenizers::DecoderWrapper,
>;

/// A tokeniser. See the [module](super).
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    splitter: Splitter,
    /// Finds special tokens that are written out in a text.
    marks: AhoCorasick,
    /// What is put around a text when special tokens are asked for; `None` when that is not simply a frame.
    frame: Option<Frame>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Frame {
    before: Vec<u32>,
    after: Vec<u32>,
}

/// What `tokenizer_config.json` adds to `tokenizer.json`.
#[derive(Debug, Default, Deserialize)]
struct Extras {
    #[serde(default)]
    tokenizer_class: Option<String>,
    #[serde(default)]
    add_bos_token: Option<bool>,
    #[serde(default)]
    add_eos_token: Option<bool>,
    #[serde(default)]
    bos_token: Option<SpecialToken>,
    #[serde(default)]
    eos_token: Option<SpecialToken>,
}

/// A special token in `tokenizer_config.json`: its text, alone or with flags.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum SpecialToken {
    Text(String),
    Object { content: String },
}

impl SpecialToken {
    pub(super) fn text(&self) -> &str {
        match self {
            SpecialToken::Text(text) => text,
            SpecialToken::Object { content } => content,
        }
    }
}

impl Tokenizer {
    /// From the bytes of `tokenizer.json`, and of `tokenizer_config.json` where there is one.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn new(json: &[u8], config: Option<&[u8]>) -> Result<Tokenizer, TokensError> {
        let file = |file| move |why: String| TokensError::File { file, why };
        let mut inner = tokenizers::Tokenizer::from_bytes(json)
            .map_err(|error| file("tokenizer.json")(error.to_string()))?;
        // Engines tokenise whole prompts.
        inner
            .with_truncation(None)
            .map_err(|error| file("tokenizer.json")(error.to_string()))?;
        inner.with_padding(None);
        let extras: Extras = match config {
            Some(config) => serde_json::from_slice(config)
                .map_err(|error| file("tokenizer_config.json")(error.to_string()))?,
            None => Extras::default(),
        };
        let splitter = Splitter::new(&added(&inner), is_plain(&inner))?;
        let special = inner.get_added_tokens_decoder();
        let special = special.values().filter(|token| token.special);
        let special: Vec<&str> = special
            .map(|token| token.content.as_str())
            .filter(|content| !content.is_empty())
            .collect();
        let marks =
            AhoCorasick::new(special).map_err(|error| file("tokenizer.json")(error.to_string()))?;
        let mut tokenizer = Tokenizer {
            inner,
            splitter,
            marks,
            frame: None,
        };
        tokenizer.frame = match extras.frame(&tokenizer.inner) {
            Some(frame) => Some(frame),
            None => tokenizer.found_frame()?,
        };
        Ok(tokenizer)
    }

    /// True if a text writes a special token out, which then is one.
    pub fn has_mark(&self, text: &str) -> bool {
        self.marks.is_match(text)
    }

    /// The tokens of a text. With `special` the tokens that begin and end a prompt are put around it.
    ///
    /// # Errors
    /// When the tokeniser fails.
    pub fn encode(&self, text: &str, special: bool, memo: &Memo) -> Result<Vec<u32>, TokensError> {
        let none = Frame::default();
        let frame = match (special, &self.frame) {
            (false, _) => &none,
            (true, Some(frame)) => frame,
            (true, None) => return self.plain(text, true),
        };
        let mut tokens = Vec::with_capacity(text.len() / 3 + 8);
        tokens.extend_from_slice(&frame.before);
        self.splitter.split(text, |piece| {
            match piece {
                Piece::Token(id) => tokens.push(id),
                Piece::Text { text, after } => {
                    let entry = memo.get(after.is_none(), text, || self.segment(text, after))?;
                    tokens.extend_from_slice(&entry.tokens);
                }
            }
            Ok(())
        })?;
        tokens.extend_from_slice(&frame.after);
        Ok(tokens)
    }

    /// A segment, as it is tokenised behind the token `after`: some tokenisers treat the start of a text differently.
    fn segment(&self, text: &str, after: Option<&str>) -> Result<Vec<u32>, TokensError> {
        let Some(after) = after else {
            return self.whole(text, false);
        };
        let mut tokens = self.whole(&[after, text].concat(), false)?;
        tokens.remove(0);
        Ok(tokens)
    }

    /// The tokens of a text, without memory.
    ///
    /// # Errors
    /// When the tokeniser fails.
    pub fn plain(&self, text: &str, special: bool) -> Result<Vec<u32>, TokensError> {
        let (true, Some(frame)) = (special, &self.frame) else {
            return self.whole(text, special);
        };
        let tokens = self.whole(text, false)?;
        Ok([&frame.before, tokens.as_slice(), &frame.after].concat())
    }

    fn whole(&self, text: &str, special: bool) -> Result<Vec<u32>, TokensError> {
        let encoding = self.inner.encode_fast(text, special);
        let encoding = encoding.map_err(|error| TokensError::Tokenizer(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// What the post-processor puts around a text, as seen from outside.
    fn found_frame(&self) -> Result<Option<Frame>, TokensError> {
        const PROBE: &str = "a";
        let bare = self.whole(PROBE, false)?;
        let framed = self.whole(PROBE, true)?;
        let mut windows = framed.windows(bare.len().max(1));
        let Some(at) = windows.position(|window| window == bare) else {
            return Ok(None);
        };
        let (before, rest) = framed.split_at(at);
        let after = rest.get(bare.len()..).unwrap_or_default();
        Ok(Some(Frame {
            before: before.to_vec(),
            after: after.to_vec(),
        }))
    }

    /// The number of a token.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The texts of all added tokens, which tests put where they hurt.
    pub fn added_tokens(&self) -> Vec<String> {
        added(&self.inner)
            .into_iter()
            .map(|token| token.content)
            .collect()
    }
}

impl Extras {
    /// Classes of Hugging Face that frame by these flags whatever `tokenizer.json` says.
    fn frame(&self, inner: &Inner) -> Option<Frame> {
        let class = self.tokenizer_class.as_deref()?;
        let default = match class.strip_suffix("Fast").unwrap_or(class) {
            "LlamaTokenizer" | "CodeLlamaTokenizer" | "GemmaTokenizer" => true,
            _ => return None,
        };
        let id = |token: &Option<SpecialToken>| -> Option<Vec<u32>> {
            Some(vec![inner.token_to_id(token.as_ref()?.text())?])
        };
        let part = |wanted: bool, token| match wanted {
            true => id(token),
            false => Some(Vec::new()),
        };
        Some(Frame {
            before: part(self.add_bos_token.unwrap_or(default), &self.bos_token)?,
            after: part(self.add_eos_token.unwrap_or(false), &self.eos_token)?,
        })
    }
}

fn added(inner: &Inner) -> Vec<Added> {
    let tokens = inner.get_added_tokens_decoder();
    let mut all: Vec<Added> = tokens
        .iter()
        .map(|(id, token)| Added {
            id: *id,
            content: token.content.clone(),
            greedy: token.lstrip || token.rstrip || token.single_word,
            normalized: token.normalized,
        })
        .collect();
    all.sort_unstable_by_key(|token| token.id);
    all
}

fn is_plain(inner: &Inner) -> bool {
    fn nothing(normalizer: &NormalizerWrapper) -> bool {
        match normalizer {
            NormalizerWrapper::Sequence(parts) => parts.as_ref().iter().all(nothing),
            _ => false,
        }
    }
    inner.get_normalizer().is_none_or(nothing)
}
