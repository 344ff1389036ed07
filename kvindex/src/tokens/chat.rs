//! A chat request, as templates see it.
//!
//! vLLM shapes messages before its template does: content parts become one text or a list of texts, arguments of tool
//! calls become objects, fields that it does not know are dropped, developers become the system where the template knows
//! none.

use minijinja::{Value, value::ValueKind};
use serde::Deserialize;

use super::{ContentFormat, TokensError};

/// A line that Claude Code puts before its system prompt. It changes with each request, so vLLM leaves it out.
const BILLING: &str = "x-anthropic-billing-header";

/// What a template sees where a message has an image, a sound or the like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Media<'a> {
    /// Nothing: such a chat is refused.
    Refused,
    /// A part that names its kind, as engines put it to templates that take parts.
    Parts,
    /// This text in its place; in a message that is one text, instead of the whole text.
    Text(&'a str),
}

/// What a template expects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected<'a> {
    /// How it wants the content of messages.
    pub(super) format: ContentFormat,
    /// It knows the role `developer`.
    pub(super) developers: bool,
    /// What it is to see in the place of media.
    pub(super) media: Media<'a>,
}

const MEDIA: TokensError = TokensError::Unsupported("images, sounds and other media");

/// A chat request: the fields of an OpenAI request that its prompt depends on.
#[derive(Clone, Debug, Deserialize)]
pub struct Chat {
    messages: Vec<Message>,
    #[serde(default)]
    tools: Option<Vec<Tool>>,
    #[serde(default)]
    documents: Option<Value>,
    #[serde(default)]
    chat_template: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    chat_template_kwargs: Option<Value>,
    #[serde(default)]
    reasoning_effort: Option<String>,
    #[serde(default)]
    add_generation_prompt: Option<bool>,
    #[serde(default)]
    continue_final_message: Option<bool>,
    #[serde(default)]
    add_special_tokens: Option<bool>,
    #[serde(default)]
    truncate_prompt_tokens: Option<i64>,
}

#[derive(Clone, Debug, Deserialize)]
struct Message {
    role: String,
    #[serde(default)]
    content: Content,
    #[serde(default)]
    tool_calls: Option<Vec<Value>>,
    #[serde(default)]
    tool_call_id: Option<Value>,
    #[serde(default)]
    name: Option<Value>,
    #[serde(default)]
    reasoning: Option<String>,
    #[serde(default)]
    reasoning_content: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(untagged)]
enum Content {
    #[default]
    Absent,
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Part {
    Bare(String),
    Typed {
        #[serde(default, rename = "type")]
        kind: Option<String>,
        #[serde(default)]
        text: Option<String>,
        #[serde(default)]
        refusal: Option<String>,
        #[serde(default)]
        thinking: Option<String>,
    },
}

#[derive(Clone, Debug, Deserialize)]
struct Tool {
    #[serde(default, rename = "type")]
    kind: Option<Value>,
    function: Value,
}

impl Chat {
    /// Reads a request.
    ///
    /// # Errors
    /// When it is not a chat request, or has something whose tokens only the engine knows.
    pub fn parse(body: &[u8]) -> Result<Chat, TokensError> {
        let chat: Chat = serde_json::from_slice(body)
            .map_err(|error| TokensError::Request(error.to_string()))?;
        if chat.chat_template.is_some() {
            return Err(TokensError::Unsupported("a template in the request"));
        }
        if chat.truncate_prompt_tokens.is_some() {
            return Err(TokensError::Unsupported("prompts to be truncated"));
        }
        if chat.messages.is_empty() {
            return Err(TokensError::Request("no messages".to_owned()));
        }
        if chat.continues() && chat.generates() {
            let why = "it continues the final message and adds a generation prompt";
            return Err(TokensError::Request(why.to_owned()));
        }
        Ok(chat)
    }

    /// Whether the tokens that begin and end a prompt are wanted; templates usually write them.
    pub(super) fn special_tokens(&self) -> bool {
        self.add_special_tokens.unwrap_or(false)
    }

    pub(super) fn continues(&self) -> bool {
        self.continue_final_message.unwrap_or(false)
    }

    pub(super) fn generates(&self) -> bool {
        self.add_generation_prompt.unwrap_or(true)
    }

