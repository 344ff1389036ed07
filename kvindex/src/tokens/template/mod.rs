//! Hugging Face chat templates.
//!
//! They are Jinja2 as `transformers` sets it up: blocks trimmed, loop controls, `tojson` in the manner of Python,
//! `raise_exception`, `strftime_now` and the `generation` block, which marks text and changes nothing. Values print as
//! Python prints them.

mod json;
mod python;
mod source;
mod time;

use std::borrow::Cow;

use minijinja::{
    Environment, Error, ErrorKind, Output, State, Value, syntax::SyntaxConfig, value::Kwargs,
    value::ValueKind,
};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::{
    Chat, TokensError,
    chat::{Expected, Media},
};

const NAME: &str = "chat_template";

/// How a template wants the content of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentFormat {
    /// One text.
    String,
    /// A list of parts.
    Parts,
}

/// What a template renders.
#[derive(Clone, Copy, Debug)]
pub struct Rendering<'a> {
    /// The request.
    pub chat: &'a Chat,
    /// Unix time in seconds; `strftime_now` tells it as UTC.
    pub now: i64,
}

/// A chat template. See the [module](super).
pub struct Template {
    environment: Environment<'static>,
    /// Names and texts of special tokens.
    specials: Vec<(String, Value)>,
    format: ContentFormat,
    /// It knows the role `developer`.
    developers: bool,
}

impl std::fmt::Debug for Template {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Template")
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

impl Template {
    /// The template of a model: `template`, or the one in `tokenizer_config.json`, which also names special tokens.
    ///
    /// # Errors
    /// When the file or the template cannot be read.
    pub fn of_model(
        config: Option<&[u8]>,
        template: Option<&str>,
    ) -> Result<Option<Template>, TokensError> {
        let source::Files { template, specials } = source::read(config, template)?;
        let made = template.map(|template| Template::new(&template, specials));
        made.transpose()
    }

    /// A template with the special tokens that it may name.
    ///
    /// # Errors
    /// When it is not a template.
    pub fn new(template: &str, specials: Vec<(String, String)>) -> Result<Template, TokensError> {
        let wrong = |why: String| TokensError::File {
            file: "the chat template",
            why,
        };
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(|error| wrong(error.to_string()))?);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.set_formatter(print);
        environment.add_filter("tojson", tojson);
        environment.add_function("raise_exception", raise);
        environment
            .add_template_owned(NAME, source::without_generation(template))
            .map_err(|error| wrong(format!("{error:#}")))?;
        let specials = specials.into_iter();
        let mut made = Template {
            environment,
            specials: specials
                .map(|(name, text)| (name, Value::from(text)))
                .collect(),
            format: ContentFormat::String,
            // As vLLM tells.
            developers: ["'developer'", "\"developer\""]
                .iter()
                .any(|name| template.contains(name)),
        };
        made.format = made.probe();
        Ok(made)
    }

    /// How it wants the content of messages.
    pub fn content_format(&self) -> ContentFormat {
        self.format
    }

    /// Whether it looks into a list of parts for its text.
    fn probe(&self) -> ContentFormat {
        const TEXT: &str = "wgProbe";
        let part = Value::from_pairs([("type", Value::from("text")), ("text", Value::from(TEXT))]);
        let message = Value::from_pairs([
            ("role", Value::from("user")),
            ("content", Value::from(vec![part])),
        ]);
        let variables = vec![
            ("messages".to_owned(), Value::from(vec![message])),
            ("add_generation_prompt".to_owned(), Value::from(true)),
        ];
        match self.run(variables, 0) {
            // A list that is only printed shows its quotes.
            Ok(text) if text.contains(TEXT) && !text.contains("'wgProbe'") => ContentFormat::Parts,
            _ => ContentFormat::String,
        }
    }

    /// The text of a chat.
    ///
    /// # Errors
    /// When the template does not take these messages.
    pub fn render(&self, rendering: &Rendering<'_>) -> Result<String, TokensError> {
        self.render_with(rendering, Media::Refused)
    }

    /// The same with something in the place of media.
    pub(super) fn render_with(
        &self,
        rendering: &Rendering<'_>,
        media: Media<'_>,
    ) -> Result<String, TokensError> {
        let chat = rendering.chat;
        let expected = Expected {
            format: self.format,
            developers: self.developers,
            media,
        };
        let text = self.run(chat.variables(expected)?, rendering.now)?;
        if chat.continues() {
            return continued(text, &chat.final_text(expected)?);
        }
        Ok(text)
    }

