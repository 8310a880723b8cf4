"""A schema is interpreted by the JSON Schema draft that it declares."""

import json

import jsonschema
import pytest
from small_guides import fits, matcher, refusal

OLD = {n: f"http://json-schema.org/draft-0{n}/schema" for n in (4, 6, 7)}
NEW = {n: f"https://json-schema.org/draft/{n}/schema" for n in ("2019-09", "2020-12")}
ALL = {**OLD, **NEW}
STRING, NUMBER = {"type": "string"}, {"type": "integer"}


def declared(draft, schema):
    return {"$schema": ALL[draft] + ("#" if draft in OLD else ""), **schema}


@pytest.mark.parametrize("draft", ALL)
def test_keywords_next_to_a_reference_apply_since_draft_2019_09(draft):
    schema = {"$ref": "#/definitions/a", "maxLength": 2, "title": "x", "definitions": {"a": STRING}}
    schema = declared(draft, schema)
    valid = jsonschema.validators.validator_for(schema)(schema).is_valid("xxx")
    assert valid == (draft in OLD)
    assert fits("json_schema", json.dumps(schema), '"xxx"') == valid
    assert fits("lark_grammar", f"start: %json {json.dumps(schema)}", '"xxx"') == valid


@pytest.mark.parametrize("draft", ALL)
def test_one_of_alternatives_are_distinguished_by_keywords_of_the_draft(draft):
    any_or_string = {"$ref": "#/definitions/a", "type": "string"}
    schema = declared(draft, {"oneOf": [any_or_string, NUMBER], "definitions": {"a": {}}})
    guide = json.dumps(schema)
    if draft in OLD:
        assert refusal("json_schema", guide).startswith("oneOf constraints are not supported")
    else:
        matcher("json_schema", guide)


def test_definitions_next_to_a_reference_are_found():
    held = {"$ref": "#/definitions/a", "definitions": {"a": STRING}, "components": {"b": NUMBER}}
    assert fits("json_schema", json.dumps(declared(7, held)), '"x"')
    held["definitions"]["a"] = {"$ref": "#/components/b"}
    assert fits("json_schema", json.dumps(declared(7, held)), "1")


@pytest.mark.parametrize(
    ("draft", "keyword", "value"),
    [
        (4, "const", 1),
        (4, "contains", {}),
        (7, "dependentRequired", {"a": ["b"]}),
        (7, "prefixItems", [STRING]),
        ("2019-09", "prefixItems", [STRING]),
        (7, "$dynamicRef", "#x"),
        ("2020-12", "$recursiveRef", "#"),
    ],
)
def test_a_keyword_that_the_draft_lacks_is_rejected(draft, keyword, value):
    name, advice = (
        f"draft-0{draft}" if draft in OLD else draft,
        "set '$schema' to a draft that has it",
    )
    schema = declared(
        draft, {"properties": {"const": {"type": ["string", "array"], keyword: value}}}
    )
    assert refusal("json_schema", json.dumps(schema)) == (
        f"'{keyword}' isn't a keyword of {name}; {advice}"
    )


def test_a_keyword_that_limits_nothing_is_accepted_in_every_draft():
    idle = {"propertyNames": {}, "dependentRequired": {}, "unevaluatedProperties": True}
    matcher("json_schema", json.dumps(declared(4, {"type": "object", **idle})))


@pytest.mark.parametrize("whole", [{}, declared(7, {})])
def test_a_subschema_with_a_different_draft_is_rejected(whole):
    part = declared(6, STRING)
    assert refusal("json_schema", json.dumps({**whole, "items": part})) == (
        f"'$schema' of a subschema must be {'draft-07' if whole else '2020-12'}, "
        f"like the root schema's; got '{part['$schema']}'"
    )
    matcher("json_schema", json.dumps(declared(6, {"items": part})))


@pytest.mark.parametrize(
    "address", ["http://json-schema.org/draft-03/schema#", "http://example.org/mine", ""]
)
def test_an_unknown_draft_is_rejected(address):
    for schema in ({"$schema": address, **STRING}, {"items": {"$schema": address}}):
        assert refusal("json_schema", json.dumps(schema)) == (
            "'$schema' must be the URI of draft-04, draft-06, draft-07, 2019-09 or 2020-12, such "
            f"as '{NEW['2020-12']}'; got {address!r}"
        )
