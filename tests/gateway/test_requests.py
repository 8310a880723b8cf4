"""The gateway converts request fields into Triton's inputs, and rejects invalid fields."""

import json
import shutil

import pytest

from tandem.gateway.errors import ApiError
from tandem.gateway.protocol import fields
from tandem.gateway.protocol.requests import CompletionRequest

from .conftest import BODIES, CHATS, COMPLETIONS, error_of

pytestmark = pytest.mark.anyio
CHAT = BODIES[CHATS]
GREEDY = {"temperature": 0.0}


@pytest.fixture
def asked(post, triton):
    """A function that sends a body, and returns the inputs that Triton receives."""

    async def send(path=COMPLETIONS, **body):
        response = await post(path, BODIES[path] | body)
        assert response.status_code == 200, response.text
        return triton.asked[-1]

    return send


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ({}, {"temperature": 1.0, "top_p": 1.0}),
        ({"temperature": 1.0}, {"temperature": 1.0, "top_p": 1.0}),
        ({"temperature": None, "top_p": None}, {"temperature": 1.0, "top_p": 1.0}),
        ({"temperature": 0}, GREEDY),
        ({"temperature": 0, "top_p": 0.9, "top_k": 5}, GREEDY),
        ({"top_p": 0}, GREEDY),
        ({"temperature": 0.7, "top_p": 1e-50}, GREEDY),  # rounds to 0 in float32
        ({"temperature": 0.7, "top_p": 0.9}, {"temperature": 0.7, "top_p": 0.9}),
        ({"top_k": 5}, {"temperature": 1.0, "top_p": 1.0, "top_k": 5}),
        ({"top_k": -1}, {"temperature": 1.0, "top_p": 1.0}),
        ({"min_p": 0.1}, {"temperature": 1.0, "top_p": 1.0, "min_p": 0.1}),
        ({"min_p": 0}, {"temperature": 1.0, "top_p": 1.0}),
        ({"temperature": 0, "min_p": 0.1}, GREEDY),
    ],
)
async def test_temperature_defaults_to_1_and_0_is_greedy(asked, body, inputs):
    sent = await asked(**body)
    names = ("temperature", "top_p", "top_k", "min_p")
    assert {name: sent[name] for name in names if name in sent} == inputs


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ({}, {"max_tokens": 16, "stream": False}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"stop": "x"}, {"stop_words": ["x"]}),
        ({"stop": ["x", "", "y"]}, {"stop_words": ["x", "y"]}),
        ({"seed": 3}, {"seed": 3}),
        ({"seed": -1}, {"seed": 2**64 - 1}),
        ({"presence_penalty": 0.5}, {"presence_penalty": 0.5}),
        ({"frequency_penalty": -0.5}, {"frequency_penalty": -0.5}),
        ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"min_tokens": 4}, {"min_tokens": 4}),
        ({"priority": -3}, {"priority": -3}),
        ({"ignore_eos": True}, {"end_id": -1}),
        ({"bad_words": ["a", "b"]}, {"bad_words": ["a", "b"]}),
        (
            {"logit_bias": {"5": -100, "7": 1.5}},
            {"logit_bias_ids": [5, 7], "logit_bias_values": [-100, 1.5]},
        ),
        ({"drafter": "hybrid"}, {"drafter": "hybrid"}),
        ({"num_draft_tokens": 3}, {"num_draft_tokens": 3}),
        ({"num_draft_tokens": "auto"}, {"num_draft_tokens": -1}),
        ({"use_draft_logits": True}, {"use_draft_logits": True}),
        ({"draft_ahead": True}, {"draft_ahead": "true"}),
        ({"draft_ahead": "auto"}, {"draft_ahead": "auto"}),
        ({"prompt_lookup_num_tokens": 3}, {"prompt_lookup_num_tokens": 3}),
        ({"lookup_pool": "k3Jx"}, {"lookup_pool": "k3Jx"}),
        ({"model": "ensemble"}, {"drafter": "none"}),
        ({"model": "ensemble", "drafter": "hybrid"}, {"drafter": "hybrid"}),
    ],
)
async def test_request_fields_reach_the_entry(asked, triton, body, inputs):
    sent = await asked(**body)
    assert {name: sent[name] for name in inputs} == inputs
    assert triton.named == ["bls_stream"]


async def test_unset_fields_are_not_sent_to_the_entry(asked, triton):
    sent = await asked()
    names = {"input_ids", "max_tokens", "stream", "temperature", "top_p"}
    assert set(sent) == {*names, "exclude_input_in_output"}
    assert triton.extras == []


