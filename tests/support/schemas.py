"""Generates realistic JSON schemas from a seed, and lists schemas that Tandem rejects.

The schemas resemble those in JSONSchemaBench (arXiv:2501.10868): tool calls, records, settings and
trees. Everything that can repeat is bounded, because a random engine would never end it.
"""

from __future__ import annotations

import datetime
import functools
import json
import random
import re
from typing import Any

import jsonschema

from tandem.guides.errors import GuideError
from tandem.guides.number_limits import check_exclusive_bounds

Schema = dict[str, Any]

NAMES = [
    *("id", "name", "kind", "size", "tags", "owner", "created_at", "isActive", "user-name", "x"),
    *("$type", "@id", "a b", "a.b", "0", "größe", "名前", "emoji 😀", 'quote"d', "back\\slash"),
    *("tab\there", "/path", "#", "", "null", "__proto__", "very_long_name_of_a_property_in_a_row"),
]
WORDS = [
    *("red", "green", "blue", "New York", "n/a", "", "straße", "日本", "it's", 'say "hi"', "a\\b"),
    *("line\nbreak", "😀", "null", "true", "1", " ", "{}", "</tool>"),
]
PATTERNS = [
    *("^[a-z]{2,6}$", "^[A-Z]{3}-[0-9]{2,4}$", r"^\d{4}-\d{2}-\d{2}$", "^(yes|no|maybe)$"),
    *(r"^\+?[0-9]{3,9}$", "^#[0-9a-f]{6}$", "^v[0-9]{1,2}(\\.[0-9]{1,2}){0,2}$", "^.{0,8}$"),
]
FORMATS = ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"]
DEEPEST = 3
ANOTHER = 10**6  # added to the seed if its schema is rejected


def schema_of(seed: int) -> Schema:
    """Return the schema for a seed: usually an object, otherwise an array or a choice.

    Some combined schemas have conflicting bounds and are rejected. In that case, this function
    returns the schema for another seed.
    """
    schema = _Maker(random.Random(seed)).whole()
    try:
        check_exclusive_bounds(schema)
    except GuideError:
        return schema_of(seed + ANOTHER)
    return schema


