"""Large or invalid bodies are rejected cheaply."""

import asyncio
import threading
from dataclasses import replace

import pytest
from pydantic import ValidationError

from tandem.gateway.protocol.body import invalid
from tandem.gateway.protocol.fields import MAX_CHOICES, MAX_LEVELS
from tandem.gateway.protocol.messages import MAX_MESSAGES, MAX_PARTS
from tandem.gateway.protocol.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from tandem.gateway.tasks import LONG
from tandem.gateway.tokenizer import ChatTokenizer

from .conftest import error_of

JSON = {"content-type": "application/json"}
MANY = 1000
HELLO = {"role": "user", "content": "hello"}
PART = {"type": "text", "text": "x"}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CompletionRequest, {"prompt": [1] * MANY + ["x"]}),
        (CompletionRequest, {"prompt": [-1] * MANY}),
        (CompletionRequest, {"prompt": [{}] * MANY}),
        (CompletionRequest, {"prompt": ["x", *[1] * MANY]}),
        (CompletionRequest, {"prompt": [[-1] * MANY] * MANY}),
        (CompletionRequest, {"prompt": [[1], *["x"] * MANY]}),
        (CompletionRequest, {"prompt": ["x"] * (MAX_CHOICES + 1)}),
        (CompletionRequest, {"prompt": [[1]] * (MAX_CHOICES + 1)}),
        (CompletionRequest, {"prompt": "x", "stop": [1] * MANY}),
        (CompletionRequest, {"prompt": "x", "bad_words": [1] * MANY}),
        (ChatRequest, {"messages": [HELLO] * (MAX_MESSAGES + 1)}),
        (ChatRequest, {"messages": [{"role": "user", "content": [1] * MANY}]}),
        (ChatRequest, {"messages": [{"role": "user", "content": [PART] * (MAX_PARTS + 1)}]}),
        (DetokenizeRequest, {"tokens": [-1] * MANY}),
    ],
)
def test_validation_of_a_list_stops_at_its_first_error(kind, body):
    with pytest.raises(ValidationError) as rejected:
        kind.model_validate(body)
    assert rejected.value.error_count() == 1


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CompletionRequest, {"prompt": "x", "logit_bias": {str(i): "x" for i in range(9 * MANY)}}),
        (ChatRequest, {"messages": [1] * 99 * MANY}),
        (TokenizeRequest, {"messages": [1] * 9 * MANY}),
    ],
)
def test_errors_for_large_bodies_are_short(kind, body):
    with pytest.raises(ValidationError) as rejected:
        kind.model_validate(body)
    assert rejected.value.error_count() <= MAX_MESSAGES
    assert len(invalid(rejected.value).message) < 1000


@pytest.mark.anyio
@pytest.mark.parametrize("field", ["stop", "unknown", "chat_template_kwargs"])
@pytest.mark.parametrize("levels", [MAX_LEVELS + 1, 400, 480, 700, 900])
@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a": ', "}")])
async def test_deeply_nested_bodies_are_rejected(client, field, levels, begin, end):
    value = begin * levels + "1" + end * levels
    content = f'{{"messages": [{{"role": "user", "content": "x"}}], "{field}": {value}}}'
    async with client() as opened:
        response = await opened.post("/v1/chat/completions", content=content, headers=JSON)
    error = error_of(response)
    assert error["message"] == f"{field} is nested more than {MAX_LEVELS} levels deep"
    assert error["code"] == "too_deep"


@pytest.mark.anyio
@pytest.mark.parametrize("body", [{"model": "k" * 10_000}, {"k" * 10_000: 1}])
async def test_an_error_quotes_only_the_start_of_a_long_value(post, body):
    response = await post("/v1/completions", {"prompt": "x"} | body)
    assert response.status_code in (400, 404)
    assert len(response.text) < 400


@pytest.mark.anyio
@pytest.mark.parametrize(
    "body",
    [
        {"a\nb": 1},
        {"response_format": {"type": "text", "a\u2028b": 1}},
        {"tools": [], "tool_choice": {"type": "function", "function": {"name": "a\nb"}}},
    ],
)
async def test_an_error_is_always_one_line(post, body):
    message = {"role": "user", "content": "x"}
    response = await post("/v1/chat/completions", {"messages": [message]} | body)
    error = error_of(response)
    assert len(f"{error['message']}{error['param']}".splitlines()) == 1


@pytest.mark.anyio
async def test_an_error_quotes_only_the_start_of_a_long_path(client):
    async with client() as opened:
        response = await opened.get("/nowhere/" + "k" * 10_000)
    assert response.status_code == 404
    assert len(response.text) < 400


@pytest.mark.anyio
@pytest.mark.parametrize(("number", "aside"), [(10, False), (LONG, True)])
async def test_a_large_body_is_parsed_on_another_thread(post, threads_of, number, aside):
    threads = threads_of(CompletionRequest, "model_validate")
    await post("/v1/completions", {"prompt": [1] * number})
    assert [thread is not threading.current_thread() for thread in threads] == [aside]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"[" + b"[]," * 500_000 + b"[]]", "it has more than 300000 lists, objects and keys"),
        (b"[" + b'{"":[]},' * 200_000 + b"[]]", "it has more than 300000 lists, objects and keys"),
        (b"[" + b"1," * 2_000_000 + b"1]", "it has more than 1200000 items"),
    ],
)
@pytest.mark.parametrize("field", [b"prompt", b"metadata"])
async def test_a_body_whose_parsing_would_delay_other_requests_is_rejected(
    client, monkeypatch, value, why, field
):
    monkeypatch.setattr("json.loads", lambda _: pytest.fail("parsed"))
    async with client() as opened:
        content = b'{"%s": %s}' % (field, value)
        response = await opened.post("/v1/completions", content=content, headers=JSON)
    assert response.status_code == 413
    monkeypatch.undo()
    error = response.json()["error"]
    assert error["code"] == "body_too_large"
    assert error["message"] == f"the body is too large; {why}"


