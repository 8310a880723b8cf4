"""Guided answers and calls through the gateway, before a live Triton."""

import json
import re
import shutil
from contextlib import contextmanager
from typing import Literal

import jsonschema
import openai
import pytest
from entries import ask_one
from pydantic import BaseModel, Field, ValidationError, model_validator
from scale import first_of

from tandem.gateway.app import create_app
from tandem.gateway.server import listen, serving
from tandem.gateway.settings import GatewaySettings
from tandem.gateway.tools.formats import FORMATS

USER = {"role": "user", "content": "Which city is it?"}
ASKED = {"model": "bls_stream", "messages": [USER], "temperature": 0, "max_tokens": 200}
MARKS = {known.name: known.mark for known in FORMATS}
SAID = "{% for m in messages %}# {{ m.role }}\n{{ m.content }}\n{% endfor %}# assistant\n"


@pytest.fixture(scope="module")
def client_of(server, embedded, tmp_path_factory):
    """A client of a gateway whose model's template has some marks, before the shared server."""

    @contextmanager
    def opened(*marks):
        folder = tmp_path_factory.mktemp("gateway") / "tokenizer"
        shutil.copytree(embedded.tokenizer.folder, folder)
        template = SAID + "".join(f"{{{{ '{mark}' if never }}}}" for mark in marks)
        (folder / "chat_template.jinja").write_text(template)
        app = create_app(GatewaySettings(server.grpc_url, folder))
        with listen("127.0.0.1", 0) as bound, serving(app, bound):
            url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
            with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:
                yield client

    return opened


@pytest.fixture(scope="module")
def client(client_of):
    with client_of() as made:
        yield made


class Place(BaseModel, extra="forbid"):
    """Where a city is."""

    country: Literal["Germany", "Greece", "Ghana"]
    height: int = Field(ge=0, le=3000)
    coast: bool


class City(BaseModel, extra="forbid"):
    """What an application wants to know of a city."""

    name: str = Field(max_length=12)
    place: Place
    tags: list[Literal["old", "large", "loud"]] = Field(max_length=2)


@pytest.mark.parametrize("drafter", ["draft_model", "prompt_lookup", "hybrid", "none"])
def test_openais_client_parses_what_a_model_says(client, drafter):
    asked = ASKED | {"response_format": City, "extra_body": {"drafter": drafter}}
    choice = client.chat.completions.parse(**asked).choices[0]
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, City)
    with client.chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion().choices[0].message
    assert streamed.content == choice.message.content


def test_sampled_answers_fit_each_of_them(client):
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
    ("guide", "fits"),
    [
        ({"guided_choice": ["yes", "no", "né"]}, lambda text: text in {"yes", "no", "né"}),
        ({"guided_regex": "[a-z]{3}/[0-9]{2,4}"}, re.compile("[a-z]{3}/[0-9]{2,4}").fullmatch),
        ({"guided_grammar": 'start: "a" b\nb: "1" | "2" b'}, re.compile("a2{0,90}1").fullmatch),
        ({"guided_grammar": 'root ::= "x" ("y" | "z")'}, lambda text: text in {"xy", "xz"}),
        ({"guided_json": {"type": "array", "maxItems": 2, "items": {"const": 1}}}, json.loads),
        ({"structured_outputs": {"json": {"enum": [None, "a"]}}}, lambda t: t in {"null", '"a"'}),
    ],
)
def test_vllms_fields_hold_for_texts_and_chats(client, guide, fits):
    asked = {"model": "bls_stream", "max_tokens": 100, "temperature": 1, "seed": 3}
    made = client.completions.create(prompt=["def main():", "x = "], extra_body=guide, **asked)
    chat = client.chat.completions.create(messages=[USER], extra_body=guide, **asked)
    for text in [*(c.text for c in made.choices), chat.choices[0].message.content]:
        assert fits(text), text
    assert {choice.finish_reason for choice in made.choices} == {"stop"}


