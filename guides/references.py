"""References of schemas: where they may lead, and how the library spells them."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final
from urllib.parse import quote, unquote

from tandem.guides.errors import GuideError, shortened
from tandem.guides.schema_parts import BY_NAME, DATA, schemas_of

# What a reference may hold as it is, beside letters, digits and `_.-~`.
PLAIN: Final = "%#/:?@!$&'()*+,;="


def check_references(schema: Any) -> None:
    """Raise GuideError for a reference to what is no schema: nothing there is checked as one."""
    for part in schemas_of(schema):
        reference = part.get("$ref")
        if not isinstance(reference, str):
            continue
        if keyword := _data_on_the_way(reference):
            raise GuideError(
                f"the reference {shortened(repr(reference))} leads into '{keyword}', which holds "
                "no schema there; put the schema under '$defs'"
            )


class Definitions:
    """What the references of a schema lead to."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema

    @cached_property
    def has_other_roots(self) -> bool:
        """Whether a part has an id of its own, and is the root of the references in it."""
        inner = (part for part in schemas_of(self._schema) if part is not self._schema)
        return any(isinstance(part.get("$id"), str) for part in inner)

    @cached_property
    def _anchors(self) -> dict[str, dict[str, Any]]:
        parts = (part for part in schemas_of(self._schema) if isinstance(part.get("$anchor"), str))
        return {part["$anchor"]: part for part in parts}

    def target(self, reference: str) -> dict[str, Any] | None:
        """Return the schema at a reference; None if that is no object, or another document."""
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


def encoded(reference: str) -> str:
    """Return a reference with the characters percent-encoded that a URI may not have."""
    return quote(reference, safe=PLAIN, errors="surrogatepass")


def _data_on_the_way(reference: str) -> str:
    """Return the keyword at which a reference leaves the schemas; nothing where it does not."""
    holder = ""  # of schemas by name, whose name comes next
    for keyword in _keys(reference.partition("#")[2]):
        if holder:
            holder = ""
        elif keyword in DATA:
            return keyword
        elif keyword in BY_NAME:
            holder = keyword
    return holder


def _keys(pointer: str) -> list[str]:
    """Return the keys on the way of a JSON pointer."""
    tokens = unquote(pointer).split("/")[1:]
    return [token.replace("~1", "/").replace("~0", "~") for token in tokens]
