"""Chats support tools in prompts and tool calls in responses."""

import json
from functools import partial

import openai
import pytest
from matching import PLAIN, Matcher, tokenizer_with
from paths import TEMPLATES
from pydantic import BaseModel

from .conftest import error_of, events

TEMPLATE = TEMPLATES / "tools.jinja"
CHATS = "/v1/chat/completions"
USER = {"role": "user", "content": "Is it warm?"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def strict(parameters):
    function = {"name": "add", "parameters": parameters, "strict": True}
    return {"type": "function", "function": function}


def named(name):
    return {"type": "function", "function": {"name": name}}


def allowed(mode, *names):
    tools = [named(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.fixture
def chat(chat):
    """The general `chat`, with a tool."""
    return partial(chat, template=TEMPLATE, messages=[USER], tools=[TOOL])


CALLS = (
    "Well. <tool",
    '_call>\n{"name": "add", "argu',
    'ments": {"a": 1',
    "}}\n</tool_call>",
    '\n<tool_call>{"name": "sub", "arguments": {}}</tool_call>',
)


@pytest.mark.anyio
async def test_tool_calls_and_text_are_returned_in_separate_fields(chat):
    choice = (await chat("".join(CALLS))).json()["choices"][0]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["content"] == "Well."
    first, second = message["tool_calls"]
    assert first["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert second["function"] == {"name": "sub", "arguments": "{}"}
    assert first["type"] == "function"
    assert len({first["id"], second["id"]}) == 2
    assert all(call["id"].isalnum() and len(call["id"]) == 9 for call in (first, second))
    assert "index" not in first


@pytest.mark.anyio
async def test_text_that_only_begins_like_a_call_is_returned(chat):
    assert (await chat("Use <tool")).json()["choices"][0]["message"]["content"] == "Use <tool"
    streamed = events(await chat("Use <tool", stream=True))
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in streamed)
    assert text == "Use <tool"


@pytest.mark.anyio
async def test_an_answer_with_only_calls_has_no_content(chat):
    message = (await chat("<tool" + "".join(CALLS[1:]))).json()["choices"][0]["message"]
    assert message["content"] is None


@pytest.mark.anyio
async def test_a_stream_sends_calls_as_they_arrive(chat):
    chunks = events(await chat(*CALLS, stream=True))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": "Well."}
    assert deltas[1] == {"content": ""}
    [began] = deltas[2]["tool_calls"]
    assert began["index"] == 0
    assert began["function"] == {"name": "add", "arguments": '{"a": 1'}
    assert deltas[3]["tool_calls"] == [{"index": 0, "function": {"arguments": "}"}}]
    [second] = deltas[4]["tool_calls"]
    assert (second["index"], second["function"]["name"]) == (1, "sub")
    assert second["id"] != began["id"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["tool_calls"]


@pytest.mark.anyio
@pytest.mark.parametrize("reason", ["length", "stop"])
async def test_an_incomplete_call_does_not_change_the_finish_reason(chat, reason):
    cut = '<tool_call>{"name": "add", "arguments": {"a": '
    choice = (await chat(cut, finish_reason=reason)).json()["choices"][0]
    assert choice["finish_reason"] == reason
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"a": '


@pytest.mark.anyio
@pytest.mark.parametrize("cut", ["<tool_call>", '<tool_call>\n{"na', '<tool_call>\n{"name": "su'])
async def test_an_incomplete_second_call_is_omitted(chat, cut):
    whole = '<tool_call>{"name": "add", "arguments": {}}</tool_call>\n'
    choice = (await chat(whole + cut)).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert len(choice["message"]["tool_calls"]) == 1
    assert (await chat(whole)).json()["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", named("add")])
@pytest.mark.parametrize("cut", ["<tool", '<tool_call>\n{"name": "a'])
async def test_a_required_call_that_is_cut_shows_no_markup(chat, choice, cut, stream):
    response = await chat(cut, finish_reason="length", tool_choice=choice, stream=stream)
    if stream:
        deltas = [chunk["choices"][0]["delta"] for chunk in events(response)]
        assert not any(delta.get("content") for delta in deltas)
    else:
        [said] = response.json()["choices"]
        assert not said["message"]["content"]
        assert said["finish_reason"] == "length"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ('{"a": "\\ud800"}', "invalid_text", "contains half of a surrogate pair"),
        ('"\\udc00"', "invalid_text", "contains half of a surrogate pair"),
        ("[" * 900 + "]" * 900, "too_deep", "is nested more than 64 levels deep"),
        ("[" * 90_000 + "]" * 90_000, "too_deep", "is nested more than 64 levels deep"),
    ],
)
async def test_unreadable_tool_arguments_in_a_message_are_rejected(chat, arguments, code, message):
    call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    response = await chat("Yes.", messages=[USER, said])
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, "messages", code)
    assert error["message"].startswith(f"messages {message}")


