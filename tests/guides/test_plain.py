"""Guides that are compiled in a moment are not tried out; no other one is compiled untried."""

import itertools
import json
import string

import pytest
import small_guides
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_guides import END, matcher

from tandem.guides import compiler
from tandem.guides.errors import GuideError, GuideTakesLong
from tandem.guides.guide import Guide
from tandem.guides.plain import ALONE, ANNOTATIONS, KEYWORDS, MOST_BYTES, is_plain
from tandem.guides.trial import LAST_ATTEMPT

NAMES = [
    "".join(name)
    for length in (1, 2)
    for name in itertools.product(string.ascii_letters + string.digits, repeat=length)
]


def nested(depth, opening, closing):
    return opening * depth + "{}" + closing * depth


def properties(n, schema, **others):
    return json.dumps({"properties": dict.fromkeys(NAMES[:n], schema), **others})


ANYTHING = {"type": ["string", "number", "object", "array"]}
OR_NULL = {"anyOf": [{"type": "string"}, {"type": "null"}]}

# Schemas that are as hard as their size lets them be: each by how many parts it has.
HARD = {
    "properties": lambda n: properties(n, {}),
    "closed": lambda n: properties(n, {}, additionalProperties=False),
    "required": lambda n: properties(n, {}, required=NAMES[:n]),
    "types": lambda n: properties(n, ANYTHING),
    "may be null": lambda n: properties(n, OR_NULL),
    "required and unknown": lambda n: json.dumps({"required": NAMES[:n]}),
    "texts": lambda n: json.dumps({"enum": NAMES[:n]}),
    "long text": lambda n: json.dumps({"const": "a" * n}),
    "either": lambda n: json.dumps({"anyOf": [{"properties": {"a": {}}}] * n}),
    "either in either": lambda n: nested(n, '{"anyOf":[{},', "]}"),
    "items": lambda n: nested(n, '{"items":', "}"),
    "properties in properties": lambda n: nested(n, '{"properties":{"a":', "}}"),
    "others in others": lambda n: nested(n, '{"additionalProperties":', "}"),
}


def largest(of_parts):
    sizes = itertools.takewhile(lambda n: len(of_parts(n)) <= MOST_BYTES, itertools.count(1))
    return of_parts(max(sizes))


@pytest.fixture
def in_time(monkeypatch):
    """Whether a guide is compiled in a copy of the process, in a quarter of a second of a core."""
    monkeypatch.setattr(compiler, "is_plain", lambda _: False)

    def compile_in_time(kind, text):
        for attempt in range(LAST_ATTEMPT):
            try:
                small_guides.compiler().matcher(Guide(kind, text), [END], attempt=attempt)
            except GuideTakesLong:
                continue
            except GuideError as error:
                return "too deep or too large" not in str(error)
            return True
        return False

    return compile_in_time


@pytest.mark.parametrize("name", HARD)
def test_the_hardest_plain_schemas_harm_nobody(name, in_time):
    text = largest(HARD[name])
    assert is_plain(Guide("json_schema", text))
    assert in_time("json_schema", text)


@pytest.mark.parametrize("choices", [NAMES[:300], ["ab" * 1000], ["a" * n for n in range(1, 60)]])
def test_the_hardest_plain_choices_harm_nobody(choices, in_time):
    text = json.dumps(choices, separators=(",", ":"))
    assert is_plain(Guide("choice", text))
    assert in_time("choice", text)


def part_of(inner):
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "array", "string", "number", ["string", "null"]]),
            "properties": st.dictionaries(st.sampled_from(NAMES[:20]), inner, max_size=5),
            "required": st.lists(st.sampled_from(NAMES[:20]), max_size=5),
            "additionalProperties": st.booleans() | inner,
            "items": inner,
            "enum": st.lists(st.sampled_from([1, "x", None, [1], {"a": 1}, -1.5]), min_size=1),
            "const": st.sampled_from(["a", 0, {}]),
            "title": st.text(max_size=3),
        },
    )


SCHEMAS = st.recursive(
    st.just({}),
    lambda inner: (
        part_of(inner) | st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=4)})
    ),
    max_leaves=60,
)


@given(SCHEMAS)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_plain_schema_harms_nobody(in_time, schema):
    text = json.dumps(schema)
    if is_plain(Guide("json_schema", text)):
        assert in_time("json_schema", text)
    else:
        assert len(text) > MOST_BYTES


def test_plain_guides_are_not_tried(monkeypatch):
    monkeypatch.setattr(compiler, "try_out", pytest.fail)
    assert matcher("json_schema", '{"const": "not tried"}').forced(1)
    assert matcher("choice", '["nor this"]').forced(1)
    with pytest.raises(GuideError, match="choices must be a JSON list"):
        matcher("choice", '{"nor": "what is refused"}')


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json", ""),
        ("regex", "a"),
        ("lark_grammar", 'start: "a"'),
        ("ebnf_grammar", 'root ::= "a"'),
        ("json_schema", "{"),
        ("json_schema", "[" * 1500),
        ("json_schema", "[]"),
        ("json_schema", json.dumps({"title": "a" * MOST_BYTES})),
        ("json_schema", json.dumps({"title": "ä" * (MOST_BYTES // 2)}, ensure_ascii=False)),
        ("choice", json.dumps(["a" * MOST_BYTES])),
        ("json_schema", '{"anyOf": [{}], "properties": {}}'),
        ("json_schema", '{"properties": {"a": {"items": {"anyOf": [{"pattern": "a"}]}}}}'),
    ],
)
def test_all_others_are_tried(kind, text):
    assert not is_plain(Guide(kind, text))


KNOWN = {
    *("$anchor", "$defs", "$dynamicRef", "$id", "$ref", "$schema", "additionalItems", "allOf"),
    *("contains", "dependentRequired", "dependentSchemas", "else", "exclusiveMaximum"),
    *("exclusiveMinimum", "format", "if", "maxItems", "maxLength", "maxProperties", "maximum"),
    *("minItems", "minLength", "minProperties", "minimum", "multipleOf", "not", "oneOf"),
    *("pattern", "patternProperties", "prefixItems", "propertyNames", "then", "uniqueItems"),
    *("x-guidance", "unevaluatedItems", "unevaluatedProperties", "a name of somebody's own"),
}


@pytest.mark.parametrize("keyword", sorted(KNOWN))
def test_a_schema_with_any_other_keyword_is_tried(keyword):
    assert keyword not in KEYWORDS | ANNOTATIONS | ALONE
    assert not is_plain(Guide("json_schema", json.dumps({"items": {keyword: 1}})))


def test_names_and_data_are_no_keywords():
    schema = {"properties": {"pattern": {"enum": [{"$ref": "a"}], "default": {"not": {}}}}}
    assert is_plain(Guide("json_schema", json.dumps(schema)))


def test_a_text_of_half_a_character_is_a_guide_like_others():
    assert is_plain(Guide("json_schema", '{"title": "\ud800"}'))
