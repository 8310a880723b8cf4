"""Anthropic's /v1/messages gives the output of a chat in content blocks and named events."""

import json

import pytest
from paths import TEMPLATES
from pydantic import TypeAdapter
from scripted_triton import HELLO, statistics

from tandem.gateway.errors import ApiError
from tandem.gateway.triton.backend import ResponseChunk

from .conftest import named_events

pytestmark = pytest.mark.anyio
TOOLS = TEMPLATES / "tools.jinja"
PATH = "/v1/messages"
USER = {"role": "user", "content": "hi"}
HI = {"model": "bls_stream", "max_tokens": 20, "messages": [USER]}
ADD = {"name": "add", "input_schema": {"type": "object"}}
TOOL_USE = {"type": "tool_use", "id": "1", "name": "add", "input": {}}
CALL = (
    "Well. <tool",
    '_call>\n{"name": "add", "argu',
    'ments": {"a": "x',
    '"}}</tool_call>',
)
THOUGHTS = ("<think>Let me ", "see.</th", "ink>\n\nYes")


@pytest.fixture
def ask(post, writes):
    """A function that sends a request and returns the response. The model writes given chunks."""

    async def asked(*chunks, template=TOOLS, reason="stop", stop_string=None, **given):
        writes(*chunks, finish_reason=reason, stop_string=stop_string)
        return await post(PATH, HI | given, chat_template=template)

    return asked


def parsed(name, value):
    """Convert a value to one of Anthropic's types. Importing all of the types takes two seconds."""
    from anthropic import types

    return TypeAdapter(getattr(types, name)).validate_python(value, strict=True)


def events(response):
    """Return the events of a stream as Anthropic's objects."""
    return [parsed("RawMessageStreamEvent", event) for event in named_events(response)]


async def test_without_streaming_the_response_is_one_message(post):
    answer = parsed("Message", (await post(PATH, HI)).json())
    assert [block.text for block in answer.content] == ["Hello"]
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert answer.usage.output_tokens == 4
    assert answer.metrics["speculative_decoding"]["num_draft_tokens"] == 8


async def test_input_tokens_are_the_prompt_tokens_that_were_not_cached(post, triton):
    prompt = parsed("Message", (await post(PATH, HI)).json()).usage.input_tokens
    figures = statistics(1, cached=3)
    triton.script = lambda _: [ResponseChunk("x", [39], 1, 4, 1, "stop", figures)]
    usage = parsed("Message", (await post(PATH, HI)).json()).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (prompt - 3, 3)


@pytest.mark.parametrize(
    ("chunks", "given", "reason"),
    [
        (("Hel", "lo"), {}, "end_turn"),
        (("Hel", "lo"), {"reason": "length"}, "max_tokens"),
        (("Hel", "lo"), {"stop_string": "END"}, "stop_sequence"),
        (("", ""), {}, "end_turn"),
        (CALL, {}, "tool_use"),
        ((*CALL, " So ", "be it."), {}, "tool_use"),
        (CALL[:3], {"reason": "length"}, "max_tokens"),
        (THOUGHTS, {"template": TEMPLATES / "thinking.jinja", "tools": []}, "end_turn"),
    ],
)
async def test_stream_events_contain_the_whole_message(ask, chunks, given, reason):
    given = {"tools": [ADD], "stop_sequences": ["END"]} | given
    whole = parsed("Message", (await ask(*chunks, **given)).json())
    assert whole.stop_reason == reason
    assert whole.stop_sequence == ("END" if reason == "stop_sequence" else None)
    start, *middle, delta, stop = events(await ask(*chunks, stream=True, **given))
    assert (start.type, delta.type, stop.type) == ("message_start", "message_delta", "message_stop")
    assert start.message.content == []
    assert (delta.delta.stop_reason, delta.delta.stop_sequence) == (reason, whole.stop_sequence)
    assert delta.usage.model_dump() == whole.usage.model_dump(include=set(delta.usage.model_dump()))
    for number, block in enumerate(whole.content):
        first, *deltas, last = [event for event in middle if event.index == number]
        assert (first.type, last.type) == ("content_block_start", "content_block_stop")
        assert first.content_block.type == block.type
        parts = [event.delta.model_dump(exclude={"type"}).popitem()[1] for event in deltas]
        if block.type == "tool_use":
            complete = "".join(parts) + ('"}' if reason == "max_tokens" else "")
            assert json.loads(complete).keys() >= block.input.keys()
        else:
            assert "".join(parts) == getattr(block, block.type)


