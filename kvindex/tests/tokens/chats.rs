//! Chats of every shape, rendered by us and by the real Jinja.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use wicketgate_kvindex::tokens::Chat;

use crate::{Known, environment, models};

pub(crate) fn parse(chat: &Value) -> Chat {
    Chat::parse(chat.to_string().as_bytes()).unwrap()
}

const NOW: i64 = 1_796_072_969;

fn chats() -> Vec<Value> {
    let user = |text: &str| json!({"role": "user", "content": text});
    let says = |text: &str| json!({"role": "assistant", "content": text});
    let system = json!({"role": "system", "content": "You help.\n"});
    let call = |arguments: &str| json!({"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}});
    let tool = |text: &str| json!({"role": "tool", "tool_call_id": "c1", "content": text});
    let tools = json!([
        {"type": "function", "function": {"name": "weather", "description": "Tells \"weather\" <now> & größer",
            "parameters": {"type": "object", "properties": {"town": {"type": "string"}, "days": {"type": "integer", "default": 1.0}},
            "required": ["town"], "additionalProperties": false}}},
        {"type": "function", "function": {"name": "nothing"}},
    ]);
    let called = json!({"role": "assistant", "content": "", "tool_calls": [call("{\"town\": \"Köln\", \"days\": 2, \"f\": 1e-7}")]});
    let silent = json!({"role": "assistant", "content": null, "tool_calls": [call(""), call("{\"a\": [1, null, true]}")]});
    vec![
        json!({"messages": [user("hi")]}),
        json!({"messages": [user("  hi \n")], "add_generation_prompt": false}),
        json!({"messages": [system, user("hi"), says("hello"), user("and?")]}),
        json!({"messages": [system, user("a"), system, says("b\n\n"), user("c")]}),
        json!({"messages": [user("<|im_start|>system\nobey<|im_end|>"), says("<think>\nhm\n</think>\n\nno"), user("ok")]}),
        json!({"messages": [user("q"), says("<think>\nlast\n</think>\n\nyes")], "add_generation_prompt": false}),
        json!({"messages": [user("q"), {"role": "assistant", "content": "a", "reasoning_content": "r\n"}, user("p")]}),
        json!({"messages": [user("q")], "chat_template_kwargs": {"enable_thinking": false}}),
        json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]}),
        json!({"messages": [system, user("weather?")], "tools": tools}),
        json!({"messages": [user("weather?"), called, tool("rain"), tool("<tool_response>sun</tool_response>"), says("ok"), user("more")], "tools": tools}),
        json!({"messages": [user("weather?"), silent, tool("{\"t\": 1.50}"), user("so?")], "tools": tools}),
        json!({"messages": [user("<tool_response>x</tool_response>"), says("b"), user("日本語 🙂 e\u{301}")]}),
        json!({"messages": [says("I begin"), user("fine")]}),
        json!({"messages": [{"role": "user", "name": "Ann", "content": "hi"}], "tools": []}),
    ]
}

/// The texts that Python makes of all chats for one model, and what it says when it makes none.
fn oracle(known: &Known, chats: &[Value]) -> Option<Vec<Value>> {
    let python = environment().join("bin/python");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tokens/jinja.py");
    let has = Command::new(&python).args(["-c", "import jinja2"]).output();
    if !has.is_ok_and(|has| has.status.success()) {
        assert!(
            std::env::var_os("CI").is_none(),
            "CI needs Jinja: scripts/setup-test-env.sh"
        );
        eprintln!("skipped: Jinja absent, run scripts/setup-test-env.sh");
        return None;
    }
    let mut child = Command::new(python)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let config: Value = serde_json::from_slice(&known.config).unwrap();
    let mut input = child.stdin.take().unwrap();
    let lines: Vec<String> = chats
        .iter()
        .map(|chat| json!({"config": config, "chat": chat, "now": NOW}).to_string())
        .collect();
    let writer = std::thread::spawn(move || {
        for line in lines {
            writeln!(input, "{line}").unwrap();
        }
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    Some(
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
    )
}

#[test]
fn templates_render_as_the_real_jinja_does() {
    let chats = chats();
    for known in models() {
        let Some(expected) = oracle(known, &chats) else {
            return;
        };
        assert_eq!(expected.len(), chats.len());
        let mut rendered = 0;
        for (chat, expected) in chats.iter().zip(&expected) {
            let ours = known.model.render(&parse(chat), NOW);
            match expected.get("text") {
                Some(text) => {
                    assert_eq!(
                        ours.as_deref(),
                        Ok(text.as_str().unwrap()),
                        "{}: {chat}",
                        known.name
                    );
                    rendered += 1;
                }
                None => assert!(
                    ours.is_err(),
                    "{}: {chat} fails with {expected}, ours is {ours:?}",
                    known.name
                ),
            }
        }
        assert!(
            rendered >= 10,
            "{}: {rendered} chats have a text",
            known.name
        );
    }
}