    /// All texts of messages.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.messages.iter().flat_map(|message| {
            let (text, parts): (Option<&str>, &[Part]) = match &message.content {
                Content::Absent => (None, &[]),
                Content::Text(text) => (Some(text), &[]),
                Content::Parts(parts) => (None, parts),
            };
            let parts = parts.iter().filter_map(|part| part.text().ok().flatten());
            text.into_iter().chain(parts)
        })
    }

    /// Text of the final message, for who continues it.
    pub(super) fn final_text(&self, expected: Expected<'_>) -> Result<String, TokensError> {
        let Some(last) = self.messages.last() else {
            return Ok(String::new());
        };
        Ok(match last.shaped(&last.role, expected)? {
            Shaped::Text(text) => text,
            Shaped::Parts(parts) => {
                let mut texts = parts.iter().rev();
                let last = texts.find_map(|piece| piece.text(expected.media));
                last.unwrap_or_default().to_owned()
            }
        })
    }

    /// The variables of a template that come from the request.
    pub(super) fn variables(
        &self,
        expected: Expected<'_>,
    ) -> Result<Vec<(String, Value)>, TokensError> {
        let tools = self.tools.as_ref().filter(|tools| !tools.is_empty());
        let tools = match tools {
            Some(tools) => Value::from(tools.iter().map(Tool::value).collect::<Vec<Value>>()),
            None => Value::from(()),
        };
        let mut all = vec![
            ("messages".to_owned(), self.conversation(expected)?),
            ("tools".to_owned(), tools),
            (
                "add_generation_prompt".to_owned(),
                Value::from(self.generates()),
            ),
        ];
        if let Some(documents) = self.documents.clone().filter(|value| !value.is_none()) {
            all.push(("documents".to_owned(), documents));
        }
        if let Some(effort) = &self.reasoning_effort {
            all.push(("reasoning_effort".to_owned(), Value::from(effort)));
        }
        // What the request says in a field of its own goes before what it says among these.
        let fixed = all.len();
        for (name, value) in self.chat_template_kwargs.iter().flat_map(fields) {
            let Some(name) = name.as_str() else { continue };
            if !all.iter().take(fixed).any(|(known, _)| known == name) {
                all.push((name.to_owned(), value));
            }
        }
        let named = |name: &str| all.iter().any(|(known, _)| known == name);
        let missing = ["documents", "enable_thinking"].map(|name| !named(name));
        if missing[0] {
            all.push(("documents".to_owned(), Value::from(())));
        }
        // Who asks for an effort wants the model to think.
        if let (true, Some(effort)) = (missing[1], &self.reasoning_effort) {
            all.push(("enable_thinking".to_owned(), Value::from(effort != "none")));
        }
        Ok(all)
    }

    /// The messages. Where the template knows no developers, theirs are the system's, and all of the system's come first,
    /// as one.
    fn conversation(&self, expected: Expected<'_>) -> Result<Value, TokensError> {
        let turned = !expected.developers && self.messages.iter().any(Message::is_developers);
        let role = |message: &Message| match turned && message.is_developers() {
            true => "system".to_owned(),
            false => message.role.clone(),
        };
        let scattered = turned
            && self
                .messages
                .iter()
                .skip(1)
                .any(|other| role(other) == "system");
        let mut system: Vec<String> = Vec::new();
        let mut all = Vec::with_capacity(self.messages.len());
        for message in &self.messages {
            let role = role(message);
            if scattered && role == "system" {
                system.push(message.shaped(&role, expected)?.into_text(expected.media));
            } else {
                all.push(message.value(&role, expected)?);
            }
        }
        if scattered {
            system.retain(|text| !text.is_empty());
            let merged = [
                ("role", Value::from("system")),
                ("content", Value::from(system.join("\n\n"))),
            ];
            all.insert(0, Value::from_pairs(merged));
        }
        Ok(Value::from(all))
    }
}