async def test_a_chat_is_sent_as_prompt_ids(asked, post, client):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
    sent = await asked(CHATS, messages=messages)
    async with client() as opened:
        got = await opened.post("/detokenize", json={"tokens": sent["input_ids"]})
    assert got.json()["prompt"] == "system: be brief\nuser: a\nb\nassistant:"


PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


@pytest.mark.parametrize(("content", "text"), [("a", "a"), (PARTS, "a\nb"), ("", None)])
async def test_a_prediction_is_sent_as_text(asked, content, text):
    sent = await asked(prediction={"type": "content", "content": content})
    assert sent.get("prediction") == text


@pytest.mark.parametrize(
    ("prediction", "place"),
    [
        ("a", "prediction"),
        ({"content": "a"}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "content", "content": 1}, "prediction.content"),
        ({"type": "content", "content": "a", "more": 1}, "prediction.more"),
    ],
)
async def test_the_error_names_an_invalid_prediction(rejected, prediction, place):
    assert (await rejected(prediction=prediction))["param"] == place


async def test_a_prompt_that_does_not_fit_is_rejected_with_openais_code(rejected):
    error = await rejected(max_tokens=100)
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "max_tokens"
    begin = "this model's maximum context length is 100 tokens; "
    assert error["message"] == begin + "the request needs 101: 1 for the prompt, 100 new"
    error = await rejected(prompt=[5] * 100)
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "prompt"
    assert error["message"] == begin + "the prompt has 100, which leaves no room for an answer"
    error = await rejected(prompt=[5] * 100, echo=True, max_tokens=0)
    room = "the prompt has 100, and max_tokens 0 needs room for one token"
    assert error["message"] == begin + room


async def test_unsupported_fields_are_rejected(client):
    async with client() as opened:
        for name, field in fields.UNSUPPORTED.items():
            path, body = "/v1/completions", {"prompt": "hi"}
            if name in CompletionRequest.model_fields:
                path, body = "/v1/chat/completions", CHAT
            response = await opened.post(path, json={**body, name: "something"})
            error = error_of(response)
            assert error["param"] == name
            assert error["code"] == "unsupported_field"
            assert error["message"] == f"{name} isn't supported: {field.why}"
            assert error["type"] == "invalid_request_error"


async def test_unsupported_fields_are_accepted_with_neutral_values(client):
    values = [
        *((name, None) for name in fields.UNSUPPORTED),
        *((name, value) for name, field in fields.UNSUPPORTED.items() for value in field.neutral),
        *((name, "anything") for name in fields.IGNORED),
    ]
    async with client() as opened:
        for name, value in values:
            body = {"prompt": "hi", name: value}
            response = await opened.post("/v1/completions", json=body)
            assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"max_tokenz": 1}, "max_tokenz", "did you mean 'max_tokens'?"),
        ({"temperature": -1}, "temperature", "temperature must be at least 0; got -1"),
        ({"n": 129}, "n", "at most 128"),
        (
            {"max_tokens": 0},
            "max_tokens",
            "max_tokens must be at least 1 unless echo is true; got 0",
        ),
        ({"logprobs": 21}, "logprobs", "at most 20"),
        ({"logit_bias": {"1_0": 1}}, "logit_bias.1_0", "must be a token id"),
        ({"logit_bias": {"5": 1, "05": 3}}, "logit_bias.05", "must be a token id"),
        (
            {"logit_bias": {"5": 101, "6": 1, "x": 1, "7": True}},
            "logit_bias.5",
            'at most 100; got 101; logit_bias.x must be a token id; got "x"; logit_bias.7 must be',
        ),
        ({"n": "2"}, "n", 'n must be a valid integer; got "2"'),
        ({"logprobs": True}, "logprobs", "logprobs must be a valid integer"),
        ({"temperature": True}, "temperature", "temperature must be a valid number"),
        ({"stream": "false"}, "stream", "stream must be a valid boolean"),
        ({"prompt": [True]}, "prompt[0]", "prompt[0] must be a valid integer"),
        ({"prompt": [[5, True]]}, "prompt[0][1]", "prompt[0][1] must be a valid integer"),
        (
            {"num_draft_tokens": True},
            "num_draft_tokens",
            "num_draft_tokens must be a valid integer or 'auto'; got true",
        ),
        (
            {"num_draft_tokens": 17},
            "num_draft_tokens",
            "num_draft_tokens must be between 0 and 16, or 'auto'; got 17",
        ),
        ({"n": 0, "top_p": 2}, "top_p", "top_p must be at most 1; got 2; n must be"),
        (
            {"stream": True, "stream_options": {"include_usage": "yes"}},
            "stream_options.include_usage",
            "must be a valid boolean",
        ),
        ({"prompt": ""}, "prompt", "prompt is empty"),
        ({"prompt": ["a", ""]}, "prompt", "prompt is empty"),
        ({"prompt": []}, "prompt", "prompt is empty"),
        ({"prompt": None}, "prompt", "prompt is missing"),
        ({"prompt": {}}, "prompt", "prompt must be a string or a list"),
        ({"stop": 1}, "stop", "stop must be a string or a list"),
        (
            {"prompt": ["a"] * 65, "n": 2},
            "prompt",
            "prompt has 65 items and n is 2; their product must be at most 128",
        ),
        ({"stream_options": {}}, "stream_options", "needs stream to be true"),
        (
            {"stream": True, "stream_options": {"include_usge": True}},
            "stream_options.include_usge",
            "did you mean 'include_usage'?",
        ),
        ({"prompt": [-1]}, "prompt", ""),
        ({"guided_regex": ""}, "guided_regex", 'must have at least 1 character; got ""'),
        ({"prompt": [4096]}, "prompt", "prompt must have token ids between 0 and 4095; got 4096"),
    ],
)
async def test_invalid_values_are_reported_in_one_line(rejected, body, param, message):
    error = await rejected(**body)
    assert (error["param"] or "").startswith(param)
    assert message in error["message"]
    assert "\n" not in error["message"]


