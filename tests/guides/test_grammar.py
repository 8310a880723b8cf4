"""Each kind of guide accepts exactly the texts that it describes."""

import json
import re

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_guides import fits, matcher, rejection

from tandem.contract.guide import Guide
from tandem.guides.errors import GuideError
from tandem.guides.grammar import MAX_CHOICES, make_grammar

OBJECT = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "x"}',
        '{"a": "x", "b": "1"}',
        '{"a": "x", "b": 1, "c": 2}',
        '{"a":"x","b":1}',
        '{"a": "x", "b": 1} ',
        "",
    ],
)
def test_a_schema_rejects_other_text(text):
    assert not fits("json_schema", json.dumps(OBJECT), text)


def test_a_schema_can_request_flexible_whitespace():
    flexible = json.dumps({**OBJECT, "x-guidance": {"whitespace_flexible": True}})
    assert fits("json_schema", flexible, '{\n  "a": "x",\n  "b": 1\n}')


def test_unrelated_schema_options_keep_the_default_whitespace():
    escapes = json.dumps({**OBJECT, "x-guidance": {"json_allowed_escapes": "nt"}})
    assert fits("json_schema", escapes, '{"a": "x", "b": 1}')
    assert not fits("json_schema", escapes, '{"a":"x","b":1}')


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "array", "contains": {"const": 1}}, "contains"),
        ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}, "oneOf"),
    ],
)
def test_schema_options_cannot_disable_checks(schema, reason):
    loose = {**schema, "x-guidance": {"lenient": True, "coerce_one_of": True}}
    assert reason in rejection("json_schema", json.dumps(loose))


def test_an_ambiguous_one_of_is_rejected_with_advice():
    one_of = {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}
    assert rejection("json_schema", json.dumps(one_of)) == (
        "oneOf constraints are not supported if one value may match two of them; distinguish "
        "them by a constant, or use anyOf"
    )


def test_a_regex_matches_the_whole_answer():
    assert fits("regex", r"\d{3}-[ab]+", "123-abba")
    assert not fits("regex", r"\d{3}-[ab]+", "123-abbax")
    assert not fits("regex", r"\d{3}-[ab]+", "x123-abba")


CHOICES = st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=5)


@settings(max_examples=20)
@given(CHOICES, st.data())
def test_a_choice_accepts_exactly_the_listed_texts(choices, data):
    text = data.draw(st.sampled_from(choices))
    assert fits("choice", json.dumps(choices), text)
    other = text + data.draw(st.sampled_from(["x", " ", "\n"]))
    assert fits("choice", json.dumps(choices), other) == (other in choices)


@pytest.mark.parametrize("text", ["yes", '{"yes": 1}', '["yes", 1]', '["yes", ""]', "[" * 10_000])
def test_invalid_choices_are_rejected(text):
    assert rejection("choice", text) == (
        'choices must be a JSON list of non-empty strings, such as ["yes", "no"]'
    )


def test_the_number_of_choices_is_limited():
    assert rejection("choice", "[]") == f"there must be between 1 and {MAX_CHOICES} choices; got 0"
    many = [str(n) for n in range(MAX_CHOICES)]
    assert fits("choice", json.dumps(many), "9999")
    assert "choices; got 10001" in rejection("choice", json.dumps([*many, "more"]))


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("json_schema", "nope", "expected"),
        ("json_schema", "[" * 10_000, "recursion limit"),
        ("json_schema", '{"not": {}}', 'Unimplemented keys: ["not"]'),
        ("json_schema", '{"enum": []}', "Unsatisfiable"),
        ("json_schema", '{"$ref": "#"}', "no text matches it"),
        ("json_schema", "false", "object"),
        ("json_schema", '{"pattern": "^(?=a)"}', "pattern '^(?=a)' has '(?='"),
        ("regex", "(", "regex parse error: unclosed group"),
        ("regex", "a\\\\\\", "regex parse error: nothing follows the last backslash"),
        ("lark_grammar", "nope", "Expected token"),
    ],
)
def test_invalid_guides_are_rejected_in_one_line(kind, text, reason):
    assert reason in rejection(kind, text)


