"""The gateway converts OpenAI's and vLLM's fields for structured outputs into guides."""

import json

import pytest
from llguidance import LLMatcher
from matching import Matcher, spaced, tokenizer_with
from pydantic import BaseModel

from tandem.contract.guide import lark_regex
from tandem.gateway.answers import guide as lark
from tandem.gateway.protocol.structured_outputs import GuidedRequest

from .conftest import error_of

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}, "required": ["b"]}
NAMED = {"name": "thing", "strict": True, "description": "x", "schema": SCHEMA}
FREE = {"x-guidance": {"whitespace_flexible": True}}
EBNF = 'root ::= "yes" | "no"  # or so'
LARK = 'start: "a" /[^:=]+/ "::="'
BODIES = {
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
}
GUIDES = [
    ({"response_format": {"type": "json_object"}}, "json_schema", {"type": "object"}),
    (
        {"response_format": {"type": "json_schema", "json_schema": NAMED}},
        "json_schema",
        SCHEMA | {"x-guidance": {"strict": True}},
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": NAMED | {"strict": False}}},
        "json_schema",
        SCHEMA,
    ),
    # llama.cpp's clients
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema", SCHEMA),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, "json_schema", SCHEMA),
    ({"json_schema": SCHEMA}, "json_schema", SCHEMA),
    ({"json_schema": json.dumps(SCHEMA)}, "json_schema", SCHEMA),
    ({"json_schema": SCHEMA, "grammar": ""}, "json_schema", SCHEMA),
    ({"grammar": EBNF}, "ebnf_grammar", EBNF),
    # vLLM's clients
    ({"guided_json": SCHEMA}, "json_schema", SCHEMA),
    ({"guided_json": json.dumps(SCHEMA)}, "json_schema", SCHEMA),
    ({"guided_regex": "[a-z]+/é"}, "regex", "[a-z]+/é"),
    ({"guided_choice": ["yes", "né"]}, "choice", ["yes", "né"]),
    ({"guided_grammar": EBNF}, "ebnf_grammar", EBNF),
    ({"guided_grammar": LARK}, "lark_grammar", LARK),
    ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA),
    ({"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}}, "json_schema", SCHEMA),
    (
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": False}},
        "json_schema",
        SCHEMA | FREE,
    ),
    (
        {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
        "json_schema",
        {"type": "object"},
    ),
    ({"structured_outputs": {"regex": "a|b"}}, "regex", "a|b"),
    ({"structured_outputs": {"choice": ["a"]}}, "choice", ["a"]),
    ({"structured_outputs": {"grammar": EBNF}}, "ebnf_grammar", EBNF),
    (
        {"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True}},
        "json_schema",
        SCHEMA | {"x-guidance": {"additional_properties": False}},
    ),
    (
        {"structured_outputs": {"json": SCHEMA, "disable_additional_properties": False}},
        "json_schema",
        SCHEMA | {"x-guidance": {"additional_properties": True}},
    ),
    (
        {"structured_outputs": {"json": SCHEMA | FREE, "disable_additional_properties": False}},
        "json_schema",
        SCHEMA | {"x-guidance": {"additional_properties": True, "whitespace_flexible": True}},
    ),
]
pytestmark = pytest.mark.anyio


def text_of(guide):
    """Return the text of a guide, or the parsed value if the text is JSON."""
    kind, text = guide["guided_decoding_guide_type"], guide["guided_decoding_guide"]
    return json.loads(text) if kind in ("json_schema", "choice") else text


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("guide", GUIDES)
async def test_guide_fields_reach_the_entry(post, triton, path, guide):
    given, kind, text = guide
    response = await post(path, {**BODIES[path], **given})
    assert response.status_code == 200, response.text
    [asked] = triton.asked
    assert asked["guided_decoding_guide_type"] == kind
    assert text_of(asked) == text
    if "properties" in text:  # in the order of answers
        assert [*text_of(asked)["properties"]] == ["b", "a"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("given", "is_open"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": NAMED}}, True),
        ({"guided_json": SCHEMA}, True),
        ({"json_schema": SCHEMA}, True),
        ({"structured_outputs": {"json": SCHEMA}}, True),
        ({"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True}}, False),
        ({"guided_json": SCHEMA | {"x-guidance": {"additional_properties": False}}}, False),
    ],
)
async def test_the_gateway_can_open_objects_by_default(post, triton, path, given, is_open):
    response = await post(path, {**BODIES[path], **given}, open_objects=True)
    assert response.status_code == 200, response.text
    [asked] = triton.asked
    assert text_of(asked)["x-guidance"]["additional_properties"] is is_open


async def test_open_objects_does_not_affect_regex_guides(post, triton):
    await post("/v1/completions", {"prompt": "hi", "guided_regex": "a"}, open_objects=True)
    assert text_of(triton.asked[0]) == "a"


@pytest.mark.parametrize("path", BODIES)
async def test_a_request_without_a_guide_sends_no_guide(post, triton, path):
    for given in ({}, {"response_format": {"type": "text"}}, {"guided_json": None}):
        await post(path, {**BODIES[path], **given})
        assert not [name for name in triton.asked[-1] if "guide" in name]


async def test_every_choice_has_the_same_guide(post, triton):
    body = {"prompt": ["hi", "ho"], "n": 2, "guided_choice": ["a"]}
    await post("/v1/completions", body)
    assert [text_of(asked) for asked in triton.asked] == [["a"]] * 4


@pytest.mark.parametrize(
    ("given", "param", "line"),
    [
        ({"response_format": "json"}, "response_format", "response_format must be an object"),
        ({"response_format": {"type": "grammar"}}, "response_format.type", "must be 'text', 'json"),
        ({"response_format": {}}, "response_format.type", "response_format.type is missing"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format",
            "response_format.json_schema is missing",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "is missing",
        ),
        (
            {"response_format": {"type": "json_object", "json_schema": NAMED}},
            "response_format",
            "json_schema needs response_format.type to be json_schema",
        ),
        (
            {"response_format": {"type": "text", "schema": SCHEMA}},
            "response_format.schema",
            "unknown field 'response_format.schema'; did you mean 'json_schema'?",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "schema": SCHEMA,
                    "json_schema": {"schema": SCHEMA},
                }
            },
            "response_format.schema",
            "unknown field 'response_format.schema'",
        ),
        (
            {"json_schema": SCHEMA, "grammar": EBNF},
            "grammar",
            "set json_schema or grammar, not both",
        ),
        ({"json_schema": "a"}, "json_schema", "must be a JSON schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": NAMED | {"shape": 1}}},
            "response_format.json_schema.shape",
            "unknown field 'response_format.json_schema.shape",
        ),
        (
            {"structured_outputs": {"structural_tag": "{}"}},
            "structured_outputs.structural_tag",
            "isn't supported: use tools or a grammar",
        ),
        ({"guided_json": "{"}, "guided_json", "must be a JSON schema, as an object or as text"),
        ({"guided_json": "[1]"}, "guided_json", "must be a JSON schema"),
        ({"guided_json": 1}, "guided_json", "must be"),
        ({"guided_json": '{"a":' * 66 + "1" + "}" * 66}, "guided_json", "more than 64 levels"),
        ({"guided_json": "[" * 100_000}, "guided_json", "must be a JSON schema"),
        ({"guided_json": '{"a": "\\ud800"}'}, "guided_json", "half of a surrogate pair"),
        (
            {"structured_outputs": {"json": '{"a": "\\ud800"}'}},
            "structured_outputs.json",
            "structured_outputs.json contains half of a surrogate pair",
        ),
        ({"guided_regex": ""}, "guided_regex", "at least 1 character"),
        ({"guided_choice": []}, "guided_choice", "at least 1 item"),
        ({"guided_choice": "a"}, "guided_choice", "guided_choice must be a list"),
        ({"guided_choice": ["a", 1]}, "guided_choice[1]", "guided_choice[1] must be a string"),
        (
            {"guided_json": SCHEMA, "guided_regex": "a"},
            "guided_regex",
            "set guided_json or guided_regex, not both",
        ),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs",
            "set response_format or structured_outputs, not both",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "must have exactly one of json, regex"),
        (
            {"structured_outputs": {"json": SCHEMA, "json_object": True}},
            "structured_outputs",
            "must have exactly one of",
        ),
        (
            {"structured_outputs": {"choices": ["a"]}},
            "structured_outputs.choices",
            "unknown field 'structured_outputs.choices'; did you mean 'choice'?",
        ),
        (
            {"structured_outputs": {"regex": "a", "whitespace_pattern": " *"}},
            "structured_outputs.whitespace_pattern",
            "isn't supported: use disable_any_whitespace",
        ),
    ],
)
async def test_unsupported_guide_values_are_rejected(post, given, param, line):
    response = await post("/v1/completions", {"prompt": "hi", **given})
    error = error_of(response)
    assert error["param"] == param
    assert line in error["message"]
    assert "\n" not in error["message"]