async def test_messages_with_tool_results_give_the_same_prompt_as_a_chat(ask, post, triton):
    answer = (await ask("".join(CALL), tools=[ADD])).json()
    text, call = answer["content"]
    assert (text["text"], call["name"], call["input"]) == ("Well.", "add", {"a": "x"})
    result = {"type": "tool_result", "tool_use_id": call["id"], "is_error": False}
    content = [result | {"content": [{"type": "text", "text": "2"}]}, {"type": "text", "text": "?"}]
    messages = [USER, {"role": "assistant", "content": answer["content"]}]
    messages.append({"role": "user", "content": content})
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    await ask("Good", tools=[ADD], messages=messages, system=system)
    function = {"name": "add", "arguments": '{"a": "x"}'}
    chat = [
        {"role": "system", "content": "Be brief."},
        USER,
        {
            "role": "assistant",
            "content": "Well.",
            "tool_calls": [{"id": call["id"], "function": function}],
        },
        {"role": "tool", "tool_call_id": call["id"], "content": "2"},
        {"role": "user", "content": "?"},
    ]
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    body = {"messages": chat, "tools": [tool]}
    await post("/v1/chat/completions", body, chat_template=TOOLS)
    assert triton.asked[-1]["input_ids"] == triton.asked[-2]["input_ids"]
    counted = await post(
        f"{PATH}/count_tokens",
        {"messages": messages, "tools": [ADD], "system": system},
        chat_template=TOOLS,
    )
    count = parsed("MessageTokensCount", counted.json()).input_tokens
    assert count == len(triton.asked[-1]["input_ids"])


@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
async def test_an_unknown_model_is_not_found(post, path):
    response = await post(path, {"model": "gpt-4", "max_tokens": 1, "messages": [USER]})
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"
    assert "bls_stream, bls, ensemble" in response.json()["error"]["message"]


@pytest.mark.parametrize("content", [{}, {"content": None}])
async def test_a_tool_result_may_have_no_content(ask, content):
    result = {"type": "tool_result", "tool_use_id": "1"} | content
    messages = [
        USER,
        {"role": "assistant", "content": [TOOL_USE]},
        {"role": "user", "content": [result]},
    ]
    assert (await ask(messages=messages)).status_code == 200


async def test_tool_results_are_sorted_by_the_order_of_their_calls(ask, triton):
    calls = [TOOL_USE | {"id": name} for name in "ab"]
    results = [
        {"type": "tool_result", "tool_use_id": name, "content": f"of {name}"} for name in "ab"
    ]
    for content in (results, results[::-1]):
        messages = [USER, {"role": "assistant", "content": calls}]
        await ask("Good", messages=[*messages, {"role": "user", "content": content}])
    assert triton.asked[0]["input_ids"] == triton.asked[1]["input_ids"]


async def test_consecutive_messages_of_one_role_are_one_turn(post, triton):
    blocks = [{"type": "text", "text": "again"}]
    await post(PATH, HI | {"messages": [USER, {"role": "user", "content": blocks}]})
    await post(PATH, HI | {"messages": [{"role": "user", "content": "hi\nagain"}]})
    assert triton.asked[0]["input_ids"] == triton.asked[1]["input_ids"]


@pytest.mark.parametrize("system", ["", []])
async def test_an_empty_system_message_is_omitted(post, triton, system):
    await post(PATH, HI | {"system": system})
    await post(PATH, HI)
    assert triton.asked[0]["input_ids"] == triton.asked[1]["input_ids"]


async def test_the_hash_that_claude_code_adds_to_each_request_is_ignored(post, triton):
    brief = {"type": "text", "text": "Be brief."}
    hashed = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1f3a;"}
    await post(PATH, HI | {"system": [brief]})
    await post(PATH, HI | {"system": [hashed, brief], "mcp_servers": []})
    assert triton.asked[0]["input_ids"] == triton.asked[1]["input_ids"]


async def test_agents_may_send_system_messages_anywhere(post, triton, tmp_path):
    (tmp_path / "strict.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
        "{{ m.role }}: {{ m.content }} {% endfor %}"
    )
    late = {"role": "system", "content": "Be brief."}
    developer = late | {"role": "developer"}
    for path, body in {
        PATH: HI | {"system": "Help.", "messages": [USER, late]},
        "/v1/responses": {"instructions": "Help.", "input": [USER, developer]},
        "/v1/chat/completions": {
            "messages": [{"role": "system", "content": "Help."}, USER, developer]
        },
    }.items():
        response = await post(path, body, chat_template=tmp_path / "strict.jinja")
        assert response.status_code == 200, response.text
    assert len({tuple(asked["input_ids"]) for asked in triton.asked}) == 1


async def test_a_final_assistant_message_is_continued(post, triton):
    begun = {"role": "assistant", "content": "Once upon"}
    await post(PATH, HI | {"messages": [USER, begun]})
    given = {"messages": [USER, begun], "continue_final_message": True}
    await post("/v1/chat/completions", given)
    assert triton.asked[0]["input_ids"] == triton.asked[1]["input_ids"]


async def test_request_fields_reach_the_entry(post, triton):
    given = {"stop_sequences": ["END"], "top_k": 5, "drafter": "none", "temperature": 0.5}
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    output = {"format": {"type": "json_schema", "schema": schema}}
    assert (await post(PATH, HI | given | {"output_config": output})).status_code == 200
    asked = triton.asked[-1]
    assert (asked["stop_words"], asked["top_k"], asked["drafter"]) == (["END"], 5, "none")
    assert json.loads(asked["guided_decoding_guide"]) == schema


