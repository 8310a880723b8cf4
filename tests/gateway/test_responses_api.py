"""OpenAI's /v1/responses gives the output of a chat in items and named events."""

import json

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from paths import TEMPLATES
from pydantic import TypeAdapter
from scripted_triton import HELLO

from tandem.gateway.errors import ApiError

from .conftest import error_of, named_events

pytestmark = pytest.mark.anyio
PATH = "/v1/responses"
EVENT = TypeAdapter(ResponseStreamEvent)
ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
CALL = (
    "Well. <tool",
    '_call>\n{"name": "add", "argu',
    'ments": {"a": 1',
    '}}</tool_call>\n<tool_call>{"name": "sub", "arguments": {}}</tool_call>',
)
THOUGHTS = ("<think>Let me ", "see.</th", "ink>\n\nYes")


@pytest.fixture
def ask(post, writes):
    """A function that sends a request and returns the response. The model writes given chunks."""

    async def asked(*chunks, template=TEMPLATES / "tools.jinja", reason="stop", **given):
        writes(*chunks, finish_reason=reason)
        return await post(PATH, {"input": "hi"} | given, chat_template=template)

    return asked


def events(response):
    """Return the events of a stream as OpenAI's objects, and check their numbers."""
    found = named_events(response)
    assert [event["sequence_number"] for event in found] == [*range(len(found))]
    return [EVENT.validate_python(event, strict=True) for event in found]


def without_ids(response):
    """Return the items of a response without their random ids."""
    items = [item.model_dump(exclude_none=True) for item in response.output]
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]


async def test_without_streaming_the_response_has_one_message(post):
    given = {"input": "hi", "store": False, "metadata": {"a": "b"}, "max_output_tokens": 9}
    answer = Response.model_validate((await post(PATH, given)).json())
    assert answer.id.startswith("resp_")
    assert answer.output_text == "Hello"
    assert (answer.status, answer.metadata, answer.store) == ("completed", {"a": "b"}, False)
    usage = answer.usage
    assert usage.output_tokens == 4
    assert usage.total_tokens == usage.input_tokens + 4
    assert answer.metrics["speculative_decoding"]["num_draft_tokens"] == 8


@pytest.mark.parametrize(
    ("chunks", "template", "reason", "status"),
    [
        (("Hel", "lo"), "tools", "stop", "completed"),
        (("Hel", "lo"), "tools", "length", "incomplete"),
        (("", ""), "tools", "stop", "completed"),
        (CALL, "tools", "stop", "completed"),
        ((*CALL, " So ", "be it."), "tools", "stop", "completed"),
        (CALL[:3], "tools", "length", "incomplete"),
        (THOUGHTS, "thinking", "stop", "completed"),
        (THOUGHTS[:1], "thinking", "length", "incomplete"),
    ],
)
async def test_a_stream_contains_all_events_and_ends_with_the_whole_answer(
    ask, chunks, template, reason, status
):
    given = {"template": TEMPLATES / f"{template}.jinja", "reason": reason}
    if template == "tools":
        given["tools"] = [ADD]
    whole = Response.model_validate((await ask(*chunks, **given)).json())
    *first, last = events(await ask(*chunks, stream=True, **given))
    assert last.type == f"response.{status}"
    assert without_ids(last.response) == without_ids(whole)
    assert [event.type for event in first[:2]] == ["response.created", "response.in_progress"]
    for number, item in enumerate(last.response.output):
        own = [event for event in first[2:] if event.output_index == number]
        assert own[0].type == "response.output_item.added"
        assert own[-1].type == "response.output_item.done"
        assert own[-1].item == item
        assert {event.item_id for event in own[1:-1]} == {item.id}
        deltas = "".join(event.delta for event in own if event.type.endswith(".delta"))
        assert deltas == (item.arguments if item.type == "function_call" else item.content[0].text)


async def test_a_complete_call_is_completed_even_if_the_answer_reached_its_limit(ask):
    answer = (await ask("".join(CALL), tools=[ADD], reason="length")).json()
    assert answer["status"] == "incomplete"
    assert [item["status"] for item in answer["output"]] == ["completed"] * 3