@pytest.mark.parametrize(
    ("regex", "text"),
    [
        ("a/b", "a/b"),
        (r"a\/b", "a/b"),
        (r"\\/", "\\/"),
        ("[/]", "/"),
        ("//", "//"),
        ("a|", ""),
    ],
)
def test_regular_expressions_are_escaped_in_a_grammar(regex, text):
    rule = f"start: content\ncontent: {lark_regex(regex)}\n"
    asked = Matcher(tokenizer_with("plain"), rule)
    assert asked.takes(text)
    assert not asked.takes(text + "x")


@pytest.mark.parametrize("text", ["a", 'a"b\\', "é😀", "\x00\x7f\n", "<tool_call>", "/"])
def test_literal_text_is_escaped_in_a_grammar(text):
    asked = Matcher(tokenizer_with("plain"), f"start: {lark.literal(text)}\n")
    assert asked.takes(text)
    assert not asked.takes(text[:-1])


def test_a_schema_can_set_its_json_whitespace():
    asked = Matcher(
        tokenizer_with("plain"), f"start: content\ncontent: {lark.json_value(SCHEMA)}\n"
    )
    assert asked.takes('{"b": 1, "a": [1, 2]}')
    assert not asked.takes('{"b":1}')
    free = f"start: content\ncontent: {lark.json_value(SCHEMA | FREE)}\n"
    assert Matcher(tokenizer_with("plain"), free).takes('{ "b" :1}')