async def prompt_of(client, **given):
    async with client(chat_template=TEMPLATE) as opened:
        made = (await opened.post("/tokenize", json={"messages": [USER]} | given)).json()
        got = await opened.post("/detokenize", json={"tokens": made["tokens"]})
    return got.json()["prompt"]


@pytest.mark.anyio
async def test_tools_are_in_the_prompt(client):
    assert json.dumps(TOOL) in await prompt_of(client, tools=[TOOL])
    assert "functions" not in await prompt_of(client)


@pytest.mark.anyio
async def test_tool_choice_none_hides_the_tools(chat, triton, client):
    choice = (await chat("".join(CALLS), tool_choice="none")).json()["choices"][0]
    assert choice["message"]["content"] == "".join(CALLS)
    assert choice["finish_reason"] == "stop"
    without = await prompt_of(client)
    async with client() as opened:
        asked = {"tokens": triton.asked[-1]["input_ids"]}
        assert (await opened.post("/detokenize", json=asked)).json()["prompt"] == without


@pytest.mark.anyio
async def test_tool_calls_and_results_can_be_sent_back(client, chat):
    [call] = (await chat('<tool_call>{"name": "add", "arguments": {"a": 1}}')).json()["choices"][0][
        "message"
    ]["tool_calls"]
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "2"},
    ]
    prompt = await prompt_of(client, messages=messages)
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>' in prompt
    assert "<tool_response>2</tool_response>" in prompt


@pytest.mark.anyio
async def test_null_in_a_tool_call_means_that_the_field_is_missing(client):
    def said(call):
        return [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]

    nulls = {"id": None, "type": None, "function": {"name": "add", "arguments": None}}
    missing = {"function": {"name": "add"}}
    prompt = await prompt_of(client, messages=said(missing))
    assert '{"name": "add", "arguments": {}}' in prompt
    assert await prompt_of(client, messages=said(nulls)) == prompt


@pytest.mark.anyio
@pytest.mark.parametrize("arguments", ["", " \n", "null", "{}"])
async def test_empty_tool_arguments_are_an_empty_object(client, arguments):
    call = {"function": {"name": "add", "arguments": arguments}}
    prompt = await prompt_of(client, messages=[USER, {"role": "assistant", "tool_calls": [call]}])
    assert '{"name": "add", "arguments": {}}' in prompt