/// A part of a message.
#[derive(Clone, Copy, Debug)]
enum Piece<'a> {
    Text(&'a str),
    /// An image, a sound or the like, by its kind as templates know it.
    Medium(&'a str),
}

impl<'a> Piece<'a> {
    fn is_medium(&self) -> bool {
        matches!(self, Piece::Medium(_))
    }

    /// Its text, or that in its place.
    fn text(self, media: Media<'a>) -> Option<&'a str> {
        match (self, media) {
            (Piece::Text(text), _) | (Piece::Medium(_), Media::Text(text)) => Some(text),
            (Piece::Medium(_), Media::Refused | Media::Parts) => None,
        }
    }

    fn value(self, media: Media<'a>) -> Value {
        let (kind, text) = match self {
            Piece::Text(_) => ("text", self.text(media)),
            Piece::Medium(kind) => match self.text(media) {
                Some(text) => ("text", Some(text)),
                None => (kind, None),
            },
        };
        let text = text.map(|text| ("text", Value::from(text)));
        Value::from_pairs([("type", Value::from(kind))].into_iter().chain(text))
    }
}

/// The content of a message as its template takes it.
enum Shaped<'a> {
    Text(String),
    Parts(Vec<Piece<'a>>),
}

impl<'a> Shaped<'a> {
    /// As one text.
    fn into_text(self, media: Media<'a>) -> String {
        match self {
            Shaped::Text(text) => text,
            Shaped::Parts(pieces) => joined(&pieces, media),
        }
    }

    fn value(self, media: Media<'a>) -> Value {
        match self {
            Shaped::Text(text) => Value::from(text),
            Shaped::Parts(pieces) => {
                let parts = pieces.into_iter().map(|piece| piece.value(media));
                Value::from(parts.collect::<Vec<Value>>())
            }
        }
    }
}

fn joined<'a>(pieces: &[Piece<'a>], media: Media<'a>) -> String {
    let texts = pieces.iter().filter_map(|piece| piece.text(media));
    texts.collect::<Vec<&str>>().join("\n")
}

impl Message {
    fn is_developers(&self) -> bool {
        self.role == "developer"
    }

    /// What its content is made of. Where that becomes one text, empty ones leave no trace.
    fn pieces(&self, expected: Expected<'_>) -> Result<Vec<Piece<'_>>, TokensError> {
        let mut pieces: Vec<Piece<'_>> = match &self.content {
            Content::Absent => Vec::new(),
            Content::Text(text) => vec![Piece::Text(text)],
            Content::Parts(parts) => {
                let pieces: Result<Vec<_>, _> = parts.iter().map(Part::piece).collect();
                pieces?.into_iter().flatten().collect()
            }
        };
        if expected.media == Media::Refused && pieces.iter().any(Piece::is_medium) {
            return Err(MEDIA);
        }
        if self.role == "system" {
            let billed = pieces.into_iter().filter_map(|piece| match piece {
                Piece::Text(text) => without_billing(text).map(Piece::Text),
                Piece::Medium(_) => Some(piece),
            });
            pieces = billed.collect();
        }
        if expected.format == ContentFormat::String {
            pieces.retain(|piece| !matches!(piece, Piece::Text("")));
        }
        Ok(pieces)
    }

    /// Its content for a template, as that of `role`.
    fn shaped<'a>(&'a self, role: &str, expected: Expected<'a>) -> Result<Shaped<'a>, TokensError> {
        let pieces = self.pieces(expected)?;
        let media = pieces.iter().any(Piece::is_medium);
        Ok(match (expected.format, expected.media) {
            // Where engines put a medium into a text is theirs to say: before the text, as a rule.
            (ContentFormat::String, Media::Text(text)) if media => Shaped::Text(text.to_owned()),
            // Templates take the answers of tools as one text, unless there is more than text in them.
            (ContentFormat::Parts, _) if role != "tool" || media => Shaped::Parts(pieces),
            (ContentFormat::Parts | ContentFormat::String, _) => {
                Shaped::Text(joined(&pieces, expected.media))
            }
        })
    }

    fn value(&self, role: &str, expected: Expected<'_>) -> Result<Value, TokensError> {
        let content = self.shaped(role, expected)?.value(expected.media);
        let mut fields = vec![("role", Value::from(role)), ("content", content)];
        if self.role == "assistant" {
            if let Some(calls) = self.tool_calls.as_ref().filter(|calls| !calls.is_empty()) {
                let calls: Result<Vec<Value>, _> = calls.iter().map(call).collect();
                fields.push(("tool_calls", Value::from(calls?)));
            }
            // One is the older name of the other; templates know either.
            let reasoning = self.reasoning.as_ref().or(self.reasoning_content.as_ref());
            if let Some(reasoning) = reasoning {
                fields.push(("reasoning", Value::from(reasoning)));
                fields.push(("reasoning_content", Value::from(reasoning)));
            }
        }
        if self.role == "tool"
            && let Some(id) = &self.tool_call_id
        {
            fields.push(("tool_call_id", id.clone()));
        }
        if let Some(name) = self.name.as_ref().filter(|name| name.as_str().is_some()) {
            fields.push(("name", name.clone()));
        }
        Ok(Value::from_pairs(fields))
    }
}

/// A text of the system without the line that [`BILLING`] begins; `None` if that is all.
fn without_billing(text: &str) -> Option<&str> {
    if !text.starts_with(BILLING) {
        return Some(text);
    }
    let (_, rest) = text.split_once('\n')?;
    Some(rest).filter(|rest| !rest.is_empty())
}

