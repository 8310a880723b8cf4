"""uniqueItems is enforced for small sets of values; other sets cause a warning or an error."""

import json
from itertools import permutations

import jsonschema
import pytest
from small_guides import fits, matcher, rejection

MESSAGE = (
    "uniqueItems can be enforced only for a few constants; remove it, or remove 'strict' to allow "
    "items to repeat"
)
REPEATS = "the schema's uniqueItems isn't enforced; items may repeat"
ENUM = {"enum": ["a", "b", 1]}


def unique(items, **more):
    return {"type": "array", "items": items, "uniqueItems": True, **more}


@pytest.mark.parametrize(
    "schema",
    [
        unique(ENUM),
        unique(ENUM, minItems=2),
        unique(ENUM, maxItems=2),
        unique({"$ref": "#/$defs/e"}, **{"$defs": {"e": {"title": "E", **ENUM}}}),
        unique({"enum": ["a", "b", 1], "type": "string"}),
        unique({"type": "boolean"}),
        unique({"const": "a"}),
        {"$schema": "http://json-schema.org/draft-04/schema#", **unique(ENUM)},
        {**unique(ENUM), "x-guidance": {"strict": True}},
    ],
    ids=json.dumps,
)
def test_a_small_set_accepts_each_value_once_in_any_order(schema):
    values = ["a", "b", 1, True]
    lists = [list(one) for n in range(4) for one in permutations(values, n)]
    for value in [*lists, ["a", "a"], ["a", "b", "a"], [1, 1]]:
        valid = jsonschema.validators.validator_for(schema)(schema).is_valid(value)
        assert fits("json_schema", json.dumps(schema), json.dumps(value)) == valid, value


def test_a_set_has_at_most_as_many_items_as_allowed_values():
    guide = json.dumps(unique({"enum": list("abcdefgh")}))
    assert fits("json_schema", guide, json.dumps(list("hgfedcba")))
    assert not fits("json_schema", guide, json.dumps(list("hgfedcbaa")))


def test_unenforceable_unique_items_are_rejected_only_if_strict():
    schema = {"type": "object", "properties": {"tags": unique({"type": "string"})}}
    assert fits("json_schema", json.dumps(schema), '{"tags": ["x", "y"]}')
    strict = {**schema, "x-guidance": {"strict": True}}
    assert rejection("json_schema", json.dumps(strict)) == MESSAGE
    one = unique({"type": "string"}, maxItems=1)
    assert fits("json_schema", json.dumps({**one, "x-guidance": {"strict": True}}), '["x"]')


@pytest.mark.parametrize(
    ("schema", "warnings"),
    [
        (unique({"type": "string"}), (REPEATS,)),
        ({"prefixItems": [unique({"type": "string"}), unique({"type": "null"})]}, (REPEATS,)),
        (unique({"enum": list("abcdefgh")}), (REPEATS,)),
        (unique({"type": "string"}, maxItems=1), ()),
        (unique(ENUM), ()),
        ({"type": "string"}, ()),
    ],
    ids=json.dumps,
)
def test_a_guide_warns_that_items_may_repeat(schema, warnings):
    text = json.dumps(schema)
    assert matcher("json_schema", text).warnings == warnings
    assert matcher("lark_grammar", f"start: %json {text}").warnings == warnings


@pytest.mark.parametrize(
    "schema",
    [
        {"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}},
        {"propertyNames": {"const": "a"}},
        {"propertyNames": {"$ref": "#/$defs/e"}, "$defs": {"e": {"enum": ["a", "b"]}}},
        {"propertyNames": {"enum": ["b", "c"]}, "properties": {"a": {}, "b": {"type": "null"}}},
        {"propertyNames": {"enum": ["a", "b"]}, "properties": {"a": {}}, "required": ["b"]},
    ],
    ids=json.dumps,
)
def test_property_names_can_be_restricted_to_a_list(schema):
    whole = {"type": "object", **schema}
    for value in ({}, {"a": 1}, {"b": 1}, {"b": None}, {"a": 1, "b": 1}, {"c": 1}):
        valid = jsonschema.Draft202012Validator(whole).is_valid(value)
        assert fits("json_schema", json.dumps(whole), json.dumps(value)) == valid, value
