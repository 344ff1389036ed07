//! All that turns a request of one model into tokens.

use super::{
    Chat, ContentFormat, Memo, MemoStats, Rendering, Template, Tokenizer, TokensError, chat::Media,
};

/// Texts in the place of media: they begin with a letter, a mark and a line's end, so that whatever an engine puts there
/// differs from one of them at its first character, and joins what is before it no more than one of them does.
const STANDS: [&str; 3] = ["wgMedium", "<|wgMedium|>", "\nwgMedium"];

/// A tokeniser, a chat template and a memory.
pub struct Model {
    tokenizer: Tokenizer,
    template: Option<Template>,
    memo: Memo,
}

impl Model {
    /// From the files of a model: `tokenizer.json`, `tokenizer_config.json` and a template that replaces the one in the
    /// latter (`chat_template.jinja`). The memory takes at most about `memo_bytes`; `seed` is any secret number.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn new(
        tokenizer: &[u8],
        config: Option<&[u8]>,
        template: Option<&str>,
        memo_bytes: usize,
        seed: u64,
    ) -> Result<Model, TokensError> {
        Ok(Model {
            tokenizer: Tokenizer::new(tokenizer, config)?,
            template: Template::of_model(config, template)?,
            memo: Memo::new(memo_bytes, seed),
        })
    }

    /// The tokeniser.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// How the template wants the content of messages; `None` without a template.
    pub fn content_format(&self) -> Option<ContentFormat> {
        Some(self.template.as_ref()?.content_format())
    }

    /// What the memory did so far.
    pub fn memo(&self) -> MemoStats {
        self.memo.stats()
    }

    /// Tokens of a text prompt; `special` as in the request's `add_special_tokens`, which engines take as true.
    ///
    /// # Errors
    /// When the tokeniser fails.
    pub fn prompt(&self, text: &str, special: bool) -> Result<Vec<u32>, TokensError> {
        self.tokenizer.encode(text, special, &self.memo)
    }

    /// The text of a chat. `now` is Unix time in seconds: some templates tell the date.
    ///
    /// # Errors
    /// When there is no template, or it does not take these messages.
    pub fn render(&self, chat: &Chat, now: i64) -> Result<String, TokensError> {
        let template = self.template.as_ref();
        let template = template.ok_or(TokensError::Unsupported(
            "chats of a model without a template",
        ))?;
        template.render(&Rendering { chat, now })
    }

    /// Tokens of a chat.
    ///
    /// # Errors
    /// As [`Model::render`], and when the tokeniser fails.
    pub fn chat(&self, chat: &Chat, now: i64) -> Result<Vec<u32>, TokensError> {
        let text = self.render(chat, now)?;
        self.prompt(&text, chat.special_tokens())
    }

    /// Tokens of a chat with images, sounds or the like up to the first of them. What follows only the engine knows, and it
    /// makes exactly these tokens before it.
    ///
    /// # Errors
    /// As [`Model::chat`], and when a text of the chat writes a special token out: engines may take it for a medium's place.
    pub fn chat_before_media(&self, chat: &Chat, now: i64) -> Result<Vec<u32>, TokensError> {
        if chat.texts().any(|text| self.tokenizer.has_mark(text)) {
            return Err(TokensError::Unsupported("media beside special tokens"));
        }
        let template = self.template.as_ref();
        let template = template.ok_or(TokensError::Unsupported(
            "chats of a model without a template",
        ))?;
        let rendering = Rendering { chat, now };
        let mut media: Vec<Media<'_>> = STANDS.map(Media::Text).into();
        if template.content_format() == ContentFormat::Parts {
            // What the template itself writes, wherever it writes it.
            media.push(Media::Parts);
        }
        let texts = media
            .into_iter()
            .map(|media| template.render_with(&rendering, media));
        let texts: Vec<String> = texts.collect::<Result<_, _>>()?;
        let Some((first, others)) = texts.split_first() else {
            return Ok(Vec::new());
        };
        // Tokens that some text shares with another may be of what differs, in a tokeniser that does not know it. Those of
        // the text that all share are of nothing else.
        let shared = others.iter().fold(first.as_str(), |shared, other| {
            let pairs = shared.char_indices().zip(other.chars());
            let same = pairs.take_while(|((_, a), b)| a == b);
            let end = same.last().map_or(0, |((at, a), _)| at + a.len_utf8());
            shared.get(..end).unwrap_or_default()
        });
        let mut known = self.prompt(shared, chat.special_tokens())?;
        for text in &texts {
            let tokens = self.prompt(text, chat.special_tokens())?;
            let same = known.iter().zip(&tokens).take_while(|(a, b)| a == b);
            let same = same.count();
            known.truncate(same);
        }
        Ok(known)
    }

    /// Tokens of a chat as [`Model::chat`] gives them, without memory: for checks.
    ///
    /// # Errors
    /// As [`Model::chat`].
    pub fn plain_chat(&self, chat: &Chat, now: i64) -> Result<Vec<u32>, TokensError> {
        let text = self.render(chat, now)?;
        self.tokenizer.plain(&text, chat.special_tokens())
    }
}
