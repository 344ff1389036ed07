"""The official OpenAI client against a gateway: chat, streaming, completions, embeddings, errors.

Usage: openai_client.py BASE_URL BASE_URL_WITHOUT_ENDPOINTS
"""

import sys

import openai

base, empty = sys.argv[1], sys.argv[2]
client = openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=20)
nobody = openai.OpenAI(base_url=empty, api_key="none", max_retries=0, timeout=20)
messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


def chat():
    answer = client.chat.completions.create(model="emulated", messages=messages, max_tokens=5)
    assert len(answer.choices[0].message.content.split()) == 5, answer
    assert answer.usage.completion_tokens == 5, answer


def stream():
    events = client.chat.completions.create(
        model="emulated", messages=messages, max_tokens=5, stream=True, stream_options={"include_usage": True}
    )
    text, usage = "", None
    for event in events:
        usage = event.usage or usage
        for choice in event.choices:
            text += choice.delta.content or ""
    assert len(text.split()) == 5, text
    assert usage.completion_tokens == 5, usage


def completions():
    answer = client.completions.create(model="emulated", prompt=[1, 2, 3], max_tokens=4)
    assert answer.usage.prompt_tokens == 3 and answer.usage.completion_tokens == 4, answer


def embeddings():
    answer = client.embeddings.create(model="emulated", input=["a", "b"], encoding_format="float")
    assert len(answer.data) == 2 and len(answer.data[0].embedding) > 0, answer


def models():
    assert [model.id for model in client.models.list()] == ["emulated"]


def refused(kind, status, code, call):
    try:
        call()
    except kind as error:
        assert error.status_code == status, error
        body = error.response.json()["error"]
        assert body["code"] == code, body
        assert body["message"] and body["type"], body
        return error
    raise AssertionError(f"no {kind.__name__}")


def caller_errors():
    create = client.chat.completions.create
    refused(openai.NotFoundError, 404, 404, lambda: create(model="nope", messages=messages))
    long = [{"role": "user", "content": "x" * 70_000}]
    refused(openai.APIStatusError, 413, "request_too_large", lambda: create(model="emulated", messages=long))
    bad = lambda: client.post("/chat/completions", cast_to=object, content=b"{", options={})
    try:
        error = refused(openai.BadRequestError, 400, "invalid_body", bad)
    except TypeError:
        # Older clients have no way to send raw bytes.
        error = None
    assert error is None or "byte 1" in str(error), error


def server_errors():
    create = nobody.chat.completions.create
    error = refused(
        openai.InternalServerError, 503, "no_endpoints", lambda: create(model="emulated", messages=messages)
    )
    assert error.response.headers["retry-after"] == "5", error.response.headers


passed = 0
for case in (chat, stream, completions, embeddings, models, caller_errors, server_errors):
    case()
    passed += 1
print(f"{passed} passed, 0 failed")
