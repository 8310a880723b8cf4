"""Output sampled with a schema's masks is valid, and unsupported keywords are rejected."""

import json
import math
from decimal import Decimal

import jsonschema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scale import first_of
from schema_guides import drawn, rejected
from schemas import REJECTED, complaint, schema_of
from small_guides import fits, matcher, rejection

from tandem.guides.errors import GuideError, keywords_of


@pytest.mark.parametrize("schemas", first_of(40, 200))
def test_output_sampled_with_masks_is_valid(schemas):
    texts = {seed: drawn(schema_of(seed), seed) for seed in range(schemas)}
    ended = {seed: text for seed, text in texts.items() if text is not None}
    assert len(ended) > 0.85 * schemas
    wrong = [complaint(schema_of(seed), text.decode()) for seed, text in ended.items()]
    assert not any(wrong), [why for why in wrong if why][:5]


@pytest.mark.parametrize("keyword", REJECTED)
def test_unsupported_keywords_are_rejected(keyword):
    with pytest.raises(GuideError) as caught:
        matcher("json_schema", json.dumps(REJECTED[keyword]))
    assert keywords_of(str(caught.value))[0] == keyword
    with pytest.raises(GuideError) as caught:
        matcher("lark_grammar", f"start: %json {json.dumps(REJECTED[keyword])}")
    assert keywords_of(str(caught.value))[0] == keyword


LETTERS = ["a", "b", "é", "\n", '"', "\\", "/", "\x01", "\x7f", "😀"]
PLAIN_VALUES = st.sampled_from([{"type": "integer"}, {"type": "null"}, {"const": "x"}, {}])
OPEN = st.sampled_from(
    [
        {},
        {"additionalProperties": {"type": "boolean"}},
        {"patternProperties": {"^[a-c]": {"type": "null"}}, "additionalProperties": {"const": 0}},
        {"additionalProperties": {"type": "null"}, "minProperties": 1},
        {"additionalProperties": {"type": "null"}, "minProperties": 3, "required": ["a", "b"]},
    ]
)
ESCAPES = st.sampled_from(["", "u", 'nrbtf\\"u', "nt"])


@st.composite
def objects(draw):
    """Schemas of objects with additional properties."""
    properties = draw(st.dictionaries(st.sampled_from(LETTERS), PLAIN_VALUES, max_size=3))
    schema = {"type": "object", "properties": properties} | draw(OPEN)
    if "minProperties" in schema:
        schema["required"] = sorted({*properties, *schema.get("required", ())})
    own = draw(ESCAPES)
    return schema | ({"x-guidance": {"json_allowed_escapes": own}} if own else {})


def escaped(name):
    return "".join(f"\\u{ord(c):04x}" if ord(c) < 2**16 else c for c in name)


@settings(max_examples=25)
@given(objects(), st.integers(0, 2**32), st.sampled_from(["json_schema", "lark_grammar"]))
def test_a_property_name_cannot_appear_twice_in_different_spellings(schema, seed, kind):
    names = [*schema["properties"], *schema.get("required", ())]
    wishes = [f'"{escaped(name)}": true' for name in names] + ['"\\/": true', '"x": null', ", "]
    guide = json.dumps(schema) if kind == "json_schema" else f"start: %json {json.dumps(schema)}"
    text = drawn(guide, seed, wishes, kind)
    assume(text is not None)
    assert not complaint(schema, text.decode())


@pytest.mark.parametrize("keyword", ["const", "enum"])
@pytest.mark.parametrize("letter", ["\x00", "\x0b", "\x1b", "\x1f", "\x7f"])
def test_a_constant_that_needs_a_disallowed_escape_is_rejected(keyword, letter):
    value = ["ok", [{"a": f"x{letter}"}]]
    schema = {"properties": {"p": {keyword: value if keyword == "enum" else value[1]}}}
    with pytest.raises(GuideError) as caught:
        matcher("json_schema", json.dumps(schema))
    assert str(caught.value) == (
        f"'{keyword}' must not have strings with U+{ord(letter):04X}: the escape that it needs "
        "isn't allowed"
    )


MANY = {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 3}


