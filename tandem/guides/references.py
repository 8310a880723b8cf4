"""Resolves, checks and encodes the references in schemas."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final
from urllib.parse import quote, unquote

from tandem.guides.errors import GuideError, shorten
from tandem.guides.schema_parts import BY_NAME, DATA, iter_schemas

# Characters of a reference that aren't percent-encoded, besides letters, digits and `_.-~`
PLAIN: Final = "%#/:?@!$&'()*+,;="


def check_references(schema: Any) -> None:
    """Raise GuideError for a reference into data, because data isn't checked as a schema."""
    for part in iter_schemas(schema):
        reference = part.get("$ref")
        if not isinstance(reference, str):
            continue
        if keyword := _data_keyword(reference):
            raise GuideError(
                f"'$ref' must refer to a schema; {shorten(repr(reference))} refers to data in "
                f"'{keyword}'; move it to '$defs'"
            )


class Definitions:
    """Resolves the references of a schema."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema

    @cached_property
    def has_other_roots(self) -> bool:
        """Whether a part has an `$id`, so that references in it are relative to that part."""
        inner = (part for part in iter_schemas(self._schema) if part is not self._schema)
        return any(isinstance(part.get("$id"), str) for part in inner)

    @cached_property
    def _anchors(self) -> dict[str, dict[str, Any]]:
        parts = (
            part for part in iter_schemas(self._schema) if isinstance(part.get("$anchor"), str)
        )
        return {part["$anchor"]: part for part in parts}

    def target(self, reference: str) -> dict[str, Any] | None:
        """Return the target of a reference, or None if it isn't an object in this document."""
        base, _, pointer = reference.partition("#")
        if self.has_other_roots or base not in ("", self._schema.get("$id")):
            return None
        if pointer and not pointer.startswith("/"):
            return self._anchors.get(unquote(pointer))
        at: Any = self._schema
        for key in _keys(pointer):
            if isinstance(at, list):
                at = at[int(key)] if key.isdecimal() and int(key) < len(at) else None
            else:
                at = at.get(key) if isinstance(at, dict) else None
        return at if isinstance(at, dict) else None


def percent_encode(reference: str) -> str:
    """Percent-encode the characters of a reference that a URI can't contain."""
    return quote(reference, safe=PLAIN, errors="surrogatepass")


def _data_keyword(reference: str) -> str:
    """Return the keyword through which a reference leads into data, or ""."""
    holder = ""  # previous key, if it is a keyword whose keys are names of schemas
    for keyword in _keys(reference.partition("#")[2]):
        if holder:
            holder = ""
        elif keyword in DATA:
            return keyword
        elif keyword in BY_NAME:
            holder = keyword
    return holder


def _keys(pointer: str) -> list[str]:
    """Return the keys of a JSON pointer."""
    tokens = unquote(pointer).split("/")[1:]
    return [token.replace("~1", "/").replace("~0", "~") for token in tokens]