BOUNDS = [
    {"exclusiveMinimum": 0, "maximum": 0.25},
    {"exclusiveMinimum": 3, "exclusiveMaximum": 3.5},
    {"minimum": -0.5, "exclusiveMaximum": 0},
    {"exclusiveMinimum": 1.0, "allOf": [{"maximum": 1.5}]},
]


@pytest.mark.parametrize("bounds", BOUNDS, ids=json.dumps)
@pytest.mark.parametrize("where", ["whole", "properties", "$defs"])
def test_number_bounds_that_the_library_misreads_are_rejected(bounds, where):
    number = {"type": "number", **bounds}
    whole = number if where == "whole" else {"items": {where: {"properties": number}}}
    got = rejection("json_schema", json.dumps(whole))
    assert "must be at least 1 away from the other bound" in got


LOW, HIGH = {"exclusiveMinimum": 1}, {"maximum": 1.5}
DRAFT_04 = {"minimum": 1, "exclusiveMinimum": True, **HIGH}
COMBINED = [
    {**LOW, "$ref": "#/$defs/high"},
    {**LOW, "anyOf": [HIGH, {"maximum": -4}]},
    {"allOf": [{"allOf": [LOW]}, HIGH]},
    {"allOf": [{"items": LOW}, {"items": HIGH}]},
    {"properties": {"a": LOW}, "patternProperties": {"^a": HIGH}},
    DRAFT_04,
]


@pytest.mark.parametrize("combined", COMBINED, ids=json.dumps)
def test_misread_bounds_across_combined_schemas_are_rejected(combined):
    got = rejection("json_schema", json.dumps({**combined, "$defs": {"high": HIGH}}))
    assert got.endswith("if they are integers; got 1 and 1.5")


@pytest.mark.parametrize(
    "apart",
    [
        {"properties": {"a": LOW, "b": HIGH}},
        {"anyOf": [LOW, {"type": "number", **HIGH}], "description": "one or the other"},
        {"type": "number", "anyOf": [{"exclusiveMinimum": 0}, {"exclusiveMaximum": 0}]},
        {"const": DRAFT_04},
        {"properties": {"a": LOW, "b": HIGH, "c": {"minimum": 5, "allOf": [{"maximum": 9}]}}},
    ],
    ids=json.dumps,
)
def test_close_bounds_of_different_numbers_are_accepted(apart):
    matcher("json_schema", json.dumps(apart))


@pytest.mark.parametrize(
    "bounds",
    [
        {"exclusiveMinimum": 0},
        {"exclusiveMinimum": 0, "maximum": 1},
        {"exclusiveMinimum": 0.5, "maximum": 0.75},
        {"minimum": 0, "maximum": 0.5},
        {"minimum": 0, "maximum": 0.5, "properties": {"exclusiveMinimum": {"type": "null"}}},
    ],
    ids=json.dumps,
)
def test_supported_number_bounds_are_enforced(bounds):
    schema = {"type": "number", **bounds}
    validator = jsonschema.Draft202012Validator(schema)
    for text in ("0", "0.0", "0.5", "0.500", "0.6", "0.75", "1", "1.0", "-1", "2"):
        fitting, valid = (
            fits("json_schema", json.dumps(schema), text),
            validator.is_valid(json.loads(text)),
        )
        # A bound with extra zeros may be rejected.
        assert fitting == valid or (text == "0.500" and not fitting)


QUERY = """
root ::= "SELECT " column " FROM " table
column ::= "a" | "b"  # or so
table ::= [a-z]+ ("_" [0-9])?
"""


def test_ebnf_grammars_use_llama_cpps_dialect():
    assert fits("ebnf_grammar", QUERY, "SELECT a FROM things_1")
    assert not fits("ebnf_grammar", QUERY, "SELECT c FROM things")


@pytest.mark.parametrize(
    "rule", [r'"\u00e9\u0022"', r"[\u00e0-\u00ff] [\u0022]", r'[\U000000e9] "\""']
)
def test_ebnf_can_have_unicode_escapes(rule):
    assert fits("ebnf_grammar", f"root ::= {rule}", 'é"')
    assert not fits("ebnf_grammar", f"root ::= {rule}", 'a"')


