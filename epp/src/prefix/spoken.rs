//! What an engine makes of a prompt: `POST /tokenize` of vLLM, or the `/render` pages of a service beside it.

use std::{collections::BTreeMap, time::Duration};

use bytes::{BufMut as _, Bytes, BytesMut};
use serde::{Deserialize, de::DeserializeOwned};
use wicketgate_wire::{
    Api,
    json::{Cursor, ScanError, Span},
};

use crate::engine::{Line, Question};

/// Longest answer in bytes: a million tokens and more.
const MOST: usize = 16 << 20;

/// Fields of a chat that `/tokenize` takes over.
const CHAT: [&str; 9] = [
    "model",
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "mm_processor_kwargs",
];
/// Fields of a completion that it takes over.
const COMPLETION: [&str; 3] = ["model", "prompt", "add_special_tokens"];
/// Fields that change a prompt and that it does not know.
const UNKNOWN: [&str; 3] = ["documents", "reasoning_effort", "truncate_prompt_tokens"];

/// Which page tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// `/tokenize`: ids alone, so it is no help with media.
    Tokenize,
    /// `/v1/.../render`: ids, and the media among them.
    Render,
}

/// A prompt as the engine computes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Spoken {
    pub(super) tokens: Vec<u32>,
    /// Names of media and where they start, in order.
    pub(super) media: Vec<(String, usize)>,
    /// Tokens from here on belong to media without a name.
    pub(super) known: Option<usize>,
}

/// Why an engine does not tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Untold {
    /// It has no such page, or does not take this request.
    Unsupported,
    /// It could not be asked, took too long, or made no sense.
    Failed(String),
}