    fn run(&self, variables: Vec<(String, Value)>, now: i64) -> Result<String, TokensError> {
        let clock = Value::from_function(move |format: &str| time::format(format, now));
        let specials = self.specials.iter().cloned();
        let all = specials
            .chain(variables)
            .chain([("strftime_now".to_owned(), clock)]);
        let failed = |error: Error| TokensError::Template(chain(&error));
        let template = self.environment.get_template(NAME).map_err(failed)?;
        template.render(Value::from_pairs(all)).map_err(failed)
    }
}

/// An error with its causes, in one line.
fn chain(error: &Error) -> String {
    let mut text = match error.detail() {
        Some(detail) => detail.to_owned(),
        None => error.kind().to_string(),
    };
    if let Some(line) = error.line() {
        text.push_str(&format!(" (line {line})"));
    }
    text
}

/// Cuts a text behind its final message, as `transformers` does.
fn continued(mut text: String, last: &str) -> Result<String, TokensError> {
    let bare = last.trim();
    let Some(at) = text.rfind(bare) else {
        let why = "the template changes the final message, so it cannot be continued";
        return Err(TokensError::Template(why.to_owned()));
    };
    let whole = last.trim_start();
    let end = match text.get(at..).is_some_and(|rest| rest.starts_with(whole)) {
        true if whole == last => at + whole.len(),
        _ => at + bare.len(),
    };
    text.truncate(end);
    Ok(text)
}

fn raise(message: Cow<'_, str>) -> Result<Value, Error> {
    Err(Error::new(
        ErrorKind::InvalidOperation,
        message.into_owned(),
    ))
}

/// Prints a value as Python's `str` does.
fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(()),
        ValueKind::String => out
            .write_str(value.as_str().unwrap_or_default())
            .map_err(Error::from),
        ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::Seq | ValueKind::Map => {
            let mut text = String::new();
            python::repr(value, &mut text);
            out.write_str(&text).map_err(Error::from)
        }
        _ => minijinja::escape_formatter(out, state, value),
    }
}

