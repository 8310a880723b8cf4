"""Guided answers and tool calls through the gateway, with a live Triton."""

import json
import shutil
from contextlib import contextmanager
from typing import Literal

import jsonschema
import openai
import pytest
from entries import ask_one
from pydantic import BaseModel, Field
from scale import first_of

from tandem.gateway.tool_calls import FORMATS

from .conftest import gateway_to, openai_client

USER = {"role": "user", "content": "Which city is it?"}
ASKED = {"model": "bls_stream", "messages": [USER], "temperature": 0, "max_tokens": 200}
MARKS = {known.name: known.mark for known in FORMATS}
SAID = "{% for m in messages %}# {{ m.role }}\n{{ m.content }}\n{% endfor %}# assistant\n"


@pytest.fixture(scope="module")
def client_of(server, embedded, tmp_path_factory):
    """A function that returns a client of a gateway whose chat template contains given marks."""

    @contextmanager
    def opened(*marks):
        folder = tmp_path_factory.mktemp("gateway") / "tokenizer"
        shutil.copytree(embedded.tokenizer.folder, folder)
        template = SAID + "".join(f"{{{{ '{mark}' if never }}}}" for mark in marks)
        (folder / "chat_template.jinja").write_text(template)
        with gateway_to(server, folder) as url, openai_client(url) as client:
            yield client

    return opened


class Place(BaseModel, extra="forbid"):
    """Where a city is."""

    country: Literal["Germany", "Greece", "Ghana"]
    height: int = Field(ge=0, le=3000)
    coast: bool


class City(BaseModel, extra="forbid"):
    """Facts about a city, as an application requests them."""

    name: str = Field(max_length=12)
    place: Place
    tags: list[Literal["old", "large", "loud"]] = Field(max_length=2)


@pytest.mark.parametrize("drafter", first_of("draft_model", "prompt_lookup", "hybrid", "none"))
def test_openais_client_parses_structured_output(client, drafter):
    asked = ASKED | {"response_format": City, "extra_body": {"drafter": drafter}}
    choice = client.chat.completions.parse(**asked).choices[0]
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, City)
    with client.chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion().choices[0].message
    assert streamed.content == choice.message.content


def test_all_sampled_answers_of_a_request_fit_the_schema(client):
    schema = {"name": "city", "strict": False, "schema": City.model_json_schema()}
    response = client.chat.completions.create(
        **ASKED | {"temperature": 1.5, "seed": 5},
        n=8,
        response_format={"type": "json_schema", "json_schema": schema},
    )
    texts = {choice.message.content for choice in response.choices}
    assert len(texts) > 1
    for text in texts:
        jsonschema.validate(json.loads(text), schema["schema"])


@pytest.mark.parametrize(
    ("guide", "line"),
    [
        ({"guided_json": {"enum": ["x" * 1000] * 1000}}, "; send a shorter guide"),
        ({"guided_grammar": "root ::= ("}, "must be EBNF"),
    ],
)
def test_invalid_guides_are_reported_as_openai_errors(server, client, guide, line):
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as rejected:
            client.completions.create(
                model="bls_stream", prompt="x", max_tokens=5, stream=stream, extra_body=guide
            )
        [field] = guide
        assert rejected.value.body["message"].startswith(f"{field}: ")
        assert line in rejected.value.message
        assert (rejected.value.param, rejected.value.code) == (field, "invalid_guide")
        assert "\n" not in rejected.value.body["message"]
    assert ask_one(server, "bls", "x", max_tokens=2).text


PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"$ref": "#/$defs/city"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Bonn", "Rome"]}},
}


def tool(name, parameters=None, **given):
    return {"type": "function", "function": {"name": name, "parameters": parameters, **given}}


TOOLS = [tool("weather", PARAMETERS), tool("weather2", PARAMETERS), tool("now")]
SCHEMA_OF = {"weather": PARAMETERS, "weather2": PARAMETERS, "now": {"maxProperties": 0}}


def named(name):
    return {"type": "function", "function": {"name": name}}


def check(choice, *names):
    """Check that a choice consists of calls to these functions with valid arguments."""
    assert choice.finish_reason == "tool_calls"
    assert not choice.message.content
    for call in choice.message.tool_calls:
        assert call.function.name in names
        arguments = json.loads(call.function.arguments)
        if call.function.name == "now":
            assert arguments == {}
        else:
            jsonschema.validate(arguments, PARAMETERS)


@pytest.mark.parametrize("known", first_of(*MARKS))
def test_required_tool_calls_are_valid_in_every_format(client_of, known):
    with client_of(MARKS[known]) as client:
        for given in ({"temperature": 0}, {"temperature": 1.5, "seed": 1, "n": 4}):
            asked = ASKED | given | {"tools": TOOLS, "parallel_tool_calls": False}
            for choice in client.chat.completions.create(**asked, tool_choice="required").choices:
                check(choice, "weather", "weather2", "now")
                assert len(choice.message.tool_calls) == 1
            for choice in client.chat.completions.create(
                **asked, tool_choice=named("weather2")
            ).choices:
                check(choice, "weather2")
        with client.chat.completions.stream(
            **ASKED, tools=TOOLS, tool_choice=named("weather")
        ) as stream:
            check(stream.get_final_completion().choices[0], "weather")


def test_a_guide_applies_only_after_reasoning(client_of):
    with client_of("<think>") as client:
        body = {"guided_choice": ["yes", "no"]}
        asked = ASKED | {"temperature": 1, "seed": 4, "n": 4, "max_tokens": 60}
        for choice in client.chat.completions.create(**asked, extra_body=body).choices:
            if choice.finish_reason == "stop":
                assert choice.message.content in {"yes", "no"}
            else:
                assert choice.message.reasoning_content


@pytest.mark.parametrize("known", first_of(*MARKS))
def test_stream_deltas_can_be_joined_to_parallel_tool_calls(client_of, known):
    joined = []
    with client_of(MARKS[known]) as client:
        asked = ASKED | {"temperature": 1.5, "seed": 1, "n": 4, "max_tokens": 120}
        asked |= {"tools": TOOLS, "tool_choice": "required"}
        whole = client.chat.completions.create(**asked).choices
        streamed = joined_calls(client.chat.completions.create(**asked, stream=True))
        for choice in whole:
            calls = [call.function for call in choice.message.tool_calls or []]
            assert streamed[choice.index] == [(c.name, c.arguments) for c in calls]
            ended = calls if choice.finish_reason == "tool_calls" else calls[:-1]
            for call in ended:
                jsonschema.validate(json.loads(call.arguments), SCHEMA_OF[call.name])
            joined.append(len(ended))
    assert max(joined) > 1


def joined_calls(chunks):
    """Return the name and arguments of all calls per choice. Check that each id is sent once."""
    found: dict = {}
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        calls = found.setdefault(choice.index, [])
        for delta in choice.delta.tool_calls or []:
            if delta.id:
                assert delta.index == len(calls)
                calls.append([delta.function.name, ""])
            calls[delta.index][1] += delta.function.arguments or ""
    return {index: [tuple(call) for call in calls] for index, calls in found.items()}