impl Part {
    /// The kind of an image, a sound or the like, as templates know it.
    fn medium(&self) -> Option<&str> {
        let Part::Typed { kind, text, .. } = self else {
            return None;
        };
        match kind.as_deref() {
            Some("text" | "input_text" | "output_text" | "refusal" | "thinking") => None,
            Some("image_url" | "image_embeds" | "image_pil" | "input_image") => Some("image"),
            Some("audio_url" | "input_audio" | "audio_embeds") => Some("audio"),
            Some("video_url") => Some("video"),
            Some(other) => Some(other),
            None => text.is_none().then_some(""),
        }
    }

    /// What it is to a template; `None` if that is nothing.
    fn piece(&self) -> Result<Option<Piece<'_>>, TokensError> {
        match self.medium() {
            Some(kind) => Ok(Some(Piece::Medium(kind))),
            None => Ok(self.text()?.map(Piece::Text)),
        }
    }

    /// Its text; `None` if it has none, as an answer that is no refusal.
    fn text(&self) -> Result<Option<&str>, TokensError> {
        let (kind, text, refusal, thinking) = match self {
            Part::Bare(text) => return Ok(Some(text)),
            Part::Typed {
                kind,
                text,
                refusal,
                thinking,
            } => (kind, text, refusal, thinking),
        };
        let text = match kind.as_deref() {
            Some("text" | "input_text" | "output_text") => text,
            Some("refusal") => refusal,
            Some("thinking") => thinking,
            None if text.is_some() => text,
            _ => return Err(MEDIA),
        };
        match (text, kind.as_deref()) {
            (Some(text), _) => Ok(Some(text)),
            (None, Some("text" | "refusal")) => Ok(None),
            (None, _) => {
                let why = "a content part without its text";
                Err(TokensError::Request(why.to_owned()))
            }
        }
    }
}

/// A tool call whose arguments are an object. What is none is none of the conversation's: it goes on without.
fn call(call: &Value) -> Result<Value, TokensError> {
    let wrong = |what: &str| TokensError::Request(format!("a tool call {what}"));
    let Some(function) = field(call, "function") else {
        return Ok(call.clone());
    };
    let arguments = field(&function, "arguments");
    let arguments = arguments.and_then(|arguments| match arguments.as_str() {
        Some(text) => serde_json::from_str(text).ok(),
        None => Some(arguments),
    });
    let arguments = arguments.filter(|arguments: &Value| arguments.kind() == ValueKind::Map);
    let arguments = arguments.unwrap_or_else(|| Value::from_pairs(<[(&str, Value); 0]>::default()));
    let function =
        with(&function, "arguments", arguments).ok_or_else(|| wrong("without a function"))?;
    with(call, "function", function).ok_or_else(|| wrong("that is no object"))
}

fn field(of: &Value, name: &str) -> Option<Value> {
    of.get_attr(name).ok().filter(|value| !value.is_undefined())
}

/// Names and values of an object, in order; nothing for anything else.
fn fields(of: &Value) -> Vec<(Value, Value)> {
    let names = (of.kind() == ValueKind::Map).then(|| of.try_iter().ok());
    let names = names.flatten().into_iter().flatten();
    names
        .filter_map(|name| of.get_item(&name).ok().map(|value| (name, value)))
        .collect()
}

/// The same object with one field of another value, in its place.
fn with(object: &Value, name: &str, value: Value) -> Option<Value> {
    let mut all = fields(object);
    if object.kind() != ValueKind::Map {
        return None;
    }
    match all
        .iter_mut()
        .find(|(known, _)| known.as_str() == Some(name))
    {
        Some((_, old)) => *old = value,
        None => all.push((Value::from(name), value)),
    }
    Some(Value::from_pairs(all))
}

impl Tool {
    /// Fields in the order in which vLLM's classes have them, absent ones as `None`.
    fn value(&self) -> Value {
        let function = &self.function;
        let first = ["name", "description", "parameters"];
        let mut all: Vec<(Value, Value)> = first
            .map(|name| {
                let value = field(function, name).unwrap_or_else(|| Value::from(()));
                (Value::from(name), value)
            })
            .into();
        let known = |name: &Value| name.as_str().is_some_and(|name| first.contains(&name));
        all.extend(
            fields(function)
                .into_iter()
                .filter(|(name, _)| !known(name)),
        );
        let kind = self.kind.clone();
        Value::from_pairs([
            ("type", kind.unwrap_or_else(|| Value::from("function"))),
            ("function", Value::from_pairs(all)),
        ])
    }
}
