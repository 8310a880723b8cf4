"""Clients of OpenAI, vLLM and llama.cpp work without changes."""

import json
from importlib import metadata

import pytest
from scripted_triton import statistics

from tandem.gateway.triton.backend import ResponseChunk

from .conftest import events

pytestmark = pytest.mark.anyio
CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "hi"}
BODIES = {CHATS: {"messages": [USER]}, COMPLETIONS: {"prompt": "hi"}}
IDS = [39, 301, 302, 78]  # "Hello" in the demo's vocabulary
PROMPT = [325, 594, 260]  # "def", " ma", "in" in the demo's vocabulary
NEW = [1002, 199]  # "():" and a newline
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
GBNF = 'root ::= "yes" | "no"'


@pytest.fixture
def ask(post, triton):
    """A function that sends a body, and returns the answer and the inputs sent to Triton."""

    async def send(path, **body):
        response = await post(path, BODIES[path] | body)
        assert response.status_code == 200, response.text
        return events(response) if body.get("stream") else response.json(), triton.asked[-1]

    return send


@pytest.fixture
def refused(post):
    """A function that sends a body and returns the error."""

    async def send(path, **body):
        response = await post(path, BODIES[path] | body)
        assert response.status_code == 400, response.text
        return response.json()["error"]

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
    async with client(api_key="secret") as opened:
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


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema", SCHEMA),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, "json_schema", SCHEMA),
        ({"json_schema": SCHEMA}, "json_schema", SCHEMA),
        ({"json_schema": json.dumps(SCHEMA)}, "json_schema", SCHEMA),
        ({"json_schema": SCHEMA, "grammar": ""}, "json_schema", SCHEMA),
        ({"grammar": GBNF}, "ebnf_grammar", GBNF),
    ],
)
@pytest.mark.parametrize("path", BODIES)
async def test_guides_of_llama_cpp_clients_are_accepted(ask, path, given, kind, text):
    _, asked = await ask(path, **given)
    assert asked["guided_decoding_guide_type"] == kind
    guide = asked["guided_decoding_guide"]
    assert (json.loads(guide) if kind == "json_schema" else guide) == text


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


@pytest.fixture
def rated(triton):
    """Make the model return log-probabilities of the prompt and the answer."""
    extras = {
        "output_text_lengths": [3, 1],
        "output_log_probs": [-0.25, -3.0],
        "output_top_ids": [[1002, 3], [3, 260]],
        "output_top_log_probs": [[-0.25, -2.0], [-0.5, -1.0]],
        "prompt_log_probs": [0.0, -1.5, -2.5],
        "prompt_top_ids": [[0, 0], [594, 3], [3, 4]],
        "prompt_top_log_probs": [[0.0, 0.0], [-1.5, -2.0], [-0.75, -1.0]],
    }
    chunk = ResponseChunk("():\n", NEW, 2, 0, 0, "length", statistics(0), extras)
    triton.script = lambda _: [chunk]


@pytest.mark.usefixtures("rated")
async def test_log_probs_name_tokens_by_id_on_request(ask):
    body = {"logprobs": 1, "return_tokens_as_token_ids": True, "prompt": PROMPT}
    got = (await ask(COMPLETIONS, **body))[0]["choices"][0]["logprobs"]
    assert got["tokens"] == ["token_id:1002", "token_id:199"]
    assert got["top_logprobs"][0]["token_id:1002"] == -0.25
    body = {"logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": True}
    got = (await ask(CHATS, **body))[0]["choices"][0]["logprobs"]["content"]
    assert [token["token"] for token in got] == ["token_id:1002", "token_id:199"]
    assert got[0]["bytes"] == list(b"():")
    assert [token["token"] for token in got[0]["top_logprobs"]] == ["token_id:1002", "token_id:3"]


RATED = [
    None,
    {
        "594": {"logprob": -1.5, "rank": 1, "decoded_token": " ma"},
        "3": {"logprob": -2.0, "rank": 2, "decoded_token": "#"},
    },
    {
        "260": {"logprob": -2.5, "rank": None, "decoded_token": "in"},
        "3": {"logprob": -0.75, "rank": 1, "decoded_token": "#"},
        "4": {"logprob": -1.0, "rank": 2, "decoded_token": "$"},
    },
]


@pytest.mark.usefixtures("rated")
async def test_a_completion_returns_prompt_log_probs_on_request(ask):
    answer, asked = await ask(COMPLETIONS, prompt=PROMPT, prompt_logprobs=2)
    assert answer["choices"][0]["prompt_logprobs"] == RATED
    assert answer["choices"][0]["logprobs"] is None
    assert asked["return_prompt_log_probs"]
    assert asked["num_top_log_probs"] == 2


@pytest.mark.usefixtures("rated")
@pytest.mark.parametrize(("number", "got"), [(0, 1), (1, 2), (2, 3)])
async def test_prompt_and_output_can_have_different_numbers_of_log_probs(ask, number, got):
    answer, asked = await ask(COMPLETIONS, prompt=PROMPT, prompt_logprobs=number, logprobs=1)
    choice = answer["choices"][0]
    assert len(choice["prompt_logprobs"][2]) == got
    assert choice["logprobs"]["top_logprobs"][0] == {"():": -0.25}
    assert choice["logprobs"]["tokens"] == ["():", "\n"]
    assert asked["num_top_log_probs"] == max(number, 1)


async def test_a_chat_returns_prompt_log_probs_on_request(ask, triton, rated, tmp_path, post):
    (tmp_path / "template.jinja").write_text("def main")
    body = BODIES[CHATS] | {"prompt_logprobs": 2, "n": 2}
    answer = (await post(CHATS, body, chat_template=tmp_path / "template.jinja")).json()
    assert answer["prompt_logprobs"] == RATED
    assert "prompt_logprobs" not in answer["choices"][0]


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


async def test_continue_final_message_conflicts_with_add_generation_prompt(refused):
    error = await refused(CHATS, **CONTINUED, add_generation_prompt=True)
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