@pytest.mark.anyio
async def test_text_may_contain_any_number_of_brackets_and_commas(post, triton):
    body = {"prompt": "x", "metadata": ['\\"[{:,' * 600_000, '"\\']}
    assert (await post("/v1/completions", body)).status_code == 200


@pytest.mark.anyio
async def test_large_bodies_are_parsed_one_after_another(client, threads_of):
    """Several parsers would take turns in blocking all other requests."""
    threads = threads_of(CompletionRequest, "model_validate")
    async with client() as opened:
        body = {"prompt": [1] * LONG}
        await asyncio.gather(*(opened.post("/v1/completions", json=body) for _ in range(9)))
    assert len(threads) == 9
    assert len(set(threads)) == 1


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", None),
        (b"[]", None),
        (b'"x"', None),
        (b"{", "invalid_json"),
        (b'"\xff"', "invalid_json"),
        (b'{"seed": ' + b"1" * 5000 + b"}", "invalid_json"),
        (b"[" * 200_000, "too_deep"),
        (rb'{"prompt": "\ud800"}', "invalid_text"),
        (rb'{"prompt": "x", "stop": ["\ud800"]}', "invalid_text"),
        (rb'{"prompt": "x", "\ud800": 1}', "invalid_text"),
    ],
)
async def test_an_unreadable_body_is_rejected(client, body, code):
    async with client() as opened:
        response = await opened.post("/v1/completions", content=body, headers=JSON)
    error = error_of(response)
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    assert len(error["message"].splitlines()) == 1


CHAT = {"messages": [{"role": "user", "content": "long " * 10}]}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "long " * 10}),
        ("/v1/completions", {"prompt": ["short", "\u00e9" * 20]}),
        ("/v1/chat/completions", CHAT),
        ("/tokenize", {"prompt": "long " * 10}),
        ("/tokenize", CHAT),
    ],
)
async def test_text_above_the_limit_is_not_tokenized(client, triton, monkeypatch, path, body):
    served = triton.models_served
    triton.models_served = replace(served, loop=replace(served.loop, max_text_bytes=39))
    async with client() as opened:
        encode = ChatTokenizer._encode

        def encoded(tokenizer, text, **given):
            assert len(text) < 20
            return encode(tokenizer, text, **given)

        monkeypatch.setattr(ChatTokenizer, "_encode", staticmethod(encoded))
        response = await opened.post(path, json=body)
    error = error_of(response)
    message = error["message"]
    assert message.startswith("this model's maximum context length is 100 tokens; the prompt has ")
    assert message.endswith(" bytes, and the limit is 39")
    assert error["code"] == "context_length_exceeded"


@pytest.mark.anyio
async def test_text_at_the_limit_is_accepted(post, triton):
    served = triton.models_served
    triton.models_served = replace(served, loop=replace(served.loop, max_text_bytes=40))
    assert (await post("/v1/completions", {"prompt": "\u00e9" * 20})).status_code == 200


@pytest.mark.anyio
async def test_prompt_ids_over_the_limit_are_not_decoded(post, monkeypatch):
    monkeypatch.setattr(ChatTokenizer, "decode", lambda *_: pytest.fail("decoded"))
    response = await post("/v1/completions", {"prompt": [5] * 101, "echo": True})
    assert error_of(response)["code"] == "context_length_exceeded"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("work", "prompt"), [("encode", "a b " * 500), ("complete", [5] * 50)], ids=["texts", "ids"]
)
async def test_many_prompts_are_tokenized_on_another_thread(
    post, monkeypatch, threads_of, work, prompt
):
    """Each prompt is short, but tokenizing all of them would delay other streams."""
    monkeypatch.setattr("tandem.gateway.tasks.LONG", 2500)
    threads = threads_of(ChatTokenizer, work)
    body = {"prompt": [prompt] * 64, "echo": True, "max_tokens": 1}
    await post("/v1/completions", body)
    assert threads
    assert threading.current_thread() not in threads


@pytest.mark.anyio
async def test_all_answers_share_large_inputs(post, triton):
    """Copies for 128 answers would block the gateway for a minute and need gigabytes."""
    bias, words = {str(token): 1 for token in range(99)}, ["x", "", "y"]
    body = {"prompt": "a", "n": 9, "stop": words, "bad_words": words, "logit_bias": bias}
    await post("/v1/completions", body)
    assert len(triton.asked) == 9
    for name in ("stop_words", "bad_words", "logit_bias_ids", "logit_bias_values"):
        assert len({id(inputs[name]) for inputs in triton.asked}) == 1
    assert triton.asked[0]["stop_words"] == triton.asked[0]["bad_words"] == ["x", "y"]
