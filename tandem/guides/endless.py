"""Finds schemas that no finite text can match, such as a list that must contain itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from tandem.guides.errors import NO_TEXT, GuideError
from tandem.guides.references import Definitions
from tandem.guides.schema_parts import iter_schemas

Part = dict[str, Any]

NOTHING: Final[Part] = {"enum": []}


def drop_endless(schema: Part) -> None:
    """Replace endless parts with an empty enum; raise GuideError if the whole schema is endless."""
    definitions = Definitions(schema)
    parts = list(iter_schemas(schema))
    if not any("$ref" in part for part in parts):
        return
    ending: set[int] = set()
    waiting: dict[int, list[Part]] = defaultdict(list)  # id of a schema -> parts that need it
    left = [*parts]
    while left:
        part = left.pop()
        missing = [
            one for one in _required_parts(part, definitions, ending) if id(one) not in ending
        ]
        if not missing:
            ending.add(id(part))
            left += waiting.pop(id(part), ())
        for one in missing:
            waiting[id(one)].append(part)
    if id(schema) not in ending:
        raise GuideError(NO_TEXT)
    for part in parts:
        if id(part) not in ending:
            part.clear()
            part.update(NOTHING)


def _required_parts(part: Part, definitions: Definitions, ending: set[int]) -> Iterator[Part]:
    """Yield the subschemas that need finite values so that ``part`` can have one.

    ending: ids of schemas known to have finite values. An `anyOf` or `oneOf` that lists one of them
    adds no requirement.
    """
    reference, kind = part.get("$ref"), part.get("type")
    inner = [definitions.target(reference)] if isinstance(reference, str) else []
    inner += part["allOf"] if isinstance(part.get("allOf"), list) else []
    inner += _required(part) if kind == "object" else []
    inner += _first_items(part) if kind == "array" else []
    for keyword in ("anyOf", "oneOf"):
        choice = part.get(keyword)
        if isinstance(choice, list) and all(isinstance(one, dict) for one in choice):
            inner += choice if all(id(one) not in ending for one in choice) else []
    return (one for one in inner if isinstance(one, dict))


def _required(part: Part) -> list[Any]:
    properties, required = part.get("properties"), part.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return []
    return [properties.get(name) for name in required if isinstance(name, str)]


def _first_items(part: Part) -> list[Any]:
    """Return the schemas of the items that an array must contain."""
    min_items, items, first = part.get("minItems"), part.get("items"), part.get("prefixItems")
    count = int(min_items) if isinstance(min_items, int | float) else 0
    listed = items if isinstance(items, list) else first if isinstance(first, list) else []
    return [*listed[:count], *([items] if count > len(listed) else [])]
