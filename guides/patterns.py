r"""Patterns of schemas that the library reads otherwise than JSON Schema.

JSON Schema's expressions are those of JavaScript. Rust's, which llguidance takes, have sets within
brackets: `[[ab]]` is one of two letters there, and `[^a&&b]` is any letter. They have flags as
well, of which `x` lets blanks say nothing, also in `[ ^"]`. These are refused.

llguidance 1.9 takes `"` and `\` for members of each set that has all control characters, as `[^"]`
has. Such sets are written without NUL here, which no answer can have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tandem.guides.errors import GuideError, shortened
from tandem.guides.schema_parts import schemas_of

# An escaped character, the beginning of brackets, their end, what only Rust takes for a set, or
# what flags may follow.
SIGN = re.compile(r"\\.|\[\^?\]?|\]|&&|--|~~|\(\?", re.DOTALL)
FLAGS = re.compile("[A-Za-z-]*")
KNOWN_FLAGS = frozenset("imsP-")  # with P, a name begins
# A set that may have NUL: by a property of characters, or in brackets. What is none goes between.
# A property's name has no brace: without ends, each would be looked for to the end of the pattern.
SET = re.compile(r"(?P<set>\\[pP](?:\{[^{}]*\}|.))|\\.|\[\^?\]?(?:\\.|[^]\\])*\]", re.DOTALL)
MAY_HAVE_NUL = re.compile(r"\[(?:\^|.*(?:\\[pPuUx]|\x00))", re.DOTALL)


def check_patterns(schema: Any) -> None:
    """Raise GuideError for a schema with an expression that would mean another one."""
    for part in schemas_of(schema):
        for pattern in _patterns_of(part):
            if fault := _fault_in(pattern):
                raise GuideError(f"the pattern {shortened(repr(pattern))} has {fault}")


def without_nul(pattern: str) -> str:
    """Return a pattern that the same answers match, and that the library takes as it is meant."""

    def written(found: re.Match[str]) -> str:
        has_nul = found["set"] or MAY_HAVE_NUL.match(found[0])
        return rf"[{found[0]}&&[^\x00]]" if has_nul else found[0]

    return SET.sub(written, pattern)


def _patterns_of(part: dict[str, Any]) -> Iterator[str]:
    by_name = part.get("patternProperties")
    for pattern in (part.get("pattern"), *(by_name if isinstance(by_name, dict) else ())):
        if isinstance(pattern, str):
            yield pattern


def _fault_in(pattern: str) -> str:
    """Return what it has that only Rust takes for a set or a flag; nothing where it has none."""
    inside = False
    for found in SIGN.finditer(pattern):
        sign = found[0]
        if not inside:
            inside = sign.startswith("[")
            flags = FLAGS.match(pattern, found.end()) if sign == "(?" else None
            if flags and not KNOWN_FLAGS.issuperset(flags[0]):
                return f"the flags '{shortened(flags[0])}'; only i, m and s are supported"
        elif sign == "]":
            inside = False
        elif not sign.startswith(("\\", "(")):
            sign = sign[:1] if sign.startswith("[") else sign
            return f"'{sign}' inside brackets; escape it with backslashes"
    return ""