@pytest.mark.parametrize("name", ["temperature", "top_p", "repetition_penalty"])
@pytest.mark.parametrize("number", ["NaN", "1e999"])
async def test_numbers_that_are_not_finite_are_rejected(client, name, number):
    body = f'{{"prompt": "x", "{name}": {number}}}'
    headers = {"content-type": "application/json"}
    async with client() as opened:
        response = await opened.post("/v1/completions", content=body, headers=headers)
    assert error_of(response)["message"].startswith(f"{name} must be a finite number")


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "function", "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0]"),
        ([{"role": "assistant"}], "messages[0].content"),
        ([{"role": "assistant", "tool_calls": []}], "messages[0].content"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
        ([{"role": "assistant", "content": "", "function_call": {"name": "f"}}], "messages[0]"),
    ],
)
async def test_unsupported_messages_are_rejected(post, messages, param):
    response = await post("/v1/chat/completions", {"messages": messages})
    assert error_of(response)["param"].startswith(param)


async def test_an_error_lists_every_invalid_message(rejected):
    messages = [
        {"role": "function", "content": "x"},
        {"role": "user", "content": "x"},
        {"role": "user"},
        {"role": "user", "content": "", "audio": {"id": "x"}},
    ]
    error = await rejected(CHATS, messages=messages)
    roles = "'system', 'developer', 'user', 'assistant' or 'tool'"
    assert error["message"] == (
        f'messages[0].role must be {roles}; got "function"; messages[2].content is missing; '
        "messages[3]: audio isn't supported; send text"
    )
    assert error["param"] == "messages[0].role"


async def test_an_error_lists_ten_messages_and_counts_the_rest(rejected):
    error = await rejected(CHATS, messages=[{"role": "user"}] * 15)
    assert error["message"].endswith("messages[9].content is missing; and 5 more")


LIMITS = {"max_completion_tokens": 7}


