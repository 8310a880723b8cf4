"""The kinds of guides, and their options and layout, for the loop and the gateway."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

# NVIDIA's names, if it has one: `json`, `json_schema`, `regex`, `ebnf_grammar`.
GuideKind: TypeAlias = Literal[
    "json", "json_schema", "regex", "choice", "lark_grammar", "ebnf_grammar"
]
# The key of a JSON schema's own layout, such as {"whitespace_flexible": true}. It has priority.
LAYOUT_KEY: Final = "x-guidance"
# JSON as in training data, with one space. With flexible white space almost no token is forced, and
# a model may emit blanks forever.
JSON_LAYOUT: Final[Mapping[str, str | bool]] = MappingProxyType(
    {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
)
LAYOUT_OPTIONS: Final = frozenset({*JSON_LAYOUT, "whitespace_pattern"})
# Not configurable by a schema: no keyword is ignored, and none is treated as another one.
EXACT: Final[Mapping[str, bool]] = MappingProxyType({"lenient": False, "coerce_one_of": False})
# Our own options under the same key: open objects by default, and reject keywords that can't be
# enforced.
OWN_OPTIONS: Final = ("additional_properties", "strict")
ESCAPED_OR_SLASH = re.compile(r"\\.|/", re.DOTALL)


def layout_of(schema: Mapping[str, Any]) -> Mapping[str, str | bool]:
    """Return the default layout, or nothing for a schema with a layout of its own."""
    own = schema.get(LAYOUT_KEY)
    has_layout = isinstance(own, dict) and not LAYOUT_OPTIONS.isdisjoint(own)
    return {} if has_layout else JSON_LAYOUT


def lark_regex(regex: str) -> str:
    """Return a regular expression as a terminal of llguidance's Lark; raise ValueError."""
    if ESCAPED_OR_SLASH.sub("", regex).endswith("\\"):
        raise ValueError("regex parse error: nothing follows the last backslash")
    escaped = ESCAPED_OR_SLASH.sub(lambda found: r"\/" if found[0] == "/" else found[0], regex)
    return f"/{escaped}/"