@pytest.mark.parametrize(
    "schema",
    [
        MANY,
        {"minProperties": 2},
        {"minProperties": 2.0},
        {**MANY, "required": ["a"]},
        {"patternProperties": {"^x": {}}, "additionalProperties": False, "minProperties": 2},
        {"allOf": [{"$ref": "#/$defs/a"}, {"minProperties": 2}], "$defs": {"a": MANY}},
    ],
    ids=json.dumps,
)
def test_min_properties_is_rejected_if_names_could_repeat(schema):
    for kind, guide in (
        ("json_schema", json.dumps({"type": "array", "items": schema})),
        ("lark_grammar", f'start: "x" %json {json.dumps(schema)}'),
    ):
        with pytest.raises(GuideError, match="minProperties must be at most"):
            matcher(kind, guide)


def test_min_properties_is_enforced_if_names_are_distinct():
    for schema in ({**MANY, "required": ["a", "b"]}, {"type": "object", "minProperties": 1}):
        texts = [drawn(schema, seed, ['"a": 1', '"b": 2', '"b": 3']) for seed in range(10)]
        assert not any(complaint(schema, text.decode()) for text in texts if text is not None)


IDLE = [
    {"uniqueItems": False, "type": "array", "items": {"const": 1}, "maxItems": 2},
    {"type": "string", "format": "password", "maxLength": 3},
    {"type": ["integer", "null"], "format": "binary"},
    {"type": "object", "propertyNames": {}, "dependentRequired": {}, "required": ["a"]},
    {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"const": 1}},
    {"$ref": "#/prefixItems/0/x/y", "x": {"y": {"type": "string", "format": "int32"}}},
    {"anyOf": [{"const": {"uniqueItems": False, "format": "binary"}}]},
    {"properties": {"uniqueItems": False, "format": {"const": 1}}, "additionalProperties": False},
]


@pytest.mark.parametrize("schema", IDLE, ids=json.dumps)
def test_keywords_that_have_no_effect_are_accepted(schema):
    whole = {"type": "array", "prefixItems": [schema], "items": False, "minItems": 1}
    for seed in range(5):
        text = drawn(whole, seed)
        assert text is None or not complaint(whole, text.decode())
    matcher("lark_grammar", f"start: %json {json.dumps(whole)}")


@pytest.mark.parametrize(
    "alone",
    [
        {"then": {"type": "null"}, "else": False},
        {"if": {"type": "null"}},
        {"minContains": 2, "maxContains": 0},
        {"contains": {"type": "null"}, "minContains": 0},
    ],
    ids=json.dumps,
)
def test_a_keyword_without_its_required_partner_has_no_effect(alone):
    for text in ('"x"', "[1]"):
        jsonschema.validate(json.loads(text), alone)
        assert fits("json_schema", json.dumps(alone), text)


