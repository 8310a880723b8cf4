"""Iterates over the parts of a JSON schema, and resolves, checks and encodes its references."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final, TypeGuard
from urllib.parse import quote, unquote

from tandem.guides.errors import GuideError, shorten

# Keywords that contain schemas by name, and keywords that contain data
BY_NAME: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
DATA: Final = ("const", "enum", "default", "examples")

# Keywords that limit numbers, and keywords that apply to the parts of a value
NUMBER_LIMITS = {
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
INNER = {
    *("properties", "patternProperties", "additionalProperties"),
    *("items", "prefixItems", "additionalItems"),
}
# Characters of a reference that aren't percent-encoded, besides letters, digits and `_.-~`
PLAIN: Final = "%#/:?@!$&'()*+,;="


def iter_schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and all schemas in it, even if only a reference leads to them."""
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield part
        left += _inside(part)


def _inside(part: Any) -> list[Any]:
    """Return the values in ``part`` that may be or contain schemas."""
    if isinstance(part, list):
        return part
    inner: list[Any] = []
    for keyword, value in part.items() if isinstance(part, dict) else ():
        if keyword in BY_NAME and isinstance(value, dict):
            inner += value.values()
        elif keyword not in DATA:
            inner.append(value)
    return inner


def iter_leaves(value: Any) -> Iterator[Any]:
    """Yield all scalars in a JSON value, in order, without the keys of objects."""
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, dict | list):
            left += reversed(part.values() if isinstance(part, dict) else part)
        else:
            yield part


def iter_combined(schema: Any) -> Iterator[list[dict[str, Any]]]:
    """Yield groups of schemas. Several schemas of a group may apply to the same number.

    A reference may add any schema to its group. So if a group has a reference, the whole schema is
    yielded as the last group.
    """
    left = [schema]
    while left:
        part = left.pop()
        if not isinstance(part, dict) or not _combines(part):
            left += _inside(part)
            continue
        group = list(iter_schemas(part))
        if any("$ref" in one for one in group):
            yield list(iter_schemas(schema))
            return
        yield group


def _combines(part: dict[str, Any]) -> bool:
    """Return whether several schemas apply to one value. The part itself counts as one."""
    all_of = part.get("allOf")
    sources = [
        not part.keys().isdisjoint(NUMBER_LIMITS | INNER),
        *([True] * len(all_of) if isinstance(all_of, list) else ()),
        *(keyword in part for keyword in ("anyOf", "oneOf", "$ref")),
    ]
    return sum(sources) > 1 or ("properties" in part and "patternProperties" in part)


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether a value is a JSON number. Booleans aren't numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)


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
