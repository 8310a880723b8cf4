"""Closes objects, so that they can have only the properties that their schema declares.

By default, JSON Schema allows additional properties. Schemas from pydantic and other tools don't
set `additionalProperties`, so models may invent properties until they run out of tokens. So here an
object with `properties` or `patternProperties` is closed by default, as in xgrammar and llama.cpp.

Closing works like `unevaluatedProperties`: if several schemas apply to one object (`allOf`,
`anyOf`, `oneOf`, `$ref`), a name is allowed if any of them declares it. llguidance doesn't support
`unevaluatedProperties`, so it is implemented here in the same way.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from tandem.guides.schema_parts import BY_NAME, DATA, Definitions, iter_schemas

ALTERNATIVES: Final = ("anyOf", "oneOf")
IN_PLACE: Final = ("allOf", *ALTERNATIVES)  # their schemas apply to the same value
OTHERS: Final = "additionalProperties"
UNEVALUATED: Final = "unevaluatedProperties"
CLOSED: Final = (None, False)

Part = dict[str, Any]


def close_objects(schema: Part, *, by_default: bool) -> None:
    """Set the additional properties of all objects in a schema.

    by_default: whether to close objects that have no setting of their own. These stay open if parts
    of the schema have an `$id`, because the targets of references are unknown in that case.
    """
    definitions = Definitions(_copy(schema))
    closer = _Closer(definitions, rest=not by_default or definitions.has_other_roots)
    closer.close(schema)
    if closer.copies:
        schema["$defs"] = {**schema.get("$defs", {}), **closer.copies}


@dataclass(frozen=True)
class _Names:
    """The property names of an object in one or more schemas, in order.

    declared: whether any schema lists names. open: whether any schema allows additional names.
    """

    properties: dict[str, bool] = field(default_factory=dict)
    patterns: dict[str, bool] = field(default_factory=dict)
    declared: bool = False
    open: bool = False

    def __or__(self, other: _Names) -> _Names:
        return _Names(
            self.properties | other.properties,
            self.patterns | other.patterns,
            self.declared or other.declared,
            self.open or other.open,
        )


NO_NAMES, UNKNOWN_NAMES = _Names(), _Names(open=True)


class _Closer:
    """Closes the objects of one schema.

    rest: default schema for additional properties. copies: open copies of definitions, for objects
    that have more names than the definition.
    """

    def __init__(self, definitions: Definitions, rest: bool) -> None:
        self.copies: dict[str, Part] = {}
        self._rest = rest
        self._definitions = definitions
        self._references: dict[str, str] = {}  # references to copies, by the original reference

    def close(self, part: Any, around: _Names = NO_NAMES, stated: Any = None) -> None:
        """Close an object and the objects in it.

        around: names from other schemas for the same object. stated: its `unevaluatedProperties`.
        """
        if not isinstance(part, dict):
            return
        self._close_values(part)
        stated = part.pop(UNEVALUATED, stated)
        rest = self._rest if stated is None else stated
        alternatives = {keyword: part[keyword] for keyword in ALTERNATIVES if keyword in part}
        names = self._names(part, without=alternatives) | around
        if OTHERS in part or names.open or rest in (True, {}):
            self._leave_open(part)
        elif alternatives:
            for keyword, schemas in alternatives.items():
                others = {name: value for name, value in alternatives.items() if name != keyword}
                shared = names | self._names(others)
                for one in _list(schemas):
                    self.close(one, shared, stated)
            self._leave_open(part, without=alternatives)
        elif stated is None and not around.declared and _comes_from_one_schema(part):
            for one in _list(part.get("allOf")):
                self.close(one)
        elif (names.declared or stated is not None) and _may_be_object(part):
            self._leave_open(part)
            _write(part, names, rest)

    def _close_values(self, part: Part) -> None:
        """Close the objects inside the value that a schema describes."""
        for keyword, value in list(part.items()):
            if keyword in IN_PLACE or keyword in DATA:
                continue
            by_name = keyword in BY_NAME and isinstance(value, dict)
            for inner in value.values() if by_name else _list(value) or [value]:
                self.close(inner)

    def _leave_open(self, part: Part, without: Any = ()) -> None:
        """Close the objects inside a value, but leave the value itself open."""
        for keyword in IN_PLACE:
            for one in _list(part.get(keyword)) if keyword not in without else ():
                if isinstance(one, dict) and UNEVALUATED in one:
                    self.close(one)
                elif isinstance(one, dict):
                    self._close_values(one)
                    self._leave_open(one)
        if isinstance(part.get("$ref"), str) and not self._rest:
            part["$ref"] = self._open(part["$ref"])

    def _open(self, reference: str) -> str:
        """Copy a reference's target, leave the copy open, and return a reference to it."""
        target = self._definitions.target(reference)
        if reference in self._references or target is None or not self._names(target).declared:
            return self._references.get(reference, reference)
        name = f"open {len(self.copies)}"
        while self._definitions.target(f"#/$defs/{name}") is not None:
            name += "'"
        self._references[reference] = f"#/$defs/{name}"
        self.copies[name] = copied = _copy(target)
        for part in iter_schemas(copied):
            part.pop("$anchor", None)  # anchors must be unique
        self._leave_open({"allOf": [copied]})
        return self._references[reference]

    def _names(self, part: Part, without: Any = (), seen: set[str] | None = None) -> _Names:
        """Return the names in a schema and in all its schemas for the same object."""
        seen = set() if seen is None else seen
        names = _own_names(part)
        for keyword in IN_PLACE:
            for one in _list(part.get(keyword)) if keyword not in without else ():
                names |= self._names(one, (), seen) if isinstance(one, dict) else NO_NAMES
        reference = part.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            target = self._definitions.target(reference)
            names |= UNKNOWN_NAMES if target is None else self._names(target, (), seen)
        return names


def _copy(part: Part) -> Part:
    copied: Part = json.loads(json.dumps(part))
    return copied


def _own_names(part: Part) -> _Names:
    properties, patterns = (_object(part.get(k)) for k in ("properties", "patternProperties"))
    required = [name for name in _list(part.get("required")) if isinstance(name, str)]
    return _Names(
        dict.fromkeys([*properties, *required], True),
        dict.fromkeys(patterns, True),
        declared="properties" in part or "patternProperties" in part,
        open=any(part.get(keyword) not in CLOSED for keyword in (OTHERS, UNEVALUATED)),
    )


def _write(part: Part, names: _Names, rest: Any) -> None:
    part["properties"] = names.properties | _object(part.get("properties"))
    if names.patterns:
        part["patternProperties"] = names.patterns | _object(part.get("patternProperties"))
    part[OTHERS] = rest


def _comes_from_one_schema(part: Part) -> bool:
    """Return whether all names of a schema come from one other schema, which is closed itself."""
    others = len(_list(part.get("allOf"))) + ("$ref" in part)
    return others == 1 and not _own_names(part).declared


def _may_be_object(part: Part) -> bool:
    kinds = part.get("type", "object")
    return "object" in (kinds if isinstance(kinds, list) else [kinds])


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _object(value: Any) -> Part:
    return value if isinstance(value, dict) else {}
