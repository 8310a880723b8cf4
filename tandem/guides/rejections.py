"""Classifies rejected guides by the unsupported keyword, for a metric."""

from __future__ import annotations

import re

# Keywords of JSON Schema that may appear in errors of the library. All others count as OTHER.
KEYWORDS = frozenset(
    {
        "contains", "contentEncoding", "contentMediaType", "dependencies", "dependentRequired",
        "dependentSchemas", "else", "exclusiveMaximum", "exclusiveMinimum", "format", "if",
        "maxContains", "maxProperties", "minContains", "minProperties", "multipleOf", "not",
        "oneOf", "patternProperties", "propertyNames", "then", "unevaluatedItems",
        "unevaluatedProperties", "uniqueItems", "$dynamicRef", "$recursiveRef",
    }
)  # fmt: skip
OTHER = "other"
IN_GRAMMAR = re.compile(r"^at \d+\(\d+\): (?:failed to compile JSON schema: )?")
# Starts of other errors
FORMS = (
    ("oneOf constraints are not supported", ["oneOf"]),
    ("uniqueItems ", ["uniqueItems"]),
    ("minProperties ", ["minProperties"]),
    ("min/maxProperties only supported", ["minProperties", "maxProperties"]),
    ("multipleOf ", ["multipleOf"]),
    ("Value for 'multipleOf' has too many digits", ["multipleOf"]),
    ("exclusiveMinimum and exclusiveMaximum ", ["exclusiveMinimum", "exclusiveMaximum"]),
)


def keywords_of(reason: str) -> list[str]:
    """Return the keywords that an error message names, or ``OTHER`` if it names none."""
    reason = IN_GRAMMAR.sub("", reason)
    if reason.startswith("Unimplemented keys:"):
        named = re.findall(r'"([$A-Za-z]+)"', reason)
    else:
        named = [word for form, words in FORMS if reason.startswith(form) for word in words]
    return sorted(KEYWORDS.intersection(named)) or [OTHER]
