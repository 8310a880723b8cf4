"""Keywords that can't be enforced cause a warning, or an error if the schema is strict."""

import json

import pytest
from small_guides import fits, matcher, rejection

STRICT = {"x-guidance": {"strict": True}}
SET = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
NAMES = {"type": "object", "propertyNames": {"enum": ["a", "b"]}}
RECORD = {  # zod's record of integers
    "type": "object",
    "propertyNames": {"type": "string"},
    "additionalProperties": {"type": "array", "items": {"type": "integer"}, "uniqueItems": False},
}
REPEATS = "the schema's uniqueItems isn't enforced; items may repeat"
OTHER_NAMES = "the schema's propertyNames isn't enforced; other names may appear"


@pytest.mark.parametrize(
    ("schema", "warnings"),
    [
        (SET, (REPEATS,)),
        ({"prefixItems": [SET, SET]}, (REPEATS,)),
        (NAMES, (OTHER_NAMES,)),
        ({"type": "array", "items": NAMES, "uniqueItems": True}, (REPEATS, OTHER_NAMES)),
        ({"type": "string"}, ()),
        (RECORD, ()),
    ],
    ids=json.dumps,
)
def test_a_guide_warns_of_keywords_that_are_not_enforced(schema, warnings):
    text = json.dumps(schema)
    assert matcher("json_schema", text).warnings == warnings
    assert matcher("lark_grammar", f"start: %json {text}").warnings == warnings


def test_the_rest_of_a_schema_is_enforced():
    assert fits("json_schema", json.dumps(SET), '["x", "x"]')
    assert not fits("json_schema", json.dumps(SET), "[1]")
    names = json.dumps({**NAMES, "additionalProperties": {"type": "integer"}})
    assert fits("json_schema", names, '{"c": 1}')
    assert not fits("json_schema", names, '{"a": "x"}')


def test_a_strict_schema_may_have_values_that_allow_everything():
    assert fits("json_schema", json.dumps(RECORD | STRICT), '{"a": [1, 1]}')


@pytest.mark.parametrize("schema", [SET, NAMES], ids=json.dumps)
def test_a_strict_schema_is_rejected(schema):
    keyword = [*schema][-1]
    for whole in (schema, {"type": "object", "properties": {"a": schema}}):
        assert rejection("json_schema", json.dumps({**whole, **STRICT})) == (
            f"{keyword} can't be enforced; remove it, or remove 'strict' for a warning"
        )
