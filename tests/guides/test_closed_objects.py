"""By default, objects have only the properties declared in their schema."""

import json
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schemas import complaint
from small_guides import fits, rejection

from tandem.guides.closed_objects import close_objects

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
A, B = {"properties": {"a": TEXT}}, {"properties": {"b": NUMBER}}
USER = {"type": "object", "properties": {"name": TEXT}, "required": ["name"]}
OPEN = {"x-guidance": {"additional_properties": True}}
SHARED = {"$ref": "#/$defs/shared"}
DEFINED = {"$defs": {"shared": A}}


def taken(schema, *values):
    """Return whether a guide accepts each value, with its property names in any order."""
    guide = json.dumps(schema)
    return [
        any(fits("json_schema", guide, json.dumps(order)) for order in orders(value))
        for value in values
    ]


def orders(value):
    if not isinstance(value, dict):
        return [value]
    return [dict(pairs) for pairs in permutations(value.items())]


def test_undeclared_property_names_are_not_allowed():
    assert taken(USER, {"name": "x"}, {"name": "x", "age": 1}) == [True, False]
    inner = {"type": "array", "items": USER}
    assert taken(inner, [{"name": "x"}], [{"name": "x", "age": 1}]) == [True, False]
    assert taken({"type": "object", "properties": {}}, {}, {"a": 1}) == [True, False]


@pytest.mark.parametrize(
    "open_object",
    [{"type": "object"}, {}, {"type": ["object", "null"]}, {"type": "object", "required": ["a"]}],
)
def test_an_object_without_declared_properties_can_have_any(open_object):
    assert taken(open_object, {"a": 1}, {"a": {"b": [1]}, "c": None}) == [True, True]


@pytest.mark.parametrize("more", [True, {}, NUMBER])
def test_a_schema_can_open_its_objects(more):
    opened = {**USER, "additionalProperties": more}
    assert taken(opened, {"name": "x"}, {"name": "x", "age": 1}) == [True, True]


def test_the_additional_properties_option_makes_objects_open_by_default():
    user = {**USER, "properties": {**USER["properties"], "a": {**A, "additionalProperties": False}}}
    value = {"name": "x", "a": {"a": "y"}, "more": 1}
    assert taken(user | OPEN, value, {**value, "a": {"b": 1}}) == [True, False]
    assert rejection("json_schema", '{"x-guidance": {"additional_properties": 1}}') == (
        "'additional_properties' of 'x-guidance' must be true or false"
    )


def test_a_required_property_counts_as_declared():
    assert taken({**A, "required": ["b"]}, {"b": 1}, {"b": 1, "c": 1}) == [True, False]


def test_names_that_match_pattern_properties_count_as_declared():
    schema = {"type": "object", "patternProperties": {"^x": NUMBER}}
    assert taken(schema, {"x1": 1, "x2": 2}, {"y": 1}) == [True, False]


BOTH = {"a": "x", "b": 1}


@pytest.mark.parametrize(
    "combined",
    [
        {"allOf": [A, B]},
        {**A, "allOf": [B]},
        {"allOf": [SHARED, B], **DEFINED},
        {"allOf": [{"allOf": [SHARED]}, {"allOf": [B]}], **DEFINED},
        {**SHARED, **B, **DEFINED},
        {**B, "anyOf": [SHARED, {"required": ["b"], "properties": {"a": NUMBER}}], **DEFINED},
        {
            **B,
            "oneOf": [
                {**SHARED, "required": ["a"]},
                {"properties": {"a": {"type": "null"}}, "required": ["a"]},
            ],
            **DEFINED,
        },
    ],
    ids=json.dumps,
)
def test_combined_schemas_of_an_object_are_closed_together(combined):
    whole = {"type": "object", **combined}
    assert taken(whole, BOTH, {**BOTH, "c": 1}) == [True, False]


