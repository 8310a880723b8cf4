"""Guides of which it is known that they are compiled in a moment, so that nobody tries them out.

Most that clients send are of this kind. A trial copies the process, and no stream of it goes on
while it is copied, nor while it writes for the first time to what both share.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from tandem.guides.guide import Guide
from tandem.guides.schema_parts import schemas_of

# The worst of them take 25 ms of a processor, and twice as many bytes twice as long.
MOST_BYTES: Final = 2048
# They limit nothing.
ANNOTATIONS: Final = frozenset({"title", "description", "default", "examples"})
# What is compiled of these grows as their text does. Others lead elsewhere (`$ref`), hold another
# language (`pattern`, `format`), say how often something comes (`maxItems`), or have schemas
# multiplied with each other (`allOf`).
KEYWORDS: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "enum", "const"}
)
# Beside other keywords each of its schemas would be multiplied with theirs.
ALONE: Final = frozenset({"anyOf"})


def is_plain(guide: Guide) -> bool:
    """Whether a guide is a small schema or choice that the library compiles in a moment."""
    if guide.kind not in ("json_schema", "choice") or _size(guide.text) > MOST_BYTES:
        return False
    if guide.kind == "choice":
        return True
    try:
        schema = json.loads(guide.text)
    except (ValueError, RecursionError):
        return False
    return isinstance(schema, dict) and all(map(_is_plain_part, schemas_of(schema)))


def _is_plain_part(part: Mapping[str, Any]) -> bool:
    keywords = part.keys() - ANNOTATIONS
    return keywords <= KEYWORDS or keywords == ALONE


def _size(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))
