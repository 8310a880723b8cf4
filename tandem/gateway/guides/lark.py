"""Building blocks for grammars in llguidance's dialect of Lark (see its docs/syntax.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from tandem.contract.guide import EXACT, LAYOUT_KEY, lark_regex, layout_of

ANYTHING = "(?s:.*)"  # a regular expression
Rules: TypeAlias = dict[str, str]  # expressions by name, with the start rule first


def render_rules(rules: Rules) -> str:
    return "".join(f"{name}: {rule}\n" for name, rule in rules.items())


def literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def marker(text: str, tokens: Mapping[str, int]) -> str:
    """Return the terminal for a marker. tokens: ids of the tokens that aren't text."""
    return f"<[{tokens[text]}]>" if text in tokens else literal(text)


def json_value(schema: Mapping[str, Any]) -> str:
    """Return the rule for a JSON value that fits a schema. The schema may set its own layout."""
    own = schema.get(LAYOUT_KEY)
    options = own if isinstance(own, dict) else {}
    whole = {**schema, LAYOUT_KEY: {**layout_of(schema), **options, **EXACT}}
    return f"%json {json.dumps(whole, ensure_ascii=False)}"


def one_of(alternatives: list[str]) -> str:
    return f"({' | '.join(alternatives)})"


def grammar(text: str) -> str:
    return f"%lark {{\n{text}\n}}"


def text_without(regex: str) -> str:
    """Return the terminal for any text that doesn't match a regular expression."""
    return f"/{ANYTHING}/ & ~{lark_regex(regex)}"