@pytest.mark.parametrize(
    "case",
    [
        (
            "/v1/completions",
            {"stop": "x"},
            "stop_words",
            "input 'stop_words' has 300 words; the limit is 256",
            "stop has 300 words; the limit is 256",
            "stop",
        ),
        (
            "/v1/completions",
            {"logit_bias": {"5000": 1}},
            "logit_bias_ids",
            "input 'logit_bias_ids' must have ids between 0 and 4095; got 5000",
            "logit_bias must have ids between 0 and 4095; got 5000",
            "logit_bias",
        ),
        (
            "/v1/completions",
            {"stop": "x", "bad_words": ["x"]},
            "stop_words",
            "inputs 'stop_words' and 'bad_words': 99 bytes in total; the limit is 9",
            "stop and bad_words: 99 bytes in total; the limit is 9",
            "stop",
        ),
        (
            "/v1/chat/completions",
            {"logprobs": True, "top_logprobs": 2},
            "num_top_log_probs",
            "input 'num_top_log_probs' isn't supported by this deployment",
            "top_logprobs isn't supported by this deployment",
            "top_logprobs",
        ),
        (
            "/v1/chat/completions",
            LIMITS,
            "max_tokens",
            "input 'max_tokens' is 7 and the prompt has 90 tokens; the limit is 64",
            "max_completion_tokens is 7 and the prompt has 90 tokens; the limit is 64",
            "max_completion_tokens",
        ),
        (
            "/v1/completions",
            {"drafter": "guess"},
            "drafter",
            "input 'drafter' must be one of hybrid, none; got 'guess'",
            "drafter must be one of hybrid, none; got 'guess'",
            "drafter",
        ),
        (
            "/v1/completions",
            {"guided_regex": "("},
            "guided_decoding_guide_type",
            "input 'guided_decoding_guide_type' isn't supported by this deployment",
            "guided_regex isn't supported by this deployment",
            "guided_regex",
        ),
        (
            "/v1/completions",
            {"repetition_penalty": 1.5},
            "repetition_penalty",
            "model 'target' failed: repetition_penalty is not supported",
            "model 'target' failed: repetition_penalty is not supported",
            "repetition_penalty",
        ),
        (
            "/v1/completions",
            {"logit_bias": {"5": 1}},
            "embedding_bias",
            "model 'target' failed: embedding_bias isn't supported by this engine; omit it",
            "model 'target' failed: logit_bias isn't supported by this engine; omit it",
            "logit_bias",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_entry_errors_name_the_field_that_the_client_sent(rejected, triton, case, stream):
    path, body, given, line, message, param = case
    triton.script = lambda _: [ApiError(400, line, param=given)]
    error = await rejected(path, **body, stream=stream)
    assert (error["message"], error["param"]) == (message, param)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("return_prompt_log_probs", {"prompt_logprobs": 0}),
        ("return_prompt_log_probs", {"prompt_logprobs": 2, "logprobs": 3}),
        ("num_top_log_probs", {"prompt_logprobs": 2, "logprobs": 1}),
    ],
)
async def test_entry_errors_name_prompt_logprobs(rejected, triton, name, body):
    triton.script = lambda _: [ApiError(400, f"input '{name}' isn't supported", param=name)]
    error = await rejected("/v1/completions", **body)
    assert error["message"] == "prompt_logprobs isn't supported"
    assert error["param"] == "prompt_logprobs"


@pytest.mark.parametrize(
    "variables", [{"messages": []}, {"self": 1}, {"range": 1}, {"add_generation_prompt": False}]
)
async def test_template_variables_can_have_any_name(asked, variables):
    body = {"chat_template_kwargs": variables}
    assert (await asked(CHATS, **body))["input_ids"]


async def test_an_answer_can_be_sent_back_as_a_message(asked, post):
    answer = (await post("/v1/chat/completions", CHAT)).json()["choices"][0]["message"]
    messages = [*CHAT["messages"], answer, {"role": "user", "content": "more"}]
    await asked(CHATS, messages=messages)


NULLS = {"stream_options": {"include_usage": True, "continuous_usage_stats": None}}
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
CONTINUOUS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
CLIENTS = {
    "vllm bench serve": {
        **STREAMED,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "temperature": 0.0,
        "repetition_penalty": 1.0,
        "max_completion_tokens": 8,
        "ignore_eos": True,
        "logprobs": None,
    },
    "guidellm": {
        **CHAT,
        **CONTINUOUS,
        "stream": True,
        "max_tokens": 8,
        "max_completion_tokens": 8,
        "ignore_eos": True,
        "stop": None,
    },
    "aiperf": {**CHAT, **STREAMED, "min_tokens": 8, "max_completion_tokens": 8},
    "a client that sends nulls": {**CHAT, "stream": True, **NULLS},
    "Open WebUI": {**CHAT, "stream": True, "user": "me", "metadata": {"chat_id": "1"}},
}


@pytest.mark.parametrize("name", CLIENTS)
async def test_chats_of_third_party_clients_are_accepted(post, name):
    response = await post("/v1/chat/completions", {"model": "bls", **CLIENTS[name]})
    assert response.status_code == 200, response.text


async def test_a_prompt_without_tokens_is_rejected(post, tokenizer_folder, tmp_path):
    """This tokenizer strips white space."""
    folder = tmp_path / "strips"
    shutil.copytree(tokenizer_folder, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "Strip", "strip_left": True, "strip_right": True}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    body = {"prompt": ["hi", " "]}
    response = await post("/v1/completions", body, tokenizer=folder)
    error = error_of(response)
    assert error["message"] == "prompt has no tokens; send at least one"
    assert error["param"] == "prompt"
