"""Rewrites `uniqueItems` and `propertyNames` for a few values. llguidance doesn't support them."""

from __future__ import annotations

import warnings
from itertools import permutations
from math import perm
from typing import Any, Final

from tandem.guides.errors import GuideError, GuideWarning
from tandem.guides.references import Definitions
from tandem.guides.schema_parts import iter_schemas

# Maximum number of orders, each of which becomes a list. Five values have 120 orders.
MAX_ORDERS: Final = 120
ENUMERATED: Final = frozenset({"enum", "const", "type", "title", "description", "default"})

# Keywords for the items of an array, besides `items`.
OTHER_ITEMS: Final = frozenset({"anyOf", "prefixItems", "additionalItems"})

REPEATS: Final = "the schema's uniqueItems isn't enforced; items may repeat"

Part = dict[str, Any]


def list_values(schema: Part, *, strict: bool) -> None:
    """Rewrite `uniqueItems` and `propertyNames` with keywords that the library supports.

    strict: whether to raise GuideError if unique items can't be enforced. If false, a
    GuideWarning is issued instead, and items may repeat.
    """
    definitions = Definitions(schema)
    for part in list(iter_schemas(schema)):
        if part.get("uniqueItems") is True:
            _list_items(part, definitions, strict=strict)
        if isinstance(part.get("propertyNames"), dict):
            _list_names(part, definitions)


def _list_items(part: Part, definitions: Definitions, *, strict: bool) -> None:
    """Replace `uniqueItems` with a list of the array's possible contents."""
    del part["uniqueItems"]
    items, max_items = _constants(part.get("items"), definitions), part.get("maxItems")
    count = int(max_items) if isinstance(max_items, int | float) else None
    if items is not None:
        part["maxItems"] = count = len(items) if count is None else min(count, len(items))
        if part.keys().isdisjoint(OTHER_ITEMS) and perm(len(items), count) <= MAX_ORDERS:
            orders = permutations(items, count)
            part["anyOf"] = [{"items": list(order), "additionalItems": False} for order in orders]
            del part["items"]
            return
    if count is not None and count <= 1:
        return
    if strict:
        raise GuideError(
            "uniqueItems can be enforced only for a few constants; remove it, or remove 'strict' "
            "to allow items to repeat"
        )
    warnings.warn(GuideWarning(REPEATS), stacklevel=2)


def _list_names(part: Part, definitions: Definitions) -> None:
    """Replace `propertyNames` with a list of the object's possible properties."""
    constants = _constants(part["propertyNames"], definitions)
    properties, others = part.get("properties", {}), part.get("additionalProperties", True)
    if constants is None or "patternProperties" in part or not isinstance(properties, dict):
        return
    names = [name for one in constants for name in one["enum"] if isinstance(name, str)]
    listed = {name: properties.get(name, others) for name in names}
    part["properties"] = {**dict.fromkeys(properties, False), **listed}
    part["additionalProperties"] = False
    del part["propertyNames"]


def _constants(schema: Any, definitions: Definitions) -> list[Part] | None:
    """Return a schema for each value of a schema, or None if it doesn't list scalar values."""
    if isinstance(schema, dict) and isinstance(schema.get("$ref"), str) and len(schema) == 1:
        schema = definitions.target(schema["$ref"])
    if not isinstance(schema, dict) or not schema.keys() <= ENUMERATED:
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is None and schema.get("type") == "boolean":
        values = [True, False]
    if not isinstance(values, list) or any(isinstance(value, list | dict) for value in values):
        return None
    unique = {(isinstance(value, bool), value): value for value in values}.values()
    kind = {"type": schema["type"]} if "type" in schema else {}
    return [{**kind, "enum": [value]} for value in unique]
