//! Where a template and the special tokens come from.

use serde::Deserialize;

use crate::tokens::{TokensError, tokenizer::SpecialToken};

/// What the files of a model say.
pub(super) struct Files {
    pub(super) template: Option<String>,
    /// Names and texts of special tokens.
    pub(super) specials: Vec<(String, String)>,
}

#[derive(Default, Deserialize)]
struct Config {
    #[serde(default)]
    chat_template: Option<Templates>,
    #[serde(default)]
    bos_token: Option<SpecialToken>,
    #[serde(default)]
    eos_token: Option<SpecialToken>,
    #[serde(default)]
    unk_token: Option<SpecialToken>,
    #[serde(default)]
    sep_token: Option<SpecialToken>,
    #[serde(default)]
    pad_token: Option<SpecialToken>,
    #[serde(default)]
    cls_token: Option<SpecialToken>,
    #[serde(default)]
    mask_token: Option<SpecialToken>,
}

/// One template, or several with names.
#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<Named>),
}

#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

pub(super) fn read(config: Option<&[u8]>, template: Option<&str>) -> Result<Files, TokensError> {
    let config: Config = match config {
        Some(config) => serde_json::from_slice(config).map_err(|error| TokensError::File {
            file: "tokenizer_config.json",
            why: error.to_string(),
        })?,
        None => Config::default(),
    };
    let listed = match config.chat_template {
        Some(Templates::One(template)) => Some(template),
        Some(Templates::Named(all)) => {
            let default = all.into_iter().find(|named| named.name == "default");
            default.map(|named| named.template)
        }
        None => None,
    };
    let specials = [
        ("bos_token", config.bos_token),
        ("eos_token", config.eos_token),
        ("unk_token", config.unk_token),
        ("sep_token", config.sep_token),
        ("pad_token", config.pad_token),
        ("cls_token", config.cls_token),
        ("mask_token", config.mask_token),
    ];
    let specials = specials.into_iter().filter_map(|(name, token)| {
        let token = token?;
        Some((name.to_owned(), token.text().to_owned()))
    });
    Ok(Files {
        template: template.map(str::to_owned).or(listed),
        specials: specials.collect(),
    })
}

/// The same template with its `generation` blocks as blocks that are always taken: they only mark text.
pub(super) fn without_generation(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, tag)) = rest.split_once("{%") {
        out.push_str(before);
        out.push_str("{%");
        let inner = tag.trim_start_matches(['-', '+']).trim_start();
        let head = tag.len() - inner.len();
        out.push_str(tag.get(..head).unwrap_or_default());
        rest = inner;
        for (word, instead) in [("endgeneration", "endif"), ("generation", "if true")] {
            let after = inner.strip_prefix(word);
            let closed = after.filter(|after| {
                let end = after.trim_start().trim_start_matches(['-', '+']);
                end.starts_with("%}")
            });
            if let Some(after) = closed {
                out.push_str(instead);
                rest = after;
                break;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_generation_blocks_change() {
        let template = "{%- generation -%}a{%endgeneration+%}{% set generation = 1 %}{{ generation }}{% generations %}";
        assert_eq!(
            without_generation(template),
            "{%- if true -%}a{%endif+%}{% set generation = 1 %}{{ generation }}{% generations %}"
        );
    }

    #[test]
    fn templates_and_tokens_come_in_several_forms() {
        let config = br#"{"chat_template":[{"name":"tool_use","template":"t"},{"name":"default","template":"d"}],
            "bos_token":{"content":"<s>","lstrip":false},"eos_token":"</s>","pad_token":null}"#;
        let files = read(Some(config), None).unwrap();
        assert_eq!(files.template.as_deref(), Some("d"));
        let pair = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        assert_eq!(
            files.specials,
            [pair("bos_token", "<s>"), pair("eos_token", "</s>")]
        );
        let files = read(Some(config), Some("own")).unwrap();
        assert_eq!(files.template.as_deref(), Some("own"));
        assert!(read(None, None).unwrap().template.is_none());
        assert!(read(Some(b"7"), None).is_err());
    }
}
