"""References can point only to schemas that are checked."""

import json

import pytest
from small_guides import fits, rejection


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        ("é", "é"),
        ("é", "%C3%A9"),
        ("名前 😀", "名前 😀"),
        ("a b", "a%20b"),
        ('"\\^`{|}<>', '"\\^`{|}<>'),
        ("a/b", "a~1b"),
        ("a~b", "a~0b"),
        ("~1", "~01"),
        ("a/b", "a%7E1b"),
        ("50%", "50%25"),
        ("", ""),
    ],
)
def test_a_reference_resolves_a_name_in_every_encoding(name, spelled):
    schema = {"$ref": f"#/$defs/{spelled}", "$defs": {name: {"const": 1}}}
    for kind, guide in (
        ("json_schema", json.dumps(schema, ensure_ascii=False)),
        ("lark_grammar", f"start: %json {json.dumps(schema)}"),
    ):
        assert fits(kind, guide, "1")
        assert not fits(kind, guide, "2")


@pytest.mark.parametrize(
    "reference", ["#/$defs/a%zz", "#/$defs/b", "#/$defs/\ud800", "#b", "other.json", "#/$defs/a#b"]
)
def test_a_reference_without_a_target_is_rejected(reference):
    assert rejection("json_schema", json.dumps({"$ref": reference, "$defs": {"a": {}}}))


DATA = {"type": "string", "pattern": '^[^"]$'}


@pytest.mark.parametrize(
    ("reference", "keyword"),
    [
        ("#/properties/a/const", "const"),
        ("#/properties/a/%63onst", "const"),
        ("#/properties/a/enum/0", "enum"),
        ("#/properties/a/default/x", "default"),
        ("#/properties/a/examples/0", "examples"),
        ("#/properties", "properties"),
        ("#/$defs", "$defs"),
        ("https://example.org/whole.json#/properties/a/const", "const"),
    ],
)
def test_a_reference_to_data_is_rejected(reference, keyword):
    a = {"const": DATA, "enum": [DATA], "default": {"x": DATA}, "examples": [DATA]}
    whole = {"$id": "https://example.org/whole.json", "properties": {"a": a}, "$defs": DATA}
    assert rejection("json_schema", json.dumps({**whole, "items": {"$ref": reference}})) == (
        f"'$ref' must refer to a schema; {reference!r} refers to data in '{keyword}'; move it to "
        "'$defs'"
    )


@pytest.mark.parametrize(
    "reference",
    ["#/properties/const", "#/$defs/enum/items", "#/$defs/$defs", "#/$defs/enum/prefixItems/0"],
)
def test_a_referenced_schema_can_have_the_name_of_a_keyword(reference):
    string = {"type": "string", "pattern": '^x[^"]$'}
    named = {"items": string, "prefixItems": [string]}
    names = {"properties": {"const": string}, "$defs": {"enum": named, "$defs": string}}
    guide = json.dumps({"$ref": reference, "x": names, **names})
    if reference.startswith("#/properties"):
        guide = json.dumps({"items": {"$ref": reference}, "type": "array", **names})
    text = '"xn"' if '"type": "array"' not in guide else '["xn"]'
    assert fits("json_schema", guide, text)
    assert not fits("json_schema", guide, text.replace("xn", 'x\\"'))


def test_a_reference_resolves_an_anchor():
    node = {"$anchor": "node", "type": "object", "properties": {"n": {"type": "integer"}}}
    defined = {"$defs": {"node": node}}
    anchored = {"$ref": "#node"}
    required = {"type": "object", "properties": {"a": anchored}, "required": ["a"]}
    assert fits("json_schema", json.dumps({**anchored, **defined}), '{"n": 1}')
    assert fits("json_schema", json.dumps({**required, **defined}), '{"a": {"n": 1}}')
    both = {"properties": {"b": {"const": 2}}, "allOf": [anchored], "type": "object", **defined}
    assert fits("json_schema", json.dumps(both), '{"b": 2, "n": 1}')
    assert not fits("json_schema", json.dumps(both), '{"b": 2, "c": 1}')
    assert rejection("json_schema", json.dumps({"$ref": "#none"})) == "Anchor 'none' does not exist"
