"""Why guides were refused, in words that are few enough to count."""

from __future__ import annotations

import re

# JSON Schema's keywords that the library names when it refuses them; all else counts as OTHER.
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
# How other refusals begin.
FORMS = (
    ("oneOf constraints are not supported", ["oneOf"]),
    ("uniqueItems ", ["uniqueItems"]),
    ("minProperties is not supported where", ["minProperties"]),
    ("min/maxProperties only supported", ["minProperties", "maxProperties"]),
    ("multipleOf ", ["multipleOf"]),
    ("exclusiveMinimum and exclusiveMaximum are not", ["exclusiveMinimum", "exclusiveMaximum"]),
)


def keywords_of(reason: str) -> list[str]:
    """Return the keywords that a refusal is about; ``OTHER`` where it is about none of them."""
    reason = IN_GRAMMAR.sub("", reason)
    if reason.startswith("Unimplemented keys:"):
        named = re.findall(r'"([$A-Za-z]+)"', reason)
    else:
        named = [word for form, words in FORMS if reason.startswith(form) for word in words]
    return sorted(KEYWORDS.intersection(named)) or [OTHER]
