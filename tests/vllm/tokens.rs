//! Our tokens against the engine's.

use std::{sync::Arc, time::SystemTime};

use serde_json::{Value, json};
use wicketgate_kvindex::tokens::{Chat, Model};

use crate::{
    chats,
    engine::{Engine, MODEL, Vllm},
    rig::{Events, Rig, ids},
};

/// A longer prompt leaves no room for an answer.
const SERVED: usize = 4000;
/// Fields of a chat that `/tokenize` knows.
const KNOWN: [&str; 6] = [
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template_kwargs",
];

/// For each chat: our ids, those of the engine's `/tokenize`, those of the prompt that it then computes, and what the
/// running `serve` makes of it.
pub(crate) async fn ours_are_the_engines(vllm: &Arc<Vllm>, engines: &[Engine; 2]) -> String {
    let read = |name: &str| std::fs::read(vllm.model.join(name)).unwrap();
    let (tokenizer, config) = (read("tokenizer.json"), read("tokenizer_config.json"));
    let model = Model::new(&tokenizer, Some(&config), None, 16 << 20, 1).unwrap();
    let rig = Rig::start(vllm, engines, &Events::Off, 32).await;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.unwrap().as_secs() as i64;
    let (mut chats, mut served, mut tokens, mut wrong) = (0, 0, 0, Vec::new());
    for chat in chats::all() {
        let ours = Chat::parse(chat.to_string().as_bytes());
        let ours = ours.and_then(|ours| model.chat(&ours, now));
        let ours = match ours {
            Ok(ours) => ours,
            Err(error) => {
                wrong.push(format!("{chat}: {error}"));
                continue;
            }
        };
        if let Some(body) = to_tokenize(&chat) {
            let answer = engines[chats % 2].post("/tokenize", &body).await;
            assert_eq!(answer.status, 200, "{chat}: {answer:?}");
            let theirs = ids(&answer.json()["tokens"]);
            if theirs != ours {
                wrong.push(format!("{chat}: {ours:?}, /tokenize {theirs:?}"));
            }
        }
        chats += 1;
        tokens += ours.len();
        if ours.is_empty() || ours.len() > SERVED {
            continue;
        }
        let mut body = chat.clone();
        let asked = json!({"model": MODEL, "max_tokens": 1, "return_token_ids": true});
        for (name, value) in asked.as_object().unwrap() {
            body[name] = value.clone();
        }
        let found = rig.lookup(&body).await;
        let (_, answer) = rig.chat(&body).await;
        let computed = ids(&answer["prompt_token_ids"]);
        if computed != ours || found["tokens"] != ours.len() || found["prompt"] != "tokenized" {
            wrong.push(format!(
                "{chat}: {ours:?}, {found}, the engine {computed:?}"
            ));
        }
        served += 1;
    }
    let lines = wrong.join("\n");
    assert!(
        wrong.is_empty(),
        "{} of {chats} differ:\n{lines}",
        wrong.len()
    );
    assert!(
        chats >= 50 && served >= 50,
        "{chats} chats, {served} served"
    );
    rig.front.assert_guards_at_zero().await;
    format!(
        "tokens: {chats} chats, {tokens} tokens: our ids are those of /tokenize; {served} of the chats through serve: and \
         those of the prompts that the engines computed"
    )
}

/// The same for `/tokenize`; `None` for what it does not know: fields of their own, and the older name of a reasoning.
fn to_tokenize(chat: &Value) -> Option<Value> {
    let fields = chat.as_object().unwrap();
    let known = |name: &String| KNOWN.contains(&name.as_str());
    let older = chat["messages"].as_array().unwrap().iter();
    let mut older = older.filter(|message| !message["reasoning_content"].is_null());
    if !fields.keys().all(known) || older.next().is_some() {
        return None;
    }
    let mut body = chat.clone();
    body["model"] = MODEL.into();
    Some(body)
}
