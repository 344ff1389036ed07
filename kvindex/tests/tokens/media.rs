//! Chats with images and sounds: what we know of them is how the engine's tokens begin, up to the first medium.

use serde_json::{Value, json};
use wicketgate_kvindex::tokens::{ContentFormat, Model, TokensError};

use crate::{chats::parse, environment, models};

const NOW: i64 = 1_796_072_969;
/// What models of the Qwen family put where an image is. An engine makes many of the one in the middle.
const IMAGE: &str = "<|vision_start|><|image_pad|><|vision_end|>";
/// A template that takes parts and says itself where media are.
const PARTS: &str = "{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in part %}{{ part.text }}{% endif %}\
{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}";
/// One that says it before all text of a message.
const FIRST: &str = "{%- for message in messages %}<|im_start|>{{ message.role }}
{% for part in message.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}{% endfor %}\
{% for part in message.content %}{% if 'text' in part %}{{ part.text }}{% endif %}{% endfor %}<|im_end|>
{% endfor %}";

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn image() -> Value {
    json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}})
}

fn chats() -> Vec<Value> {
    let user = |content: Value| json!({"role": "user", "content": content});
    let system = json!({"role": "system", "content": "You describe pictures.\n"});
    let long = "Look closely at everything. ".repeat(20);
    vec![
        json!({"messages": [user(json!([image()]))]}),
        json!({"messages": [user(json!([image(), text("what?")]))]}),
        json!({"messages": [user(json!([text("what is this? "), image(), text("\n\nand this?"), image()]))]}),
        json!({"messages": [system, user(json!([text(&long), image(), text("?")]))]}),
        json!({"messages": [system, user(json!("hello")), {"role": "assistant", "content": "hi\n\n"},
            user(json!([image(), text("and?")])), {"role": "assistant", "content": "a cat"}, user(json!("sure?"))]}),
        json!({"messages": [system, user(json!([image(), text("wgMedium <|wgMedium|> \nwgMedium")]))]}),
    ]
}

/// The chat as an engine sees it whose template takes texts: media before the text of their message.
fn before_texts(chat: &Value) -> Value {
    let mut chat = chat.clone();
    for message in chat["messages"].as_array_mut().unwrap() {
        let Some(parts) = message["content"].as_array().cloned() else {
            continue;
        };
        let texts = parts.iter().filter_map(|part| part["text"].as_str());
        let media = parts.iter().filter(|part| part.get("text").is_none());
        let all: Vec<&str> = media.map(|_| IMAGE).chain(texts).collect();
        message["content"] = all.join("\n").into();
    }
    chat
}

/// The chat as a template that takes parts sees it, each medium written out as a text of its own.
fn in_parts(chat: &Value, first: bool) -> Value {
    let mut chat = chat.clone();
    for message in chat["messages"].as_array_mut().unwrap() {
        let Some(parts) = message["content"].as_array_mut() else {
            continue;
        };
        if first {
            parts.sort_by_key(|part| part.get("text").is_some());
        }
        for part in parts {
            if part.get("text").is_none() {
                *part = text(IMAGE);
            }
        }
    }
    chat
}

fn files(template: &str) -> Option<Model> {
    let folder = environment().join("tokenizers/qwen3");
    let read = |name| std::fs::read(folder.join(name));
    // What is absent is said where the models are read.
    let (Ok(tokenizer), Ok(config)) = (read("tokenizer.json"), read("tokenizer_config.json"))
    else {
        assert!(models().len() < 3);
        return None;
    };
    let model = Model::new(&tokenizer, Some(&config), Some(template), 1 << 20, 1);
    Some(model.unwrap())
}

/// `whole` is what the engine tokenises, before it makes many of each placeholder.
fn check(model: &Model, chat: &Value, whole: &Value) -> usize {
    let known = model.chat_before_media(&parse(chat), NOW).unwrap();
    let whole = model.chat(&parse(whole), NOW).unwrap();
    let marker = model.prompt(IMAGE, false).unwrap()[0];
    let medium = whole.iter().position(|token| *token == marker).unwrap();
    assert!(known.len() <= medium, "{} > {medium}: {chat}", known.len());
    assert_eq!(known, whole[..known.len()], "{chat}");
    medium - known.len()
}

#[test]
fn what_comes_before_the_first_medium_is_known_and_nothing_else() {
    for (template, first) in [(PARTS, false), (FIRST, true)] {
        let Some(model) = files(template) else {
            return;
        };
        assert_eq!(model.content_format(), Some(ContentFormat::Parts));
        for chat in chats() {
            let lost = check(&model, &chat, &in_parts(&chat, first));
            assert!(lost <= 2, "{lost} tokens are not known: {chat}");
        }
    }
    let Some(qwen) = models().iter().find(|known| known.name == "qwen3") else {
        return;
    };
    assert_eq!(qwen.model.content_format(), Some(ContentFormat::String));
    for chat in chats() {
        let lost = check(&qwen.model, &chat, &before_texts(&chat));
        assert!(lost <= 2, "{lost} tokens are not known: {chat}");
    }
}

/// Other models write other placeholders: what is known before a medium does not depend on it.
#[test]
fn every_tokenizer_knows_the_beginning() {
    for known in models() {
        for chat in chats() {
            let ours = known.model.chat_before_media(&parse(&chat), NOW).unwrap();
            for placeholder in [
                "<image>",
                "\n<image>\n",
                "[IMG]",
                " picture 1:",
                "<|image|>",
            ] {
                let mut whole = before_texts(&chat).to_string();
                let escaped = serde_json::to_string(placeholder).unwrap();
                whole = whole.replace(IMAGE, escaped.trim_matches('"'));
                let whole: Value = serde_json::from_str(&whole).unwrap();
                let whole = known.model.chat(&parse(&whole), NOW).unwrap();
                // What a template strips or an odd placeholder joins is at the end, if anything.
                let same = ours.iter().zip(&whole).take_while(|(a, b)| a == b).count();
                assert!(
                    ours.len() - same <= 1,
                    "{}: {placeholder:?} {chat}",
                    known.name
                );
            }
        }
    }
}

/// An engine may take what a caller writes for the place of a medium.
#[test]
fn who_writes_a_placeholder_is_not_credited() {
    let Some(model) = files(PARTS) else {
        return;
    };
    for content in [
        json!([text(IMAGE), image()]),
        json!([image(), text("a <|image_pad|> b")]),
    ] {
        let chat = json!({"messages": [{"role": "user", "content": content}]});
        let known = model.chat_before_media(&parse(&chat), NOW);
        assert!(matches!(known, Err(TokensError::Unsupported(_))), "{chat}");
    }
}

#[test]
fn chats_without_a_medium_and_those_that_make_no_sense_are_as_ever() {
    for known in models() {
        let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
        let parsed = parse(&chat);
        assert_eq!(
            known.model.chat_before_media(&parsed, NOW),
            known.model.chat(&parsed, NOW)
        );
        let with = json!({"messages": [{"role": "user", "content": [image()]}]});
        let refused = known.model.chat(&parse(&with), NOW);
        assert!(matches!(refused, Err(TokensError::Unsupported(_))));
    }
}
