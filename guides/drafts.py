"""Checks that a schema has the same meaning in its draft of JSON Schema and in llguidance.

The default draft is 2020-12. llguidance applies the keywords of all drafts to every schema. It also
applies keywords next to a `$ref`, which drafts before 2019-09 ignore.
"""

from __future__ import annotations

from typing import Any, Final

from tandem.guides.errors import GuideError, shortened
from tandem.guides.refusals import KEYWORDS
from tandem.guides.schema_parts import schemas_of

DRAFTS: Final = {
    "http://json-schema.org/draft-04/schema": "draft-04",
    "http://json-schema.org/draft-06/schema": "draft-06",
    "http://json-schema.org/draft-07/schema": "draft-07",
    "https://json-schema.org/draft/2019-09/schema": "2019-09",
    "https://json-schema.org/draft/2020-12/schema": "2020-12",
}
ORDER: Final = tuple(DRAFTS.values())
LATEST, ADDRESS = ORDER[-1], tuple(DRAFTS)[-1]
# Which drafts lack which keyword.
BEFORE_6, BEFORE_7, BEFORE_2019, BEFORE_2020 = (ORDER[:n] for n in range(1, 5))
LACKING: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("const", "contains", "propertyNames"), BEFORE_6),
    **dict.fromkeys(("if", "then", "else"), BEFORE_7),
    **dict.fromkeys(
        (
            *("dependentRequired", "dependentSchemas", "minContains", "maxContains"),
            "unevaluatedItems",
        ),
        BEFORE_2019,
    ),
    **dict.fromkeys(("prefixItems", "$dynamicRef"), BEFORE_2020),
    "$recursiveRef": (*BEFORE_2019, LATEST),
}
# Keywords that limit a value. Before 2019-09, they have no effect next to a `$ref`.
LIMITS: Final = KEYWORDS | {
    *("type", "const", "enum", "allOf", "anyOf"),
    *("properties", "additionalProperties", "required"),
    *("items", "prefixItems", "additionalItems", "minItems", "maxItems"),
    *("minLength", "maxLength", "pattern", "minimum", "maximum"),
}


def drop_next_to_references(schema: dict[str, Any]) -> None:
    """Remove keywords next to a `$ref` if the schema's draft ignores them."""
    if _draft_of(schema) not in BEFORE_2019:
        return
    for part in schemas_of(schema):
        if isinstance(part.get("$ref"), str):
            for keyword in LIMITS.intersection(part):
                del part[keyword]


def check_draft(schema: dict[str, Any]) -> None:
    """Raise GuideError if the draft of a schema, or of a part, gives it another meaning."""
    draft = _draft_of(schema)
    for part in schemas_of(schema):
        if _draft_of(part, draft) != draft:
            raise GuideError(
                f"'$schema' of a subschema must be {draft}, like the root schema's; "
                f"got {shortened(repr(part['$schema']))}"
            )
        unknown = [keyword for keyword in part if draft in LACKING.get(keyword, ())]
        if unknown:
            raise GuideError(
                f"'{unknown[0]}' isn't a keyword of {draft}; set '$schema' to a draft that has it"
            )


def _draft_of(schema: dict[str, Any], otherwise: str = LATEST) -> str:
    """Return the draft that a schema declares, or ``otherwise``."""
    declared = schema.get("$schema")
    if not isinstance(declared, str):
        return otherwise
    draft = DRAFTS.get(declared.rstrip("#"))
    if draft is None:
        raise GuideError(
            f"'$schema' must be the URI of {', '.join(ORDER[:-1])} or {LATEST}, such as "
            f"{ADDRESS!r}; got {shortened(repr(declared))}"
        )
    return draft