def test_an_object_may_have_white_space_where_it_is_wanted(client):
    """This schema fixes all else: with fixed white space every token is forced."""
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    schema["additionalProperties"] = False
    for free in (False, True):
        structured = {"json": schema, "disable_any_whitespace": not free}
        choice = client.completions.create(
            model="bls_stream",
            prompt="x = ",
            max_tokens=20,
            temperature=0,
            extra_body={"structured_outputs": structured, "return_token_details": True},
        ).choices[0]
        kinds = {detail["kind"] for detail in choice.model_extra["token_details"]}
        assert (kinds == {"forced"}) == (not free)


def test_an_answer_that_is_cut_is_said_to_be(client):
    schema = {"name": "city", "schema": City.model_json_schema()}
    asked = ASKED | {"max_tokens": 5}
    choice = client.chat.completions.create(
        **asked, response_format={"type": "json_schema", "json_schema": schema}
    ).choices[0]
    assert choice.finish_reason == "length"
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        json.loads(choice.message.content)


def test_forced_tokens_are_reported(client):
    response = client.completions.create(
        model="bls_stream",
        prompt="x",
        max_tokens=60,
        temperature=0,
        extra_body={"guided_choice": ["a rather long answer"], "return_token_details": True},
    )
    details = response.choices[0].model_extra["token_details"]
    assert {detail["kind"] for detail in details} == {"forced"}
    assert "".join(detail["text"] for detail in details) == "a rather long answer"


@pytest.mark.parametrize(
    ("guide", "line"),
    [
        ({"guided_json": {"$ref": "#"}}, "no text fits"),
        ({"guided_json": {"type": "array", "contains": {"const": 1}}}, "contains"),
        ({"guided_json": {"enum": ["x" * 1000] * 1000}}, "are taken; send a shorter guide"),
        ({"guided_regex": "("}, "invalid regex"),
        ({"guided_grammar": "start: missing"}, "missing"),
        ({"guided_grammar": "root ::= ("}, "not EBNF"),
        ({"guided_choice": [""]}, "choices must be"),
    ],
)
def test_hostile_guides_are_openais_errors(server, client, guide, line):
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(
                model="bls_stream", prompt="x", max_tokens=5, stream=stream, extra_body=guide
            )
        [field] = guide
        assert refused.value.body["message"].startswith(f"{field}: ")
        assert line in refused.value.message
        assert (refused.value.param, refused.value.code) == (field, "invalid_guide")
        assert "\n" not in refused.value.body["message"]
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
    """Whether a choice is calls of these functions, with arguments that fit."""
    assert choice.finish_reason == "tool_calls"
    assert not choice.message.content
    for call in choice.message.tool_calls:
        assert call.function.name in names
        arguments = json.loads(call.function.arguments)
        if call.function.name == "now":
            assert arguments == {}
        else:
            jsonschema.validate(arguments, PARAMETERS)


@pytest.mark.parametrize("known", MARKS)
def test_forced_calls_are_valid_whatever_the_format(client_of, known):
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


@pytest.mark.parametrize("known", MARKS)
def test_a_model_that_may_call_says_anything_or_calls_rightly(client_of, known):
    strict = [tool(name, PARAMETERS, strict=True) for name in ("weather", "weather2")]
    with client_of(MARKS[known]) as client:
        asked = ASKED | {"temperature": 1, "seed": 2, "n": 4, "max_tokens": 60}
        for choice in client.chat.completions.create(**asked, tools=strict).choices:
            if choice.message.tool_calls and choice.finish_reason == "tool_calls":
                check(choice, "weather", "weather2")
            else:
                assert choice.message.content


def test_answers_with_tools_are_json_or_calls(client_of):
    with client_of(MARKS["hermes"]) as client:
        asked = ASKED | {"temperature": 1, "seed": 4, "n": 4, "parallel_tool_calls": False}
        for choice in client.chat.completions.parse(
            **asked,
            tools=[openai.pydantic_function_tool(Place)],
            response_format=City,
        ).choices:
            if choice.finish_reason == "tool_calls":
                assert isinstance(choice.message.tool_calls[0].function.parsed_arguments, Place)
            else:
                assert isinstance(choice.message.parsed, City)