@pytest.mark.anyio
async def test_tool_arguments_that_are_not_json_stay_unchanged(client):
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": "{oops"}}
    prompt = await prompt_of(client, messages=[USER, {"role": "assistant", "tool_calls": [call]}])
    assert '"arguments": "{oops"' in prompt


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("given", "param", "line"),
    [
        ({"tool_choice": "any"}, "tool_choice", "'auto', 'none' or 'required'"),
        ({"tool_choice": "required", "tools": []}, "tool_choice", "tool_choice needs tools"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function", "is missing"),
        (
            {"tool_choice": named("sub")},
            "tool_choice",
            "tool_choice names 'sub', which isn't in tools",
        ),
        ({"tool_choice": {"type": "custom"}}, "tool_choice.type", "must be 'function'"),
        (
            {"tool_choice": allowed("auto", "mul")},
            "tool_choice",
            "tool_choice names 'mul', which isn't in tools",
        ),
        ({"tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools", "at least 1 item"),
        ({"tool_choice": allowed("never", "add")}, "tool_choice.allowed_tools.mode", "must be"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools", "is missing"),
        (
            {"tool_choice": "required", "tools": [TOOL] * 2},
            "tools",
            "two functions named 'add'",
        ),
        ({"tools": [strict({"type": "array"})]}, "tools", "must have type object"),
        ({"tools": [strict({"type": ["array", "null"]})]}, "tools", "must have type object"),
        (
            {"guided_regex": "a"},
            "guided_regex",
            "isn't supported here: with tools, only a JSON schema can guide the answer",
        ),
        ({"tools": [TOOL] * 129}, "tools", "at most 128 items"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "function"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "is missing"),
    ],
)
async def test_unsupported_tool_options_are_rejected(chat, given, param, line):
    response = await chat(**given)
    error = error_of(response)
    assert error["param"] == param
    assert line in error["message"]


@pytest.mark.anyio
async def test_tools_are_rejected_if_the_call_format_is_unknown(chat):
    response = await chat(template=None)
    error = error_of(response)
    assert (error["param"], error["code"]) == ("tools", "unsupported_field")
    assert "hermes, mistral, llama3" in error["message"]


@pytest.mark.anyio
async def test_completions_with_tools_are_rejected(post):
    response = await post("/v1/completions", {"prompt": "x", "tools": [TOOL]})
    assert "only chats can use tools" in error_of(response)["message"]


class Weather(BaseModel):
    """The arguments of a tool, as an application declares them."""

    city: str


class Sum(BaseModel):
    """The arguments of another tool."""

    a: int
    b: int


TWO = (
    '<tool_call>\n{"name": "Sum", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    '\n<tool_call>\n{"name": "Weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
)


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_openais_client_parses_parallel_calls_into_pydantic_models(
    openai_client, writes, triton, choice
):
    """``pydantic_function_tool`` creates strict functions. The grammar contains their schemas."""
    asked = {
        "model": "bls_stream",
        "messages": [USER],
        "tools": [openai.pydantic_function_tool(model) for model in (Sum, Weather)],
        "tool_choice": choice,
    }
    with openai_client(chat_template=TEMPLATE) as client:
        writes(*TWO)
        with client.chat.completions.stream(**asked) as stream:
            streamed = stream.get_final_completion().choices[0]
        writes(TWO)
        whole = client.chat.completions.parse(**asked).choices[0]
    for choice_made in (streamed, whole):
        assert choice_made.finish_reason == "tool_calls"
        assert [call.function.parsed_arguments for call in choice_made.message.tool_calls] == [
            Sum(a=1, b=2),
            Weather(city="Bonn"),
        ]
    for sent in triton.asked:
        assert sent["guided_decoding_guide_type"] == "lark_grammar"
        asked_for = Matcher(tokenizer_with(PLAIN), sent["guided_decoding_guide"])
        assert asked_for.takes(TWO)
        assert not asked_for.takes(TWO.replace(": 2}", ': "2"}'))
        assert asked_for.takes("Well.") == (choice == "auto")


SUB = {"type": "function", "function": {"name": "sub"}}


@pytest.mark.anyio
async def test_only_the_allowed_tools_are_in_the_prompt(chat, triton):
    texts = []
    for given in (
        {"tools": [TOOL, SUB], "tool_choice": allowed("auto", "add")},
        {"tools": [TOOL]},
        {"tools": [TOOL, SUB]},
    ):
        assert (await chat("Yes", **given)).status_code == 200
        texts.append(triton.asked[-1]["input_ids"])
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.anyio
async def test_allowed_tools_can_be_required(chat, triton):
    choice = allowed("required", "sub")
    response = await chat('<tool_call>{"name": "sub"}', tools=[TOOL, SUB], tool_choice=choice)
    assert response.status_code == 200, response.text
    guide = triton.asked[-1]["guided_decoding_guide"]
    assert '"sub"' in guide.replace("\\", "")
    assert '"add"' not in guide.replace("\\", "")
    await chat("Yes", tools=[TOOL, SUB], tool_choice=allowed("auto", "sub"))
    assert "guided_decoding_guide" not in triton.asked[-1]