@pytest.mark.parametrize(("choice", "one"), [("any", True), ("tool", True), ("auto", False)])
async def test_tool_choice_and_disable_parallel_tool_use_are_respected(ask, choice, one):
    more = {"name": "add"} if choice == "tool" else {}
    choice = {"type": choice, "disable_parallel_tool_use": one, **more}
    twice = '<tool_call>{"name": "add", "arguments": {}}</tool_call>' * 2
    answer = (await ask(twice, tools=[ADD], tool_choice=choice)).json()
    assert len(answer["content"]) == (1 if one else 2)
    assert answer["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ('{"a": 1, "b": [2, {"c"', {"a": 1, "b": [2, {}]}),
        ("", {}),
        ('{"a" 1}', {"INVALID_JSON": '{"a" 1}'}),
        ('{"a": NaN}', {"INVALID_JSON": '{"a": NaN}'}),
        ('{"a": 1e999}', {"a": None}),
    ],
)
async def test_incomplete_or_invalid_tool_arguments_become_an_object(ask, arguments, given):
    text = f'<tool_call>{{"name": "add", "arguments": {arguments or "{}"}'
    answer = (await ask(text, tools=[ADD], reason="length")).json()
    assert parsed("Message", answer).content[0].input == given


async def test_a_failed_stream_ends_with_an_error(post, triton):
    triton.script = lambda _: [HELLO[0], ApiError(503, "no Triton responds", code="no_server")]
    response = await post(PATH, HI | {"stream": True})
    name, data = response.text.strip().split("\n\n")[-1].split("\n")
    assert name == "event: error"
    error = parsed("ErrorResponse", json.loads(data.removeprefix("data: "))).error
    assert (error.type, error.message) == ("api_error", "no Triton responds")


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}


@pytest.mark.parametrize(
    ("given", "status", "kind", "message"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens is missing"),
        ({"model": "claude"}, 404, "not_found_error", "model 'claude' isn't served"),
        ({"messages": []}, 400, "invalid_request_error", "must have at least 1 item"),
        (
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            400,
            "invalid_request_error",
            "must be a block of type text, tool_use",
        ),
        (
            {"messages": [{"role": "user", "content": [TOOL_USE]}]},
            400,
            "invalid_request_error",
            "messages[0] must have role assistant for its tool_use block; got user",
        ),
        (
            {"parallel_tool_calls": False},
            400,
            "invalid_request_error",
            "send tool_choice.disable_parallel_tool_use",
        ),
        ({"stop": "x"}, 400, "invalid_request_error", "send stop_sequences"),
        ({"stop_sequences": "x"}, 400, "invalid_request_error", "must be a list"),
        (
            {"tools": [{"type": "bash_20250124", "name": "bash"}]},
            400,
            "invalid_request_error",
            "tools[0].type",
        ),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "tool_choice needs tools"),
        # If Claude Code finds these words, it compacts the chat or retries with fewer tokens.
        (
            {"max_tokens": 10**6},
            400,
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit: ",
        ),
        (
            {"messages": [{"role": "user", "content": "hi " * 200}]},
            400,
            "invalid_request_error",
            "prompt is too long: ",
        ),
        ({"n": 2}, 400, "invalid_request_error", "one answer per request"),
    ],
)
async def test_errors_have_anthropics_format(post, given, status, kind, message):
    response = await post(PATH, HI | given)
    assert response.status_code == status
    error = parsed("ErrorResponse", response.json()).error
    assert error.type == kind
    assert message in error.message
    assert "\n" not in error.message


async def test_anthropics_client_learns_that_it_must_send_all_messages(post):
    """Its tool runner tries a thread first, and looks for this code in the error."""
    response = await post(PATH, HI | {"thread": {"type": "create"}})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["details"] == {"error_code": "thread_unsupported_request"}
    assert error["message"] == "thread isn't supported: nothing is stored; send all messages"
    assert response.headers["request-id"] == response.headers["x-request-id"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": "secret"}, 200),
        ({"authorization": "Bearer secret"}, 200),
        ({"authorization": "Bearer secret", "x-api-key": "other"}, 200),
        ({"x-api-key": "other"}, 401),
        ({"x-api-key": ""}, 401),
        ({}, 401),
    ],
)
async def test_the_api_key_can_be_sent_in_anthropics_header(post, headers, status):
    response = await post(PATH, HI, headers, api_keys=("secret",))
    assert response.status_code == status
    if status == 401:
        assert response.json()["error"]["type"] == "authentication_error"


async def test_errors_outside_the_endpoint_also_have_anthropics_format(client):
    async with client(max_body_bytes=10) as opened:
        large = (await opened.post(PATH, json=HI)).json()
        assert large["error"]["type"] == "request_too_large"
        assert (await opened.get(f"{PATH}/batches")).json()["error"]["type"] == "not_found_error"