FORMATS = {
    "date": (["2024-02-29", "2023-12-31"], ["2023-02-30", "2023-04-31", "2023-13-01", "2023-2-1"]),
    "time": (
        ["23:59:59.5+01:30", "00:00:00z", "23:59:60Z"],
        ["24:00:00Z", "12:60:00Z", "12:00:61Z", "12:00:00", "12:00:00+24:00"],
    ),
    "date-time": (
        ["2023-12-31T23:59:59.5+01:30", "2015-06-30t23:59:60z"],
        ["2023-04-31T12:00:00Z", "2023-12-31T24:00:00Z", "2023-12-31T12:00:00", "2023-12-31"],
    ),
    "ipv6": (
        ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8"],
        ["1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "1::2::3", "12345::", ":1", "1.2.3.4"],
    ),
    "email": (
        ["a@b", "a.b+c@d-e.org", "a@[1.2.3.4]"],
        [".a@b", "a.@b", "a b@c", "a@-b", "a@[300.1.1.1]", "@x", "a@"],
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_allows_only_its_values(name):
    right, wrong = FORMATS[name]
    schema = json.dumps({"type": ["string", "null"], "format": name})
    assert [one for one in right if not fits("json_schema", schema, json.dumps(one))] == []
    assert [one for one in wrong if fits("json_schema", schema, json.dumps(one))] == []
    assert fits("json_schema", schema, "null")


@pytest.mark.parametrize(
    "others",
    [{"pattern": "-31$"}, {"pattern": "-31$", "allOf": [{}]}, {"enum": ["2023-12-31", "31"]}],
    ids=json.dumps,
)
def test_a_format_applies_together_with_other_keywords(others):
    schema = json.dumps({"format": "date", **others})
    texts = ["2023-12-31", "2023-12-30", "2023-11-31", "31"]
    assert [fits("json_schema", schema, json.dumps(one)) for one in texts] == [True] + [False] * 3


INT64 = (-(2**63) + 1024, 2**63 - 1024)


@pytest.mark.parametrize("kinds", ["integer", ["integer", "null"]])
def test_integers_are_limited_to_64_bits(kinds):
    guide = json.dumps({"type": "array", "items": {"type": kinds}})
    assert all(fits("json_schema", guide, f"[{n}]") for n in (*INT64, 0, -1, 7, 2**53))
    assert not any(fits("json_schema", guide, f"[{n}]") for n in (2**64, -(2**64), "9" * 20))


def test_an_integer_with_one_bound_is_limited_to_64_bits():
    for bound, taken, not_taken in (
        ({"minimum": 5}, (5, INT64[1]), (4, 2**64)),
        ({"exclusiveMaximum": 5}, (4, INT64[0]), (5, -(2**64))),
        ({"minimum": 1, "maximum": 9}, (1, 9), (0, 10)),
    ):
        guide = json.dumps({"type": "integer", **bound})
        assert all(fits("json_schema", guide, str(n)) for n in taken)
        assert not any(fits("json_schema", guide, str(n)) for n in not_taken)


def test_json_without_a_schema_has_no_unicode_escapes():
    for kind, guide in (("json", ""), ("json_schema", '{"type": "object"}')):
        for seed in range(10):
            text = drawn(guide, seed, ['{"\\ud800": 1, ', '"\\u0061": 1}'], kind)
            assert text is None or b"\\u" not in text


LONG_NUMBERS = [
    *(9007199254740993, -9007199254740993, 12345678901234567890, 2**63, 2**64, 10**30),
    *(1456051.6399670597, -0.09106756173890133, 4.68e-27, 1e-310, math.inf, math.nan),
]


@pytest.mark.parametrize("number", LONG_NUMBERS)
def test_a_constant_that_the_library_would_round_is_rejected(number):
    for keyword, value in (("const", number), ("enum", [0, [{"a": number}]])):
        assert rejected({keyword: value}) == (
            f"numbers of '{keyword}' must be exact in floating point (at most 15 digits); "
            f"got {number!r}"
        )


@pytest.mark.parametrize(
    "schema",
    [
        {"minimum": 9007199254740993, "maximum": 9007199254740995},
        {"maximum": -9007199254740993},
        {"exclusiveMaximum": 2**63 - 1},
        {"exclusiveMinimum": 1456051.6399670597},
        {"multipleOf": 0.09106756173890133},
    ],
    ids=json.dumps,
)
def test_a_bound_that_the_library_would_round_is_rejected(schema):
    keyword = next(iter(schema))
    assert rejected({"type": "integer", **schema}).startswith(
        f"numbers of '{keyword}' must be exact in floating point"
    )


@pytest.mark.parametrize("keyword", ["default", "maximum", "title"])
@pytest.mark.parametrize("number", [float("1e400"), -math.inf])
def test_an_infinite_number_is_rejected(keyword, number):
    message = f"numbers of a JSON schema must be finite; got {number}"
    assert rejected({"properties": {"a": {keyword: number}}}) == message


@settings(max_examples=40)
@given(
    st.one_of(
        st.floats(allow_nan=False, allow_infinity=False, min_value=-1e30, max_value=1e30),
        st.decimals(-(10**9), 10**9, places=3).map(float),
        st.integers(-(2**65), 2**65),
    )
)
def test_an_accepted_number_is_output_exactly(number):
    try:
        text = drawn({"const": number}, 0)
    except GuideError:
        assume(False)
    assert text is None or Decimal(text.decode()) == Decimal(repr(number))


@settings(max_examples=40)
@given(st.integers(-(10**15) + 1, 10**15 - 1), st.integers(-7, 7))
def test_a_constant_of_15_digits_is_accepted(digits, power):
    number = digits if power == 0 else float(f"{digits}e{power}")
    assume(abs(number) < 10**15)  # above, JSON writes more digits, such as 7549483106506700.0
    text = drawn({"const": number}, 0)
    assert Decimal(text.decode()) == Decimal(repr(number))


@pytest.mark.parametrize("largest", [2**63 - 1, 2**63, 2**64 - 1])
def test_bounds_can_be_large_64_bit_integers(largest):
    matcher("json_schema", json.dumps({"type": "integer", "minimum": 0, "maximum": largest}))


@pytest.mark.parametrize(
    "others",
    [
        {"additionalItems": False},
        {"additionalItems": {"type": "string"}, "items": {}},
        {"items": [{"type": "string"}]},
    ],
    ids=json.dumps,
)
def test_prefix_items_that_the_library_ignores_are_rejected(others):
    assert rejected({"prefixItems": [{"type": "integer"}], **others}) == (
        "prefixItems isn't supported together with additionalItems or a list in 'items'; "
        "set 'items' to one schema for the remaining items"
    )


@pytest.mark.parametrize("schema", ["true", "[]", "5", '"x"', "null"])
def test_a_schema_that_is_not_an_object_is_rejected(schema):
    with pytest.raises(GuideError, match=r"^a JSON schema must be an object"):
        matcher("json_schema", schema)


@pytest.mark.parametrize("letter", '\n\r\t\b\f\\"')
def test_a_schema_can_restrict_escapes(letter):
    fewer = 'nrtbf\\"'.replace(json.dumps(letter)[2], "")
    schema = {"enum": ['a\n\r\t\b\f\\"b'.replace(letter, "")]}
    schema["x-guidance"] = {"json_allowed_escapes": fewer}
    assert [json.loads(drawn(schema, 0))] == schema["enum"]
    with pytest.raises(GuideError, match=f"must not have strings with U\\+{ord(letter):04X}"):
        matcher("json_schema", json.dumps({**schema, "const": f"a{letter}b"}))


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string", "minLength": 1.0, "maxLength": 2.0}, '"ab"', '"abc"'),
        ({"items": {"const": 1}, "type": "array", "minItems": 2.0}, "[1, 1]", "[1]"),
        ({"items": {"const": 1}, "type": "array", "maxItems": 1.0}, "[1]", "[1, 1]"),
        ({"type": "object", "minProperties": 1.0}, '{"a": 1}', "{}"),
        ({"type": "object", "maxProperties": 1.0}, '{"a": 1}', '{"a": 1, "b": 1}'),
        ({"type": "string", "maxLength": -0.0}, '""', '"a"'),
    ],
    ids=json.dumps,
)
def test_a_count_can_be_written_as_a_float(schema, right, wrong):
    for kind, guide in (
        ("json_schema", json.dumps(schema)),
        ("lark_grammar", f"start: %json {json.dumps(schema)}"),
    ):
        assert fits(kind, guide, right)
        assert not fits(kind, guide, wrong)


@pytest.mark.parametrize("count", [2.5, -1, -1.0, 1e30, "2", True])
def test_an_invalid_count_is_rejected(count):
    message = rejection("json_schema", json.dumps({"type": "string", "maxLength": count}))
    assert message.startswith("Expected positive integer for 'maxLength', got ")


def test_constants_and_defaults_can_look_like_unsupported_schemas():
    looks = {"pattern": "[[a]]", "multipleOf": -1, "prefixItems": [], "additionalItems": {}}
    assert json.loads(drawn({"const": looks}, 0)) == looks
    matcher("json_schema", json.dumps({"type": "null", "default": looks, "examples": [looks]}))


def test_properties_can_have_the_names_of_keywords():
    names = ("prefixItems", "additionalItems", "const", "enum", "minimum", "pattern", "required")
    schema = {"type": "object", "properties": {name: {"const": 1} for name in names}}
    text = drawn({**schema, "required": list(names), "additionalProperties": False}, 0)
    assert json.loads(text) == dict.fromkeys(names, 1)
