r"""Prepares JSON schemas for the library, so that every answer matches its schema.

llguidance 1.9 counts repeated names for `minProperties`, so some schemas are rejected. With escapes
such as `\u0061`, an additional name may be another spelling of a declared one, so escapes are
restricted. The library rejects some keywords that have no effect, so they are removed. It misreads
some patterns, so they are rewritten. It doesn't support `uniqueItems` and `propertyNames`, so they
are removed with a warning. It never ends if no finite text matches a part, such as a list that must
contain itself, so such parts are removed.
"""

from __future__ import annotations

import json
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tandem.contract.guide import EXACT, LAYOUT_KEY, OWN_OPTIONS
from tandem.guides.closed_objects import close_objects
from tandem.guides.errors import NO_TEXT, TOO_LARGE, GuideError, GuideWarning
from tandem.guides.number_limits import check_numbers
from tandem.guides.patterns import translate
from tandem.guides.schema_parts import (
    Definitions,
    check_references,
    iter_leaves,
    iter_schemas,
    percent_encode,
)

# Escapes with which each character of a string has a single spelling.
ESCAPES: Final = 'nrbtf\\"'
# Characters that need an escape such as `\u001b`, and characters that have a one-letter escape.
UNWRITABLE = r"\x00-\x07\x0b\x0e-\x1f\x7f"
ESCAPED = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f", "\\": "\\", '"': '"'}

