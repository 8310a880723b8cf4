"""Schemas without finite values are rejected, and alternatives that can't end never start."""

import json

import pytest
from small_guides import fits, rejection

SELF = {"$ref": "#/$defs/self"}
TEXT = {"type": "string"}


def required(**properties):
    return {"type": "object", "properties": properties, "required": list(properties)}


@pytest.mark.parametrize(
    "endless",
    [
        required(below=SELF),
        required(name=TEXT, below=SELF),
        required(one=SELF, other=SELF),
        required(below={"type": "array", "items": SELF, "minItems": 1}),
        {"type": "array", "prefixItems": [TEXT, SELF], "minItems": 2},
        {"anyOf": [SELF, required(below=SELF)]},
        {"allOf": [SELF]},
        SELF,
    ],
    ids=json.dumps,
)
def test_a_schema_without_finite_values_is_rejected(endless):
    for whole in ({**SELF, "$defs": {"self": endless}}, required(a={"$ref": "#/$defs/a"})):
        whole["$defs"] = {"self": endless, "a": SELF}
        assert rejection("json_schema", json.dumps(whole)) == "no text matches it"


@pytest.mark.parametrize(
    ("schema", "taken", "never"),
    [
        ({"type": "object", "properties": {"a": TEXT, "b": SELF}}, '{"a": "x"}', '{"b": '),
        ({"anyOf": [{"type": "null"}, SELF]}, "null", "{"),
        ({"type": "array", "items": SELF}, "[]", "[{"),
    ],
    ids=json.dumps,
)
def test_an_alternative_that_cannot_end_never_starts(schema, taken, never):
    whole = {**schema, "$defs": {"self": required(name=TEXT, below=SELF)}}
    assert fits("json_schema", json.dumps(whole), taken)
    assert not fits("json_schema", json.dumps(whole), never + '"name": "x", "below": null}')


def test_recursive_schemas_that_can_end_are_accepted():
    tree = required(below={"type": "array", "items": SELF})
    chain = required(next={"anyOf": [SELF, {"type": "null"}]})
    for node, text in ((tree, '{"below": [{"below": []}]}'), (chain, '{"next": {"next": null}}')):
        assert fits("json_schema", json.dumps({**SELF, "$defs": {"self": node}}), text)
