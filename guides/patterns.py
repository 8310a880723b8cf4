r"""Patterns of schemas that the library reads otherwise than JSON Schema.

JSON Schema's expressions are those of JavaScript. Rust's, which llguidance takes, have sets within
brackets: `[[ab]]` is one of two letters there, and `[^a&&b]` is any letter. These are refused.

llguidance 1.9 takes `"` and `\` for members of each set that has all control characters, as `[^"]`
has. Such sets are written without NUL here, which no answer can have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tandem.guides.errors import GuideError, shortened
from tandem.guides.schema_parts import schemas_of

# An escaped character, the beginning of brackets, their end, or what only Rust takes for a set.
SIGN = re.compile(r"\\.|\[\^?\]?|\]|&&|--|~~", re.DOTALL)
# A set that may have NUL: by a property of characters, or in brackets. What is none goes between.
# A property's name has no brace: without ends, each would be looked for to the end of the pattern.
SET = re.compile(r"(?P<set>\\[pP](?:\{[^{}]*\}|.))|\\.|\[\^?\]?(?:\\.|[^]\\])*\]", re.DOTALL)
MAY_HAVE_NUL = re.compile(r"\[(?:\^|.*(?:\\[pPuUx]|\x00))", re.DOTALL)


def check_patterns(schema: Any) -> None:
    """Raise GuideError for a schema with an expression that would mean another one."""
    for part in schemas_of(schema):
        for pattern in _patterns_of(part):
            if sign := _set_in(pattern):
                raise GuideError(
                    f"the pattern {shortened(repr(pattern))} has '{sign}' inside brackets; escape "
                    "it with backslashes"
                )


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


def _set_in(pattern: str) -> str:
    """Return what begins a set within brackets; nothing where there is none."""
    inside = False
    for found in SIGN.finditer(pattern):
        sign = found[0]
        if not inside:
            inside = sign.startswith("[")
        elif sign == "]":
            inside = False
        elif not sign.startswith("\\"):
            return sign[:1] if sign.startswith("[") else sign
    return ""