def test_a_shared_definition_is_closed_only_if_no_schema_extends_it():
    schema = {"properties": {"one": SHARED, "two": {**B, "allOf": [SHARED]}}, **DEFINED}
    schema["type"] = schema["$defs"]["shared"]["type"] = "object"
    assert taken(schema, {"one": {"a": "x"}, "two": {"b": 1, "a": "x"}}) == [True]
    assert taken(schema, {"one": {"a": "x", "b": 1}}) == [False]


def test_each_alternative_allows_only_its_own_property_names():
    kinds = [{"properties": {"kind": {"const": kind}, kind: NUMBER}} for kind in ("a", "b")]
    for shared in ({}, {"properties": {"id": NUMBER}, "required": ["id"]}):
        first = {"id": 1} if shared else {}
        schema = {"type": "object", **shared, "anyOf": kinds}
        right, mixed, more = {"kind": "a", "a": 1}, {"kind": "a", "b": 1}, {"kind": "a", "c": 1}
        got = taken(schema, *({**first, **value} for value in (right, mixed, more)))
        assert got == [True, False, False]


def test_an_object_with_unknown_names_stays_open():
    parts = {"shared": A, "other": {"$id": "https://example.org/other"}}
    schema = {"type": "object", "allOf": [SHARED, B], "$defs": parts}
    assert taken(schema, BOTH, {**BOTH, "b": "x"}) == [True, False]


def test_a_recursive_object_is_closed_at_every_level():
    node = {"type": "object", "properties": {"below": {"$ref": "#"}, "id": NUMBER}}
    assert taken(node, {"below": {"below": {"id": 1}}}, {"below": {"x": 1}}) == [True, False]


def test_unevaluated_properties_applies_to_names_that_no_schema_declares():
    schema = {"type": "object", "allOf": [A, B], "unevaluatedProperties": False}
    assert taken(schema | OPEN, BOTH, {**BOTH, "c": 1}) == [True, False]
    schema["unevaluatedProperties"] = {"type": "null"}
    assert taken(schema, BOTH, {**BOTH, "c": None}, {**BOTH, "c": 1}) == [True, True, False]
    schema["unevaluatedProperties"] = True
    assert taken(schema, {**BOTH, "c": 1}) == [True]


LEAVES = st.sampled_from([TEXT, NUMBER, {"type": "null"}, {"enum": ["x", 1]}])


def objects(inner):
    names = st.sampled_from("abc")
    return st.builds(
        lambda properties, required, more: {
            "type": "object",
            "properties": properties,
            "required": sorted(required & properties.keys()),
            **more,
        },
        st.dictionaries(names, inner, max_size=2),
        st.sets(names, max_size=2),
        st.sampled_from([{}, {}, {}, {"additionalProperties": False}]),
    )


def combined(inner):
    some = st.lists(objects(inner), min_size=1, max_size=2)
    return st.one_of(
        objects(inner),
        st.builds(lambda one, both: {**one, "allOf": both}, objects(inner), some),
        st.builds(lambda one, either: {**one, "anyOf": either}, objects(inner), some),
        st.builds(lambda either: {"anyOf": either}, some),
        st.builds(lambda: {"$ref": "#/$defs/shared"}),
        st.builds(lambda one: {**one, "allOf": [{"$ref": "#/$defs/shared"}]}, objects(inner)),
    )


SCHEMAS = st.recursive(LEAVES, combined, max_leaves=4)
VALUES = st.recursive(
    st.sampled_from(["x", 1, None]),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=50)
@given(combined(SCHEMAS), objects(LEAVES), VALUES)
def test_closed_objects_behave_like_unevaluated_properties_false(schema, shared, value):
    """A closed object accepts valid values without undeclared names at the top level."""
    whole = {**schema, "$defs": {"shared": shared}}
    closed = json.loads(json.dumps(whole))
    close_objects(closed, by_default=True)
    text = json.dumps(value)
    flat = isinstance(value, dict) and not any(isinstance(v, dict) for v in value.values())
    if not complaint(closed, text):
        assert not complaint(whole, text)
        assert not complaint({**whole, "unevaluatedProperties": False}, text)
    elif flat and "anyOf" not in schema and "additionalProperties" not in schema:
        assert complaint({**whole, "unevaluatedProperties": False}, text)
