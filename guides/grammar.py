"""The library's own form of each kind of guide."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from tandem.contract.guide import EXACT, JSON_LAYOUT, LAYOUT_KEY, LAYOUT_OPTIONS
from tandem.guides.errors import GuideError, shortened
from tandem.guides.exclusive_bounds import check_exclusive_bounds
from tandem.guides.guide import Guide

SCHEMA_IN_LARK = re.compile(r"%json\s*(?=\{)")
MAX_CHOICES = 10_000


def grammar_of(guide: Guide) -> str:
    """Return the library's own form of a guide; raise GuideError where it has none."""
    try:
        return GRAMMARS[guide.kind](guide.text)
    except ValueError as error:
        raise GuideError(_first_line(error)) from error


def _json_schema(text: str) -> str:
    """Return the grammar of a schema; one with a layout of its own is laid out by that alone."""
    check_exclusive_bounds(text)
    layout = None if _has_layout(text) else {**JSON_LAYOUT}
    return LLMatcher.grammar_from_json_schema(text, defaults=layout, overrides={**EXACT})  # type: ignore[arg-type]


def _has_layout(schema: str) -> bool:
    if LAYOUT_KEY not in schema:
        return False
    try:
        own = json.loads(schema)[LAYOUT_KEY]
    except (ValueError, RecursionError, TypeError, KeyError):
        return False
    return isinstance(own, dict) and not LAYOUT_OPTIONS.isdisjoint(own)


def _json(text: str) -> str:
    if text:
        raise GuideError("a guide of the type 'json' is any JSON and has no text; leave it out")
    return _json_schema("{}")


def _regex(text: str) -> str:
    return LLMatcher.grammar_from_regex(text)


def _lark(text: str) -> str:
    for found in SCHEMA_IN_LARK.finditer(text):
        try:
            schema, end = json.JSONDecoder().raw_decode(text, found.end())
        except (ValueError, RecursionError):
            continue  # the library says what is wrong with it
        _check_exact(schema)
        check_exclusive_bounds(text[found.end() : end])
    return LLMatcher.grammar_from_lark(text)


def _check_exact(schema: dict[str, Any]) -> None:
    """Refuse options of a grammar's schema that nothing overrides here."""
    own = schema.get(LAYOUT_KEY)
    inexact = [name for name in EXACT if isinstance(own, dict) and own.get(name)]
    if inexact:
        raise GuideError(f"'{LAYOUT_KEY}' of a schema may not have '{inexact[0]}'; leave it out")


def _ebnf(text: str) -> str:
    """A grammar as llama.cpp writes it (GBNF)."""
    try:
        return _lark(gbnf_to_lark(text))
    except Exception as error:  # it raises what it likes
        reason = "it nests too deep" if isinstance(error, RecursionError) else _first_line(error)
        raise GuideError(f"not EBNF as llama.cpp has it: {reason}") from error


def _choice(text: str) -> str:
    """One of several texts, as a regular expression of them."""
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError):
        choices = None
    if not isinstance(choices, list) or not all(c and isinstance(c, str) for c in choices):
        raise GuideError('choices must be a JSON list of texts, such as ["yes", "no"]')
    if not 0 < len(choices) <= MAX_CHOICES:
        raise GuideError(f"{len(choices)} choices given, must be 1..{MAX_CHOICES}")
    return _regex("|".join(map(_literally, choices)))


def _literally(text: str) -> str:
    """Return the regular expression that only ``text`` matches."""
    return "".join(c if c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)


GRAMMARS: Final[dict[str, Callable[[str], str]]] = {
    "json": _json,
    "json_schema": _json_schema,
    "regex": _regex,
    "choice": _choice,
    "lark_grammar": _lark,
    "ebnf_grammar": _ebnf,
}


def _first_line(error: Exception) -> str:
    return shortened(str(error).strip().partition("\n")[0]) or type(error).__name__