/// `json.dumps` with its keyword arguments.
fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let separators: Option<Value> = options.get("separators")?;
    let indent: Option<Value> = options.get("indent")?;
    let mut style = json::Style {
        ascii: options
            .get::<Option<bool>>("ensure_ascii")?
            .unwrap_or(false),
        sorted: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ..json::Style::default()
    };
    options.assert_all_used()?;
    if let Some(indent) = indent.filter(|indent| !indent.is_none()) {
        style.indent = Some(match (indent.as_str(), indent.as_i64()) {
            (Some(text), _) => text.to_owned(),
            (_, Some(width)) => " ".repeat(usize::try_from(width).unwrap_or(0).min(64)),
            _ => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    "indent is no number",
                ));
            }
        });
        style.item = ",".to_owned();
    }
    if let Some(separators) = separators.filter(|separators| !separators.is_none()) {
        let part = |at: usize| -> Result<String, Error> {
            let part = separators.get_item_by_index(at)?;
            Ok(part.as_str().unwrap_or_default().to_owned())
        };
        (style.item, style.colon) = (part(0)?, part(1)?);
    }
    let mut text = String::new();
    json::write(value, &style, 0, &mut text)?;
    Ok(Value::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &str, chat: &str) -> Result<String, TokensError> {
        let specials = vec![("bos_token".to_owned(), "<s>".to_owned())];
        let chat = Chat::parse(chat.as_bytes())?;
        let rendering = Rendering {
            chat: &chat,
            now: 1_796_072_969,
        };
        Template::new(template, specials)?.render(&rendering)
    }

    fn plain(template: &str) -> String {
        render(template, r#"{"messages":[{"role":"user","content":"hi"}]}"#).unwrap()
    }

    #[test]
    fn values_print_as_python_prints_them() {
        let template = "{{ none }} {{ true }} {{ 1.0 }} {{ 1e22 }} {{ [1, 'a', \"it's\", none] }} {{ {'k': 2.5} }} {{ missing }}|";
        assert_eq!(
            plain(template),
            r#"None True 1.0 1e+22 [1, 'a', "it's", None] {'k': 2.5} |"#
        );
    }

    #[test]
    fn json_is_pythons() {
        let json = |template: &str| plain(template);
        assert_eq!(
            json("{{ {'b': [1, 2.0, none, true], 'a': 'ä\"\\n<>&\\''} | tojson }}"),
            "{\"b\": [1, 2.0, null, true], \"a\": \"ä\\\"\\n<>&'\"}"
        );
        assert_eq!(
            json(
                "{{ {'b': [], 'a': {'x': 'ä😀'}} | tojson(indent=2, sort_keys=true, ensure_ascii=true) }}"
            ),
            "{\n  \"a\": {\n    \"x\": \"\\u00e4\\ud83d\\ude00\"\n  },\n  \"b\": []\n}"
        );
        assert_eq!(
            json("{{ {'b': [1, 2]} | tojson(separators=(',', ':')) }}"),
            r#"{"b":[1,2]}"#
        );
    }

    #[test]
    fn extensions_of_hugging_face_are_there() {
        let template = "{% for x in [1, 2, 3, 4] %}\n{% if x == 2 %}{% continue %}{% endif %}\n{% if x == 4 %}{% break %}{% endif %}\n{{ x }}\n  {%- generation -%}  g{% endgeneration %}\n{% endfor %}";
        assert_eq!(plain(template), "1g3g");
        assert_eq!(
            plain("{{ bos_token }}{{ strftime_now('%d %b %Y %H:%M:%S %A %j %-d') }}"),
            "<s>30 Nov 2026 21:09:29 Monday 334 30"
        );
        let raised = render(
            "{{ raise_exception('no system: ' + messages[0].role) }}",
            r#"{"messages":[{"role":"user","content":"hi"}]}"#,
        );
        assert_eq!(
            raised,
            Err(TokensError::Template("no system: user (line 1)".to_owned()))
        );
        assert!(matches!(
            Template::new("{% if %}", Vec::new()),
            Err(TokensError::File { .. })
        ));
    }

    #[test]
    fn parts_go_to_templates_that_look_into_them() {
        let chat = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"},"b",{"text":"c"}]},
            {"role":"assistant","content":null},{"role":"user","content":[]}]}"#;
        let text = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}";
        assert_eq!(render(text, chat).unwrap(), "[a\nb\nc][][]");
        let parts = "{% for m in messages %}[{% for p in m['content'] %}{{ p.text }};{% endfor %}]{% endfor %}";
        assert_eq!(render(parts, chat).unwrap(), "[a;b;c;][][]");
        let image = r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}"#;
        assert!(matches!(
            render(text, image),
            Err(TokensError::Unsupported(_))
        ));
    }

    #[test]
    fn tools_and_calls_are_shaped_as_the_engine_shapes_them() {
        let chat = r#"{"tools":[{"type":"function","function":{"parameters":{"z":1,"a":2},"name":"f","strict":true}}],
            "messages":[{"role":"assistant","tool_calls":[{"id":"1","type":"function",
            "function":{"name":"f","arguments":"{\"y\": 1.50, \"b\": \"ü\"}"}}]},
            {"role":"tool","tool_call_id":"1","content":"ok","other":1}]}"#;
        assert_eq!(
            render("{{ tools[0] | tojson }} {{ messages[0].tool_calls[0] | tojson }} {{ messages[1] | tojson }}", chat).unwrap(),
            r#"{"type": "function", "function": {"name": "f", "description": null, "parameters": {"z": 1, "a": 2}, "strict": true}} {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"y": 1.5, "b": "ü"}}} {"role": "tool", "content": "ok", "tool_call_id": "1"}"#
        );
        // What a model once said wrong stays in its conversation for ever.
        for bad in ["\"{\"", "\"\"", "\"[1]\"", "\"7\"", "null", "[]"] {
            let chat = format!(
                r#"{{"messages":[{{"role":"assistant","tool_calls":[{{"function":{{"name":"f","arguments":{bad}}}}}]}}]}}"#
            );
            let template = "{{ messages[0].tool_calls[0].function.arguments | tojson }}";
            assert_eq!(render(template, &chat).unwrap(), "{}", "{bad}");
        }
        let none = r#"{"messages":[{"role":"assistant","content":"a","tool_calls":[]}]}"#;
        let template = "{{ messages[0].content | trim }}{{ messages[0].tool_calls is defined }}";
        assert_eq!(render(template, none).unwrap(), "aFalse");
        let parts = r#"{"messages":[{"role":"tool","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
            {"role":"user","content":"c"}]}"#;
        let template = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}";
        assert_eq!(render(template, parts).unwrap(), "a\nb<c>");
    }

    /// A medium is where its message is, however that is shaped.
    #[test]
    fn media_stand_where_engines_put_them() {
        let show = |template: &str, chat: &str, media: Media<'_>| {
            let chat = Chat::parse(chat.as_bytes()).unwrap();
            let rendering = Rendering {
                chat: &chat,
                now: 0,
            };
            let template = Template::new(template, Vec::new()).unwrap();
            template.render_with(&rendering, media)
        };
        let chat = r#"{"messages":[{"role":"system","content":[{"type":"text","text":"x-anthropic-billing-header: 1"},{"type":"text","text":"s"}]},
            {"role":"tool","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"u"}}]},
            {"role":"developer","content":[{"type":"text","text":"d"},{"type":"input_audio"}]}]}"#;
        let parts = "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}[{{ p.type }} {{ p.text }}]{% endfor %}{% endif %}{% endfor %}";
        let text = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
        assert_eq!(
            show(parts, chat, Media::Parts).unwrap(),
            "<system>s\n\nd<tool>[text a][image ]"
        );
        assert_eq!(
            show(parts, chat, Media::Text("M")).unwrap(),
            "<system>s\n\nd\nM<tool>[text a][text M]"
        );
        assert_eq!(
            show(text, chat, Media::Text("M")).unwrap(),
            "<system>s\n\nM<tool>M"
        );
        for template in [parts, text] {
            let refused = show(template, chat, Media::Refused);
            assert!(matches!(refused, Err(TokensError::Unsupported(_))));
        }
        let continued = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"image_url"},{"type":"text","text":"b"}]}],
            "continue_final_message":true,"add_generation_prompt":false}"#;
        assert_eq!(
            show(parts, continued, Media::Parts).unwrap(),
            "<user>[text a]<assistant>[image ][text b"
        );
        assert_eq!(
            show(text, continued, Media::Text("M")).unwrap(),
            "<user>a<assistant>M"
        );
    }

    #[test]
    fn texts_that_say_nothing_are_left_out() {
        let chat = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":""},
            {"type":"refusal","refusal":null},{"type":"text","text":null},{"type":"text","text":"b"}]}]}"#;
        assert_eq!(
            render("{{ messages[0].content | trim }}", chat).unwrap(),
            "a\nb"
        );
        let parts = "{% for p in messages[0]['content'] %}<{{ p.text }}>{% endfor %}";
        assert_eq!(render(parts, chat).unwrap(), "<a><><b>");
        let billed = |text: &str| {
            let chat = serde_json::json!({"messages": [{"role": "system", "content": text}, {"role": "user", "content": text}]});
            render(
                "{% for m in messages %}[{{ m.content }}]{% endfor %}",
                &chat.to_string(),
            )
            .unwrap()
        };
        let line = "x-anthropic-billing-header: cch=1";
        assert_eq!(billed(line), format!("[][{line}]"));
        assert_eq!(
            billed(&format!("{line}\nYou help.")),
            format!("[You help.][{line}\nYou help.]")
        );
        assert_eq!(
            billed(&format!("a {line}")),
            format!("[a {line}][a {line}]")
        );
    }

    #[test]
    fn developers_are_the_system_where_a_template_knows_none() {
        let chat = r#"{"messages":[{"role":"system","content":"a"},{"role":"user","content":"u"},
            {"role":"developer","content":"b"},{"role":"system","content":""}]}"#;
        let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
        assert_eq!(render(template, chat).unwrap(), "<system>a\n\nb<user>u");
        let first =
            r#"{"messages":[{"role":"developer","content":"b"},{"role":"user","content":"u"}]}"#;
        assert_eq!(render(template, first).unwrap(), "<system>b<user>u");
        let knows = format!("{{# 'developer' #}}{template}");
        assert_eq!(
            render(&knows, chat).unwrap(),
            "<system>a<user>u<developer>b<system>"
        );
        // Without a developer nobody's messages move.
        let system =
            r#"{"messages":[{"role":"user","content":"u"},{"role":"system","content":"a"}]}"#;
        assert_eq!(render(template, system).unwrap(), "<user>u<system>a");
    }

    #[test]
    fn variables_of_the_request_reach_the_template() {
        let chat = r#"{"messages":[{"role":"user","content":"hi"}],"add_generation_prompt":false,
            "chat_template_kwargs":{"enable_thinking":false,"n":3}}"#;
        let template = "{{ add_generation_prompt }}{{ enable_thinking }}{{ n }}{{ tools is none }}";
        assert_eq!(render(template, chat).unwrap(), "FalseFalse3True");
        let both = r#"{"messages":[{"role":"user","content":"hi"}],"reasoning_effort":"none","documents":null,
            "chat_template_kwargs":{"add_generation_prompt":false,"reasoning_effort":"high","documents":[1]}}"#;
        let template =
            "{{ add_generation_prompt }}{{ reasoning_effort }}{{ enable_thinking }}{{ documents }}";
        assert_eq!(render(template, both).unwrap(), "TruenoneFalse[1]");
        let effort = r#"{"messages":[{"role":"user","content":"hi"}],"reasoning_effort":"low"}"#;
        assert_eq!(render("{{ enable_thinking }}", effort).unwrap(), "True");
        let own = r#"{"messages":[{"role":"user","content":"hi"}],"chat_template":"x"}"#;
        assert!(matches!(render("", own), Err(TokensError::Unsupported(_))));
        assert!(matches!(
            render("", r#"{"messages":[]}"#),
            Err(TokensError::Request(_))
        ));
        let continued = r#"{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":" so far "}],
            "add_generation_prompt":false,"continue_final_message":true}"#;
        let template = "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}";
        assert_eq!(render(template, continued).unwrap(), "<q><so far");
    }
}
