"""Patterns have the meaning that JSON Schema defines, or are rejected."""

import json

import pytest
from schema_guides import drawn, rejected
from schemas import complaint
from small_guides import fits, matcher

from tandem.guides.patterns import exclude_nul


@pytest.mark.parametrize(
    ("pattern", "sign"),
    [
        ("^[[a]]$", "["),
        ("^[^[:alpha:]]$", "["),
        ("^[^a&&b]$", "&&"),
        (r"x\[[^+--]", "--"),
        ("[]~~]", "~~"),
    ],
)
def test_a_pattern_with_set_operators_inside_brackets_is_rejected(pattern, sign):
    got = f"pattern {pattern!r} has '{sign}' inside brackets; escape it with backslashes"
    assert rejected({"type": "string", "pattern": pattern}) == got
    assert rejected({"patternProperties": {pattern: {}}}) == got


@pytest.mark.parametrize(
    ("pattern", "flags"), [('(?x)[ ^"]', "x"), ("a(?-u:b)", "-u"), ("[(?i](?isU)", "isU")]
)
def test_a_pattern_with_flags_that_only_rust_has_is_rejected(pattern, flags):
    got = f"pattern {pattern!r} has flags '{flags}'; only i, m and s are supported"
    assert rejected({"type": "string", "pattern": pattern}) == got


@pytest.mark.parametrize("pattern", ["(?i)a", "(?:a)", "(?P<x>a)", "[(?x]", r"\(?", "(?<xu>a)"])
def test_a_pattern_with_ordinary_flags_or_groups_is_accepted(pattern):
    matcher("json_schema", json.dumps({"type": "string", "pattern": pattern}))


def test_set_operators_after_an_apparent_flag_are_rejected():
    assert "'--' inside brackets" in rejected({"type": "string", "pattern": "[(?a--b]"})


def test_a_pattern_with_unclosed_properties_takes_linear_time():
    # Quadratic time would exceed pytest's timeout.
    pattern = r"\p{" * 1_000_000
    assert exclude_nul(pattern).count(r"&&[^\x00]") == 1_000_000


@pytest.mark.parametrize("pattern", [r"^[\[a\]&-]$", "^a&&b--~~$", r"^\[a&&b$", "^[a]&&[b]$"])
def test_a_pattern_without_set_operators_is_accepted(pattern):
    schema = {"type": "string", "pattern": pattern}
    assert not complaint(schema, drawn(schema, 0).decode())


# A character class, characters that it doesn't match, and characters that it matches
SETS = [
    ('[^"]', '"', "\\n\t!é"),
    (r"[^\\]", "\\", '"n\t!é'),
    (r'[^"\\]', '"\\', "nbu\n\t!é😀"),
    ('[^"\n]', '"\n', "\\nt\t!"),
    (r"[^]\"\\-]", ']"\\-', "\na["),
    ("[^!-~]", '!"\\~a', "\n\t é"),
    (r"[\x00-!]", '"\\#a', "\n\t !"),
    (r"[\u0000-\u001f\]]", '"\\ [n', "\n\t]"),
    ("[\x00-!]", '"\\#a', "\n !"),
    (r"\P{P}", '"\\!', "\n a"),
    (r"\p{Cc}", '"\\n', "\n\t"),
    (r"[\PP\p{Lu}]", '"\\!', "\n aA"),
]


@pytest.mark.parametrize(("letters", "never", "taken"), SETS)
def test_character_classes_match_quotes_and_backslashes_only_if_listed(letters, never, taken):
    named = {"type": "string", "pattern": f"^x{letters}$"}
    held = {"$ref": "#/components/schemas/x", "components": {"schemas": {"x": {"anyOf": [named]}}}}
    names = {"patternProperties": {named["pattern"]: {}}, "additionalProperties": False}
    for letter in never + taken:
        text = json.dumps(f"x{letter}", ensure_ascii=False)
        got = [
            fits("json_schema", json.dumps(named), text),
            fits("json_schema", json.dumps({"allOf": [named, {"maxLength": 9}]}), text),
            fits("json_schema", json.dumps(held), text),
            fits("lark_grammar", f"start: %json {json.dumps(named)}", text),
            fits("json_schema", json.dumps({"type": "object", **names}), f"{{{text}: 0}}"),
        ]
        assert got == [letter in taken] * len(got), letter