LAX = {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True, "coerce_one_of": True}}


def test_schema_options_cannot_disable_checks_in_a_grammar():
    rule = f"start: {lark.json_value(LAX)}\n"
    grammar = LLMatcher.grammar_from_lark(rule)
    _, [reason, *_] = LLMatcher.validate_grammar_with_warnings(grammar)
    assert "uniqueItems" in reason
    assert '"lenient": false' in rule
    assert '"item_separator": ", "' in rule


def test_a_grammar_of_many_empty_lines_is_classified_in_linear_time():
    # In quadratic time, this would take half an hour.
    assert GuidedRequest(guided_grammar="\n" * 250_000).guide.kind == "lark_grammar"
    assert GuidedRequest(guided_grammar="\n" * 99 + " root ::= 'a'").guide.kind == "ebnf_grammar"


class City(BaseModel):
    """The answer that an application expects."""

    name: str
    people: int


MESSAGES = [{"role": "user", "content": "Which city?"}]


def test_openais_client_parses_structured_answers(openai_client, writes, triton):
    writes(*spaced({"name": "Köln", "people": 1}))
    asked = {"model": "bls_stream", "messages": MESSAGES, "response_format": City}
    with openai_client() as client:
        with client.chat.completions.stream(**asked) as stream:
            parsed = [event.parsed for event in stream if event.type == "content.done"]
        writes(spaced({"name": "Köln", "people": 1}))
        answer = client.chat.completions.parse(**asked)
    assert parsed == [City(name="Köln", people=1)]
    assert answer.choices[0].message.parsed == City(name="Köln", people=1)
    schema = text_of(triton.asked[-1])
    assert schema["required"] == ["name", "people"]
    assert schema["additionalProperties"] is False
