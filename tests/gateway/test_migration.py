"""Clients of OpenAI, vLLM and llama.cpp work without changes."""

from importlib import metadata

import pytest

from .conftest import BODIES, CHATS, COMPLETIONS, events

pytestmark = pytest.mark.anyio
USER = {"role": "user", "content": "hi"}
IDS = [39, 301, 302, 78]  # "Hello" in the demo's vocabulary


@pytest.fixture
def ask(post, triton):
    """A function that sends a body, and returns the answer and the inputs sent to Triton."""

    async def send(path, **body):
        response = await post(path, BODIES[path] | body)
        assert response.status_code == 200, response.text
        return events(response) if body.get("stream") else response.json(), triton.asked[-1]

    return send


@pytest.fixture
def prompt_of(client, triton):
    """A function that returns the text of the last prompt sent to Triton."""

    async def read():
        async with client() as opened:
            ids = triton.asked[-1]["input_ids"]
            return (await opened.post("/detokenize", json={"tokens": ids})).json()["prompt"]

    return read


async def test_max_completion_tokens_takes_precedence_over_max_tokens(ask):
    assert (await ask(CHATS, max_tokens=5, max_completion_tokens=7))[1]["max_tokens"] == 7


@pytest.mark.parametrize("given", [{}, {"max_tokens": None}])
async def test_completions_without_max_tokens_have_16_tokens(ask, given):
    assert (await ask(COMPLETIONS, **given))[1]["max_tokens"] == 16
    assert (await ask(COMPLETIONS, prompt=[5] * 90, **given))[1]["max_tokens"] == 10
    assert (await ask(CHATS, **given))[1]["max_tokens"] > 16


@pytest.mark.parametrize("path", BODIES)
async def test_responses_contain_a_fingerprint_of_the_deployment(ask, path):
    answer, _ = await ask(path)
    got = answer["system_fingerprint"]
    assert got.startswith(f"tandem-{metadata.version('tandem-triton')}-")
    options = {"include_usage": True}
    chunks, _ = await ask(path, stream=True, stream_options=options)
    assert {chunk["system_fingerprint"] for chunk in chunks} == {got}


async def test_health_paths_of_other_servers_are_supported(client, triton):
    async with client(api_keys=("secret",)) as opened:
        version = await opened.get("/version")
        assert version.json() == {"version": metadata.version("tandem-triton")}
        for ready, status in ((True, 200), (False, 503)):
            triton.is_ready = ready
            assert (await opened.get("/health/ready")).status_code == status
            for response in (await opened.get("/ping"), await opened.post("/ping")):
                assert (response.status_code, response.content) == (status, b"")
        assert (await opened.get("/v1/models/")).status_code == 401
    async with client() as opened:
        models = await opened.get("/v1/models")
        assert (await opened.get("/v1/models/")).json() == models.json()


TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
    "{{ reasoning_effort }}{{ verbosity }}{{ enable_thinking }}"
)


@pytest.fixture
def template(tmp_path):
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    return tmp_path / "template.jinja"


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ({"reasoning_effort": "low", "verbosity": "high"}, "lowhighTrue"),
        ({"reasoning_effort": "none"}, "noneFalse"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": 1}}, "low1"),
        ({}, ""),
    ],
)
async def test_effort_and_verbosity_reach_the_chat_template(post, prompt_of, template, given, got):
    body = BODIES[CHATS] | given
    assert (await post(CHATS, body, chat_template=template)).status_code == 200
    assert await prompt_of() == f"<user>hi</><assistant>{got}"


async def test_a_completion_returns_token_ids_on_request(ask):
    body = {"prompt": [[4], [5, 6]], "return_token_ids": True}
    choices = (await ask(COMPLETIONS, **body))[0]["choices"]
    assert [choice["prompt_token_ids"] for choice in choices] == [[4], [5, 6]]
    assert [choice["token_ids"] for choice in choices] == [IDS, IDS]
    chunks, _ = await ask(COMPLETIONS, prompt=[4], return_token_ids=True, stream=True)
    first, second = (chunk["choices"][0] for chunk in chunks)
    assert (first["prompt_token_ids"], first["token_ids"]) == ([4], IDS[:2])
    assert second["token_ids"] == IDS[2:]
    assert "prompt_token_ids" not in second


async def test_a_chat_returns_token_ids_on_request(ask):
    answer, asked = await ask(CHATS, return_token_ids=True)
    assert answer["prompt_token_ids"] == asked["input_ids"]
    assert answer["choices"][0]["token_ids"] == IDS
    (first, second), _ = await ask(CHATS, return_token_ids=True, stream=True)
    assert first["prompt_token_ids"] == asked["input_ids"]
    assert "prompt_token_ids" not in second
    assert [c["choices"][0]["token_ids"] for c in (first, second)] == [IDS[:2], IDS[2:]]


PREFILLED = {"messages": [USER, {"role": "assistant", "content": "Well, "}]}
CONTINUED = PREFILLED | {"continue_final_message": True}


@pytest.mark.parametrize("given", [{}, {"add_generation_prompt": False}])
async def test_continue_final_message_continues_the_last_message(post, prompt_of, template, given):
    response = await post(CHATS, CONTINUED | given, chat_template=template)
    assert response.json()["choices"][0]["message"]["content"] == "Hello"
    assert await prompt_of() == "<user>hi</><assistant>Well, "


async def test_a_last_message_with_a_special_token_can_be_continued(ask, prompt_of, triton):
    messages = [USER, {"role": "assistant", "content": "a<|endoftext|>"}]
    await ask(CHATS, messages=messages, continue_final_message=True)
    assert await prompt_of() == "user: hi\nassistant: a<|endoftext|>"
    assert 0 not in triton.asked[-1]["input_ids"]


async def test_add_generation_prompt_false_ends_the_prompt_after_the_message(ask, prompt_of):
    await ask(CHATS, add_generation_prompt=False)
    assert await prompt_of() == "user: hi\n"


async def test_tokenize_renders_a_chat_like_the_chat_endpoint(client):
    async with client() as opened:
        ids = (await opened.post("/tokenize", json=CONTINUED)).json()["tokens"]
        text = (await opened.post("/detokenize", json={"tokens": ids})).json()["prompt"]
    assert text == "user: hi\nassistant: Well, "


async def test_continue_final_message_conflicts_with_add_generation_prompt(rejected):
    error = await rejected(CHATS, **CONTINUED, add_generation_prompt=True)
    assert error["param"] == "add_generation_prompt"


async def test_a_template_that_omits_the_last_message_is_reported(post, tmp_path):
    (tmp_path / "template.jinja").write_text("{{ messages[0].content }}")
    response = await post(CHATS, CONTINUED, chat_template=tmp_path / "template.jinja")
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "chat_template")
    assert "continue_final_message" in error["message"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (CONTINUED, "Well, Hello"),
        (PREFILLED, "Well, Hello"),
        ({"messages": [USER]}, "Hello"),
        ({"messages": [USER], "continue_final_message": True}, "hiHello"),
    ],
)
async def test_an_echo_returns_the_continued_message_and_the_answer(ask, body, text):
    answer, _ = await ask(CHATS, **body, echo=True)
    assert answer["choices"][0]["message"]["content"] == text
    chunks, _ = await ask(CHATS, **body, echo=True, stream=True)
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == text
