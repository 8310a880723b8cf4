r"""Rejects or rewrites patterns that the library interprets differently from JSON Schema.

JSON Schema uses JavaScript's regular expressions, llguidance uses Rust's. In Rust, brackets may
contain sets: `[[ab]]` is one of two letters, and `[^a&&b]` is any letter. Rust also has more flags,
such as `x`, which ignores spaces. Patterns that use these features are rejected.

llguidance 1.9 adds `"` and `\` to each set that contains all control characters, such as `[^"]`.
Such sets are rewritten without NUL, which can't occur in an answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tandem.guides.errors import GuideError, shorten
from tandem.guides.schema_parts import iter_schemas

# An escaped character, the start or end of brackets, a set operator of Rust, or the start of flags
SIGN = re.compile(r"\\.|\[\^?\]?|\]|&&|--|~~|\(\?", re.DOTALL)
FLAGS = re.compile("[A-Za-z-]*")
KNOWN_FLAGS = frozenset("imsP-")  # P starts the name of a group
# A Unicode property, brackets, or another escape. The name of a property can't contain braces,
# because unclosed braces would take quadratic time.
SET = re.compile(r"(?P<set>\\[pP](?:\{[^{}]*\}|.))|\\.|\[\^?\]?(?:\\.|[^]\\])*\]", re.DOTALL)
MAY_HAVE_NUL = re.compile(r"\[(?:\^|.*(?:\\[pPuUx]|\x00))", re.DOTALL)


def check_patterns(schema: Any) -> None:
    """Raise GuideError if a pattern of the schema has a different meaning in Rust."""
    for part in iter_schemas(schema):
        for pattern in _patterns_of(part):
            if fault := _find_unsupported(pattern):
                raise GuideError(f"pattern {shorten(repr(pattern))} has {fault}")


def exclude_nul(pattern: str) -> str:
    """Return an equivalent pattern that the library matches correctly, without NUL in its sets."""

    def replace(found: re.Match[str]) -> str:
        has_nul = found["set"] or MAY_HAVE_NUL.match(found[0])
        return rf"[{found[0]}&&[^\x00]]" if has_nul else found[0]

    return SET.sub(replace, pattern)


def _patterns_of(part: dict[str, Any]) -> Iterator[str]:
    by_name = part.get("patternProperties")
    for pattern in (part.get("pattern"), *(by_name if isinstance(by_name, dict) else ())):
        if isinstance(pattern, str):
            yield pattern


def _find_unsupported(pattern: str) -> str:
    """Return the set or flags of a pattern that only Rust supports, or ""."""
    inside = False
    for found in SIGN.finditer(pattern):
        sign = found[0]
        if not inside:
            inside = sign.startswith("[")
            flags = FLAGS.match(pattern, found.end()) if sign == "(?" else None
            if flags and not KNOWN_FLAGS.issuperset(flags[0]):
                return f"flags '{shorten(flags[0])}'; only i, m and s are supported"
        elif sign == "]":
            inside = False
        elif not sign.startswith(("\\", "(")):
            sign = sign[:1] if sign.startswith("[") else sign
            return f"'{sign}' inside brackets; escape it with backslashes"
    return ""
