//! A chat request, as templates see it.
//!
//! vLLM shapes messages before its template does: content parts become one text or a list of texts, arguments of tool
//! calls become objects, fields that it does not know are dropped.

use minijinja::{Value, value::ValueKind};
use serde::Deserialize;

use super::{ContentFormat, TokensError};

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
            let parts = parts.iter().filter_map(|part| part.text().ok());
            text.into_iter().chain(parts)
        })
    }

    /// Text of the final message, for who continues it.
    pub(super) fn final_text(&self) -> Result<String, TokensError> {
        match self.messages.last().map(|message| &message.content) {
            Some(Content::Text(text)) => Ok(text.clone()),
            Some(Content::Parts(parts)) => match parts.last() {
                Some(part) => Ok(part.text()?.to_owned()),
                None => Ok(String::new()),
            },
            _ => Ok(String::new()),
        }
    }

    /// The variables of a template that come from the request.
    pub(super) fn variables(
        &self,
        format: ContentFormat,
        media: Media<'_>,
    ) -> Result<Vec<(String, Value)>, TokensError> {
        let messages: Result<Vec<Value>, _> = self
            .messages
            .iter()
            .map(|message| message.value(format, media))
            .collect();
        let tools = self.tools.as_ref().filter(|tools| !tools.is_empty());
        let tools = match tools {
            Some(tools) => Value::from(tools.iter().map(Tool::value).collect::<Vec<Value>>()),
            None => Value::from(()),
        };
        let documents = self.documents.clone();
        let mut all = vec![
            ("messages".to_owned(), Value::from(messages?)),
            ("tools".to_owned(), tools),
            (
                "documents".to_owned(),
                documents.unwrap_or_else(|| Value::from(())),
            ),
            (
                "add_generation_prompt".to_owned(),
                Value::from(self.generates()),
            ),
        ];
        if let Some(effort) = &self.reasoning_effort {
            all.push(("reasoning_effort".to_owned(), Value::from(effort)));
        }
        for (name, value) in self.chat_template_kwargs.iter().flat_map(fields) {
            let Some(name) = name.as_str() else { continue };
            all.retain(|(known, _)| known != name);
            all.push((name.to_owned(), value));
        }
        Ok(all)
    }
}

impl Message {
    fn value(&self, format: ContentFormat, media: Media<'_>) -> Result<Value, TokensError> {
        let mut fields = vec![
            ("role", Value::from(&self.role)),
            ("content", self.content.value(format, media)?),
        ];
        if self.role == "assistant" {
            if let Some(calls) = &self.tool_calls {
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

impl Content {
    fn value(&self, format: ContentFormat, media: Media<'_>) -> Result<Value, TokensError> {
        let parts: &[Part] = match self {
            Content::Absent => &[],
            Content::Text(text) => return Ok(one(format, text)),
            Content::Parts(parts) => parts,
        };
        match (format, media) {
            // Where engines put a medium into a text is theirs to say: before the text, as a rule.
            (ContentFormat::String, Media::Text(text)) if parts.iter().any(Part::is_medium) => {
                Ok(Value::from(text))
            }
            (ContentFormat::String, _) => {
                let texts: Result<Vec<&str>, _> = parts.iter().map(Part::text).collect();
                Ok(Value::from(texts?.join("\n")))
            }
            (ContentFormat::Parts, _) => {
                let parts = parts.iter().map(|part| part.value(media));
                Ok(Value::from(parts.collect::<Result<Vec<Value>, _>>()?))
            }
        }
    }
}

/// Content that is one text.
fn one(format: ContentFormat, text: &str) -> Value {
    match format {
        ContentFormat::String => Value::from(text),
        ContentFormat::Parts => Value::from(vec![text_part(text)]),
    }
}

fn text_part(text: &str) -> Value {
    Value::from_pairs([("type", Value::from("text")), ("text", Value::from(text))])
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

    fn is_medium(&self) -> bool {
        self.medium().is_some()
    }

    fn value(&self, media: Media<'_>) -> Result<Value, TokensError> {
        match (self.medium(), media) {
            (Some(kind), Media::Parts) => Ok(Value::from_pairs([("type", Value::from(kind))])),
            (Some(_), Media::Text(text)) => Ok(text_part(text)),
            (_, _) => Ok(text_part(self.text()?)),
        }
    }

    fn text(&self) -> Result<&str, TokensError> {
        let Part::Typed {
            kind,
            text,
            refusal,
            thinking,
        } = self
        else {
            return match self {
                Part::Bare(text) => Ok(text),
                Part::Typed { .. } => Ok(""),
            };
        };
        let text = match kind.as_deref() {
            Some("text" | "input_text" | "output_text") => text,
            Some("refusal") => refusal,
            Some("thinking") => thinking,
            None if text.is_some() => text,
            _ => return Err(TokensError::Unsupported("images, sounds and other media")),
        };
        let missing = || TokensError::Request("a content part without its text".to_owned());
        text.as_deref().ok_or_else(missing)
    }
}

/// A tool call whose arguments are an object.
fn call(call: &Value) -> Result<Value, TokensError> {
    let wrong = |what: &str| TokensError::Request(format!("a tool call {what}"));
    let Some(function) = field(call, "function") else {
        return Ok(call.clone());
    };
    let arguments = match field(&function, "arguments") {
        Some(arguments) => match arguments.as_str() {
            Some("") => Value::from_pairs(<[(&str, Value); 0]>::default()),
            Some(text) => serde_json::from_str(text)
                .map_err(|error| wrong(&format!("with arguments that are no JSON: {error}")))?,
            None if arguments.is_none() => Value::from_pairs(<[(&str, Value); 0]>::default()),
            None => arguments,
        },
        None => Value::from_pairs(<[(&str, Value); 0]>::default()),
    };
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