def complaint(schema: Schema, text: str) -> str:
    """Return the validator's error for a text, or an empty string if the text is valid."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"no JSON: {error}: {text!r}"
    found = next(_validator(json.dumps(schema)).iter_errors(value), None)
    return "" if found is None else f"{found.message} in {text!r} by {json.dumps(schema)}"


@functools.cache
def _validator(schema: str) -> jsonschema.Validator:
    read = json.loads(schema)
    kind = jsonschema.Draft202012Validator
    kind.check_schema(read)
    formats = jsonschema.FormatChecker(["email", "ipv4", "ipv6", "uuid"])
    for name, is_one in (("date", _is_date), ("time", _is_time), ("date-time", _is_moment)):
        formats.checks(name)(is_one)
    return kind(read, format_checker=formats)


def _is_date(value: Any) -> bool:
    """Return whether a value is a date. February may have 29 days in every year."""
    found = re.fullmatch(r"[0-9]{4}-([0-9]{2})-([0-9]{2})", str(value))
    if found is None:
        return False
    try:
        return bool(datetime.date(2000, *map(int, found.groups())))
    except ValueError:
        return False


def _is_time(value: Any) -> bool:
    """Return whether a value is a time of RFC 3339. Every minute may have a leap second."""
    minute, zone = r"([01]\d|2[0-3]):[0-5]\d", r"(z|[+-]([01]\d|2[0-3]):[0-5]\d)"
    return bool(re.fullmatch(rf"{minute}:([0-5]\d|60)(\.\d+)?{zone}", str(value).lower()))


def _is_moment(value: Any) -> bool:
    date, _, time = str(value).lower().partition("t")
    return _is_date(date) and _is_time(time)


class _Maker:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._definitions: dict[str, Schema] = {}

    def whole(self) -> Schema:
        make = self._pick([self._object] * 7 + [self._array, self._any_of, self._tree])
        made = make(0)
        return {**made, "$defs": self._definitions} if self._definitions else made

    def _value(self, depth: int) -> Schema:
        plain = [self._string, self._integer, self._number, self._enum, self._const, self._simple]
        nested = [self._object, self._array, self._any_of, self._nullable, self._reference]
        nested += [self._one_of, self._all_of]
        if depth >= DEEPEST or self._chance(0.6):
            made = self._pick(plain)(depth)
        else:
            made = self._pick(nested)(depth)
        if self._chance(0.15):
            made["description"] = self._pick(WORDS)
        return made

    def _object(self, depth: int) -> Schema:
        names = self._rng.sample(NAMES, self._rng.randint(1 if depth else 2, 5))
        properties = {name: self._value(depth + 1) for name in names}
        made: Schema = {"type": "object", "properties": properties}
        made["additionalProperties"] = False
        if self._chance(0.7):
            made["required"] = [name for name in names if self._chance(0.7)]
        if self._chance(0.08):
            made["additionalProperties"] = self._pick([self._integer, self._enum])(depth)
        if self._chance(0.03):
            made["additionalProperties"] = True
        if self._chance(0.03):
            del made["additionalProperties"]
        if self._chance(0.05):
            made |= {"minProperties": self._rng.randint(0, 2), "required": names}
        if self._chance(0.08):
            made["patternProperties"] = {"^x-[a-z]{1,4}$": self._value(DEEPEST)}
        return made

    def _array(self, depth: int) -> Schema:
        min_items = self._rng.randint(0, 2)
        made: Schema = {"type": "array", "items": self._value(depth + 1)}
        if self._chance(0.15):
            made = {"type": "array", "prefixItems": [self._value(depth + 1), made["items"]]}
            made["items"] = False if self._chance(0.5) else self._value(DEEPEST)
        if self._chance(0.5):
            made["minItems"] = min_items
        return {**made, "maxItems": min_items + self._rng.randint(1, 3)}

    def _any_of(self, depth: int) -> Schema:
        return {"anyOf": [self._value(depth + 1) for _ in range(self._rng.randint(2, 3))]}

    def _one_of(self, depth: int) -> Schema:
        """Return a choice of mutually exclusive schemas, which differ in a constant or in type."""
        if self._chance(0.5):
            return {"oneOf": [self._string(depth), self._integer(depth), {"type": "null"}]}
        kinds = [self._object(depth + 1) for _ in range(2)]
        for name, kind in zip(["this", "that"], kinds, strict=True):
            kind["properties"] = {"kind": {"const": name}} | kind["properties"]
            kind["required"] = ["kind", *(n for n in kind.get("required", []) if n != "kind")]
            kind["properties"]["kind"] = {"const": name}
        return {"oneOf": kinds}

    def _all_of(self, depth: int) -> Schema:
        """Return two schemas that both apply.

        The second schema adds properties and disallows undeclared ones.
        """
        one, other = (self._object(depth + 1) for _ in range(2))
        for keyword in ("additionalProperties", "patternProperties", "minProperties"):
            one.pop(keyword, None)
        own = {n: s for n, s in other["properties"].items() if n not in one["properties"]}
        closed = {"type": "object", "additionalProperties": False}
        return {"allOf": [one, {"properties": {n: {} for n in one["properties"]} | own, **closed}]}

    def _nullable(self, depth: int) -> Schema:
        if self._chance(0.5):
            return {"type": [self._pick(["boolean", "integer"]), "null"]}
        return {"anyOf": [self._value(depth + 1), {"type": "null"}]}

    def _reference(self, depth: int) -> Schema:
        name = f"shared{len(self._definitions)}"
        self._definitions[name] = {}  # reserves the name
        self._definitions[name] = self._value(depth + 1)
        return {"$ref": f"#/$defs/{name}"}

    def _tree(self, _: int) -> Schema:
        """Return a recursive schema with few children. Random trees with many would not end."""
        name = self._pick(["node", "Node", "tree/node"])
        reference = {"$ref": "#/$defs/" + name.replace("/", "~1")}
        below: Schema = {"type": "array", "items": reference, "maxItems": 2}
        if self._chance(0.4):
            below = {"anyOf": [{"type": "null"}, reference]}
        self._definitions[name] = {
            "type": "object",
            "properties": {"value": self._value(DEEPEST), "below": below},
            "required": ["value"],
            "additionalProperties": False,
        }
        return dict(reference)

    def _string(self, _: int) -> Schema:
        kind = self._rng.randrange(4)
        if kind == 0:
            return {"type": "string", "pattern": self._pick(PATTERNS)}
        if kind == 1:
            return {"type": "string", "format": self._pick(FORMATS)}
        made: Schema = {"type": "string", "maxLength": self._rng.randint(1, 16)}
        if self._chance(0.4):
            made["minLength"] = self._rng.randint(0, made["maxLength"])
        return made

    def _integer(self, _: int) -> Schema:
        low = self._rng.randint(-200, 100)
        high = low + self._rng.choice([0, 1, 7, 99, 10_000])
        bounds = [{"minimum": low}, {"maximum": high}, {"minimum": low, "maximum": high}, {}]
        strict = {"exclusiveMinimum": low, "exclusiveMaximum": high + 2}
        if self._chance(0.15):
            bounds = [{"minimum": 0, "maximum": 200, "multipleOf": self._rng.randint(2, 9)}]
        return {"type": "integer"} | self._pick([*bounds, strict])

    def _number(self, _: int) -> Schema:
        low = self._rng.choice([0, -1, 0.5, -12.25, 3.125, 1e-3])
        high = low + self._rng.choice([0.25, 1, 10.5, 1000])
        bounds = [{"minimum": low}, {"maximum": high}, {"minimum": low, "maximum": high}, {}]
        strict = {"exclusiveMinimum": low, "maximum": low + self._rng.choice([1, 7.5])}
        return {"type": "number"} | self._pick([*bounds, strict])

    def _enum(self, _: int) -> Schema:
        values = self._rng.sample(WORDS, self._rng.randint(1, 5))
        if self._chance(0.3):
            return {"enum": [*values, 7, None, True, -0.5, [1], {"a": 1}]}
        return {"type": "string", "enum": values} if self._chance(0.7) else {"enum": values}

    def _const(self, _: int) -> Schema:
        return {"const": self._pick([*WORDS, 0, 12.5, None, False, [1, "two"], {"k": "v"}])}

    def _simple(self, _: int) -> Schema:
        return {"type": self._pick(["boolean", "null", "integer", "number"])}

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _pick(self, options: list[Any]) -> Any:
        return self._rng.choice(options)


_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "integer", "minimum": 0}
# Rejected schemas, by the keyword with which the server counts the rejection.
REJECTED: dict[str, Schema] = {
    "oneOf": {"oneOf": [_NUMBER, {"type": "integer", "maximum": 5}]},
    "not": {"not": _TEXT},
    "uniqueItems": {
        "type": "array",
        "items": _NUMBER,
        "uniqueItems": True,
        "x-guidance": {"strict": True},
    },
    "if": {"if": _TEXT, "then": {"maxLength": 3}},
    "contains": {"type": "array", "contains": _NUMBER},
    "propertyNames": {
        "type": "object",
        "propertyNames": {"pattern": "^a"},
        "x-guidance": {"strict": True},
    },
    "dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "dependentSchemas": {"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}},
    "dependencies": {"type": "object", "dependencies": {"a": ["b"]}},
    "unevaluatedItems": {"type": "array", "unevaluatedItems": False},
    "maxProperties": {
        "type": "object",
        "properties": {"a": _TEXT},
        "maxProperties": 1,
        "additionalProperties": True,
    },
    "minProperties": {"type": "object", "minProperties": 2},
    "multipleOf": {"type": "number", "multipleOf": 0.07},
    "exclusiveMaximum": {"type": "number", "minimum": 0.5, "exclusiveMaximum": 1},
    "$dynamicRef": {"$dynamicRef": "#x"},
    "other": {"$ref": "#"},
}