async def test_tool_calls_can_be_sent_back_with_their_outputs(ask, triton, post):
    answer = (await ask("".join(CALL), tools=[ADD])).json()
    message, add, sub = answer["output"]
    assert message["content"][0]["text"] == "Well."
    assert (add["name"], add["arguments"], sub["name"]) == ("add", '{"a": 1}', "sub")
    outputs = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": f"is {call['name']}"}
        for call in (add, sub)
    ]
    given = {"input": [{"role": "user", "content": "hi"}, *answer["output"], *outputs]}
    await ask("Good", tools=[ADD], instructions="Be brief.", **given)
    calls = [
        {"id": call["call_id"], "function": {"name": call["name"], "arguments": call["arguments"]}}
        for call in (add, sub)
    ]
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Well.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": add["call_id"], "content": "is add"},
        {"role": "tool", "tool_call_id": sub["call_id"], "content": "is sub"},
    ]
    function = {name: value for name, value in ADD.items() if name != "type"}
    body = {"messages": chat, "tools": [{"type": "function", "function": function}]}
    template = TEMPLATES / "tools.jinja"
    await post("/v1/chat/completions", body, chat_template=template)
    assert triton.asked[-1]["input_ids"] == triton.asked[-2]["input_ids"]


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "add"},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}]},
    ],
)
async def test_a_response_repeats_the_tool_choice(ask, choice):
    answer = (await ask("".join(CALL), tools=[ADD], tool_choice=choice)).json()
    assert Response.model_validate(answer).model_dump(mode="json")["tool_choice"] == choice


async def test_reasoning_is_a_separate_item_and_its_tokens_are_counted(ask):
    template = TEMPLATES / "thinking.jinja"
    answer = (await ask(*THOUGHTS, template=template)).json()
    reasoning, message = answer["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Let me see."}]
    assert message["content"][0]["text"] == "Yes"
    assert answer["usage"]["input_tokens_details"]["cached_tokens"] == 1
    assert 0 < answer["usage"]["output_tokens_details"]["reasoning_tokens"] <= 3


async def test_request_fields_reach_the_entry(post, triton):
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    body = {
        "input": "hi",
        "drafter": "prompt_lookup",
        "num_draft_tokens": 3,
        "top_k": 5,
        "text": {"format": {"type": "json_schema", "name": "point", "schema": schema}},
    }
    assert (await post(PATH, body)).status_code == 200
    asked = triton.asked[-1]
    assert (asked["drafter"], asked["num_draft_tokens"], asked["top_k"]) == ("prompt_lookup", 3, 5)
    assert json.loads(asked["guided_decoding_guide"]) == schema


async def test_stream_options_have_no_effect(post):
    assert (await post(PATH, {"input": "hi", "stream_options": {"any": 1}})).status_code == 200


async def test_empty_instructions_are_omitted(post, triton):
    await post(PATH, {"input": "hi", "instructions": ""})
    await post(PATH, {"input": "hi"})
    assert triton.asked[0]["input_ids"] == triton.asked[1]["input_ids"]


@pytest.mark.parametrize("item", [{}, {"type": None}, {"type": "message"}])
async def test_an_item_without_a_type_is_a_message(post, item):
    response = await post(PATH, {"input": [{"role": "user", "content": "hi"} | item]})
    assert response.status_code == 200, response.json()


async def test_a_failed_stream_ends_with_its_error(post, triton):
    triton.script = lambda _: [HELLO[0], ApiError(503, "no Triton responds", code="no_server")]
    *_, last = events(await post(PATH, {"input": "hi", "stream": True}))
    assert last.type == "response.failed"
    assert last.response.error.message == "no Triton responds"
    assert last.response.error.code == "server_error"


@pytest.mark.parametrize(
    ("given", "param", "message"),
    [
        ({"input": None}, "input", "input is missing"),
        ({"input": []}, "input", "must have at least 1 item"),
        ({"input": 3}, "input", "must be a string or a list"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", "must be an item of type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
            "must be 'input_text' or 'output_text'",
        ),
        ({"metadata": {"a": 1}}, "metadata.a", "must be a string"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "nothing is stored"),
        ({"conversation": "conv_1"}, "conversation", "nothing is stored"),
        ({"background": True}, "background", "while the client waits"),
        ({"store": True}, "store", "send false"),
        ({"n": 2}, "n", "one answer per request"),
        ({"max_tokens": 5}, "max_tokens", "send max_output_tokens"),
        ({"max_output_tokens": 10**6}, "max_output_tokens", "maximum context length"),
        ({"temperature": -1}, "temperature", "temperature"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].name", "must be 'function'"),
        ({"tool_choice": "required"}, "tool_choice", "tool_choice needs tools"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x"}}},
            "text.format.schema",
            "is missing",
        ),
        (
            {"text": {"format": {"type": "json_schema", "schema": {}}}},
            "text.format.name",
            "is missing",
        ),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "reasoning.effort"),
        ({"drafte": "none"}, "drafte", "did you mean 'drafter'?"),
    ],
)
async def test_errors_name_the_field_that_the_client_sent(post, given, param, message):
    response = await post(PATH, {"input": "hi"} | given)
    error = error_of(response)
    assert error["param"] == param
    assert message in error["message"]
    assert "\n" not in error["message"]