def test_a_guide_stands_behind_thoughts(client_of):
    with client_of("<think>") as client:
        body = {"guided_choice": ["yes", "no"]}
        asked = ASKED | {"temperature": 1, "seed": 4, "n": 4, "max_tokens": 60}
        for choice in client.chat.completions.create(**asked, extra_body=body).choices:
            if choice.finish_reason == "stop":
                assert choice.message.content in {"yes", "no"}
            else:
                assert choice.message.reasoning_content


class Pair(BaseModel, extra="forbid"):
    """Two letters."""

    first: Literal["a", "b", "c", "d"]
    second: Literal["a", "b", "c", "d"]


def new_pair(taken):
    """A model whose validator says what no schema can: the first two answers are refused."""

    class New(Pair):
        @model_validator(mode="after")
        def is_new(self):
            if len(taken) < 2:
                taken.append(self.first + self.second)
                raise ValueError(f"{taken[-1]} is taken")
            return self

    return New


def as_text(client, messages, stream):
    """The answer as JSON, and the messages that it is in a conversation."""
    schema = {"name": "pair", "strict": True, "schema": Pair.model_json_schema()}
    asked = {"response_format": {"type": "json_schema", "json_schema": schema}}
    text = said_by(client, messages, stream, asked).content
    return text, [{"role": "assistant", "content": text}]


def as_call(client, messages, stream):
    """The same as the arguments of a call."""
    asked = {"tools": [openai.pydantic_function_tool(Pair)], "tool_choice": named("Pair")}
    [call] = said_by(client, messages, stream, asked).tool_calls
    called = call.model_dump(include={"id": True, "type": True, "function": {"name", "arguments"}})
    return call.function.arguments, [
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": call.id, "content": "It is not valid."},
    ]


def said_by(client, messages, stream, asked):
    asked = ASKED | {"messages": messages, "max_tokens": 60} | asked
    if not stream:
        return client.chat.completions.create(**asked).choices[0].message
    with client.chat.completions.stream(**asked) as events:
        return events.get_final_completion().choices[0].message


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("ask", [as_text, as_call])
def test_an_answer_that_a_validator_refuses_is_asked_for_again(client_of, ask, stream):
    """As `instructor` does: what is wrong is told as a message, up to three times."""
    taken, messages = [], [USER]
    model = new_pair(taken)
    with client_of(MARKS["hermes"]) as client:
        for _ in range(3):
            text, said = ask(client, messages, stream)
            jsonschema.validate(json.loads(text), Pair.model_json_schema())
            try:
                valid = model.model_validate_json(text)
                break
            except ValidationError as error:
                messages = [*messages, *said, {"role": "user", "content": str(error)}]
    assert isinstance(valid, Pair)
    assert len(taken) == 2
    assert sum("is taken" in message["content"] for message in messages if message["content"]) == 2


@pytest.mark.parametrize("known", first_of(*MARKS))
def test_calls_side_by_side_are_joined_from_a_streams_deltas(client_of, known):
    joined = []
    with client_of(MARKS[known]) as client:
        asked = ASKED | {"temperature": 1.5, "n": 4, "tools": TOOLS, "tool_choice": "required"}
        for seed in range(2):
            whole = client.chat.completions.create(**asked, seed=seed).choices
            streamed = joined_calls(client.chat.completions.create(**asked, seed=seed, stream=True))
            for choice in whole:
                calls = [call.function for call in choice.message.tool_calls or []]
                assert streamed[choice.index] == [(c.name, c.arguments) for c in calls]
                ended = calls if choice.finish_reason == "tool_calls" else calls[:-1]
                for call in ended:
                    jsonschema.validate(json.loads(call.arguments), SCHEMA_OF[call.name])
                joined.append(len(ended))
    assert max(joined) > 1


def joined_calls(chunks):
    """Name and arguments of each call of each choice; an id comes once, with the name."""
    found: dict = {}
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        calls = found.setdefault(choice.index, [])
        for delta in choice.delta.tool_calls or []:
            if delta.id:
                assert delta.index == len(calls)
                calls.append([delta.function.name, ""])
            calls[delta.index][1] += delta.function.arguments or ""
    return {index: [tuple(call) for call in calls] for index, calls in found.items()}
