"""llguidance has bugs that this package works around. A failing test means a fixed bug."""

import json

import pytest
from llguidance import LLMatcher, LLTokenizer

LOOP = {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/loop"}}
# Module with the workaround, schema, text, and 1 if llguidance accepts the text
FAULTS = [
    ("number_limits", {"const": 1456051.6399670597}, "1456051.6399670597", 0),
    ("number_limits", {"type": "number", "exclusiveMinimum": 1, "maximum": 1.5}, "1", 1),
    ("number_limits", {"type": "number", "multipleOf": 500_000_000}, "500000000", 0),
    ("patterns", {"type": "string", "pattern": '^[^"]$'}, r'"\""', 1),
    ("patterns", {"type": "string", "pattern": "^.$"}, r'"\r"', 1),
    ("patterns", {"type": "string", "pattern": r"^\s$"}, '"\x85"', 1),
    ("references", {"$ref": "#/$defs/a b", "$defs": {"a b": {}}}, "1", 0),
    ("schemas", {"type": "object", "minProperties": 2}, '{"a":1,"a":1}', 1),
    ("schemas", {"prefixItems": [{"type": "string"}], "additionalItems": False}, "[1]", 1),
    ("schemas", {"type": "array", "uniqueItems": True}, "[]", 0),
    ("schemas", {"type": "object", "propertyNames": {"const": "a"}}, "{}", 0),
    ("schemas", {"type": "array", "uniqueItems": False}, "[]", 0),
    ("schemas", {"type": "string", "format": "binary"}, '""', 0),
    ("schemas", {"type": "string", "minLength": 2.0}, '"aa"', 0),
    ("schemas", {"type": "integer"}, "9" * 30, 1),
]


def library(schema):
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    return LLMatcher(LLTokenizer("byte"), grammar, log_level=0)


@pytest.mark.parametrize(("module", "schema", "text", "accepts"), FAULTS)
def test_the_library_still_has_each_bug_with_a_workaround(module, schema, text, accepts):
    matcher, taken = library(schema), list(text.encode())
    fits = not matcher.is_error() and matcher.try_consume_tokens(taken) == len(taken)
    assert (fits and matcher.is_accepting()) == bool(accepts)


def test_the_library_still_starts_values_that_cannot_end():
    schema = {"properties": {"a": {"$ref": "#/$defs/loop"}}, "$defs": {"loop": LOOP}}
    assert library(schema).try_consume_tokens(list(b'{"a":[[[')) == len('{"a":[[[')