@pytest.mark.parametrize(
    "text", ["root ::= (" * 50_000, "root", "a ::= b", "root ::= " + "b" * 9999, "\x00"]
)
def test_invalid_ebnf_is_rejected(text):
    reason = rejection("ebnf_grammar", text)
    assert reason.startswith("it must be EBNF in llama.cpp's dialect (GBNF): ")
    assert len(reason) < 400


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ('"%json {}" # %json {', "%json {}"),
        ("/%json [{][}]/", "%json {}"),
        ('// "%json {"\n| "a"', "a"),
        ('"\\"%json {" %json {"const": "\\"%json {}"}', '"%json {"\\"%json {}"'),
        ("%json {\n}", "7"),
    ],
)
def test_literal_text_in_a_grammar_can_contain_json_markers(rule, text):
    assert fits("lark_grammar", f"start: {rule}", text)


def test_errors_refer_to_lines_of_the_clients_grammar():
    reason = rejection("lark_grammar", 'start: other %json {\n"type":\n"null"}\nother: nothing')
    assert reason.startswith("at 4(8)")


@pytest.mark.parametrize("text", ['start: "' + '\\"' * 400_000, "start: /" + "\\/" * 400_000])
def test_a_grammar_with_an_unclosed_string_is_rejected_quickly(text):
    # Quadratic time would exceed pytest's timeout.
    make_grammar(Guide("lark_grammar", text))


@pytest.mark.parametrize("option", ["lenient", "coerce_one_of"])
def test_schema_options_cannot_disable_checks_in_a_lark_grammar(option):
    schema = {"x-guidance": {option: True}, "type": "string"}
    with pytest.raises(GuideError, match=f"'{option}' isn't supported in 'x-guidance'"):
        matcher("lark_grammar", f"start: %json {json.dumps(schema)}")
    schema["x-guidance"][option] = False
    matcher("lark_grammar", f"start: %json {json.dumps(schema)}")


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_line_breaks_in_a_regex_are_kept(line_end):
    verbose = line_end.join(["(?x)", "  a  # one/two", r"  \n  # \\", '  [/"] '])
    assert fits("regex", verbose, 'a\n"')
    assert fits("regex", verbose, "a\n/")
    assert not fits("regex", verbose, 'a"')
    assert fits("regex", f"a{line_end}b", f"a{line_end}b")
    assert not fits("regex", f"a{line_end}b", "ab")


@pytest.mark.parametrize("bounds", [{"minimum": -1e9, "maximum": 1e9}, {"multipleOf": 1e-6}])
def test_numbers_with_bounds_have_no_exponent(bounds):
    """Tandem adds no bounds by default, because a model couldn't then generate 1e-5."""
    assert fits("json_schema", '{"type": "number"}', "1e-5")
    assert not fits("json_schema", json.dumps({"type": "number"} | bounds), "1e-5")


def test_an_error_about_special_tokens_shows_their_names():
    error = rejection("lark_grammar", 'start: "a" <thought>')
    assert 'unknown special token: "<thought>"' in error
    assert "<tool call>" in error
    assert not re.search("[0-9a-f]{32}", error)


@pytest.mark.parametrize("token", ["<[20]>", "<[020]>", "<[20,20]>", "<[20-20]>", "<[20-20,20]>"])
@pytest.mark.parametrize("rule", ["{}", '"a" {} "b"', "{} <[21]>"])
def test_a_token_id_of_text_is_rejected_in_a_lark_grammar(rule, token):
    """The library would force the token, and then allow tokens that don't follow it."""
    expected = f"'{token}' isn't a special token; write its text instead"
    assert rejection("lark_grammar", f"start: {rule.format(token)}") == expected


def test_other_token_ids_are_allowed_in_a_lark_grammar():
    assert not matcher("lark_grammar", "start: <[20-21]>").peek_forced(1)
    assert matcher("lark_grammar", 'start: <[0]> "a"').peek_forced(1) == [0]
    assert matcher("lark_grammar", 'start: "<[20]>"').peek_forced(1)