# Keywords whose values are counts, which JSON may write as 2.0.
COUNTS: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
# Values with which a keyword has no effect.
IDLE: Final[dict[str, tuple[Any, ...]]] = {
    "uniqueItems": (False,),
    "propertyNames": (True, {}, {"type": "string"}),
    "unevaluatedItems": (True, {}),
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
}
# Formats that the library enforces. Others are annotations, as in the standard.
FORMATS: Final = frozenset(
    {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"}
)
# Keywords that have an effect only together with one of the listed keywords.
DEPENDENT: Final[dict[str, tuple[str, ...]]] = {
    "if": ("then", "else"),
    "then": ("if",),
    "else": ("if",),
    "minContains": ("contains",),
    "maxContains": ("contains",),
}
# Default bound of integers: the 64-bit maximum, rounded to a float.
LARGEST_INTEGER: Final = 2**63 - 1024
# Tandem's own options: whether objects are open by default, and whether to reject keywords that
# can't be enforced.
OPEN_OPTION, STRICT_OPTION = OWN_OPTIONS
# Keywords that schemas from pydantic and zod have but the library doesn't support: what an answer
# may contain without them, and values that allow everything anyway.
UNENFORCED: Final[dict[str, tuple[str, list[Any]]]] = {
    "uniqueItems": ("items may repeat", [False]),
    "propertyNames": ("other names may appear", [True, {}, {"type": "string"}]),
}

# Schema without values
NO_VALUES: Final[dict[str, Any]] = {"enum": []}

Part = dict[str, Any]


def prepare_schema(schema: Any) -> dict[str, Any]:
    """Return the schema that the library compiles.

    Raises GuideError for an unsupported schema, and RecursionError for a schema that is nested
    deeper than the library allows.
    """
    if not isinstance(schema, dict):
        raise GuideError('a JSON schema must be an object, such as {"type": "string"}')
    copied: dict[str, Any] = json.loads(json.dumps(schema))
    own = _own_options(copied)
    try:
        _drop_idle(copied)
        _drop_unenforced(copied, strict=own[STRICT_OPTION])
        close_objects(copied, by_default=not own[OPEN_OPTION])
    except RecursionError as error:
        raise GuideError(TOO_LARGE) from error
    check_references(copied)
    check_numbers(copied)
    _check_min_properties(copied)
    _check_first_items(copied)
    _check_constants(copied)
    _drop_endless(copied)
    _rewrite(copied)
    return copied


def _own_options(schema: dict[str, Any]) -> dict[str, bool]:
    """Remove Tandem's own options from a schema, and return them."""
    given = schema.get(LAYOUT_KEY)
    taken = {
        name: given.pop(name) for name in OWN_OPTIONS if isinstance(given, dict) and name in given
    }
    wrong = next((name for name, value in taken.items() if not isinstance(value, bool)), None)
    if wrong is not None:
        raise GuideError(f"'{wrong}' of '{LAYOUT_KEY}' must be true or false")
    return dict.fromkeys(OWN_OPTIONS, False) | taken


def exact_options(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with which the library enforces all keywords."""
    own = schema.get(LAYOUT_KEY)
    escapes = own.get("json_allowed_escapes", ESCAPES) if isinstance(own, dict) else ESCAPES
    if isinstance(escapes, str):
        escapes = escapes.replace("u", "")
    return {**EXACT, "json_allowed_escapes": escapes}


def _check_min_properties(schema: Any) -> None:
    """Reject `minProperties` if the library may count repeated names.

    One name besides the required ones is fine, because it can't be a repetition.
    """
    for part in iter_schemas(schema):
        min_properties, required = part.get("minProperties"), part.get("required")
        closed = part.get("additionalProperties") is False and not part.get("patternProperties")
        if closed or not isinstance(min_properties, int | float):
            continue
        names = {n for n in required if isinstance(n, str)} if isinstance(required, list) else ()
        if min_properties > len(names) + 1:
            raise GuideError(
                f"minProperties must be at most {len(names) + 1} (the required names plus one) if "
                f"names outside 'properties' are allowed; got {min_properties}"
            )


def _check_first_items(schema: Any) -> None:
    """Reject `prefixItems` if the library would ignore it because of other keywords."""
    for part in iter_schemas(schema):
        if isinstance(part.get("prefixItems"), list) and (
            "additionalItems" in part or isinstance(part.get("items"), list)
        ):
            raise GuideError(
                "prefixItems isn't supported together with additionalItems or a list in 'items'; "
                "set 'items' to one schema for the remaining items"
            )


def _unwritable(schema: Mapping[str, Any]) -> str:
    """Return the characters that an answer can't contain, as the inside of brackets."""
    escapes = exact_options(schema)["json_allowed_escapes"]
    missing = (c for c, by in ESCAPED.items() if isinstance(escapes, str) and by not in escapes)
    return UNWRITABLE + "".join(rf"\x{ord(c):02x}" for c in missing)


def _check_constants(schema: Any) -> None:
    """Reject constants with characters that an answer can't contain."""
    unwritable = re.compile(f"[{_unwritable(schema)}]")
    for part in iter_schemas(schema):
        for keyword in ("const", "enum"):
            texts = (leaf for leaf in iter_leaves(part.get(keyword)) if isinstance(leaf, str))
            found = next(filter(None, map(unwritable.search, texts)), None)
            if found:
                raise GuideError(
                    f"'{keyword}' must not have strings with U+{ord(found[0]):04X}: the escape "
                    "that it needs isn't allowed"
                )


def _drop_idle(schema: dict[str, Any]) -> None:
    """Remove keywords that have no effect."""
    for part in iter_schemas(schema):
        if part.get("minContains") == 0 and "maxContains" not in part:
            part.pop("contains", None)
        for keyword in [k for k, v in part.items() if _is_idle(k, v, part)]:
            del part[keyword]


def _rewrite(schema: dict[str, Any]) -> None:
    """Replace values with equivalent values that the library reads correctly."""
    unwritable = _unwritable(schema)
    for part in iter_schemas(schema):
        for keyword in COUNTS:
            count = part.get(keyword)
            if isinstance(count, float) and count.is_integer():
                part[keyword] = int(count)
        _bound_integer(part)
        pattern, by_name = part.get("pattern"), part.get("patternProperties")
        if isinstance(pattern, str):
            part["pattern"] = translate(pattern, unwritable)
        if isinstance(by_name, dict):
            translated = {translate(p, unwritable): inner for p, inner in by_name.items()}
            if len(translated) < len(by_name):
                raise GuideError("patternProperties must not have two equal patterns")
            part["patternProperties"] = translated
        if isinstance(part.get("$ref"), str):
            part["$ref"] = percent_encode(part["$ref"])


def _is_idle(keyword: str, value: Any, part: Mapping[str, Any]) -> bool:
    if keyword == "format":
        return isinstance(value, str) and value not in FORMATS
    if keyword in DEPENDENT:
        return part.keys().isdisjoint(DEPENDENT[keyword])
    return any(value == idle and type(value) is type(idle) for idle in IDLE.get(keyword, ()))


def _bound_integer(part: dict[str, Any]) -> None:
    """Set the bounds of an integer, because without them a model may repeat digits endlessly."""
    kinds = part.get("type")
    listed = kinds if isinstance(kinds, list) else [kinds]
    if "integer" not in listed or "number" in listed:
        return
    if not part.keys() & {"minimum", "exclusiveMinimum"}:
        part["minimum"] = -LARGEST_INTEGER
    if not part.keys() & {"maximum", "exclusiveMaximum"}:
        part["maximum"] = LARGEST_INTEGER


def _drop_unenforced(schema: Part, *, strict: bool) -> None:
    """Remove keywords that can't be enforced, and warn of them.

    strict: whether to raise GuideError instead of issuing a GuideWarning.
    """
    for part in iter_schemas(schema):
        for keyword, (effect, harmless) in UNENFORCED.items():
            if keyword not in part or part.pop(keyword) in harmless:
                continue
            if strict:
                raise GuideError(
                    f"{keyword} can't be enforced; remove it, or remove 'strict' for a warning"
                )
            reason = f"the schema's {keyword} isn't enforced; {effect}"
            warnings.warn(GuideWarning(reason), stacklevel=2)


def _drop_endless(schema: Part) -> None:
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
            part.update(NO_VALUES)


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
