"""Renders chats as an engine does, with the real Jinja: the oracle for our templates.

Reads one JSON object a line, {"config": tokenizer_config.json, "chat": an OpenAI request, "now": Unix seconds}, and
writes one a line, {"text": ...} or {"error": ...}.
"""

import json
import sys
from datetime import datetime, timezone

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """The block that marks what the assistant says, and changes nothing."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def fail(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def message(given):
    content = given.get("content")
    parts = [] if content is None else [content] if isinstance(content, str) else content
    texts = [part if isinstance(part, str) else part["text"] for part in parts]
    shaped = {"role": given["role"], "content": "\n".join(texts)}
    if given["role"] == "assistant" and given.get("tool_calls") is not None:
        calls = json.loads(json.dumps(given["tool_calls"]))
        for call in calls:
            arguments = call["function"].get("arguments")
            if not arguments:
                call["function"]["arguments"] = {}
            elif isinstance(arguments, str):
                call["function"]["arguments"] = json.loads(arguments)
        shaped["tool_calls"] = calls
    if given["role"] == "assistant" and given.get("reasoning_content") is not None:
        shaped["reasoning"] = shaped["reasoning_content"] = given["reasoning_content"]
    if given["role"] == "tool" and "tool_call_id" in given:
        shaped["tool_call_id"] = given["tool_call_id"]
    if isinstance(given.get("name"), str):
        shaped["name"] = given["name"]
    return shaped


def tool(given):
    function = {"name": None, "description": None, "parameters": None, **given["function"]}
    return {"type": given.get("type", "function"), "function": function}


def render(config, chat, now):
    clock = datetime.fromtimestamp(now, timezone.utc)
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = fail
    environment.globals["strftime_now"] = clock.strftime
    names = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]
    tokens = {name: config.get(name) for name in names if config.get(name) is not None}
    specials = {name: token if isinstance(token, str) else token["content"] for name, token in tokens.items()}
    variables = {
        "messages": [message(given) for given in chat["messages"]],
        "tools": [tool(given) for given in chat.get("tools") or []] or None,
        "documents": None,
        "add_generation_prompt": chat.get("add_generation_prompt", True),
    }
    variables.update(chat.get("chat_template_kwargs") or {})
    return environment.from_string(config["chat_template"]).render(**specials, **variables)


for line in sys.stdin:
    try:
        print(json.dumps({"text": render(**json.loads(line))}))
    except Exception as error:  # whatever it is, it is the answer
        print(json.dumps({"error": str(error)}))
