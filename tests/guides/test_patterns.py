"""Patterns have the meaning that they have in ECMA-262, or are rejected."""

import json
import re
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schema_guides import drawn, rejected
from schemas import complaint
from small_guides import fits, rejection

from tandem.guides.errors import GuideError
from tandem.guides.patterns import translate

SPACES = "\t\n\v\f\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
# Parts of patterns, and Python's form of them, with explicit classes
PARTS = {
    ".": "[^\n\r\u2028\u2029]",
    "(?s:.)": r"[\s\S]",
    r"\s": f"[{SPACES}]",
    r"\S": f"[^{SPACES}]",
    r"[^\S ]": "[\t\n\v\f\r\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]",
    r"[\s\S]": r"[\s\S]",
    r"\d": "[0-9]",
    r"\D": "[^0-9]",
    r"\w": "[0-9A-Za-z_]",
    r"[^\w-]": "[^0-9A-Za-z_-]",
    r"[\w-.]": "[0-9A-Za-z_.-]",
    r"[\b]": "\b",
    r"\cJ": "\n",
    r"[\cj-\cm]": "[\n-\r]",
    r"\0": "\x00",
    r"\v": "\v",
    r"\x61": "a",
    r"[\x00-\x1f]": "[\x00-\x1f]",
    r"\u00e9": "é",
    r"\u{1F600}": "😀",
    r"\ud83d\ude00": "😀",
    "[^]": r"[\s\S]",
    "[]": r"[^\s\S]",
    "[[&&a]": r"[\[&a]",
    "[^a&&b]": "[^a&b]",
    "[--/]": r"[\-./]",
    "[~~]": "[~]",
    '[^"]': '[^"]',
    r"[^\\]": r"[^\\]",
    r"\/": "/",
    r"\-": "-",
    "{": r"\{",
    "]": r"\]",
    "a": "a",
}
CHARACTERS = [*'ab-&[]{}~/."\\\n\r\t\b\f _9é😀', *"\x85\xa0\u180e\u2028\u2029\u3000\ufeff٣ſ"]  # noqa: RUF001


def both(form, *parts):
    """Return a pattern and Python's form of it, from parts that are such pairs themselves."""
    return tuple(form.format(*side) for side in zip(*parts, strict=True))


PATTERNS = st.recursive(
    st.sampled_from(list(PARTS.items())),
    lambda inner: st.one_of(
        st.builds(partial(both, "{0}{1}"), inner, inner),
        st.builds(partial(both, "(?:{0}|{1})"), inner, inner),
        st.builds(partial(both, "({0})?"), inner),
        st.builds(partial(both, "(?:{0}){{1,2}}"), inner),
        st.builds(partial(both, "(?:{0})*?"), inner),
    ),
    max_leaves=4,
)
ANCHORS = st.sampled_from(
    [
        ("{0}", "{0}"),
        ("^(?:{0})$", r"^(?:{0})\Z"),
        ("^{0}|{0}$", r"^{0}|{0}\Z"),
        ("(^|a)(?:{0})", "(^|a)(?:{0})"),
    ]
)


@settings(max_examples=60, deadline=None)
@given(PATTERNS, ANCHORS, st.lists(st.text(st.sampled_from(CHARACTERS), max_size=3), max_size=20))
def test_a_pattern_matches_the_same_strings_as_in_javascript(pattern, anchors, texts):
    ecma, python = (form.format(part) for form, part in zip(anchors, pattern, strict=True))
    schema = json.dumps({"type": "string", "pattern": ecma})
    expected = [bool(re.search(python, text)) for text in texts]
    try:
        got = [fits("json_schema", schema, json.dumps(one, ensure_ascii=False)) for one in texts]
    except GuideError:  # no text matches it
        got = [False] * len(texts)
    assert got == expected, ecma


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        (r"a\b", r"'\b'; word boundaries aren't supported"),
        (r"\Bx", r"'\B'; word boundaries aren't supported"),
        (r"[\B]", r"'\B'; word boundaries aren't supported"),
        (r"(a)\1", r"'\1'; references to groups aren't supported"),
        (r"(?<x>a)\k<x>", r"'\k'; references to groups aren't supported"),
        ("(?=a)", "'(?='; lookarounds and other special groups aren't supported"),
        ("(?<!a)b", "'(?<'; lookarounds and other special groups aren't supported"),
        ("(?>a)", "'(?>'; lookarounds and other special groups aren't supported"),
        (r"\Aa", r"'\A'; unknown escape"),
        (r"\x1", r"'\x'; unknown escape"),
        (r"\01", r"'\01'; unknown escape"),
        (r"\u{110000}", r"'\u{110000}', which isn't a Unicode character"),
        (r"\ud83d", r"'\ud83d', which isn't a Unicode character"),
        ("[z-a]", "'z-a' with a range whose end is before its start"),
        ("(a", "an unmatched '('"),
        ("a)", "an unmatched ')'"),
        ("a[", "an unmatched '['"),
        ("*", "nothing to repeat before '*'"),
        ("(a|+)", "nothing to repeat before '+'"),
        ("^{2}", "nothing to repeat before '{2}'"),
        ("a++", "nothing to repeat before '+'"),
        ("a{,3}", "a repetition without a minimum; write '{0,' instead of '{,'"),
        ("a\\", "a backslash at its end"),
        ('(?x)[ ^"]', "flags 'x'; only i, m and s are supported"),
        ("a(?-u:b)", "flags '-u'; only i, m and s are supported"),
        ("[(?i](?isU)", "flags 'isU'; only i, m and s are supported"),
    ],
)
def test_an_invalid_or_unsupported_pattern_is_rejected_with_its_reason(pattern, fault):
    got = f"pattern {pattern!r} has {fault}"
    assert rejected({"type": "string", "pattern": pattern}) == got
    assert rejected({"patternProperties": {pattern: {}}}) == got


def test_anchors_inside_a_pattern_are_rejected():
    for pattern in ("a^b", "a$b", "(?m)^a", "(?:^a)+"):
        message = rejection("json_schema", json.dumps({"pattern": pattern}))
        assert message.startswith("lookarounds not supported yet")


def test_equal_patterns_of_properties_are_rejected():
    message = rejected({"patternProperties": {r"^\d$": {}, "^[0-9]$": {}}})
    assert message == "patternProperties must not have two equal patterns"


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("^(?i)a$", "A", True),
        ("^(?i:a)b$", "AB", False),
        ("^(?s).$", "\n", True),
        ("^(?s:.).$", "\n\n", False),
        ("^((?s).)$", "\n", True),
        ("^((?s)).$", "\n", False),
        ("^(?P<x>a)$", "a", True),
        ("^a(?P<stop>b)$", "ab", True),
        ("^(?<x_1>a)$", "a", True),
        ("^[(?x]$", "?", True),
        (r"^\(?$", "(", True),
    ],
)
def test_flags_and_names_of_groups_are_supported(pattern, text, matches):
    assert fits("json_schema", json.dumps({"pattern": pattern}), json.dumps(text)) == matches


def test_a_hostile_pattern_takes_linear_time():
    # Quadratic time would exceed pytest's timeout.
    for pattern in (r"\p{", "[", "(", "(?", r"\u{", "{1", "a|"):
        with suppress(GuideError):
            translate(pattern * 100_000, r"\x00")


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
    (r"[^\]\"\\-]", ']"\\-', "\na["),
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
