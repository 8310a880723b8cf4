"""Pieces of grammars in llguidance's dialect of Lark (its docs/syntax.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tandem.contract.guide import EXACT, JSON_LAYOUT, LAYOUT_KEY, LAYOUT_OPTIONS

ANYTHING = "(?s:.*)"  # a regular expression
ESCAPED_OR_SLASH = re.compile(r"\\.|/", re.DOTALL)


def literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def marker(text: str, tokens: Mapping[str, int]) -> str:
    """Return the terminal of a marker. tokens: ids of the tokens that aren't text."""
    return f"<[{tokens[text]}]>" if text in tokens else literal(text)


def json_value(schema: Mapping[str, Any]) -> str:
    """Return the rule of a JSON value that fits a schema; the schema may set its own layout."""
    own = schema.get(LAYOUT_KEY)
    options = own if isinstance(own, dict) else {}
    layout = JSON_LAYOUT if LAYOUT_OPTIONS.isdisjoint(options) else {}
    whole = {**schema, LAYOUT_KEY: {**layout, **options, **EXACT}}
    return f"%json {json.dumps(whole, ensure_ascii=False)}"


def pattern(regex: str) -> str:
    escaped = ESCAPED_OR_SLASH.sub(lambda found: r"\/" if found[0] == "/" else found[0], regex)
    return f"/{escaped}/"


def ends_in_backslash(regex: str) -> bool:
    """Whether the expression ends with a backslash, which would escape the delimiter."""
    return ESCAPED_OR_SLASH.sub("", regex).endswith("\\")


def one_of(alternatives: list[str]) -> str:
    return f"({' | '.join(alternatives)})"


def grammar(text: str) -> str:
    return f"%lark {{\n{text}\n}}"


def text_without(regex: str) -> str:
    """Return the terminal of any text that doesn't match a regular expression."""
    return f"/{ANYTHING}/ & ~{pattern(regex)}"