#[derive(Deserialize)]
struct Tokenized {
    tokens: Vec<u32>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneRendered {
    Bare(Rendered),
    Listed([Rendered; 1]),
}

#[derive(Deserialize)]
struct Rendered {
    token_ids: Vec<u32>,
    #[serde(default)]
    features: Option<Features>,
}

/// Media by their kinds: names, and where they lie, in the same order.
#[derive(Deserialize)]
struct Features {
    #[serde(default)]
    mm_hashes: BTreeMap<String, Vec<Option<String>>>,
    #[serde(default)]
    mm_placeholders: BTreeMap<String, Vec<Placeholder>>,
}

#[derive(Deserialize)]
struct Placeholder {
    offset: usize,
}

/// Asks for the tokens of a request.
///
/// # Errors
/// When the engine does not tell.
pub(super) async fn ask(
    line: &Line,
    page: Page,
    api: Api,
    body: &Bytes,
    within: Duration,
) -> Result<Spoken, Untold> {
    let question = question(page, api, body).ok_or(Untold::Unsupported)?;
    let answer = line.ask(question, MOST, within).await;
    let answer = answer.map_err(|error| Untold::Failed(error.to_string()))?;
    match answer.status.as_u16() {
        200 => read(page, &answer.body),
        408 | 429 | 500.. => Err(Untold::Failed(format!("status {}", answer.status))),
        _ => Err(Untold::Unsupported),
    }
}

fn read(page: Page, body: &[u8]) -> Result<Spoken, Untold> {
    fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Untold> {
        serde_json::from_slice(body).map_err(|error| Untold::Failed(error.to_string()))
    }
    match page {
        Page::Tokenize => Ok(Spoken {
            tokens: parse::<Tokenized>(body)?.tokens,
            ..Spoken::default()
        }),
        Page::Render => {
            let (OneRendered::Bare(rendered) | OneRendered::Listed([rendered])) = parse(body)?;
            let mut spoken = Spoken {
                tokens: rendered.token_ids,
                ..Spoken::default()
            };
            if let Some(features) = rendered.features {
                features.into(&mut spoken);
            }
            Ok(spoken)
        }
    }
}

impl Features {
    fn into(self, spoken: &mut Spoken) {
        let Features {
            mm_hashes: mut hashes,
            mm_placeholders,
        } = self;
        for (kind, places) in mm_placeholders {
            let mut names = hashes.remove(&kind).unwrap_or_default().into_iter();
            for Placeholder { offset } in places {
                match names.next().flatten() {
                    Some(name) => spoken.media.push((name, offset)),
                    // Two of them could look alike, so nothing from here on is known.
                    None => {
                        let known = spoken.known.unwrap_or(offset);
                        spoken.known = Some(known.min(offset));
                    }
                }
            }
        }
        spoken.media.sort_by_key(|(_, at)| *at);
    }
}

fn question(page: Page, api: Api, body: &Bytes) -> Option<Question> {
    Some(match (page, api) {
        (Page::Tokenize, _) => Question::post("/tokenize", tokenize(api, body)?),
        (Page::Render, Api::ChatCompletions) => {
            Question::post("/v1/chat/completions/render", body.clone())
        }
        (Page::Render, Api::Completions) => Question::post("/v1/completions/render", body.clone()),
        (Page::Render, Api::Embeddings | Api::Unknown) => return None,
    })
}

/// What `/tokenize` is sent for a request: its own bytes, without the fields that have no say in its prompt. Nothing if
/// it cannot tell.
fn tokenize(api: Api, body: &[u8]) -> Option<Bytes> {
    let names: &[&str] = match api {
        Api::ChatCompletions => &CHAT,
        Api::Completions => &COMPLETION,
        Api::Embeddings | Api::Unknown => return None,
    };
    let fields = fields(body, names).ok()?;
    if fields.odd {
        return None;
    }
    let mut made = BytesMut::with_capacity(body.len().min(MOST));
    for (name, span) in names.iter().zip(&fields.spans) {
        let Some(value) = span.clone().and_then(|span| body.get(span)) else {
            continue;
        };
        let value = match *name {
            "prompt" => only(value)?,
            "messages" if reasons(value) => return None,
            _ => value,
        };
        made.put_u8(if made.is_empty() { b'{' } else { b',' });
        made.put_slice(format!("\"{name}\":").as_bytes());
        made.put_slice(value);
    }
    made.put_u8(b'}');
    Some(made.freeze())
}

/// A text, alone or as the only one of a list.
fn only(value: &[u8]) -> Option<&[u8]> {
    let listed = value.strip_prefix(b"[");
    let text = match listed {
        Some(rest) => rest.strip_suffix(b"]")?.trim_ascii(),
        None => value,
    };
    text.starts_with(b"\"").then_some(text)
}

struct Fields {
    /// Values of the wanted names that are there and not null; of a name that comes twice the last one.
    spans: Vec<Option<Span>>,
    /// There is a field that `/tokenize` would not heed.
    odd: bool,
}

fn fields(body: &[u8], names: &[&str]) -> Result<Fields, ScanError> {
    let mut found = Fields {
        spans: vec![None; names.len()],
        odd: false,
    };
    let mut cursor = Cursor::new(body);
    cursor.space();
    cursor.object(|cursor, key| {
        let key = key.decode(body);
        let known = names.iter().position(|name| *name == key.as_ref());
        let odd = UNKNOWN.contains(&key.as_ref());
        let span = cursor.skip()?;
        let there = body.get(span.clone()) != Some(b"null");
        found.odd |= odd && there;
        if let Some(place) = known.and_then(|at| found.spans.get_mut(at)) {
            *place = there.then_some(span);
        }
        Ok(())
    })?;
    Ok(found)
}

/// Whether a message names its reasoning as it was named of old: engines take that over, and `/tokenize` drops it.
fn reasons(messages: &[u8]) -> bool {
    const NAME: &[u8] = b"\"reasoning_content\"";
    let named = messages.windows(NAME.len()).enumerate();
    let mut named = named.filter(|(_, name)| *name == NAME);
    named.any(|(at, _)| {
        let rest = messages.get(at + NAME.len()..).unwrap_or_default();
        let value = rest.trim_ascii_start().strip_prefix(b":");
        value.is_some_and(|value| !value.trim_ascii_start().starts_with(b"null"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(api: Api, body: &str) -> Option<String> {
        let made = tokenize(api, body.as_bytes())?;
        Some(String::from_utf8(made.to_vec()).unwrap())
    }

    #[test]
    fn only_what_has_a_say_in_the_prompt_is_sent_and_as_it_is() {
        let chat = r#"{"stream": true, "messages": [ {"role":"user","content":"\u00fc 1e3"} ],"model":"m","tools":null,
            "temperature":1.0,"chat_template_kwargs":{"a":9007199254740993},"model":"n"}"#;
        assert_eq!(
            made(Api::ChatCompletions, chat).unwrap(),
            r#"{"model":"n","messages":[ {"role":"user","content":"\u00fc 1e3"} ],"chat_template_kwargs":{"a":9007199254740993}}"#
        );
        let prompt = r#"{"prompt":[ "a, b]" ],"max_tokens":3}"#;
        assert_eq!(
            made(Api::Completions, prompt).unwrap(),
            r#"{"prompt":"a, b]"}"#
        );
    }

    #[test]
    fn what_the_page_does_not_know_is_not_asked() {
        for (api, body) in [
            (Api::ChatCompletions, r#"{"messages":[],"documents":[1]}"#),
            (
                Api::ChatCompletions,
                r#"{"messages":[],"reasoning_effort":"low"}"#,
            ),
            (
                Api::ChatCompletions,
                r#"{"messages":[{"role":"assistant","reasoning_content" : "so"}]}"#,
            ),
            (Api::Completions, r#"{"prompt":[1,2]}"#),
            (
                Api::Completions,
                r#"{"prompt":"a","truncate_prompt_tokens":1}"#,
            ),
            (Api::ChatCompletions, "{"),
            (Api::Embeddings, "{}"),
        ] {
            assert_eq!(made(api, body), None, "{body}");
        }
        for null in [
            r#"{"messages":[],"documents":null}"#,
            r#"{"messages":[{"role":"assistant","reasoning_content": null}]}"#,
            r#"{"messages":[{"role":"user","content":"\"reasoning_content\": 1"}]}"#,
        ] {
            assert!(made(Api::ChatCompletions, null).is_some(), "{null}");
        }
    }

    #[test]
    fn answers_of_both_pages_are_read() {
        // As vLLM 0.32 answers.
        let tokenized =
            br#"{"count":3,"max_model_len":2048,"tokens":[54,260,746],"token_strs":null}"#;
        assert_eq!(
            read(Page::Tokenize, tokenized).unwrap().tokens,
            [54, 260, 746]
        );
        let rendered = br#"{"request_id":"chatcmpl-8","token_ids":[1,341],"token_offsets":null,"features":null,"model":"tiny"}"#;
        assert_eq!(read(Page::Render, rendered).unwrap().tokens, [1, 341]);
        let listed = br#"[{"request_id":"cmpl-a-0","token_ids":[689],"features":null}]"#;
        assert_eq!(read(Page::Render, listed).unwrap().tokens, [689]);
        for (page, body) in [
            (Page::Tokenize, &b"{}"[..]),
            (Page::Tokenize, br#"{"tokens":[-1]}"#),
            (Page::Render, b"[]"),
        ] {
            assert!(matches!(read(page, body), Err(Untold::Failed(_))));
        }
    }

    #[test]
    fn media_have_their_names_and_places_as_far_as_they_are_known() {
        let body = |hashes: &str| {
            format!(
                r#"{{"token_ids":[1,2,3,4,5,6,7],"features":{{"mm_hashes":{hashes},
                "mm_placeholders":{{"audio":[{{"offset":1,"length":2}}],"image":[{{"offset":5,"length":1}},{{"offset":0,"length":1}}]}}}}}}"#
            )
        };
        let whole = body(r#"{"audio":["s"],"image":["cat","dog"]}"#);
        let named = |names: &[(&str, usize)]| -> Vec<(String, usize)> {
            let owned = names.iter().map(|(name, at)| ((*name).to_owned(), *at));
            owned.collect()
        };
        let spoken = read(Page::Render, whole.as_bytes()).unwrap();
        assert_eq!(spoken.media, named(&[("dog", 0), ("s", 1), ("cat", 5)]));
        assert_eq!(spoken.known, None);
        let part = body(r#"{"audio":[null],"image":["cat","dog"]}"#);
        let spoken = read(Page::Render, part.as_bytes()).unwrap();
        assert_eq!(spoken.media, named(&[("dog", 0), ("cat", 5)]));
        assert_eq!(spoken.known, Some(1));
    }
}
